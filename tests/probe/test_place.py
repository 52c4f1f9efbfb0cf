"""Where a process runs, from its signs; and the fix that is one there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.fake_roots import with_pci, write
from support.stub_drivers import StubDrivers

from tsuku_llm.machine.fixes import Need, fix_for, table
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.host import DriverAnswer, LocalHost
from tsuku_llm.machine.kernel_drivers import (
    GENERATIONS,
    MODULE_SWITCHES,
    BusCard,
    generation_of,
    keeps_nvidia_away,
    not_driven,
)
from tsuku_llm.machine.packages import systems_of
from tsuku_llm.machine.places import OWN_LIBRARIES, WITH_A_KERNEL, Kind, MachinePlace
from tsuku_llm.machine.snapshot import RecordingHost
from tsuku_llm.probe import probe
from tsuku_llm.probe.facts.machine import MachineKind, closed_file, collect
from tsuku_llm.probe.facts.place import find_place
from tsuku_llm.probe.libc import refusal

POD_GROUP = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope\n"
_ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
_BELOW = f"1 0 0:2 / / rw - rootfs rootfs rw\n{_ROOT}"
_FOLDER = "95 22 8:1 /srv/sid / rw,relatime - ext4 /dev/sda1 rw\n"
_SANDBOX = "89 44 0:41 /newroot / rw,nosuid,nodev,relatime - tmpfs tmpfs rw\n"
# Files, variables, and the place that they speak for.
SIGNS: list[tuple[dict[str, str], dict[str, str], Kind]] = [
    ({"/.dockerenv": ""}, {}, Kind.DOCKER),
    ({"/proc/1/cgroup": "12:devices:/docker/3f4ecc1b7bf9\n"}, {}, Kind.DOCKER),
    ({"/proc/1/cgroup": "0::/system.slice/docker-3f4ecc1b7bf9aa.scope\n"}, {}, Kind.DOCKER),
    ({"/run/.containerenv": ""}, {}, Kind.PODMAN),
    ({}, {"container": "podman"}, Kind.PODMAN),
    ({"/proc/self/cgroup": "0::/user.slice/libpod-conmon-1.scope\n"}, {}, Kind.PODMAN),
    ({"/proc/1/cgroup": "0::/system.slice/nerdctl-1.scope\n"}, {}, Kind.CONTAINERD),
    ({"/proc/1/cgroup": "0::/nerdctl/1\n"}, {}, Kind.CONTAINERD),
    ({"/proc/1/cgroup": POD_GROUP}, {}, Kind.KUBERNETES),
    ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, Kind.KUBERNETES),
    ({"/var/run/secrets/kubernetes.io/serviceaccount/token": ""}, {}, Kind.KUBERNETES),
    ({}, {"container": "lxc"}, Kind.LXC),
    ({"/run/systemd/container": "lxc"}, {}, Kind.LXC),
    ({"/proc/1/environ": "HOME=/root\0container=lxc\0"}, {}, Kind.LXC),
    ({"/proc/1/cgroup": "0::/lxc.payload.one/init.scope\n"}, {}, Kind.LXC),
    ({"/dev/incus/sock": ""}, {"container": "lxc"}, Kind.INCUS),
    ({"/dev/lxd/sock": ""}, {}, Kind.LXD),
    ({"/dev/lxd/sock": "", "/sys/class/dmi/id/sys_vendor": "QEMU\n"}, {}, Kind.VM),
    ({}, {"container": "systemd-nspawn"}, Kind.NSPAWN),
    ({"/run/host/container-manager": "systemd-nspawn\n"}, {}, Kind.NSPAWN),
    ({"/.singularity.d/env": ""}, {}, Kind.APPTAINER),
    ({}, {"APPTAINER_CONTAINER": "/a.sif"}, Kind.APPTAINER),
    ({"/.flatpak-info": ""}, {"container": "flatpak"}, Kind.FLATPAK),
    ({}, {"SNAP": "/snap/x/1"}, Kind.SNAP),
    ({"/proc/self/attr/current": "snap.x.x (enforce)\n"}, {"SNAP": "/snap/x/1"}, Kind.SNAP),
    ({"/proc/self/attr/current": "snap.code (complain)\n"}, {"SNAP": "/snap/x"}, Kind.BARE_METAL),
    ({"/run/.containerenv": "", "/run/.toolboxenv": ""}, {}, Kind.TOOLBOX),
    (
        {"/run/.containerenv": ""},
        {"container": "podman", "DISTROBOX_ENTER_PATH": "/usr/bin/distrobox-enter"},
        Kind.DISTROBOX,
    ),
    ({"/etc/debian_chroot": "sid\n"}, {}, Kind.CHROOT),
    ({"/proc/self/mountinfo": "22 1 8:1 / /proc rw - proc proc rw\n"}, {}, Kind.CHROOT),
    ({"/proc/self/mountinfo": _ROOT}, {}, Kind.BARE_METAL),
    ({"/proc/self/mountinfo": _ROOT, "/proc/1/mountinfo": _ROOT}, {}, Kind.BARE_METAL),
    # A service of systemd has mounts of its own; the first boot's root file system lies below.
    ({"/proc/self/mountinfo": f"90{_ROOT[2:]}", "/proc/1/mountinfo": _BELOW}, {}, Kind.BARE_METAL),
    ({"/proc/self/mountinfo": _FOLDER, "/proc/1/mountinfo": _ROOT}, {}, Kind.CHROOT),
    ({"/proc/self/mountinfo": _SANDBOX, "/proc/1/mountinfo": _SANDBOX}, {}, Kind.BUBBLEWRAP),
    ({"/proc/self/mountinfo": _SANDBOX, "/.flatpak-info": ""}, {}, Kind.FLATPAK),
    ({}, {"container": "crio"}, Kind.CONTAINER),
    ({"/proc/sys/kernel/osrelease": "6.6.87-microsoft-standard-WSL2\n"}, {}, Kind.WSL),
    ({"/sys/class/dmi/id/product_name": "VirtualBox\n"}, {}, Kind.VM),
    ({"/proc/cpuinfo": "processor: 0\nflags\t: fpu hypervisor sse\n"}, {}, Kind.VM),
    ({"/proc/xen/capabilities": "control_d\n"}, {}, Kind.BARE_METAL),
    ({"/etc/os-release": "ID=debian\n"}, {}, Kind.BARE_METAL),
]


@pytest.mark.parametrize(("files", "variables", "kind"), SIGNS)
def test_the_place_is_told_by_its_signs(
    tmp_path: Path, files: dict[str, str], variables: dict[str, str], kind: Kind
) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    place, facts = find_place(LocalHost(tmp_path, variables))
    assert place.kind is kind
    assert place.contained is (kind not in WITH_A_KERNEL)
    if place.contained:
        assert facts, "what spoke for it is among the facts"


def test_every_place_but_bare_metal_has_a_sign_here() -> None:
    assert {kind for *_, kind in SIGNS} == set(Kind)


def test_a_recording_has_no_secret_of_the_first_process(tmp_path: Path) -> None:
    write(tmp_path, "/proc/1/environ", "TOKEN=hunter2\0container=lxc\0")
    write(tmp_path, "/proc/self/mountinfo", "22 1 0:1 /home/anna / rw - nfs host:/share rw\n")
    host = RecordingHost(LocalHost(tmp_path, {}))
    place, _ = find_place(host)
    assert place.kind is Kind.LXC
    text = json.dumps(host.content())
    assert "container=lxc" in text
    assert "hunter2" not in text
    assert "host:/share" not in text


def test_the_service_that_runs_it_is_told(tmp_path: Path) -> None:
    place, _ = find_place(LocalHost(tmp_path, {"CI": "true", "GITLAB_CI": "true"}))
    assert place.ci == "GitLab CI"


# --- what is passed to containers ------------------------------------------------------------

YAML = 'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/etc/cdi/nvidia.yaml", YAML),
        ("/var/run/cdi/nvidia.json", json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"})),
        ("/etc/cdi/a.json", json.dumps({"kind": "nvidia.com/gpu", "devices": []}, indent=1)),
    ],
)
def test_the_kinds_of_cdi_devices_are_facts(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, name, text)
    _, facts = find_place(LocalHost(tmp_path, {}))
    assert ("CDI", "nvidia.com/gpu") in [(fact.call, fact.result) for fact in facts]


@pytest.mark.parametrize(
    "text", ["", "kind: [", "kind: x", "\0" * 70_000, "devices:\n- name: kind"]
)
def test_a_cdi_file_without_a_kind_is_no_fact(tmp_path: Path, text: str) -> None:
    write(tmp_path, "/etc/cdi/broken.yaml", text)
    write(tmp_path, "/etc/cdi/notes.txt", YAML)
    _, facts = find_place(LocalHost(tmp_path, {}))
    assert not facts


def test_what_nvidias_toolkit_was_told_is_a_fact(tmp_path: Path) -> None:
    write(tmp_path, "/.dockerenv")
    _, facts = find_place(LocalHost(tmp_path, {"NVIDIA_VISIBLE_DEVICES": "void"}))
    assert ("NVIDIA_VISIBLE_DEVICES", "void") in [(fact.call, fact.result) for fact in facts]


# --- the table of fixes ----------------------------------------------------------------------

FOR_CONTAINERS = {Need.NVIDIA_GPU, Need.NVIDIA_LIBRARIES}
SYSTEMS: tuple[tuple[str, ...], ...] = (
    (),
    ("ubuntu", "debian"),
    ("debian",),
    ("arch",),
    ("nixos",),
)


@pytest.mark.parametrize("need", Need)
def test_every_need_has_a_fix_in_every_place(need: Need) -> None:
    for kind in Kind:
        if need in FOR_CONTAINERS and kind in WITH_A_KERNEL:
            continue
        if need is Need.NVIDIA_LIBRARIES and kind not in OWN_LIBRARIES:
            continue
        for systems in SYSTEMS:
            assert fix_for(need, MachinePlace(kind, systems=systems), branch="580", version="580.1")


def test_every_table_is_of_a_need() -> None:
    assert table().keys() == {"texts", *Need}


@pytest.mark.parametrize("need", Need)
def test_every_row_has_words_of_its_own_before_the_one_for_all(need: Need) -> None:
    kinds = {*(kind.value for kind in Kind), "contained", "system-containers", "own-libraries"}
    systems = {"ubuntu", "debian", "arch", "fedora", "ostree", "rhel", "suse", "opensuse"}
    systems |= {"nixos", "guix", "tegra", "nomodeset", "kernel-replaced", "private-dev", "wsl-1"}
    programs = {program for _, _, program in MODULE_SWITCHES if program}
    words = [word for row in table()[need] for word in row.split()]
    assert len(words) == len(set(words))
    assert set(words) <= kinds | systems | programs | {"else"}
    assert "else" not in words[:-1]


def test_each_program_that_switches_gpus_has_a_row() -> None:
    programs = {program for _, _, program in MODULE_SWITCHES if program}
    assert programs == table()[Need.NVIDIA_SWITCHED_OFF].keys() - {"else"}


@pytest.mark.parametrize(
    ("text", "away"),
    [
        ("blacklist nvidia\n", True),
        ("# by a program\nalias  nvidia  off", True),
        (" blacklist nvidia \r\n", True),
        # What Ubuntu's kmod has, and modes that leave out only the parts for a screen.
        ("blacklist nvidiafb\n", False),
        ("blacklist nvidia-drm\nalias nvidia-drm off\n", False),
        ("#blacklist nvidia\n", False),
        ("options nvidia NVreg_DynamicPowerManagement=0x02\n", False),
        ("", False),
    ],
)
def test_only_lines_for_the_module_itself_keep_it_away(text: str, away: bool) -> None:
    assert keeps_nvidia_away(text) is away


@pytest.mark.parametrize("kind", sorted(WITH_A_KERNEL - {Kind.WSL}))
def test_without_the_modules_of_the_running_kernel_no_fix_loads_one(kind: Kind) -> None:
    place = MachinePlace(kind, systems=("arch", "kernel-replaced"))
    for need in set(Need) - FOR_CONTAINERS - {Need.NVIDIA_LIBRARIES}:
        fix = fix_for(need, place, branch="580", module="nouveau")
        assert not re.search(r"(?<![\w-])modprobe (nvidia|amdgpu|i915|xe)", fix)


@pytest.mark.parametrize(
    ("installed", "files", "replaced"),
    [
        ("6.18.3-arch1-1", {}, True),
        ("6.18.2-arch2-1", {}, False),
        # What a container has there is not the host's; some systems have no such folder.
        ("6.18.3-arch1-1", {"/.dockerenv": ""}, False),
        ("extramodules-ARCH", {}, False),
        (None, {}, False),
    ],
)
def test_the_modules_of_the_running_kernel_may_be_gone(
    tmp_path: Path, installed: str | None, files: dict[str, str], *, replaced: bool
) -> None:
    """Arch removes them with an update of the kernel (its wiki: reboot after that)."""
    write(tmp_path, "/proc/sys/kernel/osrelease", "6.18.2-arch2-1\n")
    for path, text in files.items():
        write(tmp_path, path, text)
    if installed:
        (tmp_path / "lib" / "modules" / installed).mkdir(parents=True)
    place, _ = find_place(LocalHost(tmp_path, {}))
    assert ("kernel-replaced" in place.systems) is replaced


OF_DEVICES = "24 25 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,mode=755\n"
OF_A_UNIT = OF_DEVICES + "90 24 0:60 / /dev ro,nosuid,noexec - tmpfs tmpfs rw,mode=755\n"


@pytest.mark.parametrize(
    ("mounts", "files", "private"),
    [
        (OF_A_UNIT, {}, True),
        (OF_DEVICES, {}, False),
        ("91 24 0:61 / /dev/shm rw - tmpfs tmpfs rw\n" + OF_DEVICES, {}, False),
        # Each container has a /dev of its own.
        (OF_A_UNIT, {"/.dockerenv": ""}, False),
    ],
)
def test_a_service_may_have_a_dev_of_its_own(
    tmp_path: Path, mounts: str, files: dict[str, str], *, private: bool
) -> None:
    """systemd.exec(5), PrivateDevices=; jupyterhub/systemdspawner#67 and NixOS/nixpkgs#266167."""
    root = "25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
    for path, text in {"/proc/self/mountinfo": root + mounts, **files}.items():
        write(tmp_path, path, text)
    place, _ = find_place(LocalHost(tmp_path, {}))
    assert ("private-dev" in place.systems) is private


