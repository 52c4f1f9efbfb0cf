"""Threads that hash and write files, while another thread reads the archive.

Members that are compressed one by one (zip) are also inflated in these threads, in parallel.
Members of a stream (tar) are handed over in chunks, a few at a time. The slow steps
(inflating, hashing, writing) release Python's global lock, so the threads really overlap.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from types import TracebackType

from tsuku_llm.archive.formats.member import CHUNK, Chunk, Member
from tsuku_llm.archive.names import Parts
from tsuku_llm.archive.tree import Tree

THREADS = min(4, os.cpu_count() or 1)
_AHEAD = 4
"""Chunks of one file that may wait to be written: a limit on memory."""

_SMALL = 64 << 10
_MOST_HELD = 4 << 20
"""Bytes of small files that are held in memory before they are written.

A tar file does not say how many members it has. So an archive with thousands of tiny ones is
refused before the first of them is written."""

Written = tuple[int, str]
"""Size in bytes and SHA-256 of what was written."""


class Writer:
    """A pool of threads that write members into a tree.

    At the end of its block, every file is written or cancelled. ``threads``: one is enough
    for members of a stream. Only the thread that reads the archive calls the methods.
    """

    def __init__(self, tree: Tree, threads: int) -> None:
        self._tree = tree
        self._pool = ThreadPoolExecutor(threads, "unpack")
        # The reading thread sets it; the pool's threads check it at each chunk.
        self._given_up = threading.Event()
        # The rest is used by the reading thread only, and needs no lock.
        self._in_order: Future[Written] | None = None
        self._held: dict[Parts, tuple[bytes, bool]] = {}
        self._held_size = 0
        self._jobs: dict[Parts, Future[Written]] = {}

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # First: a thread in the middle of a large file then stops at its next chunk, and the
        # shutdown, which waits for the threads, is short.
        if error:
            self._given_up.set()
        # It must wait: the caller closes the tree's descriptors next.
        self._pool.shutdown(cancel_futures=error is not None)

    def write(self, member: Member, parts: Parts, *, executable: bool) -> Callable[[], Written]:
        """Begin to write a member; return a function that waits for the end of the write.

        When this returns, the content of a member that is not ``alone`` has been read.
        """
        if member.alone:
            # content() counts the size against the budget here, in the reading thread. Another
            # thread then inflates the chunks; the archive's file has a lock for that.
            content = self._until_given_up(member.content())
            return self._submit(parts, content, executable=executable).result
        if member.size <= _SMALL:
            return self._hold(parts, b"".join(member.content()), executable=executable)
        # Wait for the previous large file: memory holds the chunks of one file only, and its
        # error ends the unpacking now, not at the end of the archive.
        if self._in_order:
            self._in_order.result()
        if member.size <= CHUNK:
            # Copied out of the stream as a whole: no queue is needed for a single chunk.
            whole = list(member.content())
            self._in_order = self._submit(parts, whole, executable=executable)
        else:
            self._in_order = self._fed(member, parts, executable=executable)
        return self._in_order.result

    def _hold(self, parts: Parts, content: bytes, *, executable: bool) -> Callable[[], Written]:
        """Hold a small file in memory until there are many, or until its result is needed."""
        self._held[parts] = (content, executable)
        self._held_size += len(content)
        if self._held_size > _MOST_HELD:
            self._write_held()

        # The reading thread calls this too, so `_held` and `_jobs` need no lock.
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
        # If the write fails (a full disk), the callback frees us from a full queue. It runs in
        # the pool's thread; if the job has ended already, here and now.
        job.add_done_callback(feed.close)
        try:
            feed.fill(member.content())
        except BaseException:
            # The archive is bad: stop the write soon. Its thread may still take the bytes so far
            # for the whole file; that is harmless, as this error ends the whole unpacking.
            self._given_up.set()
            raise
        finally:
            # In any case: without the mark, the thread would wait for the next chunk for ever.
            feed.end()
        return job

    def _until_given_up(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        # Runs in a thread of the pool, which writes what this yields.
        for chunk in chunks:
            if self._given_up.is_set():
                raise _GivenUp
            yield chunk


class _GivenUp(Exception):
    """Internal: the write was cancelled; never leaves this module."""


class _Feed:
    """A queue of chunks between the reading thread and the thread that writes them.

    The reading thread calls ``fill`` and ``end``, the writing thread iterates and ``close``s.
    """

    def __init__(self) -> None:
        self._queue: Queue[Chunk | None] = Queue(_AHEAD)  # None marks the end
        self._closed = False  # changes once, so it needs no lock

    def fill(self, chunks: Iterable[Chunk]) -> None:
        """Hand over chunks; wait while the queue is full; stop after ``close``."""
        for chunk in chunks:
            self._queue.put(chunk)
            # After put(), which may have waited until close() emptied the queue.
            if self._closed:
                return

    def end(self) -> None:
        """Mark the end of the chunks."""
        # Cannot block after close(): at most one chunk came into the emptied queue since.
        self._queue.put(None)

    def close(self, _job: Future[Written]) -> None:
        """Take no more chunks, and free the reading thread if it waits for space."""
        # First: the reading thread, once freed, must see it and stop.
        self._closed = True
        # The job is over, so no other thread takes chunks: get_nowait() finds what empty() saw.
        while not self._queue.empty():
            self._queue.get_nowait()

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self._queue.get()) is not None:  # waits for fill() or end()
            yield chunk
