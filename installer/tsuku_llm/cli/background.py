"""``serve`` in the background: the process that starts the supervisor, and the supervisor."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tsuku_llm.cli import streams
from tsuku_llm.cli.answer import CommandResult, ReportedError
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import servers as render
from tsuku_llm.errors import LaunchError
from tsuku_llm.instances.record import checked_name
from tsuku_llm.operations import background
from tsuku_llm.operations.credentials import handover, keep_credentials
from tsuku_llm.operations.serve import Serving
from tsuku_llm.operations.session import Session, working_folder


def detach(session: Session, name: str, argv: Sequence[str]) -> CommandResult:
    """Start a supervisor; answer when its server is ready, or when it did not start."""
    line = serve_again(argv, instead_of="--detach", options=("--supervised", "--json"))
    said, code = background.start(line)
    # The supervisor said that its server is ready, and runs on without us.
    if code is None:
        for warning in said.get("warnings", ()):
            session.user.note(warning)
        record = background.server(session, name)

        def undo() -> str:
            # A start that ends with an error leaves no server behind.
            stopped = background.stop(session, name)
            return render.stopped_lines((stopped,))[0]

        return CommandResult(render.record_data(record), render.started_lines(record), undo=undo)
    failure = _failure(said, code)
    return CommandResult(exit_code=code if code > 0 else LaunchError.exit_code, failure=failure)


def supervise(
    console: Console, session: Session, arguments: Sequence[str], how: Serving
) -> CommandResult:
    """Be the supervisor: say that the server is ready, or at the end that it never was."""
    warnings: list[str] = []

    def note(text: str) -> None:
        # Into the log, and the warnings also to the user who waits for the start.
        session.user.note(text)
        if text.startswith("warning: "):
            warnings.append(text)

    def ready() -> None:
        # One line, which ``background.start`` reads. The thread that follows the start calls this,
        # while the main thread waits for the server: only this thread writes to stdout now.
        said = {"ready": how.name, "warnings": warnings}
        streams.say(console.stdout, json.dumps(said) + "\n")

    told = session._replace(user=session.user._replace(note=note))
    code = background.watch_over(told, arguments, how, ready)
    failure = ReportedError("server-exit", f"the server ended with exit code {code}")
    return CommandResult(
        {"server_exit_code": code}, exit_code=code, failure=failure if code else None
    )


def unit(session: Session, name: str, argv: Sequence[str]) -> CommandResult:
    """Return the text of a systemd unit that serves with these arguments; secrets go to a file."""
    at = argv.index("--") + 1 if "--" in argv else len(argv)
    # Only ours: the server's arguments may hold secrets, and ``handover`` separates them.
    line = serve_again(argv[:at], instead_of="--systemd-unit", options=("--exec",))
    given = handover(argv[at:], session.machine.environ)
    credentials = None
    if given.secret:
        content = render.environment_file(given.secret)
        credentials = keep_credentials(session, name, given.secret, content)
        session.user.note(
            f"{', '.join(given.secret)}: not in the unit; it loads {credentials}, "
            "which only you can read"
        )
    text = render.unit_text(checked_name(name), line, given, working_folder(), credentials)
    data = {"unit": text, "credentials": credentials}
    return CommandResult(data, tuple(text.splitlines()), exact=True)


def _failure(said: Mapping[str, Any], code: int) -> ReportedError:
    """Return the supervisor's error, or a general one if it was killed before it could report."""
    error = said.get("error")
    if error:
        return ReportedError(error["code"], error["message"], tuple(error["facts"]), error["hint"])
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return ReportedError(
        "launch-failed",
        f"the supervisor {how} before the server was ready",
        hint="see: tsuku-llm logs",
    )


# --- the command line that starts this program again, in another process -----------------


def this_program() -> tuple[str, ...]:
    """Return the interpreter, its options, and what it runs: a module, or a script's absolute path.

    So the new process finds its modules in the same places as this one.
    """
    # sys.orig_argv also has the interpreter and its options; sys.argv begins with the script.
    own = len(sys.orig_argv) - len(sys.argv) + 1
    *before, last = sys.orig_argv[1:own]
    if before[-1:] != ["-m"]:
        last = os.path.abspath(last)  # noqa: PTH100 - a script may be a link
    return (sys.executable, *before, last)


def serve_again(argv: Sequence[str], *, instead_of: str, options: Sequence[str]) -> list[str]:
    """Return the line of a ``serve`` given ``argv``, with ``options`` in place of one of them."""
    at = argv.index("--") if "--" in argv else len(argv)
    # Only ours: the same argument after "--" belongs to the server.
    own = [each for each in argv[:at] if each not in (instead_of, "--json")]
    return [*this_program(), "serve", *own, *options, *argv[at:]]
