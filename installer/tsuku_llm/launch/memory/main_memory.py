"""The main memory that is free: the system's, or what the limits of control groups leave of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.launch.memory.fit import Card

if sys.platform == "win32":
    import ctypes

_NAME = "main memory"
_MEMINFO, _GROUPS, _MOUNTS = "proc/meminfo", "proc/self/cgroup", "proc/self/mountinfo"


def main_memory(root: Path = Path(os.sep)) -> Card:
    """Ask the system for its memory; what it does not tell stays unknown.

    ``root`` is the folder with ``proc``, and with the folders that are mounted there.
    """
    if sys.platform == "win32":
        return _of_windows()
    groups = memory_groups(_read(root / _GROUPS), _read(root / _MOUNTS))
    folders = ((root / folder.lstrip("/"), limit) for folder, limit in groups)
    limits = ((_read(folder / limit), _read(folder / "memory.stat")) for folder, limit in folders)
    found = parse_main_memory(_read(root / _MEMINFO), limits)
    if found.total is None:
        # macOS knows its pages, and not which are free.
        with suppress(ValueError, OSError):
            return found._replace(total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return found


def _of_windows() -> Card:
    if sys.platform == "win32":
        # MEMORYSTATUSEX: 8 numbers, of which the first is its size. Then all bytes, and the free.
        status = (ctypes.c_uint64 * 8)(64)
        if ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):
            return Card(_NAME, free=status[2], total=status[1])
    return Card(_NAME)


def memory_groups(groups: str, mounts: str) -> Iterator[tuple[str, str]]:
    """Yield the folder of the own control group and of each around it, with its limit's file.

    ``groups`` is ``/proc/self/cgroup`` and ``mounts`` ``/proc/self/mountinfo``. The limit of each
    group counts for all groups in it. Version 1 has the controller of memory in a tree of its own.
    """
    own = {}
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            own["cgroup2"] = path
        elif "memory" in controllers.split(","):
            own["cgroup"] = path
    for line in mounts.splitlines():
        place, _, kind = line.partition(" - ")
        fields, kinds = place.split(), kind.split()
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in own:
            continue
        if kinds[0] == "cgroup" and "memory" not in kinds[2].split(","):
            continue
        shown, point = (
            _ESCAPED.sub(lambda found: chr(int(found[1], 8)), each) for each in fields[3:5]
        )
        # A container may see only a part of the tree, and may be told its path in the whole.
        path, top = own[kinds[0]], shown.rstrip("/")
        inside = path.removeprefix(top) if path.startswith(f"{top}/") else ""
        names = [name for name in inside.split("/") if name]
        if ".." in names:
            names = []
        for depth in range(len(names), -1, -1):
            yield "/".join([point, *names[:depth]]), _LIMITS[kinds[0]]


_LIMITS = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How mountinfo writes a space in a path."""


def parse_main_memory(meminfo: str, limits: Iterable[tuple[str, str]]) -> Card:
    """Parse ``/proc/meminfo``, and the limits of control groups: the least that is left counts.

    Each limit comes with the text of ``memory.stat``. Files that the kernel has cached count as
    free: it drops them when memory is needed.
    """
    fields = _fields(meminfo.replace(":", " "))
    total, free = fields.get("MemTotal"), fields.get("MemAvailable")
    # meminfo is in kibibytes.
    total = None if total is None else total * 1024
    free = None if free is None else free * 1024
    for limit, use in limits:
        # Version 1 without a limit has a number that is more than any machine's memory.
        if not limit.strip().isdecimal() or int(limit) >= _NO_LIMIT:
            continue
        most, used = int(limit), _fields(use)
        # "rss" of version 1 is without the groups inside, "anon" of version 2 with them.
        left = max(0, most - used.get("total_rss", used.get("anon", 0)))
        total = most if total is None else min(total, most)
        free = left if free is None else min(free, left)
    return Card(_NAME, free=free, total=total)


_NO_LIMIT = 1 << 62


def _fields(text: str) -> dict[str, int]:
    """Return the lines that are a name and a number, and perhaps a unit."""
    words = [line.split() for line in text.splitlines()]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}


def _read(path: Path) -> str:
    with suppress(OSError):
        return kernel_text(path)
    return ""
