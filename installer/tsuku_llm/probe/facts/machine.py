"""The kind of machine that runs the drivers: supporting facts, never a reason not to ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tsuku_llm.ground.own_name import SUDO
from tsuku_llm.machine.hardware import Evidence, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer, Host
from tsuku_llm.machine.packages import family_of
from tsuku_llm.probe.facts import answers, containers
from tsuku_llm.probe.facts.containers import Container, Runtime
from tsuku_llm.probe.facts.environment import is_wsl

_TEGRA_FILES = ("/etc/nv_tegra_release", "/proc/device-tree/compatible")


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A display controller or accelerator; ``driver`` is the kernel module bound to it."""

    slot: str | None
    vendor: int | None
    device: int | None
    driver: str | None

    @property
    def name(self) -> str:
        """The vendor and device numbers, as PCI tools write them."""
        ids = (self.vendor, self.device)
        return ":".join("????" if part is None else f"{part:04x}" for part in ids)


@dataclass(frozen=True, slots=True)
class MachineKind:
    """The kind of machine; on Windows only ``os``, ``pci`` and ``packages`` carry information.

    ``packages`` is the family of its package manager, ``inside`` the container that this is.
    """

    os: str = "linux"
    inside: Container = field(default_factory=Container)
    wsl: bool = False
    wsl_device: bool = False
    tegra: str | None = None
    pci: tuple[PciDevice, ...] = ()
    packages: str = ""

    @property
    def container(self) -> bool:
        """Whether this is a container."""
        return self.inside.runtime is not Runtime.NONE

    def has_pci(self, vendor: int) -> bool:
        """Tell whether the bus lists a device of that vendor."""
        return any(device.vendor == vendor for device in self.pci)


def collect(host: Host, by_question: Mapping[str, DriverAnswer]) -> MachineKind:
    """Ask the host for the few files that tell what kind of machine it is."""
    wsl = is_wsl(host)
    return MachineKind(
        inside=containers.collect(host),
        wsl=wsl,
        wsl_device=wsl and host.access("/dev/dxg") is not None,
        tegra=parse_tegra(*(host.read_text(path) for path in _TEGRA_FILES)),
        pci=parse_pci(by_question.get("pci", ABSENT)),
        packages=family_of("linux", host.read_text("/etc/os-release") or ""),
    )


def permission_fix(machine: MachineKind, device: str) -> str:
    """Return how this user gets the right to open a GPU's device file."""
    if machine.container:
        # The container's own groups have other numbers than the host's, which owns the file.
        return (
            f"start the container with the file's group: --group-add $(stat -c %g {device}); "
            "with podman without root: --group-add keep-groups"
        )
    return (
        f"add the user to the groups video and render: {SUDO}usermod -aG video,render $USER; then "
        "log in again"
    )


def parse_tegra(release: str | None, compatible: str | None) -> str | None:
    """Return the Jetson's release text, or its device-tree name; None on other machines."""
    if release and "REVISION" in release:
        return answers.words(release.partition("\n")[0])
    if compatible and "nvidia,tegra" in compatible:
        return answers.words(compatible)
    return None


def parse_pci(answer: DriverAnswer) -> tuple[PciDevice, ...]:
    """Read each line of the worker's list."""
    return tuple(
        PciDevice(
            slot=answers.words(line.get("slot")),
            vendor=_hex(line.get("vendor")),
            device=_hex(line.get("device")),
            driver=answers.words(line.get("driver")),
        )
        for line in answers.calls(answer, "device")
    )


def _hex(value: object) -> int | None:
    try:
        return int(value, 16) if isinstance(value, str) else None
    except ValueError:
        return None


def evidence(machine: MachineKind) -> tuple[Evidence, ...]:
    """List the devices on the bus with their kernel modules, and the container's facts."""
    bus = (
        Evidence(f"PCI {device.slot}", f"{device.name} (driver {device.driver or 'none'})")
        for device in machine.pci
    )
    return (*bus, *machine.inside.evidence())


def problems(machine: MachineKind) -> tuple[Problem, ...]:
    """Return the problems that concern the whole machine."""
    found = []
    if machine.tegra:
        found.append(
            Problem(
                "jetson",
                f"this is a Jetson ({machine.tegra}): its CUDA is not the one of arm64 servers",
                "build llama.cpp with the JetPack's own CUDA",
            )
        )
    # A container in WSL lacks /dev/dxg only because it was not passed in.
    if machine.wsl and not machine.wsl_device and not machine.container:
        found.append(
            Problem(
                "wsl-without-gpu",
                "this is WSL, and Windows offers it no GPU (/dev/dxg is missing)",
                "update the GPU's driver in Windows, then run there: wsl --update",
            )
        )
    return tuple(found)
