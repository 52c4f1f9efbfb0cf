"""The launch of the installed server: which version, and another start where one has failed.

The command ``serve`` imports only this module and what it imports.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from tsuku_llm.ground.errors import (
    BackendFailed,
    GpuLost,
    LaunchError,
    NotInstalled,
    NotOnGpu,
    SilentCpu,
    TsukuError,
)
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
from tsuku_llm.steps.choosing.temporary import rests_on_others, withheld
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.steps.serve.fallback import (
    FailedStarts,
    next_version,
    note_served,
    remembered,
    wanted_version,
)
from tsuku_llm.steps.serve.reloading import Exchange, wait_before_restart
from tsuku_llm.steps.serve.version_start import Serving, VersionStart
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.records.installed import Installed


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
    exchange = Exchange(session, how.reload, how.stop_handle)
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
        try:
            code = start.make()
            other = exchange.next_after(installed, code)
            if other is None:
                return code
            installed = preferred = other
            failures = FailedStarts()
        except TsukuError as error:
            if other := exchange.next_after(installed, error):
                installed = preferred = other
                failures = FailedStarts()
                continue
            if not isinstance(error, (LaunchError, SilentCpu, NotOnGpu, GpuLost)):
                raise
            # A lost GPU need not be back at once, so the failures of restarts count as well. The
            # same server has served before: whatever fails now may be over in a while, such as
            # memory or a port that what is left of it still has.
            lost = isinstance(error, GpuLost) or (
                restarts.count > 0 and not isinstance(error, NotInstalled)
            )
            if lost and restarts.wait(error, installed):
                # The remembered list is from before the loss.
                notes.forget_devices()
                continue
            session = _consenting(session, error, lost=lost)
            failures = failures.longer(installed, error)
            other = next_version(session, preferred, failures, gpu_only=how.require_gpu)
            if other:
                # An error of a start is among the server's last lines; a loss is not.
                if isinstance(error, GpuLost) and error.facts:
                    session.user.note(f"warning: {error.told}")
                installed = other
            # No other variant runs: start this one on the CPU, as the user did not require a GPU.
            elif isinstance(error, SilentCpu) and not how.require_gpu:
                return start._replace(insist=True, on_served=lambda: None).make()
            else:
                raise


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
            if wait_before_restart(self._stop_handle, pause):
                return False
        self.count += 1
        self._begun = time.monotonic()
        return True
