"""The installed versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tsuku_llm.cli.render.revoked import told_data, told_lines
from tsuku_llm.cli.render.text import named, origin, table, unattested
from tsuku_llm.operations.versions import Inventory
from tsuku_llm.store.installed import Installed
from tsuku_llm.store.legacy import LegacyAddon


def data(found: Inventory) -> dict[str, Any]:
    """Return the content of the store for programs."""
    return {
        "versions": [
            {
                **_version(version),
                **told_data(found.told.get(version.id)),
                "active": version == found.active,
                "previous": version == found.previous,
            }
            for version in found.versions
        ],
        "damaged": [
            {"id": name, "reason": error.message, "hint": error.hint}
            for name, error in found.damaged.items()
        ],
        "unusable": found.unusable.message if found.unusable else None,
        "legacy": list(found.legacy),
        "foreign": list(found.foreign),
    }


def _version(version: Installed) -> dict[str, Any]:
    receipt = version.receipt
    return {
        "id": receipt.id,
        "release": receipt.release,
        "version": receipt.version,
        "publisher": receipt.publisher,
        "channel": receipt.channel,
        "repository": receipt.repository,
        "unattested": receipt.unattested,
        "variant": receipt.variant,
        "backend": receipt.backend,
        "installed_at": receipt.installed_at,
        "path": version.tree,
    }


def lines(found: Inventory) -> tuple[str, ...]:
    """Return the content of the store for people; the active version has a star."""
    rows = [_row(version, found) for version in found.versions]
    nothing = () if rows else ("nothing is installed; run: tsuku-llm install",)
    # The pointer is broken: say so, as the table then has no star.
    unusable = (found.unusable.message, found.unusable.hint) if found.unusable else ()
    return (
        *nothing,
        *table(rows, indent=0),
        *told_lines(found.told),
        *unusable,
        *(f"damaged: {name}: {error.message}" for name, error in found.damaged.items()),
        *legacy_lines(found.legacy),
        *foreign_lines(found.foreign),
    )


def _row(version: Installed, found: Inventory) -> tuple[str, ...]:
    receipt = version.receipt
    return (
        "*" if version == found.active else " ",
        named(receipt.release, receipt.version),
        receipt.variant,
        receipt.channel,
        receipt.repository,
        receipt.installed_at,
        receipt.id,
        "unattested" if receipt.unattested else "",
        "previous" if version == found.previous else "",
    )


def legacy_lines(legacy: Sequence[LegacyAddon]) -> tuple[str, ...]:
    """Return what tsuku's earlier addon left, and how to remove it."""
    if not legacy:
        return ()
    found = (f"left by {addon.what}: {addon.path}" for addon in legacy)
    return (*found, "to remove what the earlier addon left: tsuku-llm prune --legacy")


def foreign_lines(foreign: Sequence[Path]) -> tuple[str, ...]:
    """Return what this program did not make, one name per line."""
    return tuple(f"not of tsuku-llm, left alone: {path}" for path in foreign)


def active_data(installed: Installed) -> dict[str, Any]:
    """Return the version that is active now, for programs."""
    return _version(installed)


def active_lines(installed: Installed) -> tuple[str, ...]:
    """Return the version that is active now, for people."""
    receipt = installed.receipt
    return (
        (
            f"active: {receipt.variant} of {named(receipt.release, receipt.version)}, "
            f"{origin(receipt.publisher, receipt.repository)}"
        ),
        *unattested(receipt.unattested),
        f"  in {installed.tree}",
    )