def test_the_kernel_of_a_host_is_mended_on_the_host() -> None:
    """No fix for a container loads a module, or restarts the machine that it is on."""
    for need in Need:
        for kind in set(Kind) - WITH_A_KERNEL:
            if need is Need.NVIDIA_LIBRARIES and kind not in OWN_LIBRARIES:
                continue
            fix = fix_for(need, MachinePlace(kind), branch="580", version="580.1", module="nouveau")
            if "modprobe nvidia" in fix or "systemctl start" in fix:
                assert "on the host" in fix


def test_a_read_only_system_is_like_no_other() -> None:
    assert systems_of("ID=steamos\nID_LIKE=arch\n") == ("steamos",)
    assert systems_of("ID=linuxmint\nID_LIKE=ubuntu debian\n")[:2] == ("linuxmint", "ubuntu")


def in_container(stubs: StubDrivers, root: Path, **variables: str) -> Hardware:
    """Probe a container that sees an NVIDIA card on the bus, and was given no driver."""
    host = stubs.only(root=with_pci(root))
    return probe(LocalHost(Path(host._root), {**host._environ, **variables}), 5.0)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"container": "docker"}, ["--gpus all", "NVIDIA Container Toolkit"]),
        ({"container": "podman"}, ["--device nvidia.com/gpu=all", "nvidia-ctk cdi generate"]),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ["nvidia.com/gpu: 1", "device plugin"]),
        ({"container": "other"}, ["--gpus all", "--device nvidia.com/gpu=all"]),
        ({"container": "lxc"}, ["on the host", "pct set"]),
        ({"SINGULARITY_CONTAINER": "a.sif"}, ["--nv"]),
    ],
)
def test_the_fix_is_the_flag_of_what_runs_the_container(
    stubs: StubDrivers, tmp_path: Path, variables: dict[str, str], words: list[str]
) -> None:
    found = in_container(stubs, tmp_path, **variables)
    assert found.place.contained
    (problem,) = [each for each in found.all_problems if each.slug == "container-without-gpu"]
    assert all(word in problem.fix for word in words)


