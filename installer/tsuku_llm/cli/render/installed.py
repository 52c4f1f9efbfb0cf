"""What is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsuku_llm.cli.render.text import named, table
from tsuku_llm.store import Installed


def data(versions: Sequence[Installed], active: Installed | None) -> dict[str, Any]:
    """Every installed version for programs."""
    return {"versions": [_version(version, active) for version in versions]}


def _version(version: Installed, active: Installed | None) -> dict[str, Any]:
    receipt = version.receipt
    return {
        "id": receipt.id,
        "active": active is not None and receipt.id == active.receipt.id,
        "release": receipt.release,
        "version": receipt.version,
        "publisher": receipt.publisher,
        "channel": receipt.channel,
        "repository": receipt.repository,
        "variant": receipt.variant,
        "backend": receipt.backend,
        "installed_at": receipt.installed_at,
        "path": version.tree,
    }


def lines(versions: Sequence[Installed], active: Installed | None) -> tuple[str, ...]:
    """Every installed version for people; the active one has a star."""
    if not versions:
        return ("nothing is installed; run: tsuku-llm install",)
    return table([_row(version, active) for version in versions], indent=0)


def _row(version: Installed, active: Installed | None) -> tuple[str, ...]:
    receipt = version.receipt
    star = "*" if active is not None and receipt.id == active.receipt.id else " "
    release = named(receipt.release, receipt.version)
    return (star, release, receipt.variant, receipt.channel, receipt.installed_at)
