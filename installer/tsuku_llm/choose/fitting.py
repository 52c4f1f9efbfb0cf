"""The facts that decide whether a variant runs on a machine, and the first that excludes it.

Pure: no host, no files, no network. The rules about CUDA device code follow NVIDIA's compatibility
guide: SASS runs on devices of the same major capability with an equal or higher minor; PTX runs on
any later device, if the driver's CUDA is at least the toolkit's. Neither rule holds between cards
and Tegra, the Jetsons' processors.

Devices are also ordered here, by kind, memory and speed, whichever API lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from tsuku_llm.catalog.manifest import Variant
from tsuku_llm.catalog.requirements import CudaRequirement, Requirements
from tsuku_llm.machine.backends import TABLE, BackendFacts, backend_of_api, facts_of
from tsuku_llm.machine.card_speeds import bandwidth_of
from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind, Hardware
from tsuku_llm.machine.packages import brought_by

SMALL_CARD = 5 << 29
"""Bytes: a card with less holds no model worth serving. Between 2 and 3 GB, which are sold."""

ROOMY = 8 << 30
"""Bytes of an integrated device that is better than a small card."""

ALIKE = 0.85
"""The part of the largest card's memory from which on another card counts as equally large.

Two drivers may report a tenth more or less for the same card. Sizes that are sold differ by more,
such as 10 and 12 GB, or 20 and 24 GB.
"""

SLOW = 0.5
"""The part of the memory's speed below which a card comes after a faster one of the same size."""

_KIND_RANKS = {
    GpuKind.DISCRETE: 0,
    GpuKind.INTEGRATED: 1,
    # 2: a small card beside a roomy integrated device
    GpuKind.VIRTUAL: 3,
    GpuKind.OTHER: 4,
    GpuKind.SOFTWARE: 5,
}
_BEHIND_RANK = 2

CPU_RANK = 6
"""The rank of the processor, behind every device but the slow ones."""


def is_slower_than_the_cpu(gpu: Gpu) -> bool:
    """Tell whether a processor beside this device computes faster.

    Mesa's driver for Arm's Mali: 3.6 and 13.2 tokens a second, and 3.3 and 35.9 for a prompt, on an
    RK3588 (ggml-org/llama.cpp#17783, #22682).
    """
    return gpu.api == "vulkan" and (gpu.driver or "").startswith("panvk")


def device_ranks(gpus: Iterable[Gpu]) -> Mapping[Gpu, tuple[int, int, bool]]:
    """Rank devices of any APIs, the best lowest: the kind, a tier by memory, then the slow cards.

    A discrete card comes before an integrated device, but a card of 1 GB does not beat a processor
    whose GPU has 96 GB. Each driver reports a slightly different size for the same card, so cards
    of about the same size are in one tier. A card whose driver does not tell its memory is in the
    first tier. Integrated devices are not compared by memory: each driver reports another part of
    the machine's memory for the same device.

    In a tier, cards with less than half the memory bandwidth of the fastest one come last: a Tesla
    M40 has as many bytes as an RX 7900 XTX. A start compares cards by the same numbers. A card that
    is not in that table is not called slow.
    """
    devices = list(gpus)
    room = [gpu.memory or 0 for gpu in devices if gpu.kind is GpuKind.INTEGRATED]
    behind = SMALL_CARD if max(room, default=0) >= ROOMY else 0
    tiers: dict[Gpu, tuple[int, int]] = {}
    tier, largest = 0, 0
    for gpu in sorted(devices, key=lambda gpu: gpu.memory or 0, reverse=True):
        if gpu.kind is not GpuKind.DISCRETE or not gpu.memory:
            slow = is_slower_than_the_cpu(gpu)
            tiers[gpu] = (CPU_RANK + 1 if slow else _KIND_RANKS[gpu.kind], 0)
            continue
        # Clearly smaller than the largest card of the tier: a tier of its own.
        if gpu.memory < ALIKE * largest:
            tier += 1
            largest = 0
        largest = largest or gpu.memory
        tiers[gpu] = (_BEHIND_RANK if gpu.memory < behind else _KIND_RANKS[gpu.kind], tier)
    cards = [gpu for gpu in tiers if gpu.kind is GpuKind.DISCRETE]
    speeds = {gpu: speed for gpu in cards if (speed := bandwidth_of(gpu.name))}
    fastest: dict[tuple[int, int], int] = {}
    for gpu, speed in speeds.items():
        fastest[tiers[gpu]] = max(speed, fastest.get(tiers[gpu], 0))
    return {
        gpu: (*at, gpu in speeds and speeds[gpu] < SLOW * fastest[at]) for gpu, at in tiers.items()
    }


