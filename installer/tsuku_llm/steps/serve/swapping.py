"""The swap of a running server's build, in its supervisor.

``update --unattended`` asks for it with a file next to the server's record. The supervisor has the
arguments, the environment and the folder of the server, so only it can start the same server with
another build. It also sees to the way back, because the command that asked may be killed.

Three threads meet in a ``Swap``. The main thread starts versions, one after the other. The thread
that follows a start says that it serves. A thread of the ``Swapper`` asks, and waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tsuku_llm.ground.errors import LaunchError, StoreError, TsukuError
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.swap import SwapAnswer, SwapKind, SwapRequest, SwapState
from tsuku_llm.launch.ask.canary import api_key, ask_canary
from tsuku_llm.launch.ask.speed import measure
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.report import Performance, StartReport
from tsuku_llm.launch.plan.wishes import Wishes
from tsuku_llm.steps.choosing.acceptance import needed_speed
from tsuku_llm.steps.drivers.speed_notes import last_speed
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed

_RETURNS = 3
"""How often a version that served before is started again before its server is given up."""

_PAUSE = 2.0
"""Seconds before such a start is repeated: what is left of the last server may hold its port."""

_DYING = 15.0
"""Seconds for a server that broke off a request to end."""

_MEASUREMENTS = 3
"""The best of so many measurements counts: a request of a user slows one of them down."""


class Swap:
    """The version that one server shall run, and the way back while it is on trial."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # All of these are guarded by the condition.
        self._end: Callable[[], None] = lambda: None
        self._wanted: Installed | None = None
        self._on_trial = False
        self._former: Installed | None = None
        self._current = ""
        self._returns = 0
        self._state = SwapState.SERVING
        self._reason = ""

    # The main thread

    def attach(self, end: Callable[[], None]) -> None:
        """Set what ends the server of this start; call it now if another version is wanted."""
        with self._changed:
            self._end = end
            asked = self._wanted is not None
        # Outside the lock: ``end`` takes the locks of a stop handle.
        if asked:
            end()

    def next_after(self, installed: Installed, ended: str, *, stopped: bool) -> Installed | None:
        """Return the version to start now that the server of another one has ended.

        ``ended`` says how it ended. None: there is nothing to swap, or the server was ``stopped``.
        """
        with self._changed:
            following = None if stopped else self._following(installed, ended)
            if following is None:
                self._settle(SwapState.DOWN, ended)
            else:
                self._current = following.id
        return following

    def _following(self, installed: Installed, ended: str) -> Installed | None:
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            self._former = installed if self._on_trial else None
            self._returns = _RETURNS
            return wanted
        if self._former is not None:
            # It was on trial: it did not start, or it has ended.
            former, self._former = self._former, None
            self._settle(SwapState.WORKING, ended)
            self._returns = _RETURNS
            return former
        if self._state is SwapState.WORKING and self._returns:
            # A version that served before does not start now.
            self._returns -= 1
            return installed
        return None

    def pause_before(self, following: Installed, installed: Installed) -> float:
        """Return the seconds to wait before a start: none unless it is the same one once more."""
        return _PAUSE if following.id == installed.id else 0.0

    # The thread that follows a start

    def served(self, version: str) -> None:
        """Take note that the server of this version is ready."""
        with self._changed:
            # Also after it was given up: ``serve`` has other ways to start it.
            if self._state is not SwapState.SERVING and version == self._current:
                served = SwapState.RETURNED if self._reason else SwapState.SERVING
                self._settle(served, self._reason)

    # The thread that carries out a request

    def ask(self, version: Installed, *, trial: bool) -> None:
        """End the server, so that the main thread starts this version."""
        with self._changed:
            self._wanted, self._on_trial = version, trial
            self._former = None
            self._settle(SwapState.WORKING, "")
            end = self._end
        end()

    def keep(self) -> None:
        """End the trial: from now on the version is on its own."""
        with self._changed:
            self._former = None

    def wait(self) -> tuple[SwapState, str]:
        """Wait until a version serves or none does; return that, and why a version failed.

        This ends: a start that makes no progress is given up, as any start in the background.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state is not SwapState.WORKING)
            return self._state, self._reason

    def wait_for_end(self) -> tuple[SwapState, str]:
        """Wait for the end of a server that broke off a request, and for what follows."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not SwapState.SERVING, _DYING)
        return self.wait()

    def _settle(self, state: SwapState, reason: str) -> None:
        self._state, self._reason = state, reason
        self._changed.notify_all()


