"""The variants that fit a machine, best first: the order among what ``fitting`` lets pass.

Pure: no host, no files, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from tsuku_llm.backends import NAMES, TABLE, facts_of
from tsuku_llm.cards import CPU_RANK, device_ranks
from tsuku_llm.errors import SelectionError, UnknownRequest
from tsuku_llm.fitting import (
    BY_CARD,
    BY_DRIVER,
    Reason,
    compiles_at_first_start,
    usable_gpus,
    why_not,
)
from tsuku_llm.hardware import Gpu, Hardware
from tsuku_llm.manifest import Platform, Release, Variant

REQUESTS: tuple[str, ...] = ("auto", "gpu", *NAMES)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that fits; ``gpu`` is the best device it can use, None for the CPU."""

    variant: Variant
    gpu: Gpu | None
    rank: int

    @property
    def note(self) -> str | None:
        """A warning that the first start is slow: the driver compiles PTX, which takes minutes."""
        if self.gpu is None or not compiles_at_first_start(self.variant, self.gpu):
            return None
        capability = self.gpu.compute_capability
        return f"the first start is slow: it compiles for compute capability {capability}"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A variant that does not fit, and the one fact that decided."""

    variant: Variant
    reason: Reason


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request: a word of ``REQUESTS`` or a variant's name.

    ``prefer`` is a policy name of the manifest or the user's own order of backends.
    """

    backend: str = "auto"
    prefer: str | tuple[str, ...] = "portable"


@dataclass(frozen=True, slots=True)
class Selection:
    """Every variant of a platform: ``compatible`` best first, and ``rejected``.

    ``idle`` are the names of GPUs that are better than the device of the best candidate, and that
    no variant that fits can use.
    """

    requested: str
    detected: tuple[str, ...]
    compatible: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...] = field(default=())
    idle: tuple[str, ...] = ()

    @property
    def selected(self) -> Candidate:
        """The best candidate.

        Raises ``SelectionError`` with every reason if there is none.
        """
        if self.compatible:
            return self.compatible[0]
        # ``chain.remedy`` knows what helps; it imports this module.
        raise SelectionError(
            f"no variant fits this machine and the request {self.requested!r}",
            facts=tuple(f"{r.variant.name}: {r.reason.text}" for r in self.rejected),
            hint="see: tsuku-llm doctor",
        )

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every variant: those that fit best first, then the others."""
        fitting = (each.variant for each in self.compatible)
        return (*fitting, *(each.variant for each in self.rejected))

    def candidate(self, name: str) -> Candidate | None:
        """Return the compatible variant of that name."""
        return next((each for each in self.compatible if each.variant.name == name), None)

    def nearest(self, backend: str) -> Variant | None:
        """Return the best variant of a backend that fits, else the one that lacks the least.

        That is the one that the smallest update of the driver would let run.
        """
        fitting = (each.variant for each in self.compatible if each.variant.backend == backend)
        rejected = (each for each in self.rejected if each.variant.backend == backend)
        nearest = min(rejected, key=_lack, default=None)
        return next(fitting, nearest.variant if nearest else None)


def select(release: Release, hardware: Hardware, request: Request) -> Selection:
    """Sort the platform's variants into those that fit, best first, and the others.

    Raises ``UnknownRequest`` if the release has nothing for the platform or if the request names
    neither a backend nor a variant.
    """
    platform = platform_of(release, hardware)
    require_known(request.backend, (variant.name for variant in platform.variants))
    usable: dict[str, tuple[Gpu, ...]] = {}
    rejected: list[Rejection] = []
    for variant in platform.variants:
        reason = not_requested(variant, request.backend) or why_not(variant, hardware)
        if reason is None:
            usable[variant.name] = usable_gpus(variant, hardware)
        else:
            rejected.append(Rejection(variant, reason))
    # One order for all variants, so that a device has the same rank whichever driver lists it.
    devices = device_ranks(gpu for gpus in usable.values() for gpu in gpus)
    fitting = [
        (variant, _best(usable[variant.name], devices))
        for variant in platform.variants
        if variant.name in usable
    ]
    order = _preference(platform, request.prefer)
    positions = {variant.name: index for index, variant in enumerate(platform.variants)}

    def rank(pair: tuple[Variant, Gpu | None]) -> tuple[tuple[int, int], int, bool, Version, int]:
        variant, gpu = pair
        return (
            # First the device: a small card never wins because of its API. The CPU is the last.
            devices[gpu] if gpu else (CPU_RANK, 0),
            # Then the policy's order of backends, then what starts at once.
            order(variant),
            compiles_at_first_start(variant, gpu),
            # If the driver does not tell its version, the oldest toolkit most likely runs.
            _unchecked_toolkit(variant, hardware),
            # At last the manifest's own order.
            positions[variant.name],
        )

    fitting.sort(key=rank)
    # A request for one backend leaves the devices of the others out on purpose.
    any_gpu = bool(fitting) and request.backend in ("auto", "gpu")
    return Selection(
        requested=request.backend,
        detected=detected(hardware),
        compatible=tuple(Candidate(v, gpu, rank) for rank, (v, gpu) in enumerate(fitting, 1)),
        rejected=tuple(rejected),
        idle=_idle(fitting[0][1], hardware) if any_gpu else (),
    )


def _lack(rejection: Rejection) -> tuple[bool, Version]:
    """Order rejected variants of one backend; equal ones stay in the manifest's order."""
    cuda, slug = rejection.variant.requires.cuda, rejection.reason.slug
    toolkit = cuda.toolkit if cuda and slug in BY_DRIVER else "0"
    return slug in BY_CARD, Version(toolkit)


