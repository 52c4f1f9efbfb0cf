"""The drivers are asked before the rest of the program is loaded."""

import os
import subprocess
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from support import schemas
from support.program import environment
from support.stub_drivers import StubDrivers

import tsuku_llm
from tsuku_llm.config import keys
from tsuku_llm.machine.host import LocalHost
from tsuku_llm.probe import probe, program, questions
from tsuku_llm.steps.prefetch import PrefetchedHost

LIMIT = 60.0


@pytest.fixture
def asked() -> PrefetchedHost:
    return PrefetchedHost(LIMIT)


def test_the_prefetch_asks_the_questions_of_a_probe(asked: PrefetchedHost) -> None:
    assert asked.ask(program(asked), questions(asked), LIMIT) is asked._asking
    answers = asked._asking()
    assert list(answers) == list(questions(asked))
    assert answers["libc"].end == "done"


def test_a_probe_from_the_prefetch_finds_the_same_machine(asked: PrefetchedHost) -> None:
    found, usual = probe(asked, LIMIT), probe(LocalHost(), LIMIT)
    assert asked._taken
    assert replace(found, memory=None) == replace(usual, memory=None)
    asked.close()


def test_a_probe_without_a_limit_has_that_of_the_setting() -> None:
    setting = keys.key_named("llm.probe_timeout")
    assert signature(probe).parameters["limit"].default == setting.typed(setting.default)


def test_other_or_repeated_questions_start_a_new_child(asked: PrefetchedHost) -> None:
    assert list(asked.ask(program(asked), ["libc"], LIMIT)()) == ["libc"]
    first = asked.ask(program(asked), questions(asked), LIMIT)
    second = asked.ask(program(asked), questions(asked), LIMIT)
    assert first is not second
    assert first().keys() == second().keys()


def test_a_prefetch_without_a_reader_leaves_no_child(asked: PrefetchedHost) -> None:
    asked.close()
    (process,) = asked._asking._child._processes
    assert process.returncode is not None
    asked.close()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("probe", True),
        ("--json probe --record x", True),
        ("install --backend=cpu --dry-run", True),
        ("explain", True),
        ("backends", True),
        ("doctor", True),
        ("probe --help", False),
        ("explain -h", False),
        ("explain --hardware x", False),
        ("explain --hardware=x", False),
        ("--version probe", False),
        ("list", False),
        ("config get probe", False),
        ("", False),
    ],
)
def test_only_a_command_that_probes_prefetches(line: str, wanted: bool, tmp_path: Path) -> None:
    code = (
        "import sys; from tsuku_llm.cli.entry import run; run(sys.argv[1:]); "
        "print('tsuku_llm.steps.prefetch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, *line.split()]
    done = subprocess.run(
        command,
        env=environment(tmp_path / "home"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == str(wanted)


@pytest.mark.parametrize(("argument", "code"), [("--no-such-option", 2), ("--json", 0)])
def test_the_program_leaves_no_child_behind(argument: str, code: int) -> None:
    environ = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-m", "tsuku_llm", "probe", argument],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "Warning" not in done.stderr


def test_starting_the_prefetch_loads_little() -> None:
    folder = Path(str(tsuku_llm.__file__)).parents[1]
    code = f"import sys; sys.path.append({str(folder)!r}); import tsuku_llm.steps.prefetch; "
    command = [sys.executable, "-I", "-S", "-c", code + "print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    heavy = {"dataclasses", "inspect", "json", "pathlib", "typing", "click"}
    assert not heavy & set(done.stdout.split())


def probed(stubs: StubDrivers, home: Path, **environ: str) -> Any:
    """The hardware that a whole run of the program finds, with a stub of CUDA's driver only."""
    folders = f"{stubs.library('cuda').parent}:{stubs.none_installed()}"
    done = subprocess.run(
        [sys.executable, "-m", "tsuku_llm", "probe", "--json"],
        env=environment(home, LD_LIBRARY_PATH=folders, **environ),
        capture_output=True,
        text=True,
        check=True,
    )
    apis = schemas.read(done.stdout)["data"]["hardware"]["apis"]
    (api,) = [api for api in apis if api["name"] == "cuda"]
    return api


def test_a_missing_folder_for_temporary_files_hides_no_gpu(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    api = probed(stubs, tmp_path / "home", TMPDIR="/run/user/4711")
    assert (api["state"], len(api["gpus"])) == ("ok", 1)


def test_the_setting_limits_each_driver(stubs: StubDrivers, tmp_path: Path) -> None:
    limit = {"TSUKU_LLM_PROBE_TIMEOUT": "1s", "STUB_cuInit": "hang"}
    api = probed(stubs, tmp_path / "home", **limit)
    assert api["state"] == "timed-out"
    assert "did not answer within 1 s (cuInit)" in api["problem"]["text"]
