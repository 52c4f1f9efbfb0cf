"""Progress of downloads on a terminal: a bar."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH = 10
"""Times per second that the bar is drawn at most: to draw it more often costs the download."""


@dataclass(slots=True)
class _Job:
    """One archive: ``done`` of ``total`` bytes."""

    name: str
    total: int | None
    done: int = 0


class Bar:
    """One bar over all archives that are fetched side by side, each in a thread of its own.

    It is drawn as bytes come, by whoever counts them, and has no thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._bar: Progress | None = None
        self._drawn = 0.0
        self._running: dict[int, _Job] = {}
        self._ended: list[_Job] = []

    def begin(self, name: str, total: int | None) -> None:
        """Add an archive, or start it over; ``total`` in bytes, None where it is not known."""
        with self._lock:
            self._running[get_ident()] = _Job(name, total)
            self._bar, self._drawn = self._bar or _started(), 0.0
            self._draw()

    def advance(self, size: int) -> None:
        """Count bytes that have arrived."""
        with self._lock:
            self._running[get_ident()].done += size
            self._draw()

    def end(self) -> None:
        """One archive is done; the bar goes with the last."""
        with self._lock:
            job = self._running.pop(get_ident(), None)
            if job:
                self._ended.append(job)
            if not self._running:
                self._clear()

    def close(self) -> None:
        """Take the bar off the screen."""
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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
    )
    bar.add_task("", total=None)
    bar.start()
    return bar
