"""Read and write the JSON files of this program: receipts, reports, records and notes.

Each file has a table: the name of each field, and the reader of its value. A reader takes a value
and its name, and returns what the program uses, or raises ``ValueError`` in words. Types are
compared exactly, because True is also an int. Fields that are not in the table are ignored.

Every start reads a receipt, so this module imports no library; msgspec would double a start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from tsuku_llm.ground.foreign import parse_json

_T = TypeVar("_T")
_Class = TypeVar("_Class", bound=type)
_LARGEST = 1 << 53

Reader = Callable[[Any, str], _T]
"""``(value, name of its field) -> value``; raises ``ValueError``."""

Table = Mapping[str, Reader[Any]]
"""The reader of each field; a field that is missing is read as None."""


def parse(data: bytes, read: Reader[_T]) -> _T:
    """Decode JSON as ``foreign.parse_json`` does, and read its value. Raises ``ValueError``."""
    return read(parse_json(data, ours=True), "it")


def encode(document: Mapping[str, Any]) -> bytes:
    """Encode a document of named tuples, tuples and plain values as it is stored."""
    import json

    return json.dumps(_plain(document), indent=1).encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    # A named tuple is also a tuple, and ``json`` would write it as a list.
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def documented(*names: str, by: str = "") -> Callable[[_Class], _Class]:
    """Name what a value's JSON document has, if that is not just its fields.

    ``names`` are its keys: fields and properties of the class. A name after ``*`` stands for the
    keys of the value there. ``by`` is the one attribute that stands for the whole value. The
    state files are not concerned: they have every field.
    """

    def remember(kind: _Class) -> _Class:
        kind.DOCUMENT = by or names  # type: ignore[attr-defined]
        return kind

    return remember


# --- readers ---------------------------------------------------------------------------------


def checked(kind: type[_T], accept: Callable[[_T], bool] = lambda _: True) -> Reader[_T]:
    """Make a reader that demands exactly this type, and a value that ``accept`` accepts."""

    def read(value: Any, name: str) -> _T:
        if type(value) is not kind or not accept(value):
            raise ValueError(f"{name} is {str(value)[:80]!r}")
        return value

    return read


def anything(value: Any, _: str) -> Any:
    """Return any value as it is; the caller reads it."""
    return value


text = checked(str)
flag = checked(bool)
mapping: Reader[dict[str, Any]] = checked(dict)
_list: Reader[list[Any]] = checked(list)

count = checked(int, lambda number: 0 <= number <= _LARGEST)
"""A number that is not negative; with 53 bits, every JSON reader understands it."""


def matching(pattern: str) -> Reader[str]:
    """Make a reader of texts that match a regular expression as a whole."""
    compiled = re.compile(pattern, re.ASCII)
    return checked(str, lambda found: compiled.fullmatch(found) is not None)


def number(value: Any, name: str) -> float:
    """Read a number that is not negative, such as a speed."""
    if type(value) in (int, float) and 0 <= value < _LARGEST:
        return float(value)
    raise ValueError(f"{name} is not such a number")


web_address = matching(r"https?://[!-~]{1,4096}")
"""A URL that a browser may get: no file, no script, and nothing that is read as an option."""


def moment(value: Any, name: str) -> str:
    """Read a time in UTC, to the second, as this program writes it; return its text."""
    written = text(value, name)
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", written, re.ASCII):
        raise ValueError(f"{name} is {written[:80]!r}, which is no time")
    datetime.fromisoformat(written[:-1])  # a day that exists
    return written


digest = matching("[0-9a-f]{64}")
"""A SHA-256 in hexadecimal."""


def optional(read: Reader[_T]) -> Reader[_T | None]:
    """Make a reader that also accepts null, and a missing field."""
    return lambda value, name: None if value is None else read(value, name)


def one_of(kind: Callable[[Any], _T]) -> Reader[_T]:
    """Make a reader of the members of an enum of texts."""

    def read(value: Any, name: str) -> _T:
        try:
            return kind(text(value, name))
        except ValueError:
            raise ValueError(f"{name} is {str(value)[:80]!r}") from None

    return read


def many(read: Reader[_T]) -> Reader[tuple[_T, ...]]:
    """Make a reader of a list, whose items ``read`` reads."""
    return lambda value, name: tuple(read(item, name) for item in _list(value, name))


def named(read: Reader[_T]) -> Reader[dict[str, _T]]:
    """Make a reader of an object with any keys, whose values ``read`` reads."""
    return lambda value, name: {key: read(item, name) for key, item in mapping(value, name).items()}


BY_TYPE: Table = {
    "str": text,
    "int": count,
    "bool": flag,
    "str | None": optional(text),
    "int | None": optional(count),
    "bool | None": optional(flag),
    "float | None": optional(number),
    "tuple[str, ...]": many(text),
    "tuple[int, ...]": many(count),
    "tuple[float, ...]": many(number),
    "Mapping[str, str]": named(text),
    "Mapping[str, float]": named(number),
    "Mapping[str, Any]": mapping,
}
"""The readers of values that may be any of their type; an ``int`` is not negative."""


def fields(
    table: Table,
    *,
    format: int | None = None,  # the name of this field in every file
    since: Mapping[str, Any] | None = None,
) -> Reader[dict[str, Any]]:
    """Make a reader of an object with these fields.

    ``format`` is what the field of this name must say. ``since`` has the fields that older files
    lack, with the values that are read in their place.
    """

    def read(value: Any, name: str) -> dict[str, Any]:
        document = mapping(value, name)
        if format is not None and document.get("format") != format:
            raise ValueError(f"format is {document.get('format')!r}, this version reads {format}")
        if since:
            document = {**since, **document}
        return {key: reader(document.get(key), key) for key, reader in table.items()}

    return read


def record(
    kind: type[_T],
    table: Table | None = None,
    *,
    format: int | None = None,  # as in ``fields``
    since: Mapping[str, Any] | None = None,
) -> Reader[_T]:
    """Make a reader of an object that becomes ``kind(**fields)``; see ``fields``.

    A field of the class that is not in the table is read by its annotation, if that is one of
    ``BY_TYPE``.
    """
    whole = dict(table or {})
    for field, type_ in kind.__annotations__.items():
        # A named tuple has its annotations wrapped.
        reader = BY_TYPE.get(str(getattr(type_, "__forward_arg__", type_)))
        if reader is not None:
            whole.setdefault(field, reader)
    read = fields(whole, format=format, since=since)
    return lambda value, name: kind(**read(value, name))
