"""A fingerprint of the facts on which the drivers' answers depend. Linux only.

The facts are read without asking a driver. While they are the same, an answer may be reused,
and a backend that failed is not tried again. Reading them is cheap (about twenty small files
and names, and a few to open). In doubt it reports a change: every boot and every sleep counts as
one. After a sleep, or when a container's device rules were loaded again, the drivers and the
names are the same and the GPU may be gone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from tsuku_llm.ground.foreign import kernel_text

# Files whose content counts: the boot, the kernel, and each driver module's version.
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
    "/run/opengl-driver/lib",  # NixOS
    "/usr/lib/wsl/lib",  # the driver of Windows, which no package of WSL brings
    "/dev/nvidia-caps",
)
"""Folders whose entries and time stamps change when a driver is installed or removed."""

_LIBRARIES = ("/etc/ld.so.cache", "/usr/lib")
"""What changes with every installed library: the loader's cache, which musl does not have."""

_INSTANCES = "/proc/driver/nvidia/capabilities"
"""Folders of the instances of cards in MIG mode; without MIG they are few."""

_OPENED = (("/dev", ("nvidiactl", "nvidia-uvm", "kfd", "dxg")), ("/dev/dri", ("renderD",)))
"""Folders, and beginnings of the names of device nodes there that a server must be able to open.

The rules of a container refuse it at the open. Not /dev/nvidia0: without a server, opening it
starts the GPU, which takes seconds. Of those files the names count.
"""

_CARD = re.compile("nvidia[0-9]+")
_BUS = "/sys/bus/pci/drivers"
_DRIVERS = ("nvidia", "nouveau", "amdgpu", "radeon", "i915", "xe", "vfio-pci")
"""Kernel drivers of cards; the addresses of the cards that each one has count."""

_DECIDING = (
    *("AMD_", "ANV_", "CUDA_", "DRI_", "GGML_", "GPU_", "HIP_", "HSA_", "INTEL_", "LIBGL_"),
    *("MESA_", "NVIDIA_", "OCL_", "ONEAPI_", "RADV_", "ROCR_", "SYCL_", "UR_", "VK_", "ZE_"),
    *("__GLX_", "__NV_", "__VK_", "LD_LIBRARY_PATH", "DISPLAY", "XDG_DATA_"),
)
"""The prefixes of the environment variables that drivers and their loaders read.

They cover every ``hiding_variables`` of the table in ``backends``; a test checks it.
"""

SIMULATED = "TSUKU_LLM_FAKE_HARDWARE"
"""The variable with the file of a replayed machine: another recording is another machine."""


def driver_fingerprint(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the facts, each as one text; None on systems other than Linux.

    There a driver may change without a sign that we can read.
    """
    if sys.platform != "linux":
        return None
    facts: list[str] = []
    for path in _READ:
        with suppress(OSError):
            facts.append(f"{path}: {' '.join(kernel_text(path).split())}")
    for path in _LISTED:
        with suppress(OSError):
            names = " ".join(sorted(os.listdir(path)))
            # Device nodes are made at each boot, so the time of their folder says nothing.
            facts.append(f"{path}: {names}" + ("" if path.startswith("/dev") else _stamp(path)))
    for path in _LIBRARIES:
        with suppress(OSError):
            facts.append(f"{path}:{_stamp(path)}")
            break
    with suppress(OSError):
        # A container sees every card of its host on the bus, and the device files of its own.
        facts.append("/dev: " + " ".join(sorted(filter(_CARD.fullmatch, os.listdir("/dev")))))
    for folder, instances, _ in os.walk(_INSTANCES):
        facts.append(f"{folder}: {' '.join(sorted(instances))}")
    for folder, prefix in _OPENED:
        with suppress(OSError):
            found = sorted(each for each in os.listdir(folder) if each.startswith(prefix))
            nodes = [f"{folder}/{name}" for name in found]
            facts += (f"{each}: {errno.errorcode.get(open_error(each), '')}" for each in nodes)
    searched = [each for each in env.get("LD_LIBRARY_PATH", "").split(":") if each]
    for path in (*searched, env.get(SIMULATED, "")):
        with suppress(OSError):
            facts.append(f"{path}:{_stamp(path)}")
    for driver in _DRIVERS:
        with suppress(OSError):
            cards = sorted(each for each in os.listdir(f"{_BUS}/{driver}") if ":" in each)
            facts.append(f"{driver}: {' '.join(cards)}")
    facts.append(f"asleep: {seconds_asleep()}")
    facts += (f"{name}={env[name]}" for name in sorted(env) if name.startswith(_DECIDING))
    return tuple(facts)


def drivers_alone(facts: Iterable[str]) -> tuple[str, ...]:
    """Return the facts without those of this boot: compiled code outlives a restart and a sleep."""
    passing = ("/proc/sys/kernel/random/boot_id", "asleep:", "/dev")
    return tuple(fact for fact in facts if not fact.startswith(passing))


def choice_digest(facts: tuple[str, ...] | None) -> str:
    """Return the SHA-256 of the facts that a choice of a build rests on; empty if they are unknown.

    A boot or a sleep alone changes nothing of what would be chosen.
    """
    if facts is None:
        return ""
    passing = ("/proc/sys/kernel/random/boot_id", "asleep:")
    lasting = (fact for fact in facts if not fact.startswith(passing))
    return hashlib.sha256("\n".join(lasting).encode(errors="surrogateescape")).hexdigest()


def seconds_asleep() -> int:
    """Return for how many seconds the machine has slept since the boot."""
    # CLOCK_MONOTONIC stops in a sleep, and CLOCK_BOOTTIME goes on.
    slept = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return round(slept)


def open_error(node: str) -> int:
    """Open a device node and close it; return the number of the error, 0 if there is none."""
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or 0
    return 0


def _stamp(path: str) -> str:
    # The inode too: a file that was replaced may keep its time.
    status = os.stat(path)
    return f" {status.st_ino} {status.st_mtime_ns}"
