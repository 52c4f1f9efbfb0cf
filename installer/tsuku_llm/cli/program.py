"""The program as click sees it; each command is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from tsuku_llm._version import REPORTS, __version__
from tsuku_llm.cli.command import GLOBAL, Group, early_flag, show
from tsuku_llm.cli.table import COMMANDS, SECTIONS
from tsuku_llm.cli.terminal import streams
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.style import COLORS
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import PROGRAM, TSUKU, typed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Program(Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, as click's documentation has it for lazily loaded subcommands."""
        if cmd_name not in COMMANDS:
            return None
        # Only names from the table come here: no other module can be imported this way.
        lazy = COMMANDS[cmd_name]
        module = import_module(f"{lazy.package}.cli.commands.{lazy.module}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete from the table; click would import every command for its summary."""
        from click.shell_completion import CompletionItem

        commands = COMMANDS.items()
        found = [CompletionItem(name, help=each.summary) for name, each in commands]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(each for each in found if each.value.startswith(incomplete)), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table as it is; click would import every command for its summary."""
        # One column for all sections.
        widest = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(name.ljust(widest), each.summary) for name, each in commands.items()]
                formatter.write_dl(rows)


def _show_version(context: click.Context, __: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from tsuku_llm.cli.render import self_update as render
    from tsuku_llm.steps.program.copy_facts import own_updater

    updater, name = own_updater(), context.info_name or PROGRAM
    lines = render.version_lines(name, updater)
    # A script expects one line. ``main`` answers most scripts without this function.
    shown = lines if streams.is_terminal(sys.stdout) else lines[:1]
    show(CommandResult({"version": __version__, "way": updater.way}, shown))


VERSION = early_flag(
    "--version",
    callback=_show_version,
    text="Show the version and how this copy was installed; without a terminal only the version.",
)


program = Program(
    PROGRAM,
    help="""Install and run the build of llama.cpp's server that fits this machine's GPU.""",
    epilog=f"\b\nReport problems at\n{REPORTS}",  # \b: never cut the address
    params=[VERSION],
    examples={
        f"{TSUKU} install": "Download, verify and install the build that fits.",
        f"{TSUKU} serve -m MODEL.gguf": "Serve a model; what follows -- goes to the server.",
        f"{TSUKU} help serve": "Show the options of serve.",
        f"{TSUKU} doctor": "Find out why the GPU is not used.",
    },
)


# Parses any arguments of ours, right or wrong, and keeps only what errors need as well.
_FORM_ONLY = click.Command(
    PROGRAM,
    params=[
        click.Option(["--json"], is_flag=True),
        click.Option(["--color"]),
        click.Argument(["rest"], nargs=-1),
    ],
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
)


def wants_json(argv: Sequence[str]) -> bool:
    """Return whether ``--json`` is among our arguments, even if the rest is wrong.

    click stops at the first mistake, and an error is printed as the user wants it, too.
    """
    # Most command lines lack the word: then spare each start a second parser.
    if "--json" not in argv:
        return False
    return bool(_form(argv)["json"])


def wanted_color(argv: Sequence[str]) -> str:
    """Return what ``--color`` says among our arguments, even if the rest is wrong."""
    if not any(word.startswith("--color") for word in argv):
        return "auto"
    color = _form(argv)["color"]
    # Another word is an error, which click finds.
    return color if color in COLORS else "auto"


def _form(argv: Sequence[str]) -> dict[str, Any]:
    context = _FORM_ONLY.make_context(PROGRAM, list(argv), resilient_parsing=True)
    return context.params


def invoke(
    argv: Sequence[str], console: Console, group: click.Group | None = None
) -> CommandResult:
    """Parse the arguments and run the command of a group that they name; ours if None.

    Raises ``UsageError``.
    """
    group = group or program
    name = group.name or PROGRAM
    # Without arguments show the help, and exit with 0.
    arguments = list(argv) or ["--help"]
    try:
        if arguments[0].startswith("-") and group is program:
            arguments = _as_meant(arguments, console)
        with group.make_context(name, arguments, obj=console) as context:
            answer: CommandResult = group.invoke(context)
    except click.ClickException as error:
        # The context has noted the command by now, so the JSON document can name it.
        raise _as_usage_error(error, name) from error
    return answer


def _as_meant(arguments: list[str], console: Console) -> list[str]:
    """Return the arguments of a call without a command, as of llama-server, with our command."""
    at = next((at for at, word in enumerate(arguments) if word not in _FLAGS), 0)
    words = arguments[at:]
    if not words[0].startswith("-") or words in (["--help"], ["--version"]):
        return arguments
    from tsuku_llm.cli.suggestions import habit

    meant = habit(words, click.Context(program, info_name=PROGRAM, obj=console))
    return [*arguments[:at], *meant.words] if meant and meant.is_certain else arguments


_FLAGS = frozenset(
    name for each in GLOBAL if each.name != "help" and each.is_flag for name in each.opts
)


def _as_usage_error(error: click.ClickException, name: str) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else name
    # click lists choices in several lines, and calls a whole number a "valid integer range".
    text = " ".join(error.format_message().split()).rstrip(".")
    text = text.replace("a valid integer range", "a whole number")
    hint = f"see: {typed(path)} --help"
    if context and text.startswith("Missing"):
        from tsuku_llm.cli.suggestions import habit

        meant = habit((), context)
        hint = meant.hint if meant else hint
    return UsageError(text, hint=hint)
