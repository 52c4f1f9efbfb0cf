"""The variants that fit a machine, best first: the order among what ``fitting`` lets pass.

Pure: no host, no files, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from packaging.version import Version

from tsuku_llm.catalog.manifest import Platform, Release, Variant
from tsuku_llm.choose.combinations import JOINED_WORDS, asked_for, combinations, gained
from tsuku_llm.choose.fitting import (
    BY_CARD,
    BY_DRIVER,
    BY_SYSTEM,
    CPU_RANK,
    Reason,
    compiles_at_first_start,
    device_ranks,
    is_slower_than_the_cpu,
    usable_gpus,
    why_not,
)
from tsuku_llm.ground.errors import SelectionError, UnknownRequest, did_you_mean
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.machine.backends import (
    ELSEWHERE,
    JOIN,
    NAMES,
    REQUESTS,
    TABLE,
    VENDORS,
    WORDS,
    backend_of_api,
    backends_of,
    facts_of,
    meaning,
    parts_of,
)
from tsuku_llm.machine.hardware import Gpu, GpuKind, Hardware


@documented(by="fit")
@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that fits; ``gpu`` is the best device it can use, None for the CPU.

    ``cards`` are the names of the cards of two makers that a combined variant uses; empty for any
    other variant, and where it uses those of one maker.
    """

    variant: Variant
    gpu: Gpu | None
    rank: int
    cards: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """What it computes on, in words; None for the CPU."""
        return " and ".join(self.cards) or (self.gpu.name if self.gpu else None)

    @property
    def note(self) -> str | None:
        """A warning: a slow GPU, or a slow first start, as the driver compiles PTX for minutes."""
        if self.gpu and is_slower_than_the_cpu(self.gpu):
            return "slower than the processor, by reports"
        if self.gpu is None or not compiles_at_first_start(self.variant, self.gpu):
            return None
        capability = self.gpu.compute_capability
        return f"the first start is slow: it compiles for compute capability {capability}"

    @property
    def fit(self) -> VariantFit:
        """What people and programs are told of it."""
        return VariantFit.of(self)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A variant that does not fit, and the one fact that decided."""

    variant: Variant
    reason: Reason


@dataclass(frozen=True, slots=True)
class VariantFit:
    """A variant of a release on this machine; ``reason`` and its ``code`` are None if it fits.

    ``rank`` is 1 for the best one that fits. ``device`` is the GPU that it uses, None for the
    processor. ``download_size`` is in bytes. ``state`` is ``installed`` or ``active`` for exactly
    this build, None if it is neither, or was not asked for.
    """

    variant: str
    backend: str
    compatible: bool
    reason: str | None
    code: str | None
    rank: int | None
    device: str | None
    note: str | None
    download_size: int | None
    state: str | None = None

    @classmethod
    def of(cls, judged: Candidate | Rejection, state: str | None = None) -> VariantFit:
        """Return the verdict about one variant."""
        found = judged if isinstance(judged, Candidate) else None
        why = judged.reason if isinstance(judged, Rejection) else None
        return cls(
            judged.variant.name,
            judged.variant.backend,
            compatible=why is None,
            reason=why.text if why else None,
            code=why.slug if why else None,
            rank=found.rank if found else None,
            device=found.device if found else None,
            note=found.note if found else None,
            download_size=judged.variant.download_size,
            state=state,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request: a variant's name, or a word that ``meaning`` turns into a request.

    ``prefer`` is a policy name of the manifest or the user's own order of backends. With
    ``combine``, builds of two makers are combined where that uses another card.
    """

    backend: str = "auto"
    prefer: str | tuple[str, ...] = "portable"
    combine: bool = False


@dataclass(frozen=True, slots=True)
class CombinedOffer:
    """A combined variant that would help.

    ``own`` are the cards that it uses through their maker's interface, ``others`` the cards of
    other makers.
    """

    variant: str
    own: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def tip(self) -> str:
        """The offer in one line, with the command that takes it."""
        cards = f"{', '.join(self.own)} through its maker's interface, and {', '.join(self.others)}"
        take = f"{TSUKU} install --backend {self.variant}"
        return f"GPUs of two makers: {self.variant} would use {cards}: {take}"


