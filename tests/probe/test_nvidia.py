"""CUDA as a real child hears it from stub libraries, and NVIDIA's named situations."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_roots import with_pci
from support.stub_drivers import StubDrivers

from tsuku_llm.machine.backends import NVIDIA
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, GpuKind
from tsuku_llm.machine.host import DriverAnswer, LocalHost
from tsuku_llm.machine.kernel_drivers import BusCard
from tsuku_llm.machine.places import Kind, MachinePlace
from tsuku_llm.machine.snapshot import RecordingHost
from tsuku_llm.probe import probe
from tsuku_llm.probe.facts.machine import MachineKind
from tsuku_llm.probe.nvidia import RawNvidia, cuda_of_driver, parse

INSIDE = MachinePlace(Kind.CONTAINER)
IN_WSL = MachinePlace(Kind.WSL, wsl=True)
KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Nov  4 2025\nGCC version: x\n"


def cuda(host: LocalHost, limit: float = 5.0) -> Api:
    return probe(host, limit).api("cuda")


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def with_module(root: Path, version: str = "580.159.04", **files: str) -> Path:
    text = KERNEL.format(version)
    devices = {"dev/nvidiactl": "", "dev/nvidia-uvm": ""}
    return machine(root, {"proc/driver/nvidia/version": text, **devices, **files})


def slug(api: Api) -> str | None:
    return api.problem.slug if api.problem else None


def test_an_nvidia_card_is_reported_with_all_its_facts(stubs: StubDrivers) -> None:
    api = cuda(stubs.host("cuda", "nvml"))
    assert (api.state, api.version, api.driver) == (ApiState.OK, "13.0", "580.159.04")
    assert api.library == str(stubs.library("cuda"))
    (gpu,) = api.gpus
    assert (gpu.name, gpu.kind, gpu.compute_capability) == ("NVIDIA H200", GpuKind.DISCRETE, "9.0")
    assert (gpu.memory, gpu.vendor_id, gpu.uuid) == (150109880320, 0x10DE, "a0" * 16)
    assert Evidence("cuInit", "0 (CUDA_SUCCESS)") in api.evidence
    assert api.problem is None


def test_ten_cards_keep_their_order(stubs: StubDrivers) -> None:
    gpus = cuda(stubs.host("cuda", cuda_count=10)).gpus
    assert [gpu.index for gpu in gpus] == list(range(10))
    assert len({gpu.memory for gpu in gpus}) == 10


def test_a_name_that_is_not_utf8_is_shown_readably(stubs: StubDrivers) -> None:
    (gpu,) = cuda(stubs.host("cuda", cuda_name="GeForce \udcff\udcfe 4090")).gpus
    assert gpu.name == "GeForce \ufffd\ufffd 4090"


def test_output_of_a_driver_is_not_mistaken_for_an_answer(stubs: StubDrivers) -> None:
    hardware = probe(stubs.host("cuda", "nvml", cuInit="noise", cuDeviceGetName="noise"))
    assert len(hardware.api("cuda").gpus) == 1


def test_an_integrated_gpu_is_recognised(stubs: StubDrivers) -> None:
    (gpu,) = cuda(stubs.host("cuda", cuda_integrated=1, cuda_major=12, cuda_minor=1)).gpus
    assert (gpu.kind, gpu.compute_capability) == (GpuKind.INTEGRATED, "12.1")


def test_the_cuda_version_is_known_even_if_cuda_does_not_start(stubs: StubDrivers) -> None:
    assert cuda(stubs.host("cuda", cuInit=999, cuda_version=12020)).version == "12.2"


def test_a_function_that_an_old_driver_lacks_is_evidence(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so.1").symlink_to(stubs.library("nvml"))
    api = cuda(stubs.host("cuda", environ={"LD_LIBRARY_PATH": str(tmp_path)}))
    assert api.state is ApiState.FAILED
    assert Evidence("cuInit", "the library has no such function") in api.evidence


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount", "cuDeviceGetName"])
@pytest.mark.parametrize("how", ["crash", "abort", "exit"])
def test_a_crash_is_named_and_loses_only_its_own_answers(
    stubs: StubDrivers, call: str, how: str
) -> None:
    hardware = probe(stubs.host("cuda", "nvml", "vulkan", **{call: how}))
    api = hardware.api("cuda")
    assert (api.state, slug(api), api.gpus) == (ApiState.CRASHED, "driver-crashed", ())
    ends = {"crash": "signal 11", "abort": "signal 6", "exit": "exit 3"}
    during = "device 0" if call == "cuDeviceGetName" else call
    assert Evidence(during, ends[how]) in api.evidence
    assert api.driver == "580.159.04"
    assert hardware.api("vulkan").hardware_gpus


@pytest.mark.parametrize("call", ["cuDriverGetVersion", "cuInit"])
def test_a_hang_is_not_a_missing_gpu(stubs: StubDrivers, call: str) -> None:
    hardware = probe(stubs.host("cuda", "nvml", "vulkan", **{call: "hang"}), limit=3.0)
    api = hardware.api("cuda")
    assert (api.state, slug(api)) == (ApiState.TIMED_OUT, "driver-timed-out")
    assert api.problem
    assert api.problem.transient
    assert f"did not answer within 3 s ({call})" in api.problem.text
    assert "tsuku-llm config set llm.probe_timeout 60s" in api.problem.fix
    assert api.driver == "580.159.04"
    assert hardware.api("vulkan").hardware_gpus


def test_a_driver_that_closes_our_pipe_is_blamed(stubs: StubDrivers) -> None:
    hardware = probe(stubs.host("cuda", "opencl", cuInit="close"))
    assert (hardware.api("cuda").state, slug(hardware.api("cuda"))) == (
        ApiState.CRASHED,
        "driver-crashed",
    )
    assert hardware.api("opencl").gpus


@pytest.mark.parametrize("code", [3, 304, 999])
def test_cuda_without_its_uvm_device_is_named(
    stubs: StubDrivers, tmp_path: Path, code: int
) -> None:
    root = with_module(tmp_path)
    (root / "dev/nvidia-uvm").unlink()
    api = cuda(stubs.host("cuda", "nvml", root=root, cuInit=code))
    assert slug(api) == "nvidia-uvm-missing"
    assert api.problem
    assert "rmmod" not in api.problem.fix


def test_a_broken_nvml_does_not_harm_cuda(stubs: StubDrivers) -> None:
    api = cuda(stubs.host("cuda", "nvml", nvmlInit_v2="crash"))
    assert (api.state, len(api.gpus), api.driver) == (ApiState.OK, 1, None)


@pytest.mark.parametrize(
    ("code", "name", "transient"),
    [
        (2, "cuda-no-memory", True),
        (34, "cuda-stub-library", False),
        (35, "cuda-driver-too-old", False),
        (36, "cuda-driver-too-old", False),
        (100, "cuda-no-device", False),
        (802, "cuda-not-ready", True),
        (803, "driver-updated-reboot", True),
        (804, "driver-updated-reboot", True),
        (46, "cuda-device-busy", True),
        (805, "cuda-mps", True),
        (807, "cuda-mps", True),
        (808, "cuda-mps", True),
        (999, "cuda-after-suspend", True),
        (12345, "cuda-error", False),
        (-1, "cuda-error", False),
    ],
)
def test_each_code_of_cuinit_has_a_name_and_a_fix(
    stubs: StubDrivers, tmp_path: Path, code: int, name: str, transient: bool
) -> None:
    api = cuda(stubs.host("cuda", "nvml", root=with_module(tmp_path), cuInit=code))
    assert (api.state, slug(api)) == (ApiState.FAILED, name)
    assert api.problem
    assert api.problem.fix
    assert api.problem.transient is transient
    assert any(item.call == "cuInit" and str(code) in item.result for item in api.evidence)


def test_a_driver_updated_without_a_reboot_is_named_with_both_versions(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    root = with_module(tmp_path, "570.86.15")
    api = cuda(stubs.host("cuda", "nvml", root=root, cuInit=999))
    assert slug(api) == "driver-updated-reboot"
    api = cuda(stubs.host("cuda", "nvml", root=root, cuInit=100, nvmlInit_v2=18))
    assert slug(api) == "driver-updated-reboot"
    assert api.driver == "570.86.15"


def test_different_versions_are_accepted_while_cuda_works(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    assert cuda(stubs.host("cuda", "nvml", root=with_module(tmp_path, "570.86.15"))).problem is None


def test_the_open_kernel_modules_version_is_read(stubs: StubDrivers, tmp_path: Path) -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    root = machine(tmp_path, {"proc/driver/nvidia/version": line})
    assert cuda(stubs.host("cuda", root=root)).driver == "570.86.15"


@pytest.mark.parametrize("value", ["", "-1", "7", "MIG-GPU-x"])
def test_hidden_devices_are_blamed_on_the_variable(
    stubs: StubDrivers, tmp_path: Path, value: str
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": value}
    host = stubs.host(
        "cuda", root=with_module(tmp_path), environ=environ | paths(stubs), cuInit=100
    )
    api = cuda(host)
    assert slug(api) == "cuda-hidden"
    assert api.problem
    assert repr(value) in api.problem.text


@pytest.mark.parametrize("value", ["x", "pci"])
def test_an_unknown_order_is_blamed_on_its_variable(
    stubs: StubDrivers, tmp_path: Path, value: str
) -> None:
    """Two H200s with driver 580.159.04: cuInit returned 101, and no device was found."""
    environ = {"CUDA_DEVICE_ORDER": value} | paths(stubs)
    api = cuda(stubs.host("cuda", root=with_module(tmp_path), environ=environ, cuInit=101))
    assert slug(api) == "cuda-hidden"
    assert api.problem
    assert f"CUDA_DEVICE_ORDER={value!r}" in api.problem.text
    assert api.problem.fix == "unset CUDA_DEVICE_ORDER"


def paths(stubs: StubDrivers) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(stubs.library("cuda").parent)}


def test_mig_without_an_instance_is_named(stubs: StubDrivers, tmp_path: Path) -> None:
    host = stubs.host("cuda", "nvml", root=with_module(tmp_path), cuda_count=0, nvml_mig=1)
    assert slug(cuda(host)) == "mig-without-instance"


@pytest.mark.parametrize("folder", ["/opt/x", "/opt/x/"])
def test_a_broken_library_of_a_variable_is_taken_out_of_it(folder: str) -> None:
    """An empty libcuda.so.1 before the driver's, on an H200: no package was broken."""
    why = "/opt/x/libcuda.so.1: file too short"
    opened = {"call": "open", "library": None, "names": ["libcuda.so.1"], "errors": [why]}
    raw = RawNvidia(cuda=DriverAnswer((opened,), "done"))
    told = parse(raw, MachineKind(library_path=f"/a:{folder}")).problem
    other = parse(raw, MachineKind(library_path="/a")).problem
    assert told
    assert other
    assert told.slug == other.slug == "cuda-library-broken"
    assert told.fix == "take /opt/x out of LD_LIBRARY_PATH"
    assert other.fix == "reinstall the NVIDIA driver's packages"


