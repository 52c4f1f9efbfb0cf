"""The samples of a server that has served, taken cheaply: files of the kernel and one question.

Only the thread that watches a server uses it. Nothing here decides: ``life`` judges the samples.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.ground.processes.process import processor_seconds
from tsuku_llm.launch.ask.canary import takes_tasks
from tsuku_llm.launch.ask.health import is_healthy
from tsuku_llm.launch.gpu.life import LifeSample
from tsuku_llm.launch.gpu.nvml import ANY, GpuMemory, NvidiaWatch, holders_of
from tsuku_llm.launch.gpu.proc import (
    computing_processes,
    counts_work,
    sample_processes,
    unix_connections,
)
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.fingerprint import open_error, seconds_asleep
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import DriverFault, GpuHolder, Verdict
from tsuku_llm.launch.plan.wishes import wishes_in

_CLOSE_LOOKS = 4
"""Samples from one close look at the processes to the next: a minute, for a few milliseconds."""

_BUSY = 0.05
"""Seconds of processor time between two samples that count as work; a driver's threads use less."""

_ONE_THREAD = 1.2
"""Processors in use up to which a server may only be waiting for its GPU, in a loop."""

_GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EIO)
_REFUSED = (errno.EPERM, errno.EACCES)


class Work(NamedTuple):
    """The work of processes so far: processor seconds, pages read from a disk, engines' count."""

    now: float
    processor: float
    reads: int
    engines: int | None


def has_worked(before: Work, now: Work, *, idle: bool, whole: bool) -> bool | None:
    """Tell whether a server worked between two counts; None if it may have.

    ``idle``: its GPUs are known to have done nothing. ``whole``: it computes on the GPU alone.
    """
    if now.engines != before.engines or now.reads > before.reads:
        return True
    busy = now.processor - before.processor
    # It may wait for its GPU in a loop, with one thread, or asleep: with some drivers a batch of a
    # minute takes no processor time at all.
    asleep = busy < _BUSY
    if not (asleep or (whole and busy <= _ONE_THREAD * (now.now - before.now))):
        return True
    if idle:
        return False
    return None if asleep else True


def gpus_are_idle(nodes: Collection[str] | None, *, drm: bool, nvidia: bool) -> bool:
    """Tell whether no GPU did anything of those that a server has open; False if not known.

    ``nodes`` are the device nodes, None if they cannot be read. ``drm``: the engines that the
    kernel's drivers count did nothing; ``nvidia``: those of NVIDIA's driver did nothing.
    """
    # Not /dev/dxg: in WSL all GPUs are behind it, and another one than NVIDIA's may work.
    return nodes is not None and all(
        nvidia if node.startswith("/dev/nvidia") else drm and counts_work(node) for node in nodes
    )


