"""CUDA: the answers of the driver API and of NVML, combined.

Codes: cuda.h (``CUresult``) and nvml.h (``nvmlReturn_t``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tsuku_llm.backends import NVIDIA
from tsuku_llm.hardware import Api, ApiState, Evidence, Gpu, GpuKind, Problem
from tsuku_llm.host import ABSENT, DriverAnswer, Host
from tsuku_llm.probe import answers
from tsuku_llm.probe.machine import MachineKind

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
    return Api(
        name="cuda",
        state=state,
        library=answers.library(raw.cuda),
        version=cuda_version(answers.value(raw.cuda, "cuDriverGetVersion", "version")),
        driver=driver_version(raw),
        gpus=gpus,
        evidence=_evidence(raw),
        problem=None if gpus else _problem(raw, machine, state),
    )


def cuda_version(number: object) -> str | None:
    """Return the version as text: 12080 is CUDA 12.8."""
    value = answers.positive(number)
    return f"{value // 1000}.{value % 1000 // 10}" if value else None


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
    if not isinstance(pair, list) or len(pair) != 2:  # noqa: PLR2004 - major and minor
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
    if broken:
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
        return _CONTAINER
    return Problem(
        "nvidia-driver-missing",
        "there is an NVIDIA GPU, but its driver library (libcuda) is not installed",
        "install the NVIDIA driver; the CUDA toolkit is not needed",
    )


def _mismatch(raw: RawNvidia) -> bool:
    """Tell whether the user library has another version than the loaded kernel module."""
    # SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE, and NVML's LIB_RM_VERSION_MISMATCH.
    cuda, nvml = answers.code(raw.cuda, "cuInit"), answers.code(raw.nvml, "nvmlInit_v2")
    if cuda in (803, 804) or nvml == 18:  # noqa: PLR2004
        return True
    user = answers.dotted(answers.value(raw.nvml, "nvmlSystemGetDriverVersion", "version"))
    kernel = kernel_version(raw.kernel)
    return bool(cuda and user and kernel and user != kernel)


def _mismatch_problem(raw: RawNvidia) -> Problem:
    kernel, library = kernel_version(raw.kernel), _version_in(answers.library(raw.cuda))
    facts = f" (module {kernel}, library {library})" if kernel and library else ""
    # CUDA's forward-compatibility libraries support few GPUs, mostly those of data centres.
    library_path = answers.library(raw.cuda) or ""
    compat = answers.code(raw.cuda, "cuInit") == 804 or "/compat/" in library_path  # noqa: PLR2004
    aside = "; or take CUDA's compat folder out of LD_LIBRARY_PATH" if compat else ""
    return Problem(
        "driver-updated-reboot",
        f"NVIDIA's user library does not match the kernel module that is loaded{facts}",
        f"restart the machine to load the new driver{aside}",
        transient=True,
    )


def _no_device(raw: RawNvidia, machine: MachineKind) -> Problem:
    # The checks go from the most to the least specific cause; the first that matches is told.
    if any(answers.integer(line.get("mig")) for line in answers.calls(raw.nvml, "device")):
        return Problem(
            "mig-without-instance",
            "the NVIDIA GPU is in MIG mode and offers no instance here",
            "create one: sudo nvidia-smi mig -cgi 0 -C; or pass one to this container",
        )
    if raw.visible is not None:
        return Problem(
            "cuda-hidden",
            f"CUDA_VISIBLE_DEVICES={raw.visible!r} leaves no NVIDIA GPU of this machine visible",
            "unset CUDA_VISIBLE_DEVICES",
        )
    if machine.container and raw.control is None:
        return _CONTAINER
    if raw.control is not None and raw.control != "rw":
        return _PERMISSION
    if raw.kernel is None and machine.os == "linux" and not machine.wsl:
        return _MODULE
    return Problem(
        "cuda-no-device",
        "NVIDIA's driver is installed but finds no device",
        "check that the GPU is switched on and not given to a virtual machine",
    )


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
_CONTAINER = Problem(
    "container-without-gpu",
    "this container sees an NVIDIA GPU but was not given its driver",
    "start it with --gpus all (NVIDIA Container Toolkit), or with a CDI device in podman",
)
_MODULE = Problem(
    "nvidia-module-missing",
    "NVIDIA's library is installed, but its kernel module is not loaded",
    "sudo modprobe nvidia; if that fails, check Secure Boot and the kernel's headers",
)
_PERMISSION = Problem(
    "gpu-permission",
    f"this user may not open {CONTROL_DEVICE}",
    "add the user to the groups video and render: sudo usermod -aG video,render $USER; then "
    "log in again",
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
        "sudo systemctl start nvidia-fabricmanager, then try again",
        transient=True,
    ),
    999: Problem(
        "cuda-after-suspend",
        "NVIDIA's driver lost its device, as happens after a suspend (cuInit 999)",
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm, or restart the machine",
        transient=True,
    ),
}
