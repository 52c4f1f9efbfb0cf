"""Progress of downloads: a bar on a terminal, else one line per archive."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import Lock, get_ident
from typing import TYPE_CHECKING

from tsuku_llm.cli import streams
from tsuku_llm.cli.render import text
from tsuku_llm.safe_text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH = 10
"""The most times per second that the bar is drawn; drawing more often slows the download."""


class _Job:  # no dataclass: a start loads this module, and does without ``dataclasses``
    """One archive: ``done`` of ``total`` bytes."""

    __slots__ = ("done", "name", "total")

    def __init__(self, name: str, total: int | None) -> None:
        self.name = name
        self.total = total
        self.done = 0


class Bar:
    """One bar for all archives, which several threads download in parallel.

    The thread that counts bytes also draws the bar: the bar has no thread.
    """

    def __init__(self) -> None:
        # Several download threads and the main thread (``close``) call us: every public method
        # holds the lock, and ``_clear`` and ``_draw`` are only called with it.
        self._lock = Lock()
        self._bar: Progress | None = None
        self._drawn = 0.0
        # By thread: each archive is downloaded by one thread, and a thread has one archive at a
        # time.
        self._running: dict[int, _Job] = {}
        self._ended: list[_Job] = []

    def begin(self, name: str, total: int | None) -> None:
        """Add an archive, or start it over; ``total`` is in bytes, None if it is unknown."""
        with self._lock:
            self._running[get_ident()] = _Job(name, total)
            # 0.0: draw now, whenever the last drawing was.
            self._bar, self._drawn = self._bar or _started(), 0.0
            self._draw()

    def advance(self, size: int) -> None:
        """Count bytes that have arrived."""
        with self._lock:
            self._running[get_ident()].done += size
            self._draw()

    def end(self) -> None:
        """Count an archive as done; remove the bar after the last one."""
        with self._lock:
            # None if ``close`` came first.
            job = self._running.pop(get_ident(), None)
            if job:
                self._ended.append(job)
            if not self._running:
                self._clear()

    def close(self) -> None:
        """Remove the bar from the screen."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._bar:
            self._bar.stop()
        self._bar = None
        self._running, self._ended = {}, []

    def _draw(self) -> None:
        now = time.monotonic()
        if not self._bar or now - self._drawn < 1 / REFRESH:
            return
        self._drawn = now
        jobs = [*self._ended, *self._running.values()]
        sizes = [job.total for job in jobs if job.total is not None]
        self._bar.update(
            self._bar.task_ids[0],
            description=", ".join(job.name for job in self._running.values()),
            completed=sum(job.done for job in jobs),
            # With one unknown size the sum would be wrong: show a bar without an end.
            total=sum(sizes) if len(sizes) == len(jobs) else None,
            refresh=True,
        )


def _started() -> Progress:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        # Without markup: rich would read brackets in a file name as a style.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        # Without this, rich starts a thread.
        auto_refresh=False,
        transient=True,
        # stdout belongs to the answer.
        redirect_stdout=False,
    )
    bar.add_task("", total=None)
    bar.start()
    return bar


class Status:
    """A text about a long wait that replaces the one before it: on a terminal."""

    def show(self, text: str) -> None:
        """Show a text in place of the one before it."""
        # \r and ESC [K: to the begin of the line, and clear it. Cut: a text of two lines would
        # not be replaced.
        from shutil import get_terminal_size  # noqa: PLC0415 - it imports all compression modules

        width = get_terminal_size().columns - 1
        streams.note(sys.stderr, printable(text)[:width], before="\r\x1b[K", end="")

    def close(self) -> None:
        """Remove the text."""
        streams.note(sys.stderr, "", before="\r\x1b[K", end="")


class SparseStatus:
    """The same as lines, for a log: after 10 seconds, 20, 40 and so on; ``note`` prints them."""

    def __init__(
        self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._note = note
        self._clock = clock
        self._begun: float | None = None
        self._next = 10.0

    def show(self, text: str) -> None:
        """Print the text if it is time for one."""
        now = self._clock()
        if self._begun is None:
            self._begun = now
        if now - self._begun >= self._next:
            self._next *= 2
            self._note(text)

    def close(self) -> None:
        """Do nothing: a log keeps its lines."""


class Lines:
    """One line when an archive begins; ``note`` prints it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def begin(self, name: str, total: int | None) -> None:
        """Say what is downloaded now; ``total`` is in bytes, None if it is unknown."""
        self._note(f"fetching {name} ({text.size(total)})")

    def advance(self, size: int) -> None:
        """Do nothing: a log needs no line per chunk."""

    def end(self) -> None:
        """Do nothing: the answer says what was installed."""

    def close(self) -> None:
        """Do nothing: there is nothing on the screen to remove."""
