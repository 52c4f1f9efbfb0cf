"""The variants that fit a machine, best first, and the fact that excludes each other one.

Pure: no host, no files, no network. The rules about CUDA device code follow NVIDIA's compatibility
guide: SASS runs on devices of the same major capability with an equal or higher minor; PTX runs on
any later device, if the driver's CUDA is at least the toolkit's. Neither rule holds between cards
and Tegra, the Jetsons' processors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from packaging.version import Version

from tsuku_llm.backends import (
    REQUESTS,
    TABLE,
    VENDORS,
    WORDS,
    backend_of_api,
    backends_of,
    facts_of,
    meaning,
)
from tsuku_llm.errors import SelectionError, UnknownRequest, did_you_mean
from tsuku_llm.hardware import Api, ApiState, Gpu, GpuKind, Hardware
from tsuku_llm.manifest import CudaRequirement, Platform, Release, Requirements, Variant

_CLASS_RANK = {
    GpuKind.DISCRETE: 0,
    GpuKind.INTEGRATED: 1,
    GpuKind.VIRTUAL: 2,
    GpuKind.OTHER: 3,
}
_CPU_RANK = 4
# The compute capabilities of Jetsons; SASS of other devices with the same major does not run there.
_TEGRA = frozenset({"5.3", "6.2", "7.2", "8.7"})


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a variant does not fit: ``slug`` for programs, ``text`` for people."""

    slug: str
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that fits; ``gpu`` is the best device it can use, None for the CPU."""

    variant: Variant
    gpu: Gpu | None
    rank: int

    @property
    def note(self) -> str | None:
        """A warning that the first start is slow: the driver compiles PTX, which takes minutes."""
        cuda = self.variant.requires.cuda
        capability = self.gpu.compute_capability if self.gpu else None
        if cuda is None or capability is None:
            return None
        if any(sass_serves(entry, capability) for entry in cuda.sass):
            return None
        return f"the first start is slow: it compiles for compute capability {capability}"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A variant that does not fit, and the one fact that decided."""

    variant: Variant
    reason: Reason


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request: a variant's name, or a word that ``meaning`` turns into a request.

    ``prefer`` is a policy name of the manifest or the user's own order of backends.
    """

    backend: str = "auto"
    prefer: str | tuple[str, ...] = "portable"


@dataclass(frozen=True, slots=True)
class Selection:
    """Every variant of a platform: ``compatible`` best first, and ``rejected``."""

    requested: str
    detected: tuple[str, ...]
    compatible: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...] = field(default=())

    @property
    def selected(self) -> Candidate:
        """The best candidate.

        Raises ``SelectionError`` with every reason if there is none.
        """
        if self.compatible:
            return self.compatible[0]
        raise SelectionError(
            f"no variant fits this machine and the request {self.requested!r}",
            facts=tuple(f"{r.variant.name}: {r.reason.text}" for r in self.rejected),
            hint="ask for another backend: tsuku-llm config set llm.backend auto",
        )

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every variant: those that fit best first, then the others."""
        fitting = (each.variant for each in self.compatible)
        return (*fitting, *(each.variant for each in self.rejected))

    def candidate(self, name: str) -> Candidate | None:
        """Return the compatible variant of that name."""
        return next((each for each in self.compatible if each.variant.name == name), None)


