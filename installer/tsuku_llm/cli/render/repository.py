"""Signed repositories."""

from __future__ import annotations

from collections.abc import Sequence

from tsuku_llm.cli.terminal.text import table
from tsuku_llm.steps.metadata.repository import AddedRepository, RepositoryState

_SHOWN = 16
"""Digits of a key's id that are shown to people."""


def added_lines(found: AddedRepository, *, compared: bool) -> tuple[str, ...]:
    """Return an added repository for people: what its owner can compare, unless it was."""
    rows = [
        (
            name,
            f"{role.threshold} of {len(role.keys)} keys",
            ", ".join(key[:_SHOWN] for key in role.keys),
        )
        for name, role in found.roles.items()
    ]
    added = found.added
    return (
        f"Added the repository {added.name}.",
        f"  its address is {_places(added)}",
        f"  its root {found.number} has the fingerprint (SHA-256) {added.fingerprint}",
        *table(rows),
        "it is the fingerprint that you gave"
        if compared
        else "compare the fingerprint with the one that the owner gives you separately",
    )


def _places(state: RepositoryState) -> str:
    return ", ".join((state.url, *state.others))


def lines(repositories: Sequence[RepositoryState]) -> tuple[str, ...]:
    """Return all repositories for people."""
    rows = [
        (one.name, _places(one), one.state, f"root sha256 {one.fingerprint}")
        for one in repositories
    ]
    return table(rows, indent=0)
