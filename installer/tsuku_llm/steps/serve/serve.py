"""The launch of the installed server: which version, and another start where one has failed.

The command ``serve`` imports only this module and what it imports.

A supervisor also exchanges the build of its running server. ``update --unattended`` makes another
version active and sends the supervisor a signal. Only the supervisor has the arguments, the
environment and the folder of the server, so it starts the same server again, with the version that
is active by then. No other message passes between the two: the record of the server tells how that
went, and the journal of the update which version is on trial.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tsuku_llm.ground.errors import (
    BackendFailed,
    GpuLost,
    LaunchError,
    NotInstalled,
    NotOnGpu,
    SilentCpu,
    StoreError,
    TsukuError,
)
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
from tsuku_llm.launch.plan.report import FallenBack
from tsuku_llm.steps.choosing.temporary import rests_on_others, withheld
from tsuku_llm.steps.choosing.which import requested_version
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.steps.serve.fallback import (
    FailedStarts,
    next_version,
    note_served,
    remembered,
    wanted_version,
)
from tsuku_llm.steps.serve.version_start import Serving, VersionStart
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.records.installed import Installed

if TYPE_CHECKING:  # types that a start without a supervisor does without
    from tsuku_llm.launch.run.supervise import StopHandle

_STARTS = 3
"""How often a version that served before is started again before its server is given up."""

_PAUSE = 2.0
"""Seconds before such a start."""


def serve(session: Session, arguments: Sequence[str], how: Serving) -> int:
    """Check the installed tree, then run its server with ``arguments``; return its exit code.

    If its backend fails, this starts the next variant, provided that the settings or the user allow
    it. The server holds its version as long as it lives, so that other processes cannot remove it.
    If a server that served loses its GPU, ``llm.on_gpu_loss`` decides what follows. ``how.reload``
    may exchange the version of the server while it runs.

    Raises the errors of ``wanted_version``, ``TamperedInstall``, ``Revoked``, ``LaunchError``,
    ``GpuLost`` and, with ``require_gpu``, ``SilentCpu`` and ``NotOnGpu``; with ``require_fit``,
    ``DoesNotFit``.
    """
    # Now: a server in the background leaves this folder once it serves, and may be started again.
    cwd = working_folder()
    restarts = _Restarts(session, how)
    exchange = _Exchange(session, how)
    facts = driver_fingerprint(session.machine.environ)
    notes = StateNotes(session.paths.state, facts)
    preferred = _preferred(session, notes, choice_digest(facts))
    installed, failures = remembered(session, notes, preferred, gpu_only=how.require_gpu)
    # Each turn starts another variant, and ``next_version`` goes down the ranking, so this ends;
    # with ``restart`` the same one is started again, after a pause.
    while True:
        # Called in the thread that follows this start; later starts have other failures.
        on_served = partial(note_served, notes, session.machine.now, preferred, installed, failures)
        start = VersionStart(
            *(session, arguments, how, installed, notes, cwd),
            (*exchange.returned, *failures.failed),
            on_served,
            restarts=restarts.count,
        )
        ended: int | TsukuError
        try:
            ended = start.make()
        except TsukuError as error:
            ended = error
        if other := exchange.next_after(installed, ended):
            installed = preferred = other
            failures = FailedStarts()
            continue
        if isinstance(ended, int):
            return ended
        if not isinstance(ended, (LaunchError, SilentCpu, NotOnGpu, GpuLost)):
            raise ended
        # A lost GPU need not be back at once, so failures of restarts count as well. The same
        # server has served before, so the cause may pass: what is left of it may still hold
        # its memory or its port.
        lost = isinstance(ended, GpuLost) or (
            restarts.count > 0 and not isinstance(ended, NotInstalled)
        )
        if lost and restarts.wait(ended, installed):
            # The remembered list is from before the loss.
            notes.forget_devices()
            continue
        session = _consenting(session, ended, lost=lost)
        failures = failures.longer(installed, ended)
        other = next_version(session, preferred, failures, gpu_only=how.require_gpu)
        if other:
            # An error of a start is among the server's last lines; a loss is not.
            if isinstance(ended, GpuLost) and ended.facts:
                session.user.note(f"warning: {ended.told}")
            installed = other
        # No other variant runs: start this one on the CPU, as the user did not require a GPU.
        elif isinstance(ended, SilentCpu) and not how.require_gpu:
            return start._replace(insist=True, on_served=lambda: None).make()
        else:
            raise ended


def _preferred(session: Session, notes: StateNotes, drivers: str) -> Installed:
    """Return the wanted version, or the better one for a machine that has changed since."""
    wanted, request = wanted_version(session), session.settings.backend
    states = withheld(wanted.receipt, request)
    changed = rests_on_others(wanted.receipt, request, drivers)
    if states or changed:
        from tsuku_llm.steps.serve.recovery import recovered

        return recovered(session, notes, wanted, states, changed=changed)
    return wanted


def _consenting(session: Session, error: TsukuError, *, lost: bool) -> Session:
    """Return a session in which another variant may follow an error; raise the error if none may.

    ``lost``: the server had served, and has lost its GPU.
    """
    if lost:
        if session.settings.on_gpu_loss != "fallback":
            raise error
        # The setting is the consent that ``next_version`` needs.
        return session.with_settings(fallback="auto")
    # Any other variant would fail as well.
    if not isinstance(error, (BackendFailed, SilentCpu)):
        raise error
    return session


class _Exchange:
    """The versions that follow each other in one ``serve``, as reloads and trials have it.

    ``returned`` is the version that was on trial last, and why it is gone. Only the main thread
    uses this.
    """

    def __init__(self, session: Session, how: Serving) -> None:
        self.returned: tuple[FallenBack, ...] = ()
        self._session = session
        self._reload = how.reload
        self._stop_handle = how.stop_handle
        self._starts_left = 0

    def next_after(self, installed: Installed, ended: int | TsukuError) -> Installed | None:
        """Return the version to start now that the server of another one has ended.

        ``ended`` is its exit code after it had served, or why it does not serve. None if the server
        was stopped, or ended without a reload or a trial.
        """
        stop = self._stop_handle
        if self._reload is None or (stop and stop.is_ending):
            return None
        if self._reload.renew():
            self.returned = ()
            try:
                following = requested_version(self._session)
            except TsukuError as error:
                # A server that ran must run.
                note = f"warning: {error.message}; {installed.id} is started again"
                self._session.user.note(note)
                following = installed
        elif former := self._version_before(installed):
            code = f"it ended with exit code {ended} after it had served"
            reason = ended.told if isinstance(ended, TsukuError) else code
            self.returned = (FallenBack(installed.id, reason),)
            following = former
        elif self._starts_left and isinstance(ended, TsukuError) and not isinstance(ended, GpuLost):
            # It served before, and does not start now: what is left of the last server may hold its
            # port or its memory.
            self._starts_left -= 1
            _wait_before_restart(stop, _PAUSE)
            return installed
        else:
            self._starts_left = 0
            return None
        self._starts_left = _STARTS
        return following

    def _version_before(self, tried: Installed) -> Installed | None:
        """Return the version that an update has replaced by ``tried``; None without a trial.

        The update may have been killed: its journal stays until a later one has judged.
        """
        from tsuku_llm.store.records.updates import read_journal  # noqa: PLC0415 - only at an end

        with suppress(StoreError):
            journal = read_journal(self._session.paths.data)
            if journal and journal.tried == tried.id:
                return self._session.reader.find(journal.former)
        return None


class _Restarts:
    """The restarts of one ``serve`` after its server has lost the GPU; ``count`` is their number.

    The main thread uses it. Another thread may stop ``serve`` by its handle meanwhile.
    """

    def __init__(self, session: Session, how: Serving) -> None:
        self.count = 0
        self._session = session
        self._stop_handle = how.stop_handle
        self._in_a_row = 0
        self._begun = time.monotonic()

    def wait(self, error: TsukuError, installed: Installed) -> bool:
        """Wait before the next restart, longer each time; return False if there shall be none.

        Other processes cannot remove the version meanwhile.
        """
        if self._session.settings.on_gpu_loss != "restart":
            return False
        from tsuku_llm.launch.gpu.life import failures_in_a_row, restart_pause

        served = time.monotonic() - self._begun
        self._in_a_row = failures_in_a_row(self._in_a_row, served)
        pause = restart_pause(self._in_a_row)
        seconds = f"{pause:.0f} second{'' if pause == 1 else 's'}"
        self._session.user.note(f"warning: {error.told}; it is started again in {seconds}")
        with self._session.reader.hold(installed):
            if _wait_before_restart(self._stop_handle, pause):
                return False
        self.count += 1
        self._begun = time.monotonic()
        return True


def _wait_before_restart(stop_handle: StopHandle | None, seconds: float) -> bool:
    """Wait before a server is started again; return True if the stop handle ended the wait."""
    stopped = threading.Event()
    # ``end`` of another thread calls this at once, also if it came before us. A signal raises here,
    # as there is no server that could get it.
    if stop_handle:
        stop_handle.attach(stopped.set)
    return stopped.wait(seconds)
