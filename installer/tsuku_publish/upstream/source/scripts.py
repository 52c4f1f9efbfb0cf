"""What the scripts of steps set: outputs and environment variables, and how they call CMake.

Only the few forms that upstream uses are read. A value from any other program is unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tsuku_publish.upstream.source.expressions import (
    UNKNOWN,
    Branches,
    Condition,
    Unknown,
    either,
    every,
    replaced,
)
from tsuku_publish.upstream.source.marked import UnreadableSource

Line = tuple[str, str | Unknown]
"""A place and the line there, unknown if one of its expressions is."""
Words = str | Unknown

COMMANDS = {"git rev-list --count HEAD": "{count}"}
"""Programs whose answer is kept as a word: the number of commits, which is in each tag."""

_WRITE = re.compile(
    r"""(?:echo\s+)?(?P<quote>["'])(?P<name>\w+)=(?P<value>.*)(?P=quote)\s*"""
    r"""(?:>>|\|\s*Out-File\s+-FilePath)\s*"?\$(?:\{?(?:env:)?)(?P<to>GITHUB_(?:OUTPUT|ENV))\b.*"""
)
_ASSIGN = re.compile(r"(?:export\s+)?\$?(?P<name>\w+)\s?=\s?(?P<value>\S.*|)")
_IF = re.compile(r"(?P<word>if|elif)\s+(?P<test>.*?)\s*;\s*then")
_EQUAL = re.compile(r"(?P<left>.+?)\s+(?P<sign>==?|!=)\s+(?P<right>.+)")
_CUT = re.compile(
    r"""echo\s+'?(?P<text>[^'|]*?)'?\s*\|\s*cut -d '(?P<by>.)' -f (?P<which>[0-9,]+)"""
)
_JOINED = re.compile(
    r"""\('(?P<text>[^']*)'\.Split\('(?P<by>.)'\)\[0\.\.(?P<last>[0-9])\] -join '(?P=by)'\)"""
)
_VARIABLE = re.compile(
    r"\$\{(?P<long>\w+)(?P<cut>%%\.\*)?\}|\$(?P<short>\w+)|\$\((?P<run>[^()]*(?:\([^()]*\)[^()]*)*)\)"
)


def written(lines: Iterable[Line]) -> dict[str, dict[str, Words]]:
    """Return what a script sets for the steps after it: name → value, by the file of the service.

    Those are GITHUB_OUTPUT and GITHUB_ENV. Raises ``UnreadableSource`` for a write that it cannot
    read.
    """
    result: dict[str, dict[str, Words]] = {"GITHUB_OUTPUT": {}, "GITHUB_ENV": {}}
    variables: dict[str, Words] = {}
    branches = Branches()
    for at, raw in lines:
        line = "" if raw is UNKNOWN else raw.strip()
        if match := _IF.fullmatch(line):
            begin = branches.begin if match["word"] == "if" else branches.go_on
            begin(_test(match["test"], variables))
        elif line == "else":
            branches.go_on(here=True)
        elif line == "fi":
            branches.end()
        elif branches.runs is False:
            continue
        elif match := _WRITE.fullmatch(line):
            value = expanded(match["value"], variables)
            result[match["to"]][match["name"]] = value if branches.runs is True else UNKNOWN
        elif "GITHUB_OUTPUT" in line:
            raise UnreadableSource(at, f"what it writes cannot be read: {line}")
        elif match := _ASSIGN.fullmatch(line):
            variables[match["name"]] = expanded(match["value"], variables)
    return result


def _test(text: str, variables: dict[str, Words]) -> Condition:
    inner = re.fullmatch(r"\[\[?\s+(.*?)\s+\]\]?", text)
    if inner is None:
        return UNKNOWN

    def equal(text: str) -> Condition:
        match = _EQUAL.fullmatch(text)
        sides = [expanded(match[name], variables) for name in ("left", "right")] if match else []
        if not match or UNKNOWN in sides:
            return UNKNOWN
        return (sides[0] == sides[1]) is (match["sign"] != "!=")

    return either(
        every(map(equal, re.split(r"\s+&&\s+", each))) for each in re.split(r"\s+\|\|\s+", inner[1])
    )


def expanded(text: str, variables: dict[str, Words]) -> Words:
    """Return a word of a script with its variables and the programs that are known."""
    if match := _JOINED.fullmatch(text.strip()):
        return match["by"].join(match["text"].split(match["by"])[: int(match["last"]) + 1])

    def value(match: re.Match[str]) -> Words:
        found = (
            _answer(match["run"])
            if match["run"]
            else variables.get(match["long"] or match["short"], UNKNOWN)
        )
        return found.partition(".")[0] if match["cut"] and found is not UNKNOWN else found

    bare = text.strip()
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'":
        bare = bare[1:-1]
    return replaced(_VARIABLE, value, bare)


def _answer(command: str) -> Words:
    if match := _CUT.fullmatch(command.strip()):
        parts = match["text"].split(match["by"])
        return match["by"].join(
            parts[int(n) - 1] for n in match["which"].split(",") if int(n) <= len(parts)
        )
    return COMMANDS.get(command.strip(), UNKNOWN)


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """One command of a script, its continued lines joined; ``at`` is its first line."""

    at: str
    words: tuple[str, ...]
    places: tuple[str, ...]
    """The line of each word."""


def commands(lines: Iterable[Line]) -> Iterator[ScriptCommand]:
    """Return the commands of a script, of all branches. An unknown line is one unknown word."""
    words: list[str] = []
    places: list[str] = []
    for at, raw in lines:
        line = "${unknown}" if raw is UNKNOWN else raw.rstrip()
        continued = line.endswith(("\\", "^", "`")) and not line.lstrip().startswith("#")
        found = _split(line[:-1] if continued else line)
        words += found
        places += [at] * len(found)
        if not continued:
            if words:
                yield ScriptCommand(places[0], tuple(words), tuple(places))
            words, places = [], []
    if words:
        yield ScriptCommand(places[0], tuple(words), tuple(places))


def _split(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=False)
    reader.whitespace_split = True
    reader.escape = ""  # a backslash is a separator of paths in the scripts for Windows
    reader.commenters = "#" if line.lstrip().startswith("#") else ""
    try:
        return [*reader]
    except ValueError:  # a quote that another line closes
        return line.split()
