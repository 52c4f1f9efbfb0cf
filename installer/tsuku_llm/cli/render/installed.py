"""The installed versions, the releases on offer, and what was removed or verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.cli.terminal.text import (
    computed,
    listed,
    named,
    origin,
    sentence,
    size,
    table,
    unattested,
)
from tsuku_llm.ground.errors import TamperedInstall, TsukuError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.backends import build_name

if TYPE_CHECKING:  # ``list`` does without most of what they import
    from tsuku_llm.steps.choosing.revocation import ReleaseStatus
    from tsuku_llm.steps.install.maintenance import Cleaned, Uninstalled
    from tsuku_llm.steps.install.verify import VersionCheck
    from tsuku_llm.steps.install.versions import Inventory, ListedBuild
    from tsuku_llm.steps.metadata.repository import OfferedReleases
    from tsuku_llm.steps.serve.fallback import NotedFailures
    from tsuku_llm.store.records.installed import Installed
    from tsuku_llm.store.records.updates import RolledBack


def lines(found: Inventory) -> tuple[str, ...]:
    """Return the content of the store for people; the active version has a star."""
    rows = [_row(version) for version in found.versions]
    nothing = () if rows else (f"nothing is installed; run: {TSUKU} install",)
    # The pointer is broken: say so, as the table then has no star.
    unusable = (found.unusable.message, found.unusable.hint) if found.unusable else ()
    return (
        *nothing,
        *table(rows, indent=0),
        *told_lines({each.build.id: each.told for each in found.versions}),
        *(
            f"{each.build.id}: chosen while a GPU could not be used: {'; '.join(each.withheld)}"
            for each in found.versions
            if each.withheld
        ),
        *rolled_back_lines(found.rolled_back),
        *unusable,
        *(f"damaged: {name}: {error.message}" for name, error in found.damaged.items()),
        *foreign_lines(found.foreign),
    )


def _row(version: ListedBuild) -> tuple[str, ...]:
    receipt = version.build.receipt
    return (
        "*" if version.active else " ",
        named(receipt.release, receipt.version),
        receipt.variant,
        receipt.channel,
        receipt.repository,
        receipt.installed_at,
        size(version.size),
        receipt.id,
        "unattested" if receipt.unattested else "unsigned" if receipt.unsigned else "",
        "previous" if version.previous else "",
    )


def foreign_lines(foreign: Sequence[Path]) -> tuple[str, ...]:
    """Return what this program did not make, one name per line."""
    return tuple(f"not of tsuku-llm, left alone: {path}" for path in foreign)


def active_lines(installed: Installed) -> tuple[str, ...]:
    """Return the version that is active now, for people."""
    return (sentence(f"{title(installed)} is active now"), *build_lines(installed))


def gone_back_lines(installed: Installed) -> tuple[str, ...]:
    """Return the version that a rollback has made active, for people."""
    return (sentence(f"went back to {title(installed)}"), *build_lines(installed))


OF_YOUR_OWN = "of your own"
"""What stands for the release of an unsigned build."""


def title(installed: Installed) -> str:
    """Return the build of a version as people know it."""
    receipt = installed.receipt
    return build_name(receipt.backend, receipt.release if not receipt.unsigned else OF_YOUR_OWN)


def build_lines(installed: Installed) -> tuple[str, ...]:
    """Return what a version is exactly, who built it, and where it is, for people."""
    receipt = installed.receipt
    if receipt.unsigned is not None:
        return (f"  {receipt.variant}, unsigned, from {receipt.unsigned}", f"  in {installed.tree}")
    return (
        (
            f"  {receipt.variant} of {named(receipt.release, receipt.version)}, "
            f"{origin(receipt.publisher, receipt.repository)}"
        ),
        *unattested(receipt.unattested),
        f"  in {installed.tree}",
    )


# --- revocations --------------------------------------------------------------------------


def told_lines(told: Mapping[str, ReleaseStatus]) -> tuple[str, ...]:
    """Return what is known of each release, and how to leave a revoked one, for people."""
    lines = tuple(f"{name}: {line}" for name, each in told.items() for line in each.lines)
    # Once for a repository, however many of its releases are installed.
    return lines + tuple(dict.fromkeys(each.stale for each in told.values() if each.stale))


def rolled_back_lines(marks: Sequence[RolledBack]) -> tuple[str, ...]:
    """Return the releases that failed on this machine, and how to take them again, for people."""
    if not marks:
        return ()
    lines = (f"rolled back here: {each.release} ({each.told})" for each in marks)
    return (*lines, f"an update passes these over; to try them again: {TSUKU} update --retry")


# --- releases on offer --------------------------------------------------------------------


def available_lines(found: OfferedReleases) -> tuple[str, ...]:
    """Return every release and its channels for people."""
    rows = [
        (
            ", ".join(each.entry.channels),
            each.entry.release,
            each.entry.version or "",
            each.entry.published,
            origin(each.entry.publisher, found.repository),
            ", ".join(word for word in ("unattested", "unmeasured") if getattr(each, word)),
            "; ".join(why.text for why in each.passed_over),
            "" if each.readable else "cannot be read",
        )
        for each in found.releases
    ]
    skipped = (f"{name} cannot be read: {why}" for name, why in found.skipped.items())
    return (*table(rows, indent=0), *skipped)


# --- what was removed ---------------------------------------------------------------------


def uninstalled_lines(report: Uninstalled, *, dry_run: bool) -> tuple[str, ...]:
    """Return an uninstall for people; ``dry_run``: what one would remove."""
    active = report.active
    nothing = f"nothing is active; to change that: {TSUKU} use VERSION, or install"
    if dry_run:
        nothing = "then nothing is active"
    return (
        *_removed(report.removed, dry_run=dry_run),
        *foreign_lines(report.foreign),
        f"active: {title(active)}" if active else nothing,
    )


def _removed(items: Sequence[str], *, dry_run: bool) -> tuple[str, ...]:
    heading = "Would remove" if dry_run else "Removed"
    return listed(heading, items) if items else ("There was nothing to remove.",)


def pruned_lines(report: Cleaned, *, dry_run: bool) -> tuple[str, ...]:
    """Return a prune for people; ``dry_run``: what one would remove."""
    pruned, caches = report.pruned, report.caches
    dropped = caches.size if caches and not caches.in_use else 0
    removed = (
        *pruned.removed,
        *(f"the log of the server {name}" for name in report.logs),
        *([f"the drivers' caches, {size(dropped)}"] if dropped else []),
    )
    return (
        *_removed(removed, dry_run=dry_run),
        *(f"kept {version}: it is in use" for version in pruned.in_use),
        *(["kept the drivers' caches: a server uses them"] if caches and caches.in_use else []),
        *foreign_lines(report.foreign),
    )


# --- what failed --------------------------------------------------------------------------


def fallback_lines(noted: NotedFailures) -> tuple[str, ...]:
    """Return the failures that are noted, or were until now, for people."""
    if not noted.failures:
        return ("no failure is noted: serve starts the active version",)
    if noted.forgotten:
        return tuple(f"forgotten: the failure of {each.id}" for each in noted.failures)
    found = [
        line
        for each in noted.failures
        for line in (
            f"{each.id} failed at {each.noted_at}: {each.reason}",
            f"  {each.instead} served instead",
        )
    ]
    if noted.current:
        return (*found, f"to try it again: {TSUKU} fallback --forget")
    return (*found, "noted with other drivers or variables: serve tries it again")


# --- what was verified --------------------------------------------------------------------


def verified_lines(verdicts: Sequence[VersionCheck]) -> tuple[str, ...]:
    """Return every version for people."""
    if not verdicts:
        return ("Nothing is installed.", f"to install a build: {TSUKU} install")
    lines = (line for verdict in verdicts for line in _verdict_lines(verdict))
    return (_verified_sentence(len(verdicts), len(_broken(verdicts))), *lines)


def _verified_sentence(checked: int, broken: int) -> str:
    versions = "1 version was" if checked == 1 else f"{checked} versions were"
    if not broken:
        return f"{versions} checked: every file is as it was installed."
    if checked == broken == 1:
        return f"{versions} checked: it is not as it was installed."
    are = "is not as it was" if broken == 1 else "are not as they were"
    return f"{versions} checked: {broken} {are} installed."


def _verdict_lines(verdict: VersionCheck) -> Iterator[str]:
    if not verdict.differences:
        yield f"{verdict.id}: intact, {_compared(verdict)}"
        yield from _computed_lines(verdict)
        return
    yield f"{verdict.id}: not as it was installed"
    yield from (f"  {difference}" for difference in verdict.differences)
    if verdict.not_signed:
        yield f"  {_compared(verdict)}"
    yield f"  to repair it: {verdict.repair}"
    yield from _computed_lines(verdict)


def _computed_lines(verdict: VersionCheck) -> Iterator[str]:
    """Yield how rightly a version computes now, if it was asked to."""
    found = verdict.computed
    if found is None:
        return
    if found.failure is None:
        yield from (f"  {line}" for line in computed(found.deviation, found.not_computed))
        return
    yield f"  {found.failure.message}"
    yield from (f"    {fact}" for fact in found.failure.facts)
    yield f"  {found.failure.hint}"


def _compared(verdict: VersionCheck) -> str:
    """Return what the files were compared with."""
    if verdict.receipt is None or verdict.not_signed is not None:
        return f"compared with its receipt only, which is not signed: {verdict.not_signed}"
    return f"as repository {verdict.receipt.repository} signed it"


def verified_failure(verdicts: Sequence[VersionCheck]) -> TsukuError | None:
    """Return the error about what is not intact, else about what computes wrongly, else None.

    Changed files come first: such a version is not started.
    """
    broken = _broken(verdicts)
    if broken:
        return TamperedInstall(
            f"{len(broken)} of {len(verdicts)} installed versions are not as they were installed",
            facts=tuple(verdict.id for verdict in broken),
            hint=f"run: {broken[0].repair}",
        )
    found = (each.computed.failure for each in verdicts if each.computed)
    return next((each for each in found if each), None)


def _broken(verdicts: Sequence[VersionCheck]) -> list[VersionCheck]:
    return [verdict for verdict in verdicts if verdict.differences]
