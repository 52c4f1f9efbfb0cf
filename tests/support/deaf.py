"""Places on the loopback that do not answer, as behind a firewall that swallows packets."""

from __future__ import annotations

import contextlib
import socket

_FILLED = 4
"""Connections that fill a backlog of none: Linux takes one more than it is told."""


def deaf(stack: contextlib.ExitStack, host: str, port: int = 0) -> int:
    """Swallow what asks to connect there until ``stack`` ends; the port.

    A listener whose backlog is full drops every further SYN.
    """
    listener = stack.enter_context(socket.socket())
    listener.bind((host, port))
    listener.listen(0)
    place = listener.getsockname()
    for _ in range(_FILLED):
        filler = stack.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(place)
    return int(place[1])


def mute(stack: contextlib.ExitStack) -> str:
    """Accept connections and say nothing until ``stack`` ends; gives ``host:port``."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=16))
    return f"127.0.0.1:{listener.getsockname()[1]}"
