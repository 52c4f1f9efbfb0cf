"""Row C12 in figures: a large download that is killed near its end, and the next run.

Several connections may fill a part out of order. So the figures are how much of it is on the disk
and how much the server says that it sent.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from support.builds import NO_DEVICE_STEPS, Packed, stand_in
from support.forked import Ended
from support.nginx import Logged
from support.waiting import Standstill

from ci.faultlab.bench import Bench, Home
from ci.faultlab.verdict import Tally

_SIZE = 600_000_000
_CUT = 0.95
_MOST = 0.06
_LIMIT = 300.0
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Runs:
    """Two runs for one archive: the bytes on the disk between them, and the second run."""

    packed: Packed
    kept: int
    second: list[Logged]
    ended: Ended

    @property
    def again(self) -> int:
        """Bytes that the server sent to the second run."""
        return sum(line.sent for line in self.second)

    def __str__(self) -> str:
        size = self.packed.size
        return (
            f"{self.kept / size:.2%} of {size:,} bytes were there, "
            f"the second run transferred {self.again:,} of them ({self.again / size:.2%}) "
            f"over {len({line.connection for line in self.second})} connections"
        )

    def wrong(self) -> list[str]:
        """Return what is wrong with the second run."""
        wrong = self.ended.wrong()
        if self.ended.code:
            wrong.append(f"the second run ended with {self.ended.code}: {self.ended.stderr!r}")
        if {line.status for line in self.second} != {206}:
            wrong.append(f"the second run asked for {[line.status for line in self.second]}")
        return [*wrong, *([str(self)] if self.again > _MOST * self.packed.size else [])]


def resume(bench: Bench, _ids: Collection[str], _one_in: int) -> dict[str, Tally]:
    """Kill an install at 95 % of its archive; the next may transfer at most 6 % of it."""
    tally = Tally("cuts of a large download")
    (tag,) = bench.new_tags(1)
    with tempfile.TemporaryDirectory(prefix="faults-large-") as name:
        folder = Path(name).resolve()
        # On a real disk: the bench may be on a memory disk, and the archive has 600 MB.
        (bench.shop.nginx.root / "large").symlink_to(folder)
        packed = _pack(folder, tag)
        bench.shop.publish(tag, {"cpu": bench.shop.variant(packed, folder="large")})
        home = bench.customer(f"large-{tag}", folder)
        runs = _cut_and_resume(bench, home, packed)
        wrong = [*runs.wrong(), *home.wrong({tag}), *home.runs(), *home.leftovers()]
        tally.add(wrong, where="killed at 95 %")
        tally.figures = str(runs)
    (bench.shop.nginx.root / "large").unlink()
    return {"C12": tally}


def _cut_and_resume(bench: Bench, home: Home, packed: Packed) -> _Runs:
    running = home.start("install")
    limit = time.monotonic() + _LIMIT
    while _there(home, packed) < _CUT * packed.size:
        if time.monotonic() > limit:
            raise Standstill(f"not at 95 % after {_LIMIT:.0f} s: {running.seen()}")
        time.sleep(0.001)
    running.kill()
    running.end()
    kept = _there(home, packed)
    before = len(bench.shop.nginx.requests())
    ended = home.run("install")
    return _Runs(packed, kept, bench.shop.nginx.requests()[before:], ended)


def _there(home: Home, packed: Packed) -> int:
    """Return the bytes of the part that are on the disk: holes between them take no blocks."""
    part = home.data / "partials" / f"{packed.sha256}.part"
    try:
        status = part.stat()
    except FileNotFoundError:
        return 0
    return min(status.st_size, status.st_blocks * 512)


def _pack(folder: Path, tag: str) -> Packed:
    """Pack a build of incompressible bytes, without compressing it."""
    build = stand_in(folder / "build", devices=NO_DEVICE_STEPS)
    with (build.tree / "padding").open("wb") as padding:
        for _ in range(_SIZE // _CHUNK):
            padding.write(os.urandom(_CHUNK))
    archive = folder / f"{tag}-large.tar.gz"
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=0, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(build.tree.iterdir()):
            tar.add(path, f"{tag}/{path.name}")
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return Packed(archive, digest.hexdigest(), archive.stat().st_size, "tar.gz", tag)
