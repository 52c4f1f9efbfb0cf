"""What helps against each reason, and how a driver API is installed."""

from __future__ import annotations

from tsuku_llm.choose.chain.adapters import Adapter
from tsuku_llm.machine.backends import VENDOR_DRIVER, BackendFacts
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.packages import command_for

_DISTRIBUTION = "use a newer release of the distribution, for example in a container"
FIXES = {
    "libc": "run it on a glibc distribution, for example in a Debian container",
    "musl": "run it on a musl distribution, for example in an Alpine container",
    "glibc": _DISTRIBUTION,
    "libstdcxx": _DISTRIBUTION,
    "macos": "update macOS",
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


def install_api(backend: BackendFacts, hardware: Hardware, adapters: tuple[Adapter, ...]) -> str:
    """Say how to install a driver API: the command for the adapters here, or words."""
    if hardware.os != "linux":
        return VENDOR_DRIVER
    seen = {each.vendor for each in adapters}
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
