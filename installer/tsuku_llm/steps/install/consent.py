"""The user's consent to a download: what counts, the question, and the limit."""

from __future__ import annotations

from contextlib import suppress

from tsuku_llm import fetch
from tsuku_llm.choose.selection import Candidate
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import Declined, StoreError, TooLarge, TrustError, UsageError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.backends import build_name
from tsuku_llm.steps.choosing.choice import Choice, version_of
from tsuku_llm.steps.install.reuse import Space, space_of, to_download
from tsuku_llm.steps.session import Session

_WHOLE = 10_000_000
"""Bytes from which a size is told in whole megabytes."""


def left_to_download(session: Session, choice: Choice, candidate: Candidate) -> int | None:
    """Return the bytes that an install would download; None if the manifest does not say.

    What other versions have undamaged, or an earlier run left, is not counted.
    """
    return _space(session, choice, candidate, repair=False).left


def _space(session: Session, choice: Choice, candidate: Candidate, *, repair: bool) -> Space:
    reader = session.reader
    # Of a version that is installed nothing is downloaded, whatever its receipt tells of archives.
    with suppress(StoreError, TrustError):
        there = reader.find(version_of(choice.release.release, candidate.variant))
        if there and not repair:
            reader.check(there)
            return space_of((), ())
    missing = to_download(session.store, candidate.variant, receipts=not repair)
    # Not ``store.partials``, which makes the folder: a question writes nothing.
    partials = session.paths.data / "partials"
    return space_of(missing, [fetch.present(each, partials) for each in missing])


def require_possible(
    session: Session, choice: Choice, candidate: Candidate, *, repair: bool
) -> int | None:
    """Refuse in a dry run what the install would refuse before its download.

    Returns what ``left_to_download`` does; ``repair`` is as for ``VersionBuilder``. Raises
    ``TooLarge``, ``NoSpace`` and ``StoreError``; a question is left to the install.
    """
    space = _space(session, choice, candidate, repair=repair)
    unasked = session._replace(agreed=True)
    require_consent(unasked, choice, candidate, space.left)
    require_space(session.paths.data, space.needed, space.facts)
    return space.left


def cost(size: int | None) -> str:
    """Say how large a download is."""
    return "a download of unknown size" if size is None else f"a download of {_megabytes(size)}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= _WHOLE else f"{size / 1e6:,.1f} MB"


def require_consent(
    session: Session, choice: Choice, candidate: Candidate, size: int | None
) -> None:
    """Let a download of this size go on: it is allowed, and the user agrees if it is large.

    Nobody is asked without a terminal. Raises ``TooLarge`` and ``Declined``.
    """
    what = build_name(candidate.variant.backend, choice.release.release)
    most, above = session.settings.max_download, session.settings.ask_above
    if most is not None and (size is None or size > most):
        raise TooLarge(
            f"{what} is {cost(size)}, and llm.max_download allows {_megabytes(most)}",
            hint=f"allow more: {TSUKU} config set llm.max_download SIZE; or choose a smaller "
            f"build: {TSUKU} explain",
        )
    if session.agreed or not session.user.can_ask or (size is not None and size <= above):
        return
    if not session.user.ask(f"{what[0].upper()}{what[1:]} is {cost(size)}. Download it?"):
        raise Declined("nothing was changed")


def require_yes(session: Session, question: str, unasked: UsageError) -> None:
    """Ask before what needs a yes of the user's; ``unasked`` is raised if nobody can be asked.

    Raises ``Declined`` after a no.
    """
    if session.agreed:
        return
    if not session.user.can_ask:
        raise unasked
    if not session.user.ask(question):
        raise Declined("nothing was changed")


def require_consent_to_index(session: Session, choice: Choice, reason: str) -> Session:
    """Ask before a build of the package index replaces upstream's; return the session after a yes.

    Nobody is asked without a terminal. Raises ``Declined``.
    """
    release = choice.release
    best = choice.selection.selected
    size = left_to_download(session, choice, best)
    if session.agreed or not session.user.can_ask:
        return session
    instead = build_name(best.variant.backend, release.release)
    if not session.user.ask(
        f"{reason}. Install {instead}, built by {release.publisher}, from the package index "
        f"instead ({cost(size)})?"
    ):
        raise Declined("nothing was changed")
    return session._replace(agreed=True)
