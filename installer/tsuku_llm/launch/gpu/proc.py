"""The kernel's view of a server's processes and their GPUs, independent of its log. Linux only.

The facts are the open device nodes, the mapped files, the GPU memory and the work of the GPU's
engines. The kernel's drivers count the last two as ``drm-*`` in ``/proc/PID/fdinfo`` (amdgpu,
i915, xe, nouveau and others, since Linux 5.19; drm-usage-stats.rst), and AMD's compute driver in
``/sys/class/kfd``. NVIDIA's own driver counts nothing there: a child process asks its library
(``nvml``).
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress

from tsuku_llm.ground.foreign import kernel_text, read_beginning
from tsuku_llm.launch.gpu.gpu_use import ProcessSample
from tsuku_llm.launch.memory.model_header import first_part
from tsuku_llm.launch.plan.addresses import Listeners

# Without NVIDIA's control nodes: a process can open them and still use no GPU.
_NODE = re.compile(r"/dev/(?:nvidia\d|dri/|kfd$|dxg$|mali|kgsl|nvhost|nvmap|nvgpu|accel)")
_DRM = re.compile(
    r"^drm-(?P<kind>resident|memory|total)-(?P<region>\w+):\s*(?P<size>\d+)\s*(?P<unit>KiB|MiB)?",
    re.MULTILINE,
)
# Nanoseconds of each engine, or cycles (xe). "capacity" and "total-cycles" are no work.
_BUSY = re.compile(r"^drm-(?:engine-(?!capacity)|cycles-)\w+:\s*(\d+)", re.MULTILINE)
_CLIENT = re.compile(r"^drm-client-id:\s*(\S+)", re.MULTILINE)
_DEVICE = re.compile(r"^drm-pdev:\s*(\S+)", re.MULTILINE)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_HOST_REGIONS = ("cpu", "gtt", "system")
"""Regions of the machine's memory that a driver lends to a GPU.

An integrated GPU has only these.
"""

_KFD = "/sys/class/kfd/kfd/proc"

_DRM_CLASS = "/sys/class/drm"


def computing_processes(pid: int, files: AbstractSet[str]) -> tuple[int, ...]:
    """Return the processes of a server that compute, of a process and its descendants.

    A script that starts the server, and a router that starts one for each model, compute in
    children. ``files`` are the names of the build's files: a process that has one of them mapped,
    and no descendant that has, computes. Without such a process return all of them.
    """
    children: dict[int, list[int]] = {}
    with suppress(OSError):
        for name in os.listdir("/proc"):
            # A process may end between two of these steps.
            if name.isdecimal():
                with suppress(OSError, ValueError, IndexError):
                    # The name in brackets may contain anything: the parent comes after it.
                    parent = int(kernel_text(f"/proc/{name}/stat").rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(name))
    found = [pid]
    for each in found:  # grows while it is read, until no process has further children
        found += children.get(each, ())
    computing: list[int] = []
    above: set[int] = set()
    # From the youngest generation up: a parent of a process that computes only hands out work.
    for each in reversed(found):
        below = set(children.get(each, ()))
        if below & above or below & set(computing):
            above.add(each)
            continue
        with suppress(OSError):
            if mapped_files(kernel_text(f"/proc/{each}/maps")) & files:
                computing.append(each)
    return tuple(computing) or tuple(found)


def listeners_of(pid: int) -> Listeners | None:
    """Return where a server listens; None where the system does not tell.

    Its descendants count only if it has no such socket itself: a script may start the server, but
    the children of a router, and the programs of its tools, have sockets for other clients.
    """
    if sys.platform != "linux":
        return None
    ports: set[int] = set()
    unreadable = True
    for each in (pid, *computing_processes(pid, frozenset())):  # empty: all descendants
        # A process may end between two of these steps, or be another user's.
        with suppress(OSError, ValueError, IndexError):
            inodes = {name[8:-1] for name in open_files(each) if name[:8] == _SOCKET}
            found = [*_tcp_listeners(each), *_unix_listeners(each)]
            unreadable = False
            ports |= {port for _, port, _ in found}
            if own := sorted((host, port) for host, port, inode in found if inode in inodes):
                return Listeners(tuple(own), frozenset(ports))
    return None if unreadable else Listeners((), frozenset(ports))


_SOCKET = "socket:["
_LISTENS = "0A"
"""The state of a TCP socket that listens (proc(5), ``TCP_LISTEN`` of the kernel)."""
_UNCONNECTED = "01"
"""The state of a Unix socket that listens (linux/net.h).

