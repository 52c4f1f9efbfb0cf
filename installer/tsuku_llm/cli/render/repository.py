"""Signed repositories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.cli.terminal.text import table
from tsuku_llm.ground.safe_text import redacted
from tsuku_llm.steps.metadata.repository import RepositoryState, RootOfTrust

if TYPE_CHECKING:
    from tsuku_llm.cli.documents import repositories as documents

_SHOWN = 16
"""Digits of a key's id that are shown to people."""


def added_data(repository: Repository, root: RootOfTrust) -> documents.RepositoryAddAnswer:
    """Return an added repository for programs, with its root of trust."""
    roles: dict[str, documents.RootRole] = {
        name: {"threshold": threshold, "keys": list(keys)}
        for name, (threshold, keys) in root.roles.items()
    }
    return {
        "name": repository.name,
        # A URL may hold a user and a password: never print them.
        "url": redacted(repository.url),
        "others": [redacted(place) for place in repository.others],
        "fingerprint": root.fingerprint,
        "root": {"number": root.version, "roles": roles},
    }


def added_lines(repository: Repository, root: RootOfTrust, *, compared: bool) -> tuple[str, ...]:
    """Return an added repository for people: what its owner can compare, unless it was."""
    rows = [
        (name, f"{threshold} of {len(keys)} keys", ", ".join(key[:_SHOWN] for key in keys))
        for name, (threshold, keys) in root.roles.items()
    ]
    return (
        f"Added the repository {repository.name}.",
        f"  its address is {_places(repository)}",
        f"  its root {root.version} has the fingerprint (SHA-256) {root.fingerprint}",
        *table(rows),
        "it is the fingerprint that you gave"
        if compared
        else "compare the fingerprint with the one that the owner gives you separately",
    )


def _places(repository: Repository) -> str:
    return ", ".join(map(redacted, repository.places))


def list_data(repositories: Sequence[RepositoryState]) -> documents.RepositoryListAnswer:
    """Return all repositories for programs, with the dates of the metadata that counts here."""
    return {"repositories": [_state(each) for each in repositories]}


def _state(state: RepositoryState) -> documents.RepositoryDocument:
    freshness = state.freshness
    return {
        "name": state.repository.name,
        "url": redacted(state.repository.url),
        "others": [redacted(place) for place in state.repository.others],
        "fingerprint": state.fingerprint,
        "source": state.source,
        "signed": _time(freshness.signed if freshness else None),
        "expires": _time(freshness.expires if freshness else None),
        "state": state.state,
    }


def _time(time: datetime | None) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") if time else None


def lines(repositories: Sequence[RepositoryState]) -> tuple[str, ...]:
    """Return all repositories for people."""
    rows = [
        (
            one.repository.name,
            _places(one.repository),
            one.state,
            f"root sha256 {one.fingerprint}",
        )
        for one in repositories
    ]
    return table(rows, indent=0)
