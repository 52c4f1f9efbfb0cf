"""The start of a server, with or without click's parser."""

from __future__ import annotations

from collections.abc import Sequence

from tsuku_llm.cli import own_words
from tsuku_llm.cli.answer import Answer, Failure
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.serve import Serving, serve
from tsuku_llm.operations.session import Session


def serve_plainly(argv: Sequence[str], console: Console) -> Answer:
    """Do what ``serve`` does without options or with ``--exec`` only (see ``serves_plainly``)."""
    console.command, *options = own_words(argv)
    # The command, the options and "--" come before.
    arguments = argv[len(options) + 2 :]
    with open_session(console) as session:
        return served(session, arguments, Serving(replace="--exec" in options), told=False)


def served(session: Session, arguments: Sequence[str], how: Serving, *, told: bool) -> Answer:
    """Serve; a program is ``told`` of a failure, people have read the server's output."""
    # The thread that follows the start appends; it was joined when ``serve`` returns.
    reports: list[object] = []
    code = serve(session, arguments, how._replace(sink=reports.append if told else None))
    failure = Failure("server-exit", f"the server ended with exit code {code}")
    data = {"server_exit_code": code, "start": reports[-1] if reports else None}
    return Answer(data, exit_code=code, failure=failure if code and told else None)
