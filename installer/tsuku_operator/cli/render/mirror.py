"""Mirrors: what was copied, and what a check found."""

from __future__ import annotations

from tsuku_llm.cli.terminal.answer import ReportedError
from tsuku_llm.cli.terminal.text import listed, size
from tsuku_llm.ground.errors import TamperedMirror
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.safe_text import shell_word
from tsuku_operator.mirror.mirror import MirrorCheck, MirrorReport
from tsuku_operator.mirror.mirror_folder import Swept


def lines(report: MirrorReport) -> tuple[str, ...]:
    """Return what a mirror has, for people."""
    name, count = report.repository, report.artifacts
    holds = f"{count} archives of {len(report.releases)} releases, {size(report.size)}"
    came = f"{len(report.fetched)} archives, {size(report.fetched_size)}"
    first = {
        "planned": f"The mirror {report.place} of {name} would have {holds}; to fetch: {came}.",
        "updated": f"The mirror {report.place} of {name} has {holds}; fetched: {came}.",
        "unchanged": f"The mirror {report.place} of {name} is up to date: {holds}.",
    }[report.outcome]
    told = [first]
    if report.outcome == "planned":
        told += [f"  {each.name}  {size(each.size)}" for each in report.fetched]
    if swept := report.swept:
        told.append(f"Removed {len(swept.unused)} files that nothing needs, {size(swept.size)}.")
        told += _foreign(swept)
    return tuple(told)


def check_lines(found: MirrorCheck) -> tuple[str, ...]:
    """Return what a check found, for people."""
    hashed = f"{found.artifacts} archives, {size(found.size)}"
    state = "intact" if found.intact else "not intact"
    told = [f"The mirror {found.place} of {found.repository} is {state}: {hashed}."]
    if found.swept.unused:
        told.append(
            f"{len(found.swept.unused)} files are not needed any more: --prune removes them."
        )
    return (*told, *_foreign(found.swept))


def _foreign(swept: Swept) -> tuple[str, ...]:
    return listed("not of this program, and left alone:", swept.foreign) if swept.foreign else ()


def check_failure(found: MirrorCheck) -> ReportedError | None:
    """Return the error of a mirror that is not intact, or None."""
    if found.intact:
        return None
    return ReportedError(
        TamperedMirror.slug,
        f"the mirror {found.place} is not as it was signed",
        found.differences,
        "remove the named files, and bring the mirror up to date: "
        f"{TSUKU} mirror {shell_word(found.place)}",
    )
