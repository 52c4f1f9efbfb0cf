"""What the chain is about, where the user left that open."""

from __future__ import annotations

from tsuku_llm.chain.links import Subject
from tsuku_llm.hardware import Api, Hardware
from tsuku_llm.manifest import Variant
from tsuku_llm.selection import API_OF_BACKEND, BACKENDS, Selection, best_gpu


def subject_of(
    requested: str, selection: Selection, hardware: Hardware, active: tuple[str, str] | None
) -> Subject:
    """The backend or variant asked for; else the GPU build in use; else the best for a GPU.

    ``selection`` is of every variant, whatever is requested; ``active`` is the backend and
    the variant of the active version.
    """
    named = {variant.name: variant for variant in selection.variants}
    if requested in named:
        return _of(requested, named[requested], hardware)
    backend = _backend(requested, selection, hardware, active)
    variant = next((each for each in named.values() if each.backend == backend), None)
    if active and active[0] == backend:
        variant = named.get(active[1], variant)
    return _of(backend, variant, hardware) if variant else Subject(backend, backend, None)


def _of(wanted: str, variant: Variant, hardware: Hardware) -> Subject:
    return Subject(wanted, variant.backend, variant, best_gpu(variant, hardware))


def _backend(
    requested: str, selection: Selection, hardware: Hardware, active: tuple[str, str] | None
) -> str:
    if requested in BACKENDS:
        return requested
    if active and active[0] != "cpu":
        return active[0]
    fitting = (candidate.variant.backend for candidate in selection.compatible)
    best = next((backend for backend in fitting if backend != "cpu"), None)
    return best or _most_promising(selection, hardware) or _without_gpu(requested)


def _without_gpu(requested: str) -> str:
    """A platform that has no build for a GPU can be asked for one all the same."""
    return "gpu" if requested == "gpu" else "cpu"


def _most_promising(selection: Selection, hardware: Hardware) -> str | None:
    """Where none fits, the GPU backend that came furthest; the manifest's first among equals."""
    backends = [each.backend for each in selection.variants if each.backend != "cpu"]
    return max(
        backends, key=lambda each: _promise(hardware.api(API_OF_BACKEND[each])), default=None
    )


def _promise(api: Api) -> tuple[bool, bool, bool, bool]:
    problem = api.problem
    return (
        bool(api.hardware_gpus),
        problem is not None and problem.transient,
        problem is not None,
        api.library is not None,
    )
