"""The places that start a process, and what a child process inherits."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tsuku_llm
from tsuku_llm.ground.processes import children, inherited

INSTALLER = Path(__file__).parents[2] / "installer"

STARTS = {
    ("tsuku_llm/ground/processes/children.py", "subprocess.Popen"): "the one place for all others",
    ("tsuku_llm/ground/processes/children.py", "subprocess.run"): "the one place for all others",
    ("tsuku_llm/launch/run/replace_process.py", "os.execve"): "takes the environment from there",
    ("tsuku_operator/fleet/fleet.py", "ansible_runner"): "takes the environment from there",
    ("tsuku_llm/probe/worker/main.py", "os.execve"): "a child of ours, as the system's Python",
    ("tsuku_llm/probe/worker/search.py", "os.posix_spawn"): "a child of ours: the system's loader",
    (
        "tsuku_operator/bundle/bundle_start.py",
        "subprocess.run",
    ): "runs without the package: -I, and below",
    (
        "tsuku_operator/bundle/bundle_start.py",
        "subprocess.call",
    ): "runs without the package: -I, and below",
}
"""Every place that starts a process, and why it may."""

IN_CALLERS_FOLDER = {
    "tsuku_llm/steps/servers/background.py": "the supervisor: the server's arguments are a user's",
    "tsuku_llm/launch/ask/child.py": "the plan of a start or of a question says where",
    "tsuku_publish/secrets.py": "git gets the folder that the user names",
}
"""The calls that leave a child in a folder that the caller chose, or may have chosen."""

_MODULES = {"subprocess", "multiprocessing", "pty", "ansible_runner", "webbrowser", "pexpect"}
_HARMLESS = {
    *("DEVNULL", "PIPE", "STDOUT", "CompletedProcess", "TimeoutExpired", "SubprocessError"),
    *("CalledProcessError", "list2cmdline", "CREATE_NO_WINDOW", "DETACHED_PROCESS"),
}
_OF_OS = re.compile(r"os\.(exec|spawn|posix_spawn|fork|popen|system|startfile).*")
_OF_OTHERS = re.compile(
    r"asyncio\.create_subprocess.*|(ctypes\.)?util\.find_library|click\.(edit|launch|echo_via_pager)"
)


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in ("tsuku_llm", "tsuku_operator", "tsuku_publish", "ansible_collections"):
        for path in sorted((INSTALLER / package).rglob("*.py")):
            yield path.relative_to(INSTALLER).as_posix(), ast.parse(path.read_text("utf-8"))


def starts_in(tree: ast.AST) -> Iterator[str]:
    """Name what starts a process in a module: ``subprocess.run``, or an imported module."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for kind in ("annotation", "returns")
        if isinstance(each := getattr(node, kind, None), ast.AST)
        for inner in ast.walk(each)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in annotations:
            name = ast.unparse(node)
            module, _, rest = name.partition(".")
            is_start = module in _MODULES and rest.partition(".")[0] not in _HARMLESS
            if is_start or _OF_OS.fullmatch(name) or _OF_OTHERS.fullmatch(name):
                yield name
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                name = f"{node.module}.{each.name}"
                is_start = node.module in _MODULES and each.name not in _HARMLESS
                if is_start or _OF_OS.fullmatch(name) or _OF_OTHERS.fullmatch(name):
                    yield name
        elif isinstance(node, ast.Import):
            for each in node.names:
                # The name may be another one here, so the import counts.
                if each.name.partition(".")[0] in _MODULES - {"subprocess"} or (
                    each.name == "subprocess" and each.asname
                ):
                    yield each.name


def test_N02_no_other_place_starts_a_process() -> None:
    found = {
        (name, "ansible_runner" if "ansible_runner" in start else start)
        for name, tree in sources()
        for start in starts_in(tree)
        if not start.startswith("subprocess.Popen[")
    }
    assert found == set(STARTS)