def test_a_library_without_its_kernel_module_is_named(stubs: StubDrivers, tmp_path: Path) -> None:
    assert slug(cuda(stubs.host("cuda", root=tmp_path, cuInit=100))) == "nvidia-module-missing"


def test_a_device_file_that_may_not_be_opened_is_named() -> None:
    opened = {"call": "open", "library": "/usr/lib/libcuda.so.1"}
    answer = DriverAnswer((opened, {"call": "cuInit", "code": 100}), "done")
    api = parse(
        RawNvidia(cuda=answer, kernel=KERNEL.format("580.95.05"), control=""), MachineKind()
    )
    assert slug(api) == "gpu-permission"


NO_CARD = DriverAnswer(
    (
        {"call": "open", "library": "/usr/lib/libcuda.so.1"},
        {"call": "cuInit", "code": 100},
    ),
    "done",
)


@pytest.mark.parametrize(
    ("cards", "name"),
    [
        ((("/dev/nvidia0", " EACCES"), ("/dev/nvidia1", " EACCES")), "gpu-permission"),
        ((("/dev/nvidia0", "rw EPERM"),), "device-rules"),
        ((("/dev/nvidia0", "rw EPERM"), ("/dev/nvidia1", "rw")), "nvidia-card-not-started"),
        ((), "nvidia-card-not-started"),
    ],
)
def test_the_files_of_the_cards_count_where_the_control_file_opens(
    cards: tuple[tuple[str, str], ...], name: str
) -> None:
    """As a user on two H200s without rights to either card, and in a job that was given none.

    cuInit answered 100 there. With ConstrainDevices, Slurm refuses a job the cards that it did not
    ask for (cgroup.conf), and never /dev/nvidiactl.
    """
    raw = RawNvidia(cuda=NO_CARD, kernel=KERNEL.format("580.159.04"), control="rw", cards=cards)
    card = BusCard("PCI 0000:00:06.0", NVIDIA, 0x2335, driver=None)
    problem = parse(raw, MachineKind(pci=(card,))).problem
    assert problem
    assert problem.slug == name
    assert ("/dev/nvidia0" in problem.text) is (name != "nvidia-card-not-started")


