"""The answer of a command, and its two forms: text and JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.safe_text import shortened

LONGEST = 1000
"""The most characters of a line of an error."""

FORMAT = 1
"""The version of the JSON envelope."""


class ReportedError(NamedTuple):
    """An error as people and programs see it; ``code`` is its slug."""

    code: str
    message: str
    facts: tuple[str, ...] = ()
    hint: str = ""

    @classmethod
    def of(cls, error: TsukuError) -> ReportedError:
        """Return what there is to say of an error; what the user gave may be very long."""
        message, *facts, hint = (
            shortened(text, LONGEST) for text in (error.message, *error.facts, error.hint)
        )
        return cls(error.slug, message, tuple(facts), hint)

    def lines(self) -> tuple[str, ...]:
        """Return what happened, the facts, and what to do; nothing is escaped yet."""
        hint = (f"hint: {self.hint}",) if self.hint else ()
        return (
            f"error[{self.code}]: {self.message}",
            *(f"  {fact}" for fact in self.facts),
            *hint,
        )


class CommandResult(NamedTuple):
    """The answer of a command: ``data`` for programs, ``lines`` for people, and the exit code.

    ``data`` is the value that the step returned, or a mapping: ``plain`` writes it.
    ``exact`` lines are for scripts (a path): they are printed unchanged. ``undo`` is called if the
    answer cannot be written, as the command then ends with an error; it returns what it did.
    ``next_step`` ends the text, unless the user wants results only.
    """

    data: object = MappingProxyType({})
    lines: tuple[str, ...] = ()
    exit_code: int = 0
    failure: ReportedError | None = None
    exact: bool = False
    undo: Callable[[], str] | None = None
    next_step: str = ""


class EarlyExit(Exception):
    """The early end of a command with its answer (``--help``)."""

    def __init__(self, answer: CommandResult) -> None:
        super().__init__()
        self.answer = answer


def document(command: str, answer: CommandResult, simulated: str | None = None) -> str:
    """Return the one JSON document of a command, as one line of ASCII.

    ``simulated`` names a recorded machine; the field exists only if one replaces this machine.
    """
    envelope = {
        "format": FORMAT,
        # None if the arguments are wrong before a command was found.
        "command": command or None,
        "status": "error" if answer.failure else "ok",
        "exit_code": answer.exit_code,
        "data": answer.data,
        "error": answer.failure,
        **({"simulated": simulated} if simulated else {}),
    }
    return json_line(envelope)


def json_line(value: object) -> str:
    """Return a value as one line of JSON, in ASCII."""
    # Most commands print text.
    import json

    return json.dumps(plain(value)) + "\n"


def plain(value: object) -> Any:
    """Return a value in types that JSON has: values become objects, paths become strings.

    The keys of an object are the fields of the value, or what ``records.documented`` has named.
    ``ci.schemas`` makes the schemas of the same names.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, TsukuError):
        value = ReportedError.of(value)
    # Before the lists: a named tuple is a tuple as well.
    fields = getattr(value, "_fields", ()) or getattr(value, "__dataclass_fields__", ())
    if names := getattr(value, "DOCUMENT", ()) or tuple(fields):
        return plain(getattr(value, names)) if isinstance(names, str) else _object(value, names)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _object(value: object, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        if name.startswith("*"):
            found.update(plain(getattr(value, name[1:])))
        else:
            found[name] = plain(getattr(value, name))
    return found


def details(data: object) -> tuple[str, ...]:
    """Return the data of an answer for people: a line for each key, indented as it is nested."""
    lines = tuple(_nested(plain(data), "  "))
    return ("", *lines) if lines else ()


def _nested(value: Any, indent: str) -> Iterator[str]:
    rows = value.items() if isinstance(value, Mapping) else ((None, item) for item in value)
    for key, item in rows:
        mark = "-" if key is None else f"{key}:"
        if isinstance(item, (Mapping, list)):
            if item:
                yield f"{indent}{mark}"
                yield from _nested(item, f"{indent}  ")
        # A text of several lines, such as a help text, is the answer itself.
        elif item is not None and "\n" not in (
            text := str(item).lower() if isinstance(item, bool) else str(item)
        ):
            yield f"{indent}{mark} {text}".rstrip()
