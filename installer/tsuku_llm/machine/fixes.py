"""What to do about a GPU that cannot be used: the fix of ``fixes.toml``, by need and place."""

from __future__ import annotations

import enum
import pkgutil
from collections.abc import Mapping
from functools import cache

import tomli

from tsuku_llm.ground.own_name import SUDO, TSUKU
from tsuku_llm.machine.places import OWN_LIBRARIES, SYSTEM_CONTAINERS, Kind, MachinePlace


class Need(str, enum.Enum):
    """What the machine needs: a table of ``fixes.toml``, which describes it."""

    NVIDIA_GPU = "nvidia-gpu"
    NVIDIA_VULKAN = "nvidia-vulkan"
    NVIDIA_LIBRARIES = "nvidia-libraries"
    NVIDIA_DRIVER = "nvidia-driver"
    WSL_GPU = "wsl-gpu"
    WSL_NVIDIA = "wsl-nvidia"
    LOADER = "loader"
    NIX_DRIVER = "nix-driver"
    NIX_VULKAN = "nix-vulkan"
    NVIDIA_MODULE = "nvidia-module"
    NVIDIA_SWITCHED_OFF = "nvidia-switched-off"
    NVIDIA_OFF_BUS = "nvidia-off-bus"
    NVIDIA_FILES = "nvidia-files"
    NVIDIA_UVM = "nvidia-uvm"
    NVIDIA_UVM_CLOSED = "nvidia-uvm-closed"
    NVIDIA_AWAKE = "nvidia-awake"
    NVIDIA_SAME_VERSION = "nvidia-same-version"
    NVIDIA_FABRIC = "nvidia-fabric"
    NVIDIA_MPS = "nvidia-mps"
    NVIDIA_BUSY = "nvidia-busy"
    NVIDIA_OPEN = "nvidia-open"
    NVIDIA_CLOSED = "nvidia-closed"
    NVIDIA_LEGACY = "nvidia-legacy"
    NVIDIA_NEWER = "nvidia-newer"
    NVIDIA_START = "nvidia-start"
    D3COLD = "d3cold"
    NVIDIA_LOST = "nvidia-lost"
    NOUVEAU = "nouveau"
    SET_ASIDE = "set-aside"
    ROCM_RUNTIME = "rocm-runtime"
    FILES = "files"
    DEVICE_RULES = "device-rules"
    PERMISSION = "permission"
    SELINUX = "selinux"
    APPARMOR = "apparmor"
    NODEV = "nodev"
    NODE_ONLY = "node-only"
    DEVICE_ERROR = "device-error"
    AMD_MODULE = "amd-module"
    AMD_OLD_MODULE = "amd-old-module"
    INTEL_RUNTIME = "intel-runtime"
    INTEL_OLD_MODULE = "intel-old-module"
    INTEL_NEW_MODULE = "intel-new-module"
    NEWER_MESA = "newer-mesa"


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """Return the rows of each need, and under "texts" what several rows have in common."""
    found: Mapping[str, Mapping[str, str]] = tomli.loads(
        (pkgutil.get_data("tsuku_llm.machine", "fixes.toml") or b"").decode()
    )
    return found


def fix_for(need: Need, place: MachinePlace, **facts: str) -> str:
    """Return the fix of the first row for this need, place and system."""
    groups = {
        "contained": place.contained,
        "system-containers": place.kind in SYSTEM_CONTAINERS,
        "own-libraries": place.kind in OWN_LIBRARIES,
        "else": True,
    }
    here = {place.kind.value, *place.systems, *(word for word, holds in groups.items() if holds)}
    here.add(facts.get("program", ""))
    fix = next(
        fix for words, fix in table()[need.value].items() if not here.isdisjoint(words.split())
    )
    return fix.format_map(_Facts(facts, place=place.name, TSUKU=TSUKU, SUDO=SUDO))


def for_any_gpu(place: MachinePlace) -> str:
    """Return how this place gets a GPU of which nothing is visible here, "" on bare metal."""
    if place.contained and "linuxkit" in place.systems:
        # Docker Desktop's virtual machine. On a Mac it has no GPU (docker/model-runner#158).
        return f"Docker Desktop passes no GPU of a Mac to containers: run {TSUKU} on macOS itself"
    if place.contained:
        nvidia = fix_for(Need.NVIDIA_GPU, place, dashed="VERSION")
        flags, plugin = "--device /dev/dri", "amd.com/gpu or gpu.intel.com/xe"
        files = fix_for(Need.FILES, place, files="/dev/dri", flags=flags, plugin=plugin)
        return f"if the host has an NVIDIA GPU: {nvidia}; one of AMD or Intel: {files}"
    if place.kind is Kind.WSL:
        return f"if Windows has an NVIDIA GPU: {fix_for(Need.WSL_NVIDIA, place)}"
    if place.kind is Kind.VM:
        return "if the host has a GPU, it has to be passed to this virtual machine there"
    return ""


class _Facts(dict[str, str]):
    """The facts of a machine; one that is not known is told by its name."""

    def __missing__(self, key: str) -> str:
        texts = table()["texts"]
        return texts[key].format_map(self) if key in texts else key.upper()