# The compute capabilities of Jetsons; SASS of other devices with the same major does not run there.
# Thor is 10.1 for CUDA 12. CUDA 13 calls it 11.0, and has one toolkit for it and for arm64 servers.
TEGRA = frozenset({"5.3", "6.2", "7.2", "8.7", "10.1"})
# The newest ABI of AMD's HIP library: ROCm 10.0 still has libamdhip64.so.7, as the packages of
# Arch (hip-runtime-amd) and Ubuntu (libamdhip64-7) show.
_HIP_ABI = 7
_HIP_LIBRARY = re.compile(r"amdhip64(?:\.so\.|_)([0-9]{1,3})")

BY_DRIVER = frozenset({"cuda-driver", "cuda-ptx"})
"""The slugs of reasons that a newer driver for CUDA removes."""

BY_CARD = frozenset(
    {"cuda-capability", "jetson", "opencl-device", "rocm-gfx"}
    | {"vulkan-16bit-storage", "vulkan-limits"}
)
"""The slugs of reasons that only another GPU, or another build, removes."""

BY_SYSTEM = frozenset(
    {"libc", "glibc", "musl", "libstdcxx", "macos", "vcruntime", "libraries"}
    | {"loader", "word-size", "x86-64-level", "cpu-features", "memory"}
)
"""The slugs of reasons that no driver removes, but another system, machine or build does."""

BY_COMPILING = (
    (BY_SYSTEM - {"vcruntime", "libraries", "memory", "word-size"})
    | BY_DRIVER
    | {"cuda-capability", "jetson", "rocm-gfx", "rocm-runtime"}
)
"""The slugs of reasons that a build removes which the machine itself compiles."""

_NAMED = 5
"""Unknown requirements that a reason names."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a variant does not fit: ``slug`` for programs, ``text`` for people."""

    slug: str
    text: str


def why_not(variant: Variant, hardware: Hardware) -> Reason | None:
    """Return the first fact that keeps a variant from running on a machine; None if it fits.

    A variant that is made of others fits where each of them does.
    """
    if variant.parts:
        found = ((part, why_not(part, hardware)) for part in variant.parts)
        reasons = (Reason(why.slug, f"{part.name}: {why.text}") for part, why in found if why)
        return next(reasons, None)
    if reason := system_obstacle(variant, hardware):
        return reason
    requires = variant.requires
    for row in TABLE:
        # The variant's own API, and any other one that its requirements name.
        named = getattr(requires, row.name, None) or getattr(requires, row.api, None)
        if row.api and (named or row.name == variant.backend):
            reason = _device_obstacle(row, requires, hardware.api(row.api))
            if reason:
                return reason
    # Last: where the driver or the card is missing, a toolkit's library would not help.
    return check_libraries(requires, hardware)


def system_obstacle(variant: Variant, hardware: Hardware) -> Reason | None:
    """Return the first fact about the system that excludes a variant on any device."""
    reasons = (check(variant.requires, hardware) for check in _SYSTEM_CHECKS)
    return next((reason for reason in reasons if reason), None)


