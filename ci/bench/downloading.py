"""Rows about the network alone: one archive downloaded to disk, its SHA-256 verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from support.release_server import ReleaseServer

from ci.bench.lab import Lab, check_file, offer
from ci.bench.pairs import Run, Samples
from ci.bench.payload import Packed, plain
from ci.bench.row import Row
from ci.bench.unpacking import WORK

SIZE = 256_000_000


def fetching(lab: Lab, shop: ReleaseServer, packed: Packed, folder: str) -> Run:
    """Run our own download, which verifies the SHA-256."""
    to = lab.folder / "fetched"
    url = f"{shop.nginx.url}/{folder}/{packed.path.name}"
    entry = json.dumps(packed.artifact(url))
    return Run(
        (*WORK, "download", entry, str(to)),
        # A proxy of this machine would bypass the simulated line.
        {"SSL_CERT_FILE": str(shop.nginx.authority), "NO_PROXY": "*"},
        before=partial(lab.fresh, "fetched"),
        after=partial(check_file, to / packed.sha256, packed),
        reports=True,
    )


def curl(lab: Lab, shop: ReleaseServer, packed: Packed, folder: str) -> Run:
    """Run curl with one connection; it hashes nothing."""
    lab.require("curl")
    offer(shop, packed)
    to = lab.folder / "by-curl" / "file"
    url = f"{shop.nginx.url}/{folder}/{packed.path.name}"
    command = ("curl", "--fail", "-sS", "--cacert", str(shop.nginx.authority), "-o", str(to))
    return Run(
        (*command, url),
        before=partial(lab.fresh, "by-curl"),
        after=partial(check_file, to, packed),
    )


def aria2c(lab: Lab, shop: ReleaseServer, packed: Packed, folder: str) -> Run:
    """Run aria2c with eight connections; it hashes nothing."""
    lab.require("aria2c")
    offer(shop, packed)
    to = lab.folder / "by-aria2"
    url = f"{shop.nginx.url}/{folder}/{packed.path.name}"
    # -k1M allows parts of 1 MB. Our part file is sparse, so aria2c need not preallocate either.
    options = ("-x8", "-s8", "-k1M", "--quiet", "--file-allocation=none", "--dir", str(to))
    command = ("aria2c", *options, f"--ca-certificate={shop.nginx.authority}", "-o", "file", url)
    return Run(
        command,
        before=partial(lab.fresh, "by-aria2"),
        after=partial(check_file, Path(to) / "file", packed),
    )


def _file(lab: Lab) -> Packed:
    packed = plain(lab.folder / "download.bin", SIZE)
    offer(lab.far, packed)
    return packed


def _one_connection(lab: Lab) -> Mapping[str, Run]:
    packed = _file(lab)
    return {
        "ours": fetching(lab, lab.far, packed, "whole"),
        "yardstick": curl(lab, lab.far, packed, "whole"),
    }


def _parallel(folder: str, lab: Lab) -> Mapping[str, Run]:
    packed = _file(lab)
    return {
        "ours": fetching(lab, lab.far, packed, folder),
        "yardstick": aria2c(lab, lab.far, packed, folder),
    }


def processor_time(samples: Samples) -> float:
    """Return our processor time as a multiple of the yardstick's."""
    return samples.median("ours", "cpu") / samples.median("yardstick", "cpu")


ROWS = (
    Row("G5", "one connection, 256 MB at 50 ms", "curl -o", 1.05, _one_connection),
    Row("G6", "the same in processor time", "curl -o", 2.3, _one_connection, processor_time),
    Row(
        "G7", "parallel ranges, 50 ms, 1 Gbit/s", "aria2c -x8", 1.05, partial(_parallel, "archives")
    ),
    Row("G8", "20 MB/s per connection, 50 ms", "aria2c -x8", 1.10, partial(_parallel, "capped")),
)
"""``ours`` verifies the SHA-256 of every byte; the yardsticks verify nothing."""
