"""CUDA: the answers of the driver API and of NVML, combined.

Codes: cuda.h (``CUresult``) and nvml.h (``nvmlReturn_t``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tsuku_llm.ground.own_name import SUDO
from tsuku_llm.machine.backends import NVIDIA
from tsuku_llm.machine.fixes import Need
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, Gpu, GpuKind, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer, Host
from tsuku_llm.machine.kernel_drivers import (
    CLOSED,
    MODULE_SWITCHES,
    OPEN,
    SET_ASIDE,
    WITHOUT_VULKAN,
    BusCard,
    Generation,
    generation_of,
    keeps_nvidia_away,
)
from tsuku_llm.machine.places import OWN_LIBRARIES
from tsuku_llm.probe.facts import answers
from tsuku_llm.probe.facts.machine import MachineKind, closed_file

KERNEL_MODULE = "/proc/driver/nvidia/version"
CONTROL_DEVICE = "/dev/nvidiactl"
UVM_DEVICE = "/dev/nvidia-uvm"
NIX_DRIVERS = "/run/opengl-driver/lib"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
ORDER = "CUDA_DEVICE_ORDER"
_ORDERS = "FASTEST_FIRST, PCI_BUS_ID"

CUDA_CODES = {
    0: "CUDA_SUCCESS",
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    35: "cudaErrorInsufficientDriver",
    36: "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    805: "CUDA_ERROR_MPS_CONNECTION_FAILED",
    806: "CUDA_ERROR_MPS_RPC_FAILURE",
    807: "CUDA_ERROR_MPS_SERVER_NOT_READY",
    808: "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
    809: "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
    810: "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    999: "CUDA_ERROR_UNKNOWN",
}
NVML_CODES = {
    0: "NVML_SUCCESS",
    4: "NVML_ERROR_NO_PERMISSION",
    9: "NVML_ERROR_DRIVER_NOT_LOADED",
    12: "NVML_ERROR_LIBRARY_NOT_FOUND",
    15: "NVML_ERROR_GPU_IS_LOST",
    18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    999: "NVML_ERROR_UNKNOWN",
}
# The newest CUDA that each branch of the driver supports, newest branch first. Source: the table of
# minimum drivers in the release notes of each toolkit, and nvidia-smi of branches without one.
CUDA_OF_BRANCH = (
    (610, "13.3"),
    (595, "13.2"),
    (590, "13.1"),
    (580, "13.0"),
    (575, "12.9"),
    (570, "12.8"),
    (565, "12.7"),
    (560, "12.6"),
    (555, "12.5"),
    (550, "12.4"),
    (545, "12.3"),
    (535, "12.2"),
    (530, "12.1"),
    (525, "12.0"),
    (520, "11.8"),
    (515, "11.7"),
    (510, "11.6"),
    (495, "11.5"),
    (470, "11.4"),
    (465, "11.3"),
    (460, "11.2"),
    (455, "11.1"),
    (450, "11.0"),
)
# A driver's version, such as 580.159.04.
_VERSION = re.compile(r"\b\d{3,4}(?:\.\d{1,4}){1,2}\b")


@dataclass(frozen=True, slots=True)
class RawNvidia:
    """The raw answers: two APIs, the kernel module's text, variables, two device files.

    ``cards`` are the cards' device files with this user's access, if the driver lists no card.
    ``no_uvm`` tells that /dev/nvidia-uvm is known not to exist: older recordings do not say.
    ``nix`` tells that the driver's library is where only programs of NixOS look. ``kept_away`` is
    the program that keeps the kernel module from being loaded, "" if a person does, and the file.
    """

    cuda: DriverAnswer = ABSENT
    nvml: DriverAnswer = ABSENT
    kernel: str | None = None
    visible: str | None = None
    order: str | None = None
    control: str | None = None
    uvm: str | None = None
    cards: tuple[tuple[str, str], ...] = ()
    no_uvm: bool = False
    mps: str | None = None
    nix: bool = False
    kept_away: tuple[str, str] | None = None


def collect(host: Host, by_question: Mapping[str, DriverAnswer]) -> RawNvidia:
    """Take the answers of both APIs and ask for the supporting facts."""
    cuda = by_question.get("cuda", ABSENT)
    none_listed = answers.code(cuda, "cuInit") == NO_DEVICE
    return RawNvidia(
        cuda=cuda,
        nvml=by_question.get("nvml", ABSENT),
        kernel=host.read_text(KERNEL_MODULE),
        visible=host.environment("CUDA_VISIBLE_DEVICES"),
        order=host.environment(ORDER),
        control=host.access(CONTROL_DEVICE),
        uvm=host.access(UVM_DEVICE),
        cards=tuple(_card_files(host)) if none_listed else (),
        no_uvm=host.lacks(UVM_DEVICE),
        mps=host.environment(MPS_PIPE),
        nix=any(name.startswith("libcuda.so") for name in host.list_dir(NIX_DRIVERS) or ()),
        kept_away=_kept_away(host),
    )


def _card_files(host: Host) -> Iterator[tuple[str, str]]:
    for number in range(_MOST_CARDS):
        access = host.access(f"/dev/nvidia{number}")
        if access is None:
            return
        yield f"/dev/nvidia{number}", access


_MOST_CARDS = 16


def _kept_away(host: Host) -> tuple[str, str] | None:
    for file, word, program in MODULE_SWITCHES:
        text = host.read_text(file) or ""
        if word in text and keeps_nvidia_away(text):
            return program, file
    return None


def parse(raw: RawNvidia, machine: MachineKind) -> Api:
    """Read the API ``cuda`` from everything that NVIDIA's libraries and files said."""
    state = answers.state(raw.cuda, "cuInit", "cuDeviceGetCount")
    zluda = _is_zluda(raw)
    driver = driver_version(raw)
    lines = answers.calls(raw.cuda, "device") if state is ApiState.OK and not zluda else ()
    # A driver also lists cards that no build can use.
    lines = () if _too_old(raw, machine) else lines
    gpus = tuple(_gpu(line, driver) for line in lines if answers.integer(line.get("code")) == 0)
    told = cuda_version(answers.value(raw.cuda, "cuDriverGetVersion", "version"))
    # A Jetson's driver has branches of its own.
    branch = None if machine.tegra else cuda_of_driver(driver)
    evidence = _evidence(raw)
    if branch and not told and answers.library(raw.cuda):
        evidence += (Evidence(f"driver {driver}", f"CUDA {branch} at most"),)
    return Api(
        name="cuda",
        state=state,
        library=answers.library(raw.cuda),
        # The driver's own word comes first: a compatibility library raises it.
        version=told or branch,
        driver=driver,
        gpus=gpus,
        evidence=evidence,
        problem=None if gpus else _ZLUDA if zluda else _problem(raw, machine, state),
    )


