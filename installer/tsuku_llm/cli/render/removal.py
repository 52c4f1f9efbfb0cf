"""What was removed, and what was left."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render.installed import foreign_lines, legacy_lines
from tsuku_llm.operations.maintenance import Cleaned, Uninstalled


def uninstalled_data(report: Uninstalled) -> dict[str, Any]:
    """Return an uninstall for programs."""
    active = report.active.id if report.active else None
    foreign = list(report.foreign)
    return {"removed": list(report.removed), "active": active, "foreign": foreign}


def uninstalled_lines(report: Uninstalled) -> tuple[str, ...]:
    """Return an uninstall for people."""
    removed = tuple(f"removed {version}" for version in report.removed) or ("nothing to remove",)
    removed += foreign_lines(report.foreign)
    if report.active:
        return (*removed, f"active: {report.active.id}")
    return (*removed, "nothing is active; to change that: tsuku-llm use VERSION, or install")


def pruned_data(report: Cleaned) -> dict[str, Any]:
    """Return a prune for programs."""
    pruned = report.pruned
    return {
        "removed": list(pruned.removed),
        "in_use": list(pruned.in_use),
        "legacy_removed": list(pruned.legacy),
        "legacy": list(report.legacy),
        "foreign": list(report.foreign),
    }


def pruned_lines(report: Cleaned) -> tuple[str, ...]:
    """Return a prune for people."""
    pruned = report.pruned
    removed = (
        *(f"removed {version}" for version in pruned.removed),
        *(f"removed {addon.path}, left by {addon.what}" for addon in pruned.legacy),
    )
    return (
        *(removed or ("nothing to remove",)),
        *(f"kept {version}: it is in use" for version in pruned.in_use),
        *legacy_lines(report.legacy),
        *foreign_lines(report.foreign),
    )
