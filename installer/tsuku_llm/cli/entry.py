"""One run of the program: arguments in, exit code out. Nothing else prints or maps errors."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tsuku_llm.cli import own_words, streams
from tsuku_llm.cli.answer import Answer, Answered, Failure, document
from tsuku_llm.cli.console import Console
from tsuku_llm.errors import StoreError, TsukuError

if TYPE_CHECKING:
    from tsuku_llm.host import Host

INTERRUPTED = 130
TERMINATED = 143
BUG = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception: what is in the making is cleaned up on the way out."""


def run(argv: Sequence[str], host: Host | None = None) -> int:
    """Do what the arguments say and return the exit code; never raises for an error.

    ``host`` is this machine, where somebody was quicker to ask it than a session can be.
    """
    console = Console(json=wants_json(argv), host=host)
    try:
        with termination_unwinds():
            return _run_as_json(argv, console) if console.json else _run_as_text(argv, console)
    except StoreError as error:  # the output itself could not be written
        _tell(Failure.of(error))
        return error.exit_code


def wants_json(argv: Sequence[str]) -> bool:
    """Whether ``--json`` stands among our own arguments, be the rest right or wrong."""
    return "--json" in own_words(argv)


def serves_plainly(argv: Sequence[str]) -> bool:
    """Whether this is the start that units, containers and most people make.

    There is nothing in it to be parsed, and a parser takes as long to load as all the rest.
    """
    return own_words(argv) in (["serve"], ["serve", "--exec"])


def _run_as_text(argv: Sequence[str], console: Console) -> int:
    answer = _answer(argv, console)
    if answer.failure:
        _tell(answer.failure)
    lines = answer.lines if answer.exact else map(streams.printable, answer.lines)
    text = "".join(f"{line}\n" for line in lines)
    streams.say(sys.stdout, text, exact=answer.exact)
    return answer.exit_code


def _run_as_json(argv: Sequence[str], console: Console) -> int:
    with streams.reserved_stdout() as stdout:
        console.stdout = stdout
        answer = _answer(argv, console)
        if answer.failure:
            _tell(answer.failure)
        streams.say(stdout, document(console.command, answer, console.simulated))
    return answer.exit_code


def _tell(failure: Failure) -> None:
    for line in failure.lines():
        streams.note(sys.stderr, line)


def _answer(argv: Sequence[str], console: Console) -> Answer:
    try:
        return _invoke(argv, console)
    except Answered as answered:
        return answered.answer
    except TsukuError as error:
        return _failed(error)
    except KeyboardInterrupt as stop:
        code = TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
        return Answer(exit_code=code, failure=Failure("interrupted", "stopped on request"))
    except Exception as error:  # noqa: BLE001
        return _bug(error)


def _invoke(argv: Sequence[str], console: Console) -> Answer:
    if serves_plainly(argv):
        from tsuku_llm.cli.serving import serve_plainly  # noqa: PLC0415

        return serve_plainly(argv, console)
    from tsuku_llm.cli.program import invoke  # noqa: PLC0415

    return invoke(argv, console)


def _failed(error: TsukuError) -> Answer:
    return Answer(exit_code=error.exit_code, failure=Failure.of(error))


def _bug(error: Exception) -> Answer:
    import traceback  # noqa: PLC0415

    for line in "".join(traceback.format_exception(error)).splitlines():
        streams.note(sys.stderr, line)
    failure = Failure(
        "bug",
        f"{type(error).__name__}: {error}",
        hint="this is a mistake in tsuku-llm: please report it with the lines above",
    )
    return Answer(exit_code=BUG, failure=failure)


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Make SIGTERM raise ``Terminated``, unless whoever started us has it ignored."""

    def stop(_number: int, _frame: object) -> None:
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
