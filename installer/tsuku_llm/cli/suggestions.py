"""What a mistyped or foreign command or option may mean here; imported for an error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import click

from tsuku_llm.cli.habits import HABITS, SAME_COMMANDS, SAME_OPTIONS, SERVER_OPTIONS
from tsuku_llm.cli.services.coding_tools import TOOLS
from tsuku_llm.config.keys import KEYS
from tsuku_llm.ground.own_name import PROGRAM, TSUKU, typed
from tsuku_llm.launch.plan.secret_arguments import masked
from tsuku_llm.machine.backends import ELSEWHERE, NAMES, REQUESTS, meaning
from tsuku_llm.model_caches.naming import OLLAMA, hub_arguments

_CUTOFF = 0.7
"""The least similarity of a word: below it a suggestion is more often wrong than right."""


_ASKS = "did you mean"


class Meaning(NamedTuple):
    """What a call means that other tools have; ``why`` comes before it in a hint."""

    words: tuple[str, ...]
    is_certain: bool
    why: str = _ASKS

    @property
    def hint(self) -> str:
        """What to type instead, with the user's words but without their secrets."""
        return f"{self.why}: {TSUKU} {shlex.join(masked(self.words))}"


def _key(word: str) -> str | None:
    key = word.removeprefix("llm.")
    return key if key in {each.key for each in KEYS} else None


_RELEASE = r"[bv]?\d[\w.+-]*"
_FORMS: Mapping[str, Callable[[str], str | Sequence[str] | None]] = {
    "FILE": lambda word: word if word.lower().endswith(".gguf") and "://" not in word else None,
    # ``-hf`` stands in the row, as most rows are read with it.
    "REPO": lambda word: (found := hub_arguments(word)) and found[1:],
    # A release, a variant or a server has no such name.
    "TAGGED": lambda word: word.removeprefix(OLLAMA) if ":" in word else None,
    "MODEL": lambda word: word.removeprefix(OLLAMA),
    # CUDA 12 is cuda12 to many, and has no build of that name.
    "BACKEND": lambda word: next(
        (each for each in (word, word.rstrip("0123456789.")) if _names_backend(each)), None
    ),
    "RELEASE": lambda word: word if re.fullmatch(_RELEASE, word) else None,
    "PINNED": lambda word: (
        (found := re.fullmatch(rf"llama\.cpp(?:@|==?)({_RELEASE})", word)) and found[1]
    ),
    "CHANNEL": lambda word: word if word in ("stable", "nightly") else None,
    "SHELL": lambda word: word if word in ("bash", "zsh", "fish", "powershell") else None,
    "OURSELVES": lambda word: word if word in (PROGRAM, "self") else None,
    "ANOTHER": lambda word: None if word in TOOLS else word,
    "SETTING": _key,
    "ASSIGNED": lambda word: (
        (key := _key((parts := word.partition("="))[0])) and (f"llm.{key}", parts[2])
    ),
}
"""What a word in upper case stands for: the words that the answer has; None if it is another."""


def habit(words: Sequence[str], context: click.Context) -> Meaning | None:
    """Return what a call means that is made as in another tool; None if no row has it.

    ``words`` are those after the command of ``context``.
    """
    path = context.command_path.split()
    if path[0] != PROGRAM:  # the publisher's program
        return None
    words = (*path[1:], *words)
    for row in HABITS.strip().splitlines():
        call, _, why = row.partition(" # ")
        form, sign, answer = re.split(" (=|->) ", call)
        values = _matched(form.split(), words)
        if values is not None:
            found = [part for word in answer.split() for part in _filled(word, values)]
            return Meaning(tuple(found), sign == "=", why or _ASKS)
    return None


