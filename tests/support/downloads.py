"""What tests of downloads share: an artifact, a network on a fake clock, a report."""

from __future__ import annotations

import hashlib
import io
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tsuku_llm.catalog.manifest import Artifact, Measured, Pieces
from tsuku_llm.fetch import Limits, Network, Timing

BODY = random.Random(7).randbytes(200_000)  # noqa: S311 - any bytes that do not compress

QUICK = Limits(connect=5.0, silence=0.3, answer=0.6)
"""So short that what never answers costs a test nothing; a busy machine may end what does."""


def artifact_at(url: str, body: bytes = BODY, *, size: int | None = -1, **rest: Any) -> Artifact:
    """The manifest's entry for ``body`` at ``url``; ``size`` None for one without a size."""
    return Artifact(
        url=url,
        sha256=hashlib.sha256(body).hexdigest(),
        size=len(body) if size == -1 else size,
        format="tar.gz",
        **rest,
    )


def pieces_of(body: bytes, size: int) -> Pieces:
    """The digests of the pieces of ``body``, of any size, also one that no manifest may have."""
    return Measured.of(io.BytesIO(body), size).pieces


@dataclass
class Clock:
    """Real time, moved on by every sleep instead of waiting; ``step`` is added per look."""

    step: float = 0.0
    slept: list[float] = field(default_factory=list)
    ahead: float = 0.0

    def now(self) -> float:
        self.ahead += self.step
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ahead += seconds

    def network(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        mirrors: tuple[str, ...] = (),
        limits: Limits | None = None,
    ) -> Network:
        timing = Timing(self.now, self.sleep, lambda: 1.0)
        return Network(environ or {}, mirrors=mirrors, limits=limits, timing=timing)


@dataclass
class Seen:
    """A progress that remembers what it was told."""

    calls: list[tuple[str, object]] = field(default_factory=list)

    def begin(self, name: str, total: int | None, there: int = 0) -> None:
        self.calls.append(("begin", (name, total)))
        if there:
            self.advance(there)

    def advance(self, size: int) -> None:
        self.calls.append(("advance", size))

    def end(self) -> None:
        self.calls.append(("end", None))

    def stage(self, name: str, what: str) -> None:
        self.calls.append(("stage", (name, what)))

    def finish(self) -> None:
        self.calls.append(("finish", None))

    @property
    def received(self) -> int:
        """Bytes since it began for the last time."""
        begun = max(index for index, call in enumerate(self.calls) if call[0] == "begin")
        return sum(int(str(value)) for name, value in self.calls[begun:] if name == "advance")
