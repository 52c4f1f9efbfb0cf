"""The releases of a signed manifest."""

from __future__ import annotations

from typing import Any

from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.cli.render.revoked import revocation_data
from tsuku_llm.cli.render.text import origin, table
from tsuku_llm.manifest import ReleaseEntry
from tsuku_llm.revocations import Revocation


def data(catalog: Catalog) -> dict[str, Any]:
    """Return every release and its channels for programs, newest first."""
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
                "revoked": why is not None,
                "revocation": why and revocation_data(why),
                "readable": catalog.is_readable(entry),
            }
            for entry, why in _judged(catalog)
        ],
    }


def _judged(catalog: Catalog) -> list[tuple[ReleaseEntry, Revocation | None]]:
    # The newest first, as the catalog sorts them.
    return [(entry, catalog.revocation(entry)) for entry in catalog.entries]


def lines(catalog: Catalog) -> tuple[str, ...]:
    """Return every release and its channels for people."""
    rows = [
        (
            ", ".join(entry.channels),
            entry.release,
            entry.version or "",
            entry.published,
            origin(entry.publisher, catalog.repository.name),
            "unattested" if catalog.unattested(entry) else "",
            why.summary if why else "",
            "" if catalog.is_readable(entry) else "cannot be read",
        )
        for entry, why in _judged(catalog)
    ]
    return table(rows, indent=0)
