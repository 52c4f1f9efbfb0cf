"""A log of two files that are bounded in size, and its reading while it grows.

A full file is renamed. Then the descriptors that write to it are pointed at a new file. What
is written meanwhile goes into the renamed file and is not lost, and the writers need not
know. Readers are other processes, without a lock: they notice the new file by its inode.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from tsuku_llm.ground.foreign import open_foreign

LIMIT = 4 << 20
"""Bytes of one file: more than a day of a busy server's log.

The size is checked now and then, so a file may become a little larger.
"""

_CHUNK = 1 << 16
_PAUSE = 0.1
"""Seconds between two looks for new lines in a log that is followed."""

# O_APPEND: several descriptors write to the file, and each write goes to its end. O_NOFOLLOW:
# a symbolic link must not lead the log elsewhere.
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)


def older_log(path: Path) -> Path:
    """Return the path of the file before the current one."""
    return path.with_name(f"{path.name}.1")


def open_log(path: Path) -> int:
    """Open a log for appending; create it for this user alone. Raises ``OSError``."""
    return os.open(path, _APPEND, 0o600)


def rotate_log(path: Path, descriptors: Collection[int], limit: int = LIMIT) -> bool:
    """Begin a new file if the log is full, and point ``descriptors`` at it.

    Return whether it did. If the file system reports an error, the old file stays in use.
    """
    # One thread of the supervisor calls this, while others write to the descriptors.
    with suppress(OSError):
        if path.stat().st_size < limit:
            return False
        os.replace(path, older_log(path))
        # Until the next line ``path`` does not exist; writers still write to the renamed file.
        fresh = open_log(path)
        try:
            # ``dup2`` is atomic: each write goes to the old file or to the new one, whole.
            for descriptor in descriptors:
                os.dup2(fresh, descriptor)
        finally:
            os.close(fresh)
        return True
    return False


def read_log(path: Path, is_over: Callable[[], bool] | None = None) -> Iterator[bytes]:
    """Yield the content of a log, the oldest first, and what is added until ``is_over``.

    Without ``is_over`` only what is there now. Raises ``OSError``.
    """
    # Only the supervisor writes logs: a link or a pipe in the place of one is not followed.
    # The older file is missing as long as this name has had only one file.
    with suppress(FileNotFoundError), open_foreign(older_log(path), follow=False) as file:
        yield from iter(partial(file.read, _CHUNK), b"")
    # One round for each file: the supervisor may begin a new one at any time.
    turned = True
    while turned:
        with open_foreign(path, follow=False) as file:
            while True:
                # Both questions come before the reading: so the last lines of a server that has
                # ended are read below.
                ends = is_over is None or is_over()
                turned = not os.path.samestat(path.stat(), os.fstat(file.fileno()))
                yield from iter(partial(file.read, _CHUNK), b"")
                if turned or ends:
                    break
                time.sleep(_PAUSE)
