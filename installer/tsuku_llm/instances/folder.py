"""The folder of a user's servers in the background: a record and a log of each.

Nobody else may look into it: a log can have prompts in it. There is nothing to mend after a
crash, as the system itself says which of the processes in the records still live.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import make_folder, read_small, replace_file
from tsuku_llm.errors import AlreadyRunning, CorruptStore
from tsuku_llm.folders import opened
from tsuku_llm.instances.record import NAME, Record
from tsuku_llm.store import exclusive

_LARGEST = 1 << 20
_CLAIM_LIMIT = 30.0


class Instances:
    """The servers whose records lie in ``state``; nothing is created before one is written.

    Any method raises StoreError, or one of its kinds, when the disk does not play along.
    """

    def __init__(self, state: Path) -> None:
        self.folder = state / "servers"

    def log(self, name: str) -> Path:
        """Where a server's log lies, be it there or not."""
        return self.folder / f"{name}.log"

    def find(self, name: str) -> Record | None:
        """The record of a name; None where there is none. Raises CorruptStore."""
        content = read_small(self._path(name), _LARGEST)
        return None if content is None else Record.from_json(content)

    def all(self) -> tuple[Record, ...]:
        """Every record that can be read, by name."""
        return tuple(found for found in self._look().values() if isinstance(found, Record))

    def damaged(self) -> Mapping[str, CorruptStore]:
        """Why the other records cannot be."""
        found = self._look()
        return {name: error for name, error in found.items() if isinstance(error, CorruptStore)}

    def claim(self, record: Record) -> None:
        """Take a name and a place to listen at, which no server that is up may have.

        Raises AlreadyRunning, which says who has it.
        """
        make_folder(self.folder, private=True)
        with exclusive(self.folder / "claim.lock", timeout=_CLAIM_LIMIT):
            with opened(self.folder) as folder:
                if folder is not None:
                    files = rf"{NAME.pattern}\.json"
                    folder.drop_temporaries(files, older_than=time.time() - _CLAIM_LIMIT)
            for other in self.all():
                if other.state.is_up:
                    _require_apart(record, other)
            self.write(record)

    def write(self, record: Record) -> None:
        """Put a record in the place of the one before it."""
        with disk_errors(f"writing the record of the server {record.name}", self.folder):
            replace_file(self._path(record.name), record.to_json())

    def forget(self, name: str) -> None:
        """Remove a record; its log stays to be read until the name is used again."""
        with disk_errors(f"removing the record of the server {name}", self.folder):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _look(self) -> dict[str, Record | CorruptStore]:
        found: dict[str, Record | CorruptStore] = {}
        with disk_errors("listing the servers", self.folder):
            names = sorted(path.stem for path in self.folder.glob("*.json"))
        for name in filter(NAME.fullmatch, names):
            record = self._readable(name)
            if record is not None:
                found[name] = record
        return found

    def _readable(self, name: str) -> Record | CorruptStore | None:
        try:
            return self.find(name)
        except CorruptStore as error:
            return error


def _require_apart(record: Record, other: Record) -> None:
    who = f"the server {other.name} (process {other.supervisor.pid})"
    if record.name == other.name:
        raise AlreadyRunning(
            f"{who} is running already",
            facts=(f"it listens at {other.place}",),
            hint=f"tsuku-llm stop --name {other.name}, or give this one another --name",
        )
    if other.is_in_the_way_of(record.host, record.port):
        raise AlreadyRunning(
            f"{who} listens at {other.place} already",
            hint=f"tsuku-llm stop --name {other.name}, or choose another --port after --",
        )
