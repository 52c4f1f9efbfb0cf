"""What an update would change."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render.revoked import revocation_data
from tsuku_llm.cli.render.text import named, origin, size, unattested
from tsuku_llm.operations.update import FitChange, UpdateReport


def data(report: UpdateReport) -> dict[str, Any]:
    """Return the report for programs."""
    receipt, release = report.installed.receipt, report.choice.release
    candidate = report.candidate
    return {
        "channel": report.choice.channel,
        "simulated": report.choice.hardware.simulated,
        "installed": {
            "release": receipt.release,
            "version": receipt.version,
            "variant": receipt.variant,
            "publisher": receipt.publisher,
            "repository": receipt.repository,
            "unattested": receipt.unattested,
            "revoked": report.revocation is not None,
            "revocation": report.revocation and revocation_data(report.revocation),
        },
        "newest": {
            "release": release.release,
            "version": release.version,
            "publisher": release.publisher,
            "repository": report.choice.catalog.repository.name,
            "unattested": release.unattested,
        },
        "available": report.newer,
        "variant": candidate.variant.name if candidate else None,
        "download_size": candidate.variant.download_size if candidate else None,
        "to_download": report.download,
        "replaced": report.replaced,
        "changes": list(report.changes),
        "not_compatible": {r.variant.name: r.reason.text for r in report.choice.selection.rejected},
    }


def lines(report: UpdateReport) -> tuple[str, ...]:
    """Return the report for people."""
    receipt, release = report.installed.receipt, report.choice.release
    installed = named(receipt.release, receipt.version)
    newest = named(release.release, release.version)
    repository = report.choice.catalog.repository.name
    return (
        (
            f"installed: {receipt.variant} of {installed}, "
            f"{origin(receipt.publisher, receipt.repository)}"
        ),
        *unattested(receipt.unattested),
        (
            f"newest in channel {report.choice.channel}: {newest}, "
            f"{origin(release.publisher, repository)}"
        ),
        *unattested(release.unattested),
        *_revoked(report),
        *_verdict(report),
    )


def _revoked(report: UpdateReport) -> tuple[str, ...]:
    if not report.revocation:
        return ()
    release = report.installed.receipt.release
    return (f"{release} was {report.revocation.summary}; serve does not start it",)


def _verdict(report: UpdateReport) -> tuple[str, ...]:
    if not report.newer:
        return (report.way_back or "up to date",)
    if report.candidate is None:
        return ("no variant of it fits this machine and the request; see: tsuku-llm explain",)
    return (_plan(report), *_replaced(report), *map(_change, report.changes))


def _plan(report: UpdateReport) -> str:
    assert report.candidate  # noqa: S101 - asked before
    variant = report.candidate.variant
    cost = f"{size(report.download)} to download"
    # Other versions, or an earlier run, have a part of it.
    if report.download != variant.download_size:
        cost += f" of {size(variant.download_size)}"
    return f"would install {variant.name}, {cost}; run: tsuku-llm update"


def _replaced(report: UpdateReport) -> tuple[str, ...]:
    name = report.installed.receipt.variant
    return (f"  instead of {name}: {report.replaced}",) if report.replaced else ()


def _change(change: FitChange) -> str:
    if change.fits:
        return f"  {change.variant} fits now; before: {change.reason}"
    return f"  {change.variant} does not fit any more: {change.reason}"
