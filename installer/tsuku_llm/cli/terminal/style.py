"""Lines for people as a terminal shows them: wrapped between words, with colours."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

COLORS = ("auto", "always", "never")
"""What ``--color`` may say."""

# What begins a line and has a colour of its own: bold is 1, red 31, yellow 33.
_CODES = (
    (re.compile(r"error\[[^]]*\]:"), "1;31"),
    (re.compile(r"warning:"), "1;33"),
    (re.compile(r"WARNING: [\s\S]*"), "1;31"),  # the whole of it
    (re.compile(r"hint:"), "1"),
    (re.compile(r"Usage:|\w[\w ,'-]*:$"), "1"),  # a heading
)

_WHOLE = re.compile(
    # a call of this program: its command, then options, values and names
    r"(?<!\S)\S*tsuku-llm [a-z-]+(?: [a-z]+(?![\w-]))?"
    r"(?: (?:(?:--?|llm\.)[^\s;,]*(?: [a-z][^\s;,]*)?|'[^']*'"
    r"|[A-Z]{2,}[^\s;,]*|[^\s;,]*[\d./=][^\s;,]*))*"
    # a call of another program, up to the end of the clause
    r"|(?<=would run: ).*"
    r"|(?<!\S)(?:sudo|curl|export) [^;,]*"
    # a path or value in quotes; an apostrophe within a word is none
    r"|(?<!\w)'[^']*'(?!\w)"
)
"""Parts of a line with blanks in them that stay on one line, so that they can be copied."""

_BLANK = "\N{NO-BREAK SPACE}"


class Style(NamedTuple):
    """How a stream shows lines: ``width`` is None if they are not wrapped."""

    width: int | None = None
    colored: bool = False

    def shaped(self, line: str) -> str:
        """Return one line as the stream shows it: perhaps several, with line ends between them.

        Only the first of them has a mark such as ``hint:``, so only that one has a colour.
        """
        text = line if self.width is None else wrapped(line, self.width)
        return painted(text) if self.colored else text


def wants_color(color: str, environ: Mapping[str, str], *, on_terminal: bool) -> bool:
    """Decide about colours: the option, then ``NO_COLOR``, ``CLICOLOR_FORCE``, the terminal."""
    if color != "auto":
        return color == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return on_terminal and environ.get("CLICOLOR") != "0"


def painted(text: str) -> str:
    """Return a text with its first mark in colour, such as ``error[slug]:``."""
    for pattern, code in _CODES:
        if found := pattern.match(text):
            return f"\x1b[{code}m{found[0]}\x1b[0m{text[found.end() :]}"
    return text


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    Characters of East Asia are wide, and marks that combine with the one before take none.
    """
    if text.isascii():
        return len(text)

    return sum(
        0
        if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(char) in ("W", "F")
        else 1
        for char in text
    )


def wrapped(line: str, width: int) -> str:
    """Wrap a line between words; the lines after the first have a hanging indent.

    The last cell of a table's row hangs below its own column, if there is room. A command, a URL or
    a path is never broken: if it is wider than the terminal, it overflows.
    """
    # Not textwrap: it counts characters, and a terminal has columns.
    if columns(line) <= width:
        return line
    own = len(line) - len(line.lstrip(" "))
    kept = _WHOLE.sub(lambda found: found[0].replace(" ", _BLANK), line)
    hanging = " " * _hanging(kept, own, width)
    shown = [" " * own]
    for chunk in _CHUNK.findall(kept[own:]):
        begins = not shown[-1].strip(" ")
        if begins or columns(shown[-1] + chunk) <= width:
            shown[-1] += chunk
        else:
            shown.append(hanging + chunk.lstrip(" "))
    return "\n".join(shown).replace(_BLANK, " ")


_CHUNK = re.compile(r" *[^ ]+")
_LEAST_CELL = 16
"""The fewest columns in which a cell is continued below its own beginning."""


def _hanging(line: str, own: int, width: int) -> int:
    """Return the indent of the lines after the first: that of the last cell, else two more."""
    # Only the columns of a table have two blanks between them.
    cells = [found.end() for found in re.finditer(r"(?<=[^ ])  +(?=[^ ])", line[own:])]
    last = columns(line[: own + cells[-1]]) if cells else width
    return last if last <= width - _LEAST_CELL else own + 2
