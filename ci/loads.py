"""Bytes, requests and time of many machines: ``python -m ci.loads``.

Arithmetic on measured figures. Sizes are those of the official repository in ``manifests`` and of
the archives that it names. Requests are those that the real client sends to a real nginx: the test
of L09 asserts them. Headers and TLS are left out. ``docs/mirrors.md`` has the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FLEETS: Final = (10, 1_000, 100_000)
RELEASE: Final = "b11347"
PLATFORM: Final = "linux-amd64"
"""The newest release of which every archive's size is known."""
VARIANTS: Final = ("vulkan", "cuda-13.4")
WAY_OUT: Final = 1e9
"""Bits per second from a site to the release host."""

INSIDE: Final = 10e9
"""Bits per second of one mirror in the site."""

WINDOW: Final = 3 * 3600
"""Seconds over which a timer with a window of three hours spreads the machines."""

_MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"


@dataclass(frozen=True)
class Load:
    """What one machine asks for: the bytes of all bodies, and the number of requests."""

    size: int
    requests: int

    def __mul__(self, machines: int) -> Load:
        return Load(self.size * machines, self.requests * machines)

    def __add__(self, other: Load) -> Load:
        return Load(self.size + other.size, self.requests + other.requests)


def nothing_new() -> Load:
    """Return the load of one check without news: the next root, which is missing, and a date."""
    return Load(_size("metadata/timestamp.json"), 2)


def metadata_of_release() -> Load:
    """Return the load of the metadata of one release, for a client that knows the former one."""
    files = ("metadata/*.snapshot.json", "metadata/*.targets.json", f"targets/*/*.{RELEASE}.json")
    return nothing_new() + Load(sum(map(_size, files)), len(files))


def archives_of(variant: str) -> Load:
    """Return the load of a variant's archives, each as one request."""
    (path,) = _MANIFESTS.glob(f"targets/*/*.{RELEASE}.json")
    document: dict[str, Any] = json.loads(path.read_bytes())
    artifacts = document["platforms"][PLATFORM]["variants"][variant]["artifacts"]
    return Load(sum(each["size"] for each in artifacts), len(artifacts))


def lines() -> Iterator[str]:
    """Yield the tables in Markdown."""
    check = nothing_new()
    yield "| machines | each night, nothing new | requests | requests per second |"
    yield "|---|---|---|---|"
    for count in FLEETS:
        every = check * count
        rate = every.requests / WINDOW
        yield f"| {count:,} | {_bytes(every.size)} | {every.requests:,} | {rate:.3g} |"
    yield ""
    yield (
        "| machines | variant | out without a mirror | requests | takes | out with a mirror "
        "| requests | inside | one mirror takes |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for count in FLEETS:
        for variant in VARIANTS:
            once = metadata_of_release() + archives_of(variant)
            every = once * count
            cells = (
                *(f"{count:,}", variant, _bytes(every.size), f"{every.requests:,}"),
                *(_time(every.size * 8 / WAY_OUT), _bytes(once.size), f"{once.requests}"),
                *(_bytes(every.size), _time(every.size * 8 / INSIDE)),
            )
            yield f"| {' | '.join(cells)} |"


def _size(pattern: str) -> int:
    (path,) = _MANIFESTS.glob(pattern)
    return path.stat().st_size


def _bytes(size: int) -> str:
    for limit, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= limit:
            return f"{size / limit:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def _time(seconds: float) -> str:
    for limit, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * limit:
            return f"{seconds / limit:.1f} {unit}"
    return f"{seconds:.1f} s"


if __name__ == "__main__":
    print("\n".join(lines()))
