"""The command ``self-update``."""

from __future__ import annotations

import click

from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console


@click.command(
    "self-update",
    cls=Command,
    examples={
        "tsuku-llm self-update --dry-run": "Show how this copy was installed, and its updater.",
        "tsuku-llm self-update --yes": "Update without a question.",
    },
)
@click.option("--dry-run", is_flag=True, help="Show what would be run; run nothing.")
@click.option("--yes", is_flag=True, help="Run the updater without a question.")
@click.pass_obj
def self_update_command(console: Console, *, dry_run: bool, yes: bool) -> CommandResult:
    """Update this program with the tool that installed it.

    Without a terminal and without --yes it changes nothing. To update the builds: tsuku-llm update
    """
    # Before the updater replaces the files of this program.
    from tsuku_llm.cli.render import self_update as render
    from tsuku_llm.operations.self_update import self_update
    from tsuku_llm.own_copy import Updater

    def agreed(updater: Updater) -> bool:
        return yes or console.ask(f"run {render.commands_line(updater)}?")

    done = self_update(dry_run=dry_run, agreed=agreed)
    return CommandResult(render.data(done), render.lines(done))
