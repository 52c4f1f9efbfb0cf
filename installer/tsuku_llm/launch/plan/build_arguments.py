"""The arguments of one build's server, from its own ``--help``. Pure.

Upstream adds and removes arguments every week, so no list of ours can say what a build has. The
receipt keeps the lines of its help, and every function here reads those. An empty list of lines
means that the build's arguments are not known: then nothing is said about any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from tsuku_llm.ground.errors import UsageError, did_you_mean
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.launch.plan.wishes import spelled

# One line of the help (``common_arg::to_string`` in upstream's common/arg.cpp): the names, the
# hint for each value, and after three or more spaces the text; a long head stands alone.
_NAME = r"--?[A-Za-z0-9][^\s,]*"
_HEAD = re.compile(rf"({_NAME}(?:,\s+{_NAME})*)(.*)")
_TEXT = re.compile(r"\s{3,}")
_VARIABLE = re.compile(r"\(env: (\w+)\)")
_REMOVED = "the argument has been removed"
_ADVICE = re.compile(rf"{_REMOVED}\.? ?([^(]*)")
_OPENING, _CLOSING = "<[{(", ">]})"
_NEEDED = frozenset({"--help", "--model", "--host", "--port"})
"""Arguments of every server. A text without them is no help of a server."""

_SUCCESSORS = {
    "--mmap": "--load-mode mmap",
    "--no-mmap": "--load-mode none",
    "--mlock": "--load-mode mlock",
    "-dio": "--load-mode dio",
    "--direct-io": "--load-mode dio",
    "-ndio": "--load-mode mmap",
    "--no-direct-io": "--load-mode mmap",
}
"""Arguments that later builds do not have and do not mention, with what does the same there.

