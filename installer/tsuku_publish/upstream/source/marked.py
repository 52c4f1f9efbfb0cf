"""Values with their place in upstream's source, and the error for what cannot be read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from tsuku_publish.errors import PublishError

Value = str | float | bool | None
"""A value of an expression; numbers are floats, as in workflows."""

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_CONSTANTS: Mapping[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same with the C library, which is ten times as fast."""


class UnreadableSource(PublishError):
    """Something in upstream's source that this program cannot read; the message has its line."""

    def __init__(self, at: str, reason: str) -> None:
        super().__init__(
            f"{at}: {reason}",
            hint="upstream has changed how it builds: read that line, then teach "
            "tsuku_publish.upstream.source to read it",
        )


class Text(str):
    """A scalar of a YAML file; ``at`` is such as ``release.yml:106``, its first line.

    ``value`` is what the scalar means: only a plain one is a number, a boolean or null.
    """

    __slots__ = ("line", "path", "value")
    path: str
    line: int
    value: Value

    @property
    def at(self) -> str:
        """Its place."""
        return f"{self.path}:{self.line}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Return each line with its place."""
        for number, line in enumerate(self.splitlines()):
            yield f"{self.path}:{self.line + number}", line


class Table(dict[str, "Node"]):
    """A mapping of a YAML file; ``at`` is its place."""

    at: str

    def text(self, key: str) -> Text | None:
        """Return a scalar, None if the key is missing. Raises ``UnreadableSource``."""
        found = self.get(key)
        if found is not None and not isinstance(found, Text):
            raise UnreadableSource(found.at, f"{key} is not a text")
        return found

    def table(self, key: str) -> Table:
        """Return a mapping, an empty one if the key is missing. Raises ``UnreadableSource``."""
        found = self.get(key)
        if isinstance(found, Table):
            return found
        if found is not None and not (isinstance(found, Text) and found.value is None):
            raise UnreadableSource(found.at, f"{key} is not a mapping")
        empty = Table()
        empty.at = self.at
        return empty

    def row(self, key: str) -> Row:
        """Return a list, of one item if the key has a scalar. Raises ``UnreadableSource``."""
        found = self.get(key)
        if isinstance(found, Table):
            raise UnreadableSource(found.at, f"{key} is not a list")
        if isinstance(found, Row):
            return found
        row = Row([] if found is None else [found])
        row.at = self.at if found is None else found.at
        return row

    def require(self, key: str) -> Text:
        """Return a scalar. Raises ``UnreadableSource`` if there is none."""
        found = self.text(key)
        if found is None:
            raise UnreadableSource(self.at, f"there is no {key}")
        return found


class Row(list["Node"]):
    """A list of a YAML file; ``at`` is its place."""

    at: str

    def tables(self) -> list[Table]:
        """Return its mappings. Raises ``UnreadableSource`` for another item."""
        found = []
        for each in self:
            if not isinstance(each, Table):
                raise UnreadableSource(each.at, "this is not a mapping")
            found.append(each)
        return found

    def texts(self) -> list[Text]:
        """Return its scalars. Raises ``UnreadableSource`` for another item."""
        found = []
        for each in self:
            if not isinstance(each, Text):
                raise UnreadableSource(each.at, "this is not a text")
            found.append(each)
        return found


Node = Text | Table | Row


@dataclass(frozen=True, slots=True)
class Fact:
    """A value and where upstream's source says it, such as ``CMakeLists.txt:144``."""

    value: str | bool | tuple[str, ...]
    at: str


@functools.lru_cache(maxsize=64)
def read_yaml(path: str, content: str) -> Table:
    """Return a YAML file's mapping. Raises ``UnreadableSource``."""
    try:
        root = yaml.compose(content, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UnreadableSource(f"{path}:{mark.line + 1 if mark else 1}", str(error)) from error
    found = _read(root, path)
    if not isinstance(found, Table):
        raise UnreadableSource(f"{path}:1", "this is not a mapping")
    return found


def _read(node: yaml.Node | None, path: str) -> Node | None:
    if node is None:
        return None
    at = f"{path}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        table = Table()
        table.at = at
        for key, value in node.value:
            name = str(key.value)
            if name in table or name == "<<":
                raise UnreadableSource(f"{path}:{key.start_mark.line + 1}", f"{name} once more")
            table[name] = found = _required(_read(value, path), at)
            if not isinstance(found, Text):
                found.at = f"{path}:{key.start_mark.line + 1}"  # where its name is
        return table
    if isinstance(node, yaml.SequenceNode):
        row = Row(_required(_read(each, path), at) for each in node.value)
        row.at = at
        return row
    text = Text(node.value)
    text.path = path
    # The content of a block ("run: |") begins on the line after its mark.
    text.line = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
    text.value = _meaning(node.value) if node.style is None else str(node.value)
    return text


def _required(node: Node | None, at: str) -> Node:
    if node is None:
        raise UnreadableSource(at, "a value is missing")
    return node


def _meaning(text: str) -> Value:
    # YAML 1.2's core schema, as the build service reads it: "ON" and "off" are texts.
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return float(text) if _NUMBER.fullmatch(text) else text