def select(release: Release, hardware: Hardware, request: Request) -> Selection:
    """Sort the platform's variants into those that fit, best first, and the others.

    Raises ``UnknownRequest`` if the release has nothing for the platform or if the request names
    neither a backend nor a variant.
    """
    platform = platform_of(release, hardware)
    names = tuple(variant.name for variant in platform.variants)
    requested = known_request(request.backend, names)
    # A variant may have the name of a maker: then its name counts.
    vendor = None if requested in names else VENDORS.get(requested)
    fitting: list[tuple[Variant, Gpu | None]] = []
    rejected: list[Rejection] = []
    for variant in platform.variants:
        reason = not_requested(variant, requested, vendor) or why_not(variant, hardware)
        considered = hardware
        # First the machine's own reason, such as a missing driver; then the maker of the GPUs.
        if reason is None and vendor is not None:
            considered = _only_of(vendor, hardware)
            reason = _no_device_of(requested, variant, considered) or why_not(variant, considered)
        if reason is None:
            fitting.append((variant, best_gpu(variant, considered)))
        else:
            rejected.append(Rejection(variant, reason))
    prefer = request.prefer
    # A user who names a maker wants its own interface, unless an order of backends says otherwise.
    if vendor is not None and isinstance(prefer, str):
        prefer = (*backends_of(requested), *platform.preference.get(prefer, ()))
    order = _preference(platform, prefer)
    positions = {variant.name: index for index, variant in enumerate(platform.variants)}
    # Order by device class, then by the policy's backends, then by the manifest's own order.
    fitting.sort(key=lambda pair: (_class_rank(pair[1]), order(pair[0]), positions[pair[0].name]))
    return Selection(
        requested=requested,
        detected=detected(hardware),
        compatible=tuple(Candidate(v, gpu, rank) for rank, (v, gpu) in enumerate(fitting, 1)),
        rejected=tuple(rejected),
    )


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


