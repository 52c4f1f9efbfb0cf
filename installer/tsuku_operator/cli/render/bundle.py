"""Bundles: what one has, or would have."""

from __future__ import annotations

from tsuku_llm.cli.terminal.text import size, table
from tsuku_operator.bundle.bundle import BundleReport


def lines(report: BundleReport) -> tuple[str, ...]:
    """Return what a bundle has, for people."""
    about, count = report.description, len(report.description.artifacts)
    holds = f"{len(about.builds)} builds in {count} archives of {about.repository}"
    first = {
        "planned": f"The bundle {report.path} would have {holds}, {size(report.size)}.",
        "created": f"Made the bundle {report.path}: {holds}, {size(report.size)}.",
        "shown": f"The bundle {report.path} is whole: {holds}, {size(report.size)}.",
    }[report.outcome]
    told = [first]
    rows = [(each.release, each.platform, each.variant, each.channel) for each in about.builds]
    told += table((("release", "platform", "variant", "channel"), *rows))
    for each in about.programs:
        needs = f", glibc {each.glibc} or newer" if each.glibc else ""
        told.append(f"  tsuku-llm {about.made_by} for {each.platform}, Python {each.python}{needs}")
    if not about.programs and report.outcome != "planned":
        told.append("  without the program: install it there first")
    told.append(f"  its signed metadata expires: {about.expires}")
    if report.sha256:
        told += [f"  sha256: {report.sha256}", f"  root of {about.repository}: {about.fingerprint}"]
    return tuple(told)
