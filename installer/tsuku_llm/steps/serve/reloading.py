"""The exchange of a running server's build by its supervisor, and the way back.

``update --unattended`` makes another version active and sends the supervisor a signal. Only the
supervisor has the arguments, the environment and the folder of the server, so it starts the same
server again, with the version that is active by then. No other message passes between the two: the
record of the server tells how that went, and the journal of the update which version is on trial.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tsuku_llm.ground.errors import GpuLost, StoreError, TsukuError
from tsuku_llm.launch.plan.report import FallenBack
from tsuku_llm.steps.choosing.which import requested_version
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed

if TYPE_CHECKING:  # types that a start without a supervisor does without
    from tsuku_llm.launch.run.supervise import StopHandle

RELOAD = getattr(signal, "SIGUSR1", None)
"""The signal that asks a supervisor for this; None on Windows, which has none to send."""

_STARTS = 3
"""How often a version that served before is started again before its server is given up."""

_PAUSE = 2.0
"""Seconds before such a start."""


class Reload:
    """The wish that a running server is started again with the active version.

    The ticker of the supervisor asks for it. The main thread, which waits for the server, attaches
    each start, and takes the wish when the server has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Both are guarded by the lock.
        self._asked = False
        self._end: Callable[[], None] = lambda: None

    def ask(self) -> None:
        """End the server of the present start."""
        with self._lock:
            self._asked = True
            end = self._end
        # Outside the lock: ``end`` takes the locks of a stop handle.
        end()

    def attach(self, end: Callable[[], None]) -> None:
        """Set what ends the server of this start; call it now if ``ask`` came before."""
        with self._lock:
            self._end = end
            asked = self._asked
        if asked:
            end()

    def take(self) -> bool:
        """Tell whether the server was to be started again, once."""
        with self._lock:
            asked, self._asked = self._asked, False
            return asked


class Exchange:
    """The versions that follow each other in one ``serve``, as reloads and trials have it.

    ``returned`` is the version that was on trial last, and why it is gone. Only the main thread
    uses this.
    """

    def __init__(
        self, session: Session, reload: Reload | None, stop_handle: StopHandle | None
    ) -> None:
        self.returned: tuple[FallenBack, ...] = ()
        self._session = session
        self._reload = reload
        self._stop_handle = stop_handle
        self._starts_left = 0

    def next_after(self, installed: Installed, ended: int | TsukuError) -> Installed | None:
        """Return the version to start now that the server of another one has ended.

        ``ended`` is its exit code after it had served, or why it does not serve. None: the server
        was stopped, or its end is no matter of a reload.
        """
        stop = self._stop_handle
        if self._reload is None or (stop and stop.is_ending):
            return None
        if self._reload.take():
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
            wait_before_restart(stop, _PAUSE)
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


def wait_before_restart(stop_handle: StopHandle | None, seconds: float) -> bool:
    """Wait before a server is started again; return True if the stop handle ended the wait."""
    stopped = threading.Event()
    # ``end`` of another thread calls this at once, also if it came before us. A signal raises here,
    # as there is no server that could get it.
    if stop_handle:
        stop_handle.attach(stopped.set)
    return stopped.wait(seconds)