def next_after(
    selection: Selection, failed: Collection[str], *, gpu_only: bool = False
) -> tuple[Candidate, ...]:
    """Return the variants ranked behind the last of these failed ones, best first.

    If none of the failed ones is compatible (any more), return all that are. ``gpu_only`` leaves
    out the CPU.
    """
    ranks = [each.rank for each in selection.compatible if each.variant.name in failed]
    behind = max(ranks, default=0)
    return tuple(
        each
        for each in selection.compatible
        if each.rank > behind and not (gpu_only and each.variant.backend == "cpu")
    )


def platform_of(release: Release, hardware: Hardware) -> Platform:
    """Return the release's entry for this machine.

    Raises ``UnknownRequest``, which lists the platforms of the release.
    """
    try:
        return release.platforms[hardware.platform]
    except KeyError:
        raise UnknownRequest(
            f"release {release.release} has no build for {hardware.platform}",
            facts=(f"it has builds for: {', '.join(sorted(release.platforms))}",),
            hint="choose another release or channel: tsuku-llm list --available",
        ) from None


def require_known(backend: str, variants: Iterable[str]) -> None:
    """Check that a request is a backend or one of these variants.

    Raises ``UnknownRequest`` if it is neither.
    """
    names = tuple(variants)
    if backend not in REQUESTS and backend not in names:
        raise UnknownRequest(
            f"there is no backend or variant {backend!r}",
            facts=(f"backends: {', '.join(REQUESTS)}", f"variants here: {', '.join(names)}"),
            hint="tsuku-llm config set llm.backend auto",
        )


def detected(hardware: Hardware) -> tuple[str, ...]:
    """Return the backends for which this machine has a hardware device, and always the CPU."""
    return tuple(
        backend.name
        for backend in TABLE
        if not backend.api or hardware.api(backend.api).hardware_gpus
    )


def not_requested(variant: Variant, backend: str) -> Reason | None:
    """Tell why the user's request excludes a variant on any machine; None if it does not."""
    if backend in ("auto", variant.backend, variant.name):
        return None
    if backend == "gpu" and variant.backend != "cpu":
        return None
    return Reason("not-requested", f"{backend} was requested, this is {variant.backend}")


def best_gpu(variant: Variant, hardware: Hardware) -> Gpu | None:
    """Return the device that a compatible variant should use, None for the CPU.

    The rank of ``device_ranks`` decides, then the most memory, then the driver's order.
    """
    gpus = usable_gpus(variant, hardware)
    return _best(gpus, device_ranks(gpus))


def _best(gpus: Iterable[Gpu], ranks: Mapping[Gpu, tuple[int, int]]) -> Gpu | None:
    return min(gpus, key=lambda gpu: (ranks[gpu], -(gpu.memory or 0), gpu.index), default=None)


def _idle(best: Gpu | None, hardware: Hardware) -> tuple[str, ...]:
    """Return the names of the GPUs that a driver lists and that rank before the chosen device."""
    listed = [gpu for api in hardware.apis for gpu in api.hardware_gpus]
    ranks = device_ranks([*listed, *([best] if best else [])])
    chosen = ranks[best] if best else (CPU_RANK, 0)
    better = {(ranks[gpu], gpu.name) for gpu in listed if ranks[gpu] < chosen}
    # Several drivers list one card by the same name.
    return tuple(dict.fromkeys(name for _, name in sorted(better)))


def _unchecked_toolkit(variant: Variant, hardware: Hardware) -> Version:
    """Return the toolkit of a CUDA build that no driver's version was compared with, else 0."""
    cuda = variant.requires.cuda
    if cuda is None or hardware.api(facts_of(variant.backend).api).version is not None:
        return Version("0")
    return Version(cuda.toolkit)


def _preference(platform: Platform, prefer: str | tuple[str, ...]) -> Callable[[Variant], int]:
    order = platform.preference.get(prefer, ()) if isinstance(prefer, str) else prefer
    return lambda variant: order.index(variant.backend) if variant.backend in order else len(order)
