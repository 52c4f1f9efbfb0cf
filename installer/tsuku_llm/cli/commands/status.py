"""The command ``status``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import servers as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.errors import UsageError
from tsuku_llm.files import write_output
from tsuku_llm.operations.background import servers


@click.command("status", cls=Command)
@click.option("--prometheus", is_flag=True, help="Print metrics in Prometheus' text format.")
@click.option(
    "--output",
    type=options.FILE,
    metavar="FILE",
    help="Replace FILE with the metrics in one step, for a node exporter's textfile collector.",
)
@click.pass_obj
def command(console: Console, *, prometheus: bool, output: Path | None) -> Answer:
    """Show the servers in the background."""
    if output and not prometheus:
        raise UsageError("--output is only for metrics", hint="add --prometheus")
    with open_session(console, looking=True) as session:
        found = servers(session)
    if not prometheus:
        return Answer(render.data(found), render.lines(found))
    # Only this option needs prometheus_client.
    from tsuku_llm.cli.render import metrics  # noqa: PLC0415

    text = metrics.text(found.records)
    if output:
        write_output(output, text)
    return Answer({"metrics": text}, () if output else tuple(text.splitlines()))
