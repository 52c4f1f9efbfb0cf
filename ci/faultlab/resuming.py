"""C12 by its figures: a large download that is killed near its end, and the next run."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from support.builds import NO_DEVICE_STEPS, Packed, stand_in

from ci.faultlab.bench import Bench, Home
from ci.faultlab.verdict import Tally

_WHOLE = 600_000_000
_SAMPLE = 60_000_000
_CUT = 0.95
_MOST = 0.06
_LIMIT = 300.0
_CHUNK = 1 << 20


def resume(bench: Bench, _ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Kill an install at 95 % of its archive; the next transfers 6 % of it at most."""
    size = _WHOLE if one_in == 1 else _SAMPLE
    tally = Tally(f"cuts at 95 % of {size // 1_000_000} MB")
    (tag,) = bench.new_tags(1)
    with tempfile.TemporaryDirectory(prefix="faults-large-") as name:
        folder = Path(name).resolve()
        (bench.shop.nginx.root / "large").symlink_to(folder)
        packed = _pack(folder, tag, size)
        bench.shop.publish(tag, {"cpu": bench.shop.variant(packed, folder="large")})
        home = bench.customer(f"large-{tag}", folder)
        tally.add(_cut_and_resume(bench, home, packed, tag), where="killed")
    (bench.shop.nginx.root / "large").unlink()
    return {"C12": tally}


def _cut_and_resume(bench: Bench, home: Home, packed: Packed, tag: str) -> list[str]:
    part = home.data / "partials" / f"{packed.sha256}.part"
    running = home.start("install")
    limit = time.monotonic() + _LIMIT
    while not part.exists() or part.stat().st_size < _CUT * packed.size:
        if time.monotonic() > limit:
            running.kill()
            return [f"the first run did not get to 95 %: {running.end().stderr!r}"]
        time.sleep(0.001)
    running.kill()
    running.end()
    kept = part.stat().st_size if part.exists() else 0
    before = len(bench.shop.nginx.requests())
    ended = home.run("install")
    second = bench.shop.nginx.requests()[before:]
    sent = sum(line.sent for line in second)
    wrong = [*ended.wrong(), *home.wrong({tag}), *home.runs(), *home.leftovers()]
    if [line.status for line in second] != [206]:
        wrong.append(f"the second run asked for {[line.status for line in second]}")
    if sent > _MOST * packed.size:
        wrong.append(f"{sent} of {packed.size} bytes sent again, {kept} were there")
    return wrong


def _pack(folder: Path, tag: str, size: int) -> Packed:
    """A build with so many bytes that do not compress, packed without trying to."""
    build = stand_in(folder / "build", devices=NO_DEVICE_STEPS)
    with (build.tree / "padding").open("wb") as padding:
        for _ in range(size // _CHUNK):
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