def usable_gpus(variant: Variant, hardware: Hardware) -> tuple[Gpu, ...]:
    """Return the devices that a compatible variant can use, in the driver's order.

    For a variant that is made of others these are the devices of each.
    """
    if variant.parts:
        return tuple(gpu for part in variant.parts for gpu in usable_gpus(part, hardware))
    if variant.backend == "cpu":
        return ()
    api = hardware.api(facts_of(variant.backend).api)
    rule = _DEVICE_RULES.get(variant.backend, _any_device)
    return tuple(
        gpu
        for gpu in api.hardware_gpus
        if gpu.hidden_by is None and rule(variant.requires, api, gpu) is None
    )


def compiles_at_first_start(variant: Variant, gpu: Gpu | None) -> bool:
    """Tell whether the driver must compile a variant's device code for a device: it has only PTX.

    That takes minutes at the first start.
    """
    cuda, capability = variant.requires.cuda, gpu.compute_capability if gpu else None
    return cuda is not None and capability is not None and not has_machine_code(variant, gpu)


def has_machine_code(variant: Variant, gpu: Gpu | None) -> bool:
    """Tell whether a variant is known to have machine code for a device: nothing is compiled."""
    cuda, rocm = variant.requires.cuda, variant.requires.rocm
    if gpu is None:
        return False
    if variant.backend == "rocm":
        return rocm is not None and gpu.gfx in rocm.gfx
    capability = gpu.compute_capability
    if variant.backend != "cuda" or cuda is None or capability is None:
        return False
    return any(sass_serves(entry, capability) for entry in cuda.sass)


def _device_obstacle(row: BackendFacts, requires: Requirements, api: Api) -> Reason | None:
    """Tell why an API offers no device for a backend; None if one device is usable."""
    if reason := api_obstacle(api):
        return reason
    hidden = next((gpu for gpu in api.hardware_gpus if gpu.hidden_by), None)
    left = [gpu for gpu in api.hardware_gpus if not gpu.hidden_by]
    # A start gives a build the cards that are left, if its backend can be told.
    if hidden and not (row.given_by and left):
        text = f"{hidden.hidden_by} leaves out {hidden.name}, and {row.title} does not know it"
        return Reason("hidden-device", text)
    rule = _DEVICE_RULES.get(row.name, _any_device)
    found = [(gpu, rule(requires, api, gpu)) for gpu in left]
    refused = [(gpu, reason) for gpu, reason in found if reason]
    # One usable device is enough.
    if len(refused) < len(found):
        return None
    # The best device decides among those that something can be done about.
    ranks = device_ranks(left)
    return min(refused, key=lambda each: (each[1].slug in BY_CARD, ranks[each[0]]))[1]


# --- the machine -----------------------------------------------------------------------


def check_known(requires: Requirements, _: Hardware) -> Reason | None:
    """Reject a variant with a requirement that this version cannot check."""
    if not requires.unknown:
        return None
    names = ", ".join(requires.unknown[:_NAMED])
    text = f"not understood by this version of tsuku-llm: it needs {names}; update tsuku-llm"
    return Reason("unknown-requirement", text)


def check_loader(_: Requirements, hardware: Hardware) -> Reason | None:
    """Check that the system starts programs that were made for other systems."""
    refuses = hardware.libc.refuses if hardware.libc else None
    if refuses is None:
        return None
    return Reason("word-size" if "32-bit" in refuses else "loader", refuses)