# --- NVIDIA's generations --------------------------------------------------------------------

# The chips of NVIDIA's devices in pci.ids of 2026-08-22 (pciutils/pciids c1c12547), as runs of
# numbers whose chips begin with the same letters. GeForce 9 and older have no driver any more.
PCI_IDS = """
Fermi 06c0-06df 0dc0-0f06 1040-109b 1140-1140 1200-1251
Kepler 0fa0-103f 1180-11ff 1280-130b
Maxwell, Pascal or Volta 1340-1436 15c2-15ff 1613-1676 1725-172f 174d-17fd 1b00-1d56 1d81-1df6
Turing 1e02-1ff9 2182-21d1
Ampere 2080-20ff 2200-223f 2414-25fb
Hopper 2302-23f0
Ada 2681-28f8
Blackwell 2900-2d83 2f04-2f58
Blackwell (GB10) 2e03-2e2a
Blackwell Ultra 3180-3340
"""


def test_the_generations_are_those_of_the_list_of_pci_devices() -> None:
    named = set()
    for line in PCI_IDS.split("\n")[1:-1]:
        name, *runs = line.rsplit(" ", line.count("-"))
        named.add(name)
        for run in runs:
            for number in run.split("-"):
                found = generation_of(int(number, 16))
                assert found
                assert found.name == name
    assert named == {each.name for each in GENERATIONS}


