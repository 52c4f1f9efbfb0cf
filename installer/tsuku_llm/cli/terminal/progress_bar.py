"""Progress of downloads: a line for each archive on a terminal, else a few lines in a log.

``layout`` is pure: it decides what fits into the terminal's width.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count, pairwise
from typing import Literal, NamedTuple

from tsuku_llm.cli.terminal import streams, text
from tsuku_llm.ground.safe_text import printable

REFRESH = 10
"""How often per second the lines are drawn."""
WINDOW = 5.0
"""Seconds over which the speed is measured."""

_LEAST_NAME = 20
"""Columns that a name gets before other columns are shown."""
_LEAST_BAR, _MOST_BAR = 10, 30
_AMOUNT = 12
"""Columns of ``25.5/99.5 MB``."""
# What is shown after the amount, and its columns; the whole set is tried first.
_EXTRAS: tuple[dict[str, int], ...] = (
    {"bar": _LEAST_BAR, "speed": 9, "left": 5},
    {"bar": _LEAST_BAR, "left": 5},
    {"left": 5},
    {},
)
_ENDINGS = (".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2", ".tgz", ".zip", ".whl")
_QUARTERS = 20_000_000
"""Bytes from which on a log gets a line for each quarter of an archive."""
_STEP = 100_000_000
"""Bytes after which a log gets a line if the size of the archive is not known."""


class Job:  # no dataclass: a start loads this module, and does without ``dataclasses``
    """One archive: ``done`` of ``total`` bytes (None: unknown), or the ``stage`` after that.

    ``samples`` are pairs of a time and the bytes that were there; the speed is their slope.
    """

    __slots__ = ("arriving", "done", "name", "samples", "stage", "total")

    def __init__(self, name: str, total: int | None, done: int = 0) -> None:
        self.name = name
        self.total = total
        self.done = done
        self.arriving = True
        self.stage = ""
        self.samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> None:
        """Note how many bytes are there now, and forget what is older than the window."""
        self.samples.append((now, self.done))
        while now - self.samples[0][0] > WINDOW:
            self.samples.popleft()

    @property
    def speed(self) -> float | None:
        """Bytes per second; None if too little is known."""
        if not self.samples:
            return None
        (begun, before), (now, there) = self.samples[0], self.samples[-1]
        return (there - before) / (now - begun) if now - begun >= 1 / REFRESH else None


# --- the layout of the lines: pure ----------------------------------------------------------


def layout(jobs: Sequence[Job], width: int, *, plain: bool = False) -> list[str]:
    """Return one line of at most ``width`` columns for each archive.

    What does not fit is left out in this order: the speed, the bar, the time left, parts of the
    name. ``plain`` draws with ASCII only.
    """
    longest = max(len(job.name) for job in jobs)
    room, extras = width, _EXTRAS[0]
    for extras in _EXTRAS:
        room = width - _AMOUNT - 1 - sum(columns + 1 for columns in extras.values())
        if room >= min(longest, _LEAST_NAME):
            break
    names = [shortened(job.name, max(1, room), plain=plain) for job in jobs]
    name_width = max(map(len, names))
    bar_width = min(_MOST_BAR, _LEAST_BAR + room - name_width)
    lines = []
    for job, name in zip(jobs, names, strict=True):
        cells = [name.ljust(name_width)]
        if job.stage and not job.arriving:
            # Of an archive that was there before the bytes are not counted.
            cells.append(f"{amount(job.done, job.done)} {job.stage}" if job.done else job.stage)
        else:
            if "bar" in extras:
                cells.append(_bar(job, bar_width, plain=plain))
            cells.append(amount(job.done, job.total).rjust(_AMOUNT))
            if "speed" in extras:
                speed = "" if job.speed is None else f"{text.size(round(job.speed))}/s"
                cells.append(speed.rjust(extras["speed"]))
            if "left" in extras:
                cells.append(_left(job).rjust(extras["left"]))
        lines.append(" ".join(cells)[:width].rstrip())
    return lines


def shortened(name: str, width: int, *, plain: bool = False) -> str:
    """Shorten a file name in the middle; its release, backend and version stay longest."""
    if len(name) <= width:
        return name
    if name.endswith(".whl"):
        # The project and its version; the tags of the platform are the same for all.
        name = "-".join(name.split("-")[:2])
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    dots = ".." if plain else "…"
    if len(name) <= width or width <= len(dots):
        return name[:width]
    # The end of upstream's names says more than the beginning.
    tail = ((width - len(dots)) * 2 + 2) // 3
    return name[: width - len(dots) - tail] + dots + name[len(name) - tail :]


def amount(done: int, total: int | None) -> str:
    """Return how much is there in the unit of the whole: ``25.5/99.5 MB``, ``3.00/? MB``."""
    largest = total if total is not None else done
    scale, unit = 1, text.UNITS[0]
    for smaller, larger in pairwise(text.UNITS):
        if largest / scale < 999.5:
            unit = smaller
            break
        scale, unit = scale * 1000, larger
    here, whole = (
        _digits(done / scale, unit),
        "?" if total is None else _digits(total / scale, unit),
    )
    return f"{here} {unit}" if here == whole else f"{here}/{whole} {unit}"


def _digits(value: float, unit: str) -> str:
    """Return a number with three digits."""
    if unit == text.UNITS[0] or value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _bar(job: Job, width: int, *, plain: bool) -> str:
    full, empty = ("#", "-") if plain else ("█", "░")
    # Without a size there is no end to draw towards.
    filled = min(width, width * job.done // job.total) if job.total else 0
    return full * filled + empty * (width - filled)


def _left(job: Job) -> str:
    if job.total is None or not job.speed or job.speed < 1:
        return ""
    seconds = max(0, round((job.total - job.done) / job.speed))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m" if hours < 100 else ">99h"
    return f"{minutes}:{seconds:02}"


# --- what keeps count -----------------------------------------------------------------------


class Tracker(ABC):
    """The archives of this run, which several threads download in parallel."""

    def __init__(self) -> None:
        # Several download threads, the thread that unpacks and the main thread call us: every
        # public method holds the lock, and those with a "_" are only called with it.
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        # By thread: a thread downloads one archive at a time.
        self._arriving: dict[int, Job] = {}

    def begin(self, name: str, total: int | None, there: int = 0) -> None:
        """Add an archive, or start it over; ``there`` bytes are left of an earlier run."""
        with self._lock:
            job = Job(printable(name), total, there)
            job.stage = self._jobs[job.name].stage if job.name in self._jobs else ""
            self._jobs[job.name] = self._arriving[threading.get_ident()] = job
            self._begun(job)

    def advance(self, size: int) -> None:
        """Count bytes that have arrived."""
        with self._lock:
            job = self._arriving[threading.get_ident()]
            job.done += size
            self._advanced(job, size)

    def end(self) -> None:
        """Count an archive as arrived."""
        with self._lock:
            job = self._arriving.pop(threading.get_ident(), None)
            if job:
                job.arriving = False
                self._ended(job)

    def stage(self, name: str, what: str) -> None:
        """Say what is done with an archive; it shows when all of the archive is there."""
        with self._lock:
            job = self._jobs.setdefault(printable(name), Job(printable(name), None))
            job.stage, job.arriving = what, job in self._arriving.values()
            if not job.arriving:
                self._staged(job)

    def finish(self) -> None:
        """Forget the archives: the next ones are of another build."""
        with self._lock:
            self._jobs = {}

    @abstractmethod
    def _begun(self, job: Job) -> None: ...

    @abstractmethod
    def _advanced(self, job: Job, size: int) -> None: ...

    @abstractmethod
    def _ended(self, job: Job) -> None: ...

    @abstractmethod
    def _staged(self, job: Job) -> None: ...


class Bars(Tracker):
    """One line for each archive, drawn again and again in the same place of a terminal.

    A thread draws while archives arrive, and ends with the last of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # What is on the screen now.
        self._lines: list[str] = []
        # Ends the thread that draws, if it lives.
        self._stops: Callable[[], None] | None = None
        self._closed = False

    def note(self, line: str) -> None:
        """Print a line above the archives."""
        with self._lock:
            if not self._lines:
                streams.control(sys.stderr, f"{line}\n")
                return
            self._write(f"{line}\n", [])
            self._draw()

    def hide(self) -> None:
        """Remove the lines until something changes, for a question."""
        with self._lock:
            self._write("", [])

    def close(self) -> None:
        """Remove the lines for good: an error or the answer follows."""
        with self._lock:
            self._closed = True
            self._write("", [])
            stops, self._stops = self._stops, None
        if stops:
            stops()

    def end(self) -> None:
        """Count an archive as arrived; after the last one nothing draws regularly."""
        super().end()
        with self._lock:
            stops = None if self._arriving else self._stops
            if stops:
                self._stops = None
        if stops:
            stops()

    def finish(self) -> None:
        """Forget the archives, and remove their lines."""
        super().finish()
        # The lines of one that another thread has begun since then are drawn again at once.
        self.hide()

    def _begun(self, job: Job) -> None:
        job.sample(self._clock())
        self._draw()
        if self._stops is None:
            over = threading.Event()
            thread = threading.Thread(target=self._tick, args=(over,), daemon=True)
            thread.start()

            def stop() -> None:
                # Without the lock, which the thread needs to end. It is joined because a child
                # process can be tied to this one only while no other thread lives.
                over.set()
                thread.join()

            self._stops = stop

    def _tick(self, over: threading.Event) -> None:
        """Draw while archives arrive: the figures, a stall, and another size of the terminal."""
        while not over.wait(1 / REFRESH):
            with self._lock:
                for job in self._arriving.values():
                    job.sample(self._clock())
                self._draw()

    def _advanced(self, job: Job, size: int) -> None:
        """Do nothing: the other thread draws."""

    def _ended(self, job: Job) -> None:
        self._draw()

    _staged = _ended

    def _draw(self) -> None:
        if self._jobs and not self._closed:
            width, height = streams.terminal_size(sys.stderr)
            # The last column stays free: some terminals begin a new line after it.
            plain = not streams.can_write(sys.stderr, "█░…")
            lines = layout(list(self._jobs.values()), max(1, width - 1), plain=plain)
            # More lines than the terminal has could not be replaced.
            self._write("", lines[-max(1, height - 1) :])

    def _write(self, above: str, lines: list[str]) -> None:
        """Replace the lines on the screen by others, in one call so that nothing flickers."""
        if not (above or lines or self._lines):
            return
        # The cursor goes back to the begin of the first line (ESC [A). There it stays right when
        # the terminal becomes narrower and wraps the lines, and where it echoes "^C".
        back = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        # ESC [J first: it clears the old lines, also those that the terminal has wrapped.
        below = "\n".join(lines)
        streams.control(sys.stderr, f"\r\x1b[J{above}{below}{back}\r")
        self._lines = lines


