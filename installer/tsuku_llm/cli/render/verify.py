"""Whether the installed versions are as they were signed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tsuku_llm.cli.answer import Failure
from tsuku_llm.errors import TamperedInstall
from tsuku_llm.operations.verify import VersionCheck


def data(verdicts: Sequence[VersionCheck]) -> dict[str, Any]:
    """Return every version for programs."""
    return {
        "versions": [
            {
                "id": verdict.id,
                "intact": not verdict.differences,
                "differences": list(verdict.differences),
                "repair": verdict.repair or None,
                "compared_with": "receipt" if _is_unsigned(verdict) else "manifest",
                "unsigned": verdict.unsigned,
                "repository": verdict.receipt.repository if verdict.receipt else None,
                "publisher": verdict.receipt.publisher if verdict.receipt else None,
                "unattested": verdict.receipt.unattested if verdict.receipt else None,
            }
            for verdict in verdicts
        ]
    }


def lines(verdicts: Sequence[VersionCheck]) -> tuple[str, ...]:
    """Return every version for people."""
    if not verdicts:
        return ("nothing is installed; run: tsuku-llm install",)
    return tuple(line for verdict in verdicts for line in _lines(verdict))


def _lines(verdict: VersionCheck) -> Iterator[str]:
    if not verdict.differences:
        yield f"{verdict.id}: intact, {_compared(verdict)}"
        return
    yield f"{verdict.id}: not as it was installed"
    yield from (f"  {difference}" for difference in verdict.differences)
    if verdict.unsigned:
        yield f"  {_compared(verdict)}"
    yield f"  to repair it: {verdict.repair}"


def _is_unsigned(verdict: VersionCheck) -> bool:
    # Without a receipt there is nothing to compare with what was signed.
    return verdict.receipt is None or verdict.unsigned is not None


def _compared(verdict: VersionCheck) -> str:
    """Return what the files were compared with."""
    if verdict.receipt is None or verdict.unsigned is not None:
        return f"compared with its receipt only, which is not signed: {verdict.unsigned}"
    return f"as repository {verdict.receipt.repository} signed it"


def exit_code(verdicts: Sequence[VersionCheck]) -> int:
    """Return the exit code of a tampered install if any version is not intact, else 0."""
    return TamperedInstall.exit_code if _broken(verdicts) else 0


def failure(verdicts: Sequence[VersionCheck]) -> Failure | None:
    """Return the error with the ids of the versions that are not intact, or None."""
    broken = _broken(verdicts)
    if not broken:
        return None
    return Failure(
        TamperedInstall.slug,
        f"{len(broken)} of {len(verdicts)} installed versions are not as they were installed",
        tuple(verdict.id for verdict in broken),
        f"run: {broken[0].repair}",
    )


def _broken(verdicts: Sequence[VersionCheck]) -> list[VersionCheck]:
    return [verdict for verdict in verdicts if verdict.differences]
