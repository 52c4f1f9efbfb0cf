"""The shared libraries that builds need: which of them a prebuilt program would find here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tsuku_llm.machine.host import DriverAnswer
from tsuku_llm.probe.facts import answers

_GLIBC = (": error while loading shared libraries: ", ": cannot open shared object file")
_MUSL = ("Error loading shared library ", ": No such file")


def question(names: Iterable[str]) -> str:
    """Return the question about other libraries than those that are always asked for."""
    return f"libraries:{','.join(names)}"


def parse(answer: DriverAnswer) -> Mapping[str, str | None]:
    """Return by name of each library what this system lacks for it; None if it can be loaded."""
    found: dict[str, str | None] = {}
    for line in answers.calls(answer, "library"):
        name, error = answers.words(line.get("name")), answers.words(line.get("error"))
        if name is None:
            continue
        if answers.words(line.get("path")) is None:
            found[name] = name
        elif error is None:
            found[name] = None
        # A limit that was reached says nothing about the library.
        elif answers.limit_fix(error) is None:
            found[name] = _missing(error) or name
    return found


def _missing(error: str) -> str | None:
    """Return the library that a loader misses, by its message; None if it says something else."""
    for before, after in (_GLIBC, _MUSL):
        _, said, rest = error.partition(before)
        name, ended, _ = rest.partition(after)
        if said and ended and name.strip():
            return name.rpartition("/")[2]
    return None