02 waits to be accepted, 03 is connected.
"""
_ACCEPTS = 0x10000
"""The flag of a Unix socket that listens (``__SO_ACCEPTCON`` of the kernel)."""


def _tcp_listeners(pid: int) -> Iterator[tuple[str, int, str]]:
    """Yield the host, port and inode of each TCP socket that listens in a process's network."""
    for table in ("tcp", "tcp6"):
        text = ""
        # A kernel without IPv6 has no second table.
        with suppress(FileNotFoundError):
            text = kernel_text(f"/proc/{pid}/net/{table}")
        # The columns are: sl local_address rem_address st and five more before the inode.
        for row in map(str.split, text.splitlines()[1:]):
            if row[3] == _LISTENS:
                address, _, port = row[1].rpartition(":")
                # Words of 32 bits, each in the machine's own byte order.
                words = (int(address[at : at + 8], 16) for at in range(0, len(address), 8))
                packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
                yield str(ipaddress.ip_address(packed)), int(port, 16), row[9]


def _unix_listeners(pid: int) -> Iterator[tuple[str, int, str]]:
    """Yield the path, 0 and the inode of each Unix socket that listens."""
    text = ""
    with suppress(FileNotFoundError):
        text = kernel_text(f"/proc/{pid}/net/unix")
    for line in text.splitlines()[1:]:
        # Num RefCount Protocol Flags Type St Inode Path; the path may have blanks.
        row = line.split(None, 7)
        if len(row) == 8 and int(row[3], 16) & _ACCEPTS and row[7].endswith(".sock"):
            yield row[7], 0, row[6]


def unix_connections(socket: str, table: Iterable[str]) -> frozenset[str]:
    """Return the inodes of the connections to a Unix socket, from the lines of /proc/net/unix.

    The accepted end of a connection has the path of the socket that listens (proc_net_unix(5)).
    """
    rows = (line.rstrip("\n").split(None, 7) for line in table)
    return frozenset(
        row[6] for row in rows if len(row) == 8 and row[7] == socket and row[5] != _UNCONNECTED
    )


def sample_processes(pids: Collection[int], model: str | None = None) -> ProcessSample:
    """Read the facts about processes of this user; a fact that cannot be read is None.

    ``model`` is the path of the model's first file.
    """
    if sys.platform != "linux":
        return ProcessSample()
    nodes: set[str] | None = None
    libraries: set[str] | None = None
    texts: list[str] = []
    mapped = 0
    for pid in pids:
        # Each fact alone: the process may end between two of them, or forbid only one.
        with suppress(OSError):
            opened = filter(_NODE.match, open_files(pid))
            nodes = {*(nodes or ()), *(node for node in opened if not _is_nvidias_drm_node(node))}
        with suppress(OSError):
            maps = kernel_text(f"/proc/{pid}/maps")
            libraries = {*(libraries or ()), *mapped_files(maps)}
            mapped += mapped_bytes(maps, model) if model else 0
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fdinfo"):
                with suppress(OSError):  # the process has closed it meanwhile
                    texts.append(kernel_text(f"/proc/{pid}/fdinfo/{name}"))
    counted = drm_count(texts)
    kfd = _kfd_memory(pids)
    # ROCm's memory may be in both counts, or only in its own: the larger one has all of it.
    if kfd is not None:
        counted = counted._replace(
            memory=max(counted.memory or 0, kfd),
            device_memory=max(counted.device_memory or 0, kfd),
        )
    elif "/dev/kfd" in (nodes or ()):
        counted = counted._replace(memory=None, device_memory=None)
    return counted._replace(
        nodes=None if nodes is None else tuple(sorted(nodes)),
        libraries=None if libraries is None else frozenset(libraries),
        model_mapped=mapped if model and libraries is not None else None,
    )


def mapped_model(pids: Iterable[int]) -> str | None:
    """Return the path of the one model that processes have mapped, of its first part.

    For a model that the server has fetched itself. None if there is none, or more than one.
    """
    paths: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            paths.update(_mapped_paths(kernel_text(f"/proc/{pid}/maps")))
    models = {first_part(path) for path in paths if _is_gguf(path)}
    return models.pop() if len(models) == 1 else None


