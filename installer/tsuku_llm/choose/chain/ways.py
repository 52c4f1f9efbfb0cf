"""The cheapest way to a GPU that is not used: all backends compared by what a user has to do. Pure.

A way is for one card and one variant. Its effort is that of what keeps the variant from the card:
the system's obstacle, and the driver's. The least effort is told first, by every command alike.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from tsuku_llm.catalog.manifest import Variant
from tsuku_llm.choose.fitting import Reason, system_obstacle, why_not
from tsuku_llm.choose.selection import Selection, only_of
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.machine.backends import (
    AMD,
    INTEL,
    NVIDIA,
    VENDOR_DRIVER,
    BackendFacts,
    facts_of,
    maker_in,
)
from tsuku_llm.machine.fixes import Need, fix_for
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, GpuKind, Hardware, Problem
from tsuku_llm.machine.kernel_drivers import BusCard, undriven
from tsuku_llm.machine.packages import command_for

# The adapters among the supporting facts: sysfs' ids with the bound driver, and Windows' ids.
_ON_LINUX = re.compile(r"([0-9a-f]{4}):([0-9a-f?]{4}) \(driver (\S+)\)")
_ON_WINDOWS = re.compile(r"ven_([0-9a-f]{4})()\S*\s*(\S*)", re.IGNORECASE)


def adapters_in(evidence: Iterable[Evidence], vendors: frozenset[int]) -> Iterator[BusCard]:
    """Find the display adapters of these vendors among the supporting facts."""
    for fact in evidence:
        match = _ON_LINUX.match(fact.result) or _ON_WINDOWS.search(fact.result)
        if match and int(match[1], 16) in vendors:
            # Windows does not tell the device's number alone.
            device = int(match[2], 16) if match[2] and "?" not in match[2] else None
            driver = None if match[3] in ("", "none") else match[3]
            id_ = fact.result.split(" ")[0]
            yield BusCard(fact.call, int(match[1], 16), device, driver, id_)


@documented("gpu", "backend", "variant", "problem", "fix")
@dataclass(frozen=True, slots=True)
class Way:
    """What to do so that a GPU is used by a variant, and what keeps it from that so far."""

    gpu: str
    backend: str
    variant: str
    problem: str
    fix: str
    effort: int

    @property
    def told(self) -> str:
        """The way in one line, with the command that makes it count."""
        return f"to use {self.gpu}: {self.fix}; then: {TSUKU} install"


class Effort(enum.IntEnum):
    """What a user has to do; the sum counts where two things are in the way."""

    NONE = 0
    VARIABLE = 1
    PACKAGE = 2
    RIGHT = 3
    START = 4
    DRIVER = 6
    SYSTEM = 12
    NEVER = 1000


CLOSED_FILES = (
    *("apparmor-denies", "device-error", "device-rules", "device-without-driver"),
    *("gpu-permission", "nodev", "selinux-denies"),
)
"""The problems of a device file that cannot be opened."""

_EFFORTS = {
    **dict.fromkeys(
        ("cuda-hidden", "rocm-hidden", "vulkan-hidden", "vulkan-driver-hidden"), Effort.VARIABLE
    ),
    **dict.fromkeys(("cuda-stub-library", "zluda", "driver-not-searched"), Effort.VARIABLE),
    "vulkan-driver-file-missing": Effort.VARIABLE,
    **dict.fromkeys(
        ("vulkan-icd-without-loader", "vulkan-loader-without-icd", "vulkan-icd-broken"),
        Effort.PACKAGE,
    ),
    **dict.fromkeys(("software-only", "opencl-loader-without-icd"), Effort.PACKAGE),
    **dict.fromkeys(("vcruntime", "vulkan-no-device"), Effort.PACKAGE),
    **dict.fromkeys((*CLOSED_FILES, "nvidia-uvm-missing", "nvidia-uvm-closed"), Effort.RIGHT),
    **dict.fromkeys(("nvidia-files-missing", "nvidia-module-missing", "cuda-mps"), Effort.RIGHT),
    "nvidia-switched-off": Effort.RIGHT,
    **dict.fromkeys(("cuda-device-busy", "cuda-no-memory", "cuda-not-ready"), Effort.RIGHT),
    "cuda-after-suspend": Effort.RIGHT,
    **dict.fromkeys(("container-without-gpu", "container-lost-gpu"), Effort.START),
    **dict.fromkeys(("glibc", "libstdcxx", "libc", "musl", "macos", "loader"), Effort.SYSTEM),
    **dict.fromkeys(("x86-64-level", "cpu-features", "memory", "word-size"), Effort.NEVER),
    **dict.fromkeys(("cuda-capability", "jetson", "rocm-gfx", "opencl-device"), Effort.NEVER),
    **dict.fromkeys(("vulkan-16bit-storage", "vulkan-limits"), Effort.NEVER),
    **dict.fromkeys(("gpu-set-aside", "unknown-requirement", "hidden-device"), Effort.NEVER),
    "nvidia-too-old": Effort.NEVER,
}
"""The effort for each reason; one that is not here takes a driver."""


def ways_to_gpus(everything: Selection, hardware: Hardware) -> tuple[Way, ...]:
    """Return the cheapest way to each GPU that is not used, and would be better.

    ``everything`` compares all variants of the release. Nothing is returned for a card that no
    effort brings into use.
    """
    found = (
        _cheapest(name, vendor, everything, hardware)
        for name, vendor in _unused(everything, hardware)
    )
    return tuple(way for way in found if way)


def _unused(everything: Selection, hardware: Hardware) -> Iterator[tuple[str, int]]:
    """Yield the cards that would be better than what is used, by name and maker."""
    best = next(iter(everything.compatible), None)
    used = best.gpu if best else None
    told: set[int] = set()
    for name in everything.idle:
        gpus = (gpu for api in hardware.apis for gpu in api.hardware_gpus if gpu.name == name)
        maker = next((gpu.vendor_id for gpu in gpus if gpu.vendor_id), None) or maker_in(name)
        if maker is not None and maker not in told:
            told.add(maker)
            yield name, maker
    # A card that no driver lists: only beside the processor, or a GPU that is part of it.
    if used and used.kind is not GpuKind.INTEGRATED:
        return
    listed = {gpu.vendor_id for api in hardware.apis for gpu in api.hardware_gpus}
    for adapter in adapters_in(hardware.evidence, frozenset({NVIDIA, AMD, INTEL})):
        # Beside an integrated GPU, another maker's adapter is a card; Intel's rarely is.
        rarely = used is not None and adapter.vendor == INTEL
        vendor = adapter.vendor
        if vendor in _MAKERS and vendor not in told | listed and not rarely:
            told.add(vendor)
            yield f"the {_MAKERS[vendor]} GPU ({adapter.name})", vendor


_MAKERS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}


def _cheapest(name: str, vendor: int, everything: Selection, hardware: Hardware) -> Way | None:
    alone = only_of(vendor, hardware)
    found = [
        way
        for variant in everything.variants
        if not variant.parts
        and variant.backend != "cpu"
        and vendor in facts_of(variant.backend).vendors
        and (way := _way(name, vendor, variant, alone))
    ]
    return min(found, key=lambda way: way.effort, default=None)


def _way(name: str, vendor: int, variant: Variant, hardware: Hardware) -> Way | None:
    """Return what this variant needs to use this card, None if nothing helps."""
    system = system_obstacle(variant, hardware)
    # As if the system had everything: then what remains is the driver's, or the card's.
    anywhere = replace(
        hardware,
        libc=None,
        libstdcxx=None,
        cpu=None,
        memory=None,
        os_version=None,
        vcruntime=None,
    )
    device = why_not(variant, anywhere)
    fixes = [system_fix(system.slug, hardware)] if system else []
    effort = _effort_of(system.slug) if system else Effort.NONE
    if device:
        fix, more_effort = _step(variant.backend, vendor, device, hardware)
        fixes.insert(0, fix)
        effort += more_effort
        # It counts for every interface, also where another thing is in the way.
        hidden = hardware.api("cuda").problem
        if hidden and hidden.fix == _UNSET and vendor == NVIDIA and fix != _UNSET:
            fixes.insert(0, _UNSET)
            effort += Effort.VARIABLE
        more = _nvidias_part(hardware) if vendor == NVIDIA and variant.backend == "vulkan" else ""
        if more and more != fix:
            fixes.append(more)
            effort += Effort.PACKAGE
    if effort >= Effort.NEVER or not all(fixes):
        return None
    text = device.text if device else system.text if system else ""
    fix = ", and ".join(fixes) or f"{TSUKU} install --backend {variant.name}"
    return Way(name, variant.backend, variant.name, text, fix, effort)


_UNSET = "unset CUDA_VISIBLE_DEVICES"


def _effort_of(slug: str) -> int:
    return _EFFORTS.get(slug, Effort.DRIVER)


def system_fix(slug: str, hardware: Hardware) -> str:
    """Return what removes an obstacle of the system, "" if that is not known."""
    if slug == "vcruntime":
        return command_for((f"vcruntime-{hardware.arch}",), hardware.packages) or FIXES[slug]
    if slug == "loader":
        return fix_for(Need.LOADER, hardware.place)
    return FIXES.get(slug, "")


def _step(backend: str, vendor: int, reason: Reason, hardware: Hardware) -> tuple[str, int]:
    """Return what brings the cards of a vendor to a driver API, and the effort of that."""
    api, cuda = hardware.api(facts_of(backend).api), hardware.api("cuda")
    machine = next((each for each in hardware.problems if each.slug in OF_MACHINE), None)
    if machine:
        return _of(machine)
    # The kernel's module serves all interfaces of a maker.
    shared = cuda.problem if vendor == NVIDIA and not cuda.gpus else None
    if shared and shared.slug not in _OF_CUDA:
        # What is another interface's: then this one has to work as well.
        return _of(shared, more=0 if api is cuda else 1)
    if api.problem and not api.gpus:
        return _of(api.problem)
    if api.hardware_gpus:
        return _of(Problem(reason.slug, reason.text, FIXES.get(reason.slug, "")))
    # A container may be shown the host's bus without the host's modules.
    if hardware.os == "linux" and not hardware.container:
        cards = adapters_in(hardware.evidence, frozenset({vendor}))
        if problem := undriven(cards, hardware.place):
            return _of(problem)
    return _missing(backend, vendor, hardware)


def _of(problem: Problem, more: int = 0) -> tuple[str, int]:
    return problem.fix, _effort_of(problem.slug) + more


def _missing(backend: str, vendor: int, hardware: Hardware) -> tuple[str, int]:
    """Return how an interface is installed that is missing, or has no driver of a maker."""
    row, cuda = facts_of(backend), hardware.api("cuda")
    api = hardware.api(row.api)
    if api.state is ApiState.NOT_ASKED:
        return "", Effort.NEVER
    # VK_DRIVER_FILES or VK_ICD_FILENAMES: no package adds a driver to what they name.
    named = next((fact.call for fact in api.evidence if fact.call.startswith("VK_")), None)
    if named:
        return f"correct {named}, or unset it", Effort.VARIABLE
    if vendor == NVIDIA and cuda.gpus and api.library is not None:
        # The loader is there and lists no NVIDIA card.
        fix = fix_for(Need.NVIDIA_VULKAN, hardware.place, branch=_branch(cuda))
        return fix, Effort.PACKAGE
    fix = install_api(row, hardware, {vendor})
    known = fix not in (row.api_fix, VENDOR_DRIVER)
    return fix, Effort.PACKAGE if known else Effort.DRIVER


OF_MACHINE = ("wsl-without-gpu", "drivers-not-asked")
"""Problems of the whole machine, which explain those of each API."""

_OF_CUDA = (
    "cuda-hidden",
    "cuda-library-broken",
    "cuda-stub-library",
    "cuda-driver-too-old",
    "zluda",
)
"""Problems of CUDA alone: another interface of the same card may work."""


def _branch(cuda: Api) -> str:
    return (cuda.driver or "").partition(".")[0] or "BRANCH"


def _nvidias_part(hardware: Hardware) -> str:
    """Return how NVIDIA's part for Vulkan is installed, "" where it is there."""
    vulkan, cuda = hardware.api("vulkan"), hardware.api("cuda")
    there = any("nvidia" in fact.call and " → " in fact.call for fact in vulkan.evidence)
    if there or not cuda.gpus or vulkan.library is not None:
        return ""
    return fix_for(Need.NVIDIA_VULKAN, hardware.place, branch=_branch(cuda))


