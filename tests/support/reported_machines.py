"""Machines from public reports: short descriptions, and the recordings that they stand for.

``tests/reported_machines.json`` has the descriptions. A key of a description:

``system``: a key of ``SYSTEMS``; ``bus``: PCI ids with the bound kernel module ("10de:2b85 nvidia",
"-" for none), then the state of power; ``module``: flavour and version of NVIDIA's kernel module;
``libraries``: the version of NVIDIA's user libraries, if they are installed; ``cuda``: the code of
cuInit, or the devices; ``nvml``: the code of nvmlInit_v2, or how many devices it lists; ``vulkan``:
the devices that the loader lists (absent: no loader); ``icd``: the drivers' files; ``kfd``:
gfx targets of the kernel's compute nodes; ``hip``: what the runtime answers; ``loader``, ``real``,
``libc_so``: what is found of the C library. ``files``, ``folders``, ``access``, ``environment`` and
``answers`` are merged into the recording as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DESCRIPTIONS = Path(__file__).parents[1] / "reported_machines.json"
FLAGS = (
    "fpu sse sse2 ssse3 sse4_1 sse4_2 pni cx16 lahf_lm popcnt avx avx2 bmi1 bmi2 f16c fma abm "
    "movbe xsave aes"
)
DEBIAN = {"ID": "debian"}
OPENSUSE = {"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}
STEAMOS = {"ID": "steamos", "ID_LIKE": "arch"}
UBUNTU = {"ID": "ubuntu", "ID_LIKE": "debian"}
# Name, the words of os-release, glibc, GLIBCXX, kernel, processor.
SYSTEMS: Mapping[str, tuple[str, Mapping[str, str], str, str, str, str]] = {
    "debian-12": ("Debian GNU/Linux 12", DEBIAN, "2.36", "3.4.30", "6.1.0-40-amd64", "x86_64"),
    "debian-13": ("Debian GNU/Linux 13", DEBIAN, "2.41", "3.4.33", "6.12.57-amd64", "x86_64"),
    "ubuntu-20-arm": ("Ubuntu 20.04.6 LTS", UBUNTU, "2.31", "3.4.28", "5.10.192-tegra", "aarch64"),
    "ubuntu-22": ("Ubuntu 22.04.5 LTS", UBUNTU, "2.35", "3.4.30", "5.15.0-157-generic", "x86_64"),
    "ubuntu-24": ("Ubuntu 24.04.3 LTS", UBUNTU, "2.39", "3.4.33", "6.8.0-86-generic", "x86_64"),
    "ubuntu-26": ("Ubuntu 26.04 LTS", UBUNTU, "2.43", "3.4.35", "7.0.0-14-generic", "x86_64"),
    "ubuntu-arm": ("Ubuntu 24.04.3 LTS", UBUNTU, "2.39", "3.4.33", "6.8.0-86-generic", "aarch64"),
    "fedora-43": ("Fedora Linux 43", {"ID": "fedora"}, "2.42", "3.4.34", "6.17.8-300", "x86_64"),
    "arch": ("Arch Linux", {"ID": "arch"}, "2.42", "3.4.34", "6.18.2-arch2-1", "x86_64"),
    "debian-12-arm": ("Debian GNU/Linux 12", DEBIAN, "2.36", "", "6.12.47+rpt-rpi-2712", "aarch64"),
    "opensuse-leap": ("openSUSE Leap 15.6", OPENSUSE, "2.38", "3.4.33", "6.4.0-150600", "x86_64"),
    "nixos": ("NixOS 26.05 (Yarara)", {"ID": "nixos"}, "2.42", "", "6.18.9", "x86_64"),
    "guix": ("Guix System", {"ID": "guix"}, "2.41", "", "6.17.8", "x86_64"),
    "steamos": ("SteamOS", STEAMOS, "2.39", "3.4.33", "6.11.11-valve19-1-neptune-611", "x86_64"),
    "alpine": ("Alpine Linux v3.22", {"ID": "alpine"}, "", "", "6.12.57-0-lts", "x86_64"),
    "distroless": ("", {}, "2.42", "", "6.17.8", "x86_64"),
    "android": ("", {}, "", "", "5.10.101-android12-9-00005-ga829d48e78bd", "aarch64"),
    "freebsd": ("FreeBSD 14.3-RELEASE", {"ID": "freebsd"}, "", "", "14.3-RELEASE", "amd64"),
    "flatpak": (
        "Freedesktop SDK 25.08 (Flatpak runtime)",
        {"ID": "org.freedesktop.platform"},
        *("2.42", "3.4.34", "6.17.8-300", "x86_64"),
    ),
}
CUDA_OF = {"550": 12040, "560": 12060, "570": 12080, "575": 12090, "580": 13000, "590": 13010}
CUDA_OF |= {"595": 13020, "535": 12020, "470": 11040}
NAMES = {
    "cuda": ["libcuda.so.1"],
    "nvml": ["libnvidia-ml.so.1"],
    "vulkan": ["libvulkan.so.1"],
    "level_zero": ["libze_loader.so.1"],
    "hip": ["libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"],
    "opencl": ["libOpenCL.so.1"],
}
FOLDER = "/usr/lib/{machine}-linux-gnu"


def descriptions() -> tuple[dict[str, Any], ...]:
    """Read every description."""
    return tuple(json.loads(DESCRIPTIONS.read_text("utf-8"))["machines"])


def recording(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recording of a machine, as ``tsuku-llm probe --record`` would write it."""
    name, words, glibc, cxx, kernel, machine = SYSTEMS[told["system"]]
    kernel = told.get("kernel", kernel)
    folder = FOLDER.format(machine=machine)
    release = "".join(f"{key}={value}\n" for key, value in words.items())
    files: dict[str, Any] = {
        "/proc/sys/kernel/osrelease": f"{kernel}\n",
        "/proc/cpuinfo": f"processor\t: 0\nmodel name\t: a processor\nflags\t\t: {FLAGS}\n",
        "/proc/meminfo": "MemTotal:       67108864 kB\n",
        "/etc/os-release": f'PRETTY_NAME="{name}"\n{release}',
    }
    folders: dict[str, Any] = {"/dev/dri": None}
    if module := told.get("module"):
        flavour, version = module.split()
        kind = "Open Kernel Module for" if flavour == "open" else ""
        kind = f"{kind} {machine}".strip() + ("" if flavour == "open" else " Kernel Module")
        files["/proc/driver/nvidia/version"] = f"NVRM version: NVIDIA UNIX {kind}  {version}  R\n"
    if targets := told.get("kfd"):
        nodes = [0, *targets]
        folders["/sys/class/kfd/kfd/topology/nodes"] = [str(at) for at in range(len(nodes))]
        for at, target in enumerate(nodes):
            path = f"/sys/class/kfd/kfd/topology/nodes/{at}/properties"
            files[path] = f"cpu_cores_count 0\ngfx_target_version {target}\n"
    answers = {
        "libc": _done(_libc(told, machine, glibc, cxx)),
        "pci": _done([_pci(at, each) for at, each in enumerate(told.get("bus", ()), 1)]),
        **{api: _done([_absent(api)]) for api in NAMES},
        **_nvidia(told, folder),
        **({"vulkan": _done(_vulkan(told, folder))} if "vulkan" in told else {}),
    }
    if "vulkan" not in told and "icd" in told:
        answers["vulkan"] = _done([_absent("vulkan"), *_icds(told, folder)])
    whole = {
        "format": 1,
        "system": {
            "os": told.get("os", "linux"),
            "libc": f"glibc {glibc}" if glibc else None,
            "bits": told.get("bits", 64),
            "machine": told.get("machine", machine),
            "release": kernel,
        },
        "environment": told.get("environment", {}),
        "files": {**files, **told.get("files", {})},
        "folders": {**folders, **told.get("folders", {})},
        "access": told.get("access", {}),
        "answers": {**answers, **{k: _done(v) for k, v in told.get("answers", {}).items()}},
    }
    return {key: value for key, value in whole.items() if value}


