"""Signed repositories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tsuku_llm.catalog import Repository
from tsuku_llm.cli.render.text import table
from tsuku_llm.config import redacted
from tsuku_llm.operations.repository import Known


def data(repository: Repository) -> dict[str, Any]:
    """One repository for programs."""
    return {"name": repository.name, "url": redacted(repository.url)}


def list_data(repositories: Sequence[Known]) -> dict[str, Any]:
    """All repositories for programs, with the dates of the metadata that counts here."""
    return {"repositories": [_known(each) for each in repositories]}


def _known(known: Known) -> dict[str, Any]:
    freshness = known.freshness
    return {
        **data(known.repository),
        "source": known.source,
        "signed": _time(freshness.signed if freshness else None),
        "expires": _time(freshness.expires if freshness else None),
        "state": known.state,
    }


def _time(time: datetime | None) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") if time else None


def lines(repositories: Sequence[Known]) -> tuple[str, ...]:
    """All repositories for people."""
    rows = [(one.repository.name, redacted(one.repository.url), one.state) for one in repositories]
    return table(rows, indent=0)
