"""Growth of time and memory with the number of archives, versions, releases and clients."""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from support.builds import NO_DEVICE_STEPS, stand_in
from support.release_server import NAME
from support.repository import cpu_platform, release_document
from support.stored import install as store_version

from ci.bench import payload
from ci.bench.downloading import fetching
from ci.bench.lab import PROGRAM, Lab, check_file, check_installed, forget, offer, publish
from ci.bench.pairs import Run, Sample, measured
from ci.bench.unpacking import WORK
from tsuku_llm.store.store import Store

LINEAR = 1.15
"""The exponent that counts as linear: measured times are never quite smooth."""

_LARGE, _MANY = 1000, 30
"""Megabytes and versions above which only one run is made."""

Point = tuple[float, Sample]


@dataclass(frozen=True)
class Growth:
    """A quantity, its values, and the median sample of each command at each value."""

    id: str
    title: str
    quantity: str
    lines: Mapping[str, tuple[Point, ...]]

    def exponent(self, line: str) -> float:
        """Return how time grows from the middle value to the largest: 1 is linear, 0 not at all."""
        points = self.lines[line]
        # The slope in a log-log plot; the small values are left out, as fixed costs dominate there.
        (x, small), (y, large) = points[len(points) // 2], points[-1]
        return math.log(large.seconds / small.seconds) / math.log(y / x)

    def memory_rises(self, line: str) -> float:
        """Return peak memory at the largest value as a multiple of that at the smallest."""
        points = self.lines[line]
        return points[-1][1].memory / points[0][1].memory


def _archives(lab: Lab) -> Growth:
    """Install archives that hardly compress from the loopback.

    The times then consist of writing, hashing and memory use.
    """
    points = []
    for number, megabytes in enumerate((20, 63, 200, 632, 2000)):
        folder = lab.fresh("growing")
        tree = stand_in(folder / "build", devices=NO_DEVICE_STEPS).tree
        payload.write_random(tree / "weights.bin", megabytes * 1_000_000)
        # Level 0 stores without compressing, so unpacking takes almost no time.
        packed = payload.pack(tree, folder / f"growing-{megabytes}.tar.gz", level=0)
        tag = f"b{200 + number}"
        publish(lab.loopback, tag, packed)
        user = lab.user(lab.loopback, "growing")
        run = Run(
            (PROGRAM, "install", "--release", tag),
            user.env,
            before=partial(forget, user),
            after=partial(check_installed, user, packed),
            watched=True,
        )
        points.append((float(megabytes), _median(run, 1 if megabytes > _LARGE else 3)))
        # Free the disk for the next, larger archive.
        (lab.loopback.nginx.root / "archives" / packed.path.name).unlink()
    shutil.rmtree(lab.folder / "growing")
    forget(lab.user(lab.loopback, "growing"))
    return Growth("archive", "`install`", "MB of archive", {"install": tuple(points)})


def _versions(lab: Lab) -> Growth:
    """Measure on versions with 12 files each and one file shared with a neighbour."""
    home = lab.fresh("many-versions")
    store = Store(home / "llm")
    lines: dict[str, list[Point]] = {"list": [], "verify": [], "prune": []}
    numbers = itertools.count(1)
    for count in (1, 3, 10, 30, 100, 200):
        while len(store.installed()) < count:
            _add_version(store, next(numbers))
        for name, points in lines.items():
            # prune removes versions, so each of its runs gets a fresh copy of the store.
            run = _on_a_copy(lab, home) if name == "prune" else Run((), _home(home))
            points.append(
                (
                    float(count),
                    _median(replace(run, command=(PROGRAM, name)), 1 if count > _MANY else 3),
                )
            )
    return Growth("versions", "commands on installed versions", "installed versions", _fixed(lines))


def _add_version(store: Store, number: int) -> None:
    chance = random.Random(number)  # noqa: S311
    files = {f"lib{n}.so": chance.randbytes(4000) for n in range(12)}
    # Two neighbours have the same ``number // 2``, and so the same shared library.
    files |= {"llama-server": b"#!/bin/sh\n", "libshared.so": bytes([number // 2]) * 100_000}
    store_version(store, f"b{number}", files=files, links={})


def _home(home: Path) -> dict[str, str]:
    return {"TSUKU_HOME": str(home)}


def _on_a_copy(lab: Lab, home: Path) -> Run:
    copy = lab.folder / "pruned"

    def anew() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        copied: dict[int, Path] = {}
        shutil.copytree(
            home, copy, copy_function=lambda one, to: _copy(copied, Path(one), Path(to))
        )

    return Run((), _home(copy), before=anew)


def _copy(copied: dict[int, Path], source: Path, target: Path) -> None:
    """Copy a file; names that share a file in the source also share one in the copy."""
    inode = source.stat().st_ino
    if inode in copied:
        target.hardlink_to(copied[inode])
    else:
        shutil.copy2(source, target)
        copied[inode] = target


def _releases(lab: Lab) -> Growth:
    """Measure with release files as large as a real one."""
    lines: dict[str, list[Point]] = {"repository refresh": [], "install --dry-run": []}
    for count in (1, 10, 100, 1000):
        shop = lab.shop(f"releases-{count}")
        for number in range(1, count + 1):
            shop.simulator.add(_release(number))
        shop.simulator.bump()
        shop.write()
        user = lab.user(shop, f"releases-{count}")
        metadata, added = user.data / "metadata", lab.folder / f"added-{count}"
        shutil.copytree(metadata, added)
        refresh = Run(
            (PROGRAM, "repository", "refresh", NAME),
            user.env,
            before=partial(_replaced, metadata, added),
        )
        plan = Run((PROGRAM, "install", "--dry-run"), user.env)
        lines["repository refresh"].append((float(count), _median(refresh, 1)))
        lines["install --dry-run"].append((float(count), _median(plan, 3)))
    return Growth("releases", "commands on a repository", "releases in it", _fixed(lines))


def _release(number: int) -> dict[str, object]:
    platform = cpu_platform()
    variant = platform["variants"]["cpu"]
    names = ("cpu", *(f"variant-{n}" for n in range(8)))
    platforms = ("linux-amd64", "linux-arm64", "windows-amd64", "windows-arm64", "darwin-arm64")
    platform["variants"] = dict.fromkeys(names, variant)
    return release_document(f"b{number}", platforms=dict.fromkeys(platforms, platform))


def _replaced(folder: Path, by: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(by, folder)


def _clients(lab: Lab) -> Growth:
    """Download 16 MB in several processes at once from one nginx, on the loopback."""
    packed = payload.plain(lab.folder / "crowd.bin", 16_000_000)
    offer(lab.loopback, packed)
    points = []
    for count in (1, 2, 4, 8, 16, 32, 64):
        run = fetching(lab, lab.loopback, packed, "archives")
        _, entry, folder = run.command[-3:]
        crowd = (*WORK, "crowd", str(count), entry, folder)
        # The time for all processes together counts, from the first fork to the last end.
        run = replace(run, command=crowd, after=partial(_check_crowd, Path(folder), count, packed))
        points.append((float(count), _median(run, 3)))
    return Growth("clients", "downloads at once", "clients", {"16 MB each": tuple(points)})


def _check_crowd(folder: Path, count: int, packed: payload.Packed) -> None:
    for number in range(count):
        check_file(folder / str(number) / packed.sha256, packed)


def _fixed(lines: Mapping[str, list[Point]]) -> dict[str, tuple[Point, ...]]:
    return {name: tuple(points) for name, points in lines.items()}


def _median(run: Run, rounds: int) -> Sample:
    """Return the run with the median time, and print it at once, as a growth takes minutes."""
    samples = []
    for _ in range(rounds):
        run.before()
        # Flush what the last run wrote, so that its writing does not slow the next run.
        os.sync()
        samples.append(measured(replace(run, watched=True)))
        run.after()
    median = sorted(samples, key=lambda sample: sample.seconds)[len(samples) // 2]
    words = " ".join(Path(word).name for word in run.command if not word.startswith("{"))
    print(f"  {median.seconds:.3f} s: {words[:70]}", file=sys.stderr, flush=True)
    return median


GROWTHS = {
    "archive": _archives,
    "versions": _versions,
    "releases": _releases,
    "clients": _clients,
}
