"""``sh FILE`` several times at once, killed, and into folders that are not its own.

N08: one works, the others wait and say so; nobody removes what a living one makes, or what is the
user's. A run is stopped where it is known to be: pip is at work in the folder.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bundles import run_bundle, small_bundle
from support.processes import gone, only_child, stopped
from support.tools import require_tool

from tsuku_operator.bundle.bundle_start import COMPLETE, LOCK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, flock and namespaces")

FAILS_ONCE = (
    "import os, sys, time; gate = os.environ['GATE']; "
    "sys.exit(0 if not os.path.exists(gate) else open(gate).read() and os.unlink(gate) or 4)"
)
"""An install that waits for a fifo and fails, if there is one."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle(tmp_path_factory.mktemp("bundles") / "x.bundle", FAILS_ONCE)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    variables = {"HOME": str(home), "PYTHON": sys.executable, "GATE": str(tmp_path / "gate")}
    return {**variables, "PATH": f"/usr/sbin:{os.defpath}"}


Start = Callable[..., "Started"]


class Started:
    """A run of a bundle in a session of its own, with its errors in a pipe."""

    def __init__(self, bundle: Path, words: tuple[str, ...], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["sh", bundle, *words],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self.process.pid

    def line(self) -> str:
        """Read what it says next."""
        assert self.process.stderr
        return self.process.stderr.readline()

    def stop_at_pip(self, into: Path) -> int:
        """Stop it and its child while pip works in the folder; return the child's pid."""
        assert "installing" in self.line()
        while not any(into.glob("wheels-*/requirements.txt")) or not self._child():
            assert self.process.poll() is None, self.ended()  # or this would wait for ever
            os.sched_yield()
        child = only_child(self.pid)
        for pid in (self.pid, child):
            os.kill(pid, signal.SIGSTOP)
            assert stopped(pid)
        return child

    def _child(self) -> bool:
        return bool(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("utf-8"))

    def go_on(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its code and the rest of what it said."""
        said = self.process.communicate()[1]
        return self.process.returncode, said


@pytest.fixture
def start(bundle: Path, env: dict[str, str]) -> Iterator[Start]:
    begun: list[Started] = []

    def started(into: Path, *words: str) -> Started:
        begun.append(Started(bundle, ("--into", str(into), *words), env))
        return begun[-1]

    yield started
    for each in begun:
        if each.process.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
            each.process.wait()
        assert each.process.stderr
        each.process.stderr.close()


def works(into: Path) -> bool:
    code = subprocess.run([into / "bin/tsuku-llm"], env={"GATE": "/none"}, check=False).returncode
    return code == 0 and (into / COMPLETE).exists()


PROGRAM = "--program-only"


@pytest.mark.parametrize("others", [1, 2], ids=["two", "three"])
def test_N08_the_others_wait_and_all_end_well(others: int, start: Start, tmp_path: Path) -> None:
    into = tmp_path / "into"
    first = start(into, PROGRAM)
    first.stop_at_pip(into)
    waiting = [start(into, PROGRAM) for _ in range(others)]
    for each in waiting:
        assert each.line() == f"waiting for another run of a bundle, which works in {into}\n"
    first.go_on()
    assert [each.ended()[0] for each in (first, *waiting)] == [0] * (others + 1)
    assert works(into)
    assert not list(into.glob("wheels-*"))


def test_N08_the_child_of_a_killed_run_is_waited_for(start: Start, tmp_path: Path) -> None:
    """Its pip would go on to write into a folder that the next run has emptied."""
    into = tmp_path / "into"
    first = start(into, PROGRAM)
    child = first.stop_at_pip(into)
    second = start(into, PROGRAM)
    assert "waiting" in second.line()
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    assert into.joinpath(LOCK).exists()
    # The lock is still held: the second run has not come to say that it installs.
    locks = Path("/proc/locks").read_text("utf-8")
    inode = into.joinpath(LOCK).stat().st_ino
    assert any(
        "FLOCK" in line and line.split()[5].endswith(f":{inode}") for line in locks.splitlines()
    )
    assert second.process.poll() is None
    assert list(into.glob("wheels-*/requirements.txt"))
    os.kill(child, signal.SIGKILL)
    assert gone(child)
    code, said = second.ended()
    assert (code, "installing" in said) == (0, True)
    assert works(into)


def test_N08_what_a_killed_run_left_is_taken_up(start: Start, tmp_path: Path) -> None:
    into = tmp_path / "into"
    first = start(into, PROGRAM)
    child = first.stop_at_pip(into)
    for pid in (first.pid, child):
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
    second = start(into, PROGRAM)
    code, said = second.ended()
    assert (code, "waiting" in said) == (0, False), said
    assert works(into)
    assert not list(into.glob("wheels-*"))


@pytest.mark.parametrize("exists", [False, True], ids=["new", "empty"])
def test_N08_a_run_that_fails_takes_nothing_from_the_one_that_waits(
    exists: bool, start: Start, tmp_path: Path, env: dict[str, str]
) -> None:
    into = tmp_path / "into"
    if exists:
        into.mkdir(mode=0o755)
    os.mkfifo(env["GATE"])
    first = start(into)
    gate = os.open(env["GATE"], os.O_WRONLY)  # now its install waits
    second = start(into)
    assert "installing" in first.line()
    assert "waiting" in second.line()
    os.write(gate, b"x")
    os.close(gate)
    code, said = first.ended()
    assert (code, "the program was not kept" in said) == (4, True), said
    code, said = second.ended()
    assert (code, "installing tsuku-llm" in said) == (0, True), said
    assert works(into)


def test_N08_a_run_that_fails_leaves_the_folder_that_was_there(
    bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    into = tmp_path / "into"
    into.mkdir(mode=0o755)
    Path(env["GATE"]).write_text("x")
    assert run_bundle(bundle, "--into", str(into), env=env).returncode == 4
    assert list(into.iterdir()) == []
    Path(env["GATE"]).write_text("x")
    assert run_bundle(bundle, "--into", str(tmp_path / "new"), env=env).returncode == 4
    assert not (tmp_path / "new").exists()


MARK = "made by tsuku-llm from a bundle\n"


@pytest.mark.parametrize(
    "files",
    [
        {"unfinished-from-bundle": "", "letters/a": "mine"},
        {LOCK: "", "letters/a": "mine"},
        {LOCK: "", "bin/mine": "mine", "lib/mine": "mine"},
        {LOCK: MARK, "letters/a": "mine"},
        {LOCK: MARK, "notes.txt": "mine", "bin/x": "x"},
        {LOCK: "mine"},
        {"wheels-mine/a": "mine"},
        {".hidden": "mine"},
        {"pyvenv.cfg": "mine"},
    ],
    ids=",".join,
)
def test_N08_files_of_the_user_stay(
    files: dict[str, str], bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    into = tmp_path / "into"
    for name, text in files.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_text(text)
    done = run_bundle(bundle, PROGRAM, "--into", str(into), env=env)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True), done.stderr
    found = {p.relative_to(into).as_posix(): p.read_text() for p in into.rglob("*") if p.is_file()}
    assert found == files


def test_N08_a_link_in_the_place_of_the_lock_is_not_followed(
    bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    into, mine = tmp_path / "into", tmp_path / "mine"
    into.mkdir(mode=0o755)
    mine.write_text("")
    (into / LOCK).symlink_to(mine)
    done = run_bundle(bundle, PROGRAM, "--into", str(into), env=env)
    assert (done.returncode, mine.read_text()) == (2, ""), done.stderr
    assert (into / LOCK).is_symlink()


def others_folder(path: Path) -> None:
    path.mkdir(mode=0o755)
    os.chown(path, 65534, 65534)


def open_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def open_sticky_folder_of_another(path: Path) -> None:
    path.mkdir()
    os.chown(path, 65534, 65534)
    path.chmod(0o1777)


def link_of_another(path: Path) -> None:
    path.with_name("real").mkdir(mode=0o755)
    path.symlink_to("real")
    os.chown(path, 65534, 65534, follow_symlinks=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("below", ["", "/into", "/a/b/into"])
@pytest.mark.parametrize(
    "made", [others_folder, open_folder, open_sticky_folder_of_another, link_of_another]
)
def test_N08_a_folder_that_others_can_change_is_refused(
    made: Callable[[Path], None], below: str, bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    made(tmp_path / "theirs")
    done = run_bundle(bundle, PROGRAM, "--into", f"{tmp_path}/theirs{below}", env=env)
    assert (done.returncode, done.stderr[:23]) == (6, "error[unsafe-location]:"), done.stderr
    assert "hint: " in done.stderr
    assert list((tmp_path / "theirs").iterdir()) == []
    assert not (Path(env["HOME"]) / ".local").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_N08_no_link_is_made_in_a_folder_of_others(
    bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    open_folder(tmp_path / "theirs")
    env["XDG_BIN_HOME"] = str(tmp_path / "theirs")
    done = run_bundle(bundle, PROGRAM, "--into", str(tmp_path / "into"), env=env)
    assert (done.returncode, "no link was made" in done.stderr) == (0, True), done.stderr
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_N08_a_program_on_read_only_media_is_used_as_it_is(
    bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    into = tmp_path / "into"
    assert run_bundle(bundle, PROGRAM, "--into", str(into), env=env).returncode == 0
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    before = [require_tool("unshare"), "-m", "sh", "-c", mount]
    done = run_bundle(bundle, "--into", str(into), env=env, before=[*before, str(into)])
    assert (done.returncode, "install" in done.stderr) == (0, False), done.stderr
    (into / LOCK).unlink()
    done = run_bundle(bundle, PROGRAM, "--into", str(into), env=env, before=[*before, str(into)])
    assert done.returncode == 0, done.stderr
    done = run_bundle(
        bundle, PROGRAM, "--into", f"{into}/new", env=env, before=[*before, str(into)]
    )
    assert (done.returncode, done.stderr.startswith("error[")) == (6, True), done.stderr


@pytest.mark.parametrize(
    "name", ["$(touch pwned).bundle", "a;touch pwned;b", "`touch pwned`", "two  words", "it's"]
)
def test_N07_the_name_of_a_bundle_is_data(
    name: str, bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / name).write_bytes(bundle.read_bytes())
    done = subprocess.run(
        ["sh", name, "--into", f"{place}/into", PROGRAM],
        env=env, cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert works(place / "into")
    # pip's own launcher has the folder's name in double quotes.
    done = run_bundle(bundle, "--into", f"{place}/{name}.d", PROGRAM, env=env)
    if set("$`") & set(name):
        assert (done.returncode, "cannot be started from" in done.stderr) == (2, True)
    else:
        assert (done.returncode, works(place / f"{name}.d")) == (0, True)
    assert not list(tmp_path.rglob("pwned"))


def test_N07_names_do_not_command_the_terminal(
    bundle: Path, env: dict[str, str], tmp_path: Path
) -> None:
    into = tmp_path / "\x1b]0;title\x07\u202e\n\x9bm"
    done = run_bundle(bundle, PROGRAM, "--into", str(into), env=env)
    assert (done.returncode, list(tmp_path.glob("*title*"))) == (2, []), done.stderr
    assert "\\x1b]0;title\\x07\\u202e\\n\\x9bm" in done.stderr
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(done.stderr)
