"""The diagnosis of a failed start: its last output and exit code, looked up. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from tsuku_llm.launch.causes import NT_STATUS, OOM_KILLED, SIGNALS, TABLE, Cause, Diagnosis
from tsuku_llm.launch.packages import package_of

_LONGEST = 300
"""Characters of a line that is quoted."""

_LONGEST_LINE = 1000
"""Characters of a line that are read: some patterns' time grows faster than the square."""


def diagnose(
    code: int, tail: str, *, distribution: str = "", oom_killed: bool = False
) -> Diagnosis | None:
    """Explain an end by its last output and its exit code (negative: minus the signal).

    The output of the server or its loader counts before the code: an abort usually follows
    an explanation. None if nothing is recognised. ``distribution`` is a result
    of ``packages.family_of``. ``oom_killed``: the kernel killed a process meanwhile because
    memory ran out.
    """
    return _by_text(tail, distribution) or _by_code(code, oom_killed=oom_killed)


def signal_name(code: int) -> str | None:
    """Name the signal of a negative exit code; None for other codes."""
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return f"signal {-code}"


def _by_text(tail: str, distribution: str) -> Diagnosis | None:
    # Each line is cut, not the text: a cause may be in any line.
    tail = "\n".join(line[:_LONGEST_LINE] for line in tail.split("\n"))
    for row in TABLE:
        found = re.search(row.pattern, tail, re.IGNORECASE)
        if found:
            return _filled(row, found, distribution)
    return None


def _by_code(code: int, *, oom_killed: bool) -> Diagnosis | None:
    name = signal_name(code) or ""
    # The counter is the whole machine's: only together with SIGKILL does it mean our server.
    if name == "SIGKILL" and oom_killed:
        return OOM_KILLED
    status = code & 0xFFFFFFFF  # Windows' own codes may come as negative numbers
    if name in SIGNALS:
        return replace(SIGNALS[name], facts=(f"it was ended by {name}",))
    if status in NT_STATUS:
        return replace(NT_STATUS[status], facts=(f"exit code {status:#X}",))
    return None


def _filled(row: Cause, found: re.Match[str], distribution: str) -> Diagnosis:
    """Fill in a row, and quote the line by which it was recognised."""
    start = found.string.rfind("\n", 0, found.start()) + 1
    end = found.string.find("\n", found.start())
    line = found.string[start : end if end >= 0 else None].strip()[:_LONGEST]
    # ``library_musl`` and ``library_dyld`` become ``library``; only one of them matched.
    named = {name.split("_")[0]: value for name, value in found.groupdict().items() if value}
    named["package"] = package_of(named.get("library", ""), distribution)
    return Diagnosis(
        row.slug,
        row.cause.format_map(named),
        row.fix.format_map(named),
        row.override,
        (line,),
        fault=row.fault,
    )
