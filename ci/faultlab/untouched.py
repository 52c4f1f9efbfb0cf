"""Row N01: kills while a build is started, crashes and is verified, with foreign files in it.

After each kill the next start must serve, as the build's own files are right all the time. The
foreign files are moved out of the build before anything runs, and none is lost.
"""

from __future__ import annotations

import resource
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.faultlab.bench import Bench, Home, sample, side_by_side
from ci.faultlab.points import Point, calls_in, points_in
from ci.faultlab.verdict import Tally
from tsuku_llm.ground.errors import TsukuError

_KILLED = "+++ killed by SIGKILL"
_KILLS = 14
"""Kills of each of the three commands: some forty in all."""

_PLANTED = ("libggml-cpu-evil.so", "notes.txt", "plugins/libggml-vulkan.so")
_START = ("serve", "--exec", "--", "--version")
_SCENES = {
    "a start": _START,
    "a server that crashes": ("serve", "--", "--port", "0"),
    "verify": ("verify",),
}


@dataclass(frozen=True)
class _Kill:
    """One kill of one command, in a home of its own."""

    bench: Bench
    template: Home
    argv: tuple[str, ...]

    def __call__(self, point: Point) -> list[str] | None:
        """Return what was wrong with one kill; None if the point was not reached."""
        with self.bench.copy(self.template) as home:
            _plant(_tree(home))
            options = point.options("signal=KILL", home.folder)
            _, log = home.traced(self.argv, *options)
            return [*_after(home)] if _KILLED in log else None


def sweep(bench: Bench, ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Show the row at one in ``one_in`` of its kills."""
    tally = Tally("kills")
    # As in a container: a crash would write the memory of the server into its working folder.
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(bench.program.pid, resource.RLIMIT_CORE, unlimited)
    (tag,) = bench.new_tags(1)
    # It listens, is asked for its health, and crashes.
    bench.publish(tag, ("err listening on http://127.0.0.1:1", "kill 11"))
    home = bench.derived(bench.customer(f"before-{tag}"), f"with-{tag}", "install")
    for name, argv in _SCENES.items():
        with bench.copy(home) as recorded:
            _plant(_tree(recorded))
            ended, log = recorded.traced(argv, "-y")
            points = points_in(calls_in(log, ended.pid), recorded.folder)
        points = points[:: max(1, len(points) // _KILLS)]
        attack = _Kill(bench, home, argv)
        for point, wrong in side_by_side(attack, sample(points, one_in)):
            if wrong is not None:
                tally.add(wrong, where=f"{name} at {point}")
    return dict.fromkeys(ids, tally)


def _tree(home: Home) -> Path:
    (version,) = home.store.installed()
    return version.tree


def _plant(tree: Path) -> None:
    """Put files beside those of the build, as root can: for others its folders are sealed."""
    for name in _PLANTED:
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(b"foreign")


def _after(home: Home) -> Iterator[str]:
    """Tell what is wrong after the next start, which nothing disturbs."""
    ended = home.run(*_START)
    if ended.code:
        yield f"the next start ended with {ended.code}: {ended.stderr!r}"
    (version,) = home.store.installed()
    try:
        home.store.check(version, full=True)
    except TsukuError as error:
        yield f"{error.message}: {error.facts}"
    for name in _PLANTED:
        found = [*(home.data / "set-aside").rglob(Path(name).name)]
        if len(found) != 1 or found[0].read_bytes() != b"foreign":
            yield f"{name} is at {found}"
    # A core would be here, in the folder from which the program was called.
    yield from (f"written: {path}" for path in (home.folder / "home").rglob("*"))
