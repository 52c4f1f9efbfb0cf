"""Vulkan: the loader, the drivers' files, and every device with its largest local heap.

Numbers: the Vulkan registry, vk.xml (VkPhysicalDeviceType, VkDriverId, VkResult).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tsuku_llm.machine.backends import AMD, INTEL, NVIDIA
from tsuku_llm.machine.fixes import Need, for_any_gpu
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, Gpu, GpuKind, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer, Host
from tsuku_llm.machine.kernel_drivers import undriven
from tsuku_llm.machine.packages import command_for
from tsuku_llm.machine.places import Kind
from tsuku_llm.probe.facts import answers
from tsuku_llm.probe.facts.machine import MachineKind, closed_file, files_fix

DEVICE_LOCAL = 1
DRIVER_LLVMPIPE, DRIVER_SWIFTSHADER, DRIVER_DOZEN = 13, 14, 23
KINDS = {
    1: GpuKind.INTEGRATED,
    2: GpuKind.DISCRETE,
    3: GpuKind.VIRTUAL,
    4: GpuKind.SOFTWARE,
}
SOFTWARE_NAMES = ("llvmpipe", "lavapipe", "swiftshader", "basic render driver")
# In the names of the files of Mesa's and Google's software drivers, and of Dozen.
SOFTWARE_FILES = ("lvp_", "dzn_", "swiftshader")
CODES = {
    0: "VK_SUCCESS",
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    -4: "VK_ERROR_DEVICE_LOST",
    -6: "VK_ERROR_LAYER_NOT_PRESENT",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
}
NO_DRIVER = (-3, -9)
ONLY_DRIVERS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""The variables that replace the loader's search for drivers, the one that wins first."""
LOADER = "libvulkan.so.1"
_MESA = {AMD: "vulkan-driver-amd", INTEL: "vulkan-driver-intel"}
"""Mesa's drivers by the vendor of the GPU, with their names in ``packages``."""


@dataclass(frozen=True, slots=True)
class RawVulkan:
    """The worker's answer, the render nodes with this user's access, and variables.

    ``only`` is the variable that names the drivers of Vulkan's loader, and its value.
    """

    vulkan: DriverAnswer = ABSENT
    nodes: tuple[tuple[str, str], ...] = ()
    visible: str | None = None
    only: tuple[str, str] | None = None


def collect(host: Host, by_question: Mapping[str, DriverAnswer]) -> RawVulkan:
    """Take the worker's answer and look at the render nodes."""
    paths = [f"/dev/dri/{name}" for name in host.list_dir("/dev/dri") or ()]
    nodes = [(path, host.access(path)) for path in paths if "renderD" in path]
    return RawVulkan(
        vulkan=by_question.get("vulkan", ABSENT),
        nodes=tuple((path, access) for path, access in nodes if access is not None),
        visible=host.environment("GGML_VK_VISIBLE_DEVICES"),
        only=next(
            ((name, value) for name in ONLY_DRIVERS if (value := host.environment(name))), None
        ),
    )


def parse(raw: RawVulkan, machine: MachineKind) -> Api:
    """Read the API ``vulkan``."""
    answer = raw.vulkan
    # The loader's own answer was complete before the drivers' files were looked at. A library that
    # the loader passed over, and that breaks the child, takes nothing from it.
    loader = replace(answer, end="done") if answers.calls(answer, "listed") else answer
    state = answers.state(loader, "vkCreateInstance", "vkEnumeratePhysicalDevices")
    lines = answers.calls(answer, "device") if state is ApiState.OK else ()
    gpus = tuple(_gpu(line) for line in lines)
    hardware = [gpu for gpu in gpus if gpu.kind is not GpuKind.SOFTWARE]
    version = None
    if answers.library(answer):
        told = version_text(answers.value(answer, "vkEnumerateInstanceVersion", "version"))
        # The call came with Vulkan 1.1: a loader without it supports 1.0.
        version = told or "1.0"
    return Api(
        name="vulkan",
        state=state,
        library=answers.library(answer),
        version=version,
        gpus=gpus,
        evidence=_evidence(raw),
        problem=None if hardware else _problem(raw, machine, gpus),
    )


def version_text(number: object) -> str | None:
    """Return a packed Vulkan version (variant, major, minor, patch) as text."""
    value = answers.positive(number)
    if value is None:
        return None
    return f"{value >> 22 & 127}.{value >> 12 & 1023}.{value & 4095}"


