"""The next variant to start if a backend fails; it is installed if necessary.

The active version stays active. Its failure is remembered together with the drivers that it failed
on. So it is tried again as soon as the drivers or the release change.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tsuku_llm.errors import GateFailed, TsukuError
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.state_notes import FailureNote, StateNotes
from tsuku_llm.operations.which import installed_variant
from tsuku_llm.store.installed import Installed

if TYPE_CHECKING:  # types that a start that succeeds does without
    from tsuku_llm.launch.report import FallenBack
    from tsuku_llm.selection import Candidate


def remembered(
    session: Session, notes: StateNotes, preferred: Installed, *, gpu_only: bool
) -> tuple[Installed, list[FallenBack]]:
    """Return what to start first: ``preferred``, or what replaced it if it failed on these drivers.

    If another version is returned, the list says which one it replaces, and why.
    """
    failure = notes.failure(preferred.id)
    if failure is None or session.settings.fallback == "off":
        return preferred, []
    with suppress(TsukuError):
        # The version that ran instead may have been removed meanwhile.
        instead = session.reader.find(failure.instead)
        if instead and not (gpu_only and instead.receipt.backend == "cpu"):
            from tsuku_llm.launch.report import FallenBack  # noqa: PLC0415 - only then

            failed = FallenBack(preferred.receipt.variant, failure.reason)
            session.user.note(
                f"{failed.variant} failed on these drivers: {failed.reason}; "
                f"using {instead.receipt.variant} until they or the release change"
            )
            return instead, [failed]
    return preferred, []


def next_version(
    session: Session,
    notes: StateNotes,
    preferred: Installed,
    failed: Sequence[FallenBack],
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
        return _next(session, notes, preferred, failed, gpu_only=gpu_only)
    except TsukuError as error:
        session.user.note(f"no other variant can be installed: {error.message}")
        return None


def _next(
    session: Session,
    notes: StateNotes,
    preferred: Installed,
    failed: Sequence[FallenBack],
    *,
    gpu_only: bool,
) -> Installed | None:
    # Only a start that fails needs these: they load the manifest.
    from tsuku_llm.operations.choice import choose_like  # noqa: PLC0415
    from tsuku_llm.selection import next_after  # noqa: PLC0415

    choice = choose_like(session, preferred)
    reasons = {each.variant: each.reason for each in failed}
    for candidate in next_after(choice.selection, list(reasons), gpu_only=gpu_only):
        found = installed_variant(session.reader, candidate.variant.name, preferred.receipt.release)
        # The user said no: do not ask for each further variant.
        if not _agreed(session, failed[-1], candidate, found):
            return None
        with suppress(GateFailed):  # this one does not run here either: try the one after it
            if found is None:
                from tsuku_llm.operations.install import install_beside  # noqa: PLC0415 - network

                found = install_beside(session, choice, candidate)
            notes.keep_failure(
                FailureNote(preferred.id, reasons[preferred.receipt.variant], found.id)
            )
            return found
    return None


def _agreed(
    session: Session, last: FallenBack, candidate: Candidate, found: Installed | None
) -> bool:
    """Return whether to go on with the candidate: the settings decide, or the user."""
    name, size = candidate.variant.name, candidate.variant.download_size
    cost = "" if found else f" (a download of {size / 1e6:,.0f} MB)" if size else " (a download)"
    if session.settings.fallback == "auto":
        session.user.note(f"{last.variant} failed: {last.reason}; continuing with {name}{cost}")
        return True
    return session.user.ask(f"{last.variant} failed: {last.reason}. Continue with {name}{cost}?")
