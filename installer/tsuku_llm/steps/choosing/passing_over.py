"""The reasons to pass over a release, or one variant of it, on this machine.

``why_passed_over`` alone decides about releases: installs, updates, lists of releases and programs
that read JSON have the same reasons. A new one is a fact in ``Bounds`` or ``Offered``, and a step
there. Whether a variant runs on the machine says ``why_not`` of ``choose.fitting``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.catalog.embedded import REPOSITORY as OFFICIAL
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.store.records.receipt import reinstall_command
from tsuku_llm.store.records.updates import RolledBack, read_marks

if TYPE_CHECKING:  # a start does without
    from tsuku_llm.catalog.revocations import Revocation
    from tsuku_llm.choose.fitting import Reason
    from tsuku_llm.machine.hardware import Problem

RELEASE, MIN_AGE = "llm.release", "llm.min_age"

REVOKED, PINNED, YOUNG = "revoked", "pinned", "young"
ROLLED_BACK, NOT_IN_BUNDLE = "rolled-back", "not-in-bundle"
FAILED_START, WITHHELD = "failed-start", "withheld"


class PassedOver(NamedTuple):
    """Why a release, or one variant of it, is not taken.

    ``variant`` is None for a whole release. ``slug`` is for programs: ``revoked``, ``pinned``,
    ``young``, ``rolled-back``, ``not-in-bundle``, ``failed-start``, ``withheld`` (a
    problem that will pass), ``also-fits``, or the requirement that the machine lacks. ``ends`` is
    what would end it: a command, or what to do about the machine. None if nothing here can.
    """

    release: str
    variant: str | None
    slug: str
    text: str
    ends: str | None = None

    @property
    def told(self) -> str:
        """The reason and what ends it, in one line."""
        return f"{self.text}; to take it: {self.ends}" if self.ends else self.text


class Kept(NamedTuple):
    """The release that ``llm.release`` names; ``undo`` is the command that ends the setting."""

    release: str
    undo: str | None = None


class Offered(NamedTuple):
    """A release, and what is known of it; ``id`` is the version of a variant that is meant.

    ``builds`` are the digests of each build that is meant; None if they are not known.
    """

    release: str
    published: str = ""
    revocation: Revocation | None = None
    builds: tuple[tuple[str, ...], ...] | None = None
    id: str = ""


class Bounds(NamedTuple):
    """What bounds the choice on this machine, for the releases of one repository.

    ``here`` is the installed release: neither its age nor a mark of a failure (``marks``) is in its
    way, because that would mean a downgrade. ``held`` are the digests of the archives that can be
    had, None if any can.
    """

    repository: str
    now: datetime | None = None
    min_age: int = 0
    allow_revoked: bool = False
    here: str | None = None
    kept: Kept | None = None
    marks: tuple[RolledBack, ...] = ()
    held: frozenset[str] | None = None


def why_passed_over(offered: Offered, bounds: Bounds) -> tuple[PassedOver, ...]:
    """Return every reason to pass over a release, the most important first. Pure."""
    found: list[tuple[str, str, str | None]] = []
    release, why, kept, held = offered.release, offered.revocation, bounds.kept, bounds.held
    if why and not bounds.allow_revoked:
        # If it is another repository that says so, this machine's user may not trust that one.
        remove = f"{TSUKU} repository remove {why.repository}"
        found.append((REVOKED, why.summary, remove if why.foreign else None))
    if kept and kept.release != release:
        found.append((PINNED, f"{RELEASE} keeps {kept.release}", kept.undo))
    young = bounds.now is not None and age(offered.published, bounds.now) < bounds.min_age
    # A date in the future makes a release young, too: that counts only with the setting.
    if bounds.min_age and young and release != bounds.here:
        text = f"published {offered.published}, and {MIN_AGE} is {bounds.min_age}"
        found.append((YOUNG, text, take(release, bounds.repository)))
    for mark in bounds.marks:
        # Another variant of the installed release may have failed here.
        named = (mark.repository, mark.release) == (bounds.repository, release)
        if (offered.id and mark.id == offered.id) or (named and release != bounds.here):
            text = f"rolled back here ({mark.told})"
            found.append((ROLLED_BACK, text, f"{TSUKU} update --retry"))
            break
    builds = offered.builds
    if held is not None and builds is not None and not any(map(held.issuperset, builds)):
        make = f"{TSUKU} bundle create FILE --hardware MACHINE.json"
        found.append((NOT_IN_BUNDLE, "the bundle does not have it", make))
    return tuple(PassedOver(release, None, *each) for each in found)


def noted_marks(data: Path, note: Callable[[str], None]) -> tuple[RolledBack, ...]:
    """Return the releases that failed here; print a warning if their file cannot be read."""
    try:
        return read_marks(data)
    except StoreError as error:
        note(f"warning: {error.message}; {error.hint}")
        return ()


def take(release: str, repository: str) -> str:
    """Return the command that takes a release by its name, whatever passes it over."""
    flag = "" if repository == OFFICIAL else f" --repository {repository}"
    return f"{TSUKU} install --release {release}{flag}"


def texts(reasons: Iterable[PassedOver]) -> dict[str, str]:
    """Return why each variant was not taken, in words, as a receipt keeps it."""
    return {each.variant: each.text for each in reasons if each.variant}


def age(published: str, now: datetime) -> int:
    """Return the days since a release was published, by the publisher's date; both in UTC.

    Less than 0 for a date that does not exist: a release whose age is not known counts as new.
    """
    try:
        return (now.date() - date.fromisoformat(published)).days
    except ValueError:
        return -1


def why_not_started(release: str, variant: str, reason: str, repository: str) -> PassedOver:
    """Return that a variant which fits did not start here, for this reason."""
    again = reinstall_command(release, variant, repository)
    return PassedOver(release, variant, FAILED_START, reason, again)


def why_unfit(
    release: str, variant: str, reason: Reason, problems: Iterable[Problem]
) -> PassedOver:
    """Return why a variant does not run here; one of the machine's problems may pass."""
    for problem in problems:
        if problem.transient and problem.text in reason.text:
            return PassedOver(release, variant, WITHHELD, reason.text, problem.fix)
    return PassedOver(release, variant, reason.slug, reason.text)