def _gpu(line: Mapping[str, Any]) -> Gpu:
    name = answers.words(line.get("name")) or "Vulkan device"
    driver = " ".join(
        filter(None, map(answers.words, (line.get("driver"), line.get("driver_info"))))
    )
    limits = _LIMITS.get(answers.integer(line.get("driver_id")), {})
    return Gpu(
        api="vulkan",
        index=answers.integer(line.get("index")) or 0,
        name=name,
        kind=kind(name, answers.integer(line.get("type")), answers.integer(line.get("driver_id"))),
        memory=largest_local_heap(line.get("heaps")),
        vendor_id=answers.integer(line.get("vendor")),
        device_id=answers.integer(line.get("device")),
        api_version=version_text(line.get("api")),
        driver=driver or None,
        uuid=answers.words(line.get("uuid")),
        storage_16bit=_flag(line.get("storage16")),
        shared_memory=answers.positive(line.get("shared_memory", limits.get("shared_memory"))),
        invocations=answers.positive(line.get("invocations", limits.get("invocations"))),
        float_16=_flag(line.get("float16", limits.get("float16"))),
    )


_LIMITS: Mapping[int | None, Mapping[str, Any]] = {
    # Mesa's V3DV, of the Raspberry Pi (ggml-org/llama.cpp#26213).
    19: {"shared_memory": 16384, "invocations": 256, "float16": False},
}
"""What a recording from before these questions lacks, for drivers that have it in common."""


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def kind(name: str, number: int | None, driver: int | None) -> GpuKind:
    """Tell the kind of a device; Dozen (Vulkan over Direct3D in WSL) is OTHER, which ranks last.

    Dozen claims the type of the card behind it, is not conformant, and hangs (ollama/ollama#14854).
    """
    lower = name.lower()
    if driver in (DRIVER_LLVMPIPE, DRIVER_SWIFTSHADER):
        return GpuKind.SOFTWARE
    if any(word in lower for word in SOFTWARE_NAMES):
        return GpuKind.SOFTWARE
    if driver == DRIVER_DOZEN or lower.startswith("microsoft direct3d12"):
        return GpuKind.OTHER
    return KINDS.get(number, GpuKind.OTHER) if number is not None else GpuKind.OTHER


def largest_local_heap(heaps: object) -> int | None:
    """Return bytes of the largest heap that is local to the device."""
    if not isinstance(heaps, list):
        return None
    sizes = [
        size
        for heap in heaps
        if isinstance(heap, list)
        and len(heap) == 2
        and (size := answers.positive(heap[0]))
        and (answers.integer(heap[1]) or 0) & DEVICE_LOCAL
    ]
    return max(sizes, default=None)


def _evidence(raw: RawVulkan) -> tuple[Evidence, ...]:
    found = list(answers.evidence(raw.vulkan, CODES))
    found += [Evidence(path, access or "not readable") for path, access in raw.nodes]
    if raw.visible is not None:
        found.append(Evidence("GGML_VK_VISIBLE_DEVICES", repr(raw.visible)[:300]))
    if raw.only:
        found.append(Evidence(raw.only[0], repr(raw.only[1])[:300]))
    return tuple(found)


# --- problems --------------------------------------------------------------------------


def _problem(raw: RawVulkan, machine: MachineKind, gpus: tuple[Gpu, ...]) -> Problem | None:
    answer = raw.vulkan
    broken = answers.broken(answer, "a Vulkan driver")
    if broken:
        return broken
    files = answers.calls(answer, "icd")
    if answers.library(answer) is None:
        return _loader_problem(answer, machine)
    closed = [node for node in raw.nodes if node[1] != "rw"]
    if closed:
        return _icd_problem(files, machine) or closed_file(machine, *closed[0])
    # A driver that does not load, or that a variable hides, explains why only a software device,
    # or none, is left.
    return (
        _icd_problem(files, machine)
        or _variable_problem(files)
        or _undriven(machine)
        or _without_files(raw, machine)
        or _only_problem(raw, machine)
        or _too_old(raw, machine, gpus)
        or _software_problem(gpus, machine)
        or _error_problem(answer, machine)
    )


def _undriven(machine: MachineKind) -> Problem | None:
    cards = [card for card in machine.pci if card.vendor in _MESA]
    # A container may be shown the host's bus without the host's modules.
    hidden = machine.place.contained and any(card.driver is None for card in cards)
    return None if hidden else undriven(cards, machine.place)


