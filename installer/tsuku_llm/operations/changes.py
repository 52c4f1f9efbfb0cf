"""The variants that a machine gains and loses between two releases. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tsuku_llm.selection import Selection


@dataclass(frozen=True, slots=True)
class FitChange:
    """A variant that fits this machine in only one of two releases.

    ``fits`` is about the later release. ``reason`` says why the variant did not fit before, or does
    not fit now.
    """

    variant: str
    fits: bool
    reason: str


def fit_changes(before: Selection, after: Selection) -> tuple[FitChange, ...]:
    """Return what the later release gains, best first, and then what it loses."""
    gained = (
        FitChange(name, fits=True, reason=_why_not(before, name))
        for name in _fitting(after)
        if name not in _fitting(before)
    )
    lost = (
        FitChange(name, fits=False, reason=_why_not(after, name))
        for name in _fitting(before)
        if name not in _fitting(after)
    )
    return (*gained, *lost)


def _fitting(selection: Selection) -> tuple[str, ...]:
    return tuple(candidate.variant.name for candidate in selection.compatible)


def _why_not(selection: Selection, name: str) -> str:
    reasons = {each.variant.name: each.reason.text for each in selection.rejected}
    return reasons.get(name, "there is no such variant")
