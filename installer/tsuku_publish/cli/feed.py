"""The command ``feed``: what a job runs every six hours, and the list of what people must do."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import replace_file
from tsuku_publish.cli.options import FILE, data_option, root_option, tell
from tsuku_publish.feed.report import OPEN, prometheus, text
from tsuku_publish.feed.run import Feed
from tsuku_publish.feed.state import load_settings, load_state, save_state
from tsuku_publish.holders.passphrases import FILE_VARIABLE
from tsuku_publish.holders.passphrases import VARIABLE as PASSPHRASE
from tsuku_publish.holders.signers import VARIABLE
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.repository.folder import locked
from tsuku_publish.upstream.classify import require_rules

NEW_FILE = click.Path(dir_okay=False, path_type=Path)
NOW = click.DateTime(["%Y-%m-%dT%H:%M"])


@click.command(cls=Command)
@data_option
@root_option
@click.option("--api", metavar="URL", help="Ask this API instead of the one in rules.toml.")
@click.option("--model", type=FILE, metavar="FILE", help="Start new builds with this GGUF model.")
@click.option("--now", type=NOW, metavar="TIME", help="As if it were that time, in UTC.")
@click.option("--show", is_flag=True, help="Take nothing: print what people have to do.")
@click.option("--accept", metavar="WORD", help="Take nothing: accept what that line of it says.")
@click.option("--metrics", type=NEW_FILE, metavar="FILE", help="Also write it for Prometheus.")
@click.pass_obj
def feed(
    console: Console,
    /,
    *,
    data: Path,
    show: bool,
    accept: str | None,
    metrics: Path | None,
    now: datetime | None,
    **more: Any,
) -> CommandResult:
    """Take new builds of upstream into the nightly channel.

    It downloads, measures, verifies and starts what is new, and writes facts/, the channel and
    feed.json of the data. An asset that no rule knows is left out, with a drafted rule. It signs
    nothing, and refuses to run where a signer could be at hand: `sign --channel` is a process of
    its own. Ends with 11 while people have something to do, which --show prints again.
    """
    say = partial(tell, console)
    require_rules(data)
    if show or accept:
        with locked(data):
            state = load_state(data)
            if accept:
                state.accept(accept)
                save_state(data, state)
        found: object = {"people": state.matters}
        lines: tuple[str, ...] = ()
    else:
        time = (now or clock.now()).replace(tzinfo=timezone.utc)
        channel = load_settings(data).channel
        delegated = channel in load_plan(data).delegated
        _require_no_signers()
        report = Feed(data=data, now=time, say=say, environ=os.environ, **more).run()
        found, state = report, load_state(data)
        taken = ", ".join(each.release for each in report.taken) or "nothing"
        line = f"taken: {taken}; the channel has {', '.join(report.offered) or 'nothing'}"
        if report.measured:
            known = ", ".join(each.release for each in report.measured)
            line += f"; measured, after they were recorded without their archives: {known}"
        say(line)
        step = f"sign --channel {channel}" if delegated else "sign --raise"
        lines = ("", f"next: tsuku-publish {step}, in another process")
    if metrics is not None:
        replace_file(metrics, prometheus(state.matters, state.news).encode())
    for line in text(state.matters):
        say(line)
    return CommandResult(found, lines, exit_code=OPEN if state.matters else 0)


def _require_no_signers() -> None:
    """Raise ``UsageError`` if the environment leads to signers.

    Archives of strangers are unpacked, read and started here. Whatever one of them finds a way to
    do, this process and its children must have no key and no passphrase.
    """
    if named := [name for name in (VARIABLE, FILE_VARIABLE, PASSPHRASE) if os.environ.get(name)]:
        raise UsageError(
            f"feed runs builds of strangers, and {', '.join(named)} would be at hand",
            hint=f"run: env {' '.join(f'-u {name}' for name in named)} tsuku-publish feed; "
            "then sign --channel signs, in another process",
        )