def _installed(answer: DriverAnswer) -> tuple[Mapping[str, Any], ...]:
    """Return the drivers' files that exist: a variable may name files that do not."""
    return tuple(line for line in answers.calls(answer, "icd") if line.get("missing") is not True)


def _loader_problem(answer: DriverAnswer, machine: MachineKind) -> Problem | None:
    error = answers.missing_dependency(answer)
    if error:
        text = f"the Vulkan loader is installed but does not load: {error}"
        fix = answers.reinstall(error, machine.library_path, "the Vulkan loader")
        return Problem("vulkan-loader-broken", text, fix)
    if machine.place.systems[:1] == ("nixos",) and machine.pci:
        text = "Vulkan's loader is where only programs of NixOS look"
        return Problem("driver-not-searched", text, machine.fix(Need.NIX_VULKAN))
    if not _installed(answer):
        return None
    command = command_for((LOADER,), machine.packages, container=machine.place.contained)
    return Problem(
        "vulkan-icd-without-loader",
        f"a Vulkan driver is installed, but the Vulkan loader ({LOADER}) is not",
        command or f"install the Vulkan loader ({LOADER})",
    )


def _icd_problem(files: tuple[Mapping[str, Any], ...], machine: MachineKind) -> Problem | None:
    """Return the problem of the first driver of this word size that does not load."""
    for line in files:
        name, error = answers.words(line.get("library")), answers.words(line.get("error"))
        # A 32-bit driver next to the 64-bit one is normal.
        if not name or not error or "ELFCLASS32" in error:
            continue
        # The loader's message begins with the file that it misses.
        wanted = posixpath.basename(error.partition(":")[0])
        command = command_for((wanted,), machine.packages, container=machine.place.contained)
        fix = command or f"install what provides {wanted}"
        if wanted == posixpath.basename(name):
            fix = "reinstall the GPU's driver, or remove its file from vulkan/icd.d"
        text = f"the Vulkan driver {name} does not load: {error}"
        return Problem("vulkan-icd-broken", text, answers.limit_fix(error) or fix)
    return None


def _variable_problem(files: tuple[Mapping[str, Any], ...]) -> Problem | None:
    """Return the problem of a variable that hides a driver, or names one that does not exist."""
    for line in files:
        name, path = answers.words(line.get("variable")), answers.words(line.get("file"))
        if not name or any(word in (path or "") for word in SOFTWARE_FILES):
            continue
        slug = "vulkan-driver-file-missing"
        if path is None:
            text = f"{name} is set but names no driver, so the Vulkan loader finds none"
        elif line.get("missing") is True:
            text = f"{name} names the Vulkan driver {path}, which does not exist"
        else:
            slug = "vulkan-driver-hidden"
            text = f"{name} makes the Vulkan loader leave out the driver {posixpath.basename(path)}"
        return Problem(slug, text, f"correct {name}, or unset it")
    return None


def _without_files(raw: RawVulkan, machine: MachineKind) -> Problem | None:
    """Return the problem of a process whose own /dev has no render node."""
    own_dev = "private-dev" in machine.place.systems
    if raw.nodes or not own_dev or not _installed(raw.vulkan):
        return None
    return replace(_NO_DEVICE, fix=files_fix(machine, "/dev/dri"))


def _only_problem(raw: RawVulkan, machine: MachineKind) -> Problem | None:
    """Return the problem of a variable that leaves the loader no driver with a GPU."""
    # A container sees its host's bus, also without a GPU of its own.
    on_bus = any(machine.has_pci(each) for each in (NVIDIA, *_MESA)) and not machine.place.contained
    if raw.only is None or not (raw.nodes or on_bus):
        return None
    name, value = raw.only
    text = f"{name}={value!r} leaves out all other Vulkan drivers, and these list no GPU"
    return Problem("vulkan-driver-hidden", text, f"correct {name}, or unset it")


def _software_problem(gpus: tuple[Gpu, ...], machine: MachineKind) -> Problem | None:
    if not gpus:
        return None
    names = ", ".join(gpu.name for gpu in gpus)
    text = f"Vulkan has only a software device ({names})"
    if machine.place.contained:
        # A software device is Mesa's: its drivers are installed.
        return Problem("software-only", text, _container_fix(machine, has_drivers=True))
    if machine.place.wsl:
        return Problem("software-only", text, _SOFTWARE_WSL)
    mine = any(machine.has_pci(vendor) for vendor in (NVIDIA, *_MESA))
    return Problem("software-only", text, ("" if mine else for_any_gpu(machine.place)) or _SOFTWARE)


