"""CUDA: the answers of the driver API and of NVML, combined.

Codes: cuda.h (``CUresult``) and nvml.h (``nvmlReturn_t``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tsuku_llm.ground.own_name import SUDO
from tsuku_llm.machine.backends import NVIDIA
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, Gpu, GpuKind, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer, Host
from tsuku_llm.probe.facts import answers
from tsuku_llm.probe.facts.machine import MachineKind, permission_fix

KERNEL_MODULE = "/proc/driver/nvidia/version"
CONTROL_DEVICE = "/dev/nvidiactl"

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
    """The raw answers: two APIs, the kernel module's text, one variable, one device file."""

    cuda: DriverAnswer = ABSENT
    nvml: DriverAnswer = ABSENT
    kernel: str | None = None
    visible: str | None = None
    control: str | None = None


def collect(host: Host, by_question: Mapping[str, DriverAnswer]) -> RawNvidia:
    """Take the answers of both APIs and ask for the supporting facts."""
    return RawNvidia(
        cuda=by_question.get("cuda", ABSENT),
        nvml=by_question.get("nvml", ABSENT),
        kernel=host.read_text(KERNEL_MODULE),
        visible=host.environment("CUDA_VISIBLE_DEVICES"),
        control=host.access(CONTROL_DEVICE),
    )


