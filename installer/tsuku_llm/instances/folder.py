"""The folder of a user's servers in the background: a record and a log of each.

Other users may not read it, as a log can contain prompts. After a crash nothing needs a
repair: the system itself tells which of the processes in the records still live.

Several processes use the folder at once: the supervisor of each server, and every command
that asks. A record is replaced by a rename, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import AlreadyRunning, CorruptStore
from tsuku_llm.ground.files import make_folder, read_small, replace_file
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.instances.record import NAME, Record
from tsuku_llm.store.locks import exclusive

_LARGEST = 1 << 20
"""Bytes of a record that are read."""

_CLAIM_LIMIT = 30.0
"""Seconds to wait for the lock; an older temporary file was left by a crash."""


class Instances:
    """The servers whose records are in ``state``; ``claim`` creates the folder.

    Every method raises StoreError, or one of its subclasses, if the file system reports an
    error.
    """

    def __init__(self, state: Path) -> None:
        self.folder = state / "servers"

    def log(self, name: str) -> Path:
        """Return the path of a server's log, which may not exist."""
        return self.folder / f"{name}.log"

    def preset(self, name: str) -> Path:
        """Return the path of the models of a server that is a router, which may not exist."""
        return self.folder / f"{name}.ini"

    def find(self, name: str) -> Record | None:
        """Return the record of a name, or None. Raises CorruptStore."""
        try:
            content = read_small(self._path(name), _LARGEST)
            return None if content is None else Record.from_json(content)
        except CorruptStore as error:
            # Only here it is known which server this was.
            error.hint = f"remove its record: {TSUKU} stop --name {name}"
            raise

    def all(self) -> tuple[Record, ...]:
        """Return every record that can be read, sorted by name."""
        return tuple(found for found in self._look().values() if isinstance(found, Record))

    def damaged(self) -> Mapping[str, CorruptStore]:
        """Return the error of each record that cannot be read, by name."""
        found = self._look()
        return {name: error for name, error in found.items() if isinstance(error, CorruptStore)}

    def claim(self, record: Record) -> None:
        """Reserve a name and an address, unless a running server has one of them.

        Raises AlreadyRunning, which names that server.
        """
        make_folder(self.folder, private=True)
        # Two supervisors may start at once. The lock makes looking and writing one step, so
        # that the second one sees the record of the first.
        with exclusive(self.folder / "claim.lock", timeout=_CLAIM_LIMIT):
            with opened(self.folder) as folder:
                if folder is not None:
                    # Left by processes that were killed in the middle of a write. A younger
                    # file may belong to a supervisor that writes its record without the lock.
                    files = rf"{NAME.pattern}\.json"
                    folder.drop_temporaries(files, older_than=time.time() - _CLAIM_LIMIT)
            # A record proves nothing by itself: ``state`` asks the system for its processes.
            for other in self.all():
                if other.state.is_up:
                    _require_apart(record, other)
            self.write(record)

    def write(self, record: Record) -> None:
        """Replace the record of this name; needs no lock, as only its supervisor writes it."""
        with disk_errors(f"writing the record of the server {record.name}", self.folder):
            replace_file(self._path(record.name), record.to_json())

    def forget(self, name: str) -> None:
        """Remove a record, also a damaged one, and a preset; the log stays (``remove_logs``)."""
        with disk_errors(f"removing the record of the server {name}", self.folder):
            self._path(name).unlink(missing_ok=True)
            self.preset(name).unlink(missing_ok=True)

    def remove_logs(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the logs of every name without a record, unless ``dry_run``; return these names.

        A server that ended by itself, or whose record is damaged, has one: its log stays.
        """
        removed: list[str] = []
        with disk_errors("removing logs of servers", self.folder), opened(self.folder) as folder:
            if folder is None:
                return ()
            # A supervisor takes this lock for its record, and opens its log after that. So no
            # start can be between the two here.
            with exclusive(self.folder / "claim.lock", timeout=_CLAIM_LIMIT):
                files = folder.names()
                for file in files:
                    name = file.removesuffix(".1").removesuffix(".log")
                    ours = NAME.fullmatch(name) and file in (f"{name}.log", f"{name}.log.1")
                    if ours and f"{name}.json" not in files and folder.is_file(file):
                        if not dry_run:
                            folder.unlink(file)
                        removed.append(name)
        return tuple(dict.fromkeys(removed))  # a name has up to two files

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _look(self) -> dict[str, Record | CorruptStore]:
        found: dict[str, Record | CorruptStore] = {}
        with disk_errors("listing the servers", self.folder):
            names = sorted(path.stem for path in self.folder.glob("*.json"))
        for name in filter(NAME.fullmatch, names):
            try:
                record = self.find(name)
            except CorruptStore as error:
                found[name] = error
                continue
            # None: another process has removed it since the listing.
            if record is not None:
                found[name] = record
        return found


def _require_apart(record: Record, other: Record) -> None:
    who = f"the server {other.name} (process {other.supervisor.pid})"
    if record.name == other.name:
        raise AlreadyRunning(
            f"{who} is running already",
            facts=(f"it listens at {other.address}",),
            hint=f"{TSUKU} stop --name {other.name}, or give this one another --name",
        )
    if other.occupies(record.host, record.port):
        raise AlreadyRunning(
            f"{who} listens at {other.address} already",
            hint=f"{TSUKU} stop --name {other.name}, or choose another --port after --",
        )
