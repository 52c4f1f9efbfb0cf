"""Readers of a child's answer that trust nothing about its shape.

Answers come from drivers through a pipe, or from a recording that a user sent.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from tsuku_llm.ground import system_limits
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.hardware import ApiState, Evidence, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer

Codes = Mapping[int, str]
_MISSING_GLIBC = ": cannot open shared object file"
_NO_FILE = ": No such file or directory"
_MISSING_MUSL = "loading shared library "
LONGEST_LIMIT = 3600
"""The most seconds that a driver may have: the upper bound of ``llm.probe_timeout``."""
_LEADING_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,3}")


def integer(value: object) -> int | None:
    """Return a whole number of at most 64 bits, the range that a driver can mean; else None."""
    # bool is a subclass of int.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
        return value
    return None


def positive(value: object) -> int | None:
    """Return a size in bytes; None for 0, which drivers report when they do not know."""
    number = integer(value)
    return number if number and number > 0 else None


def words(value: object) -> str | None:
    """Return a text on one line of at most 300 characters; None when empty."""
    if not isinstance(value, str):
        return None
    return " ".join(value.replace("\0", " ").split())[:300] or None


def dotted(value: object) -> str | None:
    """Return the version number that a text begins with."""
    match = _LEADING_VERSION.match(value) if isinstance(value, str) else None
    return match[0] if match else None


def calls(answer: DriverAnswer, name: str) -> tuple[Mapping[str, Any], ...]:
    """Return every line about one call."""
    return tuple(line for line in answer.lines if line.get("call") == name)


def code(answer: DriverAnswer, name: str) -> int | None:
    """Return the last return code of a call; None if the call was not made."""
    lines = calls(answer, name)
    return integer(lines[-1].get("code")) if lines else None


def value(answer: DriverAnswer, name: str, key: str) -> Any:
    """Return the value ``key`` that the last such call filled in."""
    lines = calls(answer, name)
    return lines[-1].get(key) if lines else None


def library(answer: DriverAnswer) -> str | None:
    """Return the file that the API's library was loaded from."""
    return words(value(answer, "open", "library"))


def missing_dependency(answer: DriverAnswer) -> str | None:
    """Return why a library that exists did not load; None if it does not exist."""
    names = value(answer, "open", "names")
    errors = value(answer, "open", "errors")
    if not isinstance(names, list) or not isinstance(errors, list):
        return None
    for name, error in zip(names, errors, strict=False):
        if isinstance(name, str) and isinstance(error, str) and not is_absence(name, error):
            return words(error)
    return None


def reinstall(error: str, library_path: str, packages: str) -> str:
    """Return the fix for a library that does not load; it may be a variable's and no package's."""
    folder = posixpath.dirname(error.partition(":")[0])
    if folder and folder in (each.rstrip("/") for each in library_path.split(":")):
        return f"take {folder} out of LD_LIBRARY_PATH"
    return f"reinstall {packages}"


def is_absence(name: str, error: str) -> bool:
    """Tell whether a loader's message says that the library itself is missing.

    The loaders of glibc and musl both name the library that they miss. A pattern that searches for
    the name takes quadratic time on a long text, so only the fixed words are searched for.
    """
    before, glibc, why = error.partition(_MISSING_GLIBC)
    if glibc:
        # Any other reason, such as too many open files, says nothing about the library.
        if why not in ("", _NO_FILE):
            return False
        # The name must be the whole word before the fixed text: "libfoo.so.1" ends with "foo.so.1".
        return before.endswith(name) and not before.removesuffix(name)[-1:].strip()
    _, musl, after = error.partition(_MISSING_MUSL)
    if musl:
        return after.startswith(f"{name}:") and limit_fix(error) is None
    # The messages of Python on Windows and of dyld on macOS.
    return "Could not find module" in error or "image not found" in error or "no such file" in error


_BAD_ENDS = {
    "absent": ApiState.ABSENT,
    "not-started": ApiState.NOT_STARTED,
    "timed-out": ApiState.TIMED_OUT,
}


def state(answer: DriverAnswer, *needed: str) -> ApiState:
    """Tell how far an API got; ``needed`` are the calls that must have returned 0."""
    if answer.end in _BAD_ENDS:
        return _BAD_ENDS[answer.end]
    if answer.end.startswith(("signal", "exit")):
        return ApiState.CRASHED
    # No library loaded. It failed if the child says so or a dependency is missing, else it is
    # absent.
    if library(answer) is None:
        broken = answer.end != "done" or missing_dependency(answer) or calls(answer, "error")
        return ApiState.FAILED if broken else ApiState.ABSENT
    if any(code(answer, name) != 0 for name in needed):
        return ApiState.FAILED
    return ApiState.OK


