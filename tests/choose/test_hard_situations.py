"""Fifteen situations in which comparable tools choose wrongly, each shown whole.

A real child loads stub drivers, or reads a fake root; what is concluded is held against the
published release. ``b11347`` stands in where a build matters that ``b11429`` lacks.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.builds import stand_in
from support.fake_roots import (
    with_floors,
    with_icd,
    with_musl,
    with_nodes,
    with_pci,
    with_rocm,
    write,
)
from support.release_server import release_server
from support.servers import NOW
from support.sessions import make_session
from support.stub_drivers import StubDrivers

from tsuku_llm.catalog.manifest import Release, parse_release
from tsuku_llm.choose.selection import Request, Selection, select
from tsuku_llm.cli.render.choice import verdict
from tsuku_llm.ground.errors import GateFailed, SelectionError
from tsuku_llm.launch.failed.diagnosis import diagnose
from tsuku_llm.launch.plan.planning import plan_server
from tsuku_llm.launch.run.gate import gate, list_devices
from tsuku_llm.machine.hardware import ApiState, GpuKind, Hardware
from tsuku_llm.machine.host import DriverAnswer, Host, LocalHost, Raw
from tsuku_llm.machine.snapshot import Recording, ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.steps.drivers.device_check import Check
from tsuku_llm.steps.install.build_version import hardware_facts
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.serve.placing import place_start
from tsuku_llm.steps.session import Machine, Session
from tsuku_llm.trust import VerifiedBytes

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="the stubs are Linux's"
)
PUBLISHED = Path(__file__).parents[2] / "manifests" / "targets" / "releases"
KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Nov  4 2025\n"
ENVIRON = {"PATH": os.environ["PATH"]}


def published(tag: str) -> Release:
    (path,) = PUBLISHED.glob(f"*.{tag}.json")
    return parse_release(VerifiedBytes(path.read_bytes()))


RELEASE = published("b11429")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the program makes of a machine."""

    hardware: Hardware
    selection: Selection

    @property
    def detected(self) -> set[str]:
        return set(self.selection.detected)

    @property
    def fitting(self) -> list[str]:
        return [candidate.variant.name for candidate in self.selection.compatible]

    @property
    def selected(self) -> str:
        return self.selection.selected.variant.name

    @property
    def device(self) -> str:
        assert self.selection.selected.gpu
        return self.selection.selected.gpu.name

    @property
    def refused(self) -> dict[str, str]:
        """Each refused variant with the one fact that decided."""
        return {each.variant.name: each.reason.slug for each in self.selection.rejected}

    @property
    def problems(self) -> dict[str, str]:
        """Each named situation with its fix."""
        # The testing machine's own OpenCL loader is asked as well, and may have no driver.
        own = "opencl-loader-without-icd"
        return {each.slug: each.fix for each in self.hardware.all_problems if each.slug != own}


