"""What a machine is and would get, as features for the labels of a Kubernetes node.

Node Feature Discovery reads files of lines ``key=value`` from its folder ``features.d`` and makes
them labels of the node. A label's value has at most 63 characters: letters, digits, dashes, dots
and underscores between a letter or digit on each end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tsuku_llm.machine.hardware import ApiState, Gpu

if TYPE_CHECKING:
    from tsuku_llm.steps.choosing.choice import Choice

PREFIX = "tsuku.dev/llm-"
"""The namespace and beginning of each key: without one it would be Node Feature Discovery's."""

_LONGEST = 63
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_GIB = 1 << 30


def lines(choice: Choice) -> tuple[str, ...]:
    """Return the lines of a feature file: what would be installed, its GPU, and each problem."""
    return tuple(f"{PREFIX}{key}={value}" for key, value in _features(choice))


def _features(choice: Choice) -> Iterator[tuple[str, str]]:
    hardware = choice.hardware
    best = next(iter(choice.selection.compatible), None)
    yield "platform", value(hardware.platform)
    yield "release", value(choice.release.release)
    yield "variant", value(best.variant.name if best else "none")
    yield "backend", value(best.variant.backend if best else "none")
    if best and best.gpu:
        of_api = hardware.api(best.gpu.api).hardware_gpus
        yield "gpu.count", str(len(of_api))
        yield from _of_gpu(best.gpu)
    for api in hardware.apis:
        if api.state is ApiState.OK:
            yield from (
                (f"{api.name}.{key}", value(text))
                for key, text in (("version", api.version), ("driver", api.driver))
                if text
            )
    # The reasons have names, which are documented; their texts are too long for a label.
    for slug in dict.fromkeys(problem.slug for problem in hardware.all_problems):
        yield f"problem.{slug}", "true"


def _of_gpu(gpu: Gpu) -> Iterator[tuple[str, str]]:
    yield "gpu.name", value(gpu.name)
    if gpu.memory is not None:
        yield "gpu.memory-gib", str(gpu.memory // _GIB)
    if gpu.compute_capability:
        yield "gpu.compute-capability", value(gpu.compute_capability)
    if gpu.gfx:
        yield "gpu.gfx", value(gpu.gfx)


def value(text: str) -> str:
    """Return a text as the value of a label: foreign characters become dashes."""
    return _FOREIGN.sub("-", text)[:_LONGEST].strip("-._")
