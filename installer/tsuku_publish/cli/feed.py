"""The command ``feed``: what a job runs every six hours."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_publish.cli.options import FILE, data_option, root_option, tell
from tsuku_publish.feed.run import Feed, FeedReport
from tsuku_publish.feed.state import load_settings
from tsuku_publish.plan import load_plan

if TYPE_CHECKING:
    from tsuku_publish.cli import documents

NOW = click.DateTime(["%Y-%m-%dT%H:%M"])


@click.command(cls=Command)
@data_option
@root_option
@click.option("--api", metavar="URL", help="Ask this API instead of the one in rules.toml.")
@click.option("--model", type=FILE, metavar="FILE", help="Start new builds with this GGUF model.")
@click.option("--now", type=NOW, metavar="TIME", help="As if it were that time, in UTC.")
@click.pass_obj
def feed(  # noqa: PLR0913 - each is an option
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
    nothing; run sign after it.
    """

    def say(line: str) -> None:
        tell(console, line)

    time = (now or datetime.now(timezone.utc)).replace(tzinfo=timezone.utc)
    report = Feed(data, os.environ, time, say, api, model, trusted_root).run()
    found: documents.FeedAnswer = {
        "taken": report.taken,
        "waiting": report.waiting,
        "left_out": report.left_out,
        "stopped": dict(report.stopped),
        "offered": report.offered,
        "forgotten": report.forgotten,
        "proposal": report.proposal,
        "people": report.people,
        "changed": report.changed,
    }
    channel = load_settings(data).channel
    step = f"sign --channel {channel}" if channel in load_plan(data).roles else "sign --raise"
    return CommandResult(found, _lines(report, step))


def _lines(report: FeedReport, step: str) -> tuple[str, ...]:
    """Return what the run did, then what people have to decide, with the drafted rules."""
    taken = ", ".join(each.release for each in report.taken) or "nothing"
    lines = [f"taken: {taken}; the channel has {', '.join(report.offered) or 'nothing'}"]
    if report.people:
        lines += ["", "To decide:", *(f"  {line}" for line in report.people)]
    for draft in dict.fromkeys(each.draft for each in report.left_out if each.draft):
        lines += ["", *draft.splitlines()]
    lines += [
        "",
        f"next: tsuku-publish {step}" if report.changed else "nothing is to be signed",
    ]
    return tuple(lines)
