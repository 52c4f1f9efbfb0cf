"""Containers: what runs this one, and the flag that would give it a GPU.

A container has only the drivers and devices that it was started with. Docker's ``--gpus`` is part
of NVIDIA's toolkit. podman and newer Docker take devices of the Container Device Interface (CDI).
Its files lie in ``/etc/cdi`` and ``/var/run/cdi``. In Kubernetes a pod asks a device plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tsuku_llm.machine.hardware import Evidence
from tsuku_llm.machine.host import Host

NVIDIA_GPU = "nvidia.com/gpu"
"""The kind of NVIDIA's devices, in CDI and in Kubernetes."""

AMD_GPU, INTEL_GPU = "amd.com/gpu", "gpu.intel.com/i915"
"""The resources of the device plugins of AMD and Intel."""

_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_KIND = re.compile(
    r"""^\s*["']?kind["']?\s*:\s*["']?(?P<kind>[\w.-]{1,253}/[\w.-]{1,63})""", re.MULTILINE
)
_MOST_FILES = 20
# What NVIDIA's toolkit reads from the container's environment.
_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")


class Runtime(str, Enum):
    """What runs this container; ``NONE`` outside of containers."""

    NONE = ""
    DOCKER = "Docker"
    PODMAN = "podman"
    KUBERNETES = "Kubernetes"
    OTHER = "another runtime"


@dataclass(frozen=True, slots=True)
class Container:
    """The container of this process, and the kinds of devices in the CDI files that it can see."""

    runtime: Runtime = Runtime.NONE
    cdi: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    def evidence(self) -> tuple[Evidence, ...]:
        """Tell the facts that explain a missing GPU."""
        found = []
        if self.runtime is not Runtime.NONE:
            found.append(Evidence("container", self.runtime.value))
            found += [Evidence(name, value) for name, value in self.variables]
        if self.cdi:
            found.append(Evidence("CDI", ", ".join(self.cdi)))
        return tuple(found)

    def give_nvidia(self, *, graphics: bool = False) -> str:
        """Return how this container gets an NVIDIA GPU, for Vulkan too if ``graphics``."""
        variable = "NVIDIA_DRIVER_CAPABILITIES=all"
        if self.runtime is Runtime.KUBERNETES:
            more = f", and the variable {variable}" if graphics else ""
            return (
                f"let the pod ask for it: resources.limits: {NVIDIA_GPU}: 1{more}; the cluster "
                "needs NVIDIA's device plugin"
            )
        device = f"--device {NVIDIA_GPU}=all"
        if self.runtime is Runtime.PODMAN:
            return (
                f"start the container with {device}; if podman does not know that device, on the "
                "host: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
            )
        capabilities = f" -e {variable}" if graphics else ""
        words = f"start the container with --gpus all{capabilities}"
        if self.runtime is Runtime.DOCKER:
            return f"{words}; the host needs the NVIDIA Container Toolkit"
        return f"{words} (NVIDIA Container Toolkit), or with a CDI device ({device})"

    def give_files(self, *devices: str, plugin: str) -> str:
        """Return how this container gets device files; ``plugin`` is the resource of Kubernetes."""
        if self.runtime is Runtime.KUBERNETES:
            return (
                f"let the pod ask for it: resources.limits: {plugin}: 1; the cluster needs its "
                "maker's device plugin"
            )
        flags = " ".join(f"--device {device}" for device in devices)
        return f"start the container with {flags}"


def collect(host: Host) -> Container:
    """Ask the host for the files and variables that tell what runs this container."""
    runtime = _runtime(host)
    found = ((name, host.environment(name)) for name in _VARIABLES)
    variables = tuple((name, value[:64]) for name, value in found if value is not None)
    return Container(runtime, tuple(dict.fromkeys(_cdi_kinds(host))), variables)


def _runtime(host: Host) -> Runtime:
    # A pod's containers have the files of the runtime below them, too: ask for Kubernetes first.
    if host.environment("KUBERNETES_SERVICE_HOST"):
        return Runtime.KUBERNETES
    name = host.environment("container")  # set by systemd-nspawn, LXC and podman
    if name == "podman" or host.access("/run/.containerenv") is not None:
        return Runtime.PODMAN
    if host.access("/.dockerenv") is not None:
        return Runtime.DOCKER
    return Runtime.OTHER if name else Runtime.NONE


def _cdi_kinds(host: Host) -> Iterator[str]:
    """Find the kinds of devices in CDI files, which are YAML or JSON."""
    for folder in _CDI_FOLDERS:
        for name in (host.list_dir(folder) or ())[:_MOST_FILES]:
            if name.endswith((".yaml", ".json")):
                text = host.read_text(f"{folder}/{name}") or ""
                # JSON may be one line.
                found = _KIND.search(text.replace("{", "{\n").replace(",", ",\n"))
                if found:
                    yield found["kind"]
