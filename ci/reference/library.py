"""The page of the library: its names, signatures and docstrings."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any, get_origin

from ci.reference.commands import MADE
from ci.schemas import described
from tsuku_llm import api
from tsuku_llm.ground import errors

ABOUT = "# The library\n\n`from tsuku_llm import api`. [Embedding](../embedding.md) says how it is used.\n"


def page() -> str:
    """Return the page: every public name with its signature or fields, and its docstring."""
    names = {name: getattr(api, name) for name in api.__all__}
    functions = {name: each for name, each in names.items() if inspect.isfunction(each)}
    classes = {name: each for name, each in names.items() if name not in functions}
    parts = [MADE, ABOUT, "## Functions\n"]
    parts += [part for name, each in functions.items() for part in _function(name, each)]
    parts.append("## Values\n")
    parts += [part for name, each in classes.items() for part in _class(name, each)]
    parts += [
        "## Errors\n",
        "Each is a class of `tsuku_llm.ground.errors`, derived from the one above it.\n",
    ]
    parts.append("\n".join(_errors(errors.TsukuError)) + "\n")
    return "\n".join(parts)


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    yield f"```text\n{name}{_signature(function)}\n```\n"
    yield f"{inspect.getdoc(function)}\n"


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### `{name}`\n"
    if lines := [*_members(kind)]:
        yield "\n".join(["```text", *lines, "```\n"])
    yield f"{described(kind, public_keys(kind) or kind.__annotations__)}\n"


def _members(kind: type) -> Iterator[str]:
    """Yield the fields of a value, the members of an enum, and the public methods.

    Of a value that is also a JSON document, those are public that the document has.
    """
    if issubclass(kind, enum.Enum):
        yield from (f"{each.name} = {each.value!r}" for each in kind)
        return
    if issubclass(kind, Exception):
        yield from (f"{each}: {type_}" for each, type_ in _ERROR_FIELDS.items())
        return
    if keys := public_keys(kind):
        yield from (f"{name}: {_type_of(kind, name)}" for name in keys)
        return
    if dataclasses.is_dataclass(kind):
        for each in dataclasses.fields(kind):
            if not each.name.startswith("_"):
                has_default = each.default is not dataclasses.MISSING
                has_default = has_default or each.default_factory is not dataclasses.MISSING
                yield f"{each.name}: {each.type}{' = ...' if has_default else ''}"
    for name, member in vars(kind).items():
        if isinstance(member, property):
            yield f"{name} -> {member.fget.__annotations__['return']}  (property)"
        elif inspect.isfunction(member) and not name.startswith("_"):
            yield f"{name}{_signature(member)}"


def _type_of(kind: type, name: str) -> str:
    member = getattr(kind, name)
    getter = member.fget if isinstance(member, property) else None
    if getter:
        return str(getter.__annotations__["return"])
    owner = next(each for each in kind.__mro__ if name in vars(each).get("__annotations__", ()))
    hint = owner.__annotations__[name]
    # A named tuple has a reference instead of the text. A reader needs no names of patterns.
    known = vars(sys.modules[owner.__module__])
    plain = {
        alias: each.__origin__.__name__
        for alias, each in known.items()
        if get_origin(each) is Annotated
    }
    text = str(getattr(hint, "__forward_arg__", hint))
    return re.sub(r"\w+", lambda word: plain.get(word[0], word[0]), text)


def public_keys(kind: type) -> tuple[str, ...]:
    """Return the fields and properties of a value that its JSON document has."""
    keys = getattr(kind, "DOCUMENT", ()) or getattr(kind, "_fields", ())
    names = (keys,) if isinstance(keys, str) else keys
    return tuple(each.removeprefix("*") for each in names)


_ERROR_FIELDS = {
    "message": "str",
    "facts": "tuple[str, ...]",
    "hint": "str",
    "slug": "str",
    "exit_code": "int",
}


def _signature(function: Any) -> str:
    """Return a signature as it is written; each default that is a value is shown as ``...``."""
    signature = inspect.signature(function)
    plain = (None, True, False, ())
    parameters = [
        each if each.default in (inspect.Parameter.empty, *plain) else each.replace(default=...)
        for each in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters)).replace("'", "").replace("Ellipsis", "...")
    # One line for each parameter, as a change of one should be seen.
    return text if len(parameters) < 3 else text.replace("(", "(\n    ", 1).replace(", ", ",\n    ")  # noqa: PLR2004


def _errors(kind: type[errors.TsukuError], depth: int = 0) -> Iterator[str]:
    yield f"{'  ' * depth}- `{kind.__name__}`: `{kind.slug}`, exit code {kind.exit_code}"
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from _errors(each, depth + 1)
