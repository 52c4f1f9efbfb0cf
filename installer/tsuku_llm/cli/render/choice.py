"""A choice: every variant of the platform, and the fact that decided about it."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render.hardware import problems
from tsuku_llm.cli.render.revoked import revocation_data
from tsuku_llm.cli.render.text import named, origin, size, table, unattested
from tsuku_llm.operations.choice import Choice
from tsuku_llm.selection import Candidate, Rejection


def head(choice: Choice) -> dict[str, Any]:
    """Return what the decision was about, for programs."""
    selection = choice.selection
    best = selection.compatible[0].variant.name if selection.compatible else None
    return {
        "requested": selection.requested,
        "detected": list(selection.detected),
        "selected": best,
        "release": choice.release.release,
        "version": choice.release.version,
        "publisher": choice.release.publisher,
        "repository": choice.catalog.repository.name,
        "unattested": choice.release.unattested,
        "revoked": choice.revocation is not None,
        "revocation": choice.revocation and revocation_data(choice.revocation),
        "avoided": [revocation_data(each) for each in choice.avoided],
        "channel": choice.channel,
        "platform": choice.hardware.platform,
        "simulated": choice.hardware.simulated,
    }


def data(choice: Choice) -> dict[str, Any]:
    """Return the decision and every variant for programs."""
    selection = choice.selection
    variants = [
        *map(_compatible, selection.compatible),
        *map(_rejected, selection.rejected),
    ]
    problems = choice.hardware.all_problems
    return {**head(choice), "variants": variants, "problems": list(problems)}


def _compatible(candidate: Candidate) -> dict[str, Any]:
    variant = candidate.variant
    return {
        "variant": variant.name,
        "backend": variant.backend,
        "compatible": True,
        "reason": None,
        "code": None,
        "rank": candidate.rank,
        "device": candidate.gpu.name if candidate.gpu else None,
        "note": candidate.note,
        "download_size": variant.download_size,
    }


def _rejected(rejection: Rejection) -> dict[str, Any]:
    return {
        "variant": rejection.variant.name,
        "backend": rejection.variant.backend,
        "compatible": False,
        "reason": rejection.reason.text,
        "code": rejection.reason.slug,
        "rank": None,
        "device": None,
        "note": None,
        "download_size": rejection.variant.download_size,
    }


def lines(choice: Choice) -> tuple[str, ...]:
    """Return the decision and every variant for people."""
    selection = choice.selection
    # What fits comes first, by rank; then what does not fit.
    rows = [
        ("rank", "variant", "download", ""),
        *(
            (str(c.rank), c.variant.name, size(c.variant.download_size), verdict(c))
            for c in selection.compatible
        ),
        *(
            ("-", r.variant.name, size(r.variant.download_size), r.reason.text)
            for r in selection.rejected
        ),
    ]
    avoided = (f"not taken: {each.release}, {each.summary}" for each in choice.avoided)
    return (*title(choice), *avoided, decision(choice), *table(rows), *problems(choice.hardware))


def title(choice: Choice) -> tuple[str, ...]:
    """Return which release is for which machine, and whether its builder was verified."""
    release = choice.release
    revoked = f", {choice.revocation.summary}" if choice.revocation else ""
    return (
        (
            f"{named(release.release, release.version)} "
            f"{origin(release.publisher, choice.catalog.repository.name)}, "
            f"channel {choice.channel}, for {choice.hardware.platform}{revoked}"
        ),
        *unattested(release.unattested),
    )


def decision(choice: Choice) -> str:
    """Return the line that every start prints, even if nothing was selected."""
    return choice.line(next(iter(choice.selection.compatible), None))


def verdict(candidate: Candidate) -> str:
    """Return why a variant fits, and what to know of its first start."""
    fits = f"fits: {candidate.gpu.name}" if candidate.gpu else "fits: the processor"
    return f"{fits}; {candidate.note}" if candidate.note else fits
