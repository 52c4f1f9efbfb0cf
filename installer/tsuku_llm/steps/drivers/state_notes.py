"""The notes that a start leaves for the next one in the state folder.

They are the build's devices, backends that failed, and a GPU that is still withheld. They count
only while the drivers are the same (``launch.plan.fingerprint``). All may be lost: a file that
cannot be read, or that another user owns, counts as missing. If nothing can be written, every start
asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import make_folder, read_small, replace_file
from tsuku_llm.launch.plan.devices import ListedDevice

_LIMIT = 1 << 20
_MOST = 16
"""Failures that are kept; a machine with more of them has other problems."""


class FailureNote(NamedTuple):
    """An installed version (its id) whose backend failed, and the id of what served instead.

    ``noted_at`` is in UTC, to the second.
    """

    id: str
    reason: str
    instead: str
    noted_at: str


class StateNotes:
    """The files of notes; ``drivers`` is the current state of the drivers, None if it is unknown.

    Several starts may write at the same time. Each file is replaced in one step, and the last one
    wins: a lost note only costs another question, or another failed start.
    """

    def __init__(self, state: Path, drivers: tuple[str, ...] | None) -> None:
        self._state = state
        self._drivers = drivers

    def devices(self, version: str) -> tuple[ListedDevice, ...] | None:
        """Return a version's list if nothing has changed since; None if the build must be asked."""
        found = self._read("devices.json", _DEVICES)
        return found["devices"] if found and found["version"] == version else None

    def keep_devices(
        self, version: str, devices: tuple[ListedDevice, ...], given: Mapping[str, str]
    ) -> None:
        """Keep a list that has the backend's devices; one without them may soon be wrong.

        ``given`` are the variables that chose among them.
        """
        self._write("devices.json", {"version": version, "devices": devices, "given": given})

    def forget_devices(self) -> None:
        """Drop the list, so that the next start asks the build."""
        with suppress(OSError):
            (self._state / "devices.json").unlink(missing_ok=True)

    def given(self, version: str) -> dict[str, str] | None:
        """Return the variables with which a version's list was made; None if there is no list."""
        found = self._read("devices.json", _DEVICES)
        return found["given"] if found and found["version"] == version else None

    def still_withheld(self, version: str, limit: int) -> bool:
        """Tell whether a start saw, on these drivers, that a GPU is still withheld.

        ``limit`` is in seconds, per driver. An answer within a shorter limit does not count.
        """
        found = self._read("withheld.json", _WITHHELD)
        return bool(found and found["version"] == version and found["limit"] >= limit)

    def keep_withheld(self, version: str, limit: int) -> None:
        """Keep the fact that what withheld a GPU from a version's install still holds."""
        self._write("withheld.json", {"version": version, "limit": limit})

    def failure(self, version: str) -> FailureNote | None:
        """Return why a version's backend failed on the current drivers, None if it did not."""
        return self._failures().get(version)

    def keep_failure(self, failure: FailureNote) -> None:
        """Keep the fact that a version's backend failed on the current drivers."""
        failures = {**self._failures(), failure.id: failure}
        kept = list(failures.values())[-_MOST:]
        self._write("failures.json", {"failures": kept})

    def forget_failure(self, version: str) -> None:
        """Drop the note about one version, which serves again."""
        failures = self._failures()
        if failures.pop(version, None):
            self._write("failures.json", {"failures": list(failures.values())})

    def all_failures(self) -> tuple[tuple[FailureNote, ...], bool]:
        """Return every failure that is noted, and whether they count on the current drivers."""
        found = self._parsed("failures.json", _FAILURES)
        return (found["failures"], found["drivers"] == self._drivers) if found else ((), False)

    def forget_failures(self) -> None:
        """Remove every note about a failure, also a damaged one. Raises StoreError."""
        with disk_errors("removing the notes about failed backends", self._state):
            (self._state / "failures.json").unlink(missing_ok=True)

    def _failures(self) -> dict[str, FailureNote]:
        """Return the failures on the current drivers; those on other drivers do not count."""
        found = self._read("failures.json", _FAILURES)
        return {failure.id: failure for failure in found["failures"]} if found else {}

    def _read(self, name: str, read: records.Reader[dict[str, Any]]) -> dict[str, Any] | None:
        """Return a note, None if it is missing, damaged, or about other drivers."""
        found = self._parsed(name, read)
        return found if found and found["drivers"] == self._drivers else None

    def _parsed(self, name: str, read: records.Reader[dict[str, Any]]) -> dict[str, Any] | None:
        """Return a note about any drivers, None if it is missing or damaged."""
        with suppress(StoreError, ValueError):
            return records.parse(read_small(self._state / name, _LIMIT) or b"null", read)
        return None

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        # Without the state of the drivers a later start could not tell whether the note still
        # counts.
        if self._drivers is None:
            return
        content = records.encode({"format": 1, "drivers": self._drivers, **document})
        with suppress(OSError, StoreError):
            make_folder(self._state)
            replace_file(self._state / name, content)


_TEXT, _SIZE = records.text, records.optional(records.count)
_DEVICE = {"name": _TEXT, "description": _TEXT, "memory": _SIZE, "free": _SIZE}
_DEVICE |= {"integrated": records.optional(records.flag)}
_DEVICES = records.fields(
    {
        "drivers": records.many(_TEXT),
        "version": _TEXT,
        "devices": records.many(records.record(ListedDevice, _DEVICE)),
        "given": records.named(_TEXT),
    },
)
_WITHHELD = records.fields(
    {"drivers": records.many(_TEXT), "version": _TEXT, "limit": records.count}
)
_FAILURE = records.record(
    FailureNote, dict.fromkeys(FailureNote._fields, _TEXT), before={"id": "version"}
)
_FAILURES = records.fields({"drivers": records.many(_TEXT), "failures": records.many(_FAILURE)})
