"""The calls of this program in hints work as they are printed, wherever the program lies."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support import schemas
from support.program import SUDO, environment

from tsuku_llm.ground.own_name import PROGRAM, name_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the scripts are for a POSIX shell")

OTHERS = f"{os.pathsep}".join(("/usr/bin", "/bin"))


def script_in(folder: Path) -> Path:
    """This copy's script, as pip writes it, in a folder of a test's own."""
    folder.mkdir(parents=True)
    script = folder / PROGRAM
    script.write_text(
        f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''\n"
        "import sys\nfrom tsuku_llm.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return script


def hint(env: dict[str, str], *command: str) -> str:
    """What a command that finds nothing installed says to run."""
    done = subprocess.run([*command, "which"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    return done.stderr.partition("hint: run: ")[2].strip()


def works(line: str, env: dict[str, str]) -> bool:
    """Whether a shell starts this program for a line like ``NAME install``."""
    call = line.removesuffix(" install") + " --version"
    done = subprocess.run(["sh", "-c", call], env=env, capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.startswith("tsuku-llm ")


def test_a_program_on_the_path_is_its_name(tmp_path: Path) -> None:
    script = script_in(tmp_path / "bin")
    env = environment(tmp_path, PATH=f"{script.parent}:{OTHERS}")
    assert hint(env, str(script)) == hint(env, PROGRAM) == "tsuku-llm install"


def test_a_link_on_the_path_is_enough(tmp_path: Path) -> None:
    script = script_in(tmp_path / "tool")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / PROGRAM).symlink_to(script)
    env = environment(tmp_path, PATH=f"{tmp_path / 'bin'}:{OTHERS}")
    assert hint(env, str(script)) == "tsuku-llm install"


@pytest.mark.parametrize("folder", ["bin", "my programs/o'neill", "$HOME", "é"])
def test_a_program_off_the_path_is_a_path_that_works(tmp_path: Path, folder: str) -> None:
    script = script_in(tmp_path / folder)
    env = environment(tmp_path, PATH=OTHERS)
    said = hint(env, str(script))
    assert shlex.split(said) == [str(script), "install"]
    assert works(said, env)


def test_a_relative_path_is_shown_in_full(tmp_path: Path) -> None:
    script = script_in(tmp_path / "bin")
    env = environment(tmp_path, PATH=OTHERS)
    relative = os.path.relpath(script)
    assert hint(env, relative) == f"{script} install"


def test_another_copy_on_the_path_is_not_taken_for_this_one(tmp_path: Path) -> None:
    script, other = script_in(tmp_path / "own"), script_in(tmp_path / "other")
    env = environment(tmp_path, PATH=f"{other.parent}:{OTHERS}")
    assert hint(env, str(script)) == f"{script} install"


def test_python_m_is_what_works_without_a_script(tmp_path: Path) -> None:
    env = environment(tmp_path, PATH=OTHERS)
    module = (sys.executable, "-m", "tsuku_llm")
    said = hint(env, *module)
    assert shlex.split(said) == [*module, "install"]
    assert works(said, env)
    env["PATH"] = f"{sysconfig.get_path('scripts')}:{OTHERS}"
    assert hint(env, *module) == "tsuku-llm install"
    env["PATH"] = f"{script_in(tmp_path / 'other').parent}:{OTHERS}"
    assert hint(env, *module) == said


def test_the_json_document_has_the_same_hint(tmp_path: Path) -> None:
    script = script_in(tmp_path / "bin")
    env = environment(tmp_path, PATH=OTHERS)
    done = subprocess.run(
        [script, "which", "--json"], env=env, capture_output=True, text=True, check=False
    )
    assert schemas.read(done.stdout)["error"]["hint"] == f"run: {script} install"


@pytest.mark.parametrize(
    ("wrong", "way"),
    [
        ("bench --nonsense", "bench -- --nonsense"),
        ("list stray", "list --help"),
        ("wich", "which"),
        ("install --backend", "install --help"),
        ("serve --port=", "serve"),
        ("help list nothing", "list --help"),
        ("logs --nonsense many", "logs --help"),
    ],
)
def test_a_wrong_call_is_answered_with_one_that_works(tmp_path: Path, wrong: str, way: str) -> None:
    script = script_in(tmp_path / "bin")
    done = subprocess.run(
        [script, *wrong.split()],
        env=environment(tmp_path, PATH=OTHERS),
        capture_output=True,
        text=True,
        check=False,
    )
    _, found, said = done.stderr.partition("hint: ")
    assert (done.returncode, found) == (2, "hint: "), done.stderr
    assert f"{script} {way}" in said


def test_the_help_shows_calls_that_work(tmp_path: Path) -> None:
    script = script_in(tmp_path / "bin")
    env = environment(tmp_path, PATH=OTHERS)
    done = subprocess.run([script, "--help"], env=env, capture_output=True, text=True, check=False)
    assert f"  {script} install\n" in done.stdout


def test_root_has_another_path(tmp_path: Path) -> None:
    script = script_in(tmp_path / "bin")
    env = environment(tmp_path, PATH=f"{script.parent}:{OTHERS}", HOME=str(tmp_path))
    del env["TSUKU_HOME"]
    words = ("service", "systemd", "--scope", "system")
    done = subprocess.run([script, *words], env=env, capture_output=True, text=True, check=False)
    assert f": {SUDO}TSUKU_HOME=/opt/tsuku {script} install" in done.stderr


@pytest.mark.parametrize(("user", "before"), [(0, ""), (1000, "sudo ")])
def test_root_is_never_told_to_use_sudo(user: int, before: str) -> None:
    code = f"import os; os.geteuid = lambda: {user}; from tsuku_llm.ground import own_name as own"
    line = [sys.executable, "-c", f"{code}; print(own.SUDO, end='')"]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == before


def test_a_program_that_imports_the_package_shows_the_plain_name(tmp_path: Path) -> None:
    assert name_of("-c", None) == name_of(str(tmp_path / "my-app"), None) == PROGRAM


def test_an_interpreter_in_a_folder_of_this_name_shows_the_plain_name(tmp_path: Path) -> None:
    (tmp_path / PROGRAM).mkdir()
    code = "import sys; sys.argv[:] = []; from tsuku_llm.ground.own_name import TSUKU; print(TSUKU)"
    line = [sys.executable, "-c", code]
    for cwd in (tmp_path, tmp_path / PROGRAM):
        done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=True)
        assert done.stdout == f"{PROGRAM}\n"


def test_on_windows_the_script_is_found_with_its_suffix(tmp_path: Path) -> None:
    # The launcher there removes the suffix before Python sees the path.
    found = tmp_path / f"{PROGRAM}.exe"
    shutil.copy(script_in(tmp_path / "bin"), found)
    assert name_of(str(tmp_path / PROGRAM), str(found)) == PROGRAM
    assert name_of(str(tmp_path / "other" / PROGRAM), str(found)) != PROGRAM
