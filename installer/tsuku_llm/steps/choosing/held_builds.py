"""The builds that a bundle holds: an install from one chooses among these only. Pure.

The metadata in a bundle names every release of its repository, because it is signed as a whole. Its
archives are a few of them. ``held`` are their digests, None if any archive can be downloaded.
"""

from __future__ import annotations

from dataclasses import replace

from tsuku_llm.catalog.manifest import Variant
from tsuku_llm.choose.fitting import Reason
from tsuku_llm.choose.selection import Candidate, Rejection, Selection
from tsuku_llm.ground.errors import WrongBundle
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.choosing.passing_over import Bounds, Offered, why_passed_over


def digests_of(variant: Variant) -> tuple[str, ...]:
    """Return the digests of a variant's archives."""
    return tuple(artifact.sha256 for artifact in variant.artifacts)


def held_only(selection: Selection, release: str, bounds: Bounds) -> Selection:
    """Return a selection in which a variant that is not there does not fit."""
    fitting, missing = list[Candidate](), list[Rejection]()
    for each in selection.compatible:
        variant = each.variant
        found = Offered(release, variant=variant.name, builds=(digests_of(variant),))
        if why := why_passed_over(found, bounds):
            missing.append(Rejection(variant, Reason(why[0].slug, f"it fits, but {why[0].text}")))
        else:
            fitting.append(each)
    return replace(
        selection,
        compatible=tuple(replace(each, rank=rank) for rank, each in enumerate(fitting, 1)),
        rejected=(*missing, *selection.rejected),
    )


def nothing_held(what: str, facts: tuple[str, ...] = ()) -> WrongBundle:
    """Return the error for a bundle that lacks what this machine needs."""
    return WrongBundle(
        f"the bundle has {what}",
        facts=facts,
        hint=f"see what it has: {TSUKU} bundle show FILE; a bundle for this machine is made with "
        f"what probe --record MACHINE.json writes here: {TSUKU} bundle create FILE --hardware "
        "MACHINE.json",
    )