@documented("requested", "detected", "idle", "combined")
@dataclass(frozen=True, slots=True)
class Selection:
    """Every variant of a platform: ``compatible`` best first, and ``rejected``.

    ``idle`` are the names of GPUs that are better than the device of the best candidate, and that
    no variant that fits can use. ``combined`` is a combined variant that was not requested, and
    would use the cards of two makers, those of one through its own interface.
    """

    requested: str
    detected: tuple[str, ...]
    compatible: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...] = field(default=())
    idle: tuple[str, ...] = ()
    combined: CombinedOffer | None = None

    @property
    def selected(self) -> Candidate:
        """The best candidate.

        Raises ``SelectionError`` with every reason if there is none.
        """
        if self.compatible:
            return self.compatible[0]
        # ``choose.chain.judging`` knows what helps; it imports this module.
        raise SelectionError(
            f"no variant fits this machine and the request {self.requested!r}",
            facts=tuple(f"{r.variant.name}: {r.reason.text}" for r in self.rejected),
            hint=f"see: {TSUKU} doctor",
        )

    @property
    def tips(self) -> tuple[str, ...]:
        """What would help besides the variants that were requested."""
        return (self.combined.tip,) if self.combined else ()

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

        That is the one that the smallest update of the driver would let run, and the last one that
        needs another system or another card.
        """
        fitting = (each.variant for each in self.compatible if each.variant.backend == backend)
        rejected = (each for each in self.rejected if each.variant.backend == backend)
        nearest = min(rejected, key=_lack, default=None)
        return next(fitting, nearest.variant if nearest else None)


def select(
    release: Release,
    hardware: Hardware,
    request: Request,
    conflict: Callable[[Variant], Reason | None] | None = None,
) -> Selection:
    """Sort the platform's variants into those that fit, best first, and the others.

    ``conflict`` tells why the files of a combined variant make no common tree.

    Raises ``UnknownRequest`` if the release has nothing for the platform or if the request names
    neither a backend nor a variant.
    """
    platform = platform_of(release, hardware)
    names = tuple(variant.name for variant in platform.variants)
    requested = known_request(request.backend, names)
    # A variant may have the name of a maker: then its name counts.
    vendor = None if requested in names else VENDORS.get(requested)
    helpful = _helpful(platform, hardware) if requested in ("auto", "gpu") else ()
    added = helpful if request.combine else ()
    if JOIN in requested and requested not in names:
        added = asked_for(requested, platform)
    variants = (*platform.variants, *added)
    usable: dict[str, tuple[Gpu, ...]] = {}
    rejected: list[Rejection] = []
    for variant in variants:
        reason = not_requested(variant, requested, vendor) or why_not(variant, hardware)
        if reason is None and variant.parts and conflict:
            reason = conflict(variant)
        considered = hardware
        # First the machine's own reason, such as a missing driver; then the maker of the GPUs.
        if reason is None and vendor is not None:
            considered = only_of(vendor, hardware)
            reason = _no_device_of(requested, variant, considered) or why_not(variant, considered)
        if reason is None:
            usable[variant.name] = usable_gpus(variant, considered)
        else:
            rejected.append(Rejection(variant, reason))
    # One order for all variants, so that a device has the same rank whichever driver lists it.
    devices = device_ranks(gpu for gpus in usable.values() for gpu in gpus)
    fitting = [
        (variant, _best(usable[variant.name], devices))
        for variant in variants
        if variant.name in usable
    ]
    prefer = request.prefer
    # A user who names a maker wants its own interface, unless an order of backends says otherwise.
    if vendor is not None and isinstance(prefer, str):
        prefer = (*backends_of(requested), *platform.preference.get(prefer, ()))
    order = platform.preference.get(prefer, ()) if isinstance(prefer, str) else prefer
    positions = {variant.name: index for index, variant in enumerate(variants)}

    def rank(
        pair: tuple[Variant, Gpu | None],
    ) -> tuple[tuple[int, int, bool], bool, bool, int, int, bool, Version, int]:
        variant, gpu = pair
        cards = [each for each in usable[variant.name] if each.kind is GpuKind.DISCRETE]
        return (
            # First the device: a small card never wins because of its API. The CPU is the last.
            devices[gpu] if gpu else (CPU_RANK, 0, False),
            # A combined build is only here where it was asked for, or uses one more card.
            not variant.parts,
            # A build whose own interface reads the variable that leaves cards out.
            _lists_hidden(variant, hardware),
            # Then the policy's order of backends, the most cards, then what starts at once.
            order.index(variant.backend) if variant.backend in order else len(order),
            -len(cards),
            compiles_at_first_start(variant, gpu),
            # If the driver does not tell its version, the oldest toolkit most likely runs.
            _unchecked_toolkit(variant, hardware),
            # At last the manifest's own order.
            positions[variant.name],
        )

    fitting.sort(key=rank)
    # A request for one backend leaves the devices of the others out on purpose.
    any_gpu = bool(fitting) and requested in ("auto", "gpu")
    return Selection(
        requested=requested,
        detected=detected(hardware),
        compatible=tuple(
            Candidate(v, gpu, rank, tuple(chain(*_cards_of_two_makers(v, hardware))))
            for rank, (v, gpu) in enumerate(fitting, 1)
        ),
        rejected=tuple(rejected),
        idle=_idle(fitting[0][1], hardware) if any_gpu else (),
        combined=_offer(release, hardware, request, conflict) if helpful and not added else None,
    )


def _helpful(platform: Platform, hardware: Hardware) -> tuple[Variant, ...]:
    """Return the combined variants that use more cards than their first part alone."""
    return tuple(
        each
        for each in combinations(platform)
        if why_not(each, hardware) is None and gained(each, hardware)
    )


def _offer(
    release: Release,
    hardware: Hardware,
    request: Request,
    conflict: Callable[[Variant], Reason | None] | None,
) -> CombinedOffer | None:
    """Return the combined variant that ``Request.combine`` would choose."""
    wanted = replace(request, combine=True)
    best = select(release, hardware, wanted, conflict).compatible[0].variant
    own, others = _cards_of_two_makers(best, hardware)
    return CombinedOffer(best.name, own, others) if others else None


def _cards_of_two_makers(
    variant: Variant, hardware: Hardware
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the cards that a combined variant uses through their maker's interface, and the rest.

    Both are empty if that is the interface of all of them.
    """
    others = gained(variant, hardware) if variant.parts else ()
    own = usable_gpus(variant.parts[0], hardware) if others else ()
    return tuple(dict.fromkeys(gpu.name for gpu in own)), tuple(gpu.name for gpu in others)