def _is_zluda(raw: RawNvidia) -> bool:
    """Tell whether libcuda is ZLUDA's, which translates CUDA for other GPUs."""
    names = (str(line.get("name")) for line in answers.calls(raw.cuda, "device"))
    return "zluda" in (answers.library(raw.cuda) or "").lower() or any(
        "[ZLUDA]" in name for name in names
    )


def cuda_version(number: object) -> str | None:
    """Return the version as text: 12080 is CUDA 12.8."""
    value = answers.positive(number)
    return f"{value // 1000}.{value % 1000 // 10}" if value else None


def cuda_of_driver(version: str | None) -> str | None:
    """Return the newest CUDA that a driver supports, by its branch; None for an unknown branch.

    A branch that is newer than the table may support any version. Between two branches of the
    table the older one counts, and before the first one CUDA 10.
    """
    branch = int(version.partition(".")[0]) if version else None
    if branch is None or branch > CUDA_OF_BRANCH[0][0]:
        return None
    return next((cuda for first, cuda in CUDA_OF_BRANCH if branch >= first), "10.2")


def driver_version(raw: RawNvidia) -> str | None:
    """Return the version from NVML, else the kernel module's, else from libcuda's file name."""
    nvml = answers.dotted(answers.value(raw.nvml, "nvmlSystemGetDriverVersion", "version"))
    return nvml or kernel_version(raw.kernel) or _version_in(answers.library(raw.cuda))


