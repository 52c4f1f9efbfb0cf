"""Two processes that write into one place of the user: a mirror, or the file of a bundle.

N08: one works, the other waits or says so, whatever store each has; nothing of a living one is
removed. The first is held inside its work, where it has the lock and asks for room.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from support.folder_shop import FolderShop
from support.processes import gone
from support.sessions import changed

from tsuku_llm.ground.errors import CorruptStore, TsukuError, UnsafeLocation, UsageError
from tsuku_llm.steps.session import Session
from tsuku_operator.bundle.bundle import create_bundle, show_bundle
from tsuku_operator.bundle.bundle_choice import BundleWish
from tsuku_operator.mirror.mirror import check_mirror, mirror
from tsuku_operator.mirror.mirror_choice import Narrowing
from tsuku_publish.errors import PublishError
from tsuku_publish.repository.folder import publish

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes of Linux")

ALL = Narrowing()
BUILDS = BundleWish(("linux-amd64",), program=False)


def make_mirror(session: Session, place: Path) -> None:
    mirror(session, place, ALL, prune=True)


def make_bundle(session: Session, place: Path) -> None:
    create_bundle(session, place, BUILDS)


Make = Callable[[Session, Path], None]
MAKERS = {"mirror": make_mirror, "bundle": make_bundle}
LOCKS = {"mirror": "place/.mirror.json.lock", "bundle": ".place.lock"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    return FolderShop.offering(tmp_path_factory.mktemp("shops") / "shop", "b1")


class Forked:
    """A process that makes something; ``held`` it stops inside its work until ``go_on``."""

    def __init__(self, make: Make, session: Session, place: Path, *, held: bool = False) -> None:
        self.said, says = os.pipe()
        goes, self._go = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._go)
            _work(make, session, place, says, goes if held else None)
        os.close(says)
        os.close(goes)

    def line(self) -> str:
        """Read what it says next; empty at its end."""
        line = b""
        while (part := os.read(self.said, 1)) not in (b"", b"\n"):
            line += part
        return line.decode()

    def go_on(self) -> None:
        os.write(self._go, b"x")

    def end(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def stopping_at(function: str, says: int, goes: int) -> Callable[[FrameType, str, object], None]:
    """Make a profile that stops this process where it calls a function, until it is told to go."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == function:
            sys.setprofile(None)
            os.write(says, b"at work\n")
            os.read(goes, 1)

    return profile


def _work(make: Make, session: Session, place: Path, says: int, goes: int | None) -> None:
    """Make it in this process; say each note, and the error."""

    def note(text: str) -> None:
        os.write(says, f"{text}\n".encode())

    code = 70
    try:
        if goes is not None:
            # Both ask for room once they have the lock, and before anything is written.
            sys.setprofile(stopping_at("require_space", says, goes))
        make(session._replace(user=session.user._replace(note=note)), place)
        code = 0
    except TsukuError as error:
        note(f"{error.slug}: {error.message}")
        code = error.exit_code
    finally:
        os._exit(code)


