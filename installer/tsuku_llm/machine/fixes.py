"""What to do about a GPU that cannot be used: one table, by need, place and system. Pure.

A row is for a need, and for the places and systems that it names; without any, for all. The first
row that matches is the fix, so the narrower rows come first. What the user of a container cannot do
there begins with "on the host". Words in braces are facts of the machine: ``{device}`` a device
file, ``{version}`` NVIDIA's driver of the host, ``{branch}`` a branch of it, ``{plugin}`` the
resource of a device plugin of Kubernetes, ``{files}`` device files.

Sources: the manuals of the runtimes (``docker run``, ``podman run``, ``pct``, ``incus config``,
``systemd-nspawn``, ``apptainer exec``, ``flatpak override``, ``distrobox create``), NVIDIA's
installation guide and its guide for the container toolkit, and the packages of the distributions.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tsuku_llm.ground.own_name import SUDO, TSUKU
from tsuku_llm.machine.places import OWN_LIBRARIES, Kind, MachinePlace


class Need(str, enum.Enum):
    """What the machine needs for a GPU to be used."""

    NVIDIA_GPU = "the container needs NVIDIA's device files and libraries"
    NVIDIA_VULKAN = "the container needs NVIDIA's part for Vulkan"
    NVIDIA_LIBRARIES = "the container has the device files, and needs NVIDIA's libraries"
    NVIDIA_DRIVER = "the driver is not installed"
    NIX_DRIVER = "the driver is where only programs of NixOS look"
    NIX_VULKAN = "Vulkan's loader is where only programs of NixOS look"
    NVIDIA_MODULE = "the kernel module is not loaded"
    NVIDIA_FILES = "the module is loaded, and its device files are not made"
    NVIDIA_UVM = "/dev/nvidia-uvm does not exist"
    NVIDIA_UVM_CLOSED = "/dev/nvidia-uvm may not be opened"
    NVIDIA_AWAKE = "the driver lost its devices in a suspend"
    NVIDIA_SAME_VERSION = "library and kernel module have different versions"
    NVIDIA_FABRIC = "the fabric manager does not run"
    NVIDIA_MPS = "the MPS daemon does not answer"
    NVIDIA_BUSY = "another process has the card for itself"
    NVIDIA_OPEN = "the card needs the open kernel modules"
    NVIDIA_CLOSED = "the card needs the proprietary kernel modules"
    NVIDIA_LEGACY = "the card needs an older branch"
    NVIDIA_NEWER = "the card needs a newer branch"
    NVIDIA_START = "the driver could not start the card"
    NVIDIA_LOST = "the card does not answer any more"
    NOUVEAU = "another driver holds the card"
    SET_ASIDE = "the card is reserved for a virtual machine"
    ROCM_RUNTIME = "ROCm's runtime is not installed"
    FILES = "the container needs device files"
    DEVICE_RULES = "the container may not open its device files any more"
    PERMISSION = "the user may not open a device file"
    SELINUX = "SELinux denies a device file"
    APPARMOR = "AppArmor denies a device file"
    NODEV = "a device file is on a file system without devices"
    NODE_ONLY = "a device file has no driver behind it"
    DEVICE_ERROR = "a driver answers the open of its device file with an error"
    AMD_MODULE = "amdgpu does not drive the card"
    AMD_OLD_MODULE = "the old module radeon drives the card"
    INTEL_OLD_MODULE = "i915 does not drive the card"
    INTEL_NEW_MODULE = "xe does not drive the card"
    NEWER_MESA = "Mesa is older than the card"


class FixRow(NamedTuple):
    """A fix, and where it is one."""

    need: Need
    fix: str
    places: frozenset[Kind] = frozenset()
    systems: frozenset[str] = frozenset()


def _at(*kinds: Kind) -> frozenset[Kind]:
    return frozenset(kinds)


def _on(*systems: str) -> frozenset[str]:
    return frozenset(systems)


# The places whose runtime passes the host's libraries in when it starts them.
_PASSED_IN = _at(
    *(Kind.DOCKER, Kind.PODMAN, Kind.CONTAINERD, Kind.KUBERNETES, Kind.CONTAINER),
    *(Kind.APPTAINER, Kind.TOOLBOX, Kind.DISTROBOX, Kind.SNAP),
)
_SYSTEM_CONTAINERS = _at(Kind.LXC, Kind.INCUS, Kind.LXD, Kind.NSPAWN)
_CONTAINED = OWN_LIBRARIES | _PASSED_IN | {Kind.FLATPAK}
_NVIDIA_FILES = "/dev/nvidiactl, /dev/nvidia0, /dev/nvidia-uvm and /dev/nvidia-uvm-tools"
_POD = "resources.limits: {plugin}: 1; the cluster needs its maker's device plugin"
_ROOT = "sudo "
"""What comes before a command for root on the host, where the user is another one."""
_CDI = f"{_ROOT}nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_INCUS = "on the host: incus config device add NAME gpu gpu"
_LXD = "on the host: lxc config device add NAME gpu gpu"
_USER_LIBRARIES = (
    "install NVIDIA's user libraries of the host's version here, without its kernel module: "
    "NVIDIA-Linux-*-{version}.run --no-kernel-module"
)
_OUTSIDE = "or run {tsuku} outside of the sandbox, on the host"
_BLACKLIST = (
    "keep {module} from the card: echo blacklist {module} | "
    f"{SUDO}tee /etc/modprobe.d/no-{{module}}.conf; {SUDO}"
)
_BIOS = (
    f"see what the kernel says of it: {SUDO}dmesg | grep -e NVRM -e nvidia; often the firmware's "
    "setup needs Above 4G Decoding, or the card lacks power"
)
_LOG_AMD = f"the kernel's log says why: {SUDO}dmesg | grep amdgpu"

TABLE = (
    # --- NixOS: programs that were made for other systems
    FixRow(
        Need.NIX_DRIVER,
        "export LD_LIBRARY_PATH=/run/opengl-driver/lib, for this program and the server",
    ),
    FixRow(
        Need.NIX_VULKAN,
        "programs.nix-ld.libraries = [ pkgs.vulkan-loader ]; in the configuration of NixOS, and "
        "export LD_LIBRARY_PATH=/run/opengl-driver/lib",
    ),
    # --- NVIDIA: give a place the card
    FixRow(
        Need.NVIDIA_GPU,
        "let the pod ask for it: resources.limits: nvidia.com/gpu: 1; the cluster needs NVIDIA's "
        "device plugin, and where its runtime is not the default, runtimeClassName: nvidia",
        _at(Kind.KUBERNETES),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "start the container with --gpus all; the host needs the NVIDIA Container Toolkit",
        _at(Kind.DOCKER),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "start the container with nerdctl run --gpus all; the host needs the NVIDIA Container "
        "Toolkit",
        _at(Kind.CONTAINERD),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "start the container with --device nvidia.com/gpu=all; if podman does not know that "
        f"device, on the host: {_CDI}",
        _at(Kind.PODMAN),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        f"{_INCUS}; incus config set NAME nvidia.runtime=true; incus restart NAME",
        _at(Kind.INCUS),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        f"{_LXD}; lxc config set NAME nvidia.runtime=true; lxc restart NAME",
        _at(Kind.LXD),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        f"on the host: pass {_NVIDIA_FILES} in the container's configuration (Proxmox: pct set ID "
        "--dev0 /dev/nvidiactl --dev1 /dev/nvidia0 --dev2 /dev/nvidia-uvm) and start it again; "
        f"then {_USER_LIBRARIES}",
        _at(Kind.LXC),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "on the host: systemd-nspawn --bind=/dev/nvidiactl --bind=/dev/nvidia0 "
        "--bind=/dev/nvidia-uvm, and DeviceAllow= for them in its unit; "
        f"then {_USER_LIBRARIES}",
        _at(Kind.NSPAWN),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        f"on the host: mount --rbind /dev CHROOT/dev; then {_USER_LIBRARIES}",
        _at(Kind.CHROOT),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "start the container with --nv, which brings the host's driver: apptainer exec --nv IMAGE",
        _at(Kind.APPTAINER),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "on the host: flatpak update, which installs the driver's part of the same version "
        f"(org.freedesktop.Platform.GL.nvidia-{{dashed}}); {_OUTSIDE}",
        _at(Kind.FLATPAK),
    ),
    FixRow(Need.NVIDIA_GPU, f"on the host: snap connect NAME:opengl; {_OUTSIDE}", _at(Kind.SNAP)),
    FixRow(
        Need.NVIDIA_GPU,
        "on the host: update toolbox (it passes NVIDIA's driver in since 0.1.0), install the "
        "NVIDIA Container Toolkit, and enter it again; or: distrobox create --nvidia",
        _at(Kind.TOOLBOX),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "on the host: make the box again, with the driver: distrobox create --nvidia",
        _at(Kind.DISTROBOX),
    ),
    FixRow(
        Need.NVIDIA_GPU,
        "start the container with --gpus all (NVIDIA Container Toolkit), or with a CDI device "
        "(--device nvidia.com/gpu=all)",
        _at(Kind.CONTAINER),
    ),
    # --- NVIDIA: its libraries where the device files are there
    FixRow(
        Need.NVIDIA_LIBRARIES,
        "on the host: incus config set NAME nvidia.runtime=true; incus restart NAME",
        _at(Kind.INCUS),
    ),
    FixRow(
        Need.NVIDIA_LIBRARIES,
        "on the host: lxc config set NAME nvidia.runtime=true; lxc restart NAME",
        _at(Kind.LXD),
    ),
    FixRow(Need.NVIDIA_LIBRARIES, _USER_LIBRARIES, OWN_LIBRARIES),
    # --- NVIDIA: its part for Vulkan
    FixRow(
        Need.NVIDIA_VULKAN,
        "let the pod ask for it: resources.limits: nvidia.com/gpu: 1, and the variable "
        "NVIDIA_DRIVER_CAPABILITIES=all; the cluster needs NVIDIA's device plugin",
        _at(Kind.KUBERNETES),
    ),
    FixRow(
        Need.NVIDIA_VULKAN,
        "start the container with --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all; the host needs the "
        "NVIDIA Container Toolkit",
        _at(Kind.DOCKER, Kind.CONTAINERD),
    ),
    FixRow(
        Need.NVIDIA_VULKAN,
        "start the container with --device nvidia.com/gpu=all -e NVIDIA_DRIVER_CAPABILITIES=all; "
        f"if podman does not know that device, on the host: {_CDI}",
        _at(Kind.PODMAN),
    ),
    FixRow(
        Need.NVIDIA_VULKAN,
        "on the host: incus config set NAME nvidia.driver.capabilities=all; incus restart NAME",
        _at(Kind.INCUS),
    ),
    FixRow(
        Need.NVIDIA_VULKAN,
        "on the host: lxc config set NAME nvidia.driver.capabilities=all; lxc restart NAME",
        _at(Kind.LXD),
    ),
    FixRow(Need.NVIDIA_VULKAN, _USER_LIBRARIES, OWN_LIBRARIES),
    FixRow(
        Need.NVIDIA_VULKAN,
        "start the container with --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all (NVIDIA Container "
        "Toolkit), or with a CDI device (--device nvidia.com/gpu=all)",
        _at(Kind.CONTAINER),
    ),
    FixRow(
        Need.NVIDIA_VULKAN,
        f"{SUDO}apt install libnvidia-gl-{{branch}}",
        systems=_on("ubuntu"),
    ),
    FixRow(Need.NVIDIA_VULKAN, f"{SUDO}apt install nvidia-vulkan-icd", systems=_on("debian")),
    FixRow(Need.NVIDIA_VULKAN, f"{SUDO}pacman -S nvidia-utils", systems=_on("arch")),
    FixRow(Need.NVIDIA_VULKAN, "install NVIDIA's driver with its part for Vulkan"),
    # --- NVIDIA: the driver and its module
    FixRow(
        Need.NVIDIA_DRIVER,
        f"{SUDO}ubuntu-drivers install, then restart the machine",
        systems=_on("ubuntu"),
    ),
    FixRow(
        Need.NVIDIA_DRIVER,
        f"{SUDO}apt install nvidia-driver (of Debian's component non-free), then restart the "
        "machine",
        systems=_on("debian"),
    ),
    FixRow(
        Need.NVIDIA_DRIVER,
        f"{SUDO}pacman -S nvidia-open (for cards before Turing: nvidia-580xx-dkms of the AUR), "
        "then restart the machine",
        systems=_on("arch"),
    ),
    FixRow(
        Need.NVIDIA_DRIVER,
        f"{SUDO}rpm-ostree install akmod-nvidia xorg-x11-drv-nvidia-cuda (of RPM Fusion), then "
        "restart the machine",
        systems=_on("ostree"),
    ),
    FixRow(
        Need.NVIDIA_DRIVER,
        f"{SUDO}dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda (of RPM Fusion), then restart "
        "the machine",
        systems=_on("fedora"),
    ),
    FixRow(
        Need.NVIDIA_DRIVER,
        'services.xserver.videoDrivers = [ "nvidia" ]; in the configuration of NixOS, then '
        "nixos-rebuild switch, and restart the machine",
        systems=_on("nixos"),
    ),
    FixRow(Need.NVIDIA_DRIVER, "install the NVIDIA driver; the CUDA toolkit is not needed"),
    FixRow(Need.NVIDIA_MODULE, "on the host: modprobe nvidia", _CONTAINED),
    FixRow(
        Need.NVIDIA_MODULE,
        f"{SUDO}modprobe nvidia; if that fails, check Secure Boot and the kernel's headers",
    ),
    FixRow(
        Need.NVIDIA_FILES,
        f"wait until the driver is ready, or make them: {SUDO}nvidia-modprobe -c 0 -u",
    ),
    FixRow(
        Need.NVIDIA_UVM,
        "on the host: modprobe nvidia_uvm; nvidia-modprobe -u -c 0; then pass /dev/nvidia-uvm and "
        "/dev/nvidia-uvm-tools in the container's configuration, and start it again",
        _SYSTEM_CONTAINERS,
    ),
    FixRow(
        Need.NVIDIA_UVM,
        "on the host: nvidia-modprobe -u -c 0; then start the pod again",
        _at(Kind.KUBERNETES),
    ),
    FixRow(
        Need.NVIDIA_UVM,
        "on the host: nvidia-modprobe -u -c 0; then start the container again with its GPU, or "
        "with --device /dev/nvidia-uvm",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_UVM,
        f"{SUDO}modprobe nvidia_uvm; {SUDO}nvidia-modprobe -u -c 0; of an LXC container, on the "
        "host, which also has to pass /dev/nvidia-uvm to it",
    ),
    FixRow(
        Need.NVIDIA_UVM_CLOSED,
        "on the host: allow /dev/nvidia-uvm in the container's device rules "
        "(lxc.cgroup2.devices.allow, DeviceAllow=), and start it again",
        _SYSTEM_CONTAINERS,
    ),
    FixRow(
        Need.NVIDIA_UVM_CLOSED,
        "start the container again with its GPU, which allows /dev/nvidia-uvm",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_UVM_CLOSED,
        "let this user open it; of a service of systemd: DeviceAllow=/dev/nvidia-uvm rw",
    ),
    FixRow(
        Need.NVIDIA_AWAKE,
        "on the host: rmmod nvidia_uvm && modprobe nvidia_uvm, or restart the host; then start "
        "this {place} again",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_AWAKE,
        f"{SUDO}rmmod nvidia_uvm && {SUDO}modprobe nvidia_uvm, or restart the machine",
    ),
    FixRow(
        Need.NVIDIA_SAME_VERSION,
        "on the host: restart it, or start this container again after its driver was updated, so "
        "that nvidia.runtime passes the libraries in that match; if they were installed in the "
        "container, install the host's version {version} of them",
        _at(Kind.INCUS, Kind.LXD),
    ),
    FixRow(
        Need.NVIDIA_SAME_VERSION,
        "the host has {version}: " + _USER_LIBRARIES + "; a restart of this {place} does not help",
        OWN_LIBRARIES,
    ),
    FixRow(
        Need.NVIDIA_SAME_VERSION,
        f"on the host: flatpak update, so that the sandbox has {{version}}; {_OUTSIDE}",
        _at(Kind.FLATPAK),
    ),
    FixRow(
        Need.NVIDIA_SAME_VERSION,
        "on the host: restart it, if its driver was updated since it started; then start this "
        "{place} again, so that it gets the libraries of {version}",
        _CONTAINED,
    ),
    FixRow(Need.NVIDIA_SAME_VERSION, "restart the machine to load the new driver"),
    FixRow(
        Need.NVIDIA_FABRIC,
        f"on the host, not in this {{place}}: {_ROOT}systemctl start nvidia-fabricmanager, then "
        "try again",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_FABRIC,
        "if the NVSwitches were passed to this virtual machine: "
        f"{SUDO}systemctl start nvidia-fabricmanager; else the host's fabric manager has to "
        "activate the partition of this machine",
        _at(Kind.VM),
    ),
    FixRow(
        Need.NVIDIA_FABRIC,
        f"{SUDO}systemctl start nvidia-fabricmanager, then try again",
    ),
    FixRow(
        Need.NVIDIA_MPS,
        "on the host: start its MPS daemon again (nvidia-cuda-mps-control -d), and pass its pipe "
        "folder to this {place}; or do without MPS: unset CUDA_MPS_PIPE_DIRECTORY here",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_MPS,
        f"end MPS: echo quit | {SUDO}nvidia-cuda-mps-control; or start it again: "
        f"{SUDO}nvidia-cuda-mps-control -d; or do without it: unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    FixRow(
        Need.NVIDIA_BUSY,
        f"end that process; or on the host: {_ROOT}nvidia-smi -c DEFAULT",
        _CONTAINED,
    ),
    FixRow(Need.NVIDIA_BUSY, f"end that process, or: {SUDO}nvidia-smi -c DEFAULT"),
    # --- NVIDIA: another driver for the card. A container has the module of its host.
    FixRow(
        Need.NVIDIA_OPEN,
        "on the host: install the driver's open kernel modules (nvidia-open, or "
        "nvidia-driver-{branch}-open), then restart it",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_OPEN,
        f"{SUDO}apt install nvidia-driver-{{branch}}-open, then restart the machine",
        systems=_on("ubuntu"),
    ),
    FixRow(
        Need.NVIDIA_OPEN,
        f"{SUDO}apt install nvidia-open-kernel-dkms (of NVIDIA's repository: nvidia-open), then "
        "restart the machine",
        systems=_on("debian"),
    ),
    FixRow(
        Need.NVIDIA_OPEN,
        f"{SUDO}pacman -S nvidia-open, then restart the machine",
        systems=_on("arch"),
    ),
    FixRow(
        Need.NVIDIA_OPEN,
        "hardware.nvidia.open = true; in the configuration of NixOS, then nixos-rebuild switch, "
        "and restart the machine",
        systems=_on("nixos"),
    ),
    FixRow(
        Need.NVIDIA_OPEN,
        "install the driver with its open kernel modules (the package is called nvidia-open, or "
        "ends with -open), then restart the machine",
    ),
    FixRow(
        Need.NVIDIA_CLOSED,
        "on the host: install the driver {branch} with its proprietary kernel modules (no package "
        "that ends with -open), then restart it",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_CLOSED,
        f"{SUDO}apt install nvidia-driver-{{branch}} (without -open: its modules are "
        "proprietary), then restart the machine",
        systems=_on("ubuntu"),
    ),
    FixRow(
        Need.NVIDIA_CLOSED,
        f"{SUDO}apt install nvidia-kernel-dkms (its modules are proprietary), then restart the "
        "machine",
        systems=_on("debian"),
    ),
    FixRow(
        Need.NVIDIA_CLOSED,
        "install nvidia-{branch}xx-dkms of the AUR (its modules are proprietary), then restart "
        "the machine",
        systems=_on("arch"),
    ),
    FixRow(
        Need.NVIDIA_CLOSED,
        "install the driver {branch} with its proprietary kernel modules (no package that ends "
        "with -open), then restart the machine",
    ),
    FixRow(
        Need.NVIDIA_LEGACY,
        "on the host: install NVIDIA's driver of the branch {branch}, then restart it",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_LEGACY,
        f"{SUDO}apt install nvidia-driver-{{branch}}, then restart the machine",
        systems=_on("ubuntu"),
    ),
    FixRow(
        Need.NVIDIA_LEGACY,
        "install nvidia-{branch}xx-dkms of the AUR, then restart the machine",
        systems=_on("arch"),
    ),
    FixRow(
        Need.NVIDIA_LEGACY,
        f"{SUDO}dnf install akmod-nvidia-{{branch}}xx (of RPM Fusion), then restart the machine",
        systems=_on("fedora"),
    ),
    FixRow(
        Need.NVIDIA_LEGACY,
        "hardware.nvidia.package = config.boot.kernelPackages.nvidiaPackages.legacy_{branch}; in "
        "the configuration of NixOS, then nixos-rebuild switch, and restart the machine",
        systems=_on("nixos"),
    ),
    FixRow(
        Need.NVIDIA_LEGACY,
        "install NVIDIA's driver of the branch {branch}, then restart the machine",
    ),
    FixRow(
        Need.NVIDIA_NEWER,
        "on the host: update NVIDIA's driver to the branch {branch} or newer{flavour}, then "
        "restart it",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_NEWER,
        "update NVIDIA's driver to the branch {branch} or newer{flavour}, then restart the machine",
    ),
    FixRow(
        Need.NVIDIA_START,
        f"on the host: {_ROOT}dmesg | grep NVRM says why; look there whether nvidia-smi lists the "
        "card, and pass it to this {place} again",
        _CONTAINED,
    ),
    FixRow(
        Need.NVIDIA_START,
        f"{_BIOS}; of a virtual machine, the host may have to pass the card again",
        _at(Kind.VM),
    ),
    FixRow(Need.NVIDIA_START, _BIOS),
    FixRow(
        Need.NVIDIA_LOST,
        "restart the machine (a container: its host); if it happens again, check the power supply, "
        "the seat and the temperature of the card",
    ),
    # --- other drivers on a card
    FixRow(
        Need.NOUVEAU,
        _BLACKLIST + "update-initramfs -u; then restart the machine",
        systems=_on("debian", "ubuntu"),
    ),
    FixRow(
        Need.NOUVEAU,
        _BLACKLIST + "dracut --force; then restart the machine",
        systems=_on("fedora", "suse", "opensuse", "rhel"),
    ),
    FixRow(
        Need.NOUVEAU,
        _BLACKLIST + "mkinitcpio -P; then restart the machine",
        systems=_on("arch"),
    ),
    FixRow(
        Need.NOUVEAU,
        "keep {module} from the card (blacklist {module} in /etc/modprobe.d, then make the "
        "initramfs again), and restart the machine",
    ),
    FixRow(
        Need.SET_ASIDE,
        "give it back to the host, or run tsuku-llm in the virtual machine",
    ),
    # --- AMD and Intel: give a place the card
    FixRow(
        Need.FILES,
        "let the pod ask for it: " + _POD,
        _at(Kind.KUBERNETES),
    ),
    FixRow(Need.FILES, f"{_INCUS}; incus restart NAME", _at(Kind.INCUS)),
    FixRow(Need.FILES, f"{_LXD}; lxc restart NAME", _at(Kind.LXD)),
    FixRow(
        Need.FILES,
        "on the host: pass {files} in the LXC container's configuration (Proxmox: pct set ID "
        "--dev0 /dev/dri/renderD128), and start it again",
        _at(Kind.LXC),
    ),
    FixRow(
        Need.FILES,
        "on the host: systemd-nspawn --bind=/dev/dri, and DeviceAllow= for {files} in its unit",
        _at(Kind.NSPAWN),
    ),
    FixRow(Need.FILES, "on the host: mount --rbind /dev CHROOT/dev", _at(Kind.CHROOT)),
    FixRow(
        Need.FILES,
        "start the container with the host's devices: apptainer binds /dev, unless the "
        "configuration has mount dev = no; for ROCm with --rocm",
        _at(Kind.APPTAINER),
    ),
    FixRow(
        Need.FILES,
        f"on the host: flatpak override --user --device=all APP; {_OUTSIDE}",
        _at(Kind.FLATPAK),
    ),
    FixRow(Need.FILES, f"on the host: snap connect NAME:opengl; {_OUTSIDE}", _at(Kind.SNAP)),
    FixRow(Need.FILES, "start the container with nerdctl run {flags}", _at(Kind.CONTAINERD)),
    FixRow(Need.FILES, "start the container with {flags}"),
    # --- rights
    FixRow(
        Need.DEVICE_RULES,
        "start the pod again (kubectl delete pod NAME); so that it lasts, let the node use CDI",
        _at(Kind.KUBERNETES),
    ),
    FixRow(
        Need.DEVICE_RULES,
        "on the host: allow it in the container's device rules (lxc.cgroup2.devices.allow: c 195:* "
        "rwm for NVIDIA, c 226:* for /dev/dri; DeviceAllow=), and start it again",
        _SYSTEM_CONTAINERS,
    ),
    FixRow(
        Need.DEVICE_RULES,
        "start the {place} again; so that it lasts after systemctl daemon-reload on the host, give "
        "the GPU as a CDI device, or let Docker use the cgroupfs driver",
        _CONTAINED,
    ),
    FixRow(
        Need.DEVICE_RULES,
        "let the service open it: DeviceAllow=, and no PrivateDevices=, in its unit of systemd",
    ),
    FixRow(
        Need.SELINUX,
        "start the container with --security-opt label=disable; or on the host: "
        f"{_ROOT}setsebool -P container_use_devices 1",
        _CONTAINED,
    ),
    FixRow(
        Need.SELINUX,
        f"see what SELinux denied: {SUDO}ausearch -m avc -ts recent; restorecon, or a rule of "
        "its own, allows it",
    ),
    FixRow(
        Need.APPARMOR,
        "start the container with --security-opt apparmor=unconfined; or in a pod: "
        "securityContext.appArmorProfile.type: Unconfined; what it denied is in the host's dmesg",
        _PASSED_IN,
    ),
    FixRow(
        Need.APPARMOR,
        "on the host: lxc.apparmor.profile = unconfined in the container's configuration (of Incus "
        "and LXD: raw.lxc), and start it again; what it denied is in the host's dmesg",
        _SYSTEM_CONTAINERS,
    ),
    FixRow(
        Need.APPARMOR,
        f"see what AppArmor denied: {SUDO}dmesg | grep DENIED; then allow it in the profile that "
        f"{SUDO}aa-status names",
    ),
    FixRow(
        Need.NODEV,
        "on the host: mount --rbind /dev CHROOT/dev, instead of a copy of {device}",
        _at(Kind.CHROOT),
    ),
    FixRow(
        Need.NODEV,
        "pass {device} in as a device, not as a file or a volume: --device {device} (bubblewrap: "
        "--dev-bind, not --bind; LXC: a line lxc.mount.entry and one lxc.cgroup2.devices.allow)",
    ),
    FixRow(
        Need.NODE_ONLY,
        "on the host: load the kernel's driver of the card (modprobe nvidia, amdgpu, i915 or xe), "
        "then pass {device} to this {place} again: its number may be another one now",
        _CONTAINED,
    ),
    FixRow(
        Need.NODE_ONLY,
        f"load the kernel's driver of the card ({SUDO}modprobe nvidia, amdgpu, i915 or xe); if "
        f"{{device}} was made by hand, remove it first",
    ),
    FixRow(
        Need.DEVICE_ERROR,
        f"on the host: {_ROOT}dmesg says why; restart it, then start this {{place}} again",
        _CONTAINED,
    ),
    FixRow(Need.DEVICE_ERROR, f"{SUDO}dmesg says why; restart the machine"),
    FixRow(
        Need.PERMISSION,
        "let the pod have the group of the file: securityContext.supplementalGroups, with what "
        "stat -c %g {device} prints",
        _at(Kind.KUBERNETES),
    ),
    FixRow(
        Need.PERMISSION,
        "on the host: pass the file with the group render of this container (Proxmox: pct set ID "
        "--dev0 {device},gid=GID, with GID of: getent group render), then here: usermod -aG "
        "video,render USER",
        _SYSTEM_CONTAINERS,
    ),
    FixRow(
        Need.PERMISSION,
        f"on the host: add the user to the groups video and render: {_ROOT}usermod -aG "
        "video,render $USER; then log in again",
        _at(Kind.TOOLBOX, Kind.DISTROBOX, Kind.APPTAINER, Kind.FLATPAK, Kind.SNAP),
    ),
    FixRow(
        Need.PERMISSION,
        f"add the user to the groups video and render: {SUDO}usermod -aG video,render $USER; then "
        "log in again",
        _at(Kind.BARE_METAL, Kind.VM, Kind.WSL, Kind.CHROOT),
    ),
    FixRow(
        # The container's own groups have other numbers than the host's, which owns the file.
        Need.PERMISSION,
        "start the container with the file's group: --group-add $(stat -c %g {device}); "
        "with podman without root: --group-add keep-groups",
    ),
    # --- AMD, Intel, Mesa
    FixRow(
        Need.ROCM_RUNTIME,
        "start the container with --rocm, which brings the host's ROCm: apptainer exec --rocm "
        "IMAGE; or use Vulkan, which needs none",
        _at(Kind.APPTAINER),
    ),
    FixRow(Need.ROCM_RUNTIME, "install ROCm's runtime, or use Vulkan, which needs none"),
    FixRow(
        Need.AMD_MODULE,
        f"{SUDO}apt install firmware-amd-graphics, then {SUDO}modprobe amdgpu; if that fails, the "
        f"kernel may be older than the card: {_LOG_AMD}",
        systems=_on("debian"),
    ),
    FixRow(
        Need.AMD_MODULE,
        f"{SUDO}modprobe amdgpu; if that fails, it lacks firmware (package linux-firmware), or the "
        f"kernel is older than the card: {_LOG_AMD}",
    ),
    FixRow(
        Need.AMD_OLD_MODULE,
        "start the kernel with radeon.{generation}_support=0 amdgpu.{generation}_support=1 (kernel "
        "6.19 and newer do it by themselves)",
    ),
    FixRow(
        Need.INTEL_NEW_MODULE,
        f"{SUDO}apt install linux-generic-hwe-$(. /etc/os-release; echo $VERSION_ID): a newer "
        "kernel (6.12 or newer has the driver xe for this GPU), then restart the machine",
        systems=_on("ubuntu"),
    ),
    FixRow(
        Need.INTEL_NEW_MODULE,
        "install a newer kernel (6.12 or newer has the driver xe for this GPU), then restart the "
        "machine",
    ),
    FixRow(
        Need.INTEL_OLD_MODULE,
        f"{SUDO}modprobe i915; if that fails: {SUDO}dmesg | grep i915",
    ),
    FixRow(
        Need.NEWER_MESA,
        "install a newer Mesa: update the system, or take its next release",
        systems=_on("ubuntu"),
    ),
    FixRow(
        Need.NEWER_MESA,
        "install a newer Mesa: update the system, or take it from Debian's backports",
        systems=_on("debian"),
    ),
    FixRow(
        Need.NEWER_MESA,
        "install a newer Mesa: update the system, or take the next release of the distribution",
    ),
)


def fix_for(need: Need, place: MachinePlace, **facts: str) -> str:
    """Return the fix of the first row for this need, place and system."""
    return next(
        row.fix.format_map(_Facts(facts, place=place.name, tsuku=TSUKU))
        for row in TABLE
        if row.need is need
        and (not row.places or place.kind in row.places)
        and (not row.systems or not row.systems.isdisjoint(place.systems))
    )


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
    if place.kind is Kind.VM:
        return "if the host has a GPU, it has to be passed to this virtual machine there"
    return ""


class _Facts(dict[str, str]):
    """The facts of a machine; one that is not known is told by its name."""

    def __missing__(self, key: str) -> str:
        return key.upper()
