"""Rows C18 and C19: an unattended update is ended before every call that changes a file.

Between two such calls the disk is the same, so a kill at any other call leaves the same state as at
the next one of these. Each run has a home and a server of its own; the server goes on.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.forked import Ended
from support.processes import gone
from support.waiting import PROMPTLY

from ci.faultlab.bench import Bench, Home, sample, side_by_side
from ci.faultlab.points import Point, calls_in, points_in
from ci.faultlab.verdict import Tally
from tsuku_llm.instances.folder import Instances
from tsuku_llm.store.records.updates import MARKS, read_journal, read_marks

FAULTS = {"C18": "KILL", "C19": "TERM"}
_WHAT = {"C18": "kills", "C19": "signals"}
_CODES = {"KILL": {-9}, "TERM": {-15, 143}}
_UPDATE = ("update", "--unattended")
_ROLLED_BACK = 9
_WORKERS = 4
"""More than processors: a run waits mostly for its supervisor, which looks once a second."""

_DEAD = ("err the flux is open", "exit 42")


@dataclass(frozen=True)
class _Scene:
    """An update from ``former`` to ``new``, which stays if it is ``good``, and else goes back."""

    name: str
    template: Home
    model: Path
    former: str
    new: str
    good: bool

    @property
    def final(self) -> str:
        """The release with which every run must end."""
        return self.new if self.good else self.former


@dataclass(frozen=True)
class _Sweep:
    """One signal at every point of one scene."""

    bench: Bench
    scene: _Scene
    fault: str

    def __call__(self, point: Point) -> list[str] | None:
        """Return what was wrong with one run; None if the point was not reached."""
        with self.bench.copy(self.scene.template) as home, _serving(home, self.scene.model):
            options = point.options(f"signal={self.fault}", home.folder)
            ended, _ = home.traced(_UPDATE, *options)
            # The calls of threads come in another order each time; and one of the gate's servers,
            # which are children, may have been hit.
            if ended.code not in _CODES[self.fault]:
                return None
            either = {self.scene.former, self.scene.new}
            wrong = [*ended.wrong()] if self.fault == "KILL" else [*ended.hung]
            wrong += [*home.wrong(either), *_server_wrong(home, either)]
            again = home.run(*_UPDATE)
            return [*wrong, *(f"then {text}" for text in self._converged(home, again))]

    def _converged(self, home: Home, ended: Ended) -> Iterator[str]:
        """Tell what is wrong after the next update, which nothing disturbed."""
        scene = self.scene
        if ended.code not in ({0} if scene.good else {0, _ROLLED_BACK}):
            yield f"ended with {ended.code}: {ended.stderr!r}"
        yield from home.wrong({scene.final})
        yield from _server_wrong(home, {scene.final})
        servers = _processes_below(home.data / "versions")
        if len(servers) != 1:
            yield f"{len(servers)} servers run"
        if read_journal(home.data):
            yield "the journal is left"
        marked = [each.release for each in read_marks(home.data)]
        if marked != ([] if scene.good else [scene.new]):
            yield f"marked are {marked}"
        # An install may be writing the marks, without the lock of updates: they go by age.
        yield from (each for each in home.leftovers() if f".{MARKS}." not in each)


def sweep(bench: Bench, ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Show these rows at one in ``one_in`` of their points."""
    tallies = {row: Tally(_WHAT[row]) for row in FAULTS if row in ids}
    for scene in _scenes(bench):
        points: list[Point] = []
        for row, total in tallies.items():
            part = f"{scene.name}, {FAULTS[row]}"
            if bench.finished.into(total, row, part):
                continue
            points = points or _recorded(bench, scene)
            tally = Tally(_WHAT[row])
            attack = _Sweep(bench, scene, FAULTS[row])
            for point, wrong in side_by_side(attack, sample(points, one_in), _WORKERS):
                if wrong is not None:
                    tally.add(wrong, where=f"{part} at {point}")
            bench.finished.keep(tally, row, part)
            bench.finished.into(total, row, part)
    return tallies


def _scenes(bench: Bench) -> Iterator[_Scene]:
    """Yield a release that stays and one that goes back; use each before asking for the next."""
    model = bench.folder / "model.gguf"
    model.write_bytes(b"GGUF" + bytes(60))
    tags = bench.new_tags(3)
    bench.publish(tags[0])
    one = bench.derived(bench.customer(f"before-{tags[0]}"), f"with-{tags[0]}", "install")
    bench.publish(tags[1])
    yield _Scene("a good release", one, model, tags[0], tags[1], good=True)
    two = bench.derived(one, f"with-{tags[1]}", "update")
    bench.publish(tags[2], _DEAD)
    yield _Scene("a dead release", two, model, tags[1], tags[2], good=False)


def _recorded(bench: Bench, scene: _Scene) -> list[Point]:
    """Record one run without a fault; return its calls that change a file."""
    with bench.copy(scene.template) as home, _serving(home, scene.model):
        ended, log = home.traced(_UPDATE, "-y")
        if ended.code != (0 if scene.good else _ROLLED_BACK):
            raise RuntimeError(f"{scene.name} ended with {ended.code}: {ended.stderr}")
        points = points_in(calls_in(log, ended.pid), home.folder)
        return [point for point in points if point.call.changes]


@contextmanager
def _serving(home: Home, model: Path) -> Iterator[None]:
    """Run a server in the background of a home for the block."""
    home.must("serve", "--detach", "--", "-m", str(model), "--port", "0")
    try:
        yield
    finally:
        for record in Instances(home.data / "state").all():
            # The supervisor first: it would start the server again.
            for process in (record.supervisor, record.server):
                if process and process.send(signal.SIGKILL):
                    gone(process.pid)


def _server_wrong(home: Home, allowed: Collection[str]) -> Iterator[str]:
    """Tell what is wrong with the server: it must answer, and run one of these releases."""
    deadline = time.monotonic() + PROMPTLY
    # Its supervisor may be at the restart that the ended update has asked for.
    while not _answers(server := _server(home)):
        if time.monotonic() > deadline:
            yield f"the server does not answer: {server}"
            return
        time.sleep(0.1)
    if server["report"]["release"] not in allowed:
        yield f"the server runs {server['report']['release']}"


def _answers(server: Mapping[str, Any]) -> bool:
    if server["state"] != "running":
        return False
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{server['port']}/health", timeout=PROMPTLY)
    except OSError:
        return False
    return True


def _server(home: Home) -> dict[str, Any]:
    """Return what ``status`` says of the one server."""
    (server,) = json.loads(home.must("status", "--json").stdout)["data"]["servers"]
    found: dict[str, Any] = server
    return found


def _processes_below(folder: Path) -> list[str]:
    """Return the processes whose program lies in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "exe").startswith(f"{folder}/"):
                found.append(process.name)
    return found
