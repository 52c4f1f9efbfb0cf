"""Foreign files in every folder of the store, and every command in any order.

None of them is ever touched, and no command fails because of them. In a version's own folder
they make a difference: there they are told as a changed build, and set aside when it goes.
"""

from __future__ import annotations

import io
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.folder_shop import FolderShop
from support.release_server import NAME, User

from tsuku_llm.cli.entry import run
from tsuku_llm.steps.session import FAKE_HARDWARE

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""More on demand: two thousand take about half an hour."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, and stand-ins in C")

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "h200-working-vulkan.json"
HASH, UNIQUE = "a1" * 32, "b2" * 8

FOLDERS = (
    *("", "versions", "staging", "partials", "locks", "metadata", "state", "state/servers"),
    *(f"metadata/{NAME}", f"metadata/{NAME}/copies", f"metadata/{NAME}/roots"),
    *("versions/*", "versions/*/tree", "set-aside"),
    f"metadata/{NAME}/copies/*",
)

PLAIN = ("thesis.odt", "photos", "notes.pid", "notes.lock", "x.json", "model.gguf", "a b.part")
DOTTED = (".DS_Store", ".nfs000000000123", "._x", ".Trash-1000", ".part", ".x.tmp", ".hidden.pid")
NEARLY = (
    *(HASH[1:], f"{HASH}0", HASH.upper(), f"{HASH}.bak", f"{HASH}.part.old", f"{HASH}.indexes"),
    *(UNIQUE[1:], f"{UNIQUE}0", f"{UNIQUE}.txt", f"{UNIQUE}.lock.bak", f".{HASH}.part"),
    *("b1-cpu-backup", "b1-cpu-0123456789a", "b1-cpu-0123456789abc", "b1-cpu", "active.json~"),
    *(".active.json.tmp", f".active.json.{UNIQUE}", f".other.json.{UNIQUE}.tmp", "receipt.json~"),
    *("metadata-test.lock~", "Active.lock", "current~", "tree~", "in-use~"),
)
OF_ANOTHER_KIND = (HASH, f"{HASH}.part", UNIQUE, "b9-cpu-0123456789ab", f"{HASH}.lock")
"""Names that are ours by themselves: what has them is of a kind that we never make."""

ALL_NAMES = PLAIN + DOTTED + NEARLY + OF_ANOTHER_KIND

KINDS = ("file", "folder", "empty", "to-file", "to-folder", "dangling", "loop")

COMMANDS = (
    *(("install",), ("install", "--force"), ("update",), ("rollback",), ("use", "b1")),
    *(("uninstall", "b1"), ("uninstall", "--all"), ("prune",), ("prune", "--keep", "1")),
    *(("list",), ("verify",), ("which",), ("status",), ("stop", "--all"), ("repository", "list")),
    *(("repository", "refresh", NAME), ("config", "set", "llm.backend", "auto")),
)
ORDERLY = (0, 2, 7)
"""Done; a word that names two versions; nothing there to be used."""


class Seen(NamedTuple):
    """What must stay the same of a foreign name."""

    mode: int
    mtime: int
    inode: int
    content: str


def looked_at(path: Path) -> Seen:
    status = path.lstat()
    content = str(path.readlink()) if path.is_symlink() else ""
    if path.is_file() and not path.is_symlink():
        content = path.read_text()
    return Seen(status.st_mode, status.st_mtime_ns, status.st_ino, content)


