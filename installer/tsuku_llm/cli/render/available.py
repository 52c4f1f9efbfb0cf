"""The releases of a signed manifest."""

from __future__ import annotations

from typing import Any

from tsuku_llm.catalog import Catalog
from tsuku_llm.cli.render.text import origin, table


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
                "unattested": catalog.unattested(entry),
                "revoked": catalog.is_revoked(entry),
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
            origin(entry.publisher, catalog.repository.name),
            "unattested" if catalog.unattested(entry) else "",
            "revoked" if catalog.is_revoked(entry) else "",
        )
        for entry in catalog.entries
    ]
    return table(rows, indent=0)
