"""macOS and Windows, from answers as their workers word them."""

from typing import Any

import pytest

from tsuku_llm.machine.hardware import ApiState, GpuKind, Hardware
from tsuku_llm.machine.host import DriverAnswer
from tsuku_llm.machine.snapshot import Recording, ReplayHost
from tsuku_llm.probe import platform_key, probe

PLIST = "/System/Library/CoreServices/SystemVersion.plist"


def host(os: str, machine: str, answers: dict[str, DriverAnswer], **rest: Any) -> ReplayHost:
    system = {"os": os, "machine": machine, "release": rest.pop("release", None)}
    return ReplayHost(Recording(system=system, answers=answers, **rest), "made")


def answer(*lines: dict[str, Any], end: str = "done") -> DriverAnswer:
    return DriverAnswer(lines, end)


def told(version: str) -> dict[str, str]:
    return {PLIST: f"<key>ProductVersion</key>\n\t<string>{version}</string>"}


# --- macOS -------------------------------------------------------------------------------

METAL = {"call": "open", "library": "/System/Library/Frameworks/Metal.framework/Metal"}
LISTED = {"call": "MTLCopyAllDevices", "code": 0, "count": 1}


def mac(*lines: dict[str, Any], machine: str = "arm64", **rest: Any) -> Hardware:
    answers = {"macos": answer(*lines), "metal": rest.pop("metal", answer(METAL, LISTED))}
    return probe(host("darwin", machine, answers, **rest))


@pytest.mark.parametrize(
    ("plist", "sysctl", "release", "version"),
    [
        ("26.1", None, "25.1.0", "26.1"),
        (None, "15.6.1", "24.6.0", "15.6.1"),
        ("10.16", "10.16", "24.6.0", "15"),
        ("10.16", None, "25.0.0", "26"),
        (None, None, "20.6.0", "11"),
        ("10.15.7", None, "19.6.0", "10.15.7"),
        (None, None, "x", None),
        (None, None, None, None),
    ],
)
def test_the_version_of_macos_is_right_in_old_interpreters_too(
    plist: str | None, sysctl: str | None, release: str | None, version: str | None
) -> None:
    lines = [{"call": "kern.osproductversion", "value": sysctl}] if sysctl else []
    hardware = mac(*lines, files=told(plist) if plist else {}, release=release)
    assert hardware.os_version == version


def test_an_intel_mac_has_a_level() -> None:
    features = "SSE3 SSSE3 FMA CX16 SSE4.1 SSE4.2 MOVBE POPCNT XSAVE AVX1.0 F16C"
    hardware = mac(
        {"call": "machdep.cpu.vendor", "value": "GenuineIntel"},
        {"call": "machdep.cpu.features", "value": features},
        {"call": "machdep.cpu.leaf7_features", "value": "BMI1 AVX2 BMI2"},
        {"call": "machdep.cpu.extfeatures", "value": "LAHF LZCNT"},
        {"call": "hw.memsize", "value": 16 << 30},
        machine="x86_64",
    )
    assert hardware.cpu
    assert (hardware.cpu.vendor, hardware.cpu.level) == ("GenuineIntel", 3)
    assert (hardware.platform, hardware.memory) == ("darwin-amd64", 16 << 30)


def test_an_apple_processor_has_features_and_no_level() -> None:
    hardware = mac(
        {"call": "machdep.cpu.brand_string", "value": "Apple M4"},
        {"call": "hw.optional.arm.FEAT_SME", "value": 1},
        {"call": "hw.optional.arm.FEAT_BF16", "value": 0},
    )
    assert hardware.cpu
    assert (hardware.cpu.name, hardware.cpu.features) == ("Apple M4", ("sme",))
    assert hardware.cpu.level is None


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"name": "Apple M4", "unified": True}, GpuKind.INTEGRATED),
        ({"name": "Intel Iris Plus Graphics", "low_power": True}, GpuKind.INTEGRATED),
        ({"name": "AMD Radeon Pro 5500M"}, GpuKind.DISCRETE),
        ({"name": "Apple Paravirtual device", "unified": True}, GpuKind.VIRTUAL),
    ],
)
def test_kinds_of_metal_devices(facts: dict[str, Any], kind: GpuKind) -> None:
    device = {"call": "device", "code": 0, "index": 0, "memory": 8 << 30, **facts}
    api = mac(metal=answer(METAL, LISTED, device)).api("metal")
    (gpu,) = api.gpus
    assert (api.state, gpu.kind, gpu.memory) == (ApiState.OK, kind, 8 << 30)


def test_metal_may_crash_too() -> None:
    api = mac(metal=answer(METAL, end="signal 6")).api("metal")
    assert (api.state, api.problem and api.problem.slug) == (ApiState.CRASHED, "driver-crashed")