def listed_gpus(variant: Variant, hardware: Hardware) -> tuple[Gpu, ...]:
    """Return the GPUs that the server of a variant lists, each once."""
    own = hardware.api(facts_of(variant.signed[0].backend).api).gpus
    return (*own, *(gained(variant, hardware) if variant.parts else ()))


def _lack(rejection: Rejection) -> tuple[bool, bool, Version]:
    """Order rejected variants of one backend; equal ones stay in the manifest's order."""
    cuda, slug = rejection.variant.requires.cuda, rejection.reason.slug
    toolkit = cuda.toolkit if cuda and slug in BY_DRIVER else "0"
    return slug in BY_CARD, slug in BY_SYSTEM, Version(toolkit)


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


def variant_named(platform: Platform, name: str) -> Variant | None:
    """Find a variant of the release file, or one that is made of its variants; None without one."""
    made = combinations(platform) if JOIN in name else ()
    return platform.variant(name) or next((each for each in made if each.name == name), None)


def why_absent(platform: Platform, name: str) -> str | None:
    """Tell why no selection has a variant that could be made; None if it cannot be made."""
    if variant_named(platform, name):
        return "llm.prefer is not combined, or this machine has no card of another maker any more"
    return None


def variants_for(word: str, platform: Platform) -> tuple[Variant, ...]:
    """Return the variants of a platform that a request for this word may take.

    These may be made of the release file's: ``signed`` has those. Raises ``UnknownRequest`` if the
    word means nothing, or a build that cannot be made.
    """
    names = tuple(variant.name for variant in platform.variants)
    requested = known_request(word, names)
    if JOIN in requested and requested not in names:
        return asked_for(requested, platform)
    # A variant may have the name of a maker: then its name counts.
    vendor = None if requested in names else VENDORS.get(requested)
    return tuple(
        each for each in platform.variants if not_requested(each, requested, vendor) is None
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
            hint=f"choose another release or channel: {TSUKU} list --available",
        ) from None


