"""The next variant to start if a backend fails; it is installed if necessary.

The active version stays active. Its failure is remembered together with the drivers that it failed
on. So it is tried again as soon as the drivers or the release change.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tsuku_llm import launch
from tsuku_llm.errors import GateFailed, StoreError, TrustError, TsukuError, UnknownRequest
from tsuku_llm.operations.memory import Failure, Memory
from tsuku_llm.operations.session import Session
from tsuku_llm.store import Installed, Shelf

if TYPE_CHECKING:  # the manifest's types, which a start that succeeds does without
    from tsuku_llm.catalog import Catalog
    from tsuku_llm.operations.choice import Choice
    from tsuku_llm.selection import Candidate


def remembered(
    session: Session, memory: Memory, preferred: Installed, *, gpu_only: bool
) -> tuple[Installed, list[launch.FallenBack]]:
    """Return what to start first: ``preferred``, or what replaced it if it failed on these drivers.

    If another version is returned, the list says which one it replaces, and why.
    """
    failure = memory.failure(preferred.id)
    if failure is None or session.settings.fallback == "off":
        return preferred, []
    with suppress(TsukuError):
        # The version that ran instead may have been removed meanwhile.
        instead = session.shelf.find(failure.instead)
        if instead and not (gpu_only and instead.receipt.backend == "cpu"):
            failed = launch.FallenBack(preferred.receipt.variant, failure.reason)
            session.user.note(
                f"{failed.variant} failed on these drivers: {failed.reason}; "
                f"using {instead.receipt.variant} until they or the release change"
            )
            return instead, [failed]
    return preferred, []


def next_version(
    session: Session,
    memory: Memory,
    preferred: Installed,
    failed: Sequence[launch.FallenBack],
    *,
    gpu_only: bool,
) -> Installed | None:
    """Return the version of the next variant, with the user's consent, or None.

    ``preferred`` is the version that should have run; ``failed`` is what was tried, in order. If
    the next variant cannot be installed (no network, no space), print a note and return None: the
    caller reports the first failure.
    """
    if session.settings.fallback == "off":
        return None
    try:
        return _next(session, memory, preferred, failed, gpu_only=gpu_only)
    except TsukuError as error:
        session.user.note(f"no other variant can be had: {error.message}")
        return None


def _next(
    session: Session,
    memory: Memory,
    preferred: Installed,
    failed: Sequence[launch.FallenBack],
    *,
    gpu_only: bool,
) -> Installed | None:
    from tsuku_llm.selection import next_after  # noqa: PLC0415 - loads the manifest

    choice = choice_beside(session, preferred)
    reasons = {each.variant: each.reason for each in failed}
    for candidate in next_after(choice.selection, list(reasons), gpu_only=gpu_only):
        found = installed_variant(session.shelf, candidate.variant.name, preferred.receipt.release)
        # The user said no: do not ask for each further variant.
        if not _agreed(session, failed[-1], candidate, found):
            return None
        with suppress(GateFailed):  # this one does not run here either: try the one after it
            found = found or _install(session, choice, candidate)
            memory.keep_failure(Failure(preferred.id, reasons[preferred.receipt.variant], found.id))
            return found
    return None


def choice_beside(
    session: Session, preferred: Installed | None, catalog: Catalog | None = None
) -> Choice:
    """Compare the variants of the installed release, or of the newest if that one is gone."""
    from tsuku_llm.operations.choice import choose  # noqa: PLC0415

    if preferred is None:
        return choose(session, catalog=catalog)
    # The settings may name another channel by now; the release belongs to this one.
    session = session.with_settings(channel=preferred.receipt.channel)
    try:
        return choose(session, release=preferred.receipt.release, catalog=catalog)
    except (UnknownRequest, TrustError, StoreError):  # the release was dropped or is unreadable
        return choose(session, catalog=catalog)


def installed_variant(shelf: Shelf, variant: str, release: str) -> Installed | None:
    """Return the newest installed version of a variant; a version of ``release`` comes first."""
    found = [each for each in shelf.installed() if each.receipt.variant == variant]

    def order(each: Installed) -> tuple[bool, int]:
        return each.receipt.release == release, each.receipt.sequence

    return max(found, key=order, default=None)


def _agreed(
    session: Session, last: launch.FallenBack, candidate: Candidate, found: Installed | None
) -> bool:
    """Return whether to go on with the candidate: the settings decide, or the user."""
    name, size = candidate.variant.name, candidate.variant.download_size
    cost = "" if found else f" (a download of {size / 1e6:,.0f} MB)" if size else " (a download)"
    if session.settings.fallback == "auto":
        session.user.note(f"{last.variant} failed: {last.reason}; going on with {name}{cost}")
        return True
    return session.user.ask(f"{last.variant} failed: {last.reason}. Go on with {name}{cost}?")


def _install(session: Session, choice: Choice, candidate: Candidate) -> Installed:
    from tsuku_llm.operations.install import install_beside  # noqa: PLC0415

    return install_beside(session, choice, candidate)
