"""The command ``feed``: what a job runs every six hours."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsuku_llm import clock
from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_publish.ceremony import is_channel_due, sign_channel, why_not_alone
from tsuku_publish.classify import require_rules
from tsuku_publish.cli.options import FILE, asking, data_option, root_option, tell
from tsuku_publish.feed.report import FeedReport
from tsuku_publish.feed.run import Feed
from tsuku_publish.feed.state import load_settings
from tsuku_publish.folder import locked
from tsuku_publish.plan import load_plan
from tsuku_publish.signers import VARIABLE, load_signers

if TYPE_CHECKING:
    from tsuku_publish.cli import documents

NOW = click.DateTime(["%Y-%m-%dT%H:%M"])


@click.command(cls=Command)
@data_option
@root_option
@click.option("--api", metavar="URL", help="Ask this API instead of the one in rules.toml.")
@click.option("--model", type=FILE, metavar="FILE", help="Start new builds with this GGUF model.")
@click.option("--unsigned", is_flag=True, help="Do not sign the channel.")
@click.option("--now", type=NOW, metavar="TIME", help="As if it were that time, in UTC.")
@click.pass_obj
def feed(  # noqa: PLR0913 - each is an option
    console: Console,
    *,
    data: Path,
    trusted_root: Path | None,
    api: str | None,
    model: Path | None,
    unsigned: bool,
    now: datetime | None,
) -> CommandResult:
    """Take new builds of upstream into the nightly channel, and sign it.

    It downloads, measures, verifies and starts what is new, and writes facts/, the channel and
    feed.json of the data. An asset that no rule knows is left out, with a drafted rule. At the end
    it signs the channel, if that has its own signers and TSUKU_LLM_SIGNERS names them and the
    online ones. Otherwise it says why not.
    """

    def say(line: str) -> None:
        tell(console, line)

    time = (now or clock.now()).replace(tzinfo=timezone.utc)
    require_rules(data)
    channel = load_settings(data).channel
    delegated = channel in load_plan(data).delegated
    # Before the downloads, which take hours: a person may have to type a passphrase.
    named = delegated and not unsigned and VARIABLE in os.environ
    signers = load_signers(ask=asking(console)) if named else {}
    why = "--unsigned was given" if unsigned else why_not_alone(data, channel, signers)
    report = Feed(data, os.environ, time, say, api, model, trusted_root).run()
    for line in _lines(report):
        say(line)
    with locked(data):
        due = report.changed or is_channel_due(data, channel, time, trusted_root)
        plan = None
        if due and not why:
            plan = sign_channel(data, channel, signers, time, trusted_root=trusted_root)
    found: documents.FeedAnswer = {
        "taken": report.taken,
        "measured": report.measured,
        "waiting": report.waiting,
        "left_out": report.left_out,
        "stopped": dict(report.stopped),
        "offered": report.offered,
        "forgotten": report.forgotten,
        "proposal": report.proposal,
        "people": report.people,
        "changed": report.changed,
        "signed": plan.roles[channel].version if plan else None,
        "unsigned": why if due and why else None,
    }
    if plan:
        last = [f"{channel} {plan.roles[channel].version} is signed", "next: tsuku-publish publish"]
    elif due:
        step = f"sign --channel {channel}" if delegated else "sign --raise"
        last = [f"{channel} is not signed: {why}", f"next: tsuku-publish {step}"]
    else:
        last = ["nothing new is to be signed"]
    return CommandResult(found, ("", *last))


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
