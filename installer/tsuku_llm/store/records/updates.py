"""What unattended updates leave in the store: a journal, and marks of releases that failed here.

The journal is there while an update is under way; after a crash the next update finishes it, or
goes back. A mark stays until somebody removes it. Both are about the machine, not about one user.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.files import make_folder, read_record, replace_file
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.store.records.receipt import is_version_id

JOURNAL = "unattended.json"
MARKS = "rolled-back.json"

FORMAT = 1
_JOURNAL_LIMIT = 1 << 16
_MARKS_LIMIT = 1 << 20
_MOST = 64
"""Marks that are kept: a channel rarely offers more releases."""
_LONGEST = 2000
"""Characters of a reason."""


class UpdateJournal(NamedTuple):
    """An update under way: ``former`` is the id of the version that was active before.

    ``tried`` is that of the new one, which is on trial; "" until it is installed.
    """

    former: str
    tried: str = ""


class RolledBack(NamedTuple):
    """A release that failed on this machine, and the id of its version; ``at`` is in UTC."""

    repository: str
    release: str
    id: str
    reason: str
    at: str

    @property
    def told(self) -> str:
        """When and why it failed, in words."""
        return f"{self.at[:10]}: {self.reason}"


_JOURNAL = records.record(
    UpdateJournal, {"former": records.checked(str, is_version_id)}, format=FORMAT
)
_MARK = records.record(RolledBack, {"at": records.moment})
_MARKS = records.fields({"rolled_back": records.many(_MARK)}, format=FORMAT)


def read_journal(data: Path) -> UpdateJournal | None:
    """Return the update that is under way or was broken off, None without one.

    Raises CorruptStore.
    """
    path = data / JOURNAL
    return read_record(path, _JOURNAL_LIMIT, _JOURNAL, f"remove it: rm {path}")


def write_journal(data: Path, journal: UpdateJournal) -> None:
    """Replace the journal durably. Raises StoreError."""
    _write(data / JOURNAL, {"format": FORMAT, **journal._asdict()})


def drop_journal(data: Path) -> None:
    """Remove the journal: the update is over. Raises StoreError."""
    with disk_errors("removing the journal of an update", data):
        (data / JOURNAL).unlink(missing_ok=True)


def read_marks(data: Path) -> tuple[RolledBack, ...]:
    """Return the releases that failed here, the last one at the end. Raises CorruptStore."""
    path = data / MARKS
    forget = f"forget them: {TSUKU} update --retry; or {path}"
    found = read_record(path, _MARKS_LIMIT, _MARKS, forget)
    return found["rolled_back"] if found else ()


def mark(data: Path, failed: RolledBack) -> None:
    """Keep the fact that a release failed here, in place of an earlier mark of it."""
    failed = failed._replace(reason=failed.reason[:_LONGEST])
    others = [each for each in read_marks(data) if each[:2] != failed[:2]]
    _write_marks(data, [*others, failed][-_MOST:])


def unmark(data: Path, repository: str, release: str) -> None:
    """Forget that a release failed here. Raises StoreError."""
    marks = read_marks(data)
    others = [each for each in marks if each[:2] != (repository, release)]
    if len(others) < len(marks):
        _write_marks(data, others)


def drop_marks(data: Path) -> None:
    """Forget every mark, also if the file is damaged. Raises StoreError."""
    with disk_errors("removing the marks of releases that failed", data):
        (data / MARKS).unlink(missing_ok=True)


def _write_marks(data: Path, marks: Iterable[RolledBack]) -> None:
    rows = [each._asdict() for each in marks]
    _write(data / MARKS, {"format": FORMAT, "rolled_back": rows})


def _write(path: Path, document: dict[str, object]) -> None:
    with disk_errors(f"writing {path.name}", path.parent):
        make_folder(path.parent)
        replace_file(path, records.encode(document))
