"""The results of the rows, and the table that shows them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ci.faultlab.rows import Row

_SHOWN = 5


class Status(Enum):
    """The three words of the table."""

    PASSED = "pass"
    FAILED = "fail"
    NOT_RUN = "not run"


@dataclass(slots=True)
class Tally:
    """One way to show a row: how often the fault was injected, and what went wrong.

    ``what`` names what is counted ("tests", "kills"); ``figures`` are measurements made on the way.
    ``missing`` says why it could not run here; then the count is 0.
    """

    what: str
    count: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: str = ""
    figures: str = ""

    def add(self, wrong: Iterable[str], *, where: str) -> None:
        """Count one injection and what was wrong after it, and print that at once."""
        self.count += 1
        for text in wrong:
            self.wrong.append(f"{where}: {text}")
            sys.stderr.write(f"wrong: {self.wrong[-1]}\n")

    def __str__(self) -> str:
        """Return a text such as ``12 kills`` or ``1 cuts (at 95 %)``."""
        return f"{self.count:,} {self.what}{f' ({self.figures})' if self.figures else ''}"


class Finished:
    """The parts of sweeps that have ended, in a file: a sweep of hours can be interrupted.

    Without a file nothing is kept. The file is only for one state of the code.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        lines = path.read_text("utf-8").splitlines() if path and path.exists() else []
        self._parts = {(part["row"], part["part"]): part for part in map(json.loads, lines)}

    def into(self, tally: Tally, row: str, part: str) -> bool:
        """Add a part that has ended to the tally of its row; return False if it has not."""
        kept = self._parts.get((row, part))
        if kept is None:
            return False
        tally.count += kept["count"]
        tally.wrong += kept["wrong"]
        return True

    def keep(self, tally: Tally, row: str, part: str) -> None:
        """Record a part that has ended, and say so."""
        found = {"row": row, "part": part, "count": tally.count, "wrong": tally.wrong}
        self._parts[row, part] = found
        sys.stderr.write(f"{row}, {part}: {tally}, {len(tally.wrong)} wrong\n")
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The line of one row."""

    row: Row
    status: Status
    reason: str
    wrong: tuple[str, ...] = ()


def judge(row: Row, tallies: Sequence[Tally]) -> Verdict:
    """Pass a row if every way to show it ran and nothing was wrong."""
    if row.elsewhere:
        return Verdict(row, Status.NOT_RUN, row.elsewhere)
    wrong = [text for tally in tallies for text in tally.wrong]
    ran = [tally for tally in tallies if tally.count]
    how = ", ".join(map(str, ran))
    if wrong:
        return Verdict(row, Status.FAILED, f"{how}: {wrong[0]}", tuple(wrong))
    missing = [f"{tally.what}: {tally.missing}" for tally in tallies if tally.missing]
    if missing:
        return Verdict(row, Status.NOT_RUN, "; ".join(missing))
    if ran:
        return Verdict(row, Status.PASSED, how)
    return Verdict(row, Status.FAILED, "nothing ran that shows it", ("nothing ran",))


def as_text(verdicts: Sequence[Verdict]) -> str:
    """Return the table for people, with what was wrong below each row that failed."""
    lines: list[str] = []
    area = ""
    for verdict in verdicts:
        if verdict.row.area != area:
            area = verdict.row.area
            lines += ["", area]
        lines.append(_line(verdict))
        lines += [f"        {text}" for text in verdict.wrong[:_SHOWN]]
        if len(verdict.wrong) > _SHOWN:
            lines.append(f"        and {len(verdict.wrong) - _SHOWN} more")
    return "\n".join([*lines, "", summary(verdicts)])


def _line(verdict: Verdict) -> str:
    status = verdict.status.value
    reason = f"{status}: {verdict.reason}" if verdict.status is Status.NOT_RUN else verdict.reason
    word = "" if verdict.status is Status.NOT_RUN else f"{status}  "
    return f"  {verdict.row.id}  {word}{reason}  [{verdict.row.sentence}]"


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many rows passed, failed and did not run."""
    counts = {status: sum(v.status is status for v in verdicts) for status in Status}
    return ", ".join(f"{counts[status]} {status.value}" for status in Status)


def as_document(verdicts: Sequence[Verdict], facts: Mapping[str, object]) -> dict[str, object]:
    """Return the same as JSON; ``facts`` say when and where it ran."""
    return {
        "format": 1,
        **facts,
        "rows": [
            {
                "id": verdict.row.id,
                "fault": verdict.row.sentence,
                "status": verdict.status.value,
                "reason": verdict.reason,
                "wrong": list(verdict.wrong),
            }
            for verdict in verdicts
        ],
    }


def from_documents(rows: Iterable[Row], documents: Iterable[Mapping[str, Any]]) -> list[Verdict]:
    """Return the verdicts that earlier runs wrote; the last one about a row counts."""
    known = {entry["id"]: entry for document in documents for entry in document["rows"]}
    return [
        Verdict(row, Status(entry["status"]), entry["reason"], tuple(entry["wrong"]))
        if (entry := known.get(row.id))
        else Verdict(row, Status.NOT_RUN, "in none of these runs")
        for row in rows
    ]


def failed(verdicts: Iterable[Verdict]) -> bool:
    """Tell whether any row failed."""
    return any(verdict.status is Status.FAILED for verdict in verdicts)