class LifeSampler:
    """The sampler of one server's life; ``verdict`` is that of its start.

    ``files`` are the names in the build's folder. Call ``close`` at the end.
    """

    def __init__(
        self,
        pid: int,
        address: ServerAddress,
        plan: LaunchPlan,
        files: Collection[str],
        verdict: Verdict,
    ) -> None:
        self._pid = pid
        self._address = address
        self._files = frozenset(files)
        self._whole = verdict is Verdict.ON_GPU
        self._wishes = wishes_in(plan.argv, plan.env)
        self._looks = 0
        self._tasks: bool | None = None
        self._before: Work | None = None
        self._look_closely()
        # A node may be another user's from the start, and one that was open may be removed already.
        opened = self._seen.nodes or ()
        nodes = (node.removesuffix(" (deleted)") for node in opened)
        self._nodes = tuple(node for node in nodes if open_error(node) not in _REFUSED)
        self.nvidia: GpuMemory | None = None
        """NVIDIA's last answer; None without its driver."""
        # Whether NVIDIA's engines worked since the last sample; None if that is not known.
        self._nvidia_worked: bool | None = None
        # NVIDIA's devices on which the processes have been.
        self._used: set[str] = set()
        self._on_gpu = verdict is not Verdict.ON_CPU
        uses_nvidia = self._on_gpu and any(
            node.startswith(("/dev/nvidia", "/dev/dxg")) for node in opened
        )
        self._driver = NvidiaWatch(plan.env) if uses_nvidia else None

    @property
    def elastic(self) -> bool:
        """True if the server may free its GPU memory by itself."""
        return self._wishes.sleeps or not self._wishes.names_model

    @property
    def memory(self) -> int | None:
        """The bytes of GPU memory that the server's processes hold now; None if not known."""
        nvidia = self.nvidia.of(self._pids) if self.nvidia else None
        if nvidia is None and self._seen.memory is None:
            return None
        return (nvidia or 0) + (self._seen.memory or 0)

    @property
    def holders(self) -> tuple[GpuHolder, ...]:
        """The other processes that hold memory of NVIDIA's GPUs, the largest first."""
        # With ids of another namespace, our own processes cannot be told from the others.
        if self.nvidia is None or not self.nvidia.complete:
            return ()
        return holders_of(self.nvidia.processes, {self._pid, *self._pids})

    def sample(self) -> LifeSample:
        """Take one sample; this takes 7 seconds at most, if the server answers nothing."""
        self._looks += 1
        faults = self._hear_driver()
        known = self._address.port or self._address.is_unix
        answers = is_healthy(self._address, self._wishes) if known else None
        # While something is wrong each look is a close one: the engines count then.
        close = self._looks % _CLOSE_LOOKS == 0 or answers is False or self._tasks is False
        if close:
            self._look_closely()
        worked = self._worked(close=close)
        # A server may only hang in its queue for a client. One that sleeps would wake up.
        before, self._tasks = self._tasks, None
        if answers and not self._wishes.sleeps and self.has_clients():
            self._tasks = takes_tasks(self._address, self._wishes)
        if self._tasks is False and before is not False:
            # From here on the engines' work counts for the question whether it hangs.
            self._look_closely()
            self._before = _work_of(self._pids, self._seen.busy)
        errors = {node: open_error(node) for node in self._nodes}
        return LifeSample(
            now=time.monotonic(),
            asleep=seconds_asleep() if sys.platform == "linux" else 0.0,
            answers=answers,
            takes_tasks=self._tasks,
            worked=worked,
            memory=self.memory,
            gone=tuple(node for node, error in errors.items() if error in _GONE),
            refused=tuple(node for node, error in errors.items() if error in _REFUSED),
            faults=faults,
        )

    def close(self) -> None:
        """End the child process that waits for NVIDIA's faults."""
        if self._driver:
            self._driver.close()

    def _look_closely(self) -> None:
        """Read which processes compute, their GPU memory, and the work of their engines."""
        self._pids = computing_processes(self._pid, self._files)
        self._seen = sample_processes(self._pids)

    def _hear_driver(self) -> tuple[DriverFault, ...]:
        found: list[DriverFault] = []
        worked: list[bool | None] = []
        for line in self._driver.lines() if self._driver else ():
            if line.memory:
                self.nvidia = line.memory
                worked.append(line.memory.did_work(self._pids))
                self._used.update(
                    device.told
                    for device in line.memory.devices
                    if not device.processes.keys().isdisjoint(self._pids)
                )
            found += line.faults
        if self._driver and self._driver.is_silent:
            # The last answer says nothing of now.
            self.nvidia = None
        unknown = None in worked or not worked
        self._nvidia_worked = True in worked or (None if unknown else False)
        # A fault of another GPU is not the server's. Where the driver does not tell which ones it
        # is on, as in a container, any may be.
        return tuple(each for each in found if not self._used or each.device in {*self._used, ANY})

    def _worked(self, *, close: bool) -> bool | None:
        """Tell whether the processes worked since the last call, which was ``close`` or not."""
        work = _work_of(self._pids, self._seen.busy)
        before, self._before = self._before, work
        if before is None or work is None:
            return None
        # The engines are read at close looks only: between them an old count says nothing.
        counted = close and work.engines is not None and work.engines == before.engines
        idle = not self._on_gpu or gpus_are_idle(
            self._seen.nodes, drm=counted, nvidia=self._nvidia_worked is False
        )
        if self._nvidia_worked:
            return True
        return has_worked(before, work, idle=idle, whole=self._whole)

    def has_clients(self) -> bool:
        """Tell whether a client is connected to the server; True if that cannot be read."""
        if sys.platform != "linux":
            return True
        # The network namespace of the server counts, which may be another one than ours.
        lines: list[str] = []
        for name in ("unix",) if self._address.is_unix else ("tcp", "tcp6"):
            path = f"/proc/{self._pid}/net/{name}"
            with suppress(OSError):
                lines += kernel_text(path).splitlines()
        return is_connected(self._address, lines)


def is_connected(address: ServerAddress, table: Iterable[str]) -> bool:
    """Tell whether a client is connected, from the lines of /proc/net/tcp or unix (proc(5))."""
    if address.is_unix:
        lines = tuple(table)
        return any(unix_connections(path, lines) for path in address.sockets)
    # sl local_address rem_address st: in hexadecimal, and 01 is an open connection.
    port = f":{address.port:04X}"
    rows = (line.split(None, 4) for line in table)
    return any(len(row) > 3 and row[3] == "01" and row[1].endswith(port) for row in rows)


def _work_of(pids: Iterable[int], engines: int | None) -> Work | None:
    ticks = reads = 0
    known = False
    for pid in pids:
        # A process of a router may have ended.
        with suppress(OSError, ValueError, IndexError):
            # The name in brackets may contain anything (proc_pid_stat(5)).
            fields = kernel_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            reads += int(fields[9])
            known = True
    if not known:
        # Without /proc. Pages are not counted there.
        seconds = [each for pid in pids if (each := processor_seconds(pid)) is not None]
        return Work(time.monotonic(), sum(seconds), 0, engines) if seconds else None
    return Work(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), reads, engines)
