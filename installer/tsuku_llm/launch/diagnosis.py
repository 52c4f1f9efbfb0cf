"""Why a server did not start: its last words and how it ended, looked up in ``causes``. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from tsuku_llm.launch.causes import (
    CPU_OVERRIDE,
    NT_STATUS,
    OOM_KILLED,
    SIGNALS,
    TABLE,
    Cause,
    Diagnosis,
)
from tsuku_llm.launch.packages import package_of

__all__ = ["CPU_OVERRIDE", "Diagnosis", "diagnose", "signal_name"]

_LONGEST = 300
"""Characters of a line that is quoted."""

_LONGEST_LINE = 1000
"""Characters of a line that are looked at: some patterns take more than its square."""


def diagnose(
    code: int, tail: str, *, distribution: str = "", oom_killed: bool = False
) -> Diagnosis | None:
    """Explain an end by its last output and its exit code (negative: minus the signal).

    What the server or its loader said comes before how it ended: an abort is most often
    the end of something that was explained. None where nothing is recognised.
    ``distribution`` is one of ``packages.distribution``; ``oom_killed`` tells that the kernel
    killed something for want of memory meanwhile.
    """
    return _by_text(tail, distribution) or _by_code(code, oom_killed=oom_killed)


def signal_name(code: int) -> str | None:
    """Name the signal of a negative exit code; None if it is no signal."""
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return f"signal {-code}"


def _by_text(tail: str, distribution: str) -> Diagnosis | None:
    tail = "\n".join(line[:_LONGEST_LINE] for line in tail.split("\n"))
    for row in TABLE:
        found = re.search(row.pattern, tail, re.IGNORECASE)
        if found:
            return _filled(row, found, distribution)
    return None


def _by_code(code: int, *, oom_killed: bool) -> Diagnosis | None:
    name = signal_name(code) or ""
    if name == "SIGKILL" and oom_killed:
        return OOM_KILLED
    status = code & 0xFFFFFFFF  # Windows' own codes may come as negative numbers
    if name in SIGNALS:
        return replace(SIGNALS[name], facts=(f"it was ended by {name}",))
    if status in NT_STATUS:
        return replace(NT_STATUS[status], facts=(f"exit code {status:#X}",))
    return None


def _filled(row: Cause, found: re.Match[str], distribution: str) -> Diagnosis:
    """Fill a row in, and quote the line that it was recognised by."""
    named = {name.split("_")[0]: value for name, value in found.groupdict().items() if value}
    named["package"] = package_of(named.get("library", ""), distribution)
    return Diagnosis(
        row.slug,
        row.cause.format_map(named),
        row.fix.format_map(named),
        row.override,
        (_line_around(found),),
    )


def _line_around(found: re.Match[str]) -> str:
    start = found.string.rfind("\n", 0, found.start()) + 1
    end = found.string.find("\n", found.start())
    return found.string[start : end if end >= 0 else None].strip()[:_LONGEST]