def known_request(word: str, variants: Iterable[str]) -> str:
    """Return the variant that has this name, or the word of ``REQUESTS`` that is meant.

    A variant's name comes first. Several names with "+" between them ask for a combined build.
    Raises ``UnknownRequest`` if the word is neither.
    """
    names = tuple(variants)
    if word.lower() in names:
        return word.lower()
    known = meaning(word)
    if known in REQUESTS:
        return known
    if JOIN in known and {*known.split(JOIN)} <= {*NAMES, *names}:
        return known
    raise UnknownRequest(
        f"there is no backend or variant {word!r}",
        facts=(f"backends: {', '.join(REQUESTS)}", f"variants here: {', '.join(names)}"),
        hint=ELSEWHERE.get(word.lower())
        or did_you_mean(
            word, (*REQUESTS, *WORDS, *JOINED_WORDS, *names), "name one of these, or auto"
        ),
    )


def detected(hardware: Hardware) -> tuple[str, ...]:
    """Return the backends for which this machine has a hardware device, and always the CPU."""
    return tuple(
        backend.name
        for backend in TABLE
        if not backend.api or hardware.api(backend.api).hardware_gpus
    )


def not_requested(variant: Variant, backend: str, vendor: int | None = None) -> Reason | None:
    """Tell why the user's request excludes a variant on any machine; None if it does not.

    ``vendor`` is set if ``backend`` is the name of a maker of GPUs.
    """
    if backend in ("auto", variant.backend, variant.name):
        return None
    # ``asked_for`` returns only what the request names.
    if variant.parts and JOIN in backend:
        return None
    if variant.backend != "cpu" and (
        backend == "gpu" or vendor in facts_of(variant.backend).vendors
    ):
        return None
    return Reason("not-requested", f"{backend} was requested, this is {variant.backend}")


def best_gpu(variant: Variant, hardware: Hardware) -> Gpu | None:
    """Return the device that a compatible variant should use, None for the CPU.

    The rank of ``device_ranks`` decides, then the most memory, then the driver's order.
    """
    gpus = usable_gpus(variant, hardware)
    return _best(gpus, device_ranks(gpus))


def _best(gpus: Iterable[Gpu], ranks: Mapping[Gpu, tuple[int, int, bool]]) -> Gpu | None:
    return min(gpus, key=lambda gpu: (ranks[gpu], -(gpu.memory or 0), gpu.index), default=None)


def _idle(best: Gpu | None, hardware: Hardware) -> tuple[str, ...]:
    """Return the names of the GPUs that a driver lists and that rank before the chosen device."""
    listed = [gpu for api in hardware.apis for gpu in api.hardware_gpus if not gpu.hidden_by]
    ranks = device_ranks([*listed, *([best] if best else [])])
    chosen = ranks[best] if best else (CPU_RANK, 0, False)
    better = {(ranks[gpu], gpu.name) for gpu in listed if ranks[gpu] < chosen}
    # Several drivers list one card by the same name.
    return tuple(dict.fromkeys(name for _, name in sorted(better)))


def _unchecked_toolkit(variant: Variant, hardware: Hardware) -> Version:
    """Return the toolkit of a CUDA build that no driver's version was compared with, else 0."""
    cuda = variant.requires.cuda
    if cuda is None or hardware.api(facts_of(variant.backend).api).version is not None:
        return Version("0")
    return Version(cuda.toolkit)


def _lists_hidden(variant: Variant, hardware: Hardware) -> bool:
    """Tell whether a build lists cards that a variable of another interface leaves out."""
    rows = [facts_of(part) for part in parts_of(variant.backend)]
    return any(
        gpu.hidden_by and gpu.hidden_by not in row.hiding_variables
        for row in rows
        for gpu in hardware.api(row.api).hardware_gpus
    )


def only_of(vendor: int, hardware: Hardware) -> Hardware:
    """Return the machine as if it had only the GPUs of this maker."""
    return replace(
        hardware,
        apis=tuple(
            replace(api, gpus=tuple(gpu for gpu in api.gpus if is_made_by(vendor, api.name, gpu)))
            for api in hardware.apis
        ),
    )


def is_made_by(vendor: int, api: str, gpu: Gpu) -> bool:
    """Tell whether a device that this API lists is of this maker."""
    if gpu.vendor_id is not None:
        return gpu.vendor_id == vendor
    # The interface of one maker lists no other devices.
    backend = backend_of_api(api)
    return backend is not None and backend.vendors == {vendor}


def _no_device_of(word: str, variant: Variant, hardware: Hardware) -> Reason | None:
    row = facts_of(variant.backend)
    if hardware.api(row.api).hardware_gpus:
        return None
    text = f"{word} was requested, {row.api_label} lists no such GPU"
    return Reason("no-device-of-maker", text)