def parse(raw: RawNvidia, machine: MachineKind) -> Api:
    """Read the API ``cuda`` from everything that NVIDIA's libraries and files said."""
    state = answers.state(raw.cuda, "cuInit", "cuDeviceGetCount")
    gpus = _gpus(raw) if state is ApiState.OK else ()
    told = cuda_version(answers.value(raw.cuda, "cuDriverGetVersion", "version"))
    # A Jetson's driver has branches of its own.
    branch = None if machine.tegra else cuda_of_driver(driver_version(raw))
    evidence = _evidence(raw)
    if branch and not told and answers.library(raw.cuda):
        evidence += (Evidence(f"driver {driver_version(raw)}", f"CUDA {branch} at most"),)
    return Api(
        name="cuda",
        state=state,
        library=answers.library(raw.cuda),
        # The driver's own word comes first: a compatibility library raises it.
        version=told or branch,
        driver=driver_version(raw),
        gpus=gpus,
        evidence=evidence,
        problem=None if gpus else _problem(raw, machine, state),
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


def _version_in(text: str | None) -> str | None:
    match = _VERSION.search(text) if text else None
    return match[0] if match else None


def _gpus(raw: RawNvidia) -> tuple[Gpu, ...]:
    driver = driver_version(raw)
    lines = answers.calls(raw.cuda, "device")
    return tuple(_gpu(line, driver) for line in lines if answers.integer(line.get("code")) == 0)


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
    return tuple(found)


# --- problems --------------------------------------------------------------------------


def _problem(raw: RawNvidia, machine: MachineKind, state: ApiState) -> Problem | None:
    broken = answers.broken(raw.cuda, "NVIDIA's CUDA driver")
    # Without a child nothing is known of the driver: ``answers.not_asked`` tells why.
    if broken or state is ApiState.NOT_STARTED:
        return broken
    if answers.library(raw.cuda) is None:
        return _library_problem(raw, machine)
    # A mismatch comes first: NVML or the version numbers can show it when cuInit's code is less
    # specific.
    if _mismatch(raw):
        return _mismatch_problem(raw)
    init = answers.code(raw.cuda, "cuInit")
    known = _INIT_PROBLEMS.get(init) if init is not None else None
    if known:
        # The fixes are Linux commands.
        return known if machine.os == "linux" else replace(known, fix=_RESTART)
    # The driver initialised, or says NO_DEVICE or INVALID_DEVICE: it works, but sees no GPU.
    if init in (0, 100, 101):
        return _no_device(raw, machine)
    return _other(raw, init) if state is ApiState.FAILED else None


def _library_problem(raw: RawNvidia, machine: MachineKind) -> Problem | None:
    error = answers.missing_dependency(raw.cuda)
    if error:
        return Problem(
            "cuda-library-broken",
            f"NVIDIA's libcuda is installed but does not load: {error}",
            "reinstall the NVIDIA driver's packages",
        )
    # No sign of an NVIDIA GPU: a missing driver is not a problem.
    if not machine.has_pci(NVIDIA) and raw.kernel is None:
        return None
    if machine.container:
        return _container(raw, machine)
    return Problem(
        "nvidia-driver-missing",
        "there is an NVIDIA GPU, but its driver library (libcuda) is not installed",
        "install the NVIDIA driver; the CUDA toolkit is not needed",
    )


def _mismatch(raw: RawNvidia) -> bool:
    """Tell whether the user library has another version than the loaded kernel module."""
    # SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE, and NVML's LIB_RM_VERSION_MISMATCH.
    cuda, nvml = answers.code(raw.cuda, "cuInit"), answers.code(raw.nvml, "nvmlInit_v2")
    if cuda in (803, 804) or nvml == 18:
        return True
    user = answers.dotted(answers.value(raw.nvml, "nvmlSystemGetDriverVersion", "version"))
    kernel = kernel_version(raw.kernel)
    return bool(cuda and user and kernel and user != kernel)


def _mismatch_problem(raw: RawNvidia) -> Problem:
    kernel, library = kernel_version(raw.kernel), _version_in(answers.library(raw.cuda))
    facts = f" (module {kernel}, library {library})" if kernel and library else ""
    # CUDA's forward-compatibility libraries support few GPUs, mostly those of data centres.
    library_path = answers.library(raw.cuda) or ""
    compat = answers.code(raw.cuda, "cuInit") == 804 or "/compat/" in library_path
    aside = "; or take CUDA's compat folder out of LD_LIBRARY_PATH" if compat else ""
    return Problem(
        "driver-updated-reboot",
        f"NVIDIA's user library does not match the kernel module that is loaded{facts}",
        f"restart the machine to load the new driver{aside}",
        transient=True,
    )


def _container(raw: RawNvidia, machine: MachineKind) -> Problem:
    """Say what this container has of NVIDIA's GPU, and what it lacks."""
    # The kernel module's text and the bus are the host's, also in a container.
    sees = machine.has_pci(NVIDIA) or raw.kernel is not None
    library = answers.library(raw.cuda) is not None
    if sees and library:
        text = f"this container sees an NVIDIA GPU but was not given its device ({CONTROL_DEVICE})"
    elif sees:
        text = "this container sees an NVIDIA GPU but was not given its driver"
    else:
        text = "this container has NVIDIA's driver library, but no NVIDIA GPU is visible in it"
    give = machine.inside.give_nvidia()
    fix = give if sees else f"if the host has an NVIDIA GPU: {give}"
    return Problem("container-without-gpu", text, fix)


def _no_device(raw: RawNvidia, machine: MachineKind) -> Problem:
    # The checks go from the most to the least specific cause; the first that matches is told.
    if any(answers.integer(line.get("mig")) for line in answers.calls(raw.nvml, "device")):
        return Problem(
            "mig-without-instance",
            "the NVIDIA GPU is in MIG mode and offers no instance here",
            f"create one: {SUDO}nvidia-smi mig -cgi 0 -C; or pass one to this container",
        )
    # WSL has other device files, another kernel module, and Microsoft's adapters on its bus.
    seen = raw.control is not None or machine.wsl
    if machine.container and not seen:
        return _container(raw, machine)
    problem = _NO_DEVICE
    if raw.kernel is None and not machine.wsl:
        # The bus is visible and has other GPUs only: the library may be a leftover.
        leftover = machine.pci and not machine.has_pci(NVIDIA) and not machine.tegra
        problem = _LEFTOVER if leftover else _MODULE if machine.os == "linux" else _NO_DEVICE
    # Without a module and its device files no variable and no permission decides.
    if machine.os == "linux" and raw.kernel is None and not seen:
        return problem
    if raw.visible is not None:
        return Problem(
            "cuda-hidden",
            f"CUDA_VISIBLE_DEVICES={raw.visible!r} leaves no NVIDIA GPU of this machine visible",
            "unset CUDA_VISIBLE_DEVICES",
        )
    if raw.control is not None and raw.control != "rw":
        text = f"this user may not open {CONTROL_DEVICE}"
        return Problem("gpu-permission", text, permission_fix(machine, CONTROL_DEVICE))
    return problem


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


_RESTART = "restart the machine; if the problem remains, update or reinstall the NVIDIA driver"
_NO_DEVICE = Problem(
    "cuda-no-device",
    "NVIDIA's driver is installed but finds no device",
    "check that the GPU is switched on and not given to a virtual machine",
)
_LEFTOVER = Problem(
    "cuda-no-device",
    "NVIDIA's driver library is installed, but there is no NVIDIA GPU on the PCI bus",
    "nothing, if this machine has no NVIDIA GPU; else check that it is switched on and seated",
)
_MODULE = Problem(
    "nvidia-module-missing",
    "NVIDIA's library is installed, but its kernel module is not loaded",
    f"{SUDO}modprobe nvidia; if that fails, check Secure Boot and the kernel's headers",
)
_INIT_PROBLEMS = {
    34: Problem(
        "cuda-stub-library",
        "the libcuda that was found is the toolkit's stub, not a driver",
        "take the folder 'stubs' out of LD_LIBRARY_PATH, or install the NVIDIA driver",
    ),
    35: Problem(
        "cuda-driver-too-old",
        "NVIDIA's driver is too old for its own libraries",
        "update the NVIDIA driver",
    ),
    36: Problem(
        "cuda-driver-too-old",
        "NVIDIA's driver is too old for its own libraries",
        "update the NVIDIA driver",
    ),
    802: Problem(
        "cuda-not-ready",
        "NVIDIA's driver is not ready yet (on NVSwitch machines it waits for fabricmanager)",
        f"{SUDO}systemctl start nvidia-fabricmanager, then try again",
        transient=True,
    ),
    999: Problem(
        "cuda-after-suspend",
        "NVIDIA's driver lost its device, as happens after a suspend (cuInit 999)",
        f"{SUDO}rmmod nvidia_uvm && {SUDO}modprobe nvidia_uvm, or restart the machine",
        transient=True,
    ),
}