def _done(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"lines": list(lines), "end": "done"}


def _absent(api: str) -> dict[str, Any]:
    missing = "cannot open shared object file: No such file or directory"
    names = NAMES[api]
    errors = [f"{name}: {missing}" for name in names]
    return {"call": "open", "library": None, "names": names, "errors": errors}


def _opened(folder: str, name: str, version: str) -> dict[str, Any]:
    return {"call": "open", "library": f"{folder}/{name}.{version}", "name": f"{name}.1"}


def _libc(told: Mapping[str, Any], machine: str, glibc: str, cxx: str) -> list[dict[str, Any]]:
    usual = {
        "x86_64": "/lib64/ld-linux-x86-64.so.2",
        "aarch64": "/lib/ld-linux-aarch64.so.1",
    }.get(machine)
    folder = f"/lib/{machine}-linux-gnu"
    loader = told.get("loader", usual)
    found = told.get("libc_so", f"{folder}/libc.so.6")
    lines: list[dict[str, Any]] = []
    if loader:
        lines.append({"call": "loader", "path": loader, "banner": None})
        lines[0] |= {"real": told["real"]} if "real" in told else {}
    lines.append({"call": "libc.so.6", "path": found})
    if found:
        banner = f"GNU C Library (a distribution) stable release version {glibc}."
        lines[-1] |= {"versions": ["GLIBC_2.2.5", f"GLIBC_{glibc}"], "banner": banner}
    lines.append({"call": "libstdc++.so.6", "path": None})
    if cxx and found:
        lines[-1] |= {"path": f"{folder}/libstdc++.so.6", "versions": [f"GLIBCXX_{cxx}"]}
    return lines


