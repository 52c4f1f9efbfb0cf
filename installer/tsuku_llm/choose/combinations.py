"""The builds that can be made of two signed ones, for GPUs of two makers in one server.

A maker's own interface (CUDA, ROCm) lists only its own GPUs, and Vulkan those of all makers. Both
builds of one release come from the same source, so the server of the one loads the other's plugin.
``archive.composing`` decides which files the tree has. Pure: no host, no files, no network.
"""

from __future__ import annotations

from collections.abc import Iterator

from tsuku_llm.catalog.manifest import Platform, Variant
from tsuku_llm.choose.fitting import SMALL_CARD, usable_gpus
from tsuku_llm.ground.errors import UnknownRequest
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.backends import JOIN, TABLE, facts_of, maker_in, meaning, names_parts
from tsuku_llm.machine.hardware import Gpu, GpuKind, Hardware

JOINED_WORDS: tuple[str, ...] = tuple(
    f"{row.name}{JOIN}{other}" for row in TABLE for other in row.joins
)
"""The words for a build that two backends make, with the maker's own first."""


def combinations(platform: Platform) -> Iterator[Variant]:
    """Yield every combined variant of a platform, in the manifest's order.

    Builds with different servers or fixed arguments cannot be combined: one process has one of
    each. A name with "+" that a release file has is that variant's own, and no part of another.
    """
    plain = [each for each in platform.variants if JOIN not in each.name]
    for first in plain:
        for second in plain:
            if (
                second.backend in facts_of(first.backend).joins
                and (first.server, first.arguments) == (second.server, second.arguments)
                and not (first.requires.unknown or second.requires.unknown)
                and platform.variant(f"{first.name}{JOIN}{second.name}") is None
            ):
                yield _combined(first, second)


def _combined(first: Variant, second: Variant) -> Variant:
    # An archive that both builds have, such as a runtime, is one archive.
    artifacts = {each.sha256: each for each in (*second.artifacts, *first.artifacts)}
    ordered = dict.fromkeys(each.sha256 for each in (*first.artifacts, *second.artifacts))
    return Variant(
        name=f"{first.name}{JOIN}{second.name}",
        backend=f"{first.backend}{JOIN}{second.backend}",
        server=first.server,
        requires=first.requires,
        artifacts=tuple(artifacts[digest] for digest in ordered),
        arguments=first.arguments,
        parts=(first, second),
    )


def asked_for(word: str, platform: Platform) -> tuple[Variant, ...]:
    """Return the combined variants that a word with "+" names.

    Raises ``UnknownRequest`` if the platform lacks one of the builds, or they cannot be combined.
    """
    made = tuple(combinations(platform))
    found = tuple(
        each for each in made if names_parts(word, [(p.name, p.backend) for p in each.parts])
    )
    if found:
        return found
    there = {text for each in platform.variants for text in (each.name, each.backend)}
    named = meaning(word).split(JOIN)
    missing = [part for part in named if part not in there]
    instead = [each.name for each in made] or [part for part in named if part in there]
    raise UnknownRequest(
        f"there is no {missing[0]} build to combine for {platform.name}"
        if missing
        else f"the builds {word} cannot be combined",
        facts=(
            f"builds: {', '.join(each.name for each in platform.variants)}",
            f"can be combined: {', '.join(each.name for each in made) or 'none'}",
        ),
        hint=f"take another build: {TSUKU} install --backend {(*instead, 'auto')[0]}",
    )


def gained(variant: Variant, hardware: Hardware) -> tuple[Gpu, ...]:
    """Return the GPUs that a combined variant uses and its first part alone does not list.

    Only discrete cards that can hold a model count, and only those whose names tell another maker
    than the first part's: a start uses no others (``launch.plan.devices``,
    ``launch.memory.placement``). Two drivers may list one card; it is returned once.
    """
    first, second = variant.parts
    if all(gpu.kind is not GpuKind.DISCRETE for gpu in usable_gpus(first, hardware)):
        return ()
    found: dict[str | int, Gpu] = {}
    for gpu in usable_gpus(second, hardware):
        if (
            gpu.kind is GpuKind.DISCRETE
            and (gpu.memory is None or gpu.memory >= SMALL_CARD)
            and maker_in(gpu.name) not in {None, *facts_of(first.backend).vendors}
        ):
            found.setdefault(gpu.uuid or gpu.index, gpu)
    return tuple(found.values())
