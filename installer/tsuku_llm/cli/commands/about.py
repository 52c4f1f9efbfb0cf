"""The commands about this program itself: help, version, completion, self-update."""

from __future__ import annotations

import click

from tsuku_llm._version import __version__
from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import PROGRAM, TSUKU, typed


@click.command("help", cls=Command, examples={f"{TSUKU} help config set": "Show one command."})
@click.argument("command", nargs=-1, shell_complete=options.completed_by("command"))
@click.pass_context
def help_command(context: click.Context, command: tuple[str, ...]) -> CommandResult:
    """Show the help of a command.

    Without COMMAND show the help of the program.
    """
    found = context.find_root()
    for word in command:
        if not isinstance(found.command, click.Group):
            raise UsageError(
                f"{found.command_path} has no command {word!r}",
                hint=f"see: {typed(found.command_path)} --help",
            )
        _, below, _ = found.command.resolve_command(found, [word])
        assert below
        found = below.context_class(below, parent=found, info_name=word)
    text = found.get_help()
    return CommandResult({"help": text}, tuple(text.splitlines()))


@click.command("version", cls=Command)
def version_command() -> CommandResult:
    """Show the version of this program, and how it was installed.

    The command list shows the installed builds.
    """
    from tsuku_llm.cli.render import self_update as render
    from tsuku_llm.steps.program.copy_facts import own_updater

    updater = own_updater()
    return CommandResult(
        {"version": __version__, "way": updater.way}, render.version_lines(PROGRAM, updater)
    )


@click.command(
    "completion",
    cls=Command,
    examples={
        f'eval "$({TSUKU} completion bash)"': "The line for ~/.bashrc.",
        f'eval "$({TSUKU} completion zsh)"': "The line for ~/.zshrc, after compinit.",
        f"{TSUKU} completion fish | source": "The line for ~/.config/fish/config.fish.",
        f"{TSUKU} completion powershell | Out-String | Invoke-Expression": "The line for the "
        "file that $PROFILE names.",
    },
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "powershell"]))
def completion_command(shell: str) -> CommandResult:
    """Print a script that completes words in a shell.

    It completes commands, options and their values, such as variants, releases and servers.
    """
    from tsuku_llm.cli.completion import script

    text = script(shell)
    return CommandResult({"shell": shell, "script": text}, tuple(text.splitlines()), exact=True)


@click.command(
    "self-update",
    cls=Command,
    examples={
        f"{TSUKU} self-update --dry-run": "Show how this copy was installed, and its updater.",
        f"{TSUKU} self-update --yes": "Update without a question.",
    },
)
@click.option("--dry-run", is_flag=True, help="Show what would be run; run nothing.")
@click.option("--yes", is_flag=True, help="Run the updater without a question.")
@click.pass_obj
def self_update_command(console: Console, *, dry_run: bool, yes: bool) -> CommandResult:
    """Update this program; the builds stay as they are.

    Without a terminal and without --yes it changes nothing. The command update updates the builds.
    """
    # Before the updater replaces the files of this program.
    from tsuku_llm.cli.render import self_update as render
    from tsuku_llm.cli.session import open_session
    from tsuku_llm.machine.own_copy import Updater
    from tsuku_llm.steps.program.self_update import self_update

    def agreed(updater: Updater) -> bool:
        return yes or console.ask(f"update {PROGRAM}: {render.steps(updater)}?")

    # Its session may be needed in an unsafe store, too: it reads no build.
    with open_session(console, looking=True, tolerant=True, quiet=True) as session:
        done = self_update(session, dry_run=dry_run, agreed=agreed)
    return CommandResult(done, render.lines(done))