def seen(host: Host, backend: str = "auto", *, tag: str = "b11429", limit: float = 5.0) -> Seen:
    hardware = probe(host, limit)
    release = RELEASE if tag == "b11429" else published(tag)
    return Seen(hardware, select(release, hardware, Request(backend)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system that is new enough for every build, and has nothing else."""
    return with_floors(tmp_path / "root")


def with_module(root: Path, version: str) -> Path:
    write(root, "/proc/driver/nvidia/version", KERNEL.format(version))
    write(root, "/dev/nvidiactl")
    return root


def handed_over(folder: Path, backend: str, hardware: Hardware, *listed: str) -> str:
    """What ``--device`` gets at launch, where the server lists these devices."""
    lines = ("out Available devices:", *(f"out   {line}" for line in listed))
    build = stand_in(folder / "tree", backend=backend, devices=lines)
    devices = list_devices(build, ENVIRON).devices
    check = Check(build, devices, hardware=hardware_facts(hardware))
    plan = plan_server(build, (), cwd=folder, environ={})
    placed = place_start(plan, check, "auto", lambda: check)
    argv = placed.plan.argv
    return argv[argv.index("--device") + 1]


def session(folder: Path, host: Host, note: Callable[[str], None]) -> Session:
    machine = Machine(host, NOW, {})
    return make_session(folder / "data", machine, note=note)


# --- 1: a driver without a toolkit ---------------------------------------------------------------


def test_situation_01_a_driver_without_a_toolkit_is_enough(stubs: StubDrivers, root: Path) -> None:
    found = seen(stubs.only("cuda", "nvml", root=root, cuda_major=8, cuda_minor=9))
    assert found.detected == {"cpu", "cuda"}
    assert found.fitting == ["cuda-13.4", "cuda-12.8", "cpu"]
    assert found.refused == {"vulkan": "api-absent", "rocm-10.0": "api-absent"}
    assert found.problems == {}


def test_situation_01_the_runtime_is_a_companion_of_the_build(
    stubs: StubDrivers, root: Path
) -> None:
    found = seen(stubs.only("cuda", root=root, cuda_major=8, cuda_minor=9))
    urls = [artifact.url for artifact in found.selection.selected.variant.artifacts]
    assert len(urls) == 2
    assert "cudart" in urls[1]


# --- 2: an old driver and a card that the build has only PTX for ----------------------------------


def gtx_1080_ti(stubs: StubDrivers, root: Path, driver: int, *more: str) -> LocalHost:
    name = "NVIDIA GeForce GTX 1080 Ti"
    facts = {"cuda_major": 6, "cuda_minor": 1, "cuda_version": driver, "cuda_name": name}
    return stubs.only("cuda", *more, root=root, **facts, vulkan_name=name)


@pytest.mark.parametrize("driver", [12020, 12040])
def test_situation_02_a_build_that_would_crash_at_the_first_prompt_is_not_chosen(
    stubs: StubDrivers, root: Path, driver: int
) -> None:
    found = seen(gtx_1080_ti(stubs, root, driver, "vulkan"))
    assert found.detected == {"cpu", "cuda", "vulkan"}
    assert found.fitting == ["vulkan", "cpu"]
    assert found.device == "NVIDIA GeForce GTX 1080 Ti"
    refused = {"cuda-13.4": "cuda-capability", "cuda-12.8": "cuda-ptx", "rocm-10.0": "api-absent"}
    assert found.refused == refused


def test_situation_02_it_is_refused_before_any_download(
    stubs: StubDrivers, root: Path, tmp_path: Path
) -> None:
    host = gtx_1080_ti(stubs, root, 12020)
    asked = session(tmp_path, host, print).with_settings(backend="cuda")
    with pytest.raises(SelectionError) as caught:
        install(asked)
    assert "needs a driver for CUDA 12.8; this one is for CUDA 12.2" in str(caught.value.facts)
    assert not (tmp_path / "data" / "partials").exists()


def test_situation_02_a_newer_driver_runs_the_older_line(stubs: StubDrivers, root: Path) -> None:
    found = seen(gtx_1080_ti(stubs, root, 12080))
    assert found.selected == "cuda-12.8"
    assert found.refused["cuda-13.4"] == "cuda-capability"


def test_situation_02_machine_code_of_the_older_line_runs_on_an_old_driver(
    stubs: StubDrivers, root: Path
) -> None:
    host = stubs.only("cuda", root=root, cuda_major=8, cuda_minor=9, cuda_version=12020)
    found = seen(host)
    assert found.fitting == ["cuda-12.8", "cpu"]
    assert found.refused["cuda-13.4"] == "cuda-driver"


def test_situation_02_without_vulkan_the_idle_card_is_named(
    stubs: StubDrivers, root: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    host = gtx_1080_ti(stubs, root, 12020)
    report = install(session(tmp_path, host, notes.append), dry_run=True)
    assert report.candidate.variant.name == "cpu"
    (note,) = notes
    assert note == (
        "to use NVIDIA GeForce GTX 1080 Ti: update NVIDIA's driver; then: tsuku-llm install"
    )


# --- 3: a driver that waits for a reboot ---------------------------------------------------------


@pytest.mark.parametrize("code", [803, 804])
def test_situation_03_a_driver_that_waits_for_a_reboot_is_named(
    stubs: StubDrivers, root: Path, code: int
) -> None:
    host = stubs.only("cuda", "nvml", root=with_module(root, "580.159.04"), cuInit=code)
    found = seen(host)
    assert found.detected == {"cpu"}
    assert found.selected == "cpu"
    assert found.refused["cuda-12.8"] == found.refused["cuda-13.4"] == "driver-updated-reboot"
    assert "restart the machine" in found.problems["driver-updated-reboot"]
    with pytest.raises(SelectionError) as caught:
        _ = seen(host, "gpu").selected
    assert any("does not match the kernel module" in fact for fact in caught.value.facts)


@pytest.mark.parametrize("how", [{"cuInit": 100, "nvmlInit_v2": 18}, {"cuInit": 999}])
def test_situation_03_different_versions_are_recognised_with_other_error_codes(
    stubs: StubDrivers, root: Path, how: Mapping[str, object]
) -> None:
    found = seen(stubs.only("cuda", "nvml", root=with_module(root, "570.86.15"), **how))
    assert list(found.problems) == ["driver-updated-reboot"]


def test_situation_03_the_processor_is_not_chosen_quietly(
    stubs: StubDrivers, root: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    host = stubs.only("cuda", "nvml", root=root, cuInit=803)
    report = install(session(tmp_path, host, notes.append), dry_run=True)
    assert report.candidate.variant.name == "cpu"
    (note,) = notes
    assert note.startswith("temporary: ")
    assert "restart the machine" in note


# --- 4: a card without machine code in the build -------------------------------------------------


@pytest.mark.parametrize("capability", [(6, 1), (7, 0)], ids=["pascal", "volta"])
def test_situation_04_a_card_that_cuda_13_dropped_gets_the_older_line(
    stubs: StubDrivers, root: Path, capability: tuple[int, int]
) -> None:
    major, minor = capability
    found = seen(stubs.only("cuda", root=root, cuda_major=major, cuda_minor=minor))
    assert found.fitting == ["cuda-12.8", "cpu"]
    assert found.refused["cuda-13.4"] == "cuda-capability"


def test_situation_04_a_card_newer_than_the_build_gets_a_warning_about_a_slow_start(
    stubs: StubDrivers, root: Path
) -> None:
    found = seen(stubs.only("cuda", root=root, cuda_major=10, cuda_minor=3))
    assert found.fitting == ["cuda-12.8", "cpu"]
    assert found.refused["cuda-13.4"] == "cuda-ptx"
    best, cpu = found.selection.compatible
    assert best.note == "the first start is slow: it compiles for compute capability 10.3"
    assert cpu.note is None
    assert verdict(best) == f"fits: NVIDIA H200; {best.note}"
    served = seen(stubs.only("cuda", root=root, cuda_major=8, cuda_minor=9))
    assert served.selection.selected.note is None


# --- 5: a hybrid machine -------------------------------------------------------------------------

HYBRID = {
    "vulkan_count": 2,
    "vulkan_type_0": 1,
    "vulkan_name_0": "Intel(R) Graphics (ADL GT2)",
    "vulkan_vendor_0": 0x8086,
    "vulkan_name_1": "NVIDIA GeForce RTX 4060 Laptop GPU",
}


def test_situation_05_the_discrete_card_is_chosen_and_passed_to_the_server(
    stubs: StubDrivers, root: Path, tmp_path: Path
) -> None:
    found = seen(stubs.only("vulkan", root=root, **HYBRID))
    assert [gpu.kind for gpu in found.hardware.api("vulkan").gpus] == [
        GpuKind.INTEGRATED,
        GpuKind.DISCRETE,
    ]
    assert (found.selected, found.device) == ("vulkan", "NVIDIA GeForce RTX 4060 Laptop GPU")
    listed = (
        "Vulkan0: Intel(R) Graphics (ADL GT2) (15000 MiB, 14000 MiB free)",
        "Vulkan1: NVIDIA GeForce RTX 4060 Laptop GPU (8188 MiB, 8000 MiB free)",
    )
    assert handed_over(tmp_path, "vulkan", found.hardware, *listed) == "Vulkan1"


def test_situation_05_an_integrated_gpu_of_vulkan_ranks_behind_a_card_of_cuda(
    stubs: StubDrivers, root: Path
) -> None:
    found = seen(stubs.only("cuda", "vulkan", root=root, vulkan_type=1, cuda_version=13040))
    assert found.fitting == ["cuda-13.4", "cuda-12.8", "vulkan", "cpu"]


# --- 6: an APU before the card -------------------------------------------------------------------

APU_AND_CARD = {
    "hip_count": 2,
    "hip_name_0": "AMD Radeon Graphics",
    "hip_gfx_0": "gfx90c",
    "hip_name_1": "AMD Radeon RX 7900 XTX",
}


def test_situation_06_an_apu_listed_first_does_not_decide(
    stubs: StubDrivers, root: Path, tmp_path: Path
) -> None:
    system = with_rocm(with_nodes(root, 90012, 110000))
    found = seen(stubs.only("hip", root=system, **APU_AND_CARD))
    assert [gpu.gfx for gpu in found.hardware.api("rocm").gpus] == ["gfx90c", "gfx1100"]
    assert found.detected == {"cpu", "rocm"}
    assert (found.selected, found.device) == ("rocm-10.0", "AMD Radeon RX 7900 XTX")
    listed = (
        "ROCm0: AMD Radeon Graphics (16000 MiB, 15000 MiB free)",
        "ROCm1: AMD Radeon RX 7900 XTX (24560 MiB, 24000 MiB free)",
    )
    assert handed_over(tmp_path, "rocm", found.hardware, *listed) == "ROCm1"


# --- 7: a GPU outside the ROCm build -------------------------------------------------------------


@pytest.mark.parametrize("tag", ["b11429", "b11347"])
@pytest.mark.parametrize("gfx", ["gfx803", "gfx906"])
def test_situation_07_a_gfx_outside_the_rocm_build_runs_vulkan(
    stubs: StubDrivers, root: Path, gfx: str, tag: str
) -> None:
    name = "AMD Radeon RX 580 (RADV POLARIS10)"
    amd = {"hip_gfx": gfx, "vulkan_vendor": 0x1002, "vulkan_name": name}
    found = seen(stubs.only("hip", "vulkan", root=root, **amd), tag=tag)
    assert found.detected == {"cpu", "rocm", "vulkan"}
    assert (found.selected, found.device) == ("vulkan", name)
    assert found.refused["rocm-10.0"] == "rocm-gfx"


def test_situation_07_an_unknown_target_does_not_count_as_one_of_the_build(
    stubs: StubDrivers, root: Path
) -> None:
    found = seen(stubs.only("hip", root=root, hipGetDevicePropertiesR0600=1))
    assert found.refused["rocm-10.0"] == "rocm-gfx"
    assert found.selected == "cpu"


# --- 8: a loader without a driver, or with llvmpipe alone ----------------------------------------


def test_situation_08_a_loader_without_a_driver_is_not_a_gpu(
    stubs: StubDrivers, root: Path
) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "os-release").write_text("ID=fedora\n")
    found = seen(stubs.only("vulkan", root=root, vkCreateInstance=-9))
    assert found.detected == {"cpu"}
    assert found.selected == "cpu"
    assert found.refused["vulkan"] == "vulkan-loader-without-icd"
    assert "mesa-vulkan-drivers" in found.problems["vulkan-loader-without-icd"]


def test_situation_08_a_software_renderer_is_not_a_gpu(stubs: StubDrivers, root: Path) -> None:
    name = "llvmpipe (LLVM 15.0.6, 256 bits)"
    found = seen(stubs.only("vulkan", root=root, vulkan_type=4, vulkan_name=name))
    (gpu,) = found.hardware.api("vulkan").gpus
    assert (gpu.name, gpu.kind) == (name, GpuKind.SOFTWARE)
    assert found.detected == {"cpu"}
    assert found.selected == "cpu"
    assert found.refused["vulkan"] == "software-only"
    assert found.problems["software-only"]


def test_situation_08_llvmpipe_next_to_a_card_is_ignored(stubs: StubDrivers, root: Path) -> None:
    both = {"vulkan_count": 2, "vulkan_type_0": 4, "vulkan_name_0": "llvmpipe (LLVM 15.0.6)"}
    found = seen(stubs.only("vulkan", root=root, **both))
    assert (found.selected, found.device) == ("vulkan", "NVIDIA GeForce RTX 4090")


# --- 9: a driver without a loader; no vulkaninfo -------------------------------------------------


def test_situation_09_a_driver_without_a_loader_needs_one_package(
    stubs: StubDrivers, root: Path
) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "os-release").write_text("ID=debian\n")
    found = seen(stubs.only(root=with_icd(root, str(stubs.library("hip")), "radeon")))
    assert found.hardware.api("vulkan").state is ApiState.ABSENT
    assert found.selected == "cpu"
    assert found.refused["vulkan"] == "vulkan-icd-without-loader"
    assert "apt install libvulkan1" in found.problems["vulkan-icd-without-loader"]


def test_situation_09_vulkaninfo_is_never_needed(stubs: StubDrivers, root: Path) -> None:
    found = seen(stubs.only("vulkan", root=root, environ={"PATH": ""}))
    assert found.selected == "vulkan"


# --- 10: an integrated GPU whose Vulkan driver loses its device or hangs -------------------------


@pytest.mark.parametrize(
    ("how", "state", "slug"),
    [
        ("crash", ApiState.CRASHED, "driver-crashed"),
        ("hang", ApiState.TIMED_OUT, "driver-timed-out"),
        (-4, ApiState.FAILED, "vulkan-error"),
    ],
)
def test_situation_10_a_driver_that_breaks_is_not_chosen(
    stubs: StubDrivers, root: Path, how: object, state: ApiState, slug: str
) -> None:
    host = stubs.only("vulkan", root=root, vulkan_type=1, vkEnumeratePhysicalDevices=how)
    found = seen(host, limit=3.0)
    assert found.hardware.api("vulkan").state is state
    assert found.selected == "cpu"
    assert found.refused["vulkan"] == slug
    assert found.problems[slug]


def test_situation_10_a_server_with_a_hanging_driver_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tsuku_llm.launch.run.gate.GATE_LIMIT", 3.0)
    build = stand_in(tmp_path, devices=("hang",))
    with pytest.raises(GateFailed, match="did not answer within") as caught:
        gate(build, ENVIRON)
    assert "tsuku-llm config set llm.backend cpu" in str(caught.value.hint)


def test_situation_10_a_crashing_build_is_replaced_by_one_without_the_plugin(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    with release_server(tmp_path / "shop") as shop:
        broken = shop.stand_in("b1-vulkan", devices=("kill 11",))
        plain = shop.stand_in("b1-cpu", devices=("kill 11",))
        variants = {
            "vulkan": shop.variant(broken, backend="vulkan"),
            "cpu": shop.variant(plain),
        }
        shop.publish("b1", variants)
        user = shop.user(tmp_path / "home")
        path = f"{stubs.library('vulkan').parent}:{stubs.none_installed()}"
        done = user.run("install", "--json", LD_LIBRARY_PATH=path, STUB_vulkan_type="1")
        assert done.code == 0, done.stderr
        assert done.document["data"]["variant"] == "cpu", "it is not even asked for its devices"
        (vulkan,) = done.document["data"]["passed_over"]
        assert (vulkan["variant"], vulkan["slug"]) == ("vulkan", "failed-start")
        assert "SIGSEGV" in vulkan["text"]


def test_situation_10_a_device_lost_in_the_middle_of_the_work_is_explained() -> None:
    text = "terminate called after throwing 'vk::DeviceLostError': ErrorDeviceLost\n"
    found = diagnose(-6, text)
    assert found
    assert found.slug == "vulkan-device-lost"
    assert "tsuku-llm config set llm.backend cpu" in found.hint("vulkan", "tsuku-llm install")


# --- 11: WSL -------------------------------------------------------------------------------------


@pytest.fixture
def wsl(root: Path) -> Path:
    """WSL2 with Windows' GPU: no PCI, no kernel module, and /dev/dxg."""
    write(root, "/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    write(root, "/dev/dxg")
    return root


def test_situation_11_wsls_own_driver_comes_before_the_distributions(
    stubs: StubDrivers, wsl: Path, tmp_path: Path
) -> None:
    own = wsl / "usr" / "lib" / "wsl" / "lib" / "libcuda.so.1"
    own.parent.mkdir(parents=True)
    shutil.copy(stubs.library("cuda"), own)
    shadow = write(tmp_path, "/distribution/libcuda.so.1", b"no driver")
    path = f"{shadow.parent}:{stubs.none_installed()}"
    found = seen(stubs.host(root=wsl, environ={"LD_LIBRARY_PATH": path}, cuda_version=13040))
    assert found.hardware.api("cuda").library == str(own)
    assert found.hardware.evidence == ()
    assert found.selected == "cuda-13.4"
    assert found.problems == {}


def test_situation_11_dozen_comes_after_every_driver_of_a_card(
    stubs: StubDrivers, wsl: Path
) -> None:
    dozen = {"vulkan_driver_id": 23, "vulkan_name": "Microsoft Direct3D12 (NVIDIA GeForce RTX 4)"}
    host = stubs.only("cuda", "vulkan", root=wsl, cuda_version=13040, **dozen)
    found = seen(host)
    (gpu,) = found.hardware.api("vulkan").gpus
    assert gpu.kind is GpuKind.OTHER, "it says that it is a card"
    assert found.fitting == ["cuda-13.4", "cuda-12.8", "vulkan", "cpu"]


def test_situation_11_a_hanging_dozen_is_ended(stubs: StubDrivers, wsl: Path) -> None:
    host = stubs.only("cuda", "vulkan", root=wsl, vkEnumeratePhysicalDevices="hang")
    found = seen(host, limit=3.0)
    assert found.selected == "cuda-12.8"
    assert found.refused["vulkan"] == "driver-timed-out"


def test_situation_11_a_basic_render_driver_is_software(stubs: StubDrivers, wsl: Path) -> None:
    name = "Microsoft Direct3D12 (Microsoft Basic Render Driver)"
    found = seen(stubs.only("vulkan", root=wsl, vulkan_driver_id=23, vulkan_name=name))
    assert found.refused["vulkan"] == "software-only"
    assert found.selected == "cpu"


def test_situation_11_without_dxg_windows_is_blamed(stubs: StubDrivers, wsl: Path) -> None:
    (wsl / "dev" / "dxg").unlink()
    found = seen(stubs.only(root=wsl))
    assert found.selected == "cpu"
    assert "wsl --update" in found.problems["wsl-without-gpu"]


# --- 12: after a suspend -------------------------------------------------------------------------


def test_situation_12_a_driver_after_a_suspend_is_named_and_not_remembered(
    stubs: StubDrivers, root: Path, tmp_path: Path
) -> None:
    def planned(**settings: object) -> tuple[str, list[str]]:
        notes: list[str] = []
        facts = {"cuda_major": 8, "cuda_minor": 9, **settings}
        host = stubs.only("cuda", "nvml", root=with_module(root, "580.159.04"), **facts)
        report = install(session(tmp_path, host, notes.append), dry_run=True)
        return report.candidate.variant.name, notes

    name, notes = planned(cuInit=999)
    assert name == "cpu"
    assert "modprobe nvidia_uvm" in notes[0]
    assert planned() == ("cuda-13.4", []), "asked again, it answers"


@pytest.mark.parametrize(("code", "slug"), [(999, "cuda-after-suspend"), (802, "cuda-not-ready")])
def test_situation_12_a_temporary_problem_is_marked_as_temporary(
    stubs: StubDrivers, root: Path, code: int, slug: str
) -> None:
    write(root, "/dev/nvidia-uvm")
    found = seen(stubs.only("cuda", root=with_module(root, "580.159.04"), cuInit=code))
    assert list(found.problems) == [slug]
    assert [each.slug for each in found.hardware.all_problems if each.transient] == [slug]
    assert found.refused["cuda-12.8"] == slug
    assert found.detected == {"cpu"}


# --- 13: what lies around ------------------------------------------------------------------------


def test_situation_13_a_card_on_the_bus_of_a_container_is_not_a_gpu(
    stubs: StubDrivers, root: Path
) -> None:
    write(with_pci(root), "/.dockerenv")
    found = seen(stubs.only(root=root))
    assert found.detected == {"cpu"}
    assert found.selected == "cpu"
    assert found.refused["cuda-12.8"] == "container-without-gpu"
    assert "--gpus all" in found.problems["container-without-gpu"]


def test_situation_13_a_leftover_nvidia_smi_is_not_a_gpu(stubs: StubDrivers, root: Path) -> None:
    tool = write(root, "/usr/bin/nvidia-smi", "#!/bin/sh\necho 'NVIDIA GeForce RTX 3090'\n")
    tool.chmod(0o755)
    amd = {"vulkan_vendor": 0x1002, "vulkan_name": "AMD Radeon RX 7900 XTX"}
    environ = {"PATH": str(tool.parent)}
    host = stubs.only("vulkan", root=with_pci(root, "0x1002"), environ=environ, **amd)
    found = seen(host)
    assert found.detected == {"cpu", "vulkan"}
    assert found.device == "AMD Radeon RX 7900 XTX"
    assert found.problems == {}


def test_situation_13_an_api_that_answers_needs_no_bus(stubs: StubDrivers, root: Path) -> None:
    assert not (root / "sys").exists()
    write(root, "/.dockerenv")
    found = seen(stubs.only("cuda", root=root))
    assert found.selected == "cuda-12.8"
    assert found.problems == {}


# --- 14: floors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("floors", "fitting", "slug"),
    [
        (("2.39", "3.4.33"), ["vulkan", "cuda-13.4", "cuda-12.8", "cpu"], None),
        (("2.35", "3.4.30"), ["vulkan", "cpu"], "glibc"),
        (("2.39", "3.4.30"), ["vulkan", "cpu"], "libstdcxx"),
        (("2.34", "3.4.29"), [], "glibc"),
        (("2.31", "3.4.28"), [], "glibc"),
    ],
    ids=["ubuntu-24.04", "ubuntu-22.04", "old-gcc", "rhel-9", "debian-11"],
)
def test_situation_14_minimum_versions_are_checked_before_the_download(
    stubs: StubDrivers,
    tmp_path: Path,
    floors: tuple[str, str],
    fitting: list[str],
    slug: str | None,
) -> None:
    root = with_floors(tmp_path, *floors)
    # The same card through both drivers.
    card = {"cuda_version": 13040, "cuda_memory": 25_386_352_640}
    card |= {"cuda_name": "NVIDIA GeForce RTX 4090"}
    found = seen(stubs.only("cuda", "vulkan", root=root, **card))
    assert found.fitting == fitting
    assert found.refused.get("cuda-12.8") == slug
    assert found.detected == {"cpu", "cuda", "vulkan"}


def test_situation_14_rhel_9_is_told_of_its_libstdcxx(stubs: StubDrivers, tmp_path: Path) -> None:
    found = seen(stubs.only("vulkan", root=with_floors(tmp_path, "2.34", "3.4.29")))
    assert found.refused["vulkan"] == found.refused["cpu"] == "libstdcxx"
    with pytest.raises(SelectionError, match="no variant fits"):
        _ = found.selected


def test_situation_14_musl_runs_no_build(stubs: StubDrivers, tmp_path: Path) -> None:
    found = seen(stubs.only("vulkan", root=with_musl(tmp_path)))
    assert set(found.refused.values()) == {"libc"}
    assert "this system has musl" in found.selection.rejected[0].reason.text
    assert found.fitting == []


def mac(version: str, processor: str) -> Host:
    """A Mac, in the words of its worker."""
    opened = {"call": "open", "library": "/System/Library/Frameworks/Metal.framework/Metal"}
    listed = {"call": "MTLCopyAllDevices", "code": 0, "count": 1}
    device = {"call": "device", "code": 0, "index": 0, "name": processor, "unified": True}
    facts: tuple[Mapping[str, Any], ...] = (
        {"call": "kern.osproductversion", "value": version},
        {"call": "machdep.cpu.brand_string", "value": processor},
    )
    answers = {
        "macos": DriverAnswer(facts, "done"),
        "metal": DriverAnswer((opened, listed, device), "done"),
    }
    system = {"os": "darwin", "machine": "arm64", "release": "x"}
    return ReplayHost(Recording(system=system, answers=answers), "made")


# Upstream builds for macOS 13.3 (llama.cpp#26375; release.yml:106 of b11434).
@pytest.mark.parametrize("version", ["12.7.6", "13.2.1"])
def test_situation_14_an_old_macos_runs_no_build(version: str) -> None:
    found = seen(mac(version, "Apple M1"))
    assert found.refused == {"metal": "macos", "cpu": "macos"}
    assert found.detected == {"cpu", "metal"}


@pytest.mark.parametrize("version", ["13.3", "14.8", "15.6.1"])
def test_situation_14_macos_from_13_3_on_gets_metal(version: str) -> None:
    found = seen(mac(version, "Apple M1"))
    assert (found.selected, found.device) == ("metal", "Apple M1")


@pytest.mark.parametrize("processor", ["Apple M4", "Apple A18 Pro"])
def test_situation_14_the_processors_name_does_not_matter(processor: str) -> None:
    found = seen(mac("26.1", processor))
    assert (found.selected, found.device) == ("metal", processor)


# --- 15: Jetson ----------------------------------------------------------------------------------


class Arm64(LocalHost):
    """This machine's files and drivers under the name of another processor."""

    def __init__(self, host: LocalHost) -> None:
        super().__init__(Path(host._root), host._environ)

    def system(self) -> Mapping[str, Raw]:
        return {**super().system(), "machine": "aarch64"}


def jetson(stubs: StubDrivers, root: Path, minor: int, version: int) -> Host:
    write(root, "/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: x\n")
    major = 8 if minor == 7 else 7
    facts = {"cuda_major": major, "cuda_minor": minor, "cuda_integrated": 1, "cuda_name": "Orin"}
    return Arm64(stubs.only("cuda", root=root, cuda_version=version, **facts))


@pytest.mark.parametrize("minor", [2, 7], ids=["xavier", "orin"])
@pytest.mark.parametrize("version", [12060, 13000, 13040])
def test_situation_15_a_jetson_does_not_get_the_build_of_arm64_servers(
    stubs: StubDrivers, root: Path, minor: int, version: int
) -> None:
    found = seen(jetson(stubs, root, minor, version))
    assert found.hardware.platform == "linux-arm64"
    assert found.detected == {"cpu", "cuda"}
    assert found.refused == {"cuda-13.4": "jetson", "vulkan": "api-absent"}
    assert found.selected == "cpu"
    assert "JetPack" in found.problems["jetson"]


def test_situation_15_an_arm64_server_gets_the_arm64_build(stubs: StubDrivers, root: Path) -> None:
    gb10 = {"cuda_major": 12, "cuda_minor": 1, "cuda_integrated": 1, "cuda_name": "NVIDIA GB10"}
    found = seen(Arm64(stubs.only("cuda", root=root, **gb10)))
    assert (found.selected, found.device) == ("cuda-13.4", "NVIDIA GB10")
    assert found.problems == {}


# --- cards and runtimes that do not match ---------------------------------------------------------


@pytest.mark.parametrize("prefer", ["portable", "native"])
def test_a_large_card_of_cuda_is_not_left_for_a_small_one_of_vulkan(
    stubs: StubDrivers, root: Path, prefer: str
) -> None:
    """An H200 without its Vulkan driver, as in a container for computing, beside a small card."""
    small = {"vulkan_name": "AMD Radeon RX 550", "vulkan_vendor": 0x1002, "vulkan_memory": 2**31}
    hardware = probe(stubs.only("cuda", "vulkan", root=root, **small))
    found = Seen(hardware, select(RELEASE, hardware, Request(prefer=prefer)))
    assert found.fitting == ["cuda-12.8", "vulkan", "cpu"]
    assert found.device == "NVIDIA H200"


@pytest.mark.parametrize("version", [50_731_921, 60_342_134])
def test_an_older_rocm_than_the_builds_is_refused_before_any_download(
    stubs: StubDrivers, root: Path, version: int
) -> None:
    found = seen(stubs.only("hip", root=root, hip_version=version))
    assert found.detected == {"cpu", "rocm"}
    assert found.fitting == ["cpu"]
    assert found.refused["rocm-10.0"] == "rocm-runtime"


def test_an_integrated_gpu_without_16_bit_storage_is_not_offered_vulkan(
    stubs: StubDrivers, root: Path
) -> None:
    found = seen(stubs.only("vulkan", root=root, vulkan_type=1, vulkan_storage16=0))
    assert found.detected == {"cpu", "vulkan"}
    assert found.fitting == ["cpu"]
    assert found.refused["vulkan"] == "vulkan-16bit-storage"


# --- drivers that misbehave, and the rest of the machine -----------------------------------------

ALL = ("cuda", "nvml", "vulkan", "level_zero", "hip", "opencl")


def states(hardware: Hardware) -> dict[str, ApiState]:
    return {api.name: api.state for api in hardware.apis if api.name != "openvino"}


def test_a_hanging_driver_costs_its_time_limit_once(
    stubs: StubDrivers, root: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    host = stubs.only(*ALL, root=root, cuInit="hang", calls=calls)
    found = states(probe(host, limit=3.0))
    assert found.pop("cuda") is ApiState.TIMED_OUT
    assert set(found.values()) == {ApiState.OK}
    made = calls.read_text().split()
    assert made.count("cuInit") == 1, "what hung is not asked again"
    assert made.count("vkCreateInstance") == made.count("hipGetDeviceCount") == 1


def test_a_release_with_every_backend_judges_each_by_its_own_api(
    stubs: StubDrivers, root: Path
) -> None:
    intel = {"cl_vendor": 0x8086, "cl_name": "Intel(R) Arc(TM) B580 Graphics", "cl_unified": 0}
    found = seen(stubs.only("level_zero", "opencl", root=root, **intel), tag="b11347")
    assert found.detected == {"cpu", "sycl", "opencl", "openvino"}
    assert found.fitting == ["sycl-fp32", "sycl-fp16", "openvino", "cpu"]
    assert set(found.refused.values()) == {"api-absent"}