def test_the_files_of_the_cards_are_asked_only_where_none_is_listed(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    """To open one starts a card that sleeps."""
    root = with_module(tmp_path, **{"dev/nvidia0": ""})
    for code in (0, 100):
        host = RecordingHost(stubs.host("cuda", root=root, cuInit=code))
        probe(host)
        assert ("/dev/nvidia0" in host.content()["access"]) is (code == 100)


def test_groups_of_a_container_are_given_at_its_start() -> None:
    """Its own groups have other numbers: usermod in it changes nothing."""
    opened = {"call": "open", "library": "/usr/lib/libcuda.so.1"}
    answer = DriverAnswer((opened, {"call": "cuInit", "code": 100}), "done")
    raw = RawNvidia(cuda=answer, kernel=KERNEL.format("580.95.05"), control="r")
    problem = parse(raw, MachineKind(place=INSIDE)).problem
    assert problem
    assert problem.slug == "gpu-permission"
    assert "--group-add $(stat -c %g /dev/nvidiactl)" in problem.fix
    assert "usermod" not in problem.fix


def test_a_container_without_device_files_is_named(stubs: StubDrivers, tmp_path: Path) -> None:
    root = machine(tmp_path, {".dockerenv": ""})
    assert slug(cuda(stubs.host("cuda", root=root, cuInit=100))) == "container-without-gpu"


@pytest.mark.parametrize("fact", ["pci", "module"])
def test_row_13_a_container_sees_a_card_but_has_no_driver(tmp_path: Path, fact: str) -> None:
    root = machine(tmp_path, {"run/.containerenv": ""})
    root = with_pci(root) if fact == "pci" else with_module(root)
    api = cuda(LocalHost(root, {}))
    assert (api.state, slug(api)) == (ApiState.ABSENT, "container-without-gpu")


def test_a_card_without_a_driver_outside_containers(tmp_path: Path) -> None:
    assert slug(cuda(LocalHost(with_pci(tmp_path), {}))) == "nvidia-driver-missing"


def test_a_card_of_another_vendor_is_no_evidence_about_nvidia(tmp_path: Path) -> None:
    assert cuda(LocalHost(with_pci(tmp_path, "0x1002"), {})).problem is None
    assert cuda(LocalHost(tmp_path, {})).problem is None


def test_row_1_a_driver_without_toolkit_or_sysfs_is_enough(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    assert cuda(stubs.host("cuda", root=tmp_path)).gpus


def test_a_library_without_its_dependency_is_broken_and_not_absent(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so.1").symlink_to(stubs.library_needing("libnowhere.so.6"))
    api = cuda(LocalHost(None, {"LD_LIBRARY_PATH": str(tmp_path)}))
    assert (api.state, slug(api)) == (ApiState.FAILED, "cuda-library-broken")
    assert api.problem
    assert "libnowhere.so.6" in api.problem.text


def test_a_file_that_is_not_a_library_is_broken_and_not_absent(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    api = cuda(LocalHost(None, {"LD_LIBRARY_PATH": str(tmp_path)}))
    assert (api.state, slug(api)) == (ApiState.FAILED, "cuda-library-broken")


# --- the CUDA version of a driver that does not tell it ------------------------------------


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        # Minimum drivers of the toolkits on Linux, from NVIDIA's release notes.
        ("450.36.06", "11.0"),
        ("520.61.05", "11.8"),
        ("525.60.13", "12.0"),
        ("535.54.03", "12.2"),
        ("550.54.14", "12.4"),
        ("570.26", "12.8"),
        ("575.51.03", "12.9"),
        ("580.65.06", "13.0"),
        ("610.43.02", "13.3"),
        # Drivers that nvidia-smi shows with these versions.
        ("570.86.10", "12.8"),
        ("565.57.01", "12.7"),
        ("576.02", "12.9"),
        ("537.58", "12.2"),
        ("470.239.06", "11.4"),
        ("390.157", "10.2"),
        # Unknown, or newer than the table.
        ("615.10.01", None),
        ("700.1", None),
        (None, None),
    ],
)
def test_the_newest_cuda_of_a_driver_s_branch(driver: str | None, cuda: str | None) -> None:
    assert cuda_of_driver(driver) == cuda


@given(st.integers(0, 900), st.integers(0, 900))
def test_a_newer_driver_never_supports_an_older_cuda(first: int, second: int) -> None:
    old, new = (cuda_of_driver(f"{branch}.10") for branch in sorted((first, second)))
    if old and new:
        assert [int(part) for part in old.split(".")] <= [int(part) for part in new.split(".")]
    assert old is not None or new is None


def test_the_driver_s_version_bounds_a_cuda_version_that_is_not_told(stubs: StubDrivers) -> None:
    host = stubs.host("cuda", "nvml", cuDriverGetVersion=999, nvml_version="570.86.10")
    api = cuda(host)
    assert (api.state, api.version, len(api.gpus)) == (ApiState.OK, "12.8", 1)
    assert Evidence("driver 570.86.10", "CUDA 12.8 at most") in api.evidence


def test_the_driver_s_own_word_outranks_its_branch(stubs: StubDrivers) -> None:
    """A compatibility library supports a newer CUDA than the driver that is installed."""
    host = stubs.host("cuda", "nvml", cuda_version=13000, nvml_version="570.86.10")
    assert cuda(host).version == "13.0"


def test_without_any_version_nothing_is_known(stubs: StubDrivers, tmp_path: Path) -> None:
    assert cuda(stubs.only("cuda", root=tmp_path, cuDriverGetVersion=999)).version is None


# --- what a container or a leftover driver really lacks -------------------------------------

LIBRARY = {"call": "open", "library": "/usr/lib/libcuda.so.1"}
NO_GPU = DriverAnswer((LIBRARY, {"call": "cuInit", "code": 100}), "done")
CARD, OTHER = (BusCard("PCI 01:00.0", vendor, 1, None) for vendor in (0x10DE, 0x1002))


@pytest.mark.parametrize(
    ("machine", "words", "fix"),
    [
        (MachineKind(place=INSIDE), "no NVIDIA GPU is visible in it", "if the host has"),
        (MachineKind(place=INSIDE, pci=(OTHER,)), "no NVIDIA GPU is visible", "if the host has"),
        (
            MachineKind(place=INSIDE, pci=(CARD,)),
            "not given its device",
            "start the container with --gpus",
        ),
        (MachineKind(pci=(OTHER,)), "no NVIDIA GPU on the PCI bus", "nothing, if this machine"),
        (MachineKind(os="windows", pci=(OTHER,)), "no NVIDIA GPU on the PCI bus", "nothing, if"),
        (MachineKind(pci=(CARD,)), "kernel module is not loaded", "modprobe"),
        (MachineKind(), "kernel module is not loaded", "modprobe"),
        (
            MachineKind(place=IN_WSL, pci=(OTHER,)),
            "finds no device",
            "in Windows",
        ),
        (MachineKind(os="windows"), "finds no device", "switched on"),
    ],
)
@pytest.mark.parametrize("visible", [None, "0"])
def test_a_driver_without_a_gpu_is_told_from_what_is_seen(
    machine: MachineKind, words: str, fix: str, visible: str | None
) -> None:
    problem = parse(RawNvidia(cuda=NO_GPU, visible=visible), machine).problem
    assert problem
    # A variable hides nothing where there is no kernel module, or no card.
    if visible and (machine.place.wsl or (machine.os == "windows" and not machine.pci)):
        assert problem.slug == "cuda-hidden"
    else:
        assert words in problem.text
        assert fix in problem.fix


@pytest.mark.parametrize(
    ("code", "end"),
    [*((code, "done") for code in (100, 101, 1, 35, 804, 999)), (0, "signal 11")],
)
def test_in_wsl_nvidias_driver_is_mended_in_windows(code: int, end: str) -> None:
    """NVIDIA's guide for WSL: the driver is that of Windows, and none for Linux belongs there.

    The crash is NVIDIA/cuda-samples#433, a driver of the distribution ollama/ollama#1898.
    """
    answer = DriverAnswer((LIBRARY, {"call": "cuInit", "code": code}), end)
    problem = parse(RawNvidia(cuda=answer), MachineKind(place=IN_WSL)).problem
    assert problem
    assert "wsl --shutdown" in problem.fix
    assert "modprobe" not in problem.fix


LOADED = RawNvidia(cuda=NO_GPU, kernel=KERNEL.format("580.95.05"), control="rw")


def test_a_card_that_is_not_on_the_bus_is_told_also_beside_a_loaded_module() -> None:
    problem = parse(LOADED, MachineKind(pci=(OTHER,))).problem
    assert problem
    assert "no NVIDIA GPU on the PCI bus" in problem.text
    assert "external" in problem.fix


@pytest.mark.parametrize(
    "machine",
    [
        MachineKind(place=INSIDE, pci=(OTHER,)),  # it may not see the host's whole bus
        MachineKind(pci=(OTHER, CARD)),
        MachineKind(tegra="# R36", pci=(OTHER,)),
        MachineKind(),
    ],
)
def test_a_card_is_not_missed_on_a_bus_that_may_have_it(machine: MachineKind) -> None:
    problem = parse(LOADED, machine).problem
    assert problem
    assert "no NVIDIA GPU on the PCI bus" not in problem.text


@pytest.mark.parametrize("cards", [(OTHER,), (OTHER, CARD)], ids=["off the bus", "on the bus"])
def test_what_keeps_the_module_away_is_named(cards: tuple[BusCard, ...]) -> None:
    file = "/lib/modprobe.d/blacklist-nvidia.conf"
    raw = RawNvidia(cuda=NO_GPU, kept_away=("prime-select", file))
    problem = parse(raw, MachineKind(pci=cards)).problem
    assert problem
    assert problem.slug == "nvidia-switched-off"
    assert file in problem.text
    assert "prime-select on-demand" in problem.fix


@pytest.mark.parametrize(
    ("kernel", "place"),
    [
        (KERNEL.format("580.95.05"), MachinePlace()),
        (None, INSIDE),
        (None, MachinePlace(Kind.WSL, wsl=True)),
    ],
    ids=["the module is loaded", "the file is the container's", "wsl"],
)
def test_a_file_keeps_away_only_a_module_that_is_not_loaded_here(
    kernel: str | None, place: MachinePlace
) -> None:
    raw = RawNvidia(cuda=NO_GPU, kernel=kernel, kept_away=("", "/etc/modprobe.d/a.conf"))
    problem = parse(raw, MachineKind(place=place, pci=(CARD,))).problem
    assert problem
    assert problem.slug != "nvidia-switched-off"


@pytest.mark.parametrize(
    "raw",
    [
        RawNvidia(cuda=NO_GPU, visible="", control="rw"),
        RawNvidia(cuda=NO_GPU, visible="", kernel=KERNEL.format("580.95.05")),
    ],
    ids=["device file", "kernel module"],
)
def test_a_variable_is_blamed_where_there_is_something_to_hide(raw: RawNvidia) -> None:
    problem = parse(raw, MachineKind()).problem
    assert problem
    assert problem.slug == "cuda-hidden"
