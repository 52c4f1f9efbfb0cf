"""``install.sh`` ends with a command that works as it is printed.

The script runs in a copy of a clone, whose environment is complete: its pip has nothing to do.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import environment
from support.tools import require_tool

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "install.sh"
SYSTEM = "/usr/bin:/bin"
PAGE = ".venv/share/man/man1/tsuku-llm.1"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tools are those of Linux")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_clone(tmp_path / "my clone")


def make_clone(folder: Path) -> Path:
    """A clone whose environment has this program, and a pip that installs nothing."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(SCRIPT, folder)
    write(programs / "pip", "#!/bin/sh\n")
    page = folder / PAGE
    page.parent.mkdir(parents=True)
    page.write_text(".TH TSUKU-LLM 1\n")
    packages = os.pathsep.join(path for path in sys.path if path)
    write(
        programs / "tsuku-llm",
        f"#!/bin/sh\n'''exec' env 'PYTHONPATH={packages}' '{sys.executable}' \"$0\" \"$@\"\n' '''\n"
        "import sys\nfrom tsuku_llm.cli.main import main\nsys.exit(main())\n",
    )
    return folder


def write(script: Path, text: str) -> None:
    script.write_text(text)
    script.chmod(0o755)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    folder.chmod(0o755)


def settings(home: Path | None, **extra: str) -> dict[str, str]:
    """A user's environment with a system's PATH, and a PYTHON that has venv."""
    env = environment(Path("/none"), PATH=SYSTEM, PYTHON=sys.executable)
    for name in ("HOME", "TSUKU_HOME", "SHELL", "XDG_BIN_HOME", "XDG_DATA_HOME"):
        env.pop(name, None)
    return env | ({"HOME": str(home)} if home else {}) | extra


