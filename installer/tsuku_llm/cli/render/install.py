"""The result of an install, or its plan."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render.choice import head
from tsuku_llm.cli.render.text import named, origin, size, table, unattested
from tsuku_llm.operations.install import InstallReport

_DONE = {"planned": "would install", "installed": "installed", "unchanged": "already installed"}


def data(report: InstallReport) -> dict[str, Any]:
    """Return the report for programs."""
    variant = report.candidate.variant
    return {
        **head(report.choice),
        "outcome": report.outcome,
        # After ``head``, which names the best variant: this is the one that was really taken.
        "selected": variant.name,
        "variant": variant.name,
        "backend": variant.backend,
        "device": report.candidate.gpu.name if report.candidate.gpu else None,
        "note": report.candidate.note,
        "line": report.choice.line(report.candidate),
        "download_size": variant.download_size,
        "artifacts": [
            {"url": a.url, "sha256": a.sha256, "size": a.size, "format": a.format}
            for a in variant.artifacts
        ],
        "passed_over": dict(report.passed_over),
        "bound_before": report.bound_before,
        "id": report.installed.receipt.id if report.installed else None,
        "path": report.installed.tree if report.installed else None,
    }


def lines(report: InstallReport) -> tuple[str, ...]:
    """Return the report for people."""
    return (
        report.choice.line(report.candidate),
        _headline(report),
        *unattested(report.choice.release.unattested),
        *_details(report),
        *_binding(report),
        *_note(report),
        *_passed_over(report),
        *_next_step(report),
    )


def _headline(report: InstallReport) -> str:
    release = report.choice.release
    return (
        f"{_DONE[report.outcome]}: {report.candidate.variant.name} of "
        f"{named(release.release, release.version)}, "
        f"{origin(release.publisher, report.choice.catalog.repository.name)}"
    )


def _details(report: InstallReport) -> tuple[str, ...]:
    if report.installed:
        return (f"  in {report.installed.tree}",)
    return tuple(
        line
        for artifact in report.candidate.variant.artifacts
        for line in (f"  {artifact.url} ({size(artifact.size)})", f"    sha256 {artifact.sha256}")
    )


def _binding(report: InstallReport) -> tuple[str, ...]:
    if report.bound_before is None:
        return ()
    now = report.choice.catalog.repository.name
    return (f"  the same build was of repository {report.bound_before}; it is of {now} now",)


def _note(report: InstallReport) -> tuple[str, ...]:
    return (f"  {report.candidate.note}",) if report.candidate.note else ()


def _passed_over(report: InstallReport) -> tuple[str, ...]:
    if not report.passed_over:
        return ()
    return ("not taken:", *table(list(report.passed_over.items())))


def _next_step(report: InstallReport) -> tuple[str, ...]:
    return ("start it: tsuku-llm serve -- -m MODEL.gguf",) if report.installed else ()