def backend_call(option: str, given: Sequence[str], context: click.Context) -> Meaning | None:
    """Return what an option with the name of a backend means, which other installers have."""
    backend = re.sub("^(with|use|enable)-", "", option.removeprefix("--"))
    if "--backend" not in _options(context.command, context) or not _names_backend(backend):
        return None
    others = [word for word in given if word != option and word.startswith("-")]
    words = (*context.command_path.split()[1:], "--backend", backend, *others)
    return Meaning(words, is_certain=False)


def _matched(form: Sequence[str], words: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Return what each word in upper case of a form stands for; None if the form is another."""
    values: dict[str, tuple[str, ...]] = {}
    if form[-1] in ("...", "-..."):
        *form, rest = form
        words, values[rest] = words[: len(form)], tuple(words[len(form) :])
        if rest == "-..." and values[rest] and not _is_option(values[rest][0]):
            return None
    if len(form) != len(words):
        return None
    for each, word in zip(form, words, strict=True):
        if each.isupper() and each.isalpha():
            value = None if word.startswith("-") else _FORMS[each](word) if each in _FORMS else word
            if not value:
                return None
            values[each] = (value,) if isinstance(value, str) else tuple(value)
        elif each != word:
            return None
    return values


def _filled(word: str, values: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    before, dot, name = word.rpartition(".")
    if dot and name in values:  # llm.SETTING
        return (f"{before}.{values[name][0]}",)
    return values.get(word, (word,))


def server_call(args: Sequence[str], context: click.Context) -> Meaning | None:
    """Return a call of a launching command with every word in its place; None if one has none.

    What is not ours is the server's, and belongs after ``--``. A word alone is the model, or the
    tool. A certain call has only been put in order; its words are those after the command.
    """
    ours: list[str] = []
    theirs: list[str] = []
    is_certain, left = True, list(args)
    while left and (word := left.pop(0)) != "--":
        if _is_option(word):
            found, is_own = _our_option(word, left, context)
            is_certain = is_certain and is_own
            ours += found
            if not found:
                name, equals, value = word.partition("=")
                # The server knows no "=" in an argument.
                own = server_option(name, context)
                given = [own or name, *([value] if equals else [])]
                while left and not _is_option(left[0]):
                    given.append(left.pop(0))
                # An option takes one value at most: a file after that is the model.
                if len(given) > len(("-ngl", "99")) and given[-1].lower().endswith(".gguf"):
                    left.insert(0, given.pop())
                theirs += given
        elif takes_tool(context):
            (theirs if ours else ours).append(word)
        elif _names_backend(word):
            is_certain = False
            ours += ["--backend", word]
        elif "-m" in ours or "--model" in ours:
            return None
        else:
            ours += ["-m", word]
    theirs += left
    path = () if is_certain else context.command_path.split()[1:]
    words = (*path, *ours, *(["--"] if theirs else []), *theirs)
    return Meaning(
        words, is_certain, "put arguments that are not for tsuku-llm after --" if theirs else _ASKS
    )


def takes_tool(context: click.Context) -> bool:
    """Return whether a command starts a tool that the user names, and not the server."""
    return any(each.name == "tool" for each in context.command.params)


def server_option(name: str, context: click.Context) -> str | None:
    """Return what llama-server calls an option that other servers call ``name``, or None."""
    # A short one is another word elsewhere: -p is the prompt of llama-cli and of a conversation.
    if takes_tool(context) or not (name.startswith("--") or context.command.name == "serve"):
        return None
    return next((own for own, others in _lines(SERVER_OPTIONS) if name in others), None)


def _our_option(word: str, left: list[str], context: click.Context) -> tuple[list[str], bool]:
    """Return an option of a command with its value, which it takes from ``left``; [] if not ours.

    The second value tells whether the user wrote it so.
    """
    own = {
        name: option
        for option in context.command.get_params(context)
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }
    name, equals, value = word.partition("=")
    if option := own.get(name):
        needs = not option.is_flag and not equals
        # With a value for its absence, an option takes only what is none.
        takes = needs and left and (option.flag_value is None or not _is_option(left[0]))
        return [word, *([left.pop(0)] if takes else [])], True
    near = option_for(name, context, similar=False)
    if near == "--backend" and not value:
        value = left.pop(0) if left and _names_backend(left[0]) else name[2:]
    elif not near and "--backend" in own and name.startswith("--") and _names_backend(name[2:]):
        near, value = "--backend", name[2:]
    return [part for part in (near, value) if part and near], False


def _is_option(word: str) -> bool:
    """Tell whether a word is an option, and no value: a number may be negative."""
    return word.startswith("-") and not word[1:2].isdecimal()


def _names_backend(word: str) -> bool:
    known = (*REQUESTS, *ELSEWHERE)  # of the latter an error says what they mean here
    return meaning(word) in known or word.lower().partition("-")[0] in NAMES


def command_for(words: Sequence[str], context: click.Context) -> str | None:
    """Return the command line that words may mean in a group; None if the first is like none.

    It is a command of the group with a similar name or the same meaning, or one below it. The other
    words are kept where it takes words, unless one is an option: it may have other ones.
    """
    group = context.command
    names = tuple(_visible(group, context))
    # A word means the first that claims it: a name, then another word for it, then a name below it.
    meanings = {name: name for name in names}
    for name, others in _lines(SAME_COMMANDS):
        if name in names:
            for other in others:
                meanings.setdefault(other, name)
    for name in names:
        for below in _visible(_command(group, context, name), context):
            meanings.setdefault(below, f"{name} {below}")
    found = _nearest(words[0].lower(), meanings)
    if not found:
        return None
    meant = group
    for name in found.split():
        meant = _command(meant, context, name)
    takes = any(isinstance(each, click.Argument) for each in meant.params)
    kept = words[1:] if takes and not any(word.startswith("-") for word in words) else ()
    return f"{typed(context.command_path)} {shlex.join((*found.split(), *masked(kept)))}"


def option_for(word: str, context: click.Context, *, similar: bool) -> str | None:
    """Return the option of a command that an unknown one may mean; None if it is like none.

    Without ``similar`` it must have the same meaning.
    """
    own = _options(context.command, context)
    meanings = {name: name for name in own}
    for name, others in _lines(SAME_OPTIONS):
        if name in own:
            for other in others:
                meanings.setdefault(other, name)
    # Short options are all similar.
    if word in meanings or not similar or not word.startswith("--"):
        return meanings.get(word)
    # Without the dashes, which would make every two options similar.
    long = {name[2:]: option for name, option in meanings.items() if name.startswith("--")}
    return _nearest(word[2:].lower(), long)


def owners_of(option: str, context: click.Context) -> tuple[str, ...]:
    """List the other commands that have an option, as they are called."""
    root = context.find_root()
    return tuple(
        path
        for path, command in _all(root.command, root, root.command_path)
        if command is not context.command and option in _options(command, context)
    )


def _lines(table: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    for line in table:
        name, *others = line.split()
        yield name, others


def _nearest(word: str, meanings: Mapping[str, str]) -> str | None:
    near = get_close_matches(word, meanings, 1, _CUTOFF)
    return meanings[near[0]] if near else None


def _command(group: click.Command, context: click.Context, name: str) -> click.Command:
    assert isinstance(group, click.Group)
    command = group.get_command(context, name)
    assert command is not None
    return command


def _visible(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the names of a group's commands, without hidden ones; none for any other command."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if not _command(command, context, name).hidden:
                yield name


def _all(
    command: click.Command, context: click.Context, path: str
) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is not a group, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
    for name in _visible(command, context):
        yield from _all(_command(command, context, name), context, f"{path} {name}")


def _options(command: click.Command, context: click.Context) -> frozenset[str]:
    """Return the names of a command's options, without the hidden ones."""
    return frozenset(
        name
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in (*parameter.opts, *parameter.secondary_opts)
    )
