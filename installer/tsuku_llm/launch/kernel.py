"""What the system itself shows of a process and its GPUs, whatever the process says. Linux.

Three things: which device nodes it holds open, which libraries it has mapped, and what the
kernel's drivers count of its memory (``drm-*`` in ``/proc/PID/fdinfo``: amdgpu, i915, xe,
nouveau and others, since Linux 5.19). NVIDIA's own driver counts nowhere in ``/proc``: its
library is asked in a child process (``nvml``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

_NODE = re.compile(r"/dev/(?:nvidia\d|dri/|kfd$|dxg$|mali|kgsl|nvhost|nvmap|accel)")
_DRM = re.compile(
    r"^drm-(?P<kind>resident|memory|total)-(?P<region>\w+):\s*(?P<size>\d+)\s*(?P<unit>KiB|MiB)?",
    re.MULTILINE,
)
_CLIENT = re.compile(r"^drm-client-id:\s*(\S+)", re.MULTILINE)
_DEVICE = re.compile(r"^drm-pdev:\s*(\S+)", re.MULTILINE)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_HOST_REGIONS = ("cpu", "gtt", "system")
"""Memory of the machine that a driver lends to a GPU; an integrated one has no other."""


class Sight(NamedTuple):
    """What is seen of one process. None: it may not be looked at, or not on this system.

    ``nodes`` are the GPU device nodes that it has open, ``libraries`` the names of the files
    that it has mapped, ``memory`` the bytes that the kernel's drivers count for it.
    """

    nodes: tuple[str, ...] | None = None
    libraries: frozenset[str] | None = None
    memory: int | None = None


def look_at(pid: int) -> Sight:
    """See a process of this user; what it may not show is None."""
    if sys.platform != "linux":
        return Sight()
    nodes: tuple[str, ...] | None = None
    libraries: frozenset[str] | None = None
    with suppress(OSError):
        nodes = tuple(sorted(set(filter(_NODE.match, _open_files(pid)))))
    with suppress(OSError):
        libraries = mapped_files(_read(f"/proc/{pid}/maps"))
    return Sight(nodes, libraries, drm_memory(_descriptors(pid)))


def mapped_files(maps: str) -> frozenset[str]:
    """The base names of the files in ``/proc/PID/maps``, deleted ones included."""
    paths = (line.split(None, 5)[5:] for line in maps.splitlines())
    return frozenset(
        path[0].removesuffix(" (deleted)").rpartition("/")[2] for path in paths if path
    )


def drm_memory(descriptors: Iterable[str]) -> int | None:
    """The bytes that ``fdinfo`` texts add up to, each client of a device once; None for none.

    What is resident counts before what is merely allocated. Memory of the machine counts
    where a driver lists no other, as for an integrated GPU.
    """
    clients: dict[tuple[str, str], int] = {}
    for text in descriptors:
        client = _CLIENT.search(text)
        if client and (size := _size(text)) is not None:
            device = _DEVICE.search(text)
            clients[(device[1] if device else "", client[1])] = size
    return sum(clients.values()) if clients else None


def _size(text: str) -> int | None:
    sizes: dict[str, dict[str, int]] = {}
    for found in _DRM.finditer(text):
        size = int(found["size"]) * _UNITS[found["unit"] or ""]
        sizes.setdefault(found["kind"], {})[found["region"]] = size
    for kind in ("resident", "memory", "total"):
        if regions := sizes.get(kind):
            own = [size for name, size in regions.items() if not name.startswith(_HOST_REGIONS)]
            return sum(own) or sum(regions.values())
    return None


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 - texts are compared
        with suppress(OSError):  # closed meanwhile
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115


def _descriptors(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fdinfo"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError):
                yield _read(f"{folder}/{name}")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return file.read()
