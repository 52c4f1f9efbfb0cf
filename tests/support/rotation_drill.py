"""Kill a client at every change that it makes on the disk while it walks five rotations.

``python rotation_drill.py FOLDER`` prints as JSON how many places there were and what went
wrong. In the suite, one place in four is taken.
The client has the oldest root; the repository is a folder, as a mirror for a network without
servers is. Each run is a forked child that kills itself right before a step; a step is anything
that opens a file of the client's or changes a name, as Python's audit events tell. Then the same
is done again without a fault.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from support.folder_shop import FolderShop
from support.release_server import NAME
from support.repository import release_document
from support.sweeps import stride

from tsuku_llm.catalog import metadata_status
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.session import Session

ROTATIONS = 5
EVERY = stride(4)
NAMES = frozenset(
    f"os.{name}" for name in ("chmod", "link", "mkdir", "remove", "rename", "rmdir", "symlink")
)


def prepare(folder: Path) -> Session:
    """A client of the first root, and five rotations of all keys that it has not seen."""
    shop = FolderShop(folder / "shop")
    shop.simulator.publish(release_document("b1"))
    shop.write()
    session = shop.session(folder / "home")
    for number in range(ROTATIONS):
        shop.simulator.rotate(
            "root", "targets", "snapshot", "timestamp", generation=f"generation {number}"
        )
    shop.simulator.publish(release_document("b2"))
    shop.write()
    return session


def run(session: Session, step: int) -> bool:
    """Refresh in a child that is killed at a step; whether it got there."""
    child = os.fork()
    if child == 0:
        os._exit(_child(session, step))
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        raise AssertionError(f"it ended with {status} without being killed")
    return False


def _child(session: Session, step: int) -> int:
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        ours = event == "open" and str(arguments[0]).startswith(str(session.paths.data))
        if not ours and event not in NAMES:
            return
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        refresh(session)
    except BaseException:  # noqa: BLE001  # a child must not go on as its parent
        traceback.print_exc()
        return 1
    return 0


def names(session: Session) -> set[str]:
    """Every name in the folder of the repository."""
    folder = metadata_status.folder_of(session.paths.data, NAME)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def state(session: Session) -> tuple[int, str]:
    """The root and the newest release that a load trusts."""
    catalog = load_catalog(session)
    return catalog.trusted.roles["root"].version, catalog.entries[0].release


OLD, NEW = (1, "b1"), (1 + ROTATIONS, "b2")


def wrong(session: Session, after: set[str]) -> Iterator[str]:
    """What is not as it should be, right after a kill and after another refresh."""
    try:
        if state(session) not in (OLD, NEW):
            yield f"the state is {state(session)}"
        refresh(session)
    except TsukuError as error:
        yield f"refused: {error} {error.facts}"
        return
    if state(session) != NEW:
        yield f"then ended in {state(session)}"
    yield from (f"then left {name}" for name in sorted(names(session) - after))
    yield from (f"then lacks {name}" for name in sorted(after - names(session)))


def sweep(folder: Path) -> dict[str, object]:
    """Every step; how many there were, and what was wrong after each."""
    session = prepare(folder)
    data, before = session.paths.data, folder / "before"
    shutil.copytree(data, before, symlinks=True)
    assert state(session) == OLD
    refresh(session)
    assert state(session) == NEW
    after, step = names(session), 1 - EVERY
    told: list[str] = []
    while True:
        shutil.rmtree(data)
        shutil.copytree(before, data, symlinks=True)
        step += EVERY
        if not run(session, step):
            return {"steps": step - 1, "wrong": told}
        told += [f"step {step}: {text}" for text in wrong(session, after)]


if __name__ == "__main__":
    json.dump(sweep(Path(sys.argv[1])), sys.stdout)
