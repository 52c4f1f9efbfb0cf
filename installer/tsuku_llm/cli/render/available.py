"""The releases of a signed manifest."""

from __future__ import annotations

from typing import Any

from tsuku_llm.catalog import Catalog
from tsuku_llm.cli.render.text import table
from tsuku_llm.manifest import ReleaseEntry


def data(catalog: Catalog) -> dict[str, Any]:
    """Every release and its channels, for programs; newest first."""
    return {
        "repository": catalog.repository.name,
        "releases": [
            {
                "release": entry.release,
                "version": entry.version,
                "channels": list(entry.channels),
                "published": entry.published,
                "publisher": entry.publisher,
                "revoked": catalog.is_revoked(entry),
                "readable": catalog.is_readable(entry),
            }
            for entry in catalog.entries
        ],
    }


def lines(catalog: Catalog) -> tuple[str, ...]:
    """Every release and its channels, for people."""
    rows = [
        (
            ", ".join(entry.channels),
            entry.release,
            entry.version or "",
            entry.published,
            entry.publisher,
            _state(catalog, entry),
        )
        for entry in catalog.entries
    ]
    return table(rows, indent=0)


def _state(catalog: Catalog, entry: ReleaseEntry) -> str:
    revoked = "revoked" if catalog.is_revoked(entry) else ""
    unreadable = "" if catalog.is_readable(entry) else "cannot be read"
    return ", ".join(filter(None, (revoked, unreadable)))
