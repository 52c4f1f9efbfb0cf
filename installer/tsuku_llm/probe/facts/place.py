"""The place of this process, from several signs, each kept as evidence.

A container has only the drivers and devices that it was started with, and its host's kernel
module. One sign rarely is enough: ``$container`` is lost over ssh, a runtime's file may be absent,
and a pod has the files of the runtime below Kubernetes. The signs are those that
``systemd-detect-virt`` knows, and what the runtimes' documentation says that they set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from tsuku_llm.machine.hardware import Evidence
from tsuku_llm.machine.host import Host
from tsuku_llm.machine.packages import systems_of
from tsuku_llm.machine.places import Kind, MachinePlace
from tsuku_llm.probe.facts import answers
from tsuku_llm.probe.facts.environment import KERNEL_RELEASE, is_wsl

# Innermost first: a pod has the marks of its runtime, and a toolbox those of podman.
_ORDER = (
    *(Kind.FLATPAK, Kind.SNAP, Kind.APPTAINER, Kind.TOOLBOX, Kind.DISTROBOX),
    *(Kind.KUBERNETES, Kind.PODMAN, Kind.DOCKER, Kind.NSPAWN, Kind.INCUS, Kind.LXD),
    *(Kind.CONTAINERD, Kind.LXC, Kind.CONTAINER, Kind.BUBBLEWRAP, Kind.CHROOT),
)
_VARIABLES = {
    "FLATPAK_ID": Kind.FLATPAK,
    "APPTAINER_CONTAINER": Kind.APPTAINER,
    "SINGULARITY_CONTAINER": Kind.APPTAINER,
    "TOOLBOX_PATH": Kind.TOOLBOX,
    "DISTROBOX_ENTER_PATH": Kind.DISTROBOX,
    "KUBERNETES_SERVICE_HOST": Kind.KUBERNETES,
    "SCHROOT_CHROOT_NAME": Kind.CHROOT,
}
_MARKS = {
    "/.flatpak-info": Kind.FLATPAK,
    "/.singularity.d": Kind.APPTAINER,
    "/run/.toolboxenv": Kind.TOOLBOX,
    "/var/run/secrets/kubernetes.io": Kind.KUBERNETES,
    "/run/.containerenv": Kind.PODMAN,
    "/.dockerenv": Kind.DOCKER,
    "/dev/incus/sock": Kind.INCUS,
    "/dev/lxd/sock": Kind.LXD,
}
# What $container, /run/systemd/container and /run/host/container-manager may say.
_WORDS = {
    "flatpak": Kind.FLATPAK,
    "podman": Kind.PODMAN,
    "docker": Kind.DOCKER,
    "lxc": Kind.LXC,
    "lxc-libvirt": Kind.LXC,
    "incus": Kind.INCUS,
    "lxd": Kind.LXD,
    "systemd-nspawn": Kind.NSPAWN,
    "wsl": Kind.WSL,
}
_SAID_IN = ("/run/systemd/container", "/run/host/container-manager")
_CONTROL_GROUPS = ("/proc/1/cgroup", "/proc/self/cgroup")
_GROUPS = (
    (re.compile(r"kubepods"), Kind.KUBERNETES),
    (re.compile(r"libpod|/machine\.slice/podman"), Kind.PODMAN),
    (re.compile(r"/docker[/-]|\bdocker-[0-9a-f]{12}"), Kind.DOCKER),
    (re.compile(r"cri-containerd|nerdctl"), Kind.CONTAINERD),
    (re.compile(r"/lxc(?:\.payload|/)|:/\.lxc"), Kind.LXC),
)
_MODULES = "/lib/modules"
_DEBIAN_CHROOT = "/etc/debian_chroot"
_INIT, _FIRST = "/proc/1/environ", "/proc/1/comm"
_MOUNTS, _MOUNTS_OF_FIRST = "/proc/self/mountinfo", "/proc/1/mountinfo"
LABEL = "/proc/self/attr/current"
_HYPERVISORS = (
    ("QEMU", "KVM"),
    ("KVM", "KVM"),
    ("VMware", "VMware"),
    ("innotek", "VirtualBox"),
    ("VirtualBox", "VirtualBox"),
    ("Xen", "Xen"),
    ("Parallels", "Parallels"),
    ("BHYVE", "bhyve"),
    ("Apple Virtualization", "Apple"),
    ("Google Compute Engine", "Google"),
    ("OpenStack", "OpenStack"),
    ("Virtual Machine", "Hyper-V"),
)
_FIRMWARE = ("/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name")
_SERVICES = {
    "GITHUB_ACTIONS": "GitHub Actions",
    "GITLAB_CI": "GitLab CI",
    "JENKINS_URL": "Jenkins",
    "BUILDKITE": "Buildkite",
    "TF_BUILD": "Azure Pipelines",
    "CIRCLECI": "CircleCI",
    "CI": "CI",
}

# CDI: the Container Device Interface of podman and Docker. Its files are the host's.
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_CDI_KIND = re.compile(
    r"""^\s*["']?kind["']?\s*:\s*["']?(?P<kind>[\w.-]{1,253}/[\w.-]{1,63})""", re.MULTILINE
)
_MOST_FILES = 20
# What NVIDIA's toolkit reads from the container's environment.
_TOOLKIT = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")


_Sign = tuple[Kind, Evidence]
"""A place, and one fact that speaks for it."""


def find_place(host: Host) -> tuple[MachinePlace, tuple[Evidence, ...]]:
    """Ask the host for the signs; return the place, and what speaks for it."""
    signs = tuple(_signs(host))
    hypervisor = _hypervisor(host)
    wsl = is_wsl(host)
    kind = _conclude({kind for kind, _ in signs}, wsl=wsl, virtual=hypervisor is not None)
    place = MachinePlace(
        kind=kind,
        hypervisor=hypervisor or None,
        ci=next((name for key, name in _SERVICES.items() if host.environment(key)), None),
        wsl=wsl,
        systems=_systems(host, own_kernel=kind in (Kind.BARE_METAL, Kind.VM)),
    )
    facts = [fact for _, fact in signs]
    if place.contained:
        told = ((name, host.environment(name)) for name in _TOOLKIT)
        facts += [Evidence(name, value[:64]) for name, value in told if value is not None]
    if kinds := tuple(dict.fromkeys(_cdi_kinds(host))):
        facts.append(Evidence("CDI", ", ".join(kinds)))
    if place.kind is Kind.VM and hypervisor:
        facts.append(Evidence("hypervisor", hypervisor))
    return place, tuple(facts)


def _conclude(seen: AbstractSet[Kind], *, wsl: bool, virtual: bool) -> Kind:
    """Return the innermost place that a sign speaks for, else what the kernel runs on."""
    # Incus and LXD also give their socket to virtual machines.
    if virtual and not seen & {Kind.LXC, Kind.CONTAINER}:
        seen = seen - {Kind.INCUS, Kind.LXD}
    found = next((kind for kind in _ORDER if kind in seen), None)
    return found or (Kind.WSL if wsl else Kind.VM if virtual else Kind.BARE_METAL)


def _signs(host: Host) -> Iterator[_Sign]:
    for name, kind in _VARIABLES.items():
        if value := host.environment(name):
            yield (kind, Evidence(name, answers.words(value) or "set"))
    for path, kind in _MARKS.items():
        if host.access(path) is not None:
            yield (kind, Evidence(path, "present"))
    yield from _said(host)
    for path in _CONTROL_GROUPS:
        text = host.read_text(path) or ""
        found = ((pattern.search(text), kind) for pattern, kind in _GROUPS)
        yield from ((kind, Evidence(path, match[0])) for match, kind in found if match)
    if _is_confined_snap(host):
        yield (Kind.SNAP, Evidence("SNAP", host.environment("SNAP") or ""))
    # The first process of a sandbox that has its own; Flatpak makes its sandboxes with it.
    if (host.read_text(_FIRST) or "").strip() == "bwrap":
        yield (Kind.BUBBLEWRAP, Evidence(_FIRST, "bwrap"))
    yield from _other_root(host)
    if named := host.read_text(_DEBIAN_CHROOT):
        yield (Kind.CHROOT, Evidence(_DEBIAN_CHROOT, answers.words(named) or "present"))


def _other_root(host: Host) -> Iterator[_Sign]:
    """Yield what the mounts say of a root that is not the one of the system."""
    mounts = host.read_text(_MOUNTS)
    if not mounts:
        return
    root = _mounted_on("/", mounts)
    first = _mounted_on("/", host.read_text(_MOUNTS_OF_FIRST) or "")
    # The root of a plain chroot is a folder, which nothing is mounted on.
    if root is None:
        yield (Kind.CHROOT, Evidence(_MOUNTS, "nothing is mounted on /"))
    # bubblewrap makes it in a file system of its own, and leaves the name (bubblewrap.c).
    elif root[1:] == ("/newroot", "tmpfs"):
        yield (Kind.BUBBLEWRAP, Evidence(_MOUNTS, "/newroot is mounted on /"))
    # A folder that was mounted on itself first, as arch-chroot and schroot do. A service of
    # systemd has mounts of its own, and the same root.
    elif first and root != first:
        yield (Kind.CHROOT, Evidence(_MOUNTS_OF_FIRST, "another root is mounted on /"))


def _mounted_on(folder: str, mounts: str) -> tuple[str, str, str] | None:
    """Return what is on top at a folder: its device, the folder of it, and the type."""
    found = None
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        words = head.split(" ")
        if words[4:5] == [folder]:
            found = words[2], words[3], tail.partition(" ")[0]
    return found


def _said(host: Host) -> Iterator[_Sign]:
    """Yield what names the runtime: a variable, and files that it writes."""
    said = [("container", host.environment("container"))]
    said += [(path, host.read_text(path)) for path in _SAID_IN]
    # What started the first process; only root and that process may read it.
    for entry in (host.read_text(_INIT) or "").split("\0"):
        if entry.startswith("container="):
            said.append((f"container in {_INIT}", entry.partition("=")[2]))
    for name, word in said:
        if text := answers.words(word):
            yield (_WORDS.get(text.lower(), Kind.CONTAINER), Evidence(name, text))


def _systems(host: Host, *, own_kernel: bool) -> tuple[str, ...]:
    """Return the words for the system; behind them, kernels and options that change the advice."""
    kernel = (host.read_text(KERNEL_RELEASE) or "").strip()
    words = [word for word in ("linuxkit", "tegra") if word in kernel]
    # The kernel of WSL 2 ends with -microsoft-standard-WSL2 (ollama/ollama#1778).
    if kernel.endswith("-Microsoft"):
        words.append("wsl-1")
    # Some systems remove the modules of the running kernel with an update, as Arch does: modprobe
    # finds none of them until a restart.
    installed = host.list_dir(_MODULES) if own_kernel else None
    if installed and kernel not in installed and any(name[0].isdigit() for name in installed):
        words.append("kernel-replaced")
    # systemd's PrivateDevices= makes one with /dev/null and its like; the system's is a devtmpfs.
    devices = _mounted_on("/dev", host.read_text(_MOUNTS) or "") if own_kernel else None
    if devices and devices[2] == "tmpfs":
        words.append("private-dev")
    if "nomodeset" in (host.read_text("/proc/cmdline") or "").split():
        words.append("nomodeset")
    return (*systems_of(host.read_text("/etc/os-release") or ""), *words)


def _is_confined_snap(host: Host) -> bool:
    """Tell whether this is a strict snap; the terminal of a classic one also has ``SNAP``."""
    if not host.environment("SNAP"):
        return False
    label = host.read_text(LABEL)
    return label is None or (label.startswith("snap.") and "(enforce)" in label)


def _hypervisor(host: Host) -> str | None:
    """Return the maker of the virtual machine, "" for an unknown one, None if there is none."""
    texts = [host.read_text(path) or "" for path in _FIRMWARE]
    for text in texts:
        for word, name in _HYPERVISORS:
            if word in text:
                return name
    if "control_d" in (host.read_text("/proc/xen/capabilities") or ""):
        return None  # the host of Xen's virtual machines
    flags = (host.read_text("/proc/cpuinfo") or "").partition("\n\n")[0]
    # On bare metal, no processor has it.
    if re.search(r"^flags\s*:.*\bhypervisor\b", flags, re.MULTILINE):
        return ""
    return None


def _cdi_kinds(host: Host) -> Iterator[str]:
    """Find the kinds of devices in CDI files, which are YAML or JSON."""
    for folder in _CDI_FOLDERS:
        for name in (host.list_dir(folder) or ())[:_MOST_FILES]:
            if name.endswith((".yaml", ".json")):
                text = host.read_text(f"{folder}/{name}") or ""
                # JSON may be one line.
                found = _CDI_KIND.search(text.replace("{", "{\n").replace(",", ",\n"))
                if found:
                    yield found["kind"]
