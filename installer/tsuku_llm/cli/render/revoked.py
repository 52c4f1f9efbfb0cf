"""Revocations as several commands show them; ``list`` needs only this module for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsuku_llm.operations.revocation import ReleaseStatus
from tsuku_llm.revocations import Revocation


def revocation_data(why: Revocation) -> dict[str, Any]:
    """Return a revocation for programs; reason and date are empty if the publisher gives none."""
    return {
        "release": why.release,
        "repository": why.repository,
        "reason": why.reason,
        "date": why.date,
    }


def told_data(told: ReleaseStatus | None) -> dict[str, Any]:
    """Return what is known of an installed release, for programs."""
    why = told.revocation if told else None
    return {
        "revoked": why is not None,
        "revocation": why and revocation_data(why),
        "gone": told.gone if told else None,
    }


def told_lines(told: Mapping[str, ReleaseStatus]) -> tuple[str, ...]:
    """Return what is known of each release, and how to leave a revoked one, for people."""
    lines = tuple(f"{name}: {line}" for name, each in told.items() for line in each.lines)
    if any(each.revocation for each in told.values()):
        return (*lines, "a revoked release is not started; to replace it: tsuku-llm update")
    return lines
