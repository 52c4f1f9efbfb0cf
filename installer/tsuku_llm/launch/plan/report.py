"""The report of a start: which build runs, on which device, and how that is known.

The report is made when the server starts, and every later state of it goes to a ``Sink``.
``serve --detach`` keeps the last one on disk for ``status``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.launch.compute.canary_answer import Answer
from tsuku_llm.launch.plan.addresses import ServerUrls, told_addresses

FORMAT = 1


class Verdict(str, enum.Enum):
    """The place where the server computes, according to all signs or to a single one.

    ``PARTLY``: on a GPU, without a part of the layers, also if the user asked for no more.
    ``verdict`` has the policy.
    """

    ON_GPU = "on_gpu"
    PARTLY = "partly"
    ON_CPU = "on_cpu"
    UNKNOWN = "unknown"


class Sign(NamedTuple):
    """One sign of where the server computes, independent of the others.

    ``name`` is its source (``device-list``, ``buffers``, …). ``evidence`` is one line with
    what was read, or with why it could not be read.
    """

    name: str
    says: Verdict
    evidence: str


class CanaryResult(NamedTuple):
    """The result of the canary request: ``answered`` with a result, or why it was not.

    ``lost``: the connection broke. ``worked``: the GPU's engines worked for the server meanwhile;
    None if no driver tells. ``answer`` is what was read, empty if it tells no probabilities.
    """

    answered: bool = False
    problem: str = "not made"
    lost: bool = False
    worked: bool | None = None
    answer: Answer = ()


class FallenBack(NamedTuple):
    """A variant that was tried before the one that runs, and why it does not run."""

    variant: str
    reason: str


DIED = "ended"
"""The trouble of a server that ended by itself with an error."""


class Trouble(NamedTuple):
    """What is wrong with a server that has served: ``kind`` for programs, ``text`` for people.

    ``since`` is in UTC, to the second. ``docs/tasks/serve.md`` lists the kinds.
    """

    kind: str
    text: str
    since: str


class GpuHolder(NamedTuple):
    """Another process that holds memory of the GPUs, in bytes; ``name`` is its program."""

    pid: int
    name: str
    memory: int


class DriverFault(NamedTuple):
    """A fault that a driver reports: NVIDIA's number of it, or None and a text.

    ``device`` names the GPU. One with a text is certain to concern the hardware.
    """

    xid: int | None
    device: str
    text: str = ""


def told_size(count: int) -> str:
    """Return bytes in words, such as ``7.4 GB`` or ``820 MB``."""
    gigabytes = count / 1e9
    return f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{gigabytes * 1000:.0f} MB"


class Placement(NamedTuple):
    """The devices on which a model is placed, in the server's order, and why in one sentence.

    Without ``devices`` the server chooses them. ``main`` is the one for the other models of the
    start. ``layers`` is how many each device gets, empty for the server's own division.
    ``passed_over`` are sentences about devices that other processes fill.
    """

    devices: tuple[str, ...] = ()
    main: str | None = None
    reason: str = ""
    layers: tuple[int, ...] = ()
    passed_over: tuple[str, ...] = ()

    def arguments(self, *, draft: bool = False) -> tuple[str, ...]:
        """Return the server's arguments; with ``draft`` for a draft model, too."""
        if not self.devices:
            return ()
        split = ("--tensor-split", ",".join(map(str, self.layers))) if self.layers else ()
        # Otherwise the server divides a draft model among all devices that it knows.
        second = ("-devd", self.main) if draft and self.main else ()
        return ("--device", ",".join(self.devices), *split, *second)

    @property
    def told(self) -> str:
        """The placement in words, for the terminal and for ``status``."""
        named = ",".join(self.devices)
        counts = f" ({'+'.join(map(str, self.layers))} layers)" if self.layers else ""
        text = f"{named}{counts}: {self.reason}" if named else self.reason
        return "; ".join((text, *(f"passed over: {each}" for each in self.passed_over)))