def check_glibc(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check the newest glibc symbol version that the build links to."""
    if requires.glibc is None or hardware.libc is None:
        return None
    libc = hardware.libc
    if libc.name != "glibc":
        return Reason("libc", f"needs glibc {requires.glibc}, this system has {libc.name}")
    return _at_least("glibc", requires.glibc, libc.version)


def check_musl(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check that musl is the system's own C library: its symbols have no versions."""
    libc = hardware.libc
    if not requires.musl or libc is None or libc.name == "musl":
        return None
    return Reason("musl", f"needs musl, this system has {libc.name} {libc.version or ''}".rstrip())


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


def check_libraries(requires: Requirements, hardware: Hardware) -> Reason | None:
    """Check that the system's loader finds the libraries that the build does not bring.

    A library that was not asked for passes: the gate starts the build and finds out.
    """
    lacking = lacking_libraries(requires, hardware)
    if not lacking:
        return None
    wanted = [name for name in requires.libraries if hardware.libraries.get(name)]
    through = "" if {*wanted} == {*lacking} else f" through {', '.join(wanted)}"
    package = brought_by(lacking, hardware.packages)
    text = f"needs {', '.join(lacking)}{through}, which this system lacks ({package})"
    return Reason("libraries", text)


def lacking_libraries(requires: Requirements, hardware: Hardware) -> tuple[str, ...]:
    """Return the libraries that a system lacks for a variant: its own, or those that they need."""
    found = (hardware.libraries.get(name) for name in requires.libraries)
    return tuple(dict.fromkeys(name for name in found if name))


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
    check_loader,
    check_glibc,
    check_musl,
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
    """Tell why an API offers no hardware device; None if it has one, even with a problem.

    A variable that its builds read themselves may leave none: then that is its problem.
    """
    hidden = api.problem and all(gpu.hidden_by for gpu in api.hardware_gpus)
    if api.hardware_gpus and not hidden:
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
    ApiState.NOT_STARTED: "could not be asked",
    ApiState.NOT_ASKED: "does not exist on this system",
}


def _any_device(_requires: Requirements, _api: Api, _gpu: Gpu) -> Reason | None:
    return None


def _cuda_device(requires: Requirements, api: Api, gpu: Gpu) -> Reason | None:
    cuda, capability = requires.cuda, gpu.compute_capability
    if cuda is None:
        return None
    if capability is None:
        text = f"{gpu.name}: the driver does not tell its compute capability"
        return Reason("cuda-capability", text)
    if capability in TEGRA and capability not in (*cuda.sass, *cuda.ptx):
        # A Jetson's CUDA differs from the one that builds for arm64 servers contain.
        text = f"{gpu.name}: a Jetson (compute capability {capability}) needs a separate build"
        return Reason("jetson", text)
    if any(sass_serves(entry, capability) for entry in cuda.sass):
        # Minor-version compatibility: SASS of 12.8 runs on every driver of CUDA 12. An unknown
        # version passes: on an older driver the build lists no device, and the gate refuses it.
        toolkit = Version(cuda.toolkit)
        if api.version is None or Version(api.version).major >= toolkit.major:
            return None
        text = f"{gpu.name}: needs a driver for CUDA {toolkit.major}, this one is for {api.version}"
        return Reason("cuda-driver", text)
    return _ptx_obstacle(cuda, gpu.name, capability, api.version)


def _ptx_obstacle(
    cuda: CudaRequirement, name: str, capability: str, driver: str | None
) -> Reason | None:
    if not any(ptx_serves(entry, capability) for entry in cuda.ptx):
        text = f"{name}: compute capability {capability} is older than the build supports"
        return Reason("cuda-capability", text)
    # A driver tells no third number: it compiles the PTX of every toolkit of its minor version.
    if driver is not None and Version(driver).release[:2] >= Version(cuda.toolkit).release[:2]:
        return None
    # An unknown version is refused: a build whose PTX the driver cannot compile lists its device,
    # passes the gate, and ends at the first prompt.
    text = (
        f"{name}: the build has only PTX for compute capability {capability}, which needs a "
        f"driver for CUDA {cuda.toolkit}; this one "
        f"{f'is for CUDA {driver}' if driver else 'does not tell its version'}"
    )
    return Reason("cuda-ptx", text)


def sass_serves(entry: str, capability: str) -> bool:
    """Tell whether machine code for ``entry`` runs on a device of that compute capability."""
    # "9.0a" is code for an architecture's own features: it runs on that capability only. So does
    # the code for a Jetson, which other devices with the same major cannot run.
    if entry.endswith("a") or entry in TEGRA:
        return entry.removesuffix("a") == capability
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


