"""The server's arguments and environment variables, read in upstream's ``common/arg.cpp``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tsuku_publish.upstream.source.marked import UnreadableSource
from tsuku_publish.upstream.source.tree import SourceTree

PATH = "common/arg.cpp"
_MOST_VALUES = 2
_OPTION = re.compile(r"add_opt\(common_arg\(")
_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\]|\\.)+\'', re.DOTALL)
_RAW = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CALL = re.compile(r"\.(set_\w+)\(")
_EXAMPLE = re.compile(r"LLAMA_EXAMPLE_(\w+)")
_EXAMPLES = re.compile(r"initializer_list<enum llama_example>\s+(\w+)\s*=\s*\{([^}]*)\}")
_CALLS = {"set_examples", "set_excludes", "set_env", "set_sampling", "set_spec"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its names, the names that negate it, its variable and how many values it has.

    ``tools`` are upstream's programs that take it, such as "server"; "common" stands for all that
    ``excludes`` does not name.
    """

    names: tuple[str, ...]
    negative: tuple[str, ...]
    variable: str | None
    values: int
    tools: tuple[str, ...]
    excludes: tuple[str, ...]
    at: str

    def is_for(self, tool: str) -> bool:
        """Return whether a program takes it."""
        return tool not in self.excludes and bool({tool, "common"} & {*self.tools})


def arguments(source: SourceTree) -> tuple[Argument, ...]:
    """Return every argument in the file's order. Raises ``UnreadableSource``."""
    text = source.read(PATH)
    # Comments, texts and raw texts hide parentheses: a copy has blanks in their place.
    bare = _blanked(text)
    lists = dict(_EXAMPLES.findall(bare))
    found = []
    place = 0
    while match := _OPTION.search(bare, place):
        line = f"{PATH}:{text.count(chr(10), 0, match.start()) + 1}"
        end = _closing(bare, match.start() + len("add_opt("), line)
        inner = _closing(bare, match.end(), line)
        found.append(_argument(text, bare, (match.end(), inner, end), lists, line))
        place = end
    if not found:
        raise UnreadableSource(f"{PATH}:1", "there is no add_opt(common_arg(…))")
    left = bare.count("add_opt(", place)
    if left:
        raise UnreadableSource(PATH, f"{left} more calls of add_opt cannot be read")
    return tuple(found)


def _argument(
    text: str, bare: str, bounds: tuple[int, int, int], examples: Mapping[str, str], at: str
) -> Argument:
    """Read one; ``examples`` are the file's named lists of programs."""
    start, inner, end = bounds
    parts = [*_parts(bare, start, inner)]
    lists = []
    while parts and bare[parts[0][0] : parts[0][1]].strip().startswith("{"):
        first, last = parts.pop(0)
        # Places in the copy: a comment may have words, too.
        words = (match.span(1) for match in _WORD.finditer(bare, first, last))
        lists.append(tuple(text[begin:end] for begin, end in words))
    # One list of names, a second one of those that negate it; hints of values, help, what it does.
    names, negative = [*lists, (), ()][:2]
    values = len(parts) - 2
    if not names or lists[2:] or not 0 <= values <= _MOST_VALUES or (negative and values):
        raise UnreadableSource(at, "this argument cannot be read")
    calls = {
        match[1]: text[match.end() : _closing(bare, match.end(), at)]
        for match in _CALL.finditer(bare, inner, end)
    }
    if unknown := calls.keys() - _CALLS:
        raise UnreadableSource(at, f"{', '.join(sorted(unknown))} is not known")
    variable = calls.get("set_env", "").strip()
    word = _WORD.fullmatch(variable)
    if variable and not word:
        raise UnreadableSource(at, f"its variable {variable} cannot be read")
    return Argument(
        names=names,
        negative=negative,
        variable=word[1] if word else None,
        values=values,
        tools=_tools(calls.get("set_examples", "LLAMA_EXAMPLE_COMMON"), examples, at),
        excludes=_tools(calls.get("set_excludes", ""), examples, at),
        at=at,
    )


def _tools(text: str, examples: Mapping[str, str], at: str) -> tuple[str, ...]:
    """Return the programs of a list, which may be one that the file names."""
    text = examples.get(text.strip(), text)
    names = [each.strip() for each in text.strip().strip("{}").split(",") if each.strip()]
    found = [_EXAMPLE.fullmatch(name) for name in names]
    if not all(found):
        raise UnreadableSource(at, f"the programs {text.strip()} cannot be read")
    return tuple(each[1].lower().replace("_", "-") for each in found if each)


def _blanked(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        blanks = re.sub(r"[^\n]", " ", match[0])
        # A text keeps its quotation marks, so that what is empty and what is a text stay apart.
        mark = match[0][0] if match[0][0] in "\"'" else ""
        return f"{mark}{blanks[1:-1]}{mark}" if mark else blanks

    return _SKIPPED.sub(blank, _RAW.sub(blank, text))


def _closing(bare: str, start: int, at: str) -> int:
    """Return the place of the parenthesis that closes the one before ``start``."""
    depth = 1
    for place in range(start, len(bare)):
        depth += {"(": 1, ")": -1}.get(bare[place], 0)
        if depth == 0:
            return place
    raise UnreadableSource(at, "this call has no end")


def _parts(bare: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    depth, first = 0, start
    for place in range(start, end):
        letter = bare[place]
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield first, place
            first = place + 1
    yield first, end
