"""The commands ``explain``, ``backends``, ``probe`` and ``doctor``.

All of them ask the drivers, which takes as long as importing their operations. So each opens the
session first, which asks, and imports while the drivers answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command, Launching
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.own_name import TSUKU


@click.command(
    "explain",
    cls=Launching,
    examples={
        f"{TSUKU} explain -m MODEL.gguf -- -c 8192": "Does it fit with a context of 8192 tokens?",
        f"{TSUKU} explain --backend cuda": "Show what would be chosen for this backend.",
    },
)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=options.completed_by_models,
    help="A GGUF file, its URL, or a name of models: tell whether it fits into memory.",
)
@options.setting("backend")
@options.setting("channel")
@options.release
@options.setting("repository")
@options.hardware
@options.arguments
@click.pass_obj
def explain_command(
    console: Console,
    *,
    model: str | None,
    backend: str | None,
    channel: str | None,
    release: str | None,
    repository: str | None,
    hardware: Path | None,
    arguments: tuple[str, ...],
) -> CommandResult:
    """Show why each variant fits this machine or not.

    With --model also tell whether that model fits into memory. What follows -- are arguments for
    llama-server: they decide how much memory it needs, and the installed build says how it reads
    each of them. Without a model the last lines are what serve would offer.
    """
    with open_session(
        console,
        looking=True,
        probes=hardware is None,
        backend=backend,
        channel=channel,
        repository=repository,
    ) as session:
        from tsuku_llm.cli.render import choice as render
        from tsuku_llm.steps.report.explain import (
            explain,
            explain_arguments,
            explain_model,
            explain_router,
            explained,
        )

        choice = explain(session, release=release, hardware_file=hardware)
        words = explain_arguments(session, arguments)
        router = None if model or hardware else explain_router(session, arguments)
        found = replace(explained(choice), arguments=words, preset=router)
        told = (*render.lines(choice), *render.argument_lines(found), *render.router_lines(found))
        if model is None:
            return CommandResult(found, told)
        if "://" not in model:
            from tsuku_llm.steps.report.models import model_arguments

            _, model, *rest = model_arguments(session, model, arguments)
            arguments = tuple(rest)
        fit = explain_model(session, choice, model, arguments, simulated=hardware is not None)
    return CommandResult(replace(found, model=fit), (*told, *render.fit_lines(fit)))


@click.command("backends", cls=Command)
@options.setting("channel")
@options.release
@options.setting("repository")
@options.hardware
@click.pass_obj
def backends_command(
    console: Console,
    *,
    channel: str | None,
    release: str | None,
    repository: str | None,
    hardware: Path | None,
) -> CommandResult:
    """List every variant, whether it fits, and whether it is installed."""
    with open_session(
        console,
        looking=True,
        probes=hardware is None,
        channel=channel,
        repository=repository,
    ) as session:
        from tsuku_llm.cli.render import choice as render
        from tsuku_llm.steps.report.explain import backends

        matrix = backends(session, release=release, hardware_file=hardware)
    return CommandResult(matrix, render.matrix_lines(matrix))


@click.command(
    "probe",
    cls=Command,
    examples={
        f"{TSUKU} probe --record machine.json": "Write a file for a report.",
    },
)
@click.option(
    "--record",
    type=options.FILE,
    metavar="FILE",
    help="Write what the machine answered into FILE, without names and serial numbers.",
)
@click.pass_obj
def probe_command(console: Console, *, record: Path | None) -> CommandResult:
    """Show the GPUs and drivers of this machine."""
    with open_session(console, looking=True, probes=True) as session:
        from tsuku_llm.cli.render import choice as render
        from tsuku_llm.steps.prefetch import probe_machine

        hardware = probe_machine(
            session.machine.host, session.settings.probe_timeout, record=record
        )
    return CommandResult(
        {"platform": hardware.platform, "hardware": hardware, "recorded": record},
        render.hardware_lines(hardware, record),
    )


@click.command(
    "doctor",
    cls=Command,
    examples={
        f"{TSUKU} doctor": "Find the first cause, and how to mend it.",
        f"{TSUKU} doctor --backend cuda": "Find out why CUDA is not used.",
    },
)
@options.setting("backend")
@options.setting("channel")
@options.setting("repository")
@click.pass_obj
def doctor_command(
    console: Console, *, backend: str | None, channel: str | None, repository: str | None
) -> CommandResult:
    """Find out why the GPU is not used, and what helps.

    Check each link from the GPU to the server, name the first that is broken, and one fix.
    """
    with open_session(
        console,
        looking=True,
        probes=True,
        tolerant=True,
        backend=backend,
        channel=channel,
        repository=repository,
    ) as session:
        from tsuku_llm.cli.render import doctor as render
        from tsuku_llm.steps.report.doctor import examine

        examination = examine(session)
    return CommandResult(
        examination,
        render.lines(examination),
        exit_code=examination.chain.exit_code,
        # For people the text says what is broken; only a program needs an error.
        failure=render.failure(examination.chain) if console.json else None,
    )
