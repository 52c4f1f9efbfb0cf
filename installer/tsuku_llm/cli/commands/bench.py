"""The command ``bench``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Launching
from tsuku_llm.cli.render import bench as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.report.bench import bench, save_fastest
from tsuku_llm.steps.report.models import chosen_model


@click.command(
    "bench",
    cls=Launching,
    examples={
        f"{TSUKU} bench -m MODEL.gguf -- -ngl 20": "Measure with 20 layers on the GPU.",
        f"{TSUKU} bench -m MODEL.gguf --yes --save": "Install what is missing; keep the fastest.",
    },
)
@click.option(
    "-m",
    "--model",
    required=True,
    metavar="MODEL",
    shell_complete=options.completed_by_models,
    help="A GGUF file, or the name of a model that is here already: see models.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="Measure each variant N times; show the medians.",
)
@click.option("--yes", is_flag=True, help="Install variants that fit but are not installed.")
@click.option("--save", is_flag=True, help="Write the fastest variant into the config file.")
@options.offline
@options.allow_revoked
@options.arguments
@click.pass_obj
def bench_command(
    console: Console,
    *,
    model: str,
    rounds: int,
    yes: bool,
    save: bool,
    offline: bool,
    allow_revoked: bool,
    arguments: tuple[str, ...],
) -> CommandResult:
    """Measure every variant that fits, with your own model.

    Everything after -- goes to llama-server, the same for every variant.
    """
    with open_session(
        console,
        allow_revoked=allow_revoked,
        offline=offline,
        agreed=yes,
    ) as session:
        path = Path(chosen_model(session, model)[0])
        report = bench(session, path, arguments, rounds=rounds, status=console.status)
        report = replace(report, saved=save_fastest(session, report, ask=not save))
    return CommandResult(report, render.lines(report))
