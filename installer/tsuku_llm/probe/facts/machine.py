"""The kind of machine that runs the drivers: supporting facts, never a reason not to ask."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tsuku_llm.machine.backends import AMD, INTEL
from tsuku_llm.machine.fixes import Need, fix_for
from tsuku_llm.machine.hardware import Evidence, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer, Host
from tsuku_llm.machine.kernel_drivers import BusCard
from tsuku_llm.machine.packages import family_of
from tsuku_llm.machine.places import Kind, MachinePlace
from tsuku_llm.probe.facts import answers
from tsuku_llm.probe.facts.place import LABEL, find_place

# The types of processes that container-selinux confines; not spc_t, nor that of the runtime itself.
_CONFINED = re.compile(r":(?:container_(?!runtime_)\w*|svirt_lxc_net_)t(?::|\s|\0|$)")
_TEGRA_FILES = ("/etc/nv_tegra_release", "/proc/device-tree/compatible")


@dataclass(frozen=True, slots=True)
class MachineKind:
    """The kind of machine; on Windows only ``os``, ``pci`` and ``packages`` carry information.

    ``packages`` is the family of its package manager, ``place`` where this runs, and ``signs``
    what speaks for that place. ``library_path`` is LD_LIBRARY_PATH. ``selinux`` tells that SELinux
    enforces its rules, ``apparmor`` that a profile of AppArmor limits this process.
    """

    os: str = "linux"
    place: MachinePlace = field(default_factory=MachinePlace)
    signs: tuple[Evidence, ...] = ()
    wsl_device: bool = False
    selinux: bool = False
    apparmor: bool = False
    tegra: str | None = None
    pci: tuple[BusCard, ...] = ()
    packages: str = ""
    library_path: str = ""

    def fix(self, need: Need, **facts: str) -> str:
        """Return what helps in this place."""
        return fix_for(need, self.place, **facts)

    def of_vendor(self, vendor: int) -> tuple[BusCard, ...]:
        """Return the devices of a vendor on the bus."""
        return tuple(device for device in self.pci if device.vendor == vendor)

    def has_pci(self, vendor: int) -> bool:
        """Tell whether the bus lists a device of that vendor."""
        return any(device.vendor == vendor for device in self.pci)


def collect(host: Host, by_question: Mapping[str, DriverAnswer]) -> MachineKind:
    """Ask the host for the few files that tell what kind of machine it is."""
    place, signs = find_place(host)
    label = host.read_text(LABEL) or ""
    enforced = (host.read_text("/sys/fs/selinux/enforce") or "").strip() == "1"
    return MachineKind(
        place=place,
        signs=signs,
        # podman and Docker show a container no selinuxfs, as if there were no SELinux; the label of
        # the process stays (podman#2613).
        selinux=enforced or _CONFINED.search(label) is not None,
        apparmor="(enforce)" in label,
        wsl_device=place.wsl and host.access("/dev/dxg") is not None,
        tegra=parse_tegra(*(host.read_text(path) for path in _TEGRA_FILES)),
        pci=parse_pci(by_question.get("pci", ABSENT)),
        packages=family_of("linux", host.read_text("/etc/os-release") or ""),
        library_path=host.environment("LD_LIBRARY_PATH") or "",
    )


def closed_file(machine: MachineKind, device: str, access: str = "") -> Problem:
    """Return the problem of a device file that cannot be opened here, and what to do.

    ``access`` is what ``Host.access`` says of it: the rights, and the error of the open.
    """
    rights, _, error = access.partition(" ")
    allowed = rights == "rw" and error in ("", "EACCES")
    slug, need, text = "gpu-permission", Need.PERMISSION, f"this user may not open {device}"
    if error == "EPERM":
        # The kernel's device controller: security/device_cgroup.c, and its BPF programs since.
        slug, need = "device-rules", Need.DEVICE_RULES
        text = f"the device rules (cgroup) of this {machine.place.name} refuse {device}"
    elif error in _NO_DRIVER_BEHIND:
        slug, need = "device-without-driver", Need.NODE_ONLY
        text = f"{device} exists, and no driver answers behind it ({error})"
    elif error == "nodev":
        slug, need = "nodev", Need.NODEV
        text = f"{device} cannot be opened: it is on a file system that is mounted with nodev"
    elif machine.selinux and (allowed or (machine.place.contained and not error)):
        # A group would not help: the label of the process decides. Recordings from before the open
        # was tried tell no error.
        slug, need = "selinux-denies", Need.SELINUX
        text = f"{device} may not be opened here, and SELinux enforces its rules"
    elif allowed and machine.apparmor:
        slug, need = "apparmor-denies", Need.APPARMOR
        text = f"{device} may not be opened here although its rights allow it: AppArmor denies it"
    elif allowed or error not in ("", "EACCES"):
        slug, need = "device-error", Need.DEVICE_ERROR
        text = f"{device} cannot be opened: the kernel answers {error}"
    return Problem(slug, text, machine.fix(need, device=device))


_NO_DRIVER_BEHIND = ("ENXIO", "ENODEV")


def files_fix(machine: MachineKind, *files: str) -> str:
    """Return how this place gets device files of a GPU of AMD or Intel."""
    # The resource of the makers' device plugins. Intel's is named after the kernel module
    # (intel-device-plugins-for-kubernetes#1670).
    plugins = ["amd.com/gpu"] if machine.has_pci(AMD) else []
    plugins += [f"gpu.intel.com/{each.driver or 'xe'}" for each in machine.of_vendor(INTEL)]
    either = "amd.com/gpu or gpu.intel.com/xe (or i915, as the node drives it)"
    return machine.fix(
        Need.FILES,
        files=" and ".join(files),
        flags=" ".join(f"--device {each}" for each in files),
        plugin=next(iter(plugins), either),
    )


def parse_tegra(release: str | None, compatible: str | None) -> str | None:
    """Return the Jetson's release text, or its device-tree name; None on other machines."""
    if release and "REVISION" in release:
        return answers.words(release.partition("\n")[0])
    if compatible and "nvidia,tegra" in compatible:
        return answers.words(compatible)
    return None


