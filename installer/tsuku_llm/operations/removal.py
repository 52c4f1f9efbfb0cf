"""The removal of versions, of leftovers, and of the files of tsuku's earlier addon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.errors import InUse, UsageError
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.versions import all_ids, readable, resolve
from tsuku_llm.store import Installed, LegacyAddon, Pruned, Store, find_legacy


@dataclass(frozen=True, slots=True)
class Uninstalled:
    """The ids that were removed, the version that is active now, and foreign files left alone."""

    removed: tuple[str, ...]
    active: Installed | None
    foreign: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a prune: what was removed and what was left.

    ``legacy`` are known files of the earlier addon that are still there; ``foreign`` are files that
    this program did not make.
    """

    pruned: Pruned
    legacy: tuple[LegacyAddon, ...]
    foreign: tuple[Path, ...]


def uninstall(session: Session, words: Sequence[str], *, everything: bool = False) -> Uninstalled:
    """Remove the named versions, or all including damaged ones; the names are those of ``use``.

    A version that a running server uses stays: then ``InUse`` is raised after the others were
    removed. Raises ``UsageError`` unless either ``words`` or ``everything`` is given, and the
    errors of ``use``.
    """
    if bool(words) == everything:
        raise UsageError(
            "name the versions to remove, or --all, not both",
            hint="see what is installed: tsuku-llm list",
        )
    store = session.store
    store.sweep()
    removed = _remove(store, all_ids(store) if everything else resolve(store, words))
    return Uninstalled(removed, readable(store.active), store.foreign() if everything else ())


def _remove(store: Store, ids: Sequence[str]) -> tuple[str, ...]:
    # Go on after a version in use: the others must be removed before the error is raised.
    used = {version: error for version in ids if (error := _still_used(store, version))}
    removed = tuple(version for version in ids if version not in used)
    if not used:
        return removed
    first, *others = used.values()
    first.facts += tuple(line for other in others for line in (other.message, *other.facts))
    first.facts += tuple(f"removed: {version}" for version in removed)
    raise first


def _still_used(store: Store, version: str) -> InUse | None:
    """Remove a version; return the error if a running server uses it."""
    try:
        store.remove(version)
    except InUse as error:
        return error
    return None


def prune(session: Session, *, keep: int = 0, legacy: bool = False) -> Cleaned:
    """Remove all versions but the active one, the one before it, and ``keep`` more.

    The ``keep`` versions are those installed last. What a running server uses stays. If nothing is
    active, every readable version stays. With ``legacy``, this also removes what tsuku's earlier
    addon left below ``TSUKU_HOME``; otherwise it only names that.
    """
    store = session.store
    store.sweep()
    home = session.paths.home
    pruned = store.prune(_youngest(store, keep), legacy_home=home if legacy else None)
    return Cleaned(pruned, find_legacy(home) if home else (), store.foreign())


def _youngest(store: Store, count: int) -> list[str]:
    """Return the ids of the versions installed last, except the active and the previous one."""
    pointed = [version.id for look in (store.active, store.previous) if (version := readable(look))]
    others = [version for version in store.installed() if version.id not in pointed]
    others.sort(key=lambda version: (version.receipt.installed_at, version.receipt.sequence))
    return [version.id for version in others[len(others) - min(count, len(others)) :]]
