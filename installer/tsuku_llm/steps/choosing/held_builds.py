"""The builds that a bundle holds: an install from one chooses among these only. Pure.

The metadata in a bundle names every release of its repository, because it is signed as a whole. Its
archives are a few of them. ``held`` are their digests, None if any archive can be downloaded.
"""

from __future__ import annotations

from dataclasses import replace

from tsuku_llm.catalog.manifest import Release, Variant
from tsuku_llm.choose.fitting import Reason
from tsuku_llm.choose.selection import Candidate, Rejection, Selection
from tsuku_llm.ground.errors import WrongBundle

_NOT_HELD = Reason("not-in-bundle", "it fits, but the bundle does not have it")


def holds(held: frozenset[str], variant: Variant) -> bool:
    """Tell whether all archives of a variant are there."""
    return held.issuperset(artifact.sha256 for artifact in variant.artifacts)


def is_held(held: frozenset[str] | None, release: Release, platform: str) -> bool:
    """Tell whether a release has a build for a platform that can be had."""
    if held is None:
        return True
    offered = release.platforms.get(platform)
    return offered is not None and any(holds(held, each) for each in offered.variants)


def held_only(selection: Selection, held: frozenset[str]) -> Selection:
    """Return a selection in which a variant that is not there does not fit."""
    fitting, missing = list[Candidate](), list[Candidate]()
    for each in selection.compatible:
        (fitting if holds(held, each.variant) else missing).append(each)
    return replace(
        selection,
        compatible=tuple(replace(each, rank=rank) for rank, each in enumerate(fitting, 1)),
        rejected=(*(Rejection(each.variant, _NOT_HELD) for each in missing), *selection.rejected),
    )


def nothing_held(what: str, facts: tuple[str, ...] = ()) -> WrongBundle:
    """Return the error for a bundle that lacks what this machine needs."""
    return WrongBundle(
        f"the bundle has {what}",
        facts=facts,
        hint="see what it has: tsuku-llm bundle show FILE; a bundle for this machine is made with "
        "what probe --record MACHINE.json writes here: tsuku-llm bundle create FILE --hardware "
        "MACHINE.json",
    )