class Lines(Tracker):
    """Lines for a log: the begin of an archive, some steps, its end; ``note`` prints them."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def close(self) -> None:
        """Do nothing: a log keeps its lines."""

    def hide(self) -> None:
        """Do nothing: a log keeps its lines."""

    def _begun(self, job: Job) -> None:
        there = f", {text.size(job.done)} of it are here already" if job.done else ""
        size = "size unknown" if job.total is None else text.size(job.total)
        self._note(f"downloading {job.name} ({size}{there})")

    def _advanced(self, job: Job, size: int) -> None:
        before = job.done - size
        if job.total is None:
            if job.done // _STEP > before // _STEP:
                self._note(f"downloading {job.name}: {text.size(job.done)}")
        elif _QUARTERS <= job.total > job.done:
            part = 4 * job.done // job.total
            if part > 4 * before // job.total:
                self._note(f"downloading {job.name}: {25 * part} %")

    def _ended(self, job: Job) -> None:
        # An archive that did not arrive has an error of its own.
        if job.done == job.total:
            self._note(f"downloaded {job.name}")
        if job.stage and job.done and job.total in (None, job.done):
            self._staged(job)

    def _staged(self, job: Job) -> None:
        # Unpacking waits for bytes from the beginning; it is told when all of them are there.
        if job.done or job.stage != "unpacking":
            self._note(f"{job.stage} {job.name}")


class ProgressEvent(NamedTuple):
    """One line of progress on stderr: a file, and how much of it is there.

    ``event`` is ``downloading`` (at the begin, and then at most once in a second), ``downloaded``,
    or what is done with the file after that, such as ``unpacking`` and ``checking``. ``done`` and
    ``total`` are counted in ``unit``; ``total`` is null if it is not known.
    """

    event: str
    name: str
    done: int
    total: int | None
    unit: Literal["B"] = "B"


class JsonLines(Tracker):
    """Lines for programs, each with the JSON object of a ``ProgressEvent``; ``write`` prints it."""

    def __init__(
        self, write: Callable[[ProgressEvent], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._write = write
        self._clock = clock

    def close(self) -> None:
        """Do nothing: a log keeps its lines."""

    hide = close

    def _begun(self, job: Job) -> None:
        job.samples.append((self._clock(), job.done))
        self._say("downloading", job)

    def _advanced(self, job: Job, size: int) -> None:
        # Its last sample is the last line.
        if self._clock() - job.samples[-1][0] >= 1:
            self._begun(job)

    def _ended(self, job: Job) -> None:
        # An archive that did not arrive has an error of its own, in the document.
        if job.total in (None, job.done):
            self._say("downloaded", job)
            if job.stage and job.done:
                self._staged(job)

    def _staged(self, job: Job) -> None:
        if job.done or job.stage != "unpacking":
            self._say(job.stage, job)

    def _say(self, event: str, job: Job) -> None:
        self._write(ProgressEvent(event, job.name, job.done, job.total))


class Status:
    """A text about a long wait that replaces the one before it: on a terminal."""

    def show(self, text: str) -> None:
        """Show a text in place of the one before it."""
        # Cut: a text of two lines would not be replaced.
        width, _ = streams.terminal_size(sys.stderr)
        streams.control(sys.stderr, f"\r\x1b[K{printable(text)[: width - 1]}")

    def close(self) -> None:
        """Remove the text."""
        streams.control(sys.stderr, "\r\x1b[K")


class SparseStatus:
    """The same as lines, for a log: after 2 seconds, 4, 8, 16 and so on; ``note`` prints them.

    ``pauses`` are the seconds before each line; None stands for these.
    """

    def __init__(self, note: Callable[[str], None], pauses: Iterable[float] | None = None) -> None:
        self._note = note
        self._pauses = pauses
        self._text = ""
        # Ends the thread that prints, if it lives.
        self._over: threading.Event | None = None
        self._thread = threading.Thread()

    def show(self, text: str) -> None:
        """Print the text when it is time for a line, unless another one comes before."""
        # The thread only reads the text: it prints this one or the one before it.
        self._text = text
        if self._over is None:
            self._over = threading.Event()
            self._thread = threading.Thread(target=self._tick, args=(self._over,), daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Print no more; a log keeps its lines."""
        if self._over:
            self._over.set()
            # As in ``Bars``: a child process is tied to this one only if no other thread lives.
            self._thread.join()
            self._over = None

    def _tick(self, over: threading.Event) -> None:
        for pause in self._pauses or chain((2.0,), (2.0 * 2**n for n in count())):
            if over.wait(pause):
                return
            self._note(self._text)
