"""Files are hashed and written in other threads than the one that reads the archive.

What lies alone in its archive is inflated there, too, so that members of a zip file are
unpacked side by side. What comes in order is handed over in chunks, few at a time. All
that takes long (inflating, hashing, writing) lets go of Python's lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from types import TracebackType

from tsuku_llm.archive.member import CHUNK, Chunk, Member
from tsuku_llm.archive.names import Parts
from tsuku_llm.archive.tree import Tree

THREADS = min(4, os.cpu_count() or 1)
_AHEAD = 4
"""Chunks of one file that may wait to be written."""

_SMALL = 64 << 10
_MOST_HELD = 4 << 20
"""Bytes of small files that are kept back: a tar file does not say how many members it has, so
an archive of thousands of tiny ones is refused before the first of them is written."""

Written = tuple[int, str]
"""Size in bytes and SHA-256 of what was written."""


class Writer:
    """Writes members into a tree; at the end of its block everything is written or given up.

    ``threads``: one is enough for members that come in order.
    """

    def __init__(self, tree: Tree, threads: int) -> None:
        self._tree = tree
        self._pool = ThreadPoolExecutor(threads, "unpack")
        self._given_up = threading.Event()
        self._in_order: Future[Written] | None = None
        self._held: dict[Parts, tuple[bytes, bool]] = {}
        self._held_size = 0
        self._jobs: dict[Parts, Future[Written]] = {}

    def __enter__(self) -> Writer:  # noqa: PYI034 (typing.Self is 3.11's)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error:
            self._given_up.set()
        self._pool.shutdown(cancel_futures=error is not None)

    def write(self, member: Member, parts: Parts, *, executable: bool) -> Callable[[], Written]:
        """Begin to write a member; the call that is returned waits for the end of it.

        The content of a member that does not lie alone has been read when this returns.
        """
        if member.alone:
            content = self._until_given_up(member.content())
            return self._submit(parts, content, executable=executable).result
        if member.size <= _SMALL:
            return self._hold(parts, b"".join(member.content()), executable=executable)
        if self._in_order:
            self._in_order.result()
        if member.size <= CHUNK:
            whole = list(member.content())
            self._in_order = self._submit(parts, whole, executable=executable)
        else:
            self._in_order = self._fed(member, parts, executable=executable)
        return self._in_order.result

    def _hold(self, parts: Parts, content: bytes, *, executable: bool) -> Callable[[], Written]:
        """Keep a small file back until there are many, or somebody waits for it."""
        self._held[parts] = (content, executable)
        self._held_size += len(content)
        if self._held_size > _MOST_HELD:
            self._write_held()

        def written() -> Written:
            if parts in self._held:
                self._write_held()
            return self._jobs[parts].result()

        return written

    def _write_held(self) -> None:
        for parts, (content, executable) in self._held.items():
            self._jobs[parts] = self._submit(parts, [content], executable=executable)
        self._held, self._held_size = {}, 0

    def _submit(
        self, parts: Parts, content: Iterable[Chunk], *, executable: bool
    ) -> Future[Written]:
        return self._pool.submit(self._tree.write, parts, content, executable=executable)

    def _fed(self, member: Member, parts: Parts, *, executable: bool) -> Future[Written]:
        feed = _Feed()
        job = self._submit(parts, self._until_given_up(feed), executable=executable)
        job.add_done_callback(feed.close)
        try:
            feed.fill(member.content())
        except BaseException:
            self._given_up.set()
            raise
        finally:
            feed.end()
        return job

    def _until_given_up(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            if self._given_up.is_set():
                raise _GivenUp
            yield chunk


class _GivenUp(Exception):
    """Nobody waits for this file any more; seen by nobody, either."""


class _Feed:
    """Chunks on their way to the thread that writes them."""

    def __init__(self) -> None:
        self._queue: Queue[Chunk | None] = Queue(_AHEAD)
        self._closed = False

    def fill(self, chunks: Iterable[Chunk]) -> None:
        """Hand over chunks as they are taken, until nobody takes them any more."""
        for chunk in chunks:
            self._queue.put(chunk)
            if self._closed:
                return

    def end(self) -> None:
        """Say that this was all."""
        self._queue.put(None)

    def close(self, _job: Future[Written]) -> None:
        """Take no more: who waits for room is let go."""
        self._closed = True
        while not self._queue.empty():
            self._queue.get_nowait()

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self._queue.get()) is not None:
            yield chunk
