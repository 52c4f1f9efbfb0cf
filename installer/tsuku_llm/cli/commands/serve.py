"""The command ``serve``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import WORDS, Launching
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.serving import served
from tsuku_llm.cli.session import open_session
from tsuku_llm.errors import UsageError
from tsuku_llm.operations.serve import Serving
from tsuku_llm.operations.session import Session


def _exclusive(context: click.Context, parameter: click.Parameter, wanted: bool) -> bool:  # noqa: FBT001
    """Refuse two ways to serve at once."""
    # The first of these flags that is set is kept in the context; a second one differs from it.
    first = context.meta.setdefault("tsuku_llm.way", parameter) if wanted else parameter
    if first is not parameter:
        raise UsageError(
            f"{first.opts[0]} and {parameter.opts[0]} cannot be combined",
            hint="omit one of them",
        )
    return wanted


@click.command("serve", cls=Launching, example="tsuku-llm serve -- -m MODEL.gguf")
@click.option("--require-gpu", is_flag=True, help="End with exit code 8 if the GPU is not used.")
@click.option(
    "--fallback/--no-fallback",
    default=None,
    help="Whether to continue with the next variant if a backend fails; else llm.fallback.",
)
@click.option("--verify", is_flag=True, help="Hash every installed file first.")
@click.option("--dry-run", is_flag=True, help="Show what would be started, and start nothing.")
@click.option(
    "--exec",
    "replace",
    is_flag=True,
    callback=_exclusive,
    help="Replace this process by the server, for systemd and containers; not with --json.",
)
@click.option(
    "--detach",
    is_flag=True,
    callback=_exclusive,
    help="Serve in the background; see status, logs and stop.",
)
@click.option(
    "--systemd-unit",
    "unit",
    is_flag=True,
    callback=_exclusive,
    help="Print a systemd unit for this user with these options, and start nothing.",
)
@click.option("--supervised", is_flag=True, callback=_exclusive, hidden=True)
@options.name
@options.setting("idle_timeout", "TIME")
@options.require_fresh
@options.allow_revoked
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(  # noqa: PLR0913
    context: click.Context,
    *,
    require_gpu: bool,
    fallback: bool | None,
    verify: bool,
    dry_run: bool,
    replace: bool,
    detach: bool,
    unit: bool,
    supervised: bool,
    name: str,
    idle_timeout: str | None,
    require_fresh: str | None,
    allow_revoked: bool,
    arguments: tuple[str, ...],
) -> Answer:
    """Launch the installed llama-server.

    ARGUMENTS are the server's own; put -- before them: tsuku-llm serve -- -m MODEL.gguf
    """
    console: Console = context.obj
    # After exec this program can no longer print a document.
    if replace and console.json and not dry_run:
        raise UsageError("--exec and --json cannot be combined", hint="omit one of them")
    how = Serving(name=name, replace=replace, require_gpu=require_gpu, verify=verify)
    with open_session(
        console,
        require_fresh=require_fresh,
        allow_revoked=allow_revoked,
        fallback=_FALLBACK[fallback],
        idle_timeout=idle_timeout,
    ) as session:
        # Before the other ways: a dry run starts nothing.
        if dry_run:
            return _shown(session, arguments)
        if detach or unit or supervised:
            from tsuku_llm.cli import background  # noqa: PLC0415 - a start does without

            if supervised:
                return background.supervise(console, session, arguments, how)
            way = background.detach if detach else background.unit
            return way(session, name, context.meta[WORDS])
        return served(session, arguments, how, told=console.json)


_FALLBACK = {True: "auto", False: "off", None: None}
"""The flag as a value of the setting; None leaves it to the setting."""


def _shown(session: Session, arguments: Sequence[str]) -> Answer:
    from tsuku_llm.cli.render import planned as render  # noqa: PLC0415 - a start does without
    from tsuku_llm.operations.tools import planned  # noqa: PLC0415

    plan = planned(session, arguments)
    return Answer(render.data(plan), render.lines(plan))
