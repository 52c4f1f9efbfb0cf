"""The use of NVIDIA GPUs by each process, and their faults, asked in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground.foreign import kernel_text, parse_json
from tsuku_llm.ground.processes import children
from tsuku_llm.launch.ask.child import ChildEnd, ask
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import DriverFault, GpuHolder
from tsuku_llm.machine.card_speeds import plain_name

if TYPE_CHECKING:
    from tsuku_llm.launch.memory.fit import Card

_LIMIT = 10.0
"""Seconds for an answer: a library whose kernel module hangs never answers."""

_NONSENSE = 1 << 53

_SIGNS = ("/dev/nvidiactl", "/dev/dxg")
"""Device nodes of NVIDIA's driver, natively and in WSL. Without one, do not ask."""

# The child has no site-packages (-I, -S), so it cannot import our package: the worker is
# imported as a single module from this folder.
_START = (
    "import importlib, sys; sys.path.append(sys.argv[1]); "
    "importlib.import_module('nvml_worker').main()"
)
_CHILD = (sys.executable, "-I", "-S", "-E", "-c", _START, str(Path(__file__).parent))

ANY = "a GPU"
"""The name of a device that the driver did not tell."""

# The number of the first pid namespace (PROC_PID_INIT_INO of the kernel's proc_ns.h).
_FIRST_NAMESPACE = "pid:[4026531836]"

_HOLDERS = 5
"""Other processes with GPU memory that are named: those with the most of it."""

_LEAST = 16 << 20
"""Bytes of GPU memory for which another process is named."""

_SAME_MEMORY = 64 << 20
"""Bytes by which free memory may differ and count as the same."""


class NvidiaDevice(NamedTuple):
    """The memory of one NVIDIA device, in bytes, and of each process there, by its id.

    ``told`` names the GPU for people. None is a process whose memory the driver does not tell. In a
    container the ids are the host's, or the driver tells no process.
    """

    told: str
    name: str
    total: int
    used: int
    processes: Mapping[int, int | None]


class GpuMemory(NamedTuple):
    """The memory of all NVIDIA devices, in bytes; they are in the order of the PCI bus.

    ``complete``: every process is there, under the id that it has here. ``working`` are the
    processes for which the engines worked since the time that was asked for; others may have worked
    too shortly to be seen, and without ``counts_work`` nothing was counted. ``idle``: no device
    worked in the last second.
    """

    devices: tuple[NvidiaDevice, ...]
    driver: str
    complete: bool = False
    working: frozenset[int] = frozenset()
    counts_work: bool = False
    idle: bool = False

    @property
    def total(self) -> int:
        """The memory of all devices together."""
        return sum(device.total for device in self.devices)

    @property
    def used(self) -> int:
        """The memory in use on all devices together."""
        return sum(device.used for device in self.devices)

    @property
    def processes(self) -> Mapping[int, int | None]:
        """The memory of each process on all devices together."""
        found: dict[int, int | None] = {}
        for device in self.devices:
            for pid, used in device.processes.items():
                before = found.get(pid)
                found[pid] = before if used is None else (before or 0) + used
        return found

    def of(self, pids: Collection[int]) -> int | None:
        """Return the memory of processes; None if it is not known."""
        processes = self.processes
        found = [processes[pid] for pid in pids if pid in processes]
        known = [size for size in found if size is not None]
        if known:
            return sum(known)
        # A process that is missing in a complete list has no memory there.
        return 0 if self.complete and not found else None

    def did_work(self, pids: Collection[int]) -> bool | None:
        """Tell whether the engines worked for processes; None if it is not known."""
        if self.working & set(pids):
            return True
        return False if self.idle or (self.complete and self.counts_work) else None


class NvidiaLine(NamedTuple):
    """A line of the child that watches: the memory, and what is wrong with devices."""

    memory: GpuMemory | None = None
    faults: tuple[DriverFault, ...] = ()


