"""A log that never grows beyond twice its limit, and its reading while it grows.

The full file is renamed and a new one takes its place under the descriptors that write to it:
nothing that is written meanwhile is lost, and nobody who writes has to know.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

LIMIT = 4 << 20
"""Bytes; more than a day of a busy server's log."""

_CHUNK = 1 << 16
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)


def older(path: Path) -> Path:
    """Where what was written before the last turn lies."""
    return path.with_name(f"{path.name}.1")


def open_log(path: Path) -> int:
    """A descriptor that appends to a log, made for this user alone. Raises ``OSError``."""
    return os.open(path, _APPEND, 0o600)


def turn(path: Path, descriptors: Collection[int], limit: int = LIMIT) -> bool:
    """Begin a new file if the log is full, and let ``descriptors`` write to it.

    Gives whether it was full. Where the disk does not play along, the old one is used on.
    """
    with suppress(OSError):
        if path.stat().st_size < limit:
            return False
        os.replace(path, older(path))  # noqa: PTH105 - over the one before
        fresh = open_log(path)
        try:
            for descriptor in descriptors:
                os.dup2(fresh, descriptor)
        finally:
            os.close(fresh)
        return True
    return False


def read_log(path: Path) -> Iterator[bytes]:
    """What is in a log, the oldest first. Raises ``OSError``."""
    return follow_log(path, lambda: True, lambda: None)


def follow_log(
    path: Path, is_over: Callable[[], bool], pause: Callable[[], object]
) -> Iterator[bytes]:
    """What is in a log and what comes into it until ``is_over``; ``pause`` waits a moment.

    Raises ``OSError``.
    """
    with suppress(FileNotFoundError), older(path).open("rb") as file:
        yield from _rest(file)
    goes_on = True
    while goes_on:
        with path.open("rb") as file:
            goes_on = yield from _until_turned(file, path, is_over, pause)


def _until_turned(
    file: IO[bytes], path: Path, is_over: Callable[[], bool], pause: Callable[[], object]
) -> Generator[bytes, None, bool]:
    """Yield what comes into one file; True when another has taken its place."""
    while True:
        ends = is_over()  # asked before the reading: what was said until then is read
        turned = not os.path.samestat(path.stat(), os.fstat(file.fileno()))
        yield from _rest(file)
        if turned or ends:
            return turned
        pause()


def _rest(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(_CHUNK):
        yield data