_DRIVERS = {AMD: ("radeon", "amd"), INTEL: ("intel",)}
"""Parts of the names of Mesa's and AMD's drivers' files, by the maker of the GPU."""


def _too_old(raw: RawVulkan, machine: MachineKind, gpus: tuple[Gpu, ...]) -> Problem | None:
    """Return the problem of a driver that is there, may open the GPU, and does not list it."""
    if not any(access == "rw" for _, access in raw.nodes):
        return None
    mesa = next((gpu.driver for gpu in gpus if gpu.driver and "Mesa" in gpu.driver), "")
    of = f" ({mesa.partition(' ')[2]})" if mesa else ""
    files = [posixpath.basename(str(each.get("file"))) for each in _installed(raw.vulkan)]
    for vendor, names in _DRIVERS.items():
        installed = any(name in file for name in names for file in files)
        if installed and machine.has_pci(vendor):
            text = f"the Vulkan driver of this GPU is installed{of}, and too old for it"
            return Problem("vulkan-driver-too-old", text, machine.fix(Need.NEWER_MESA))
    # A GPU that is no device of the PCI bus is part of the processor, such as Apple's.
    if mesa and not machine.pci and machine.place.kind is Kind.BARE_METAL:
        text = f"this Mesa{of} has no Vulkan driver for the GPU that the kernel drives"
        return Problem("vulkan-driver-too-old", text, machine.fix(Need.NEWER_MESA))
    return None


def _container_fix(machine: MachineKind, *, has_drivers: bool) -> str:
    """Return the fix for a container, which has only the drivers and devices it was given."""
    if machine.has_pci(NVIDIA):
        return machine.fix(Need.NVIDIA_VULKAN)
    fix = files_fix(machine, "/dev/dri")
    if not has_drivers:
        command = command_for(tuple(_MESA.values()), machine.packages, container=True)
        fix = f"in the container: {command or 'install its Vulkan driver'}; {fix}"
    if machine.has_pci(AMD) or machine.has_pci(INTEL):
        return fix
    # The bus shows no GPU: there may be none, or this container may not see the bus.
    return f"if the host has an AMD or Intel GPU: {fix}; if it has none, nothing is wrong"


def _driver_fix(machine: MachineKind) -> str:
    """Return how to get the Vulkan driver of the GPUs on the bus, or of the usual ones."""
    seen = tuple(name for vendor, name in _MESA.items() if machine.has_pci(vendor))
    if machine.has_pci(NVIDIA) and not seen:
        return "install NVIDIA's driver with its part for Vulkan"
    command = command_for(seen or tuple(_MESA.values()), machine.packages)
    if seen:
        return command or "install Mesa's Vulkan drivers"
    return f"AMD and Intel: {command}; NVIDIA: install its driver" if command else _SOFTWARE


def _error_problem(answer: DriverAnswer, machine: MachineKind) -> Problem | None:
    calls = ("vkCreateInstance", "vkEnumeratePhysicalDevices")
    codes = [answers.code(answer, call) for call in calls]
    none_listed = answers.value(answer, "vkEnumeratePhysicalDevices", "count") == 0
    no_driver = none_listed or any(number in NO_DRIVER for number in codes)
    if no_driver and machine.os != "linux":
        return replace(_NO_ICD, fix="install the GPU's driver from its vendor")
    if no_driver:
        has_drivers = bool(_installed(answer))
        problem = _NO_DEVICE if has_drivers else replace(_NO_ICD, fix=_driver_fix(machine))
        if not machine.place.contained:
            return problem
        return replace(problem, fix=_container_fix(machine, has_drivers=has_drivers))
    for call, number in zip(calls, codes, strict=True):
        if number:
            text = f"Vulkan does not initialise: {call} returned {number} ({CODES.get(number)})"
            return Problem("vulkan-error", text, "reinstall the GPU's Vulkan driver")
    return None


_NO_ICD = Problem(
    "vulkan-loader-without-icd",
    "the Vulkan loader is installed, but no Vulkan driver",
    "install the Vulkan driver of this machine's GPU",
)
_NO_DEVICE = Problem(
    "vulkan-no-device",
    "Vulkan drivers are installed, but none of them finds a device",
    "install the driver of this machine's GPU",
)
_SOFTWARE = "install the Vulkan driver of this machine's GPU, if it has one"
_SOFTWARE_WSL = "update the GPU's driver in Windows, and Mesa in this distribution"
