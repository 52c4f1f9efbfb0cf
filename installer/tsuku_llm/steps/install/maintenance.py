"""The care of installed versions: choose the active one, remove versions and leftovers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.config.paths import Paths
from tsuku_llm.ground.errors import InUse, UsageError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.instances.folder import Instances
from tsuku_llm.steps.choosing.revocation import require_usable
from tsuku_llm.steps.choosing.which import meets
from tsuku_llm.steps.drivers.caches import DroppedCaches, drop_caches
from tsuku_llm.steps.install.versions import all_ids, found, readable, resolve
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Pruned, Store


@dataclass(frozen=True, slots=True)
class Uninstalled:
    """The ids that were removed, the build that is active now, and foreign files left alone."""

    removed: tuple[str, ...]
    active: Installed | None
    foreign: tuple[Path, ...]


@documented("*pruned", "logs", "foreign", "caches")
@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a prune: what was removed and what was left.

    ``logs`` are the names of servers whose logs were removed. ``foreign`` are files that this
    program did not make.
    ``caches`` says what became of the drivers' caches; None if they were to stay.
    """

    pruned: Pruned
    logs: tuple[str, ...]
    foreign: tuple[Path, ...]
    caches: DroppedCaches | None = None


def use(session: Session, name: str) -> Installed:
    """Make a version active; ``name`` is its id, release, version, variant or backend.

    Raises ``NotInstalled`` if ``name`` names no version, ``UsageError`` if it names several,
    ``TamperedInstall`` and ``CorruptStore`` for a damaged version, and ``Revoked``.
    """
    store = session.store
    installed = found(store, resolve(store, [name])[0])
    require_usable(session, installed.receipt)
    if store.is_active(installed.id):
        store.admit(installed)  # without a lock, so it works in another user's store
    else:
        store.sweep()
        store.use(installed)
    _tell_if_not_served(session.user.note, session.settings.backend, installed)
    return installed


def rollback(session: Session) -> Installed:
    """Go back to the version that was active before; a second call returns to this one.

    Raises ``NotInstalled`` if there is none, ``TamperedInstall`` if it is damaged, and ``Revoked``.
    """
    store = session.store
    store.sweep()
    # Refuse a revoked version before the pointer moves.
    if previous := store.previous():
        require_usable(session, previous.receipt)
    installed = store.rollback()
    _tell_if_not_served(session.user.note, session.settings.backend, installed)
    return installed


def _tell_if_not_served(note: Callable[[str], None], backend: str, installed: Installed) -> None:
    if not meets(installed.receipt, backend):
        note(
            f"llm.backend is {backend}, so serve does not start it; "
            f"to change that: {TSUKU} config unset llm.backend"
        )


def uninstall(
    store: Store, names: Sequence[str], *, everything: bool = False, dry_run: bool = False
) -> Uninstalled:
    """Remove the named versions, or all including damaged ones; the names are those of ``use``.

    A version that a running server uses stays: then ``InUse`` is raised after the others were
    removed. ``dry_run`` removes nothing and returns or raises the same. Raises ``UsageError``
    unless either ``names`` or ``everything`` is given, and the errors of ``use``.
    """
    if bool(names) == everything:
        raise UsageError(
            "--all and names of versions cannot be combined"
            if everything
            else "no version to remove is named",
            hint=f"name one that {TSUKU} list shows, or remove all: {TSUKU} uninstall --all",
        )
    if not dry_run:
        store.sweep()
    used: list[InUse] = []
    removed = []
    for version in all_ids(store) if everything else resolve(store, names):
        try:
            store.remove(version, dry_run=dry_run)
            removed.append(version)
        except InUse as error:
            used.append(error)
    if used:
        first, *others = used
        first.facts += tuple(line for other in others for line in (other.message, *other.facts))
        what = "would be removed" if dry_run else "removed"
        first.facts += tuple(f"{what}: {version}" for version in removed)
        raise first
    foreign = store.foreign() if everything else ()
    active = readable(store.active)
    return Uninstalled(tuple(removed), None if active and active.id in removed else active, foreign)


def prune(
    store: Store, paths: Paths, *, keep: int = 0, caches: bool = False, dry_run: bool = False
) -> Cleaned:
    """Remove all versions but the active one, the one before it, and ``keep`` more.

    The ``keep`` versions are those installed last. Versions that a running server uses stay. If
    nothing is active, every readable version stays. This also removes the logs of servers without a
    record: they were stopped, or did not start. With ``caches``, this also removes what GPU drivers
    have compiled, unless a server uses it. ``dry_run`` removes nothing and returns the same.
    """
    # First: they are this user's own, also if the store is another user's and cannot be changed.
    logs = Instances(paths.state).remove_logs(dry_run=dry_run)
    dropped = drop_caches(paths, dry_run=dry_run) if caches else None
    if not dry_run:
        store.sweep()
    # The ``keep`` versions that were installed last. The active and the previous one stay anyway.
    pointed = [version.id for look in (store.active, store.previous) if (version := readable(look))]
    others = [version for version in store.installed() if version.id not in pointed]
    others.sort(key=lambda version: (version.receipt.installed_at, version.receipt.sequence))
    youngest = [version.id for version in others[len(others) - min(keep, len(others)) :]]
    return Cleaned(store.prune(youngest, dry_run=dry_run), logs, store.foreign(), dropped)
