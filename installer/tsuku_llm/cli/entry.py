"""One run of the program: arguments in, exit code out.

Only this module maps errors and prints answers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TextIO

from tsuku_llm._version import REPORTS
from tsuku_llm.cli.program import invoke, wanted_color, wants_json
from tsuku_llm.cli.terminal import streams
from tsuku_llm.cli.terminal.answer import CommandResult, EarlyExit, ReportedError, details, document
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import Declined, StoreError, SystemLimitReached, TsukuError
from tsuku_llm.ground.safe_text import printable

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the number of SIGINT."""
STOPPED = ReportedError("interrupted", "stopped on request")
BUG = 1
"""The exit code for an error in this program."""
_AGAIN = 0.05
"""Seconds until a signal that was lost comes again: long after the callback that lost it."""


Invoke = Callable[[Sequence[str], Console], CommandResult]
"""What runs the command that the arguments name; it may raise any error of ours."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP as an exception, so that unfinished work is cleaned up on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number


def run(argv: Sequence[str], invoke: Invoke = invoke) -> int:
    """Do what the arguments say and return the exit code; an error never leaves this function.

    ``invoke`` runs the commands of another program with the same rules (tsuku-publish).
    """
    console = Console(json=wants_json(argv), color=wanted_color(argv))
    try:
        # A document: even what a child process prints goes elsewhere.
        reserved = streams.reserved_stdout() if console.json else nullcontext(sys.stdout)
        with termination_unwinds(), reserved as stdout:
            console.stdout = stdout
            answer = _answer(argv, console, invoke)
            # To stderr; stdout gets the document, or the lines of the answer.
            if answer.failure:
                _tell(answer.failure, console)
            _say(stdout, _written(answer, console), answer)
            return answer.exit_code
    except StoreError as error:  # the answer could not be written
        _tell(ReportedError.of(error), console)
        return error.exit_code
    except KeyboardInterrupt as stop:
        # After the command, while its answer was printed.
        answer = _stopped(stop)
        _tell(STOPPED, console)
        if console.json:
            _say(sys.stdout, document(console.command, answer, console.simulated), answer)
        return answer.exit_code


def _written(answer: CommandResult, console: Console) -> str:
    """Return what goes to stdout: the document, or the lines."""
    if console.json:
        return document(console.command, answer, console.simulated)
    # Texts may come from elsewhere (names of devices, releases): escape control characters.
    lines = answer.lines
    if not answer.exact:
        style = console.style(sys.stdout)
        if console.verbose:
            lines += details(answer.data)
        if answer.next_step and not console.quiet:
            lines += (answer.next_step,)
        lines = tuple(style.shaped(printable(line)) for line in lines)
    elif streams.is_terminal(sys.stdout):
        # A script gets the bytes of a path; a terminal would obey them.
        lines = tuple(map(printable, lines))
    return "".join(f"{line}\n" for line in lines)


def _say(stream: TextIO | None, text: str, answer: CommandResult) -> None:
    """Write the answer; if that fails, undo what it would have told. Raises ``StoreError``."""
    try:
        streams.say(stream, text, exact=answer.exact)
    except StoreError as error:
        if answer.undo:
            try:
                error.facts += (answer.undo(),)
            except TsukuError as left:  # a server that does not end
                error.facts += (left.message, *left.facts, left.hint)
        raise


def _tell(failure: ReportedError, console: Console) -> None:
    for line in failure.lines():
        console.tell(line)


def _answer(  # noqa: PLR0911 - one return for each way to end
    argv: Sequence[str], console: Console, invoke: Invoke
) -> CommandResult:
    try:
        return invoke(argv, console)
    except EarlyExit as answered:
        return answered.answer
    except TsukuError as error:
        if isinstance(error, Declined):
            return CommandResult(lines=(error.message,))
        failure = ReportedError.of(error)
        if console.verbose and not console.json:
            from tsuku_llm.cli.causes import background

            failure = failure._replace(facts=(*failure.facts, *background(error)))
        return CommandResult(exit_code=error.exit_code, failure=failure)
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except Exception as error:  # noqa: BLE001 - a defect is reported as one
        # Any module may need a thread, a process or a file: a limit of the system is named here.

        from tsuku_llm.ground import system_limits

        limit = system_limits.reached(error)
        if limit:
            refused = SystemLimitReached(limit, hint=system_limits.fix_of(limit) or "")
            return CommandResult(exit_code=refused.exit_code, failure=ReportedError.of(refused))
        # An error that is not ours: a JSON document and a report are better than a traceback alone.
        return _bug(error, argv)


def _stopped(stop: KeyboardInterrupt) -> CommandResult:
    """Return the answer after Ctrl-C, or after a signal of ``termination_unwinds``."""
    code = stop.exit_code if isinstance(stop, Terminated) else INTERRUPTED
    return CommandResult(exit_code=code, failure=STOPPED)


def _bug(error: Exception, argv: Sequence[str]) -> CommandResult:
    import traceback

    from tsuku_llm.launch.plan.secret_arguments import without_secrets

    # The lines are to be sent to us, and the words of an error may be any.
    text = "".join(traceback.format_exception(error))
    for line in without_secrets(text, argv, os.environ).splitlines():
        streams.note(sys.stderr, line)
    message = without_secrets(f"{type(error).__name__}: {error}", argv, os.environ)
    failure = ReportedError(
        "bug",
        message,
        hint=f"this is a bug in tsuku-llm: please report it with the lines above: {REPORTS}",
    )
    return CommandResult(exit_code=BUG, failure=failure)


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise ``Terminated`` for the block, unless others handle them.

    A terminal that closes sends SIGHUP: without this the drivers' child and its folder stay.
    A signal that came in a callback of the interpreter, which loses every exception, comes again.
    """

    def stop(number: int, _frame: object) -> None:
        raise Terminated(number)

    def lost(unraisable: sys.UnraisableHookArgs) -> None:
        stopped = unraisable.exc_value
        if not isinstance(stopped, KeyboardInterrupt) or sys.platform == "win32":
            before(unraisable)
            return
        import threading

        number = stopped.number if isinstance(stopped, Terminated) else signal.SIGINT
        # A little later, or it would be lost in this callback, too.
        again = threading.Timer(
            _AGAIN, signal.pthread_kill, (threading.main_thread().ident, number)
        )
        again.daemon = True
        again.start()

    # Under nohup or in an embedding program the handler is not ours to replace.
    ours = [
        number
        for name in ("SIGTERM", "SIGHUP")
        if (number := getattr(signal, name, None)) is not None  # Windows has no SIGHUP
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, stop)
    before, sys.unraisablehook = sys.unraisablehook, lost
    try:
        yield
    finally:
        sys.unraisablehook = before
        # While the server runs, ``launch.run.forwarding`` puts its handlers over these.
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