def kernel_version(text: str | None) -> str | None:
    """Return the version of the loaded kernel module, from the first line of its text."""
    return _version_in(text.partition("\n")[0]) if text else None


def kernel_flavour(text: str | None) -> str | None:
    """Return the flavour of the loaded kernel module, which its text names since branch 515."""
    first = text.partition("\n")[0] if text else ""
    if "Open Kernel Module" in first:
        return OPEN
    return CLOSED if "Kernel Module" in first else None


def _version_in(text: str | None) -> str | None:
    match = _VERSION.search(text) if text else None
    return match[0] if match else None


def _gpu(line: Mapping[str, Any], driver: str | None) -> Gpu:
    integrated = answers.integer(line.get("integrated"))
    return Gpu(
        api="cuda",
        index=answers.integer(line.get("index")) or 0,
        name=answers.words(line.get("name")) or "NVIDIA device",
        kind=GpuKind.INTEGRATED if integrated else GpuKind.DISCRETE,
        memory=answers.positive(line.get("memory")),
        vendor_id=NVIDIA,
        compute_capability=_capability(line.get("capability")),
        driver=driver,
        uuid=answers.words(line.get("uuid")),
    )


def _capability(pair: object) -> str | None:
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    major, minor = answers.integer(pair[0]), answers.integer(pair[1])
    if major is None or minor is None or major < 0 or minor < 0:
        return None
    return f"{major}.{minor}"


def _evidence(raw: RawNvidia) -> tuple[Evidence, ...]:
    found = [*answers.evidence(raw.cuda, CUDA_CODES), *answers.evidence(raw.nvml, NVML_CODES)]
    if raw.kernel is not None:
        found.append(Evidence(KERNEL_MODULE, kernel_version(raw.kernel) or "present"))
    if raw.visible is not None:
        found.append(Evidence("CUDA_VISIBLE_DEVICES", repr(raw.visible)[:300]))
    if raw.mps is not None:
        found.append(Evidence(MPS_PIPE, repr(raw.mps)[:300]))
    if raw.no_uvm and raw.control is not None:
        found.append(Evidence(UVM_DEVICE, "does not exist"))
    return tuple(found)


# --- problems --------------------------------------------------------------------------


def _problem(raw: RawNvidia, machine: MachineKind, state: ApiState) -> Problem | None:
    found = _found(raw, machine, state)
    # The driver of WSL is a part of the one of Windows.
    if found and machine.place.wsl and found.slug in _OF_WINDOWS:
        return replace(found, fix=machine.fix(Need.WSL_NVIDIA))
    return found


_OF_WINDOWS = (
    *("cuda-after-suspend", "cuda-driver-too-old", "cuda-error", "cuda-no-device"),
    *("driver-crashed", "driver-updated-reboot"),
)


def _found(raw: RawNvidia, machine: MachineKind, state: ApiState) -> Problem | None:
    broken = answers.broken(raw.cuda, "NVIDIA's CUDA driver")
    # Without a child nothing is known of the driver: ``answers.not_asked`` tells why.
    if broken or state is ApiState.NOT_STARTED:
        return broken
    if answers.library(raw.cuda) is None:
        return _library_problem(raw, machine)
    # A mismatch comes first: NVML or the version numbers can show it when cuInit's code is less
    # specific.
    if mismatch := _mismatch(raw, machine):
        return mismatch
    init = answers.code(raw.cuda, "cuInit")
    # The driver initialised, or says NO_DEVICE or INVALID_DEVICE: it works, but sees no GPU.
    # The first check that finds a cause says why.
    if init in (0, NO_DEVICE, INVALID_DEVICE):
        found = (check(raw, machine) for check in _CHECKS)
        return next((each for each in found if each), _NO_DEVICE)
    named = _named(raw, machine, init) or (_other(raw, init) if state is ApiState.FAILED else None)
    # The fixes are Linux commands.
    return named if named is None or machine.os == "linux" else replace(named, fix=_RESTART)