def has_server_cuda(tegra: str) -> bool:
    """Tell whether a Jetson runs CUDA for arm64 servers: Thor, and JetPack 7 (Linux for Tegra 38).

    CUDA 13 has one toolkit for both.
    """
    release = re.match(r"# R(\d{1,4})\b", tegra)
    return "tegra264" in tegra or (release is not None and int(release[1]) >= 38)


def parse_pci(answer: DriverAnswer) -> tuple[BusCard, ...]:
    """Read each line of the worker's list; the ids are written as PCI tools do."""
    found = []
    for line in answers.calls(answer, "device"):
        vendor, device = ids = _hex(line.get("vendor")), _hex(line.get("device"))
        card = BusCard(
            name=f"PCI {answers.words(line.get('slot'))}",
            vendor=vendor,
            device=device,
            driver=answers.words(line.get("driver")),
            numbers=":".join("????" if part is None else f"{part:04x}" for part in ids),
            power=answers.words(line.get("power")),
        )
        found.append(card)
    return tuple(found)


def _hex(value: object) -> int | None:
    try:
        return int(value, 16) if isinstance(value, str) else None
    except ValueError:
        return None


def evidence(machine: MachineKind) -> tuple[Evidence, ...]:
    """List the devices on the bus with their kernel modules, and the signs of the place."""
    bus = (
        Evidence(card.name, f"{card.numbers} (driver {card.driver or 'none'})")
        for card in machine.pci
    )
    return (*bus, *machine.signs)


def problems(machine: MachineKind) -> tuple[Problem, ...]:
    """Return the problems that concern the whole machine."""
    found = []
    if machine.tegra and not has_server_cuda(machine.tegra):
        found.append(
            Problem(
                "jetson",
                f"this is a Jetson ({machine.tegra}): its CUDA is not the one of arm64 servers",
                "build llama.cpp with the JetPack's own CUDA",
            )
        )
    # A container in WSL lacks /dev/dxg only because it was not passed in.
    if machine.place.kind is Kind.WSL and not machine.wsl_device:
        text = "this is WSL, and Windows offers it no GPU (/dev/dxg is missing)"
        if "wsl-1" in machine.place.systems:
            text = "this is WSL 1, which has no GPU"
        found.append(Problem("wsl-without-gpu", text, machine.fix(Need.WSL_GPU)))
    return tuple(found)
