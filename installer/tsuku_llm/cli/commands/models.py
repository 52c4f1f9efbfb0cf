"""The command ``models``."""

from __future__ import annotations

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.own_name import TSUKU


@click.command(
    "models",
    cls=Command,
    examples={
        f"{TSUKU} models": "See the names, and whether each model fits into memory.",
        f"{TSUKU} serve -m NAME": "Serve one of them.",
        f"{TSUKU} config set llm.model_path ~/models": "Look into this folder, too.",
    },
)
@click.pass_obj
def models_command(console: Console) -> CommandResult:
    """List the models that are on this machine already.

    They are found in the caches of Hugging Face, llama.cpp, LM Studio and Ollama, and in the
    folders of llm.model_path. Nothing there is changed.
    """
    with open_session(console, looking=True, probes=True) as session:
        from tsuku_llm.cli.render import models as render
        from tsuku_llm.steps.report.models import list_models

        listed = list_models(session)
    return CommandResult(listed, render.lines(listed))
