"""Servers: those in the background, those that load, and what a start would run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsuku_llm.cli.render.installed import told_lines
from tsuku_llm.cli.terminal.text import size, table
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.safe_text import shell_word

if TYPE_CHECKING:
    from tsuku_llm.instances.loading import LoadSample
    from tsuku_llm.instances.record import Record
    from tsuku_llm.launch.plan.report import StartReport, Trouble, Verdict
    from tsuku_llm.steps.serve.tools import Planned
    from tsuku_llm.steps.servers.background import LoadedModel, Servers, StoppedServer


def lines(found: Servers) -> tuple[str, ...]:
    """Return every server for people."""
    nothing = () if found.servers else ("no server runs in the background",)
    return (
        *nothing,
        *(
            text
            for record in found.servers
            for text in _paragraph(record, found.models.get(record.name, ()))
        ),
        *told_lines(found.releases),
        *(
            f"damaged: {name}: {error.message}; {error.hint}"
            for name, error in found.damaged.items()
        ),
    )


def started_lines(record: Record) -> tuple[str, ...]:
    """Return a server that has just become ready, for people."""
    return (*_paragraph(record), f"stop it with: {TSUKU} stop --name {record.name}")


def loading_line(seconds: float, sample: LoadSample) -> str:
    """Return how far a server is that loads its model."""
    gpu = f", {size(sample.gpu_memory)} of the GPU's" if sample.gpu_memory else ""
    # A model that the server downloads; below, it is a driver's cache or nothing.
    disk = f", {size(sample.written)} written to disk" if sample.written >= _TOLD else ""
    return f"loading for {seconds:.0f} s: {size(sample.memory)} of memory{gpu}{disk}"


_TOLD = 10_000_000
"""Bytes on a disk that are told."""


def compiling_line(seconds: float) -> str:
    """Return why a server that has loaded is not ready yet."""
    return f"loaded; its driver has been compiling for {seconds:.0f} s"


def status_line(record: Record) -> str:
    """Return where a server computes and listens, and the decision, for the service manager.

    What is wrong with it comes first.
    """
    report = record.report
    if report is None:
        return ""
    if report.trouble:
        return _trouble(report.trouble)
    device = f", {report.device}" if report.device else ""
    where = report.page_url or report.base_url or record.address
    return f"{_runs_on(report)}{device}; at {where}; {report.line}"


_STOPPED = {
    "stopped": "{} has ended",
    "killed": "{} did not end in time, and was killed",
    "gone": "{} had ended before",
    "left": "{} had ended before; servers of its models were left, and have ended now",
    "unreadable": "{}: its damaged record is removed; if its server still runs, end that process "
    "yourself",
}


def stopped_lines(stopped: tuple[StoppedServer, ...]) -> tuple[str, ...]:
    """Return what was stopped, for people."""
    told = tuple(_STOPPED[each.outcome].format(each.name) for each in stopped)
    return told or ("no server runs in the background",)


def _paragraph(record: Record, models: Sequence[LoadedModel] = ()) -> tuple[str, ...]:
    """Return the server in one line, and the result of its start below it."""
    first = f"{record.name}: {record.state.value} at {record.address}{_how_it_ended(record)}"
    return (
        first,
        record.report.line if record.report else "",
        *table([*_facts(record), *_models(record, models)], indent=2),
    )


def _models(record: Record, models: Sequence[LoadedModel]) -> list[tuple[str, str]]:
    """Return the models that a router has loaded, or the servers of them that it has left."""
    what = "loaded" if record.state.is_up else "left behind"
    end = "" if record.state.is_up else f"; end it: {TSUKU} stop --name {record.name}"
    found: list[tuple[str, str]] = []
    for each in models:
        gpu = f", {size(each.gpu_memory)} of the GPU's" if each.gpu_memory else ""
        where = f"{_told_verdict(each.verdict)}, process {each.pid}{end}"
        found.append((what, f"{each.name}: {size(each.memory)} of memory{gpu}, {where}"))
    return found


def _told_verdict(verdict: Verdict) -> str:
    return verdict.value.replace("_", " ")


def _how_it_ended(record: Record) -> str:
    if record.exit_code is None:
        return ""
    trouble = record.report and record.report.trouble
    # A line below says the same, and since when.
    told = trouble is not None and trouble.text == record.reason
    reason = f" ({record.reason})" if record.reason and not told else ""
    return f", exit code {record.exit_code}{reason}"


def _facts(record: Record) -> list[tuple[str, str]]:
    report = record.report
    if report is None:
        return []
    # A log of the usual verbosity does not say how many layers the model has.
    total = "" if report.layers_total is None else f" of {report.layers_total}"
    # One of the two may be unknown: ``size`` then prints "?".
    # No server in the pause before a restart, and no process at all after the end.
    server = f"{record.server.pid}, " if record.server else ""
    processes = f"{server}watched by {record.supervisor.pid}"
    memory = f"{size(report.memory_used)} of {size(report.memory_total)}"
    addresses = report.addresses if any(record.urls) else ()
    facts = {
        "build": f"{report.selected} of {report.release}",
        "arguments": " ".join(map(shell_word, record.arguments or ())),
        "runs on": _runs_on(report),
        "on the GPU": report.told_share or None,
        "device": report.device,
        "placed": report.placement.told if report.placement else None,
        "driver": report.driver,
        "memory": memory if report.memory_total or report.memory_used else None,
        "trouble": None if report.trouble is None else _trouble(report.trouble),
        "restarts": str(report.restarts) if report.restarts else None,
        "layers": None if report.layers_offloaded is None else f"{report.layers_offloaded}{total}",
        "since": report.started_at,
        "processes": processes if record.exit_code is None else None,
    }
    others = [
        ("also on the GPU", f"{each.name or 'a process'} ({each.pid}): {size(each.memory)}")
        for each in report.holders
    ]
    passed = [(f"not {each.variant}", each.reason) for each in report.fallen_back_from]
    # Facts that are unknown have no line.
    known = ((name, text) for name, text in facts.items() if text)
    return [*addresses, *known, *others, *passed]


def _trouble(trouble: Trouble) -> str:
    return f"{trouble.kind}, since {trouble.since}: {trouble.text}"


def _runs_on(report: StartReport) -> str:
    if report.ready and not report.is_judged:
        return "not known yet"  # for a moment: it is ready before this is looked at
    if report.backend is None and report.verdict == "unknown":
        return "not known (no sign of a GPU at work)"
    return f"{report.backend or 'unknown'} ({_told_verdict(report.verdict)})"


# --- what a start would run ---------------------------------------------------------------


def planned_lines(plan: Planned) -> tuple[str, ...]:
    """Return the plan for people: the decision, the variables that count, the arguments."""
    offered = plan.preset.models if plan.preset else ()
    return (
        plan.line,
        f"in {plan.cwd}",
        *(f"with {name}={value}" for name, value in plan.environment.items()),
        *(f"without {name}" for name in plan.removed),
        *((f"placed: {plan.placement.told}",) if plan.placement else ()),
        *(f"offers {': '.join(each.told)}" for each in offered),
        f"would run: {shlex.join(plan.argv)}",
    )
