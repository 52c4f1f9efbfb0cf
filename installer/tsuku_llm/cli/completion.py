"""Completion in a shell: the script that a shell loads, and the answers to that script.

click has both. At each TAB the script runs this program with the words in variables of the
environment.
"""

from __future__ import annotations

from contextlib import redirect_stderr, suppress
from io import StringIO

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from tsuku_llm.cli.main import COMPLETE
from tsuku_llm.cli.program import PROGRAM, program
from tsuku_llm.errors import UsageError


def script(shell: str) -> str:
    """Return the script that a shell loads. Raises ``UsageError`` if click has none for it."""
    return _completer(shell).source()


def answer(instruction: str) -> None:
    """Print the completions for a shell's script; print nothing after any error.

    A message would appear in the middle of what the user types.
    """
    shell = instruction.partition("_")[0]
    with redirect_stderr(StringIO()), suppress(Exception):
        found = _found(_completer(shell))
        if found:
            # Bytes: on Windows a text would get another line end than the script expects.
            click.echo(found.encode())


def _found(completer: ShellComplete) -> str:
    words, typed = completer.get_completion_args()
    given = ""
    if completer.name == "bash":
        *words, typed = _joined([*words, typed])
        # bash keeps what is before the last colon, and replaces only the rest.
        given = typed[: typed.rfind(":") + 1]
    # bash splits --backend=cu into three words; click expects two.
    words = [
        word
        for at, word in enumerate(words)
        if word != "=" or not at or not words[at - 1].startswith("-")
    ]
    # The other shells keep it as one word, and replace all of it.
    option, equals, _ = typed.partition("=")
    before = f"{option}=" if equals and option.startswith("-") and "--" not in words else ""
    found = completer.get_completions(words, typed)
    return "\n".join(
        completer.format_completion(
            CompletionItem(before + each.value.removeprefix(given), each.type, each.help)
        )
        for each in found
    )


def _joined(words: list[str]) -> list[str]:
    """Join what bash splits at colons: a model such as ``qwen2.5:7b`` is three words to it."""
    joined: list[str] = []
    for at, word in enumerate(words):
        if at and ":" in (word, words[at - 1]):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _completer(shell: str) -> ShellComplete:
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(
            f"the installed version of click has no completion for {shell}",
            hint="update it: python -m pip install -U click",
        )
    return kind(program, {}, PROGRAM, COMPLETE)