def test_only_metal_is_asked_on_a_mac() -> None:
    assert [api.name for api in mac().apis] == ["metal"]
    assert mac().api("cuda").state is ApiState.NOT_ASKED


# --- Windows -----------------------------------------------------------------------------

DLLS = ("vcruntime140.dll", "vcruntime140_1.dll", "msvcp140.dll")


def win(*lines: dict[str, Any], machine: str = "AMD64", **drivers: DriverAnswer) -> Hardware:
    answers = {"windows": answer(*lines), **drivers}
    return probe(host("win32", machine, answers, release="10.0.26100"))


def dlls(*present: bool) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"call": "dll", "name": name, "present": is_there}
        for name, is_there in zip(DLLS, present, strict=False)
    )


def runtime(machine: str, version: str) -> dict[str, Any]:
    return {"call": "runtime", "machine": machine, "Version": version, "Installed": 1}


@pytest.mark.parametrize(
    ("lines", "machine", "version", "problems"),
    [
        ((runtime("X64", "v14.44.35211.00"),), "AMD64", "14.44.35211.00", 0),
        ((runtime("X64", "v14.1"), runtime("ARM64", "v14.2")), "ARM64", "14.2", 0),
        ((runtime("ARM64", "v14.2"), *dlls(True, True, False)), "AMD64", "0", 1),
        (dlls(False, False, False), "AMD64", "0", 1),
        (dlls(True, True, True), "AMD64", None, 0),
        (dlls(False), "AMD64", None, 0),
        ((), "AMD64", None, 0),
    ],
)
def test_the_visual_cpp_runtime(
    lines: tuple[dict[str, Any], ...], machine: str, version: str | None, problems: int
) -> None:
    hardware = win(*lines, machine=machine)
    assert hardware.vcruntime == version
    assert [problem.slug for problem in hardware.problems] == ["vcruntime-missing"] * problems


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (["pni", "cx16", "ssse3", "sse4_1", "sse4_2", "avx", "avx2", "avx512f"], 3),
        (["pni", "cx16", "ssse3", "sse4_1", "sse4_2"], 2),
        (["pni"], 1),
        ([], None),
    ],
)
def test_instruction_levels_on_windows(features: list[str], level: int | None) -> None:
    hardware = win({"call": "features", "value": features})
    assert hardware.cpu
    assert hardware.cpu.level == level


def test_a_windows_machine_has_names_memory_and_adapters() -> None:
    adapter = {
        "call": "adapter",
        "DriverDesc": "NVIDIA GeForce RTX 4090",
        "MatchingDeviceId": r"pci\ven_10de&dev_2684",
        "DriverVersion": "32.0.15.8088",
    }
    processor = {
        "call": "processor",
        "ProcessorNameString": "A processor  ",
        "VendorIdentifier": "V",
    }
    hardware = win(processor, {"call": "memory", "value": 1 << 34}, adapter)
    assert hardware.cpu
    assert (hardware.cpu.name, hardware.cpu.vendor) == ("A processor", "V")
    assert (hardware.memory, hardware.os_version) == (1 << 34, "10.0.26100")
    assert [item.call for item in hardware.evidence] == ["NVIDIA GeForce RTX 4090"]
    absent = {"call": "open", "library": None, "names": ["nvcuda.dll"], "errors": ["x"]}
    error = "Could not find module 'nvcuda.dll' (or one of its dependencies)."
    cuda = win(adapter, cuda=answer({**absent, "errors": [error]})).api("cuda")
    assert (cuda.state, cuda.problem and cuda.problem.slug) == (
        ApiState.ABSENT,
        "nvidia-driver-missing",
    )


@pytest.mark.parametrize("code", [100, 802, 999])
def test_a_fix_for_windows_does_not_mention_kernel_modules(code: int) -> None:
    opened = {"call": "open", "library": "nvcuda.dll", "name": "nvcuda.dll"}
    api = win(cuda=answer(opened, {"call": "cuInit", "code": code})).api("cuda")
    assert api.problem
    assert "sudo" not in api.problem.fix


def test_a_vulkan_loader_without_a_driver_on_windows() -> None:
    opened = {"call": "open", "library": "vulkan-1.dll", "name": "vulkan-1.dll"}
    api = win(vulkan=answer(opened, {"call": "vkCreateInstance", "code": -9})).api("vulkan")
    assert api.problem
    assert api.problem.slug == "vulkan-loader-without-icd"
    assert "apt" not in api.problem.fix


# --- others ------------------------------------------------------------------------------


def test_an_unknown_system_has_a_name_and_nothing_else() -> None:
    machine = host("freebsd14", "amd64", {})
    assert platform_key(machine) == "freebsd-amd64"
    assert probe(machine) == Hardware("freebsd", "amd64", simulated="made")