def known_request(word: str, variants: Iterable[str]) -> str:
    """Return the variant that has this name, or the word of ``REQUESTS`` that is meant.

    A variant's name comes first. Raises ``UnknownRequest`` if the word is neither.
    """
    names = tuple(variants)
    if word.lower() in names:
        return word.lower()
    known = meaning(word)
    if known in REQUESTS:
        return known
    raise UnknownRequest(
        f"there is no backend or variant {word!r}",
        facts=(f"backends: {', '.join(REQUESTS)}", f"variants here: {', '.join(names)}"),
        hint=did_you_mean(word, (*REQUESTS, *WORDS, *names), "name one of these, or auto"),
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
    if variant.backend != "cpu" and (
        backend == "gpu" or vendor in facts_of(variant.backend).vendors
    ):
        return None
    return Reason("not-requested", f"{backend} was requested, this is {variant.backend}")


def why_not(variant: Variant, hardware: Hardware) -> Reason | None:
    """Return the first fact that keeps a variant from running on a machine; None if it fits."""
    return next(_obstacles(variant, hardware), None)


def system_obstacle(variant: Variant, hardware: Hardware) -> Reason | None:
    """Return the first fact about the system that excludes a variant on any device."""
    return next(_system_obstacles(variant.requires, hardware), None)


def best_gpu(variant: Variant, hardware: Hardware) -> Gpu | None:
    """Return the device that a compatible variant should use, None for the CPU.

    Discrete before integrated, then the one with the most memory, then the driver's order.
    """
    return min(_usable(variant, hardware), key=_gpu_order, default=None)


def _obstacles(variant: Variant, hardware: Hardware) -> Iterator[Reason]:
    yield from _system_obstacles(variant.requires, hardware)
    if variant.backend == "cpu":
        return
    api = hardware.api(facts_of(variant.backend).api)
    reason = api_obstacle(api)
    if reason:
        yield reason
        return
    rule = _DEVICE_RULES.get(variant.backend, _any_device)
    reasons = [rule(variant.requires, api, gpu) for gpu in api.hardware_gpus]
    # One usable device is enough. If no device is usable, the first one's reason is told.
    if None not in reasons:
        yield next(reason for reason in reasons if reason)


def _system_obstacles(requires: Requirements, hardware: Hardware) -> Iterator[Reason]:
    for check in _SYSTEM_CHECKS:
        reason = check(requires, hardware)
        if reason:
            yield reason


def _usable(variant: Variant, hardware: Hardware) -> tuple[Gpu, ...]:
    if variant.backend == "cpu":
        return ()
    api = hardware.api(facts_of(variant.backend).api)
    rule = _DEVICE_RULES.get(variant.backend, _any_device)
    return tuple(gpu for gpu in api.hardware_gpus if rule(variant.requires, api, gpu) is None)


def _only_of(vendor: int, hardware: Hardware) -> Hardware:
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
    return Reason("not-requested", f"{word} was requested, {row.api_label} lists no such GPU")


def _gpu_order(gpu: Gpu) -> tuple[int, int, int]:
    return _CLASS_RANK[gpu.kind], -(gpu.memory or 0), gpu.index


def _class_rank(gpu: Gpu | None) -> int:
    return _CPU_RANK if gpu is None else _CLASS_RANK[gpu.kind]


def _preference(platform: Platform, prefer: str | tuple[str, ...]) -> Callable[[Variant], int]:
    order = platform.preference.get(prefer, ()) if isinstance(prefer, str) else prefer
    return lambda variant: order.index(variant.backend) if variant.backend in order else len(order)


# --- the machine -----------------------------------------------------------------------


def check_known(requires: Requirements, _: Hardware) -> Reason | None:
    """Reject a variant with a requirement that this version cannot check."""
    if not requires.unknown:
        return None
    names = ", ".join(requires.unknown)
    return Reason("unknown-requirement", f"needs {names}: update tsuku-llm to check that")


def check_glibc(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the newest glibc symbol version that the build links to."""
    if requires.glibc is None or hardware.libc is None:
        return None
    libc = hardware.libc
    if libc.name != "glibc":
        return Reason("libc", f"needs glibc {requires.glibc}, this system has {libc.name}")
    return _at_least("glibc", requires.glibc, libc.version)


def check_libstdcxx(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the newest GLIBCXX version that the build links to.

    A system without libstdc++ passes: the gate, which starts the build, judges it.
    """
    if requires.libstdcxx is None or hardware.libstdcxx is None:
        return None
    return _at_least("libstdcxx", requires.libstdcxx, hardware.libstdcxx, "GLIBCXX")


def check_macos(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the deployment target of the build."""
    return _at_least("macos", requires.macos, hardware.os_version, "macOS")


def check_vcruntime(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the Visual C++ runtime of a Windows build."""
    return _at_least("vcruntime", requires.vcruntime, hardware.vcruntime, "Visual C++ runtime")


def check_x86_level(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the x86-64 level, as the psABI numbers them."""
    level = hardware.cpu.level if hardware.cpu else None
    if requires.x86_64_level is None or level is None or level >= requires.x86_64_level:
        return None
    text = f"needs x86-64-v{requires.x86_64_level}, this processor is x86-64-v{level}"
    return Reason("x86-64-level", text)


def check_cpu_features(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the instruction sets beyond a level, on Linux only.

    Linux lists all features of a processor. The lists of Windows and macOS are incomplete, so a
    feature that they do not name may still be present.
    """
    features = hardware.cpu.features if hardware.cpu and hardware.os == "linux" else ()
    missing = [feature for feature in requires.cpu_features if feature not in features]
    if not features or not missing:
        return None
    return Reason("cpu-features", f"needs a processor with {', '.join(missing)}")


def check_memory(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the machine's memory, if a variant asks for some."""
    if requires.memory is None or hardware.memory is None or hardware.memory >= requires.memory:
        return None
    text = f"needs {requires.memory:,} bytes of memory, this machine has {hardware.memory:,}"
    return Reason("memory", text)


_SYSTEM_CHECKS: tuple[Callable[[Requirements, Hardware], Reason | None], ...] = (
    check_known,
    check_glibc,
    check_libstdcxx,
    check_macos,
    check_vcruntime,
    check_x86_level,
    check_cpu_features,
    check_memory,
)


def _at_least(slug: str, floor: str | None, have: str | None, name: str = "") -> Reason | None:
    # An unknown version passes: the gate starts the build and finds out.
    if floor is None or have is None or Version(have) >= Version(floor):
        return None
    name = name or slug
    return Reason(slug, f"needs {name} {floor}, this system has {have}")


# --- the devices -----------------------------------------------------------------------


def api_obstacle(api: Api) -> Reason | None:
    """Tell why an API offers no hardware device; None if it has one, even with a problem."""
    if api.hardware_gpus:
        return None
    if api.problem:
        return Reason(api.problem.slug, api.problem.text)
    backend = backend_of_api(api.name)
    name = backend.api_label if backend else api.name
    if api.state is not ApiState.OK:
        return Reason(f"api-{api.state.value}", f"{name} {_STATES[api.state]}")
    if not api.gpus:
        return Reason("no-device", f"{name} lists no device")
    names = ", ".join(gpu.name for gpu in api.gpus)
    return Reason("software-only", f"{name} lists only software devices ({names})")


_STATES = {
    ApiState.ABSENT: "is not installed",
    ApiState.FAILED: "did not initialise",
    ApiState.TIMED_OUT: "did not answer in time",
    ApiState.CRASHED: "crashed when it was asked",
    ApiState.NOT_ASKED: "does not exist on this system",
}


def _any_device(_requires: Requirements, _api: Api, _gpu: Gpu) -> Reason | None:
    return None


def _cuda_device(requires: Requirements, api: Api, gpu: Gpu) -> Reason | None:
    cuda = requires.cuda
    if cuda is None or gpu.compute_capability is None or api.version is None:
        return None
    capability, driver, toolkit = (
        gpu.compute_capability,
        Version(api.version),
        Version(cuda.toolkit),
    )
    if capability in _TEGRA and capability not in (*cuda.sass, *cuda.ptx):
        # A Jetson's CUDA differs from the one that builds for arm64 servers contain.
        text = f"{gpu.name}: a Jetson (compute capability {capability}) needs a separate build"
        return Reason("jetson", text)
    if any(sass_serves(entry, capability) for entry in cuda.sass):
        # Minor-version compatibility: SASS of 12.8 runs on every driver of CUDA 12.
        if driver.major >= toolkit.major:
            return None
        text = f"{gpu.name}: needs a driver for CUDA {toolkit.major}, this one is for {api.version}"
        return Reason("cuda-driver", text)
    return _ptx_obstacle(cuda, gpu.name, capability, api.version)


def _ptx_obstacle(cuda: CudaRequirement, name: str, capability: str, driver: str) -> Reason | None:
    if not any(ptx_serves(entry, capability) for entry in cuda.ptx):
        text = f"{name}: compute capability {capability} is older than the build supports"
        return Reason("cuda-capability", text)
    if Version(driver) >= Version(cuda.toolkit):
        return None
    text = (
        f"{name}: the build has only PTX for compute capability {capability}, which needs a "
        f"driver for CUDA {cuda.toolkit}; this one is for CUDA {driver}"
    )
    return Reason("cuda-ptx", text)


def sass_serves(entry: str, capability: str) -> bool:
    """Tell whether machine code for ``entry`` runs on a device of that compute capability."""
    # "9.0a" is code for an architecture's own features: it runs on that capability only.
    if entry.endswith("a"):
        return entry[:-1] == capability
    code, device = Version(entry), Version(capability)
    return code.major == device.major and code.minor <= device.minor


def ptx_serves(entry: str, capability: str) -> bool:
    """Tell whether PTX for ``entry`` can be compiled for a device of that compute capability.

    It can for the same and any later capability. PTX with an architecture's own features ("9.0a")
    serves that one only.
    """
    if entry.endswith("a"):
        return entry[:-1] == capability
    return Version(entry) <= Version(capability)


def _rocm_device(requires: Requirements, _api: Api, gpu: Gpu) -> Reason | None:
    if requires.rocm is None or gpu.gfx in requires.rocm.gfx:
        return None
    return Reason("rocm-gfx", f"{gpu.name}: {gpu.gfx or 'its gfx target'} is not in the build")


def _vulkan_device(requires: Requirements, api: Api, gpu: Gpu) -> Reason | None:
    return _at_least("vulkan", requires.vulkan, api.version, "a Vulkan loader of") or _at_least(
        "vulkan", requires.vulkan, gpu.api_version, f"{gpu.name}: Vulkan"
    )


def _opencl_device(requires: Requirements, _api: Api, gpu: Gpu) -> Reason | None:
    if requires.opencl is None or requires.opencl.device.lower() in gpu.name.lower():
        return None
    return Reason("opencl-device", f"{gpu.name} is not an {requires.opencl.device} device")


_DEVICE_RULES: dict[str, Callable[[Requirements, Api, Gpu], Reason | None]] = {
    "cuda": _cuda_device,
    "rocm": _rocm_device,
    "vulkan": _vulkan_device,
    "opencl": _opencl_device,
}