The help of b10434 has both and says so: "DEPRECATED in favor of `--load-mode`".
"""
_PREDECESSORS = {"--load-mode none": "--no-mmap"}


class KnownArgument(NamedTuple):
    """One argument: its ``names``, its number of ``values``, and its environment variable.

    ``removed`` is upstream's advice on an argument that is only refused, None for any other one.
    ``hint`` is what the help writes for its values, such as ``N``.
    """

    names: tuple[str, ...]
    values: int
    variable: str | None
    removed: str | None
    hint: str = ""

    def refusal(self, word: str) -> str | None:
        """Return why a build refuses the argument ``word`` with any value, None if it takes it."""
        if self.removed is None:
            return None
        return f"it has no {word} any more{f': {self.removed}' if self.removed else ''}"


class Understood(NamedTuple):
    """One word of a command line as a build reads it, with its values and the other names.

    ``problem`` says why the build refuses it, None if it does not. ``source`` is the file that has
    it, or its variable, None for the command line.
    """

    word: str
    values: tuple[str, ...]
    names: tuple[str, ...]
    variable: str | None
    problem: str | None = None
    source: str | None = None


def help_lines(text: str) -> tuple[str, ...]:
    """Return one line for each argument in a help, with what is read here; () for another text."""
    lines: list[str] = []
    for block in _blocks(text):
        head, about = block[0], " ".join(block[1:])
        advice, variable = _ADVICE.search(about), _VARIABLE.search(about)
        said = [advice[0].strip()] if advice else []
        said += [variable[0]] if variable else []
        lines.append("   ".join([head, " ".join(said)]) if said else head)
    names = {name for each in arguments_in(lines) for name in each.names}
    return tuple(lines) if names >= _NEEDED else ()


def arguments_in(lines: Sequence[str]) -> Iterator[KnownArgument]:
    """Yield the arguments in lines as ``help_lines`` returns them."""
    for line in lines:
        found = _HEAD.match(line)
        if found is None:
            continue
        hint, about = _split(found[2])
        advice, variable = _ADVICE.search(about), _VARIABLE.search(about)
        yield KnownArgument(
            names=tuple(re.split(r",\s+", found[1])),
            values=_count(hint),
            variable=variable[1] if variable else None,
            removed=advice[1].strip() if advice else None,
            hint=hint,
        )


def understood(argv: Sequence[str], lines: Sequence[str]) -> Iterator[Understood]:
    """Yield how a build reads each argument of a command line; nothing for unknown ``lines``."""
    known = {name: each for each in arguments_in(lines) for name in each.names}
    words = iter(argv if known else ())
    for word in words:
        name = spelled(word)
        found = known.get(name)
        if found is None:
            # What follows "=" may be a key.
            shown = word.partition("=")[0]
            yield Understood(word, (), (), None, f"it has no {shown}{instead(word, known)}")
            continue
        values = tuple(islice(words, found.values))
        problem = found.refusal(word)
        if problem is None and len(values) < found.values:
            problem = f"{word} has no value"
        others = tuple(each for each in found.names if each != name)
        yield Understood(word, values, others, found.variable, problem)


def problems(argv: Sequence[str], lines: Sequence[str]) -> tuple[str, ...]:
    """Return why a build refuses a command line; nothing if it takes it, or is not known."""
    found: list[str] = []
    for each in understood(argv, lines):
        if each.problem:
            found.append(each.problem)
            # What follows an unknown word may be its value: only the first one is sure.
            if not each.names:
                break
    return tuple(found)


def require_known(argv: Sequence[str], lines: Sequence[str], build: str) -> None:
    """Raise UsageError for an argument that a build does not have, before it is started."""
    found = problems(argv, lines)
    if found:
        raise UsageError(
            f"{build} does not take these arguments: {found[0]}",
            facts=found[1:],
            hint=f"change or leave out what it does not take; its arguments: {TSUKU} serve -- "
            "--help",
        )


def in_words_of(text: str, lines: Sequence[str]) -> str:
    """Return a hint of ours with arguments that a build has, in place of those that it has not."""
    known = {name for each in arguments_in(lines) for name in each.names}
    for new, old in _PREDECESSORS.items():
        if old in known and new.partition(" ")[0] not in known:
            text = text.replace(new, old)
    return text


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield the parts of a help: the head of an argument, and then the lines of its text."""
    block: list[str] = []
    for line in text.splitlines():
        found = _HEAD.match(line)
        if found:
            if block:
                yield block
            hint, about = _split(found[2])
            block = [f"{found[1]}{f' {hint}' if hint else ''}", about]
        elif block and line.startswith(" "):
            block.append(line.strip())
        elif block:
            yield block
            block = []
    if block:
        yield block


def _split(rest: str) -> tuple[str, str]:
    """Split what follows the names of an argument into the hint for values and the text."""
    hint, *about = _TEXT.split(rest, maxsplit=1)
    return hint.strip(), about[0].strip() if about else ""


def _count(hint: str) -> int:
    """Count the values in a hint: spaces within brackets separate none."""
    depth, found = 0, 1 if hint else 0
    for char in hint:
        depth += (char in _OPENING) - (char in _CLOSING)
        found += char == " " and depth <= 0
    return found


def instead(word: str, known: Mapping[str, KnownArgument]) -> str:
    """Return what to write instead of a word that a build does not know, to follow its name."""
    successor = _SUCCESSORS.get(spelled(word))
    if successor and successor.partition(" ")[0] in known:
        return f" any more: use {successor}"
    name, equals, _ = word.partition("=")
    if equals and name in known:
        return f"=VALUE: write {name} VALUE"
    usable = [name for name, each in known.items() if each.removed is None]
    # Only the dashes are wrong: --ngl (llama.cpp#23739), n-gpu-layers=0 (gpustack#3850).
    same = next((each for each in usable if each.lstrip("-") == name.lstrip("-")), None)
    if same:
        return f": write {same}{' VALUE' if equals else ''}"
    longs = (name[2:] for name in usable if name.startswith("--"))
    alike = did_you_mean(word, longs, before="--") if word.startswith("--") else ""
    return f": {alike}" if alike else ""
