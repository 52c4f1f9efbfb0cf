"""``serve``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer, Failure
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.session import open_session
from tsuku_llm.errors import UsageError
from tsuku_llm.operations.serve import Serving, serve


class _Serve(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise UsageError(
                error.format_message().rstrip("."),
                hint="what is for the server goes after --: tsuku-llm serve -- -m MODEL.gguf",
            ) from error


@click.command("serve", cls=_Serve)
@click.option(
    "--exec",
    "replace",
    is_flag=True,
    help="Become the server, for systemd and containers; --json has nothing to say then.",
)
@options.require_fresh
@options.allow_revoked
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(
    console: Console,
    *,
    replace: bool,
    require_fresh: str | None,
    allow_revoked: bool,
    arguments: tuple[str, ...],
) -> Answer:
    """Launch the installed llama-server.

    ARGUMENTS are the server's own; put -- before them: tsuku-llm serve -- -m MODEL.gguf
    """
    if replace and console.json:
        raise UsageError("--exec and --json exclude each other", hint="leave one of them out")
    with open_session(console, require_fresh=require_fresh, allow_revoked=allow_revoked) as session:
        code = serve(session, arguments, Serving(replace=replace))
    # People have read what the server said; a program is told that it failed.
    told = Failure("server-exit", f"the server ended with exit code {code}")
    failure = told if code and console.json else None
    return Answer({"server_exit_code": code}, exit_code=code, failure=failure)