@pytest.mark.parametrize("number", [None, 0x0040, 0x1E01, 0x3000, 0xFFFF])
def test_a_number_of_no_known_generation_says_nothing(number: int | None) -> None:
    assert generation_of(number) is None


# --- the kernel modules of AMD and Intel ------------------------------------------------------


@pytest.mark.parametrize(
    ("vendor", "device", "module", "words"),
    [
        (0x1002, 0x6798, "radeon", "amdgpu.si_support=1"),
        (0x1002, 0x67B1, "radeon", "amdgpu.cik_support=1"),
        (0x1002, 0x68B8, "radeon", "another GPU"),
        (0x1002, 0x7550, None, "modprobe amdgpu"),
        (0x8086, 0xE20B, None, "xe"),
        (0x8086, 0x64A0, "i915", "xe"),
        (0x8086, 0x0412, None, "modprobe i915"),
        (0x10DE, 0x2684, None, "modprobe nvidia"),
        (0x1002, 0x744C, "vfio-pci", "virtual machine"),
        (0x1002, 0x744C, "amdgpu", None),
        (0x8086, 0xE20B, "xe", None),
        (0x8086, 0x56A0, "i915", None),
        (0x1AF4, 0x1050, None, None),
    ],
)
def test_a_card_that_the_kernel_does_not_drive_is_told(
    vendor: int, device: int, module: str | None, words: str | None
) -> None:
    problem = not_driven(BusCard("a card", vendor, device, module), MachinePlace())
    if words is None:
        assert problem is None
    else:
        assert problem
        assert words in problem.fix


