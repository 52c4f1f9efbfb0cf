"""Another process at a store: ``python store_process.py ACTION FOLDER ARGUMENT [FLOCK]``.

``hold NAME`` takes a lock, says so, and keeps it until its input ends. ``install RELEASE``
does what an install does, counting what it fetched in a file; ``stage`` makes a staging
folder and keeps it; ``sweep`` sweeps; ``use`` does what needs no right to write, then
activates. With FLOCK, the name of an errno, the file system lacks ``flock``; with
``useless``, its ``flock`` never excludes another process.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.stored import fill, make_receipt

from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.store.store import Store


def without_flock(name: str) -> None:
    """From here on every ``flock`` of this process fails, or does nothing."""
    if name == "useless":
        import fcntl  # noqa: PLC0415  # Windows lacks it

        fcntl.flock = lambda *_: None
        return
    code = getattr(errno, name)

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        if event == "fcntl.flock":
            raise OSError(code, os.strerror(code))

    sys.addaudithook(hook)


def wait(text: str) -> None:
    """Tell the parent, and wait for it to close our input."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def install(store: Store, release: str) -> None:
    """Sweep, lock, look, fetch, stage, commit, activate: as an install does."""
    receipt = make_receipt(release)
    store.sweep()
    with store.lock(receipt.id):
        installed = store.find(receipt.id)
        if installed is None:
            with (store.data.parent / "fetched").open("a") as log:
                log.write(f"{release}\n")
            with store.staging() as staging:
                fill(staging.tree)
                installed = store.commit(staging, receipt)
        store.check(installed)
        store.activate(installed)


def use(store: Store) -> None:
    """What ``serve`` does, and what needs more."""
    active = store.active()
    assert active is not None
    assert store.installed() == (active,)
    store.check(active)
    store.check(active, full=True)
    with store.hold(active) as descriptor:
        assert descriptor is not None
    store.sweep()
    sys.stdout.write("used\n")
    store.activate(active)


def main() -> int:
    action, folder, argument, *flock = sys.argv[1:]
    for name in flock:
        without_flock(name)
    store = Store(Path(folder))
    try:
        if action == "hold":
            with store.lock(argument):
                wait("held")
        elif action == "stage":
            with store.staging() as staging:
                fill(staging.tree)
                wait(str(staging.path))
        elif action == "sweep":
            wait("ready")
            store.sweep()
        elif action == "use":
            use(store)
        else:
            wait("ready")
            install(store, argument)
    except TsukuError as error:
        sys.stderr.write(f"{error} {error.facts}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
