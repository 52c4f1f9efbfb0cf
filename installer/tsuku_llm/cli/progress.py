"""Progress of downloads: a bar on a terminal, else one line per archive."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from tsuku_llm.cli.render.text import size

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH = 10
"""Times per second that the bar is drawn: what is drawn more often costs the download."""


class Lines:
    """One line when an archive begins; ``note`` prints it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def begin(self, name: str, total: int | None) -> None:
        """Say what is fetched now; ``total`` in bytes, None where it is not known."""
        self._note(f"fetching {name} ({size(total)})")

    def advance(self, count: int) -> None:
        """Nothing is said of the bytes in between."""

    def end(self) -> None:
        """Nothing is said at the end: what was installed is."""

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """One bar over all archives that are fetched side by side, from whatever threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bar: Progress | None = None
        self._names: list[str] = []
        self._running = 0
        self._done = 0
        self._total: int | None = 0

    def begin(self, name: str, total: int | None) -> None:
        """Add an archive to the bar; ``total`` in bytes, None where it is not known."""
        with self._lock:
            self._bar = self._bar or _started()
            self._running += 1
            self._names.append(name)
            self._total = None if total is None or self._total is None else self._total + total
            self._draw()

    def advance(self, count: int) -> None:
        """Count bytes that have arrived; negative where an archive starts anew."""
        with self._lock:
            self._done += count
            self._draw()

    def end(self) -> None:
        """One archive is done; the bar goes with the last."""
        with self._lock:
            self._running -= 1
        if self._running <= 0:
            self.close()

    def close(self) -> None:
        """Take the bar off the screen."""
        with self._lock:
            if self._bar:
                self._bar.stop()
            self._bar = None
            self._names, self._running, self._done, self._total = [], 0, 0, 0

    def _draw(self) -> None:
        if self._bar:
            task = self._bar.task_ids[0]
            names = ", ".join(self._names)
            self._bar.update(task, description=names, completed=self._done, total=self._total)


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
        refresh_per_second=REFRESH,
        transient=True,
        redirect_stdout=False,
    )
    bar.add_task("", total=None)
    bar.start()
    return bar
