"""``install.sh`` ends with a command that works as it is printed.

The script runs in a copy of a clone, whose environment is complete: its pip has nothing to do.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, stand_in
from support.program import environment, run_program
from support.tools import require_tool
from tuf.api.metadata import Metadata, Targets
from tuf.api.serialization.json import JSONSerializer

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "install.sh"
SYSTEM = "/usr/bin:/bin"
PAGE = ".venv/share/man/man1/tsuku-llm.1"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tools are those of Linux")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_clone(tmp_path / "my clone")


def make_clone(folder: Path) -> Path:
    """A clone whose environment has this program, and a Python whose pip installs nothing."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(SCRIPT, folder)
    locked = folder / "installer" / "tsuku_llm" / "locked.txt"
    locked.parent.mkdir(parents=True)
    locked.touch()
    write(programs / "python", "#!/bin/sh\n")
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
    return typed(clone, env, *(words or ("--dry-run", "--backend", "cpu")))


def typed(clone: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script with these words."""
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
        start_new_session=True,  # an interactive shell takes the terminal that it has
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
        ROOT / "ci/packages.sh",
        ROOT / "ci/test",
        ROOT / "ci/at",
        ROOT / ".ci/run",
    ]
    done = subprocess.run(
        [require_tool("shellcheck"), *scripts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("words", [["--help"], ["--backend", "cpu", "-h"], ["--uninstall"]])
def test_what_is_no_wish_for_a_build_is_answered_before_anything_is_made(
    words: list[str], tmp_path: Path
) -> None:
    shutil.copy(SCRIPT, tmp_path)
    done = subprocess.run(
        ["sh", str(tmp_path / "install.sh"), *words],
        cwd="/",
        env=settings(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert [each.name for each in tmp_path.iterdir()] == ["install.sh"]
    if "--uninstall" in words:
        assert (done.returncode, done.stdout) == (2, "")
        assert (ROOT / "docs" / "tasks" / "remove.md").exists()
        assert "docs/tasks/remove.md" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert "./install.sh [ARGUMENT OF tsuku-llm install...]" in done.stdout
        assert "set -eu" not in done.stdout


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox sh", "zsh"])
def test_a_shell_that_reads_it_from_a_pipe_touches_no_other_folder(
    clone: Path, home: Path, tmp_path: Path, shell: str
) -> None:
    """sh(1p): with a script on standard input, $0 is the shell's name, and says no folder.

    So people run what they know from other projects' pages, in a folder with a build/ of theirs.
    """
    require_tool(shell.split(maxsplit=1)[0])
    theirs = tmp_path / "theirs"
    (theirs / "build").mkdir(parents=True)

    def piped(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*shell.split(), *(("-s", "--", *words) if words else ())],
            env=settings(home),
            cwd=folder,
            input=SCRIPT.read_text(),
            capture_output=True,
            text=True,
            check=False,
        )

    done = piped(theirs)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{theirs} is no clone of tsuku-llm: run ./install.sh in the clone\n"
    assert [path.name for path in theirs.iterdir()] == ["build"]
    assert list(home.iterdir()) == []
    help_text = piped(clone, "--help")
    assert (help_text.returncode, help_text.stderr) == (0, "")
    assert help_text.stdout.startswith("From a clone to an installed llama-server")


def test_what_a_user_told_pip_about_places_does_not_count(clone: Path, home: Path) -> None:
    """pip's manual: each option has a variable. Some hosted workspaces set PIP_USER for everyone.

    With PIP_PREFIX the packages went there, and the program was not found (exit code 127).
    """
    log = home / "log"
    write(clone / ".venv/bin/python", f"#!/bin/sh\nenv | grep ^PIP_ >>'{log}'\n")
    places = {f"PIP_{name}": "/elsewhere" for name in ("TARGET", "PREFIX", "ROOT")}
    done = install(clone, settings(home, **places, PIP_USER="1", PIP_INDEX_URL="https://own"))
    assert done.returncode == 0, done.stderr
    said = log.read_text().splitlines()
    # The first of the three runs only asks whether there is a pip.
    assert said.count("PIP_USER=0") == 2
    assert said.count("PIP_PREFIX=/elsewhere") == 1
    assert said.count("PIP_TARGET=/elsewhere") == 1
    assert said.count("PIP_INDEX_URL=https://own") == 3, "the index is the user's choice"


def test_cdpath_chooses_no_other_clone(clone: Path, home: Path, tmp_path: Path) -> None:
    """cd(1p): a name that begins with no slash or dot is looked for in CDPATH first."""
    other = tmp_path / "others" / clone.name
    (other / "build").mkdir(parents=True)
    done = subprocess.run(
        ["sh", f"{clone.name}/install.sh", "--dry-run", "--backend", "cpu"],
        env=settings(home, CDPATH=str(other.parent)),
        cwd=clone.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (home / ".local/bin/tsuku-llm").readlink() == clone / ".venv/bin/tsuku-llm"
    assert (other / "build").is_dir()


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
    own = clone / ".venv/bin/python"
    write(own, "#!/none/python\n")
    install(clone, settings(home))
    assert b"#!/none" not in own.read_bytes()
    assert (clone / ".venv/pyvenv.cfg").exists()


def test_the_tests_program_is_where_a_shell_finds_it() -> None:
    # ``environment`` relies on it: otherwise every expected hint would have another name.
    assert Path(sysconfig.get_path("scripts"), "tsuku-llm").is_file()


def packed_program(folder: Path) -> Path:
    """An archive of the program that brings its own Python; here that is the one of the tests."""
    home = folder / "tsuku-llm-1-linux-x86_64"
    (home / "python/bin").mkdir(parents=True)
    (home / "share/man/man1").mkdir(parents=True)
    (home / "share/man/man1/tsuku-llm.1").write_text(".TH TSUKU-LLM 1\n")
    shutil.copy(ROOT / "ci/program/tsuku-llm", home)
    packages = os.pathsep.join(path for path in sys.path if path)
    write(
        home / "python/bin/python3",
        # Without -I, which would drop the variable.
        f"#!/bin/sh\nshift\nexec env 'PYTHONPATH={packages}' '{sys.executable}' \"$@\"\n",
    )
    archive = folder / "program.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(home, home.name)
    return archive


@pytest.mark.parametrize("python", ["none", "old"])
def test_without_python_the_program_that_brings_its_own_is_taken(
    python: str, clone: Path, home: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    write(old, "#!/bin/sh\nexit 42\n")
    env = settings(home, PYTHON=str(old) if python == "old" else "/none/python3")
    none = install(clone, env)
    assert none.returncode == 3
    assert "or PROGRAM to the file of the program that brings its own" in none.stderr
    # What an earlier run with a Python has linked is from this clone, too.
    link = home / ".local/bin/tsuku-llm"
    link.parent.mkdir(parents=True)
    link.symlink_to(clone / ".venv/bin/tsuku-llm")
    archive = packed_program(tmp_path)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    wrong = install(clone, env | {"PROGRAM": str(archive), "PROGRAM_SHA256": "0" * 64})
    assert (wrong.returncode, (clone / ".program").exists()) == (5, False)
    for given in ({"PROGRAM": str(archive)}, {"PROGRAM": str(archive), "PROGRAM_SHA256": digest}):
        done = install(clone, env | given)
        assert done.returncode == 0, done.stderr
        assert link.readlink() == clone / ".program/tsuku-llm"
        assert starts(env, shlex.quote(str(link)))
        assert "making a Python environment" not in done.stderr
    page = home / ".local/share/man/man1/tsuku-llm.1"
    assert page.readlink() == clone / ".program/share/man/man1/tsuku-llm.1"


def test_with_python_the_program_that_brings_its_own_is_not_taken(
    clone: Path, home: Path, tmp_path: Path
) -> None:
    done = install(clone, settings(home, PROGRAM=str(packed_program(tmp_path))))
    assert done.returncode == 0, done.stderr
    assert not (clone / ".program").exists()


def test_a_program_at_an_address_needs_its_digest(clone: Path, home: Path) -> None:
    env = settings(home, PYTHON="/none/python3", PROGRAM="https://127.0.0.1:1/program.tar.gz")
    done = install(clone, env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "set PROGRAM_SHA256 to the digest" in done.stderr
    done = install(clone, env | {"PROGRAM_SHA256": "0" * 64})
    assert (done.returncode, done.stdout) == (4, "")
    assert "install.sh: downloading https://127.0.0.1:1/program.tar.gz" in done.stderr


def test_the_signed_metadata_of_the_clone_name_the_digest_of_the_program(
    clone: Path, home: Path, tmp_path: Path
) -> None:
    archive = packed_program(tmp_path).rename(tmp_path / "tsuku-llm-0.2.0-linux-x86_64.tar.gz")
    env = settings(home, PYTHON="/none/python3", PROGRAM=str(archive))
    wheel, other, own = "a" * 64, "0" * 64, hashlib.sha256(archive.read_bytes()).hexdigest()
    metadata = clone / "manifests/metadata/7.targets.json"
    metadata.parent.mkdir(parents=True)

    def name(digest: str) -> None:
        targets = Targets()
        archives = {"tsuku-llm-0.2.0-other.tar.gz": wheel, archive.name: digest}
        said = {"version": "0.2.0", "sha256": wheel, "archives": archives}
        targets.unrecognized_fields["program"] = said
        Metadata(targets).to_file(str(metadata), JSONSerializer(compact=False))

    name(other)
    done = install(clone, env)
    assert (done.returncode, (clone / ".program").exists()) == (5, False)
    assert "has another digest than this clone's signed metadata name" in done.stderr
    assert install(clone, env | {"PROGRAM_SHA256": own}).returncode == 0
    name(own)
    assert install(clone, env).returncode == 0
    address = f"https://127.0.0.1:1/{archive.name}"
    done = install(clone, env | {"PROGRAM": address})
    assert (done.returncode, f"install.sh: downloading {address}" in done.stderr) == (4, True)


@pytest.mark.parametrize("what", ["no archive", "a program that does not start"])
def test_a_program_that_does_not_work_leaves_the_one_before(
    what: str, clone: Path, home: Path, tmp_path: Path
) -> None:
    archive = packed_program(tmp_path)
    env = settings(home, PYTHON="/none/python3", PROGRAM=str(archive))
    assert install(clone, env).returncode == 0
    if what == "no archive":
        archive.write_bytes(b"nothing")
    else:
        folder = tmp_path / "tsuku-llm-1-linux-x86_64"
        write(folder / "python/bin/python3", "#!/bin/sh\nexit 1\n")
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(folder, folder.name)
    assert install(clone, env).returncode == (6 if what == "no archive" else 7)
    assert starts(env, shlex.quote(str(home / ".local/bin/tsuku-llm")))


APT_GET = """#!/bin/sh
echo "apt-get $*" >>"$LOG"
[ "$3" != "$FAILS" ] && [ "$2" != "$FAILS" ]
"""
PIP = """#!/bin/sh
echo "python $*" >>"$LOG"
case "$*" in *"$FAILS"*) exit 7 ;; esac
"""


class Bare:
    """A system whose Python has no venv, with the tools of Debian: who calls them is logged."""

    def __init__(self, clone: Path, home: Path, folder: Path) -> None:
        self.clone, self.tools, self.log = clone, folder / "tools", folder / "log"
        self.tools.mkdir()
        for tool in ("sh", "uname", "rm", "env", "grep", "mkdir", "ln", "readlink"):
            (self.tools / tool).symlink_to(shutil.which(tool, path=SYSTEM) or "/none")
        self.user(1000)
        write(self.tools / "apt-get", APT_GET)
        write(self.tools / "python", "#!/bin/sh\nexit 1\n")
        write(clone / ".venv/bin/python", PIP)
        self.env = settings(home, PATH=str(self.tools), PYTHON=str(self.tools / "python"))
        self.env |= {"LOG": str(self.log), "FAILS": "nothing"}

    def user(self, number: int) -> None:
        write(self.tools / "id", f"#!/bin/sh\necho {number}\n")

    def install(self, **extra: str) -> subprocess.CompletedProcess[str]:
        return install(self.clone, self.env | extra)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def bare(clone: Path, home: Path, tmp_path: Path) -> Bare:
    return Bare(clone, home, tmp_path)


def test_without_root_and_sudo_it_ends_before_the_download(bare: Bare, home: Path) -> None:
    done = bare.install()
    assert (done.returncode, done.stdout) == (3, "")
    assert "there is no sudo: as root, run\n  apt-get install python3-venv" in done.stderr
    assert bare.calls == []
    assert not (home / ".local").exists()


def test_root_without_sudo_is_told_and_asked_nothing_of_it(bare: Bare) -> None:
    bare.user(0)
    done = bare.install()
    assert done.returncode == 0, done.stderr
    update, packages, *_ = bare.calls
    assert (update, packages.split()[-1]) == ("apt-get -q update", "python3-venv")
    # Not the word alone: the home folder has this test's name, and hints may name the program.
    assert "sudo " not in done.stderr + done.stdout


def test_a_user_is_told_what_sudo_is_for(bare: Bare) -> None:
    write(bare.tools / "sudo", '#!/bin/sh\necho "sudo $*" >>"$LOG"\nexec "$@"\n')
    done = bare.install()
    assert done.returncode == 0, done.stderr
    assert "installing what the system lacks, with sudo: python3-venv" in done.stderr
    asked = [line for line in bare.calls if line.startswith("sudo ")]
    assert [line.split()[5] for line in asked] == ["update", "install"]


@pytest.mark.parametrize(
    ("step", "code", "said"),
    [
        ("update", 3, "apt-get update ended with exit code 1"),
        ("install", 3, "apt-get install ended with exit code 1"),
        ("--require-hashes", 7, "installing the Python packages"),
        ("--no-build-isolation", 7, "installing the program"),
    ],
)
def test_it_stops_at_the_first_step_that_fails(
    step: str, code: int, said: str, bare: Bare, home: Path
) -> None:
    bare.user(0)
    done = bare.install(FAILS=step)
    assert done.returncode == code
    # The step that failed is the last that it names, and the last that ran.
    assert said in done.stderr.splitlines()[-1]
    assert step in bare.calls[-1]
    assert not (home / ".local").exists()


def test_N02_no_program_of_the_callers_folder_runs(clone: Path, home: Path, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    ran = tmp_path / "ran"
    for name in ("dirname", "uname", "python3", "pip", "mkdir", "ln", "id", "rm", "grep", "env"):
        write(planted / name, f"#!/bin/sh\ntouch {ran}\n")
    for module in ("json", "venv", "ensurepip", "pip", "sitecustomize"):
        (planted / f"{module}.py").write_text(f"open({str(ran)!r}, 'w')\n")
    env = settings(home)
    for path in (f".:{env['PATH']}", f":{env['PATH']}", f"{env['PATH']}:", f"./x/..:{env['PATH']}"):
        done = subprocess.run(
            [str(clone / "install.sh"), "--dry-run", "--backend", "cpu"],
            env=env | {"PATH": path, "PYTHONPATH": "."},
            cwd=planted,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not ran.exists(), path


def test_each_long_step_is_named_before_it_begins(bare: Bare) -> None:
    bare.user(0)
    shutil.rmtree(bare.clone / ".venv")  # so that one has to be made, which fails here
    done = bare.install()
    steps = [line for line in done.stderr.splitlines() if line.startswith("install.sh: ")]
    assert [step.split()[1] for step in steps] == ["installing", "making"]
    assert done.returncode == 1


def answer(env: dict[str, str], *words: str) -> str:
    """What the program prints for this user."""
    done = run_program(*words, env=env)
    assert done.code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"llm.release": "installed"},
        {"llm.release": "v0.6.0"},
        {"llm.backend": "cuda"},
        {"llm.channel": "nightly"},
    ],
    ids=str,
)
def test_the_build_that_is_active_stays(
    chosen: dict[str, str], clone: Path, home: Path, tmp_path: Path
) -> None:
    env = settings(home)
    stand_in(tmp_path / "own", devices=NO_DEVICE_STEPS)
    answer(env, "install", "--from", str(tmp_path / "own"), "--yes")
    for name, value in chosen.items():
        answer(env, "config", "set", name, value)
    before = answer(env, "list", "--json")
    done = typed(clone, env)
    assert done.returncode == 0, done.stderr
    assert "the active build is the one that it was" in done.stdout
    link = home / ".local/bin/tsuku-llm"
    assert f"to update that as well: {link} update\n" in done.stdout
    assert answer(env, "list", "--json") == before
    assert json.loads(before)["data"]["versions"][0]["active"]


def test_its_arguments_ask_for_a_build_all_the_same(
    clone: Path, home: Path, tmp_path: Path
) -> None:
    env = settings(home)
    stand_in(tmp_path / "own", devices=NO_DEVICE_STEPS)
    answer(env, "install", "--from", str(tmp_path / "own"), "--yes")
    done = install(clone, env)
    assert "would install" in done.stdout.lower(), done.stdout + done.stderr


def test_the_first_run_installs_a_build(clone: Path, home: Path) -> None:
    unreachable = {"https_proxy": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
    done = typed(clone, settings(home, **unreachable))
    assert done.returncode == 4
    assert "error[" in done.stderr


def test_where_the_builds_cannot_be_listed_none_is_installed(
    clone: Path, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("no folder")
    done = typed(clone, settings(home, TSUKU_HOME=str(tmp_path / "data")))
    assert done.returncode not in (0, 4)
    assert done.stderr.count("error[") == 1
