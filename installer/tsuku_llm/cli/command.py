"""The classes of our click commands: with our help, our ``--json``, and a note of the command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import click

from tsuku_llm.cli.terminal.answer import CommandResult, EarlyExit
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.style import COLORS
from tsuku_llm.ground.errors import NotInstalled, NotRunning, UsageError
from tsuku_llm.ground.own_name import PROGRAM, TSUKU, typed


def _show_help(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        text = context.get_help()
        show(CommandResult({"help": text}, tuple(text.splitlines())))


def show(answer: CommandResult) -> NoReturn:
    """End the command early with an answer; ``--json`` wraps it like any other."""
    raise EarlyExit(answer)


def early_flag(*names: str, callback: Callable[..., None], text: str) -> click.Option:
    """Return a flag whose callback runs before any other option is checked."""
    return click.Option(
        names, is_flag=True, is_eager=True, expose_value=False, callback=callback, help=text
    )


HELP = early_flag("-h", "--help", callback=_show_help, text="Show this help and exit.")
JSON = click.Option(
    ["--json"],
    is_flag=True,
    expose_value=False,  # ``program.wants_json`` reads it first: errors need it too
    help="Print one JSON document on stdout, and nothing else there.",
)


def _say_more_or_less(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    console = context.ensure_object(Console)
    quiet = parameter.name == "quiet"
    if console.verbose if quiet else console.quiet:
        raise UsageError("--quiet and --verbose cannot be combined", hint="omit one of them")
    if quiet:
        console.be_quiet()
    else:
        console.verbose = True


# Early: a note may come from the first option that is checked.
QUIET = early_flag(
    "-q", "--quiet", callback=_say_more_or_less, text="Print results, questions and errors only."
)
VERBOSE = early_flag(
    "-v", "--verbose", callback=_say_more_or_less, text="Print all details of the answer, too."
)
COLOR = click.Option(
    ["--color"],
    type=click.Choice(COLORS),
    expose_value=False,  # ``program.wanted_color`` reads it first: errors need it too
    help="Use colours; auto: on a terminal.",
)
GLOBAL = (JSON, QUIET, VERBOSE, COLOR)
"""The options that each command has, and that may also come before it."""


ARGV = "tsuku_llm.argv"
"""The key under which a context keeps the arguments given to a command."""

_WIDEST = 100
"""The most columns of a help text: longer lines are hard to read."""


_HYPHEN = "\N{NON-BREAKING HYPHEN}"
"""Stands for a hyphen while click wraps a text: click would break --require-gpu after one."""


class HelpText(click.HelpFormatter):
    """A help text that fits the terminal, also a narrow one."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, **_: Any) -> None:
        # click takes 50 columns at least, so that a narrower terminal breaks lines in mid-word.
        from shutil import get_terminal_size

        columns = get_terminal_size().columns if width is None else width
        super().__init__(indent_increment, width=max(min(columns, _WIDEST), 20))

    def write_text(self, text: str) -> None:
        """Write a text, wrapped between words."""
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write terms and their texts; the text gets two thirds of a narrow line."""
        whole = [(term, text.replace("-", _HYPHEN)) for term, text in rows]
        super().write_dl(whole, min(col_max, self.width // 3), col_spacing)

    def write_examples(self, examples: Mapping[str, str]) -> None:
        """Write each call, and below it what it does."""
        with self.section("Examples"):
            for call, meaning in examples.items():
                if TSUKU == PROGRAM:
                    self.write_text(call)
                else:  # wrapped, the path of a script would be cut
                    self.write(f"{'':{self.current_indent}}{call}\n")
                with self.indentation(), self.indentation():
                    self.write_text(meaning)

    def getvalue(self) -> str:
        """Return the whole text."""
        lines = super().getvalue().replace(_HYPHEN, "-").splitlines()
        return "".join(f"{line.rstrip()}\n" for line in lines)


class HelpContext(click.Context):
    """A context whose help texts are ours."""

    formatter_class = HelpText


class Command(click.Command):
    """A command that takes ``--json`` and returns a ``CommandResult``.

    ``examples`` are correct calls, each with what it does, for the help.
    """

    context_class = HelpContext

    def __init__(
        self, *args: Any, examples: Mapping[str, str] = MappingProxyType({}), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.extend(GLOBAL)

    def get_help_option(self, ctx: click.Context) -> click.Option:
        """Return our help option: help is an answer."""
        return HELP

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples at the end of the help."""
        if self.examples and isinstance(formatter, HelpText):
            formatter.write_examples(self.examples)
        super().format_epilog(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note which command this is before its arguments can be wrong."""
        # The JSON document of an error has its name, without that of the program.
        ctx.ensure_object(Console).command = " ".join(ctx.command_path.split()[1:])
        # click's own words for a stray argument do not say what to type. A group's are commands.
        ctx.allow_extra_args = True
        _refuse_empty(self, ctx, args)
        given = ctx.meta[ARGV] = tuple(args)  # click takes the words out
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _no_such_option(error.option_name, given, ctx) from error
        except click.BadOptionUsage as error:  # it does not know its command
            raise UsageError(
                f"{error.option_name} needs a value", hint=f"see: {typed(ctx.command_path)} --help"
            ) from error
        except click.BadParameter as error:
            from tsuku_llm.cli.suggestions import habit

            if meant := habit(given, ctx):
                raise UsageError(error.format_message().rstrip("."), hint=meant.hint) from error
            raise
        if rest and not isinstance(self, click.Group) and not ctx.resilient_parsing:
            raise _stray(rest, given, ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a name that nothing has may be a word of another tool's."""
        try:
            return super().invoke(ctx)
        except (NotInstalled, NotRunning) as error:
            if given := ctx.meta[ARGV]:
                from tsuku_llm.cli.suggestions import habit

                if meant := habit(given, ctx):
                    error.hint = meant.hint
            raise


class Launching(Command):
    """A command whose arguments after ``--`` are those of the program that it starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they are, and say where an option belongs that is not ours."""
        after = len(args) - args.index("--") - 1 if "--" in args else 0
        rest = super().parse_args(ctx, args)
        arguments = ctx.params.get("arguments") or ()
        own = list(arguments[: len(arguments) - after])
        if tool := ctx.params.get("tool"):
            # A tool may have words of any kind (llama-quantize IN OUT); it has no such name itself.
            if set(tool.removesuffix(".exe")) & set("/:."):
                from tsuku_llm.cli.suggestions import habit

                if meant := habit(ctx.meta[ARGV], ctx):
                    raise UsageError(f"the installed build has no tool {tool!r}", hint=meant.hint)
        elif own and not own[0].startswith("-"):
            from tsuku_llm.cli.suggestions import server_call

            call = server_call(ctx.meta[ARGV], ctx)
            if call is None or not call.is_certain:
                raise _stray(own, ctx.meta[ARGV], ctx)
            # A word alone is the model: parse the call with it in its place.
            ctx.params.clear()
            ctx.meta[ARGV] = call.words
            return super().parse_args(ctx, list(call.words))
        return rest


class Group(Command, click.Group):
    """A command with subcommands."""

    command_class = Command
    invoke = click.Group.invoke  # the subcommand has suggested what was meant, if anything

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.no_args_is_help = False  # a missing command is an error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their whole summaries, which click would cut."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(limit=1000))
                    for name, command in commands
                    if command and not command.hidden
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and say which one an unknown name may mean."""
        try:
            return super().resolve_command(ctx, args)
        # Not an unknown option, which has another class.
        except click.UsageError as error:
            from tsuku_llm.cli.suggestions import command_for, habit

            meant = habit(args, ctx)
            if meant and meant.is_certain:
                return super().resolve_command(ctx, list(meant.words))
            if meant:
                raise UsageError(f"there is no command {args[0]!r}", hint=meant.hint) from error
            near = command_for(args, ctx)
            hint = f"did you mean: {near}" if near else f"see: {typed(ctx.command_path)} --help"
            raise UsageError(f"there is no command {args[0]!r}", hint=hint) from error


def _no_such_option(option: str, given: Sequence[str], context: click.Context) -> UsageError:
    """Return the error for an unknown option: the one that may be meant, or who has it."""
    from tsuku_llm.cli.suggestions import (
        backend_call,
        habit,
        option_for,
        owners_of,
        server_call,
        server_option,
        takes_tool,
    )

    if len(option) == len("-f"):  # click takes a long one of llama-server, -hf, for -h and -f
        option = next((each for each in given if re.match(f"-[a-z]*{option[1]}", each)), option)
    message = f"{context.command_path} has no option {option}"
    meant = habit(given, context)
    if meant is None and not isinstance(context.command, Launching):
        meant = backend_call(option, given, context)
    if meant:
        return UsageError(message, hint=meant.hint)
    # Exactly this option elsewhere says more than a similar one here.
    owners = owners_of(option, context)
    near = option_for(option, context, similar=not owners)
    hints = [f"did you mean {near}?"] if near else []
    if isinstance(context.command, Launching):
        call = server_call(given, context)
        # An option that is like none of ours is most likely the server's; every one is a tool's.
        is_like_none = near == option_for(option, context, similar=False) and not owners
        if call and (is_like_none or server_option(option, context) or takes_tool(context)):
            return UsageError(message, hint=call.hint)
        if not owners:
            example = next(call for call in context.command.examples if " -- " in call)
            hints.append(f"put arguments that are not for tsuku-llm after --: {example}")
    return UsageError(
        message,
        facts=() if near else tuple(f"{owner} has it" for owner in owners),
        hint=" ".join(hints) or f"see: {typed(context.command_path)} --help",
    )


def _refuse_empty(command: click.Command, context: click.Context, args: list[str]) -> None:
    """Refuse an empty text: as a name or a file it would mean another one, or none."""
    # Nearly always there is none: then spare each start a second parser.
    if all(word and not word.endswith("=") for word in args) or context.resilient_parsing:
        return
    from tsuku_llm.config.keys import KEYS

    # These have a check that says what an empty text means.
    checked = {"arguments", "value", *(key.name.removeprefix("llm.") for key in KEYS)}
    try:
        given, _, _ = command.make_parser(context).parse_args(list(args))
    except click.UsageError:
        return  # the real parser says so
    for parameter in command.get_params(context):
        value = given.get(parameter.name or "")
        if parameter.name in checked:
            continue
        if value == "" or (isinstance(value, (tuple, list)) and "" in value):
            is_option = isinstance(parameter, click.Option)
            name = parameter.opts[-1] if is_option else parameter.human_readable_name.strip("[].")
            leave = f"to give no value: leave {name} out"
            raise UsageError(
                f"{name} must not be empty",
                hint=f"see: {typed(context.command_path)} --help" if parameter.required else leave,
            )


def _stray(words: Sequence[str], given: Sequence[str], context: click.Context) -> UsageError:
    """Return the error for words that are no argument of a command, with what they may mean."""
    from tsuku_llm.cli.suggestions import habit, server_call

    named = " and ".join(repr(word) for word in words)
    message = f"{context.command_path} does not take {named}"
    call = habit(given, context)
    if isinstance(context.command, Launching):
        call = server_call(given, context)
    if call:
        return UsageError(message, hint=call.hint)
    return UsageError(message, hint=f"see: {typed(context.command_path)} --help")