def everything(top: Path) -> Iterator[Path]:
    yield top
    if top.is_dir() and not top.is_symlink():
        yield from top.rglob("*")


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder on a memory disk where there is one: every install is flushed."""
    disk = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # a unique folder
    with tempfile.TemporaryDirectory(prefix="foreign-", dir=disk) as name:
        yield Path(name).resolve()


@pytest.fixture(scope="module")
def template(memory: Path) -> User:
    """A user with two versions and a repository, from files alone: no network."""
    folder = memory / "template"
    folder.mkdir(mode=0o755)
    shop = FolderShop(folder / "shop")
    for tag in ("b1", "b2"):
        shop.publish(tag, {"cpu": shop.variant(shop.stand_in(f"{tag}-cpu"))})
        user = shop.user(folder / "home")
        done = user.run("install", **{FAKE_HARDWARE: str(SNAPSHOT)})
        assert done.code == 0, done.stderr
        user.run("repository", "refresh", NAME)
    assert user.run("update", **{FAKE_HARDWARE: str(SNAPSHOT)}).code == 0
    assert len(user.versions()) == 2
    return user


def put(data: Path, outside: Path, where: str, name: str, kind: str) -> Path | None:
    """Make one foreign thing; None where its place or name is not free."""
    if "*" in where:
        # In a version or a copy of ours; those of this test are other names.
        places = (each for each in sorted(data.glob(where)) if each.name not in ALL_NAMES)
        place = next((each for each in places if not each.parent.is_symlink()), None)
    else:
        place = data / where
        if not os.path.lexists(place):
            place.mkdir(parents=True)
    if place is None or place.name in ALL_NAMES or os.path.lexists(place / name):
        return None
    path = place / name
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
        (path / "inside").write_text("mine")
    elif kind == "empty":
        path.mkdir()
    else:
        targets = {"to-file": outside / "file", "to-folder": outside, "loop": path}
        path.symlink_to(targets.get(kind, outside / "nowhere"))
    for each in sorted(everything(path), reverse=True):
        os.utime(each, (1_000_000, 1_000_000), follow_symlinks=False)
    return path


THINGS = st.tuples(
    st.sampled_from(FOLDERS), st.sampled_from(PLAIN + DOTTED + NEARLY), st.sampled_from(KINDS)
) | st.tuples(
    st.sampled_from(FOLDERS),
    st.sampled_from(OF_ANOTHER_KIND),
    st.sampled_from(("to-file", "to-folder", "dangling", "loop")),
)
STEPS = st.lists(THINGS | st.sampled_from(COMMANDS), min_size=2, max_size=9)

numbers = itertools.count()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS, last=st.sampled_from(COMMANDS))
def test_S16_S01_foreign_files_are_never_touched(
    template: User,
    memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[str, ...]],
    last: tuple[str, ...],
) -> None:
    home = memory / f"home-{next(numbers)}"
    shutil.copytree(template.home, home, symlinks=True)
    outside = memory / f"{home.name}-outside"
    outside.mkdir()
    for name in ("file", "other.part", f"{HASH}.part", "x.pid"):
        (outside / name).write_text("outside")
        os.utime(outside / name, (1_000_000, 1_000_000))
    for name, value in {**template.env, FAKE_HARDWARE: str(SNAPSHOT)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TSUKU_HOME", str(home))
    before = {path: looked_at(path) for path in everything(outside)}
    data, in_version = home / "llm", False
    for step in (*steps, last):
        if step not in COMMANDS:
            path = put(data, outside, *step)
            for each in everything(path) if path else ():
                before[each] = looked_at(each)
            in_version = in_version or (path is not None and path.match("versions/*/tree/*"))
            continue
        text = io.StringIO()
        with redirect_stdout(text), redirect_stderr(text):
            code = run(step)
        # A foreign file among a build's own could be a plugin: the build then counts as changed.
        assert code in (ORDERLY if not in_version else (*ORDERLY, 5)), (step, code, text.getvalue())
        assert "Traceback" not in text.getvalue()
        require_untouched(before, data)
    shutil.rmtree(home)
    shutil.rmtree(outside)


def require_untouched(before: dict[Path, Seen], data: Path) -> None:
    """Compare each foreign thing; one that was in a version may have been set aside since."""
    moved: dict[int, Path] = {}
    for path in (data / "set-aside").rglob("*"):
        moved[path.lstat().st_ino] = path
    for path, seen in before.items():
        here = path
        if not os.path.lexists(path) and path.is_relative_to(data / "versions"):
            assert seen.inode in moved, f"{path} is gone"
            here = moved[seen.inode]
        assert looked_at(here) == seen, str(path)
