"""The classes of our click commands: with our help, our ``--json``, and a note of the command."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from tsuku_llm.cli.answer import CommandResult, EarlyExit
from tsuku_llm.cli.console import Console
from tsuku_llm.errors import UsageError, did_you_mean


def _show_help(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        text = context.get_help()
        show(CommandResult({"help": text}, tuple(text.splitlines())))


def show(answer: CommandResult) -> NoReturn:
    """End the command early with an answer; ``--json`` wraps it like any other."""
    raise EarlyExit(answer)


HELP = click.Option(
    ["-h", "--help"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_help,
    help="Show this help and exit.",
)
JSON = click.Option(
    ["--json"],
    is_flag=True,
    expose_value=False,  # ``program.wants_json`` reads it first: errors need it too
    help="Print one JSON document on stdout, and nothing else there.",
)


ARGV = "tsuku_llm.argv"
"""The key under which a context keeps the arguments given to a launching command."""


class Command(click.Command):
    """A command that takes ``--json`` and returns a ``CommandResult``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(JSON)

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002
        """Return our help option: help is an answer."""
        return HELP

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note which command this is before its arguments can be wrong."""
        _remember(ctx)
        return super().parse_args(ctx, args)


class Launching(Command):
    """A command whose arguments after ``--`` are those of the program that it starts.

    ``example`` is a correct call.
    """

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._example = example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they are, and say where an option belongs that is not ours."""
        # ``serve --detach`` starts this program again with the same arguments.
        ctx.meta[ARGV] = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise UsageError(
                error.format_message().rstrip("."),
                hint=f"put arguments that are not for tsuku-llm after --: {self._example}",
            ) from error


class Group(click.Group):
    """A command with subcommands."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.no_args_is_help = False  # a missing command is an error
        self.params.append(JSON)

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002
        """Return our help option: help is an answer."""
        return HELP

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note which command this is before its arguments can be wrong."""
        _remember(ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and say which one a mistyped name may mean."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = did_you_mean(args[0], self.list_commands(ctx), f"see: {ctx.command_path} --help")
            raise UsageError(error.format_message().rstrip("."), hint=hint) from error


def _remember(context: click.Context) -> None:
    """Write the command's full name into the console, for the JSON document of an error."""
    names: list[str] = []
    step: click.Context | None = context
    while step is not None and step.parent is not None:
        names.insert(0, step.info_name or "")
        step = step.parent
    context.ensure_object(Console).command = " ".join(names)
