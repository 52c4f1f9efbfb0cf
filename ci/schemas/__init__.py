"""The JSON Schemas of ``docs/schemas``, made from the program's types.

python -m ci.reference        write them again
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict, Union, get_args, get_origin, get_type_hints

import msgspec

from ci.schemas import answers as client
from ci.schemas import publisher
from ci.schemas.keys import KEYS, Bytes, Moment, Sha256, Unsigned
from tsuku_llm.catalog import manifest
from tsuku_llm.catalog.requirements import Requirements
from tsuku_llm.cli.terminal.answer import FORMAT, ReportedError
from tsuku_llm.cli.terminal.progress_bar import ProgressEvent
from tsuku_llm.ground.errors import TsukuError

FOLDER = Path(__file__).parents[2] / "docs/schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{name}"
CLIENT, PUBLISHER = "tsuku-llm", "tsuku-publish"
ANSWERS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    CLIENT: client.ANSWERS,
    PUBLISHER: publisher.ANSWERS,
}
"""The documents of each program's commands; "" is the program without one."""


class HelpAnswer(TypedDict):
    """The answer of ``--help``."""

    help: str


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by the name of its file."""
    found = {
        file_of(command, program): answer_schema(command, program)
        for program, commands in ANSWERS.items()
        for command in commands
    }
    return {
        **found,
        "progress-line.json": progress_schema(),
        "release-file.json": release_file_schema(),
    }


def file_of(command: str, program: str = CLIENT) -> str:
    """Return the name of the file with a command's schema; the client's have no prefix."""
    words = command.split() if program == CLIENT and command else [program, *command.split()]
    return f"{'-'.join(words)}.json"


def text_of(schema: Mapping[str, Any]) -> str:
    """Return a schema as it is published."""
    return json.dumps(schema, indent=2) + "\n"


def answer_schema(command: str, program: str = CLIENT) -> dict[str, Any]:
    """Return the schema of a command's whole document, with the envelope."""
    kinds = [as_written(kind) for kind in (*ANSWERS[program][command], HelpAnswer, ReportedError)]
    (*answers, error), shared = _components(kinds)
    nothing = {"description": "Nothing, after an error.", "type": "object", "maxProperties": 0}
    return {
        "$schema": DIALECT,
        "title": " ".join((program, *command.split(), "--json")),
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "command": {"const": command or None},
            "status": {"enum": ["ok", "error"]},
            "exit_code": {"type": "integer"},
            "data": {"anyOf": [*answers, nothing]},
            "error": {"anyOf": [error, {"type": "null"}]},
            "simulated": {
                "description": "The recorded machine that replaces this one; else there is no "
                "such key.",
                "type": "string",
            },
        },
        "required": ["format", "command", "status", "exit_code", "data", "error"],
        "$defs": shared,
    }


def _components(kinds: Iterable[Any]) -> Any:
    """Return msgspec's schemas of types, with docstrings as Python 3.13 has them: unindented."""
    return _cleaned(msgspec.json.schema_components(kinds, ref_template=_REF))


