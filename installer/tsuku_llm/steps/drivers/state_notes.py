"""The notes that a start leaves for the next one, in one file of the state folder.

They are the build's devices, backends that failed, and a GPU that is still withheld. They count
only while the drivers are the same (``launch.plan.fingerprint``). All may be lost: a file that
cannot be read, or that another user owns, counts as missing. If nothing can be written, every start
asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import make_folder, read_small, replace_file
from tsuku_llm.launch.plan.devices import ListedDevice

_FILE = "drivers.json"
_FORMAT = 1
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


class ListedBy(NamedTuple):
    """A version's list of devices; ``given`` are the variables that chose among them."""

    version: str
    devices: tuple[ListedDevice, ...]
    given: Mapping[str, str]


class StillWithheld(NamedTuple):
    """A version for which a GPU is still withheld; ``limit`` is in seconds, per driver."""

    version: str
    limit: int


class Notes(NamedTuple):
    """All notes of one state of the drivers."""

    drivers: tuple[str, ...] = ()
    devices: ListedBy | None = None
    withheld: StillWithheld | None = None
    failures: tuple[FailureNote, ...] = ()


class StateNotes:
    """The file of notes; ``drivers`` is the current state of the drivers, None if it is unknown.

    Several starts may write at the same time. The file is replaced in one step, and the last one
    wins: a lost note only costs another question, or another failed start.
    """

    def __init__(self, state: Path, drivers: tuple[str, ...] | None) -> None:
        self._state = state
        self._drivers = drivers

    def listed(self, version: str) -> ListedBy | None:
        """Return a version's list if nothing has changed since; None if the build must be asked."""
        found = self._now().devices
        return found if found and found.version == version else None

    def keep_devices(
        self, version: str, devices: tuple[ListedDevice, ...], given: Mapping[str, str]
    ) -> None:
        """Keep a list that has the backend's devices; one without them may soon be wrong.

        ``given`` are the variables that chose among them.
        """
        self._write(self._now()._replace(devices=ListedBy(version, devices, given)))

    def forget_devices(self) -> None:
        """Drop the list, so that the next start asks the build."""
        notes = self._now()
        if notes.devices:
            self._write(notes._replace(devices=None))

    def still_withheld(self, version: str, limit: int) -> bool:
        """Tell whether a start saw, on these drivers, that a GPU is still withheld.

        ``limit`` is in seconds, per driver. An answer within a shorter limit does not count.
        """
        found = self._now().withheld
        return bool(found and found.version == version and found.limit >= limit)

    def keep_withheld(self, version: str, limit: int) -> None:
        """Keep the fact that what withheld a GPU from a version's install still holds."""
        self._write(self._now()._replace(withheld=StillWithheld(version, limit)))

    def failure(self, version: str) -> FailureNote | None:
        """Return why a version's backend failed on the current drivers, None if it did not."""
        return next((each for each in self._now().failures if each.id == version), None)

    def keep_failure(self, failure: FailureNote) -> None:
        """Keep the fact that a version's backend failed on the current drivers."""
        notes = self._now()
        others = (each for each in notes.failures if each.id != failure.id)
        self._write(notes._replace(failures=(*others, failure)[-_MOST:]))

    def forget_failure(self, version: str) -> None:
        """Drop the note about one version, which serves again."""
        notes = self._now()
        left = tuple(each for each in notes.failures if each.id != version)
        if left != notes.failures:
            self._write(notes._replace(failures=left))

    def all_failures(self) -> tuple[tuple[FailureNote, ...], bool]:
        """Return every failure that is noted, and whether they count on the current drivers."""
        found = self._read()
        return found.failures, found.drivers == self._drivers

    def forget_failures(self) -> None:
        """Remove the notes, also damaged ones: the others are made again. Raises StoreError."""
        with disk_errors("removing the notes about failed backends", self._state):
            (self._state / _FILE).unlink(missing_ok=True)

    def _now(self) -> Notes:
        """Return the notes about the current drivers; those about other drivers do not count."""
        found = self._read()
        return found if found.drivers == self._drivers else Notes(self._drivers or ())

    def _read(self) -> Notes:
        """Return the notes about any drivers; none if the file is missing or damaged."""
        with suppress(StoreError, ValueError):
            return records.parse(read_small(self._state / _FILE, _LIMIT) or b"null", _READ)
        return Notes()

    def _write(self, notes: Notes) -> None:
        # Without the state of the drivers a later start could not tell whether the note still
        # counts.
        if self._drivers is None:
            return
        content = records.encode({"format": _FORMAT, **notes._asdict()})
        with suppress(OSError, StoreError):
            make_folder(self._state)
            replace_file(self._state / _FILE, content)


_DEVICES = records.many(records.record(ListedDevice))
_READ = records.record(
    Notes,
    {
        "devices": records.optional(records.record(ListedBy, {"devices": _DEVICES})),
        "withheld": records.optional(records.record(StillWithheld)),
        "failures": records.many(records.record(FailureNote)),
    },
    format=_FORMAT,
)
