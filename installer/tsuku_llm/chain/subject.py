"""The choice of the chain's subject if the user names none."""

from __future__ import annotations

from tsuku_llm.chain.links import Subject
from tsuku_llm.hardware import Api, Hardware
from tsuku_llm.manifest import Variant
from tsuku_llm.selection import API_OF_BACKEND, BACKENDS, Selection, best_gpu


def subject_of(
    requested: str, selection: Selection, hardware: Hardware, active: tuple[str, str] | None
) -> Subject:
    """Choose the subject: what is requested, else the GPU build in use, else the best one.

    The best one is the best variant for a GPU. ``selection`` covers every variant, also those
    that are not requested. ``active`` is the backend and the variant of the active version.
    """
    # A variant that the user names counts as it is.
    named = {variant.name: variant for variant in selection.variants}
    if requested in named:
        return _of(requested, named[requested], hardware)
    backend = _backend(requested, selection, hardware, active)
    variant = next((each for each in named.values() if each.backend == backend), None)
    # Among the backend's variants, the installed one is the one to examine.
    if active and active[0] == backend:
        variant = named.get(active[1], variant)
    return _of(backend, variant, hardware) if variant else Subject(backend, backend, None)


def _of(requested: str, variant: Variant, hardware: Hardware) -> Subject:
    return Subject(requested, variant.backend, variant, best_gpu(variant, hardware))


def _backend(
    requested: str, selection: Selection, hardware: Hardware, active: tuple[str, str] | None
) -> str:
    if requested in BACKENDS:
        return requested
    # A CPU build in use does not tell which GPU backend to examine.
    if active and active[0] != "cpu":
        return active[0]
    fitting = (candidate.variant.backend for candidate in selection.compatible)
    best = next((backend for backend in fitting if backend != "cpu"), None)
    return best or _most_promising(selection, hardware) or _without_gpu(requested)


def _without_gpu(requested: str) -> str:
    """Choose on a platform without GPU builds: "gpu" if the user asks for one, else "cpu"."""
    return "gpu" if requested == "gpu" else "cpu"


def _most_promising(selection: Selection, hardware: Hardware) -> str | None:
    """Choose the GPU backend that came furthest if none fits; among equals, the first one.

    The order is the manifest's.
    """
    backends = [each.backend for each in selection.variants if each.backend != "cpu"]
    return max(
        backends, key=lambda each: _promise(hardware.api(API_OF_BACKEND[each])), default=None
    )


def _promise(api: Api) -> tuple[bool, bool, bool, bool]:
    # In this order: it lists a device; its fault goes away; its fault is known, so the user
    # gets a fix; its library is installed.
    problem = api.problem
    return (
        bool(api.hardware_gpus),
        problem is not None and problem.transient,
        problem is not None,
        api.library is not None,
    )
