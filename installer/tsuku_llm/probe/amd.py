"""ROCm: the HIP runtime, and the compute nodes that the kernel's amdkfd lists.

Properties: the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tsuku_llm.machine.backends import AMD, facts_of
from tsuku_llm.machine.fixes import Need
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, Gpu, GpuKind, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer, Host
from tsuku_llm.probe.facts import answers
from tsuku_llm.probe.facts.machine import MachineKind, closed_file, files_fix

NODES = "/sys/class/kfd/kfd/topology/nodes"
COMPUTE_DEVICE = "/dev/kfd"
CODES = {
    0: "hipSuccess",
    3: "hipErrorNotInitialized",
    35: "hipErrorInsufficientDriver",
    100: "hipErrorNoDevice",
    101: "hipErrorInvalidDevice",
}
NO_DEVICE = 100
MOST_DIGITS = 9
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
# Targets that are APUs, for runtimes that do not report "integrated".
INTEGRATED = frozenset(
    {
        *("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037"),
        *("gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    }
)


@dataclass(frozen=True, slots=True)
class RawAmd:
    """The worker's answer, each node's properties file, and this user's access to /dev/kfd.

    ``hiding`` has the variables that are set and choose HIP's devices, with their values, and
    ``override`` the one that makes HIP tell another target than the kernel.
    """

    hip: DriverAnswer = ABSENT
    nodes: tuple[str, ...] = ()
    access: str | None = None
    hiding: tuple[tuple[str, str], ...] = ()
    override: str | None = None


def collect(host: Host, by_question: Mapping[str, DriverAnswer]) -> RawAmd:
    """Take the worker's answer and read the kernel's topology."""
    found = host.list_dir(NODES) or ()
    # A recording may hold any name, and Python refuses to read a number of thousands of digits.
    names = [name for name in found if name.isdecimal() and len(name) <= MOST_DIGITS]
    texts = [host.read_text(f"{NODES}/{name}/properties") for name in sorted(names, key=int)]
    variables = [(name, host.environment(name)) for name in facts_of("rocm").hiding_variables]
    return RawAmd(
        hiding=tuple((name, value) for name, value in variables if value is not None),
        override=host.environment(OVERRIDE),
        hip=by_question.get("hip", ABSENT),
        nodes=tuple(text for text in texts if text is not None),
        access=host.access(COMPUTE_DEVICE),
    )


def parse(raw: RawAmd, machine: MachineKind) -> Api:
    """Read the API ``rocm``."""
    answer = raw.hip
    state = answers.state(answer, "hipGetDeviceCount")
    targets = kernel_targets(raw.nodes)
    gpus = _gpus(answer, targets) if state is ApiState.OK else ()
    return Api(
        name="rocm",
        state=state,
        library=answers.library(answer),
        version=hip_version(answers.value(answer, "hipRuntimeGetVersion", "version")),
        gpus=gpus,
        evidence=_evidence(raw, targets),
        problem=None if gpus else _problem(raw, targets, machine),
    )


def hip_version(number: object) -> str | None:
    """Return the version as text: 60342134 is HIP 6.3."""
    value = answers.positive(number)
    return f"{value // 10_000_000}.{value % 10_000_000 // 100_000}" if value else None


def kernel_targets(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the gfx target of each node that is a GPU, in the kernel's order."""
    numbers = [_properties(text).get("gfx_target_version") for text in nodes]
    return tuple(name for number in numbers if (name := gfx_name(number)))


def gfx_name(number: str | None) -> str | None:
    """Return the target's name: 110000 is gfx1100, 90010 is gfx90a; CPU nodes have 0."""
    if number is None or not number.isascii() or not number.isdecimal() or len(number) > 7:
        return None
    value = int(number)
    major, minor, step = value // 10000, value // 100 % 100, value % 100
    # Minor version and stepping are hexadecimal digits in the name.
    return f"gfx{major}{minor:x}{step:x}" if major else None


def _properties(text: str) -> dict[str, str]:
    pairs = [line.split() for line in text.splitlines()]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _gpus(answer: DriverAnswer, targets: tuple[str, ...]) -> tuple[Gpu, ...]:
    lines = answers.calls(answer, "device")
    # HIP_VISIBLE_DEVICES and the like shorten HIP's list. Without them HIP and the kernel list
    # the same devices in the same order, so equal lengths mean that no filter is set.
    from_kernel = targets if len(targets) == len(lines) else ()
    return tuple(
        _gpu(line, from_kernel[index] if from_kernel else None) for index, line in enumerate(lines)
    )


