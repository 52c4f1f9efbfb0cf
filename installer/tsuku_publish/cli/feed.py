"""The command ``feed``: what a job runs every six hours."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import UsageError
from tsuku_publish.cli.options import FILE, data_option, root_option, tell
from tsuku_publish.feed.report import FeedReport
from tsuku_publish.feed.run import Feed
from tsuku_publish.feed.state import load_settings
from tsuku_publish.holders.passphrases import FILE_VARIABLE
from tsuku_publish.holders.passphrases import VARIABLE as PASSPHRASE
from tsuku_publish.holders.signers import VARIABLE
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.upstream.classify import require_rules

NOW = click.DateTime(["%Y-%m-%dT%H:%M"])


@click.command(cls=Command)
@data_option
@root_option
@click.option("--api", metavar="URL", help="Ask this API instead of the one in rules.toml.")
@click.option("--model", type=FILE, metavar="FILE", help="Start new builds with this GGUF model.")
@click.option("--now", type=NOW, metavar="TIME", help="As if it were that time, in UTC.")
@click.pass_obj
def feed(
    console: Console,
    *,
    data: Path,
    trusted_root: Path | None,
    api: str | None,
    model: Path | None,
    now: datetime | None,
) -> CommandResult:
    """Take new builds of upstream into the nightly channel.

    It downloads, measures, verifies and starts what is new, and writes facts/, the channel and
    feed.json of the data. An asset that no rule knows is left out, with a drafted rule. It signs
    nothing, and refuses to run where a signer could be at hand: `sign --channel` is a process of
    its own.
    """

    def say(line: str) -> None:
        tell(console, line)

    time = (now or clock.now()).replace(tzinfo=timezone.utc)
    require_rules(data)
    channel = load_settings(data).channel
    delegated = channel in load_plan(data).delegated
    _require_no_signers()
    feed = Feed(
        data=data,
        now=time,
        say=say,
        model=model,
        trusted_root=trusted_root,
        environ=os.environ,
        api=api,
    )
    report = feed.run()
    for line in _lines(report):
        say(line)
    step = f"sign --channel {channel}" if delegated else "sign --raise"
    return CommandResult(report, ("", f"next: tsuku-publish {step}, in another process"))


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


def _lines(report: FeedReport) -> tuple[str, ...]:
    """Return what the run did, then what people have to decide, with the drafted rules."""
    taken = ", ".join(each.release for each in report.taken) or "nothing"
    lines = [f"taken: {taken}; the channel has {', '.join(report.offered) or 'nothing'}"]
    if report.measured:
        known = ", ".join(each.release for each in report.measured)
        lines.append(f"measured, after they were recorded without their archives: {known}")
    if report.people:
        lines += ["", "To decide:", *(f"  {line}" for line in report.people)]
    for draft in dict.fromkeys(each.draft for each in report.left_out if each.draft):
        lines += ["", *draft.splitlines()]
    return tuple(lines)
