"""What each command may load: a budget of modules, and of libraries that cost much.

Budgets are counts, not times: they mean the same on every machine. The times they stand for
are in ci/bench/performance.md.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.program import environment
from support.stored import install
from test_layers import HEAVY, MODULES, has_code

from tsuku_llm.store.store import Store

OWN = "tsuku_llm"
NETWORK = {"httpx", "httpcore", "ssl", "asyncio", "http.client", "truststore"}
FOLDERS = {
    f"{OWN}.{name}" for name, each in MODULES.items() if each.is_package and not has_code(each)
}
SLOW = {"importlib.metadata", "logging", "unittest", "email", "multiprocessing"}

WRITING = {f"{OWN}.store.{name}" for name in ("finalize", "locks", "reuse", "staging", "store")}
WATCHING = {"ctypes", "selectors", "subprocess"}

BUDGETS = {
    "--version": (5, 12),
    "--help": (19, 102),
    "list": (57, 141),
    "which": (52, 134),
    "serve --exec -- -m x": (77, 171),
    "serve --exec -- --port 0": (90, 187),
    "serve --exec --model /dev/null": (91, 188),
    "serve --exec --fallback -- -m x": (77, 171),
    "serve -- -m x": (92, 192),
    "run llama-server": (59, 152),
    "config list": (30, 106),
}
"""The most modules of ours, and of all, that a command may have loaded at its end.

These starts print a hint, so they look for the program on the PATH. Other versions of Python load a
few modules more or less: the second number leaves room for four. The finder of an editable install
loads about thirty before, and they do not count: there a few more of them would not be seen.
A folder of ours does not count either if its file has one docstring.
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one installed version, whose server is a shell script."""
    home = tmp_path_factory.mktemp("home")
    install(Store(home / "llm"))
    loaded("serve --exec", home)  # the first start looks into signed metadata, and notes the answer
    return home


def loaded(line: str, home: Path) -> set[str]:
    """The modules that a command loads, by Python's own account of its imports.

    ``-X importtime`` would not show what ``importlib.import_module`` loads.
    """
    code = f"from {OWN}.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-v", "-c", code, *line.split()],
        # The clock of the tests would count as well: it is a module, and imports some.
        env={**without_clock(environment(home)), "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(re.findall(r"^import '(\S+)' #", done.stderr, re.MULTILINE))


def without_clock(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name != "PYTHONPATH"}


def bare() -> set[str]:
    """What the interpreter and its site-packages load by themselves."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env=without_clock(os.environ),
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("line", BUDGETS)
def test_a_command_loads_no_more_than_its_budget(line: str, home: Path) -> None:
    modules = loaded(line, home) - bare() - FOLDERS
    own = {name for name in modules if name.partition(".")[0] == OWN}
    most_own, most = BUDGETS[line]
    assert len(own) <= most_own, " ".join(sorted(own))
    assert len(modules) <= most, " ".join(sorted(modules - own))


@pytest.mark.parametrize("line", BUDGETS)
def test_a_command_without_network_loads_nothing_heavy(line: str, home: Path) -> None:
    modules = loaded(line, home) - bare()
    heavy = {name for name in modules if name.partition(".")[0] in HEAVY}
    assert not heavy | modules & (NETWORK | SLOW)


@pytest.mark.parametrize("line", [*BUDGETS, "verify"])
def test_a_command_that_only_reads_the_store_loads_nothing_that_writes_it(
    line: str, home: Path
) -> None:
    assert not loaded(line, home) & WRITING


def test_verify_loads_what_tries_a_build_only_to_compute(home: Path) -> None:
    assert f"{OWN}.steps.install.trial" not in loaded("verify", home)


@pytest.mark.parametrize(
    ("line", "without"),
    [("serve --exec -- -m x", {"dataclasses"} | WATCHING), ("serve -- -m x", {"dataclasses"})],
)
def test_a_start_loads_nothing_that_it_does_without(
    line: str, without: set[str], home: Path
) -> None:
    assert not (loaded(line, home) - bare()) & without
