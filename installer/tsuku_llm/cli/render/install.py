"""The result of an install or its plan, and what an update would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsuku_llm.cli.render.choice import machine_name
from tsuku_llm.cli.render.installed import (
    OF_YOUR_OWN,
    build_lines,
    title,
)
from tsuku_llm.cli.terminal.text import (
    computed,
    named,
    origin,
    sentence,
    size,
    table,
    unattested,
    unmeasured,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.backends import build_name

if TYPE_CHECKING:
    from tsuku_llm.catalog.manifest import Variant
    from tsuku_llm.steps.install.install import InstallReport
    from tsuku_llm.steps.install.own_build import OwnBuildReport
    from tsuku_llm.steps.install.update import UpdateReport, UpToDate
    from tsuku_llm.store.records.installed import Installed


def lines(report: InstallReport) -> tuple[str, ...]:
    """Return the report for people: first what was done, in one sentence."""
    release, variant = report.choice.release, report.candidate.variant
    if report.installed:
        details = (*_computed(report.installed), f"  in {report.installed.tree}")
    else:
        archives = (
            line
            for each in variant.artifacts
            for line in (f"  {each.url} ({size(each.size)})", f"    sha256 {each.sha256}")
        )
        details = (*archives, f"  {_to_download(report.download, variant)}")
    now, before = report.choice.repository, report.bound_before
    bound = f"  the same build was of repository {before}; it is of {now} now"
    passed_over = table([(each.variant or "", each.told) for each in report.other_variants])
    return (
        _sentence(report),
        (
            f"  {variant.name} of {named(release.release, release.version)}, "
            f"{origin(release.publisher, now)}"
        ),
        *unattested(release.unattested),
        *unmeasured(release.unmeasured),
        f"  {_why(report)}",
        *details,
        *(() if before is None else (bound,)),
        *((f"  {report.candidate.note}",) if report.candidate.note else ()),
        *(("not taken:", *passed_over) if passed_over else ()),
    )


def _sentence(report: InstallReport) -> str:
    candidate = report.candidate
    build = build_name(candidate.variant.backend, report.choice.release.release)
    if report.outcome == "unchanged":
        return _unchanged(build)
    done = "would install" if report.outcome == "planned" else "installed"
    return sentence(f"{done} {build}{f' for {candidate.device}' if candidate.device else ''}")


def _unchanged(build: str) -> str:
    return sentence(f"{build} is installed already")


def _why(report: InstallReport) -> str:
    """Say why this variant was chosen."""
    choice, rank = report.choice, report.candidate.rank
    machine, requested = machine_name(choice), choice.selection.requested
    asked = "" if requested == "auto" else f" and the request {requested}"
    count = len(choice.selection.compatible)
    if count == 1:
        return f"the only variant that fits {machine}{asked}"
    place = "the best" if rank == 1 else f"number {rank}"
    return f"{place} of the {count} variants that fit {machine}{asked}"


def _to_download(left: int | None, variant: Variant) -> str:
    whole = variant.download_size
    # Other versions, or an earlier run, may have a part of it.
    return f"{size(left)} to download" + (f" of {size(whole)}" if left != whole else "")


def _computed(installed: Installed) -> tuple[str, ...]:
    receipt = installed.receipt
    return tuple(f"  {each}" for each in computed(receipt.deviation, receipt.not_computed))


def own_lines(report: OwnBuildReport) -> tuple[str, ...]:
    """Return what became of a build of the user's own, for people."""
    receipt = report.receipt
    build = build_name(receipt.backend, OF_YOUR_OWN)
    said = {"planned": f"would install {build}", "installed": f"installed {build}"}
    count = f"{report.files} files, {size(report.size)}"
    return (
        sentence(said.get(report.outcome, f"{build} is installed already")),
        f"  {receipt.variant}, unsigned, from {receipt.unsigned} ({count})",
        *(
            (*_computed(report.installed), f"  in {report.installed.tree}")
            if report.installed
            else ()
        ),
    )


