"""What a command has to say, and the two forms in which it is said: text and JSON."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tsuku_llm.errors import TsukuError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Failure:
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


@dataclass(frozen=True, slots=True)
class Answer:
    """``data`` for programs, ``lines`` for people, and the exit code.

    ``exact`` lines are for scripts (a path): they are printed as they are.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
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
    return json.dumps(envelope, default=plain) + "\n"


def plain(value: object) -> Any:
    """What JSON has no form for: dataclasses become objects, paths their texts."""
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
