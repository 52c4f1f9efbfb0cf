"""The variant to start: the requested one, or the next one if a backend fails.

It is installed if necessary, and if the user agrees. The active version stays active. Its failure
is remembered together with the drivers that it failed on, once another version has served instead.
So it is tried again as soon as the drivers or the release change, or if the note is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import BackendFailed, Declined, GateFailed, NotInstalled, TsukuError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.launch.plan.fingerprint import driver_fingerprint
from tsuku_llm.launch.plan.report import FallenBack
from tsuku_llm.steps.choosing.which import installed_variant, meets, requested_version
from tsuku_llm.steps.drivers.state_notes import FailureNote, StateNotes
from tsuku_llm.steps.session import Session, way_to_undo
from tsuku_llm.store.records.installed import Installed

if TYPE_CHECKING:  # types that a start that succeeds does without
    from datetime import datetime

    from tsuku_llm.steps.choosing.choice import Choice

LARGE = 100_000_000
"""Bytes of a download that a start never makes without asking, also with ``auto``.

Builds for the CPU and for Vulkan are smaller; those with a GPU vendor's runtime are larger. At 10
Mbit/s it takes 80 seconds: a start that takes much longer looks like one that hangs.
"""


def wanted_version(session: Session) -> Installed:
    """Return the version to start: the active one, or one that has the requested backend.

    If no installed version has that backend, offer to install it; the active version stays active.
    If nothing is installed at all, offer what ``install`` would choose.
    Raises ``NotInstalled`` if the user cannot be asked, says no, or if no variant with this backend
    fits the machine, and ``UnknownRequest`` if there is no such backend. After a yes, raises
    ``GateFailed``, ``Revoked``, and the errors of ``fetch``, ``archive`` and ``store``.
    """
    try:
        return requested_version(session)
    except NotInstalled as error:
        missing = error
    if session.settings.backend == "auto":
        return _first_build(session, missing)
    # Only a start that lacks its build needs these: they load the manifest and ask the drivers.
    from tsuku_llm.steps.choosing.choice import choose_like, what_helps
    from tsuku_llm.steps.install.downloads import cost, left_to_download
    from tsuku_llm.steps.install.install import install, install_beside

    active = session.reader.active()
    choice = choose_like(session, active)
    if not choice.selection.compatible:
        hint = what_helps(session, choice, active.receipt.variant if active else "")
        if active:
            undo = way_to_undo(
                session.settings, session.machine.environ, "llm.backend", "set llm.backend auto"
            )
            use = undo or "leave out --backend"
            kept = f"use {active.receipt.variant}, which is installed: {use}"
            hint = f"{hint}; or {kept}" if hint else kept
        raise NotInstalled(missing.message, facts=_why_none(choice), hint=hint) from missing
    first: GateFailed | None = None
    for candidate in choice.selection.compatible:
        name, size = candidate.variant.name, left_to_download(session, choice, candidate)
        if not must_ask(session.settings.fallback, size):
            session.user.note(f"{missing.message}; installing {name} ({cost(size)})")
        elif session.user.ask(f"{missing.message}. Install {name} ({cost(size)})?"):
            session = session._replace(agreed=True)
        else:
            raise first or _without_yes(missing, can_ask=session.user.can_ask)
        if active is None:
            # The first install asks for newer metadata, and what it installs becomes active.
            return cast("Installed", install(session).installed)
        try:
            return install_beside(session, choice, candidate)
        except GateFailed as error:  # it does not run here: offer the one after it
            session.user.note(f"{name}: {error.message}")
            # The first failure is about the best variant: its hint helps most.
            first = first or error
    raise first or missing


def _first_build(session: Session, missing: NotInstalled) -> Installed:
    """Offer the build that fits; a later question has its size, or that a third party built it."""
    if not session.user.ask(f"{missing.message}. Install the build that fits this machine?"):
        raise _without_yes(missing, can_ask=session.user.can_ask)
    from tsuku_llm.steps.install.install import install

    return cast("Installed", install(session).installed)


def _without_yes(missing: NotInstalled, *, can_ask: bool) -> TsukuError:
    """Return how a start ends whose build was not allowed: a no of the user is no error."""
    if can_ask:
        return Declined(f"nothing was changed or started: {missing.message}")
    return missing


def _why_none(choice: Choice) -> tuple[str, ...]:
    """Return why an install could not meet the request either."""
    reasons = (each for each in choice.selection.rejected if each.reason.slug != "not-requested")
    platform = choice.hardware.platform
    nothing = (
        f"{choice.release.release} has no build for {choice.selection.requested} on {platform}"
    )
    return tuple(f"{each.variant.name}: {each.reason.text}" for each in reasons) or (nothing,)


class FailedStarts(NamedTuple):
    """The variants of one start that failed, in order, and why.

    ``failed`` says it for people. ``errors`` are those of this run; a failure that is only
    remembered has none.
    """

    failed: tuple[FallenBack, ...] = ()
    errors: tuple[TsukuError, ...] = ()

    def longer(self, installed: Installed, error: TsukuError) -> FailedStarts:
        """Return these failures with one more at the end."""
        failure = FallenBack(installed.receipt.variant, error.message)
        return FailedStarts((*self.failed, failure), (*self.errors, error))

    @property
    def lasts(self) -> bool:
        """True if each of these failures will happen again on these drivers.

        A GPU that is missing, or without free memory, may be there at the next start (SilentCpu).
        To look for it costs a second and no failed start.
        """
        return bool(self.errors) and all(isinstance(each, BackendFailed) for each in self.errors)


def remembered(
    session: Session, notes: StateNotes, preferred: Installed, *, gpu_only: bool
) -> tuple[Installed, FailedStarts]:
    """Return what to start first: ``preferred``, or what replaced it if it failed on these drivers.

    If another version is returned, the failures say which one it replaces, and why. With ``ask``
    the user is asked at each start, and may have ``preferred`` tried again.
    """
    failure = notes.failure(preferred.id)
    if failure is None or session.settings.fallback == "off":
        return preferred, FailedStarts()
    with suppress(TsukuError):
        # The version that ran instead may have been removed meanwhile.
        instead = session.reader.find(failure.instead)
        # The user may ask for this backend by name now, or for a GPU.
        wanted = "gpu" if gpu_only else "auto"
        if instead and all(
            meets(instead.receipt, each) for each in (wanted, session.settings.backend)
        ):
            name, other = preferred.receipt.variant, instead.receipt.variant
            said = f"{name} failed on these drivers: {failure.reason}"
            if session.settings.fallback == "auto":
                session.user.note(
                    f"{said}; using {other} until they or the release change, or until: "
                    f"{TSUKU} fallback --forget"
                )
            elif not session.user.ask(f"{said}. Start {other} instead?"):
                return preferred, FailedStarts()
            return instead, FailedStarts((FallenBack(name, failure.reason),))
    return preferred, FailedStarts()


def note_served(
    notes: StateNotes,
    now: datetime,
    preferred: Installed,
    served: Installed,
    failures: FailedStarts,
) -> None:
    """Remember that ``served`` serves instead of ``preferred``, or that ``preferred`` serves again.

    Only failures of backends are noted. Any other variant would fail as well for a reason of the
    model, the arguments or the system.
    """
    if served.id == preferred.id:
        notes.forget_failure(preferred.id)
    elif failures.lasts:
        reasons = {each.variant: each.reason for each in failures.failed}
        reason = reasons[preferred.receipt.variant]
        notes.keep_failure(FailureNote(preferred.id, reason, served.id, clock.stamp(now)))


def next_version(
    session: Session,
    preferred: Installed,
    failures: FailedStarts,
    *,
    gpu_only: bool,
    installs: bool = True,
) -> Installed | None:
    """Return the version of the next variant, with the user's consent, or None.

    ``preferred`` is the version that should have run. If the next variant cannot be installed (no
    network, no space), print a note and return None: the caller reports the first failure. A dry
    run ``installs`` nothing: None as well if the next variant is not installed.
    """
    setting, note = session.settings.fallback, session.user.note
    if setting == "off":
        return None
    # Only a start that fails needs these: they load the manifest.
    from tsuku_llm.choose.selection import next_after
    from tsuku_llm.steps.choosing.choice import choose_like
    from tsuku_llm.steps.install.downloads import cost, left_to_download

    last = failures.failed[-1]
    failed = f"{last.variant} failed: {last.reason}"
    tried = [each.variant for each in failures.failed]
    try:
        choice = choose_like(session, preferred)
        for candidate in next_after(choice.selection, tried, gpu_only=gpu_only):
            name = candidate.variant.name
            found = installed_variant(session.reader, name, preferred.receipt.release)
            size = 0 if found else left_to_download(session, choice, candidate)
            price = f" ({cost(size)})" if size != 0 else ""
            if not must_ask(setting, size):
                note(f"{failed}; continuing with {name}{price}")
            elif session.user.ask(f"{failed}. Continue with {name}{price}?"):
                session = session._replace(agreed=True)
            elif setting != "auto":
                # The user said no: do not ask for each further variant.
                return None
            else:
                note(
                    f"{name}{price} is left out: more than {LARGE / 1e6:.0f} MB, or an unknown "
                    "size, needs a yes on a terminal"
                )
                continue
            if found:
                return found
            if not installs:
                note(f"{name} would be installed first: what follows is not known")
                return None
            from tsuku_llm.steps.install.install import install_beside

            with suppress(GateFailed):  # this one does not run here either: try the one after it
                return install_beside(session, choice, candidate)
    except TsukuError as error:
        note(f"no other variant can be installed: {error.message}")
    return None


def must_ask(setting: str, download: int | None) -> bool:
    """Return whether the user must agree to a variant, by ``llm.fallback`` and its download.

    ``download`` is in bytes: 0 if it is installed, None if its size is not known.
    """
    return setting != "auto" or download is None or download > LARGE


# --- what is noted ---------------------------------------------------------------------------


class NotedFailures(NamedTuple):
    """The failures of backends that are noted, or were until they were ``forgotten`` now.

    ``current`` tells whether they count now: they count with the drivers and the variables of the
    environment with which they were noted.
    """

    failures: tuple[FailureNote, ...]
    current: bool
    forgotten: bool = False


def noted_failures(state: Path, environ: Mapping[str, str]) -> NotedFailures:
    """Return every failure that is noted; the drivers are not asked."""
    drivers = driver_fingerprint(environ)
    return NotedFailures(*StateNotes(state, drivers).all_failures())


def forget_failures(state: Path, environ: Mapping[str, str]) -> NotedFailures:
    """Remove every note, so that each variant is tried again; return what was noted."""
    noted = noted_failures(state, environ)
    StateNotes(state, None).forget_failures()
    return noted._replace(forgotten=True)