def install(clone: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script; the program only says what it would install."""
    words = words or ("--dry-run", "--backend", "cpu")
    return subprocess.run(
        [str(clone / "install.sh"), *words],
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def starts(env: dict[str, str], command: str, *shell: str) -> bool:
    """Whether a shell starts our program for this command."""
    done = subprocess.run(
        [*(shell or ("sh", "-c")), f"{command} --version"],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.startswith("tsuku-llm ")


def printed_command(done: subprocess.CompletedProcess[str]) -> str:
    """The command that puts the folder onto the PATH: the last line."""
    assert done.returncode == 0, done.stderr
    *_, said, command = done.stdout.splitlines()
    assert "open a new terminal" in said
    return command.strip()


def test_shellcheck_has_nothing_to_say() -> None:
    scripts = [
        SCRIPT,
        ROOT / "ci/environment.sh",
        ROOT / "ci/test",
        ROOT / "ci/at",
        ROOT / ".ci/run",
    ]
    done = subprocess.run(
        [require_tool("shellcheck"), *scripts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_link_is_on_the_path_already(clone: Path, home: Path) -> None:
    env = settings(home, PATH=f"{home}/.local/bin:{SYSTEM}")
    done = install(clone, env)
    assert done.returncode == 0, done.stderr
    link = home / ".local/bin/tsuku-llm"
    assert link.readlink() == clone / ".venv/bin/tsuku-llm"
    assert starts(env, "tsuku-llm")
    assert "PATH" not in done.stdout + done.stderr
    assert "new terminal" not in done.stdout


@pytest.mark.parametrize(
    ("shell", "login"),
    [("bash", ["-i", "-c"]), ("zsh", ["-i", "-c"]), ("fish", ["-c"]), ("dash", ["-l", "-c"])],
)
def test_the_printed_command_puts_it_onto_the_path(
    shell: str, login: list[str], clone: Path, home: Path
) -> None:
    program = require_tool(shell)
    env = settings(home, SHELL=program)
    command = printed_command(install(clone, env))
    assert not starts(env, "tsuku-llm", program, *login)
    typed = subprocess.run([program, "-c", command], env=env, check=True, capture_output=True)
    assert typed.stderr == b""
    assert starts(env, "tsuku-llm", program, *login)


def test_the_path_of_the_link_works_meanwhile(clone: Path, home: Path) -> None:
    env = settings(home)
    printed_command(install(clone, env))
    failed = install(clone, env, "--backend", "nonsense")
    assert failed.returncode == 3
    assert "new terminal" not in failed.stdout  # the error is the last that one reads
    link = home / ".local/bin/tsuku-llm"
    hint = subprocess.run(
        [str(link), "which"], env=env, capture_output=True, text=True, check=False
    ).stderr
    assert f"hint: run: {link} install" in hint
    assert starts(env, shlex.quote(str(link)))


def test_another_folder_for_programs_is_used(clone: Path, home: Path, tmp_path: Path) -> None:
    env = settings(home, SHELL="/bin/bash", XDG_BIN_HOME=str(tmp_path / "my programs"))
    command = printed_command(install(clone, env))
    assert not (home / ".local").exists()
    subprocess.run(["bash", "-c", command], env=env, check=True)
    assert starts(env, "tsuku-llm", "bash", "-i", "-c")


def test_a_second_run_and_a_moved_clone_replace_the_link(clone: Path, home: Path) -> None:
    env = settings(home)
    install(clone, env)
    assert install(clone, env).returncode == 0
    moved = clone.rename(clone.with_name("moved"))
    assert install(moved, env).returncode == 0
    assert (home / ".local/bin/tsuku-llm").readlink() == moved / ".venv/bin/tsuku-llm"


def found_page(env: dict[str, str]) -> str:
    """The file that man would show, without its links; "" if there is none."""
    done = subprocess.run(
        [require_tool("man"), "-w", "tsuku-llm"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return str(Path(done.stdout.strip()).resolve()) if done.stdout else ""


def test_man_finds_the_page(clone: Path, home: Path, tmp_path: Path) -> None:
    for extra, folder in (({}, ".local/bin"), ({"XDG_BIN_HOME": str(tmp_path / "my bin")}, None)):
        programs = extra.get("XDG_BIN_HOME", f"{home}/{folder}")
        env = settings(home, PATH=f"{programs}:{SYSTEM}", **extra)
        assert found_page(env) == ""
        assert install(clone, env).returncode == 0
        assert found_page(env) == str(clone / PAGE)
    # The link of a clone that was moved is made again, one to a clone that is there stays.
    moved = clone.rename(clone.with_name("moved"))
    install(moved, env)
    assert found_page(env) == str(moved / PAGE)
    install(make_clone(tmp_path / "other"), env)
    assert found_page(env) == str(moved / PAGE)


@pytest.mark.parametrize("kind", ["a page", "a file for the folder"])
def test_what_is_in_the_way_of_the_page_stays(kind: str, clone: Path, home: Path) -> None:
    there = home / ".local/share/man/man1/tsuku-llm.1"
    if kind != "a page":
        there = home / ".local/share/man"
    there.parent.mkdir(parents=True)
    there.write_text("mine")
    env = settings(home, PATH=f"{home}/.local/bin:{SYSTEM}")
    done = install(clone, env)
    assert done.returncode == 0, done.stderr
    assert starts(env, "tsuku-llm")
    assert there.read_text() == "mine"
    assert (f'to read it: man "{clone / PAGE}"' in done.stderr) == (kind != "a page")


FOREIGN = ["file", "folder", "link", "dangling link", "link to another clone"]


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_another_program_put_there_stays(
    kind: str, clone: Path, home: Path, tmp_path: Path
) -> None:
    link = home / ".local/bin/tsuku-llm"
    link.parent.mkdir(parents=True)
    if kind == "file":
        link.write_text("mine")
    elif kind == "folder":
        link.mkdir()
    elif kind == "link":
        link.symlink_to("/bin/true")
    elif kind == "dangling link":
        link.symlink_to("/none/tsuku-llm")
    else:
        link.symlink_to(make_clone(tmp_path / "other") / ".venv/bin/tsuku-llm")
    before = (link.lstat().st_ino, link.lstat().st_mtime_ns)
    env = settings(home)
    done = install(clone, env)
    assert done.returncode == 0
    assert (link.lstat().st_ino, link.lstat().st_mtime_ns) == before
    assert f"{link} is not from here" in done.stderr
    assert starts(env, shlex.quote(named(done.stderr)))


def named(said: str) -> str:
    """The path that the script gives for the program where it could make no link."""
    (line,) = (line for line in said.splitlines() if line.startswith("tsuku-llm is "))
    return line.removeprefix("tsuku-llm is ")


@pytest.mark.parametrize("what", ["unset", "empty", "relative", "missing"])
def test_without_a_home_the_programs_own_path_is_named(
    what: str, clone: Path, tmp_path: Path
) -> None:
    homes = {"empty": "", "relative": "here", "missing": "/proc/none"}
    env = settings(None, TSUKU_HOME=str(tmp_path / "data"))
    env |= {"HOME": homes[what]} if what in homes else {}
    done = install(clone, env)
    assert done.returncode == 0, done.stderr
    assert named(done.stderr) == str(clone / ".venv/bin/tsuku-llm")
    assert not (clone / "here").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_is_read_only(clone: Path, home: Path, tmp_path: Path) -> None:
    home.chmod(0o555)
    done = install(clone, settings(home, TSUKU_HOME=str(tmp_path / "data")))
    assert done.returncode == 0, done.stderr
    assert named(done.stderr) == str(clone / ".venv/bin/tsuku-llm")


def test_a_program_that_comes_first_on_the_path_is_named(
    clone: Path, home: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    write(first / "tsuku-llm", "#!/bin/sh\n")
    done = install(clone, settings(home, PATH=f"{first}:{home}/.local/bin:{SYSTEM}"))
    assert done.stdout.splitlines()[-1].endswith(f"on your PATH: {first}/tsuku-llm")


def test_an_environment_that_does_not_start_is_made_again(clone: Path, home: Path) -> None:
    pip = clone / ".venv/bin/pip"
    write(pip, "#!/none/python\n")
    install(clone, settings(home))
    assert "#!/none" not in pip.read_text()
    assert (clone / ".venv/pyvenv.cfg").exists()


def test_the_tests_program_is_where_a_shell_finds_it() -> None:
    # ``environment`` relies on it: otherwise every expected hint would have another name.
    assert Path(sysconfig.get_path("scripts"), "tsuku-llm").is_file()


def test_without_root_and_sudo_it_ends_before_the_download(
    clone: Path, home: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "dirname", "uname", "rm"):
        (tools / tool).symlink_to(f"/bin/{tool}" if tool != "dirname" else "/usr/bin/dirname")
    write(tools / "id", "#!/bin/sh\necho 1000\n")
    write(tools / "apt-get", "#!/bin/sh\nexit 9\n")
    write(tools / "python", "#!/bin/sh\nexit 1\n")  # it has no venv
    done = install(clone, settings(home, PATH=str(tools), PYTHON=str(tools / "python")))
    assert (done.returncode, done.stdout) == (3, "")
    assert "there is no sudo: as root, run\n  apt-get install python3-venv" in done.stderr
    assert not (home / ".local").exists()
