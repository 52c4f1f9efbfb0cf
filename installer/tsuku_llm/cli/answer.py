"""What a command has to say, and the two forms in which it is said: text and JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tsuku_llm.errors import TsukuError

FORMAT = 1


class Failure(NamedTuple):
    """An error as people and programs are told of it; ``code`` is its slug."""

    code: str
    message: str
    facts: tuple[str, ...] = ()
    hint: str = ""

    @classmethod
    def of(cls, error: TsukuError) -> Failure:
        """The error's own words."""
        return cls(error.slug, error.message, error.facts, error.hint)

    def lines(self) -> tuple[str, ...]:
        """What happened, the facts, what to do; nothing is escaped yet."""
        hint = (f"hint: {self.hint}",) if self.hint else ()
        return (
            f"error[{self.code}]: {self.message}",
            *(f"  {fact}" for fact in self.facts),
            *hint,
        )


class Answer(NamedTuple):
    """``data`` for programs, ``lines`` for people, and the exit code.

    ``exact`` lines are for scripts (a path): they are printed as they are.
    """

    data: Mapping[str, Any] = MappingProxyType({})
    lines: tuple[str, ...] = ()
    exit_code: int = 0
    failure: Failure | None = None
    exact: bool = False


class Answered(Exception):
    """Ends a command early with its answer (``--help``)."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def document(command: str, answer: Answer, simulated: str | None = None) -> str:
    """The one JSON document of a command, in one line of ASCII.

    ``simulated`` names a recorded machine, and is there only where one stands for this one.
    """
    import json  # noqa: PLC0415

    envelope = {
        "format": FORMAT,
        "command": command or None,
        "status": "error" if answer.failure else "ok",
        "exit_code": answer.exit_code,
        "data": answer.data,
        "error": answer.failure,
        **({"simulated": simulated} if simulated else {}),
    }
    return json.dumps(plain(envelope)) + "\n"


def plain(value: object) -> Any:
    """What JSON has a form for: values become objects, paths their texts."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if names := _fields_of(value):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _fields_of(value: object) -> tuple[str, ...]:
    """The names of a value's parts, whether it is a named tuple or a dataclass."""
    return tuple(getattr(value, "_fields", ()) or getattr(value, "__dataclass_fields__", ()))