# --- loaders that start nothing ---------------------------------------------------------------

LIBC = {"call": "libc.so.6", "path": None}
LOADER = {"call": "loader", "path": "/lib64/ld-linux-x86-64.so.2"}
STUB = {**LOADER, "real": "/nix/store/abc-stub-ld-x86_64-unknown-linux-musl/bin/stub"}


NIX_LD = {**LOADER, "real": "/nix/store/a-nix-ld-2/libexec"}
MUSL = {"call": "loader", "path": "/lib/ld-musl-x86_64.so.1"}
GLIBC = {**LOADER, "real": "/nix/store/a-glibc-2.42/lib/ld-linux-x86-64.so.2"}
X86 = {"machine": "x86_64", "bits": 64}


@pytest.mark.parametrize(
    ("lines", "system", "systems", "nix_ld", "words"),
    [
        ((LOADER, LIBC), X86, ("debian",), False, None),
        ((LIBC,), X86, ("debian",), False, "no /lib64/ld-linux-x86-64.so.2"),
        ((LIBC,), X86 | {"machine": "aarch64"}, (), False, "no /lib/ld-linux-aarch64.so.1"),
        ((LIBC,), X86 | {"machine": "riscv64"}, ("debian",), False, None),
        ((), X86 | {"bits": 32}, ("debian",), False, None),
        ((LIBC,), X86 | {"bits": 32}, ("debian",), False, "32-bit"),
        ((LOADER, LIBC), X86 | {"bits": 32}, ("debian",), False, None),
        ((STUB, LIBC), X86, ("nixos",), False, "nix-ld"),
        # nix-ld#85: a shell sets the variable, and the system's loader is the stub. A chroot or a
        # container may have lost os-release.
        ((STUB, LIBC), X86, ("nixos",), True, "nix-ld"),
        ((STUB, LIBC), X86, (), False, "nix-ld"),
        ((LOADER, LIBC), X86, ("nixos",), False, "nix-ld"),
        ((LOADER, LIBC), X86, ("nixos",), True, None),
        ((NIX_LD, LIBC), X86, ("nixos",), False, None),
        # buildFHSEnv of nixpkgs: a sandbox with glibc's own loader.
        ((GLIBC, LIBC), X86, ("nixos",), False, None),
        ((LIBC,), X86, ("guix",), False, "no /lib64/ld-linux-x86-64.so.2"),
        ((LOADER, LIBC | {"error": "libc.so.6: cannot open"}), X86, (), False, "no libc.so.6"),
        ((LOADER, MUSL, LIBC | {"error": "libc.so.6: cannot open"}), X86, (), False, None),
    ],
)
def test_a_system_that_starts_no_foreign_program_is_told(
    lines: tuple[dict[str, str | None], ...],
    system: dict[str, object],
    systems: tuple[str, ...],
    nix_ld: bool,
    words: str | None,
) -> None:
    found = refusal(DriverAnswer(lines, "done"), system, systems, nix_ld=nix_ld)
    assert (found is None) == (words is None)
    assert words is None or (found and words in found)


