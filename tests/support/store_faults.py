"""Run an action on a store again and again, each time failing one step later.

``python store_faults.py ACTION FAULT FOLDER`` prints what went wrong as JSON, an empty list
when nothing did. A step is anything that opens, lists or changes files, as Python's audit
events tell; a fault is ``kill`` (the process dies right before the step) or names of errnos
with commas between (the step fails with one of them, in turn). Every run is a forked child,
so that nothing needs to be undone. In the suite, one step in three is taken.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import stored
from support.sweeps import stride

from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store

EVERY = stride(3)
STEPS = frozenset(
    f"os.{name}"
    for name in ("chmod", "link", "listdir", "mkdir", "remove", "rename", "rmdir", "scandir")
) | {"fcntl.flock"}
FILES = {"llama-server": b"server", "lib/libggml.so.0": b"library"}
NEW_FILES = {**FILES, "llama-server": b"newer"}
LINKS = {"lib/libggml.so": "libggml.so.0"}

_LOCK_TIMEOUT = 0.5
"""Seconds; a lock that fails in a certain way is waited for as if another process had it."""

DONE, REFUSED, ESCAPED = 0, 3, 4


def install(store: Store, release: str, files: dict[str, bytes] = FILES) -> Installed:
    """The smallest build that has all there is: every file of it adds steps."""
    return stored.install(store, release, files=files, links=LINKS)


def _update(store: Store) -> None:
    store.sweep()
    install(store, "b300", NEW_FILES)


def _repair(store: Store) -> None:
    store.sweep()
    install(store, "b200")


def _rollback(store: Store) -> None:
    store.sweep()
    active = store.active()
    if active and active.receipt.release != "b100":
        store.rollback()


def _uninstall(store: Store) -> None:
    store.sweep()
    for version in store.installed():
        if version.receipt.release == "b200":
            store.remove(version.id)


def _prune(store: Store) -> None:
    store.sweep()
    store.prune()


ACTIONS: dict[str, Callable[[Store], None]] = {
    "install": _update,
    "update": _update,
    "repair": _repair,
    "rollback": _rollback,
    "uninstall": _uninstall,
    "prune": _prune,
}
ALLOWED: dict[str, set[str | None]] = {
    "install": {None, "b300"},
    "update": {"b200", "b300"},
    "repair": {"b200", "damaged", None},
    "rollback": {"b200", "b100"},
    "uninstall": {"b200", None},
    "prune": {"b200"},
}
FINAL = {
    "install": "b300",
    "update": "b300",
    "repair": "b200",
    "rollback": "b100",
    "uninstall": None,
    "prune": "b200",
}


def prepare(store: Store, action: str) -> None:
    """The store as it is before the action."""
    if action == "install":
        return
    if action == "prune":
        install(store, "b050")
    install(store, "b100")
    active = install(store, "b200")
    if action == "repair":
        server = active.tree / "llama-server"
        server.unlink()  # another version may share its inode
        server.write_bytes(b"broken")


def state(store: Store) -> str | None:
    """The release that is used and intact; "damaged" for one that is not."""
    try:
        active = store.active()
        if active is None:
            return None
        store.check(active, full=True)
    except TsukuError:
        return "damaged"
    return active.receipt.release


def leftovers(store: Store) -> list[str]:
    """Names that should not be there after an action that ended well."""
    found = [path for path in store.data.rglob("*") if path.name.endswith(".tmp")]
    staging = store.data / "staging"
    return [str(path) for path in (*found, *(staging.iterdir() if staging.exists() else ()))]


def run(action: str, fault: str, store: Store, step: int) -> tuple[int, bool]:
    """Act in a child that fails at a step; how it ended, and whether the step was reached."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_child(action, fault, store, step, writer))
    os.close(writer)
    status = os.waitpid(child, 0)[1]
    reached = os.read(reader, 1) == b"x"
    os.close(reader)
    return status, reached


def _child(action: str, fault: str, store: Store, step: int, writer: int) -> int:
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event not in STEPS and not _opens(event, arguments, store.data):
            return
        seen += 1
        if seen != step:
            return
        os.write(writer, b"x")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        names = fault.split(",")
        code = getattr(errno, names[step // EVERY % len(names)])
        raise OSError(code, os.strerror(code))

    sys.addaudithook(hook)
    try:
        ACTIONS[action](store)
    except TsukuError:
        return REFUSED
    except BaseException:  # noqa: BLE001  # that is what must not happen
        traceback.print_exc(limit=-6)
        return ESCAPED
    return DONE


def _opens(event: str, arguments: tuple[object, ...], folder: Path) -> bool:
    """Whether a file below the folder is opened: modules that are imported do not count."""
    return event == "open" and str(arguments[0]).startswith(str(folder))


def sweep(action: str, fault: str, folder: Path) -> list[str]:
    """Every step of the action; what was wrong after it."""
    wrong: list[str] = []
    step = 1 - EVERY
    while True:
        step += EVERY
        store = Store(folder / "data", lock_timeout=_LOCK_TIMEOUT)
        prepare(store, action)
        status, reached = run(action, fault, store, step)
        if not reached:
            wrong += [] if status == 0 else [f"without a fault: status {status}"]
            break
        wrong += [f"step {step}: {text}" for text in _wrong(action, fault, store, status)]
        shutil.rmtree(folder / "data", ignore_errors=True)
    return wrong


def _wrong(action: str, fault: str, store: Store, status: int) -> list[str]:
    wrong = []
    after = state(store)
    if after not in ALLOWED[action]:
        wrong.append(f"the state is {after}")
    if fault != "kill":
        code = os.waitstatus_to_exitcode(status)
        if code not in (DONE, REFUSED):
            wrong.append(f"ended with {code}")
        if code == DONE and after != FINAL[action]:
            wrong.append(f"said done in state {after}")
    try:
        ACTIONS[action](store)
    except TsukuError as error:
        wrong.append(f"then refused: {error} {error.facts}")
    if state(store) != FINAL[action]:
        wrong.append(f"then ended in {state(store)}")
    wrong += [f"then left {name}" for name in leftovers(store)]
    return wrong + [text for version in store.installed() for text in _damage(store, version)]


def _damage(store: Store, version: Installed) -> list[str]:
    try:
        store.check(version, full=True)
    except TsukuError as error:
        return [f"{version.id}: {error} {error.facts}"]
    return []


if __name__ == "__main__":
    json.dump(sweep(sys.argv[1], sys.argv[2], Path(sys.argv[3])), sys.stdout)
