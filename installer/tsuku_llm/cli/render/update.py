"""What an update would change."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render.text import named, size
from tsuku_llm.operations.update import UpdateReport


def data(report: UpdateReport) -> dict[str, Any]:
    """The report for programs."""
    receipt, release = report.installed.receipt, report.choice.release
    candidate = report.candidate
    return {
        "channel": report.choice.channel,
        "simulated": report.choice.hardware.simulated,
        "installed": {
            "release": receipt.release,
            "version": receipt.version,
            "variant": receipt.variant,
        },
        "newest": {"release": release.release, "version": release.version},
        "available": report.newer,
        "variant": candidate.variant.name if candidate else None,
        "download_size": candidate.variant.download_size if candidate else None,
        "not_compatible": {r.variant.name: r.reason.text for r in report.choice.selection.rejected},
    }


def lines(report: UpdateReport) -> tuple[str, ...]:
    """The report for people."""
    receipt, release = report.installed.receipt, report.choice.release
    newest = named(release.release, release.version)
    return (
        f"installed: {receipt.variant} of {named(receipt.release, receipt.version)}",
        f"newest in channel {report.choice.channel}: {newest}",
        _verdict(report),
    )


def _verdict(report: UpdateReport) -> str:
    candidate = report.candidate
    if not report.newer:
        return "up to date"
    if candidate is None:
        return "no variant of it fits this machine and the request; see: tsuku-llm explain"
    variant = candidate.variant
    return f"would install {variant.name}, {size(variant.download_size)}; run: tsuku-llm update"