@pytest.fixture(params=MAKERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def users(shop: FolderShop, tmp_path: Path) -> list[Session]:
    """Three users of one machine, each with a store: no lock of a store is between them."""
    return [shop.session(tmp_path / name) for name in ("ann", "bob", "cho")]


def whole(kind: str, session: Session, place: Path) -> bool:
    if kind == "bundle":
        return show_bundle(place).outcome == "shown"
    return not check_mirror(session, place).differences


def left(place: Path) -> list[str]:
    """The files of a lock or of a write that are still there."""
    return [str(each) for each in place.parent.rglob(".*") if each.is_file()]


@pytest.mark.parametrize("others", [1, 2], ids=["two", "three"])
def test_N08_the_others_wait_or_say_so(
    others: int, kind: str, users: list[Session], tmp_path: Path
) -> None:
    place = tmp_path / "out" / "place"
    place.parent.mkdir()
    first = Forked(MAKERS[kind], users[0], place, held=True)
    assert first.line() == "at work"
    waiting = [Forked(MAKERS[kind], each, place) for each in users[1 : others + 1]]
    for each in waiting:
        assert f"process {first.pid}" in each.line()
    assert Path(tmp_path / "out", LOCKS[kind]).stat().st_mode & 0o777 == 0o600
    first.go_on()
    assert first.end() == 0
    for each in waiting:
        said = "".join(iter(each.line, ""))
        # A mirror is brought up to date again; a file is not replaced by one who was not told to.
        code = 2 if kind == "bundle" else 0
        assert (each.end(), "exists already" in said) == (code, bool(code)), said
    assert whole(kind, users[0], place)
    assert left(place) == []


def test_N08_the_next_run_goes_on_where_a_killed_one_was(
    kind: str, users: list[Session], tmp_path: Path
) -> None:
    place = tmp_path / "out" / "place"
    place.parent.mkdir()
    first = Forked(MAKERS[kind], users[0], place, held=True)
    assert first.line() == "at work"
    second = Forked(MAKERS[kind], users[1], place)
    assert f"process {first.pid}" in second.line()
    os.kill(first.pid, signal.SIGKILL)
    assert gone(first.pid)
    assert (first.end(), second.end()) == (-signal.SIGKILL, 0)
    assert whole(kind, users[1], place)
    assert left(place) == []
    # And with nobody who waits: the lock of a dead process stops nobody.
    shutil.rmtree(place, ignore_errors=True)
    place.unlink(missing_ok=True)
    third = Forked(MAKERS[kind], users[2], place, held=True)
    assert third.line() == "at work"
    os.kill(third.pid, signal.SIGKILL)
    assert third.end() == -signal.SIGKILL
    assert Path(tmp_path / "out", LOCKS[kind]).exists()
    MAKERS[kind](users[0], place)
    assert left(place) == []


def test_N08_a_mirror_has_no_lock_in_a_folder_of_something_else(
    users: list[Session], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "mine").touch()
    with pytest.raises(UsageError, match="is not empty"):
        make_mirror(users[0], place)
    assert [each.name for each in place.iterdir()] == ["mine"]
    # Nor is a folder left that nothing came into.
    offline = changed(users[0], mirror=("file:///none",))
    with pytest.raises(TsukuError):
        make_mirror(offline._replace(held=frozenset()), tmp_path / "new")
    assert not list((tmp_path / "new").glob(".*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_N08_the_lock_of_another_user_is_named(
    kind: str, users: list[Session], tmp_path: Path
) -> None:
    place = tmp_path / "out" / "place"
    lock = tmp_path / "out" / LOCKS[kind]
    lock.parent.mkdir(parents=True)
    lock.touch(0o600)
    os.chown(lock, 65534, 65534)
    with pytest.raises(UnsafeLocation, match="belongs to another user"):
        MAKERS[kind](users[0], place)
    assert lock.exists()


def test_N08_a_link_in_the_place_of_the_lock_is_not_followed(
    kind: str, users: list[Session], tmp_path: Path
) -> None:
    place, mine = tmp_path / "out" / "place", tmp_path / "mine"
    lock = tmp_path / "out" / LOCKS[kind]
    lock.parent.mkdir(parents=True)
    mine.write_text("mine")
    lock.symlink_to(mine)
    with pytest.raises(CorruptStore):
        MAKERS[kind](users[0], place)
    assert (mine.read_text(), lock.is_symlink()) == ("mine", True)


def test_N08_of_two_who_publish_the_older_state_does_not_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of the data, one of them a refresh behind, and one folder that is served."""
    old, new, served = (tmp_path / name for name in ("old", "new", "served"))
    shop = FolderShop.offering(tmp_path / "own", "b1")
    shutil.copytree(shop.root / "repository", old)
    shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2-cpu"))})
    shutil.copytree(shop.root / "repository", new)
    said, says = os.pipe()
    goes, go = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            sys.setprofile(stopping_at("_put", says, goes))
            publish(old, served)
            code = 0
        finally:
            os._exit(code)
    assert os.read(said, 100) == b"at work\n"
    with monkeypatch.context() as patch:
        patch.setattr("tsuku_publish.repository.folder.WAIT", 0)
        with pytest.raises(PublishError, match="another tsuku-publish has worked on"):
            publish(new, served)
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    publish(new, served)
    with pytest.raises(PublishError, match="has newer versions"):
        publish(old, served)
    assert not list(served.rglob(".*"))
