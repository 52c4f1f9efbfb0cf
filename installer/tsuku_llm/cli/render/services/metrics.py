"""Servers in the background as metrics, in the text format that Prometheus reads.

They describe the result of each start, and what has become of it. For its work (tokens, requests) a
server started with ``--metrics`` has metrics at ``/metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from tsuku_llm.ground.safe_text import printable
from tsuku_llm.instances.record import Record, ServerState
from tsuku_llm.launch.plan.report import StartReport, Verdict

_PREFIX = "tsuku_llm_server"


def text(records: Sequence[Record]) -> str:
    """Return all metrics of these servers; what is unknown of a server is left out."""
    return exposition(_Servers(records))


def exposition(collector: Collector) -> str:
    """Return metrics in the text format of Prometheus."""
    # A new registry: the global one would add metrics of this process.
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode("utf-8")


def labels(facts: Mapping[str, str]) -> dict[str, str]:
    """Return texts as labels, without control characters.

    Prometheus takes any text, but not every reader of its format, nor a terminal: some end a line
    at a CR, a NEL or U+2028 as well.
    """
    return {name: printable(text) for name, text in facts.items()}


def seconds(time: str) -> float | None:
    """Return a time of a state file in seconds since 1970, None if it is none."""
    try:
        return datetime.strptime(f"{time[:-1]}+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None


class _Servers(Collector):
    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def collect(self) -> Iterable[Metric]:
        info = InfoMetricFamily(_PREFIX, "Facts about the start of the server.")
        for record in self._records:
            info.add_metric([], _labels(record))
        yield info
        # One gauge for all servers: the server is a label.
        for name, (described, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", described, labels=["name"])
            for record in self._records:
                # A record may be damaged: what has no value is left out, and the rest is told.
                try:
                    found = value(record)
                    number = None if found is None else float(found)
                except (ValueError, OverflowError, TypeError):
                    number = None
                if number is not None:
                    gauge.add_metric([printable(record.name)], number)
            yield gauge


def _labels(record: Record) -> dict[str, str]:
    """Return every fact that is a text; an empty label counts as absent for Prometheus."""
    report = record.report
    facts = {name: getattr(report, name, None) or "" for name in _TEXTS}
    passed = ",".join(each.variant for each in report.fallen_back_from) if report else ""
    verdict = report.verdict.value if report else ""
    return labels(
        {
            "name": record.name,
            "state": record.state.value,
            "verdict": verdict,
            "fallen_back_from": passed,
            "trouble": report.trouble.kind if report and report.trouble else "",
            **facts,
        }
    )


_TEXTS = (
    *("release", "id", "requested", "selected"),
    *("backend", "device", "driver"),
)
"""Fields of the report that become labels."""


def _of_report(pick: Callable[[StartReport], float | None]) -> Callable[[Record], float | None]:
    return lambda record: pick(record.report) if record.report else None


def _on_gpu(report: StartReport) -> float | None:
    return None if report.verdict is Verdict.UNKNOWN else report.verdict is not Verdict.ON_CPU


_GAUGES: Mapping[str, tuple[str, Callable[[Record], float | None]]] = {
    "up": (
        "Whether the server is ready: 1, or 0 while it starts and after it has ended.",
        lambda record: record.state in (ServerState.RUNNING, ServerState.UNWATCHED),
    ),
    "on_gpu": (
        "Whether the server computes on a GPU, at least partly; absent if unknown.",
        _of_report(_on_gpu),
    ),
    "gpu_share_ratio": (
        "Part of the model that is on the GPU, from 0 to 1; absent if unknown.",
        _of_report(lambda report: report.gpu_share),
    ),
    "model_bytes": ("Size of the model.", _of_report(lambda report: report.model_bytes)),
    "start_time_seconds": (
        "When the server was started, in seconds since 1970.",
        _of_report(lambda report: seconds(report.started_at)),
    ),
    "device_memory_bytes": (
        "Memory that the device has.",
        _of_report(lambda report: report.memory_total),
    ),
    "device_memory_used_bytes": (
        "Memory of the device that the server uses.",
        _of_report(lambda report: report.memory_used),
    ),
    "layers": ("Layers of the model.", _of_report(lambda report: report.layers_total)),
    "layers_offloaded": (
        "Layers of the model that are on the device.",
        _of_report(lambda report: report.layers_offloaded),
    ),
    "trouble": (
        "Whether something is wrong with the server: 1 or 0; the label of info says what.",
        _of_report(lambda report: report.trouble is not None),
    ),
    "restarts": (
        "How often the server was started again after it had lost its GPU.",
        _of_report(lambda report: report.restarts),
    ),
    "other_memory_used_bytes": (
        "Memory of the GPUs that other processes hold, of those that hold most.",
        _of_report(lambda report: sum(each.memory for each in report.holders)),
    ),
    "idle_timeout_seconds": (
        "Time without a request after which the server is ended; 0 for never.",
        lambda record: record.idle_timeout,
    ),
}
"""Each gauge: its help text, and its value for a record, None if it is unknown."""