class Swapper:
    """The answerer to requests for one server: it swaps, and tells how the server does.

    ``report`` and ``address`` are asked for the server's present ones. ``model`` is its file, None
    if it has none.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the supervisor
        self,
        session: Session,
        instances: Instances,
        name: str,
        *,
        wishes: Wishes,
        model: Path | None,
        report: Callable[[], StartReport | None],
        address: Callable[[], ServerAddress],
    ) -> None:
        self.swap = Swap()
        self._session = session
        self._instances = instances
        self._name = name
        self._wishes = wishes
        self._model = model
        self._report = report
        self._address = address
        self._seen = ""
        self._at_work: threading.Thread | None = None

    def look(self) -> None:
        """Begin with a request that is new; only the ticker of the supervisor calls this."""
        if self._at_work and self._at_work.is_alive():
            return  # the next look finds it
        request = self._instances.asked_swap(self._name)
        if request is None or request.number == self._seen:
            return
        self._seen = request.number
        # In a thread: the ticker goes on telling systemd that the server is alive. A daemon, as
        # the end of the server ends this process.
        self._at_work = threading.Thread(target=self._carry_out, args=(request,), daemon=True)
        self._at_work.start()

    def _carry_out(self, request: SwapRequest) -> None:
        answer = SwapAnswer(request.number, SwapState.WORKING)
        self._write(answer)
        try:
            answer = self._answer(request, answer)
        except TsukuError as error:  # the store, or the wanted version, cannot be read
            answer = answer._replace(state=SwapState.REFUSED, reason=error.message)
        self._write(answer)

    def _write(self, answer: SwapAnswer) -> None:
        with suppress(StoreError):  # a full disk must not end a server
            self._instances.answer_swap(self._name, answer)

    def _answer(self, request: SwapRequest, answer: SwapAnswer) -> SwapAnswer:
        if request.kind is SwapKind.KEEP:
            self.swap.keep()
            return answer._replace(state=SwapState.SERVING)
        version = self._session.reader.find(request.version)
        if version is None:
            reason = f"{request.version} is not installed"
            return answer._replace(state=SwapState.REFUSED, reason=reason)
        # Now, as there is no way back from a server that has ended to one that does not start.
        self._session.reader.admit(version)
        bench = last_speed(self._session.paths.state, self._model, version.receipt.backend)
        answer = answer._replace(state=SwapState.SERVING, bench=bench)
        report = self._report()
        if report is None or report.id != version.id:
            if request.kind is SwapKind.TRY:
                answer = answer._replace(before=self._performance(bench, enough=0.0)[0])
            self.swap.ask(version, trial=request.kind is SwapKind.TRY)
            state, reason = self.swap.wait()
            answer = answer._replace(state=state, reason=reason)
        if answer.state is SwapState.SERVING:
            before = answer.before.speed if answer.before else None
            after, lost = self._performance(bench, needed_speed(bench, before) or 0.0)
            if lost:
                # It ends in the middle of its first work: the main thread returns to the former.
                state, reason = self.swap.wait_for_end()
                answer = answer._replace(state=state, reason=reason or after.problem)
            answer = answer._replace(after=after)
        return answer

    def _performance(self, bench: float | None, enough: float) -> tuple[Performance, bool]:
        """Ask the server for one token, and measure it if there is a benchmark to compare with.

        Also return whether the server broke off the request.
        """
        report, address = self._report(), self._address()
        assert report  # noqa: S101 - the ticker runs since the first report of a ready server
        found = Performance(report.verdict)
        # A user who wants no request from us gets none.
        if not self._session.settings.canary:
            return found, False
        token = ask_canary(address, self._wishes)
        found = found._replace(answered=token.answered, problem=token.problem or "")
        if token.answered and bench is not None:
            for _ in range(_MEASUREMENTS):
                try:
                    speed = measure(address, api_key(self._wishes)).generation
                except (LaunchError, OSError, UnicodeError):
                    break  # one for embeddings completes no text, for example
                found = found._replace(speed=max(speed, found.speed or 0.0))
                if found.speed is not None and found.speed >= enough:
                    break
        return found, token.lost
