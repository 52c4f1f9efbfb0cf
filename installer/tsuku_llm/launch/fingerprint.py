"""What the drivers' answers depend on, as far as it can be read without asking them. Linux.

As long as none of it changes, an answer may be remembered, and a backend that failed is not
tried again. It is cheap (some twenty small files and names) and errs on the side of change:
every boot is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

_READ = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/osrelease",
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia/srcversion",
    "/sys/module/amdgpu/srcversion",
    "/sys/module/i915/srcversion",
    "/sys/module/xe/srcversion",
)
_LISTED = (
    "/dev/dri",
    "/usr/share/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
    "/etc/OpenCL/vendors",
    "/etc/ld.so.conf.d",
)
"""Folders whose names, and the folders' own times, change when a driver comes or goes."""

_STAMPED = ("/etc/ld.so.cache", "/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
_DECIDING: tuple[str, ...] = (
    "CUDA_",
    "GGML_",
    "GPU_",
    "HIP_",
    "HSA_",
    "MESA_",
    "NVIDIA_",
    "OCL_",
    "ONEAPI_",
)
_DECIDING += ("ROCR_", "SYCL_", "VK_", "ZE_", "LD_LIBRARY_PATH", "DISPLAY", "XDG_DATA_")
"""The beginnings of the environment variables that drivers and their loaders listen to."""


def driver_fingerprint(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """The facts, each as one text; None on systems where a driver may change unseen."""
    if sys.platform != "linux":
        return None
    return (*_contents(), *_folders(), *_stamps(), *_variables(env))


def _contents() -> Iterator[str]:
    for path in _READ:
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            yield f"{path}: {' '.join(file.read().split())}"


def _folders() -> Iterator[str]:
    for path in _LISTED:
        with suppress(OSError):
            names = " ".join(sorted(os.listdir(path)))  # noqa: PTH208
            yield f"{path}: {names}" + ("" if path.startswith("/dev") else _changed(path))


def _stamps() -> Iterator[str]:
    for path in _STAMPED:
        with suppress(OSError):
            stamp = _changed(path)
            yield path if path.startswith("/dev") else f"{path}:{stamp}"


def _changed(path: str) -> str:
    status = os.stat(path)  # noqa: PTH116
    return f" {status.st_ino} {status.st_mtime_ns}"


def _variables(env: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(env):
        if name.startswith(_DECIDING):
            yield f"{name}={env[name]}"