class NvidiaWatch:
    """A child process that waits for faults of NVIDIA's devices, and tells their memory meanwhile.

    One thread uses it. The child starts once for a server's life: a new one each minute would take
    longer than everything else that is looked at. One that ended, such as by a crash in the
    driver's library, is started again after five minutes.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = dict(env)
        self._rest = b""
        self._child: subprocess.Popen[bytes] | None = None
        self._begun = self._heard = time.monotonic()
        self._start()

    @property
    def is_silent(self) -> bool:
        """True if the child has told nothing for long: the driver's library may hang."""
        return time.monotonic() - self._heard > _SILENT

    def lines(self) -> tuple[NvidiaLine, ...]:
        """Return what the child has said since the last call, without waiting."""
        # On Windows a pipe cannot be read without waiting.
        if sys.platform == "win32":
            return ()
        if self._child is None and time.monotonic() - self._begun >= _AGAIN:
            self._start()
        if self._child is None or self._child.stdout is None:
            return ()
        data, ended = self._rest, False
        # BlockingIOError is an OSError: nothing more has arrived. A library that prints without an
        # end keeps neither this thread nor the memory: what is over the limit is read next time.
        with suppress(OSError):
            while len(data) < _MOST and not ended:
                piece = os.read(self._child.stdout.fileno(), 1 << 16)
                data += piece
                ended = not piece
        *complete, rest = data.split(b"\n")
        self._rest = rest if len(rest) < _MOST else b""
        if ended:
            self.close()
        found = tuple(parse_watched(line.decode("utf-8", "replace")) for line in complete)
        if any(line.memory for line in found):
            self._heard = time.monotonic()
        return found

    def close(self) -> None:
        """End the child, and collect it."""
        if self._child:
            ChildEnd(self._child).finish()
            if self._child.stdout:
                self._child.stdout.close()
        self._child, self._rest = None, b""

    def _start(self) -> None:
        self._begun = time.monotonic()
        with suppress(OSError):
            self._child = children.start(
                (*_CHILD, "watch"),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        if self._child and self._child.stdout and sys.platform != "win32":
            os.set_blocking(self._child.stdout.fileno(), False)


_SILENT = 45.0
"""Seconds without a line after which NVIDIA's last answer does not count: one comes in 10."""

_AGAIN = 300.0
"""Seconds from the start of a child that ended to the next one."""

_MOST = 1 << 20
"""Bytes that are read at once; a line with 256 processes of 16 devices has 200 kB."""


def parse_watched(line: str) -> NvidiaLine:
    """Parse one line of the child that watches; an empty value for anything else."""
    try:
        document = parse_json(line)
        if "fault" in document:
            number, device = document["fault"], document["device"]
            name = ANY if device is None else _name(device)
            if number is None:
                return NvidiaLine(faults=(DriverFault(None, name, "double-bit ECC error"),))
            return NvidiaLine(faults=(DriverFault(int(number), name),))
        lost = (DriverFault(None, _name(at), "the driver has lost it") for at in document["lost"])
        return NvidiaLine(_told(line), tuple(lost))
    except (ValueError, TypeError, KeyError, AttributeError):
        return NvidiaLine()


def _name(index: int) -> str:
    return f"GPU {int(index)}"


def gpu_memory(env: Mapping[str, str], *, since: int = 0) -> GpuMemory | None:
    """Ask now; None without the driver or an answer. ``env`` is the server's environment.

    ``since`` is for ``working``: microseconds since 1970, 0 if that is not asked.
    """
    if sys.platform != "win32" and not any(map(os.path.exists, _SIGNS)):
        return None
    argv = (*_CHILD, str(since))
    try:
        answer = ask(LaunchPlan(argv, Path(os.sep), env, "cuda"), _LIMIT)
    except OSError:
        return None
    return _told(answer.stdout)


def holders_of(
    processes: Mapping[int, int | None], ours: Collection[int] = ()
) -> tuple[GpuHolder, ...]:
    """Return the processes that hold GPU memory, without ``ours``, the largest first."""
    found = [
        GpuHolder(pid, _name_of(pid), used)
        for pid, used in processes.items()
        if pid not in ours and used is not None and used >= _LEAST
    ]
    return tuple(sorted(found, key=lambda holder: -holder.memory)[:_HOLDERS])


def with_holders(cards: Sequence[Card], seen: GpuMemory) -> tuple[Card, ...]:
    """Add what NVIDIA's library knows of these cards: less free memory, and who holds it.

    The list of a build has no numbers of the bus, so names decide. Equal cards are paired by their
    order if the build says the same free memory for all of them, else by their free memory. If
    the build lists another number of them than the library, a part is hidden: they stay as they
    are.
    """
    found: dict[str, Card] = {}
    for plain in {plain_name(card.description) for card in cards}:
        ours = [card for card in cards if plain_name(card.description) == plain]
        theirs = [device for device in seen.devices if plain_name(device.name) == plain]
        sizes = [card.free or 0 for card in ours]
        if len(ours) != len(theirs):
            continue
        if max(sizes) - min(sizes) > _SAME_MEMORY:
            ours.sort(key=lambda card: card.free or 0)
            theirs.sort(key=lambda device: device.total - device.used)
        for card, device in zip(ours, theirs, strict=True):
            free = max(0, device.total - device.used)
            # A Vulkan driver without VK_EXT_memory_budget says that all of its memory is free.
            least = free if card.free is None else min(card.free, free)
            holders = holders_of(device.processes) if seen.complete else ()
            found[card.name] = card._replace(free=least, holders=holders)
    return tuple(found.get(card.name, card) for card in cards)


def _name_of(pid: int) -> str:
    path = f"/proc/{pid}/comm"
    with suppress(OSError):
        return kernel_text(path).strip()
    return ""


def _told(text: str) -> GpuMemory | None:
    """Parse an answer; without our ids for the processes, it is not ``complete``."""
    found = parse_memory(text)
    ours = False
    # NVIDIA's process ids are ours, but not in a container, and not in WSL.
    with suppress(OSError):
        ours = os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    if found and not (ours and not os.path.exists("/dev/dxg")):
        return found._replace(complete=False)
    return found


def parse_memory(text: str) -> GpuMemory | None:
    """Parse the last line of the output, as drivers print too; None for anything else."""
    try:
        document = parse_json(text.strip().rpartition("\n")[2])
        rows = {_name(at): row for at, row in enumerate(document["devices"]) if row}
        devices: list[NvidiaDevice] = []
        for told, row in rows.items():
            # More than 9 petabytes is a driver's word for "not known".
            held = {
                int(pid): None if used is None or used >= _NONSENSE else int(used)
                for pid, used in row["processes"].items()
            }
            name, total, used = str(row.get("name", "")), int(row["total"]), int(row["used"])
            devices.append(NvidiaDevice(told, name, total, used, held))
        if not devices or any(max(each.total, each.used) >= _NONSENSE for each in devices):
            return None
        return GpuMemory(
            tuple(devices),
            str(document["driver"]),
            all(row["complete"] for row in rows.values()),
            frozenset(int(pid) for row in rows.values() for pid in row["working"] or ()),
            counts_work=all(row["working"] is not None for row in rows.values()),
            # A device that tells nothing may work.
            idle=len(rows) == len(document["devices"])
            and all(row["idle"] for row in rows.values()),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
