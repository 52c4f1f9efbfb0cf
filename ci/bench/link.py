"""A slow and distant network on one machine: two TUN devices with a relay between them.

One device is in this process's network namespace, the other in a new namespace, in which the
servers' sockets are opened. Both devices vanish when their descriptors are closed. The relay (a
child process) delays every packet by half the round trip, sends no faster than the rate, and loses
nothing. Packets keep the kernel's segmentation offload, so that congestion windows grow as on a
real line with few system calls. Needs Linux and root.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_NETWORKS = (f"198.18.97.{number}" for number in range(0, 256, 4))
"""Addresses of RFC 2544, which are set aside for benchmarks."""

_NETMASK = "255.255.255.252"
_LARGEST = 1 << 17
_QUEUE = 64 << 20
"""Bytes under way in one direction at which the relay stops reading: no packet is dropped."""

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8913, 0x8914
_SIOCSIFTXQLEN = 0x8943
_IFF_UP = 1


@contextmanager
def link(*, round_trip: float, rate: float, sockets: int) -> Iterator[tuple[socket.socket, ...]]:
    """Yield ``sockets`` sockets that listen at the far end of a new line, each on its own port.

    ``round_trip`` is in seconds, ``rate`` in bytes per second in each direction.
    """
    network = next(_NETWORKS).rpartition(".")
    first = int(network[2])
    here = _device(f"{network[0]}.{first + 1}")
    there, listening = _in_other_namespace(f"{network[0]}.{first + 2}", sockets)
    # A separate process, so that the relay's timing does not depend on this process's work.
    command = [sys.executable, __file__, str(round_trip / 2), str(rate)]
    relay = subprocess.Popen(
        [*command, str(here), str(there)], pass_fds=(here, there), stdin=subprocess.DEVNULL
    )
    try:
        yield listening
    finally:
        relay.terminate()
        relay.wait()
        for sock in listening:
            sock.close()
        os.close(there)
        os.close(here)


def _in_other_namespace(address: str, count: int) -> tuple[int, tuple[socket.socket, ...]]:
    """Make the far device and sockets in a new namespace.

    A thread can have its own network namespace: a short-lived thread enters a new one, and its
    descriptors keep that namespace alive.
    """
    made: list[tuple[int, tuple[socket.socket, ...]]] = []

    def make() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace of one's own")
        device = _device(address)
        listening = [socket.create_server((address, 0), backlog=256) for _ in range(count)]
        made.append((device, tuple(listening)))

    thread = threading.Thread(target=make)
    thread.start()
    # The thread has ended: ``made`` is complete, and this thread is still in the old namespace.
    thread.join()
    if not made:
        raise OSError("no network namespace could be made: this needs root")
    return made[0]


def _device(address: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    # The kernel replaces %d by a free number. VNET_HDR puts the offload's header before each
    # packet.
    request = struct.pack("16sH22x", b"bench%d", _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)
    name = fcntl.ioctl(descriptor, _TUNSETIFF, request)[:16]
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for call, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, _NETMASK)):
            raw = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(any_socket, call, struct.pack("16s16s8x", name, raw))
        # A long queue in the kernel, so that it drops no packet while the relay waits.
        fcntl.ioctl(any_socket, _SIOCSIFTXQLEN, struct.pack("16si20x", name, 100_000))
        flags = struct.unpack_from(
            "H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16s24x", name)), 16
        )[0]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | _IFF_UP))
    return descriptor


class _Way:
    """One direction: each packet waits for its turn (the rate) and its delay."""

    def __init__(self, source: int, target: int, delay: float, rate: float) -> None:
        self.source = source
        self._target = target
        self._delay = delay
        self._rate = rate
        self._free_at = 0.0
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._bytes >= _QUEUE

    def take(self, now: float) -> None:
        """Read all packets that have arrived."""
        while not self.full:
            try:
                packet = os.read(self.source, _LARGEST)
            except BlockingIOError:
                return
            # The line sends one packet after another: this one is on the line until ``_free_at``.
            self._free_at = max(now, self._free_at) + len(packet) / self._rate
            self._bytes += len(packet)
            self._waiting.append((self._free_at + self._delay, packet))

    def send(self, now: float) -> float:
        """Write the packets that are due; return seconds until the next one is due."""
        while self._waiting and self._waiting[0][0] <= now:
            _, packet = self._waiting.popleft()
            self._bytes -= len(packet)
            os.write(self._target, packet)
        return self._waiting[0][0] - now if self._waiting else 1.0


def relay(delay: float, rate: float, here: int, there: int) -> None:
    """Forward packets until the process is ended."""
    ways = (_Way(here, there, delay, rate), _Way(there, here, delay, rate))
    while True:
        wait = min(way.send(time.monotonic()) for way in ways)
        # A direction whose queue is full is not read: its sender then waits in the kernel.
        open_ways = [way for way in ways if not way.full]
        select.select([way.source for way in open_ways], [], [], max(0.0, wait))
        for way in open_ways:
            way.take(time.monotonic())


if __name__ == "__main__":
    relay(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
