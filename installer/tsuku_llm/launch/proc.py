"""The kernel's view of a process and its GPUs, independent of the process's log. Linux only.

The facts are the process's open device nodes, its mapped libraries, and its GPU memory. The
kernel's drivers count that memory as ``drm-*`` in ``/proc/PID/fdinfo`` (amdgpu, i915, xe,
nouveau and others, since Linux 5.19). NVIDIA's own driver counts nothing in ``/proc``: a
child process asks its library (``nvml``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

from tsuku_llm.launch.gpu_use import ProcessSample

# Without NVIDIA's control nodes: a process can open them and still use no GPU.
_NODE = re.compile(r"/dev/(?:nvidia\d|dri/|kfd$|dxg$|mali|kgsl|nvhost|nvmap|accel)")
_DRM = re.compile(
    r"^drm-(?P<kind>resident|memory|total)-(?P<region>\w+):\s*(?P<size>\d+)\s*(?P<unit>KiB|MiB)?",
    re.MULTILINE,
)
_CLIENT = re.compile(r"^drm-client-id:\s*(\S+)", re.MULTILINE)
_DEVICE = re.compile(r"^drm-pdev:\s*(\S+)", re.MULTILINE)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_HOST_REGIONS = ("cpu", "gtt", "system")
"""Regions of the machine's memory that a driver lends to a GPU.

An integrated GPU has only these.
"""


def sample_process(pid: int) -> ProcessSample:
    """Read the facts about a process of this user; a fact that cannot be read is None."""
    if sys.platform != "linux":
        return ProcessSample()
    nodes: tuple[str, ...] | None = None
    libraries: frozenset[str] | None = None
    # Each fact alone: the process may end between two of them, or forbid only one.
    with suppress(OSError):
        nodes = tuple(sorted(set(filter(_NODE.match, _open_files(f"/proc/{pid}/fd")))))
    with suppress(OSError):
        libraries = mapped_files(_read(f"/proc/{pid}/maps"))
    return ProcessSample(nodes, libraries, drm_memory(_descriptors(f"/proc/{pid}/fdinfo")))


def mapped_files(maps: str) -> frozenset[str]:
    """Return the base names of the files in ``/proc/PID/maps``, deleted ones included."""
    paths = (line.split(None, 5)[5:] for line in maps.splitlines())
    return frozenset(
        path[0].removesuffix(" (deleted)").rpartition("/")[2] for path in paths if path
    )


def drm_memory(descriptors: Iterable[str]) -> int | None:
    """Add up the bytes in ``fdinfo`` texts, each client of a device once; None without any.

    Resident memory counts before allocated memory. Memory of the machine counts only if the
    driver lists no other, as for an integrated GPU.
    """
    # A process may have several descriptors of one client, each with the same numbers.
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
    # "memory" is the older name for "resident"; "total" includes what is only allocated.
    for kind in ("resident", "memory", "total"):
        if regions := sizes.get(kind):
            own = [size for name, size in regions.items() if not name.startswith(_HOST_REGIONS)]
            return sum(own) or sum(regions.values())
    return None


def _open_files(folder: str) -> Iterator[str]:
    for name in os.listdir(folder):  # noqa: PTH208 - texts are compared
        with suppress(OSError):  # the process has closed it meanwhile
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115


def _descriptors(folder: str) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError):  # as above
                yield _read(f"{folder}/{name}")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return file.read()