def _rocm_device(requires: Requirements, api: Api, gpu: Gpu) -> Reason | None:
    rocm = requires.rocm
    if rocm is None:
        return None
    if gpu.gfx not in rocm.gfx:
        return Reason("rocm-gfx", f"{gpu.name}: {gpu.gfx or 'its gfx target'} is not in the build")
    # If HIP does not tell its version, the name of its library has one.
    named = _HIP_LIBRARY.search(api.library or "")
    version = api.version or (named[1] if named else None)
    needed, found = _hip_abi(rocm.runtime), _hip_abi(version) if version else None
    # An unknown version passes: without its libraries the build lists no device at the gate.
    if found in (None, needed):
        return None
    have = f"HIP {api.version}" if api.version else "HIP's library"
    text = (
        f"needs the libraries of ROCm {rocm.runtime} (libamdhip64 {needed}), "
        f"this system has {have} (libamdhip64 {found})"
    )
    return Reason("rocm-runtime", text)


def _hip_abi(version: str) -> int:
    """Return the ABI number in the name of HIP's library, of a version of HIP or ROCm.

    Up to 7 it is the major version. HIP and ROCm have the same versions.
    """
    return min(Version(version).major, _HIP_ABI)


def _vulkan_device(requires: Requirements, api: Api, gpu: Gpu) -> Reason | None:
    # ggml-vulkan refuses these devices, whatever the release file says.
    if gpu.storage_16bit is False:
        text = f"{gpu.name}: Vulkan without 16-bit storage (storageBuffer16BitAccess)"
        return Reason("vulkan-16bit-storage", text)
    if limit := _vulkan_limit(gpu):
        return Reason("vulkan-limits", f"{gpu.name}: {limit}")
    return _at_least("vulkan", requires.vulkan, api.version, "a Vulkan loader of") or _at_least(
        "vulkan", requires.vulkan, gpu.api_version, f"{gpu.name}: Vulkan"
    )


# The smallest tiles of ggml-vulkan's matrix multiplication, and the largest table of a quantized
# type beside them: ``ggml_vk_matmul_shmem_support`` of ggml-vulkan.cpp (b11434). With less, the
# backend ends with "Shared memory size too small for matrix multiplication". Several of its
# shaders have 512 invocations (ggml-org/llama.cpp#26213).
_TILES, _TABLE = 64 * 33, 8 * 1024
_INVOCATIONS = 512


def _vulkan_limit(gpu: Gpu) -> str | None:
    """Return what a device has too little of for ggml-vulkan, in words."""
    needed = _TILES * (2 if gpu.float_16 else 4) + _TABLE
    if gpu.shared_memory is not None and gpu.shared_memory < needed:
        have = f"{gpu.shared_memory:,} bytes of shared memory"
        return f"llama.cpp's Vulkan backend needs {needed:,} bytes of shared memory, it has {have}"
    if gpu.invocations is not None and gpu.invocations < _INVOCATIONS:
        have = f"{gpu.invocations} invocations in a group"
        return f"llama.cpp's Vulkan backend needs {_INVOCATIONS} invocations, it has {have}"
    return None


def _opencl_device(requires: Requirements, _api: Api, gpu: Gpu) -> Reason | None:
    name = gpu.name.lower()
    if requires.opencl is None:
        # ggml-opencl refuses all other devices, whatever the release file says.
        if any(maker in name for maker in ("adreno", "qualcomm", "intel")):
            return None
        text = f"{gpu.name}: llama.cpp's OpenCL backend is for Adreno and Intel only"
        return Reason("opencl-device", text)
    if requires.opencl.device.lower() in name:
        return None
    return Reason("opencl-device", f"{gpu.name} is not an {requires.opencl.device} device")


_DEVICE_RULES: dict[str, Callable[[Requirements, Api, Gpu], Reason | None]] = {
    "cuda": _cuda_device,
    "rocm": _rocm_device,
    "vulkan": _vulkan_device,
    "opencl": _opencl_device,
}