# --- a device file that cannot be opened ------------------------------------------------------


IN_PODMAN = MachinePlace(Kind.PODMAN)


@pytest.mark.parametrize(
    ("access", "kind", "slug", "fix"),
    [
        ("r", {}, "gpu-permission", "usermod -aG"),
        (" EACCES", {}, "gpu-permission", "usermod -aG"),
        ("rw EPERM", {}, "device-rules", "DeviceAllow="),
        (" EPERM", {"place": MachinePlace(Kind.LXC)}, "device-rules", "lxc.cgroup2.devices.allow"),
        ("rw EACCES", {"selinux": True}, "selinux-denies", "ausearch"),
        (" EACCES", {"selinux": True}, "gpu-permission", "usermod -aG"),
        ("rw EACCES", {"selinux": True, "place": IN_PODMAN}, "selinux-denies", "label=disable"),
        # Its mode refuses this user already: without SELinux it would be the same.
        (" EACCES", {"selinux": True, "place": IN_PODMAN}, "gpu-permission", "keep-groups"),
        # A recording from before the open was tried.
        ("", {"selinux": True, "place": IN_PODMAN}, "selinux-denies", "label=disable"),
        ("rw EACCES", {"apparmor": True}, "apparmor-denies", "DENIED"),
        (
            "rw EACCES",
            {"apparmor": True, "place": MachinePlace(Kind.DOCKER)},
            *("apparmor-denies", "apparmor=unconfined"),
        ),
        ("rw nodev", {}, "nodev", "--dev-bind"),
        ("rw nodev", {"place": MachinePlace(Kind.CHROOT)}, "nodev", "mount --rbind /dev"),
        ("rw ENXIO", {}, "device-without-driver", "modprobe nvidia"),
        ("rw ENODEV", {"place": MachinePlace(Kind.PODMAN)}, "device-without-driver", "on the host"),
        ("rw EACCES", {}, "device-error", "dmesg"),
        (" EIO", {}, "device-error", "dmesg"),
    ],
)
def test_a_closed_device_file_is_told_by_what_refuses_it(
    access: str, kind: dict[str, Any], slug: str, fix: str
) -> None:
    """The errors: Linux' security/device_cgroup.c, fs/namei.c (nodev), and apparmor(7)."""
    problem = closed_file(MachineKind(**kind), "/dev/kfd", access)
    assert problem.slug == slug
    assert fix in problem.fix
    assert "/dev/kfd" in problem.text
    assert slug == "gpu-permission" or "usermod" not in problem.fix


def test_a_profile_of_apparmor_is_seen_where_it_is_enforced(tmp_path: Path) -> None:
    write(tmp_path, "/proc/self/attr/current", "/usr/bin/app (enforce)\n")
    assert collect(LocalHost(tmp_path, {}), {}).apparmor
    write(tmp_path, "/proc/self/attr/current", "unconfined\n")
    assert not collect(LocalHost(tmp_path, {}), {}).apparmor


@pytest.mark.parametrize(
    ("label", "confined"),
    [
        ("system_u:system_r:container_t:s0:c349,c790", True),
        ("system_u:system_r:container_init_t:s0:c1,c2\n", True),
        ("system_u:system_r:svirt_lxc_net_t:s0:c17,c28\0", True),
        ("unconfined_u:system_r:spc_t:s0", False),
        ("system_u:system_r:container_runtime_t:s0", False),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", False),
        ("docker-default (enforce)\n", False),
    ],
)
def test_selinux_is_seen_by_the_label_of_a_container(
    tmp_path: Path, label: str, *, confined: bool
) -> None:
    """podman mounts an empty folder over /sys/fs/selinux (podman#2613); the label stays.

    The first label is that of podman#15930, the third the older name of the type.
    """
    write(tmp_path, "/proc/self/attr/current", label)
    assert collect(LocalHost(tmp_path, {}), {}).selinux is confined
