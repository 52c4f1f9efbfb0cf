"""The result of an unattended update: for people, for programs, and as metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from tsuku_llm.cli.render.installed import build_lines, title
from tsuku_llm.cli.render.services.metrics import exposition, labels, seconds
from tsuku_llm.cli.terminal.text import sentence
from tsuku_llm.ground.errors import UpdateRolledBack
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.servers.server_trials import ServerOutcome, ServerResult
from tsuku_llm.steps.servers.unattended import UnattendedReport, UpdateOutcome

_JUDGED = {
    "servers": "judged by the servers that run",
    "last-model": "judged by a start of the model that was served last",
    "gate": "judged by the gate alone: it starts and lists its devices",
}


def lines(report: UnattendedReport) -> tuple[str, ...]:
    """Return the report for people; what failed is an error and said there."""
    if report.outcome is UpdateOutcome.ROLLED_BACK:
        return ()
    what = title(report.active)
    if report.outcome is UpdateOutcome.WAITING:
        assert report.failure
        release = report.active.receipt.release
        return (f"{report.tried} waits, {release} stays active ({report.failure.reason})",)
    if report.outcome is UpdateOutcome.UNCHANGED:
        return (sentence(f"{what} stays active: there is nothing newer to take"),)
    return (
        sentence(f"updated to {what}"),
        *build_lines(report.active),
        f"  {_JUDGED[report.checked]}",
        *(f"  {line}" for line in server_lines(report.servers)),
    )


_TOLD = {
    ServerOutcome.UPDATED: "runs the new build",
    ServerOutcome.BACK: "runs the former build again",
    ServerOutcome.DOWN: "does not run",
    ServerOutcome.STOPPED: "was stopped",
    ServerOutcome.LEFT: "was left alone",
}


def server_lines(servers: Iterable[ServerResult]) -> tuple[str, ...]:
    """Return what became of each server, for people."""
    return tuple(
        f"{each.name}: {_TOLD[each.outcome]}" + (f" ({each.detail})" if each.detail else "")
        for each in servers
    )


def failure(report: UnattendedReport) -> UpdateRolledBack | None:
    """Return the error of an update that went back; None if it did not."""
    if report.failure is None or report.outcome is UpdateOutcome.WAITING:
        return None
    name = report.tried or "the new build"
    down = [each.name for each in report.servers if each.outcome is ServerOutcome.DOWN]
    active = report.active.id
    reason = report.failure.reason
    # The message has the reason already.
    servers = (
        replace(each, detail="") if f"{each.name}: {each.detail}" == reason else each
        for each in report.servers
    )
    facts = (
        *server_lines(servers),
        f"active: {active}",
        *((f"it is still active: {report.stuck.message}",) if report.stuck else ()),
        *(("updates pass this release over from now on",) if report.marked else ()),
    )
    hint = f"to try it again: {TSUKU} update --retry"
    if report.stuck:
        hint = f"{report.stuck.hint}; then: {TSUKU} update --unattended"
    elif down:
        # Only the one who started it has its arguments.
        hint = f"start it again: {', '.join(down)} ({TSUKU} serve --detach, or systemctl start)"
    return UpdateRolledBack(f"{name} was rolled back: {reason}", facts=facts, hint=hint)


_PREFIX = "tsuku_llm_update"


def metrics(report: UnattendedReport | None, code: int, now: datetime) -> str:
    """Return the metrics of an update, in the text format that Prometheus reads.

    ``report`` is None if it ended with an error before it changed anything.
    """
    return exposition(_Update(report, code, now))


class _Update(Collector):
    def __init__(self, report: UnattendedReport | None, code: int, now: datetime) -> None:
        self._report = report
        self._code = code
        self._now = now

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            f"{_PREFIX}_exit_code", "Exit code of the last update; 9: rolled back.", self._code
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_time_seconds",
            "When the last update began, in seconds since 1970.",
            self._now.timestamp(),
        )
        report = self._report
        if report is None:
            return
        receipt = report.active.receipt
        info = InfoMetricFamily(f"{_PREFIX}", "The build that is active, and what was done.")
        info.add_metric(
            [],
            labels(
                {
                    "outcome": report.outcome.value,
                    "checked": report.checked,
                    "id": receipt.id,
                    "release": receipt.release,
                    "channel": receipt.channel,
                    "repository": receipt.repository,
                }
            ),
        )
        yield info
        marked = GaugeMetricFamily(
            f"{_PREFIX}_rolled_back",
            "A release that failed on this machine, and when, in seconds since 1970.",
            labels=["release", "repository"],
        )
        for each in report.rolled_back:
            if (at := seconds(each.at)) is not None:
                told = labels({"release": each.release, "repository": each.repository})
                marked.add_metric([*told.values()], at)
        yield marked
        servers = GaugeMetricFamily(
            f"{_PREFIX}_servers", "Servers by what became of them.", labels=["outcome"]
        )
        for outcome in _TOLD:
            count = sum(each.outcome is outcome for each in report.servers)
            servers.add_metric([outcome.value], count)
        yield servers