def next_step(report: InstallReport | OwnBuildReport) -> str:
    """Return what a user may want to do next; empty after a dry run."""
    return f"start it: {TSUKU} serve -m MODEL.gguf" if report.installed else ""


# --- an update ----------------------------------------------------------------------------


def up_to_date_lines(found: UpToDate) -> tuple[str, ...]:
    """Return what is active after an update that changed nothing, for people."""
    installed = found.report.installed
    passed_over = table([(each.variant or "", each.told) for each in found.passed_over])
    first = _unchanged(title(installed))
    if installed.receipt.unsigned is not None:
        first = _verdict(found.report)
    return (
        first,
        *build_lines(installed),
        *((f"  it does not fit this machine now: {found.obstacle}",) if found.obstacle else ()),
        *(("not in use:", *passed_over) if passed_over else ()),
        *_better(found.report),
    )


def _better(report: UpdateReport) -> tuple[str, ...]:
    """Return a line about a variant of the installed release that would be better now."""
    better = report.better
    if better is None:
        return ()
    what = f"{better.variant.name} would be chosen now" + (
        f" ({better.device})" if better.device else ""
    )
    if report.over:
        return (f"{report.replaced}; {what}; run: {TSUKU} update",)
    return (f"{what}; to move to it: {TSUKU} install",)


def update_lines(report: UpdateReport) -> tuple[str, ...]:
    """Return the report for people: first whether there is an update, in one sentence."""
    receipt, release = report.installed.receipt, report.choice.release
    installed = named(receipt.release, receipt.version)
    newest = named(release.release, release.version)
    repository = report.choice.repository
    source = origin(receipt.publisher, receipt.repository)
    if receipt.unsigned is not None:
        source = f"unsigned, from {receipt.unsigned}"
    revoked = report.revocation.summary if report.revocation else ""
    return (
        _verdict(report),
        f"installed: {receipt.variant} of {installed}, {source}",
        *unattested(receipt.unattested),
        f"{_sought(report)}: {newest}, {origin(release.publisher, repository)}",
        *unattested(release.unattested),
        *unmeasured(release.unmeasured),
        *((f"{receipt.release} was {revoked}; serve does not start it",) if revoked else ()),
        *_plan(report),
    )


def _sought(report: UpdateReport) -> str:
    """Say what the other release is: the newest that may be taken, or the one that is named."""
    choice = report.choice
    if choice.kept_by:
        return f"named by {choice.kept_by}"
    young = any(each.slug == "young" for each in choice.passed_over)
    newest = "newest that is old enough" if young else "newest"
    return f"{newest} in channel {choice.channel}"


def _verdict(report: UpdateReport) -> str:
    """Say in one sentence whether there is an update."""
    installed, release = title(report.installed), report.choice.release.release
    if report.installed.receipt.unsigned is not None:
        return sentence(f"{installed} is active, and update leaves it alone")
    if candidate := report.candidate:
        # Otherwise it is a better variant of the installed release.
        release = release if report.newer else report.installed.receipt.release
        return sentence(f"an update would install {build_name(candidate.variant.backend, release)}")
    if report.newer:
        return f"{release} is newer, and no variant of it fits this machine and the request."
    if report.revocation:
        return sentence(f"{installed} is revoked, and there is nothing newer")
    return sentence(f"{installed} is up to date")


def _plan(report: UpdateReport) -> tuple[str, ...]:
    if not report.newer:
        return (*((report.way_back,) if report.way_back else ()), *_better(report))
    if report.candidate is None:
        return (f"what each variant lacks: {TSUKU} explain",)
    variant, name = report.candidate.variant, report.installed.receipt.variant
    return (
        f"{variant.name}, {_to_download(report.download, variant)}; run: {TSUKU} update",
        *((f"  instead of {name}: {report.replaced}",) if report.replaced else ()),
        *(
            f"  {each.variant} fits now; before: {each.reason}"
            if each.fits
            else f"  {each.variant} does not fit any more: {each.reason}"
            for each in report.changes
        ),
    )