def _cleaned(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cleaned(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: inspect.cleandoc(each)
        if key == "description" and isinstance(each, str)
        else _cleaned(each)
        for key, each in value.items()
    }


def progress_schema() -> dict[str, Any]:
    """Return the schema of a line of progress on stderr."""
    _, shared = _components([as_written(ProgressEvent)])
    return {"$schema": DIALECT, **shared["ProgressEvent"], "title": "A line of progress"}


def release_file_schema() -> dict[str, Any]:
    """Return the schema of a release file of the signed repository, with every known word.

    Clients read files with words that they do not know, and refuse only the variant with them.
    """
    kinds = (manifest.RELEASE_FILE, Requirements)
    (whole, requires), shared = _components(kinds)
    shared["_Variant"]["properties"]["requires"] = requires
    # Not a word of the file: it holds those that this version does not know.
    del shared["Requirements"]["properties"]["unknown"]
    text = json.dumps({"$schema": DIALECT, **whole, "$defs": shared})
    for name in shared:
        text = text.replace(f'"{name}"', f'"{name.lstrip("_")}"')
        text = text.replace(f'/{name}"', f'/{name.lstrip("_")}"')
    # Python's end of a text; in the patterns of JSON Schema "$" means just that.
    found: dict[str, Any] = json.loads(text.replace(r"\\Z", "$"))
    return {**found, "title": "A release file of tsuku-llm"}


def closed(schema: Any) -> Any:
    """Return a schema that refuses every key which it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        # Properties may have names of keywords: each is a schema, and so is handled above.
        return {"additionalProperties": False, **inner}
    return inner


def properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of the objects in a schema, with the schema of its value."""
    if isinstance(schema, list):
        for item in schema:
            yield from properties(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield from schema["properties"].items()
        for value in schema.values():
            yield from properties(value)


def as_written(kind: Any) -> Any:
    """Return the type of what ``cli.answer.plain`` makes of a value: objects, lists, texts."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Path:
        return str
    if origin is Annotated:
        base, *notes = inner
        told = [each for each in notes if isinstance(each, str)]
        return (
            Annotated[as_written(base), msgspec.Meta(description=told[0])]
            if told
            else as_written(base)
        )
    if origin in (Union, types.UnionType):
        return Union[tuple(map(as_written, inner))]  # noqa: UP007 - a computed one
    if inner and origin is not typing.Literal:
        return origin[tuple(each if each is ... else as_written(each) for each in inner)]
    return _of_class(kind)


def _of_class(kind: Any) -> Any:
    if isinstance(kind, Mapping):
        title = "".join(name.title().replace("_", "") for name in kind)
        return _made(title, {name: _of_key(name, kind[name]) for name in kind})
    if isinstance(kind, type) and issubclass(kind, TsukuError):
        kind = ReportedError
    named = getattr(kind, "DOCUMENT", None)
    if isinstance(named, str):
        return as_written(_attribute(kind, named))
    is_object = typing.is_typeddict(kind) or is_dataclass(kind) or hasattr(kind, "_fields")
    return _object(kind) if (is_object or named) and not issubclass(kind, enum.Enum) else kind


def _of_key(name: str, hint: Any) -> Any:
    """Return the type of a key; plain texts and numbers of a known name have a common one."""
    kind, common = as_written(hint), KEYS.get(name) or _UNITS.get(name)
    if common is None:
        return kind
    base: Any = get_args(common)[0]
    if kind == base:
        return as_written(common)
    return as_written(common | None) if kind == (base | None) else kind


_UNITS = {
    **dict.fromkeys(("at", "installed_at", "noted_at", "signed", "expires"), Moment),
    **dict.fromkeys(("sha256", "fingerprint"), Sha256),
    **dict.fromkeys(("size", "download", "download_size"), Bytes),
    "unsigned": Unsigned,
}
"""Further keys whose values are of one kind in every document."""


_KNOWN: dict[type, Any] = {}
"""The types that were made: msgspec names a type once, if it is the same object."""


def _object(kind: type) -> Any:
    if kind not in _KNOWN:
        keys = _keys(kind)
        _KNOWN[kind] = _made(kind.__name__, keys, described(kind, keys))
    return _KNOWN[kind]


def described(kind: type, shown: Collection[str]) -> str:
    """Return the description of a value without the sentences about fields that are not shown."""
    told = inspect.cleandoc(kind.__doc__ or "")
    hidden = {*_hints(kind)} - {*shown}
    if not hidden:
        return told
    first, _, rest = told.partition("\n\n")
    sentences = re.split(r"(?<=\.)\s+", rest)
    kept = [each for each in sentences if not hidden & set(re.findall(r"``(\w+)``", each))]
    return f"{first}\n\n{' '.join(kept)}".strip()


def _made(name: str, keys: dict[str, Any], told: str = "") -> Any:
    made = TypedDict(name, keys)  # type: ignore[misc]
    made.__doc__ = told
    return made


def _keys(kind: type) -> dict[str, Any]:
    """Return the keys of a value's object, with the types of what ``plain`` makes of each."""
    found: dict[str, Any] = {}
    named = getattr(kind, "DOCUMENT", ())
    if isinstance(named, str):
        return _keys(_attribute(kind, named))
    for name in named or _hints(kind):
        hint = _attribute(kind, name.removeprefix("*"))
        found |= _keys(hint) if name.startswith("*") else {name: _of_key(name, hint)}
    return found


def _attribute(kind: type, name: str) -> Any:
    """Return the type of a field or a property."""
    member = getattr(kind, name, None)
    getter = member.fget if isinstance(member, property) else None
    return _hints(getter)["return"] if getter else _hints(kind)[name]


@cache
def _hints(of: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for module in {each.__module__ for each in getattr(of, "__mro__", (of,))} - {"builtins"}:
        names |= _for_checkers(module)
    return get_type_hints(of, localns=names, include_extras=True)


@cache
def _for_checkers(name: str) -> dict[str, Any]:
    """Return what a module imports only for type checkers: starts do without."""
    path = sys.modules[name].__file__
    if path is None or "TYPE_CHECKING" not in (text := Path(path).read_text("utf-8")):
        return {}
    found: dict[str, Any] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), path, "exec"), found)  # noqa: S102
    return found
