"""The place in which this program runs, as far as the advice for a GPU depends on it.

Values only: ``probe.place`` finds it out, and ``machine.fixes`` says what helps there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tsuku_llm.ground.records import documented


class Kind(str, enum.Enum):
    """The innermost place: a container in a virtual machine is a container."""

    BARE_METAL = "bare-metal"
    VM = "vm"
    WSL = "wsl"
    DOCKER = "docker"
    PODMAN = "podman"
    CONTAINERD = "containerd"
    KUBERNETES = "kubernetes"
    LXC = "lxc"
    INCUS = "incus"
    LXD = "lxd"
    NSPAWN = "nspawn"
    APPTAINER = "apptainer"
    FLATPAK = "flatpak"
    SNAP = "snap"
    TOOLBOX = "toolbox"
    DISTROBOX = "distrobox"
    BUBBLEWRAP = "bubblewrap"
    CHROOT = "chroot"
    CONTAINER = "container"
    """A container of a runtime that is not known."""


WITH_A_KERNEL = frozenset({Kind.BARE_METAL, Kind.VM, Kind.WSL})
"""The places that have a kernel of their own; all others use that of a host."""

OWN_LIBRARIES = frozenset({Kind.LXC, Kind.INCUS, Kind.LXD, Kind.NSPAWN, Kind.CHROOT})
"""The places with a whole system of their own: their driver libraries are installed there, not
passed in from the host."""

SYSTEM_CONTAINERS = OWN_LIBRARIES - {Kind.CHROOT}
"""The containers that a service of the host starts like a machine."""

_NAMES = {
    Kind.VM: "virtual machine",
    Kind.WSL: "WSL",
    Kind.DOCKER: "Docker container",
    Kind.PODMAN: "podman container",
    Kind.CONTAINERD: "container of containerd",
    Kind.KUBERNETES: "pod of Kubernetes",
    Kind.LXC: "LXC container",
    Kind.INCUS: "Incus container",
    Kind.LXD: "LXD container",
    Kind.NSPAWN: "container of systemd-nspawn",
    Kind.APPTAINER: "container of Apptainer or Singularity",
    Kind.FLATPAK: "Flatpak sandbox",
    Kind.SNAP: "snap",
    Kind.TOOLBOX: "toolbox",
    Kind.DISTROBOX: "distrobox",
    Kind.BUBBLEWRAP: "sandbox of bubblewrap",
    Kind.CHROOT: "chroot",
    Kind.CONTAINER: "container",
}


@documented("kind", "hypervisor", "ci")
@dataclass(frozen=True, slots=True)
class MachinePlace:
    """The place, and the system in it.

    ``hypervisor`` is the maker of the virtual machine, also around a container, None if there is
    none or it is not known. ``ci`` names the service for continuous integration that runs this.
    ``wsl`` tells that the kernel is that of WSL. ``systems`` are the words of ``os-release`` for
    the system, its id first, then what it is like.
    """

    kind: Kind = Kind.BARE_METAL
    hypervisor: str | None = None
    ci: str | None = None
    wsl: bool = False
    systems: tuple[str, ...] = ()

    @property
    def contained(self) -> bool:
        """Whether the kernel, its modules and its device files are a host's."""
        return self.kind not in WITH_A_KERNEL

    @property
    def name(self) -> str:
        """What this place is, in words."""
        return _NAMES.get(self.kind, "machine")