class StartReport(NamedTuple):
    """The report of one server's start.

    ``name`` is the server's among several. ``id`` is that of the installed version,
    ``selected`` its variant. ``backend`` is the one in use, None while that is not known;
    ``device`` is the GPU in words. Memory is the device's, in bytes: ``memory_used`` by this
    server alone. ``model_bytes`` is the size of the model, ``gpu_bytes`` the part of it that is
    on the devices called ``gpu_names``; both are None while that is not known.
    ``pid`` is the server's, ``supervisor`` the process that
    watches it (the same after ``--exec``). ``port`` is None if the server has not said which
    one it took, or listens on a Unix socket; then ``host`` is the socket. ``started_at`` is
    in UTC, to the second. ``signals`` are the signs; stored reports and ``--json`` have that
    name. ``ready`` is true from the first good answer to ``/health`` on. ``trouble`` is what is
    wrong now, None if nothing is; ``holders`` are the other processes with memory of the GPUs.
    ``restarts`` is how often the server was started again after it had lost its GPU. ``placement``
    is where the model was placed at the start, None for a build for the CPU. ``page_url``,
    ``base_url`` and ``curl`` are those of ``ServerUrls``, None until the server is ready, as is
    ``has_key``: whether its API wants a key.
    """

    name: str
    release: str
    id: str
    requested: str
    detected: tuple[str, ...]
    selected: str
    supervisor: int
    pid: int
    host: str
    port: int | None
    started_at: str
    ready: bool = False
    backend: str | None = None
    verdict: Verdict = Verdict.UNKNOWN
    signals: tuple[Sign, ...] = ()
    device: str | None = None
    driver: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    layers_offloaded: int | None = None
    layers_total: int | None = None
    model_bytes: int | None = None
    gpu_bytes: int | None = None
    gpu_names: tuple[str, ...] = ()
    fallen_back_from: tuple[FallenBack, ...] = ()
    trouble: Trouble | None = None
    holders: tuple[GpuHolder, ...] = ()
    restarts: int = 0
    placement: Placement | None = None
    page_url: str | None = None
    base_url: str | None = None
    curl: str | None = None
    has_key: bool | None = None

    @property
    def is_judged(self) -> bool:
        """True once it was looked at where the server computes; it may be ready before."""
        return bool(self.signals) or self.backend is not None

    @property
    def line(self) -> str:
        """The line of the decision, as the start printed it when the server was ready."""
        share = f" gpu=[{self.told_share}]" if self.told_share else ""
        detected = ",".join(self.detected)
        return f"requested={self.requested} detected=[{detected}] selected={self.selected}{share}"

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """What each address of a ready server is for, and the address, for people."""
        urls = ServerUrls(self.page_url, self.base_url, self.curl)
        return told_addresses(urls, self.host, has_key=self.has_key)

    @property
    def gpu_share(self) -> float | None:
        """The share of the model on the GPU, from 0 to 1: of its bytes, else of its layers."""
        if self.gpu_bytes is not None and self.model_bytes:
            return self.gpu_bytes / self.model_bytes
        if self.layers_offloaded is not None and self.layers_total:
            return self.layers_offloaded / self.layers_total
        return None

    @property
    def told_share(self) -> str:
        """The share in words, such as ``48 % of 7.4 GB on Vulkan0``; empty if it is unknown."""
        share = self.gpu_share
        if share is None:
            return ""
        whole = f"{self.layers_total} layers"
        if self.gpu_bytes is not None and self.model_bytes:
            whole = told_size(self.model_bytes)
        # Only the whole model is 100 %, and only nothing is 0 %.
        percent = int(share * 100) or (1 if share else 0)
        names = ", ".join(self.gpu_names) or "the GPU"
        return f"{percent} % of {whole} on {names}"

    def document(self) -> dict[str, Any]:
        """Return the report as a part of a server's record."""
        return {"format": FORMAT, **self._asdict()}


class Performance(NamedTuple):
    """How a server does on one build, as far as it was asked.

    ``answered``: it computed a token; None if that was not asked. ``problem`` is why it did not.
    ``speed`` is in tokens per second of an answer; None if it was not, or cannot be, measured.
    ``answer`` is its answer to the canary request.
    """

    verdict: Verdict
    answered: bool | None = None
    problem: str = ""
    speed: float | None = None
    answer: Answer = ()


Sink = Callable[[StartReport], None]
"""A function that receives each state of a start, in order, in the thread that follows it.

With ``--exec`` it is called once, in the main thread, just before the exec.
"""


_verdict = records.one_of(Verdict)
READ_REPORT = records.record(
    StartReport,
    {
        "started_at": records.moment,
        "verdict": _verdict,
        "signals": records.many(records.record(Sign, {"says": _verdict})),
        **dict.fromkeys(("page_url", "base_url"), records.optional(records.web_address)),
        "fallen_back_from": records.many(records.record(FallenBack)),
        "trouble": records.optional(records.record(Trouble)),
        "holders": records.many(records.record(GpuHolder)),
        "placement": records.optional(records.record(Placement)),
    },
    format=FORMAT,
    since={"gpu_names": [], "holders": [], "restarts": 0, "has_key": None},
)
"""The reader of a report in the record of a server."""
