"""What a service tells systemd: that it is ready, how it is, and that it ends (sd_notify(3)).

The protocol is one datagram of text lines to the socket that ``NOTIFY_SOCKET`` names. It is stable
by systemd's own promise, and other supervisors speak it too (podman, s6).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import MutableMapping
from contextlib import suppress

from tsuku_llm.ground.safe_text import printable

_LONGEST = 500
"""Characters of a status: it is shown in one line."""

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_BEATS = 3
"""Signs of life within the watchdog's time, so that one that is late does no harm."""


def message(*, status: str | None = None, **fields: str) -> bytes:
    """Return one datagram: the fields in capitals, and a status for people."""
    lines = [f"{name.upper()}={value}" for name, value in fields.items()]
    if status is not None:
        # A line end would begin another field.
        lines.append(f"STATUS={printable(status)[:_LONGEST]}")
    return "\n".join(lines).encode("utf-8", "replace")


class Notifier:
    """The way to the supervisor of this process; without one, nothing is sent.

    Any thread may use it: each message is one datagram.
    """

    def __init__(self, address: str | None, pulse: float | None = None) -> None:
        self.pulse = pulse if address else None
        """Seconds between two signs of life that the watchdog wants; None if it wants none."""
        self._address = address

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Return the one that the environment describes, and remove it from there.

        The server must not find it: it would speak for us.
        """
        found = {name: environ.pop(name, "") for name in _VARIABLES}
        address = found["NOTIFY_SOCKET"]
        # Other kinds of addresses (vsock) are for virtual machines.
        usable = address if address[:1] in ("/", "@") and sys.platform != "win32" else None
        # The watchdog of another process: it was inherited, and is not ours to feed.
        ours = found["WATCHDOG_PID"] in ("", str(os.getpid()))
        limit = found["WATCHDOG_USEC"]
        pulse = int(limit) / 1e6 / _BEATS if ours and limit.isdecimal() and int(limit) else None
        return cls(usable, pulse)

    def send(self, *, status: str | None = None, **fields: str) -> None:
        """Send the fields and the status; a supervisor that does not listen is no error."""
        if self._address is None or sys.platform == "win32":
            return
        # "@" stands for the null byte of an abstract address.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            # A supervisor that has stopped reading must not stop us.
            channel.settimeout(0)
            channel.sendto(message(status=status, **fields), address)
