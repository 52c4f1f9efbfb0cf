"""Signed repositories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsuku_llm.catalog import Repository
from tsuku_llm.cli.render.text import table
from tsuku_llm.config import redacted


def data(repository: Repository) -> dict[str, Any]:
    """One repository for programs."""
    return {"name": repository.name, "url": redacted(repository.url)}


def list_data(repositories: Sequence[Repository]) -> dict[str, Any]:
    """All repositories for programs."""
    return {"repositories": [data(repository) for repository in repositories]}


def lines(repositories: Sequence[Repository]) -> tuple[str, ...]:
    """All repositories for people."""
    return table([(one.name, redacted(one.url)) for one in repositories], indent=0)