def broken(answer: DriverAnswer, driver: str) -> Problem | None:
    """Return the problem of a driver that crashed, was too slow, or met a limit of the system."""
    call = words(answer.during) or "between two calls"
    if answer.end == "timed-out":
        # A recording from before the limit was recorded had 5 seconds.
        limit = answer.limit or 5.0
        longer = min(max(60, round(limit * 3)), LONGEST_LIMIT)
        helps = "restart the machine"
        if longer > limit:
            more = f"{TSUKU} config set llm.probe_timeout {longer}s"
            helps = f"give it more time: {more}; if it never answers, {helps}"
        text = f"{driver} was too slow: it did not answer within {limit:g} s ({call})"
        return Problem("driver-timed-out", text, helps, transient=True)
    if answer.end.startswith(("signal", "exit")):
        return Problem(
            "driver-crashed",
            f"{driver} crashed when it was asked ({call}: {words(answer.end)})",
            "reinstall or update the GPU's driver",
        )
    error = missing_dependency(answer) if library(answer) is None else None
    fix = limit_fix(error) if error else None
    if fix:
        text = f"{driver} could not be loaded: {error}"
        return Problem("driver-not-loaded", text, fix, transient=True)
    return None


def limit_fix(error: str) -> str | None:
    """Return the fix if a limit of the system kept a library from being loaded, else None."""
    if error.endswith("failed to map segment from shared object"):
        # glibc says no more, whether memory is limited or the folder may hold no programs.
        return "raise the limit on memory (ulimit -v), or mount the library's folder without noexec"
    limited = error.endswith(("Too many open files", "Cannot allocate memory"))
    return system_limits.fix_of(error) if limited else None


def not_asked(by_question: Mapping[str, DriverAnswer]) -> tuple[Problem, ...]:
    """Return the problem of a machine on which a child process could not be started to ask.

    The reason is the same for every driver, so it is told once, and not per API.
    """
    failed = [name for name, answer in by_question.items() if answer.end == "not-started"]
    if not failed:
        return ()
    reason = words(by_question[failed[0]].during) or "the child process does not start"
    # An older recording lacks the questions that are new.
    asked = [name for name, answer in by_question.items() if answer is not ABSENT]
    which = "no driver" if failed == asked else f"not all ({', '.join(failed)})"
    return (
        Problem(
            "drivers-not-asked",
            f"{which} could be asked: {reason}",
            system_limits.fix_of(reason)
            or "make sure that this program may start processes, then try again",
            transient=True,
        ),
    )


def evidence(answer: DriverAnswer, codes: Codes | None = None) -> tuple[Evidence, ...]:
    """List each call and its outcome as text; ``codes`` names return codes."""
    found = [item for line in answer.lines if (item := _item(line, codes or {}))]
    if answer.end == "not-started":
        found.append(Evidence("the child process that asks", words(answer.during) or answer.end))
    elif answer.end not in ("done", "absent"):
        found.append(Evidence(words(answer.during) or "the question", words(answer.end) or ""))
    return tuple(found)


def _item(line: Mapping[str, Any], codes: Codes) -> Evidence | None:
    call, number = words(line.get("call")), integer(line.get("code"))
    if call is None:
        return None
    if call == "open":
        return _opened(line)
    if call == "icd":
        return _driver_file(line)
    if "error" in line:
        return Evidence(call, words(line["error"]) or "")
    # Devices that were read become ``Gpu`` values; only their errors are evidence.
    if number is None or (call == "device" and number == 0):
        return None
    return Evidence(call, f"{number} ({codes[number]})" if number in codes else str(number))


def _driver_file(line: Mapping[str, Any]) -> Evidence:
    file, variable = words(line.get("file")), words(line.get("variable"))
    if file is None and variable:
        return Evidence(variable, "names no driver")
    name = f"{file} → {words(line.get('library'))}"
    if line.get("missing") is True:
        return Evidence(name, f"missing (named by {variable})")
    return Evidence(
        name, f"left out by {variable}" if variable else words(line.get("error")) or "present"
    )


def _opened(line: Mapping[str, Any]) -> Evidence:
    loaded = words(line.get("library"))
    if loaded:
        return Evidence(f"open {words(line.get('name')) or loaded}", loaded)
    names = line.get("names")
    errors = line.get("errors")
    first = words(names[0]) if isinstance(names, list) and names else None
    error = words(errors[0]) if isinstance(errors, list) and errors else None
    return Evidence(f"open {first or 'its library'}", error or "not found")