def _gpu(line: Mapping[str, Any], target: str | None) -> Gpu:
    gfx = answers.words(line.get("gfx")) or target
    integrated = answers.integer(line.get("integrated"))
    # The table decides for the targets that it names, also against a runtime's own answer.
    if integrated is None or gfx in INTEGRATED:
        integrated = int(gfx in INTEGRATED)
    return Gpu(
        api="rocm",
        index=answers.integer(line.get("index")) or 0,
        name=answers.words(line.get("name")) or "AMD device",
        kind=GpuKind.INTEGRATED if integrated else GpuKind.DISCRETE,
        memory=answers.positive(line.get("memory")),
        vendor_id=AMD,
        gfx=gfx,
        uuid=vulkan_uuid(line.get("pci")),
    )


def vulkan_uuid(address: object) -> str | None:
    """Return the UUID that Vulkan's drivers give the card at a PCI address, such as 0000:03:00.0.

    RADV and AMDVLK make it of the four numbers: ``ac_compute_device_uuid`` of Mesa's
    src/amd/common/ac_gpu_info.c. HIP's own UUID is another one.
    """
    found = re.fullmatch(
        r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", str(address).lower()
    )
    return (
        b"".join(int(part, 16).to_bytes(4, "little") for part in found.groups()).hex()
        if found
        else None
    )


def _evidence(raw: RawAmd, targets: tuple[str, ...]) -> tuple[Evidence, ...]:
    found = list(answers.evidence(raw.hip, CODES))
    if targets:
        found.append(Evidence(NODES, ", ".join(targets)))
    found += [Evidence(name, repr(value)[:300]) for name, value in raw.hiding]
    if raw.override is not None:
        found.append(Evidence(OVERRIDE, repr(raw.override)[:300]))
    if raw.access is not None:
        found.append(Evidence(COMPUTE_DEVICE, raw.access or "no access"))
    return tuple(found)


def _problem(raw: RawAmd, targets: tuple[str, ...], machine: MachineKind) -> Problem | None:
    broken = answers.broken(raw.hip, "AMD's HIP runtime")
    # Without a child nothing is known of the runtime: ``answers.not_asked`` tells why.
    if broken or raw.hip.end == "not-started":
        return broken
    if answers.library(raw.hip) is None:
        return _runtime_problem(raw.hip, targets, machine)
    # The kernel lists GPUs of the whole machine in every container, also without the device file.
    if raw.access is None and targets and machine.place.contained:
        return Problem(
            "container-without-gpu",
            f"this {machine.place.name} sees an AMD GPU but was not given {COMPUTE_DEVICE}",
            files_fix(machine, COMPUTE_DEVICE, "/dev/dri"),
        )
    if raw.access is not None and raw.access != "rw":
        return closed_file(machine, COMPUTE_DEVICE, raw.access)
    code = answers.code(raw.hip, "hipGetDeviceCount")
    if code in (0, NO_DEVICE):
        return _no_device(raw, machine, seen=bool(targets) or machine.has_pci(AMD))
    text = f"AMD's HIP runtime does not initialise: hipGetDeviceCount returned {code}"
    return Problem("rocm-error", text, "update the amdgpu driver and ROCm to matching versions")


def _no_device(raw: RawAmd, machine: MachineKind, *, seen: bool) -> Problem:
    """Say why a runtime that works lists nothing; ``seen`` if the machine has an AMD GPU."""
    if raw.hiding and seen:
        name, value = raw.hiding[0]
        text = f"{name}={value!r} leaves no AMD GPU of this machine visible"
        return Problem("rocm-hidden", text, f"unset {name}")
    fix = _IN_WSL if machine.place.wsl else "use Vulkan; ROCm supports few of AMD's GPUs"
    return Problem("rocm-no-device", "AMD's HIP runtime finds no device", fix)


# ROCm/librocdxg#34: the library asks Windows, and before ROCm 7.13 only with this variable.
_IN_WSL = (
    "ROCm in WSL needs AMD's library librocdxg, and before ROCm 7.13 this variable: "
    "export HSA_ENABLE_DXG_DETECTION=1; or use the build for Windows"
)


def _runtime_problem(
    answer: DriverAnswer, targets: tuple[str, ...], machine: MachineKind
) -> Problem | None:
    error = answers.missing_dependency(answer)
    if error:
        text = f"AMD's HIP runtime is installed but does not load: {error}"
        fix = answers.reinstall(error, machine.library_path, "ROCm's runtime packages")
        return Problem("rocm-library-broken", text, fix)
    if not targets:
        return None
    return Problem(
        "rocm-runtime-missing",
        f"there is an AMD GPU ({', '.join(targets)}), but ROCm's runtime is not installed",
        machine.fix(Need.ROCM_RUNTIME),
    )