@pytest.mark.parametrize(
    "code",
    [
        *("import subprocess\nsubprocess.check_output(['x'])", "from subprocess import run"),
        *("import subprocess as s", "import os\nos.execvp('x', ['x'])", "from os import system"),
        *("import os\nos.posix_spawn('/x', [], {})", "import multiprocessing", "import pty"),
        *("import os\nrun = os.popen", "import webbrowser"),
        "from asyncio import create_subprocess_exec",
        "import ctypes.util\nctypes.util.find_library('c')",
    ],
)  # fmt: skip
def test_N02_each_way_to_start_a_process_is_seen(code: str) -> None:
    assert [*starts_in(ast.parse(code))]


def test_N02_only_listed_places_choose_a_callers_folder() -> None:
    found = {
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"children.start", "children.run"}
        for each in node.keywords
        if each.arg == "cwd" and ast.unparse(each.value) in {"children.CALLERS_FOLDER", "plan.cwd"}
    }
    assert found == set(IN_CALLERS_FOLDER)


def test_N02_each_python_is_isolated() -> None:
    # Shown to the user, or written into a unit: no child of ours.
    shown = {"tsuku_llm/cli/services/command_line.py"}
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and name not in shown:
                words = [ast.unparse(each) for each in node.elts]
                if words[0] == "sys.executable":
                    assert words[1] == "'-I'", f"{name}:{node.lineno}"


RELATIVE = {
    "PATH": (f".:/usr/bin::bin:{os.sep}bin:", "/usr/bin:/bin"),
    "LD_LIBRARY_PATH": (":/opt/lib", "/opt/lib"),
    "LD_PRELOAD": ("./planted.so libm.so.6 /lib/x.so", "libm.so.6:/lib/x.so"),
    "LD_AUDIT": ("planted/a.so", None),
    "PYTHONPATH": ("", None),
    "PYTHONHOME": (".", None),
    "PYTHONSTARTUP": ("start.py", None),
    "ANSIBLE_COLLECTIONS_PATH": ("collections:/opt/collections", "/opt/collections"),
    "PERL5LIB": (".", None),
    "XDG_DATA_DIRS": ("share:/usr/share", "/usr/share"),
    "GCONV_PATH": (".", None),
}


@pytest.mark.skipif(sys.platform == "win32", reason="the separator is another one")
@pytest.mark.parametrize("name", RELATIVE)
def test_N02_a_search_path_has_no_relative_entry(name: str) -> None:
    given, left = RELATIVE[name]
    assert inherited.environment({name: given}).get(name) == left


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such modes")
@pytest.mark.parametrize(
    "kind", ["open", "sticky", "another's", "below another's", "missing", "own"]
)
def test_N02_a_home_in_which_others_can_write_is_no_home(kind: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    if kind in ("open", "sticky"):
        home.chmod(0o777 if kind == "open" else 0o1777)
    elif kind.endswith("another's"):
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(home, 65534, 65534)
        home /= "below" if kind.startswith("below") else ""
        home.mkdir(exist_ok=True)
    elif kind == "missing":
        home /= "missing"
    given = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "OTHER": str(home)}
    kept = inherited.environment(given)
    if kind in ("own", "missing"):
        assert kept == given
    else:
        assert kept["HOME"] != str(home)
        assert inherited.is_private(kept["HOME"])
        assert kept.keys() == {"HOME", "OTHER"}


def test_N02_a_child_starts_in_the_root_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = children.run(children.python("import os; print(os.getcwd())"), stdout=subprocess.PIPE)
    assert done.stdout.decode().strip() == str(children.ROOT)


def test_N02_a_python_has_our_modules_and_none_of_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('planted')\n")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    code = "import json, tsuku_llm, packaging; print(tsuku_llm.__file__)"
    done = children.run(
        children.python(code), cwd=children.CALLERS_FOLDER, capture_output=True, text=True
    )
    assert done.stdout.strip() == tsuku_llm.__file__, done.stderr