def _pci(at: int, text: str) -> dict[str, Any]:
    ids, driver, *power = text.split()
    vendor, device = ids.split(":")
    return {
        "call": "device",
        "slot": f"0000:{at:02x}:00.0",
        "kind": "0x030000",
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "driver": None if driver == "-" else driver,
        "power": power[0] if power else "D0",
    }


def _nvidia(told: Mapping[str, Any], folder: str) -> dict[str, Any]:
    version = told.get("libraries")
    if not version:
        return {}
    cuda, nvml = told.get("cuda", 0), told.get("nvml", 0)
    newest = CUDA_OF.get(version.partition(".")[0], 13000)
    lines = [
        _opened(folder, "libcuda.so", version),
        {"call": "cuDriverGetVersion", "code": 0, "version": newest},
    ]
    if isinstance(cuda, int):
        lines.append({"call": "cuInit", "code": cuda})
    else:
        lines.append({"call": "cuInit", "code": 0})
        lines.append({"call": "cuDeviceGetCount", "code": 0, "count": len(cuda)})
        usual = {"call": "device", "code": 0, "integrated": 0}
        lines += [{**usual, "index": at, **each} for at, each in enumerate(cuda)]
    managed = [_opened(folder, "libnvidia-ml.so", version)]
    if isinstance(nvml, dict):
        managed.append({"call": "nvmlInit_v2", "code": 0})
        managed.append({"call": "nvmlSystemGetDriverVersion", "code": 0, "version": version})
        count = nvml["count"]
        managed.append({"call": "nvmlDeviceGetCount_v2", "code": 0, "count": count})
        usual = {"call": "device", "code": 0, "mig": 0}
        managed += [{**usual, "index": at} for at in range(count)]
    else:
        managed.append({"call": "nvmlInit_v2", "code": nvml})
    return {"cuda": _done(lines), "nvml": _done(managed)}


def _vulkan(told: Mapping[str, Any], folder: str) -> list[dict[str, Any]]:
    devices = told["vulkan"]
    lines: list[dict[str, Any]] = [
        _opened(folder, "libvulkan.so", "1.3.275"),
        {"call": "vkEnumerateInstanceVersion", "code": 0, "version": 4206867},
    ]
    if devices:
        lines.append({"call": "vkCreateInstance", "code": 0})
        count = len(devices)
        lines.append({"call": "vkEnumeratePhysicalDevices", "code": 0, "count": count})
    else:
        lines.append({"call": "vkCreateInstance", "code": -9})
    usual = {"call": "device", "type": 2, "api": 4210993, "storage16": True, "driver_version": 1}
    for at, each in enumerate(devices):
        device = LLVMPIPE if each == "llvmpipe" else each
        memory = device.get("memory", 8 << 30)
        lines.append({**usual, "index": at, "heaps": [[memory, 1]], **device})
    return [*lines, {"call": "listed"}, *_icds(told, folder)]


def _icds(told: Mapping[str, Any], folder: str) -> list[dict[str, Any]]:
    return [
        {
            "call": "icd",
            "file": f"/usr/share/vulkan/icd.d/{name}_icd.json",
            "library": f"{folder}/libvulkan_{name}.so",
            "error": None,
        }
        for name in told.get("icd", ())
    ]


LLVMPIPE = {
    "name": "llvmpipe (LLVM 20.1.2, 256 bits)",
    "type": 4,
    "vendor": 65541,
    "device": 0,
    "driver_id": 13,
    "driver": "llvmpipe",
    "driver_info": "Mesa 25.2.3 (LLVM 20.1.2)",
}