def _named(raw: RawNvidia, machine: MachineKind, init: int | None) -> Problem | None:
    """Return the problem that a code of cuInit names, with what helps in this place."""
    if init in _WITHOUT_UVM and (found := _uvm(raw, machine)):
        return found
    if init in _TEMPORARY:
        slug, text, need = _TEMPORARY[init]
        return Problem(slug, text, machine.fix(need), transient=True)
    return _INIT_PROBLEMS.get(init) if init is not None else None


_WITHOUT_UVM = (3, 304, 999)
"""The codes of cuInit where it cannot open /dev/nvidia-uvm; which one, depends on the version."""


def _uvm(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of the device file for CUDA's memory, if that is what is missing."""
    # WSL and Jetsons have other device files.
    if machine.os != "linux" or machine.place.wsl or machine.tegra:
        return None
    if raw.no_uvm:
        text = f"NVIDIA's driver has no {UVM_DEVICE} here, which CUDA needs"
        fix = machine.fix(Need.NVIDIA_UVM)
        return Problem("nvidia-uvm-missing", text, fix, transient=True)
    if raw.uvm is not None and raw.uvm != "rw":
        text = f"{UVM_DEVICE} may not be opened here, and CUDA needs it"
        fix = machine.fix(Need.NVIDIA_UVM_CLOSED)
        # What is not a device rule has a cause and a fix that all device files share.
        shared = closed_file(machine, UVM_DEVICE, raw.uvm)
        known = shared.slug in ("gpu-permission", "device-rules")
        return Problem("nvidia-uvm-closed", text, fix) if known else shared
    return None


def _library_problem(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    error = answers.missing_dependency(raw.cuda)
    if error:
        text = f"NVIDIA's libcuda is installed but does not load: {error}"
        fix = answers.reinstall(error, machine.library_path, "the NVIDIA driver's packages")
        return Problem("cuda-library-broken", text, fix)
    if raw.nix:
        text = f"NVIDIA's driver library is in {NIX_DRIVERS}, where only programs of NixOS look"
        return Problem("driver-not-searched", text, machine.fix(Need.NIX_DRIVER))
    # No sign of an NVIDIA GPU: a missing driver is not a problem.
    if not machine.has_pci(NVIDIA) and raw.kernel is None:
        return None
    if found := _too_old(raw, machine) or _held(raw, machine, SET_ASIDE):
        return found
    if machine.place.contained:
        return _container(raw, machine)
    text = "there is an NVIDIA GPU, but its driver library (libcuda) is not installed"
    return Problem("nvidia-driver-missing", text, _driver_fix(machine))


def _driver_fix(machine: MachineKind) -> str:
    """Return how to install the driver, of a branch that serves the card."""
    for each in machine.of_vendor(NVIDIA):
        served = generation_of(each.device)
        if served and served.last:
            return machine.fix(Need.NVIDIA_LEGACY, branch=str(served.last))
        if served and CLOSED not in served.modules:
            more = f"a {served.name} card needs the branch {served.first} or newer"
            return f"{machine.fix(Need.NVIDIA_DRIVER)}; {more}, with its open kernel modules"
    return machine.fix(Need.NVIDIA_DRIVER)


def _mismatch(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of a user library with another version than the loaded kernel module."""
    # SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE, and NVML's LIB_RM_VERSION_MISMATCH.
    cuda, nvml = answers.code(raw.cuda, "cuInit"), answers.code(raw.nvml, "nvmlInit_v2")
    user = answers.dotted(answers.value(raw.nvml, "nvmlSystemGetDriverVersion", "version"))
    kernel = kernel_version(raw.kernel)
    differs = cuda and user and kernel and user != kernel
    if cuda not in (803, 804) and nvml != 18 and not differs:
        return None
    path = answers.library(raw.cuda) or ""
    library = _version_in(path)
    facts = f" (module {kernel}, library {library})" if kernel and library else ""
    # CUDA's forward-compatibility libraries support few GPUs, mostly those of data centres. Without
    # them, 804 is what a driver says that was updated (ollama/ollama#15918).
    aside = "; or take CUDA's compat folder out of LD_LIBRARY_PATH" if "/compat/" in path else ""
    fix = machine.fix(Need.NVIDIA_SAME_VERSION, version=kernel or "the host's version")
    return Problem(
        "driver-updated-reboot",
        f"NVIDIA's user library does not match the kernel module that is loaded{facts}",
        f"{fix}{aside}",
        transient=True,
    )


def _container(raw: RawNvidia, machine: MachineKind) -> Problem:
    """Say what this place has of NVIDIA's GPU, and what it lacks."""
    # The kernel module's text and the bus are the host's, also in a container.
    sees = machine.has_pci(NVIDIA) or raw.kernel is not None
    library = answers.library(raw.cuda) is not None
    place = machine.place.name
    need = Need.NVIDIA_GPU
    if sees and library:
        text = f"this {place} sees an NVIDIA GPU but was not given its device ({CONTROL_DEVICE})"
    elif sees:
        text = f"this {place} sees an NVIDIA GPU but was not given its driver"
        if raw.control is not None and machine.place.kind in OWN_LIBRARIES:
            need = Need.NVIDIA_LIBRARIES
    else:
        text = f"this {place} has NVIDIA's driver library, but no NVIDIA GPU is visible in it"
    version = kernel_version(raw.kernel) or "VERSION"
    give = machine.fix(need, version=version, dashed=version.replace(".", "-"))
    fix = give if sees else f"if the host has an NVIDIA GPU: {give}"
    return Problem("container-without-gpu", text, fix)


HOLDERS = (*SET_ASIDE, "nouveau", "nova_core", "nova")
"""Kernel modules that keep NVIDIA's own from a card."""


def _held(_: RawNvidia, machine: MachineKind, modules: tuple[str, ...] = HOLDERS) -> Problem | None:
    """Return the problem of cards that other kernel modules hold, if that is all of them."""
    cards = machine.of_vendor(NVIDIA)
    held = [each for each in cards if each.driver in modules]
    if not held or len(held) < len(cards):
        return None
    card, module = held[0], held[0].driver or ""
    if module in SET_ASIDE:
        text = f"the NVIDIA GPU {card.slot} is reserved for a virtual machine ({module})"
        return Problem("gpu-set-aside", text, machine.fix(Need.SET_ASIDE))
    text = f"the NVIDIA GPU {card.slot} is held by the module {module}, so nvidia cannot use it"
    return Problem("nouveau", text, machine.fix(Need.NOUVEAU, module=module))


def _mig(raw: RawNvidia, _: MachineKind) -> Problem | None:
    if not any(answers.integer(line.get("mig")) for line in answers.calls(raw.nvml, "device")):
        return None
    return Problem(
        "mig-without-instance",
        "the NVIDIA GPU is in MIG mode and offers no instance here",
        f"create one: {SUDO}nvidia-smi mig -cgi 0 -C; or pass one to this container",
    )


def _lost(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of a card that fell off the bus while the driver ran."""
    codes = [answers.code(raw.nvml, "nvmlInit_v2")]
    codes += [answers.integer(line.get("code")) for line in answers.calls(raw.nvml, "device")]
    if GPU_IS_LOST not in codes:
        return None
    text = "the NVIDIA GPU is lost: it fell off the bus and does not answer any more"
    return Problem("nvidia-card-lost", text, machine.fix(Need.NVIDIA_LOST), transient=True)


GPU_IS_LOST = 15


def _not_given(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    given = raw.control is not None or machine.place.wsl
    return _container(raw, machine) if machine.place.contained and not given else None


def _switched_off(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of a module that a program for hybrid graphics, or a person, keeps away.

    The files of a container are not the host's.
    """
    # WSL has another kernel module, which no file of its own keeps away.
    place = machine.place
    if raw.kept_away is None or raw.kernel is not None or place.contained or place.wsl:
        return None
    program, file = raw.kept_away
    text = f"{program or 'a file'} keeps NVIDIA's kernel module from being loaded ({file})"
    fix = machine.fix(Need.NVIDIA_SWITCHED_OFF, program=program, file=file)
    return Problem("nvidia-switched-off", text, fix)


def _off_bus(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of a driver without a card: unplugged, off, removed, or left over."""
    # WSL has Microsoft's adapters on its bus. A container with device files has a card of its host.
    given = machine.place.contained and raw.control is not None
    if not machine.pci or machine.has_pci(NVIDIA) or machine.place.wsl or machine.tegra or given:
        return None
    text = "NVIDIA's driver is installed, but there is no NVIDIA GPU on the PCI bus"
    return Problem("cuda-no-device", text, machine.fix(Need.NVIDIA_OFF_BUS))


def _no_module(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    # Without a module and its device files no variable and no permission decides.
    if machine.os != "linux" or raw.control is not None:
        return None
    return _leftover(raw, machine)


def _leftover(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of a driver without its kernel module."""
    # WSL has other device files, and another kernel module.
    if raw.kernel is not None or machine.place.wsl or machine.os != "linux":
        return None
    text = "NVIDIA's library is installed, but its kernel module is not loaded"
    return Problem("nvidia-module-missing", text, machine.fix(Need.NVIDIA_MODULE))


def _hidden(raw: RawNvidia, _: MachineKind) -> Problem | None:
    if raw.order is not None and answers.code(raw.cuda, "cuInit") == INVALID_DEVICE:
        # The driver refuses every other value with this code (two H200s, driver 580.159.04).
        text = f"{ORDER}={raw.order!r} is not an order that NVIDIA's driver knows ({_ORDERS})"
        return Problem("cuda-hidden", text, f"unset {ORDER}")
    if raw.visible is None:
        return None
    text = f"CUDA_VISIBLE_DEVICES={raw.visible!r} leaves no NVIDIA GPU of this machine visible"
    return Problem("cuda-hidden", text, "unset CUDA_VISIBLE_DEVICES")


def _closed(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    managed = answers.code(raw.nvml, "nvmlInit_v2")
    if (raw.control is None or raw.control == "rw") and managed != NO_PERMISSION:
        # A job of a cluster may open the control file, and not one card (Slurm, ConstrainDevices).
        usable = not raw.cards or any(access == "rw" for _, access in raw.cards)
        return None if usable else closed_file(machine, *raw.cards[0])
    # NVML's refusal is a permission's, also where the node itself opens.
    access = "" if raw.control in (None, "rw") else raw.control
    return closed_file(machine, CONTROL_DEVICE, access)


NO_PERMISSION = 4
NO_DEVICE = 100
INVALID_DEVICE = 101


def _no_files(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of a module that is loaded and whose device files are not made yet."""
    if raw.kernel is None or raw.control is not None or machine.place.wsl or machine.tegra:
        return None
    fix, own_dev = machine.fix(Need.NVIDIA_FILES), "private-dev" in machine.place.systems
    text = "NVIDIA's module is loaded, but its device files (/dev/nvidia*) are not made yet"
    if own_dev:
        text = "NVIDIA's module is loaded, and this process has a /dev without its device files"
    return Problem("nvidia-files-missing", text, fix, transient=not own_dev)


def _taken_away(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of a container whose device rules were loaded again without its GPU."""
    if not machine.place.contained or answers.code(raw.nvml, "nvmlInit_v2") != UNKNOWN_ERROR:
        return None
    text = f"this {machine.place.name} may not open the device files of its GPU any more"
    return Problem("container-lost-gpu", text, machine.fix(Need.DEVICE_RULES), transient=True)


UNKNOWN_ERROR = 999


def _not_started(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    cards = machine.of_vendor(NVIDIA)
    # The module lets go of a card that it cannot start at its own start (NVSentinel#155).
    unbound = raw.kernel is not None and not any(each.driver for each in cards)
    listed = answers.value(raw.nvml, "nvmlDeviceGetCount_v2", "count")
    if not cards or not (unbound or listed == 0) or machine.os != "linux" or machine.place.wsl:
        return None
    text, need = "NVIDIA's module serves this card, but could not start it", Need.NVIDIA_START
    asleep = next((each.slot for each in cards if each.power == "D3cold"), None)
    if asleep:
        text, need = f"the NVIDIA GPU {asleep} is without power (D3cold), and stays so", Need.D3COLD
    fix = machine.fix(need, slot=asleep or "")
    return Problem("nvidia-card-not-started", text, fix)


def _refused(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return why the driver serves none of the cards: its branch, or its module's flavour."""
    version = kernel_version(raw.kernel) or _version_in(answers.library(raw.cuda))
    if version is None or machine.os != "linux" or machine.place.wsl:
        return None
    branch, flavour = int(version.partition(".")[0]), kernel_flavour(raw.kernel)
    cards = machine.of_vendor(NVIDIA)
    found = [_misfit(each, generation_of(each.device), branch, flavour, machine) for each in cards]
    # One card that it serves is enough to look for another reason.
    return None if not found or None in found else found[0]


def left_out(
    host: Host, by_question: Mapping[str, DriverAnswer], machine: MachineKind
) -> tuple[Problem, ...]:
    """Return the problem of a card that the driver does not serve beside one that it serves.

    What helps one card must not take the other one away: no driver serves a Pascal and a Blackwell.
    """
    kernel, place = host.read_text(KERNEL_MODULE), machine.place
    version = kernel_version(kernel)
    works = answers.calls(by_question.get("cuda", ABSENT), "device")
    if version is None or not works or place.contained or place.wsl:
        return ()
    branch, flavour = int(version.partition(".")[0]), kernel_flavour(kernel)
    cards = {
        card: served
        for card in machine.of_vendor(NVIDIA)
        if card.driver in ("nvidia", None)
        and (served := generation_of(card.device))
        and served.name not in WITHOUT_VULKAN
    }
    out = [each for each in cards if _misfit(each, cards[each], branch, flavour, machine)]
    if not out or len(out) == len(cards):
        return ()
    first = max(each.first for each in cards.values())
    last = min((each.last for each in cards.values() if each.last), default=0)
    modules = frozenset.intersection(*(each.modules for each in cards.values()))
    fix = "no driver serves all of them: use the card in another machine, or in a virtual one"
    if modules and (not last or first <= last):
        branches = f"the branch {last}" if last else f"the branch {first} or newer"
        kinds = f", with its {next(iter(modules))} kernel modules" if len(modules) == 1 else ""
        fix = f"install NVIDIA's driver of {branches}{kinds}: it serves all of them"
    text = (
        f"the driver that serves other NVIDIA cards here ({version}, {flavour or 'old'} modules) "
        f"does not serve the GPU {out[0].slot} ({cards[out[0]].name})"
    )
    return (Problem("nvidia-card-left-out", text, fix),)


def _too_old(_: RawNvidia, machine: MachineKind) -> Problem | None:
    """Return the problem of cards that no build can use, with whatever driver."""
    cards = machine.of_vendor(NVIDIA)
    served = [generation_of(each.device) for each in cards]
    if not cards or not all(each and each.name in WITHOUT_VULKAN for each in served):
        return None
    text = f"no build can use the NVIDIA GPU {cards[0].slot}: its generation has no Vulkan"
    return Problem("nvidia-too-old", text, "use the processor: no driver changes that")


def _misfit(
    card: BusCard,
    served: Generation | None,
    branch: int,
    flavour: str | None,
    machine: MachineKind,
) -> Problem | None:
    if served is None:
        return None
    name = f"the NVIDIA GPU {card.slot} ({served.name})"
    if served.last and branch > served.last:
        text = f"{name} is served up to the branch {served.last} of the driver; this is {branch}"
        fix = machine.fix(Need.NVIDIA_LEGACY, branch=str(served.last))
        return Problem("nvidia-driver-too-new", text, fix)
    if branch < served.first:
        more = "" if CLOSED in served.modules else ", with its open kernel modules"
        text = f"{name} needs the branch {served.first} of the driver or newer; this is {branch}"
        fix = machine.fix(Need.NVIDIA_NEWER, branch=str(served.first), flavour=more)
        return Problem("nvidia-driver-too-old", text, fix)
    if flavour is None or flavour in served.modules:
        return None
    need = Need.NVIDIA_OPEN if flavour == CLOSED else Need.NVIDIA_CLOSED
    wanted = OPEN if flavour == CLOSED else CLOSED
    text = f"{name} needs the {wanted} kernel modules of the driver; the {flavour} one is loaded"
    return Problem("nvidia-module-flavour", text, machine.fix(need, branch=str(branch)))


def _other(raw: RawNvidia, init: int | None) -> Problem:
    call, number = "cuInit", init
    if init == 0:
        call, number = "cuDeviceGetCount", answers.code(raw.cuda, "cuDeviceGetCount")
    name = CUDA_CODES.get(number, "an unknown code") if number is not None else "no code"
    return Problem(
        "cuda-error",
        f"NVIDIA's driver does not initialise: {call} returned {number} ({name})",
        _RESTART,
    )


# From the most to the least specific cause.
_CHECKS = (
    *(_mig, _too_old, _held, _lost, _refused, _not_given, _switched_off, _off_bus),
    *(_no_module, _hidden, _closed, _not_started, _no_files, _taken_away, _leftover),
)

_RESTART = "restart the machine; if the problem remains, update or reinstall the NVIDIA driver"
_NO_DEVICE = Problem(
    "cuda-no-device",
    "NVIDIA's driver is installed but finds no device",
    "check that the GPU is switched on and not given to a virtual machine",
)
_ZLUDA = Problem(
    "zluda",
    "the libcuda that was found is ZLUDA's, on which llama.cpp's CUDA builds do not run",
    "take ZLUDA's folder out of LD_LIBRARY_PATH, and use Vulkan or ROCm",
)
_INIT_PROBLEMS = {
    2: Problem(
        "cuda-no-memory",
        "NVIDIA's driver gets too little memory to start (cuInit 2)",
        "raise the limits on memory: ulimit -v unlimited, and that of the container or the job",
        transient=True,
    ),
    34: Problem(
        "cuda-stub-library",
        "the libcuda that was found is the toolkit's stub, not a driver",
        "take the folder 'stubs' out of LD_LIBRARY_PATH, or install the NVIDIA driver",
    ),
    **dict.fromkeys(
        (35, 36),
        Problem(
            "cuda-driver-too-old",
            "NVIDIA's driver is too old for its own libraries",
            "update the NVIDIA driver",
        ),
    ),
}
MPS_CODES = range(805, 811)
_TEMPORARY: Mapping[int | None, tuple[str, str, Need]] = {
    46: (
        "cuda-device-busy",
        "NVIDIA's card is busy: another process has it for itself (exclusive mode)",
        Need.NVIDIA_BUSY,
    ),
    802: (
        "cuda-not-ready",
        "NVIDIA's driver is not ready yet (on NVSwitch machines it waits for fabricmanager)",
        Need.NVIDIA_FABRIC,
    ),
    999: (
        "cuda-after-suspend",
        "NVIDIA's driver lost its device, as happens after a suspend (cuInit 999)",
        Need.NVIDIA_AWAKE,
    ),
    **{
        code: (
            "cuda-mps",
            f"the MPS daemon of NVIDIA's driver refuses this process ({CUDA_CODES[code]})",
            Need.NVIDIA_MPS,
        )
        for code in MPS_CODES
    },
}
"""The codes of cuInit for states that pass."""