def _is_gguf(path: str) -> bool:
    # By the content: a cache may name files by their digest. Opening a device could start work.
    with suppress(OSError):
        return read_beginning(path, 4) == b"GGUF"
    return False


def counts_work(node: str) -> bool:
    """Tell whether the driver of an open device node counts its engines' work in ``fdinfo``.

    AMD's compute driver (``/dev/kfd``) hands its queues to the GPU past the engines that are
    counted, and NVIDIA's driver and those of telephones count nothing there.
    """
    return node.startswith("/dev/dri/")


def mapped_files(maps: str) -> frozenset[str]:
    """Return the base names of the files in ``/proc/PID/maps``, deleted ones included."""
    return frozenset(
        path.removesuffix(" (deleted)").rpartition("/")[2] for path in _mapped_paths(maps)
    )


def _mapped_paths(maps: str) -> Iterator[str]:
    for line in maps.splitlines():
        yield from line.split(None, 5)[5:]


def mapped_bytes(maps: str, model: str) -> int:
    """Return how many bytes of a model's files ``/proc/PID/maps`` has, its other parts included."""
    # The parts of a model differ in their numbers only. The kernel shows the resolved path.
    stem = os.path.realpath(model).removesuffix(".gguf")
    stem = re.sub(r"\d+-of-\d+$", "", stem)
    total = 0
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(stem):
            begin, _, end = fields[0].partition("-")
            total += int(end, 16) - int(begin, 16)
    return total


def drm_count(descriptors: Iterable[str]) -> ProcessSample:
    """Add up the counts in ``fdinfo`` texts, each client of a device once.

    Resident memory counts before allocated memory. Memory of the machine counts as the device's
    only if the driver lists no other, as for an integrated GPU.
    """
    # A process may have several descriptors of one client, each with the same numbers.
    clients: dict[tuple[str, str], tuple[int, int, int | None]] = {}
    for text in descriptors:
        client = _CLIENT.search(text)
        if client and (sizes := _sizes(text)) is not None:
            device = _DEVICE.search(text)
            busy = [int(each) for each in _BUSY.findall(text)]
            key = (device[1] if device else "", client[1])
            clients[key] = (*sizes, sum(busy) if busy else None)
    if not clients:
        return ProcessSample()
    local, memory, works = zip(*clients.values(), strict=True)
    known = [each for each in works if each is not None]
    return ProcessSample(
        memory=sum(memory), device_memory=sum(local), busy=sum(known) if known else None
    )


def _sizes(text: str) -> tuple[int, int] | None:
    """Return the bytes on the device, and all bytes that the GPU can use."""
    sizes: dict[str, dict[str, int]] = {}
    for found in _DRM.finditer(text):
        size = int(found["size"]) * _UNITS[found["unit"] or ""]
        sizes.setdefault(found["kind"], {})[found["region"]] = size
    # "memory" is the older name for "resident"; "total" includes what is only allocated.
    for kind in ("resident", "memory", "total"):
        if regions := sizes.get(kind):
            own = [size for name, size in regions.items() if not name.startswith(_HOST_REGIONS)]
            # The region "cpu" is memory that the driver has moved away from the GPU.
            usable = sum(size for name, size in regions.items() if name != "cpu")
            return sum(own) or sum(regions.values()), usable or sum(regions.values())
    return None


def _is_nvidias_drm_node(node: str) -> bool:
    """Return True for a node in /dev/dri of NVIDIA's driver, which counts nothing in ``fdinfo``.

    Its memory is counted as that of ``/dev/nvidia0``, which such a process has open too.
    """
    link = f"{_DRM_CLASS}/{node.rpartition('/')[2]}/device/driver"
    return os.path.realpath(link).endswith("/nvidia")


def _kfd_memory(pids: Iterable[int]) -> int | None:
    """Return the bytes that AMD's compute driver counts for processes; None if it counts none."""
    total: int | None = None
    for pid in pids:
        with suppress(OSError, ValueError):
            for name in os.listdir(f"{_KFD}/{pid}"):
                if name.startswith("vram_"):
                    total = (total or 0) + int(kernel_text(f"{_KFD}/{pid}/{name}"))
    return total


def open_files(pid: int) -> Iterator[str]:
    """Yield what a process has open: paths, and names such as ``socket:[7]``. Raises OSError."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # the process has closed it meanwhile
            yield os.readlink(f"/proc/{pid}/fd/{name}")
