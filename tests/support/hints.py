"""Follow each hint that a test makes the program print: its calls are parsed as if typed."""

import re
import shlex
from collections.abc import Iterator

import click

from tsuku_llm.cli.program import program
from tsuku_llm.cli.terminal.answer import EarlyExit
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import UsageError

_CALL = re.compile(r"(?<![\w./-])tsuku-llm ((?:'[^']*'|[^;,()`'])*)")


_PROSE = {"after", "again", "and", "finds", "for", "has", "installs", "lists", "names", "on", "or"}
_PROSE |= {"says", "shows", "to", "where", "with"}
"""Words that follow a call in a sentence."""


def check_hints(text: str) -> None:
    """Fail if the hint of an error has a call of ours that the program refuses."""
    for line in text.splitlines():
        # A guess only names the command: what it needs is the next error's to say.
        guess = "did you mean" in line or "after --: " in line
        wrong = [call for call in calls(line) if not is_a_call(call, guess=guess)]
        assert not wrong, f"a hint leads nowhere: {wrong}"


def calls(line: str) -> Iterator[str]:
    """Yield the calls in the hint of an error, without the name of the program."""
    if line.startswith("hint: "):
        for found in _CALL.finditer(line):
            yield found[1].partition(": ")[0].strip(" .?:")


def is_a_call(call: str, *, guess: bool = False) -> bool:
    """Tell whether the words are a call, which prose may follow ("tsuku-llm list shows them")."""
    words = shlex.split(call)
    prose = [at for at, word in enumerate(words) if word in _PROSE]
    return any(_parses(words[:at], guess=guess) for at in (len(words), *prose))


def _parses(words: list[str], *, guess: bool) -> bool:
    context: click.Context = click.Context(program, info_name="tsuku-llm", obj=Console())
    command: click.Command = program
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(context, words[0])
        if below is None:
            return False
        context = below.context_class(below, parent=context, info_name=words[0])
        command, words = below, words[1:]
    if isinstance(command, click.Group):
        # Without words: "run tsuku-llm again".
        may_end = guess or command is program
        return words == ["--help"] or (may_end and words in ([], ["--version"]))
    try:
        command.make_context(context.info_name, words, parent=context.parent)
    except EarlyExit:
        return True
    except click.MissingParameter:
        return guess
    except (click.ClickException, UsageError):
        return False
    return True
