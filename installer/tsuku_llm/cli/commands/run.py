"""The command ``run``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Launching
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.session import open_session
from tsuku_llm.errors import UsageError
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.tools import run_tool


@click.command("run", cls=Launching, example="tsuku-llm run llama-cli -- -m MODEL.gguf")
@click.option("--dry-run", is_flag=True, help="Show what would be started, and start nothing.")
@options.require_fresh
@options.allow_revoked
@click.argument("tool")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(  # noqa: PLR0913
    console: Console,
    *,
    dry_run: bool,
    require_fresh: str | None,
    allow_revoked: bool,
    tool: str,
    arguments: tuple[str, ...],
) -> Answer:
    """Run another tool of the build that serve starts.

    ARGUMENTS are the tool's own; put -- before them: tsuku-llm run llama-cli -- -m MODEL.gguf
    """
    # The tool replaces this process and writes to stdout itself.
    if console.json and not dry_run:
        raise UsageError(
            "--json does not apply to the tool's output",
            hint="omit --json, or add --dry-run; put arguments for the tool after --",
        )
    with open_session(console, require_fresh=require_fresh, allow_revoked=allow_revoked) as session:
        if dry_run:
            return _shown(session, tool, arguments)
        return Answer(exit_code=run_tool(session, tool, arguments))


def _shown(session: Session, tool: str, arguments: Sequence[str]) -> Answer:
    from tsuku_llm.cli.render import planned as render  # noqa: PLC0415 - a start does without
    from tsuku_llm.operations.tools import planned_tool  # noqa: PLC0415

    plan = planned_tool(session, tool, arguments)
    return Answer(render.data(plan), render.lines(plan))