_DISTRIBUTION = "use a newer release of the distribution, for example in a container"
FIXES = {
    "libc": "run it on a glibc distribution, for example in a Debian container",
    "musl": "run it on a musl distribution, for example in an Alpine container",
    "glibc": _DISTRIBUTION,
    "libstdcxx": _DISTRIBUTION,
    "macos": "update macOS",
    "word-size": "install a 64-bit system",
    "hidden-device": "set GGML_VK_VISIBLE_DEVICES as well, or unset the variable that is named",
    "vcruntime": "install Microsoft's Visual C++ runtime (2015 or later)",
    "vulkan": "update the GPU's driver and the Vulkan loader",
    "vulkan-16bit-storage": "use another GPU: this one is too old for llama.cpp's Vulkan backend",
    "vulkan-limits": "use another GPU: this one has too little for llama.cpp's Vulkan backend",
    "rocm-runtime": "install the ROCm runtime that the build needs",
    "cuda-driver": "update NVIDIA's driver",
    "cuda-ptx": "update NVIDIA's driver",
    "jetson": "build llama.cpp with the JetPack's own CUDA",
    "unknown-requirement": "update tsuku-llm",
}
"""The fixes for reasons of ``selection`` that something else than another variant can fix."""


def install_api(backend: BackendFacts, hardware: Hardware, seen: Collection[int | None]) -> str:
    """Say how to install a driver API for the GPUs of these makers: the command, or words."""
    if hardware.os != "linux":
        return VENDOR_DRIVER
    # Without a visible adapter: the packages for all vendors, as the user knows which one it is.
    libraries = [
        library
        for vendor, names in backend.api_libraries.items()
        if vendor in seen or not seen
        for library in names
    ]
    wanted = tuple(dict.fromkeys(libraries))
    command = command_for(wanted, hardware.packages, container=hardware.container)
    return command or backend.api_fix
