"""ROCm, Level Zero, OpenCL and OpenVINO as a real child hears them from stub libraries."""

import shutil
from pathlib import Path

import pytest
from support.fake_roots import with_nodes
from support.stub_drivers import StubDrivers
from support.tools import require_library

from tsuku_llm.machine.hardware import Api, ApiState, GpuKind
from tsuku_llm.machine.host import DriverAnswer, LocalHost
from tsuku_llm.machine.snapshot import Recording, ReplayHost
from tsuku_llm.probe import amd, probe
from tsuku_llm.probe.facts.machine import MachineKind


def slug(api: Api) -> str | None:
    return api.problem.slug if api.problem else None


# --- ROCm --------------------------------------------------------------------------------


def test_an_amd_card_has_its_target_and_memory(stubs: StubDrivers) -> None:
    api = probe(stubs.host("hip")).api("rocm")
    assert (api.state, api.version) == (ApiState.OK, "7.0")
    (gpu,) = api.gpus
    assert (gpu.name, gpu.gfx, gpu.kind) == ("AMD Radeon RX 7900 XTX", "gfx1100", GpuKind.DISCRETE)
    assert gpu.memory == 25753026560


def test_row_6_an_apu_that_comes_first_does_not_hide_the_card(stubs: StubDrivers) -> None:
    gpus = probe(stubs.host("hip", hip_count=2, hip_gfx_0="gfx1036")).api("rocm").gpus
    assert [(gpu.gfx, gpu.kind) for gpu in gpus] == [
        ("gfx1036", GpuKind.INTEGRATED),
        ("gfx1100", GpuKind.DISCRETE),
    ]


def test_the_kernel_gives_the_target_if_the_runtime_does_not(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    host = stubs.host("hip", root=with_nodes(tmp_path, 110501), hipGetDevicePropertiesR0600=1)
    (gpu,) = probe(host).api("rocm").gpus
    assert (gpu.gfx, gpu.kind) == ("gfx1151", GpuKind.INTEGRATED)


def test_the_kernels_list_is_not_mixed_with_a_filtered_one(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    root = with_nodes(tmp_path, 100306, 110000)
    (gpu,) = probe(stubs.host("hip", root=root, hipGetDevicePropertiesR0600=1)).api("rocm").gpus
    assert gpu.gfx is None


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ("110000", "gfx1100"),
        ("90010", "gfx90a"),
        ("90402", "gfx942"),
        ("100300", "gfx1030"),
        ("110501", "gfx1151"),
        ("120001", "gfx1201"),
        ("80003", "gfx803"),
        ("0", None),
        ("-1", None),
        ("x", None),
        ("\u00b2", None),
        ("99999999", None),
        (None, None),
    ],
)
def test_the_kernels_numbers_are_targets(number: str | None, name: str | None) -> None:
    assert amd.gfx_name(number) == name


@pytest.mark.parametrize(
    ("number", "version"), [(70051831, "7.0"), (60342134, "6.3"), (0, None), ("x", None)]
)
def test_hip_versions(number: object, version: str | None) -> None:
    assert amd.hip_version(number) == version


def test_an_amd_card_without_rocm_is_named(tmp_path: Path) -> None:
    api = probe(LocalHost(with_nodes(tmp_path, 110000), {})).api("rocm")
    assert (api.state, slug(api)) == (ApiState.ABSENT, "rocm-runtime-missing")


def test_a_compute_device_that_may_not_be_opened_is_named() -> None:
    opened = {"call": "open", "library": "/opt/rocm/lib/libamdhip64.so.7"}
    answer = DriverAnswer((opened, {"call": "hipGetDeviceCount", "code": 100}), "done")
    assert slug(amd.parse(amd.RawAmd(hip=answer, access="r"), MachineKind())) == "gpu-permission"


def test_a_container_that_was_not_given_the_card(stubs: StubDrivers, tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    host = stubs.host("hip", root=with_nodes(tmp_path, 110000), hipGetDeviceCount=100)
    api = probe(host).api("rocm")
    assert slug(api) == "container-without-gpu"
    assert api.problem
    assert "/dev/kfd" in api.problem.fix


@pytest.mark.parametrize(("code", "name"), [(100, "rocm-no-device"), (3, "rocm-error")])
def test_errors_of_hip(stubs: StubDrivers, tmp_path: Path, code: int, name: str) -> None:
    api = probe(stubs.host("hip", root=tmp_path, hipGetDeviceCount=code)).api("rocm")
    assert (api.state, slug(api)) == (ApiState.FAILED, name)


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
@pytest.mark.parametrize("cards", [0, 1])
def test_a_variable_that_hides_amd_s_cards_is_named(
    stubs: StubDrivers, tmp_path: Path, variable: str, cards: int
) -> None:
    """Without a card in the kernel's list the variable hides nothing."""
    root = with_nodes(tmp_path, *[110000] * cards)
    environ = {variable: "", "LD_LIBRARY_PATH": str(stubs.library("hip").parent)}
    api = probe(stubs.host(root=root, environ=environ, hipGetDeviceCount=100)).api("rocm")
    assert slug(api) == ("rocm-hidden" if cards else "rocm-no-device")
    assert api.problem
    assert (variable in api.problem.fix) == bool(cards)


def test_an_endless_number_of_a_recorded_node_is_ignored() -> None:
    nodes = (f"{amd.NODES}", ("0", "9" * 5000, "x"))
    recording = Recording({"os": "linux", "machine": "x86_64"}, folders=dict([nodes]))
    assert probe(ReplayHost(recording, "x")).api("rocm").gpus == ()


@pytest.mark.parametrize("how", ["crash", "hang"])
def test_a_broken_hip_loses_only_its_own_answers(stubs: StubDrivers, how: str) -> None:
    hardware = probe(stubs.host("hip", "opencl", hipGetDeviceCount=how), limit=3.0)
    assert hardware.api("rocm").state in (ApiState.CRASHED, ApiState.TIMED_OUT)
    assert hardware.api("opencl").gpus


# --- Intel -------------------------------------------------------------------------------


def test_an_intel_card_has_its_memory(stubs: StubDrivers) -> None:
    api = probe(stubs.host("level_zero")).api("level_zero")
    assert (api.state, api.version) == (ApiState.OK, "1.6")
    (gpu,) = api.gpus
    assert (gpu.name, gpu.kind) == ("Intel(R) Arc(TM) B580 Graphics", GpuKind.DISCRETE)
    assert (gpu.memory, gpu.vendor_id, gpu.device_id) == (12168933376, 0x8086, 0xE20B)


def test_an_integrated_intel_gpu(stubs: StubDrivers) -> None:
    (gpu,) = probe(stubs.host("level_zero", ze_flags=1)).api("level_zero").gpus
    assert gpu.kind is GpuKind.INTEGRATED


def test_an_npu_is_used_by_openvino_only(stubs: StubDrivers) -> None:
    hardware = probe(stubs.host("level_zero", ze_type=5, ze_name="Intel(R) AI Boost"))
    assert hardware.api("level_zero").gpus == ()
    (npu,) = hardware.api("openvino").gpus
    assert (npu.api, npu.name, npu.kind) == ("openvino", "Intel(R) AI Boost", GpuKind.INTEGRATED)


@pytest.mark.parametrize("settings", [{"zeInit": 0x78000001}, {"zeDriverGet": 0x70020000}])
def test_errors_of_level_zero(stubs: StubDrivers, settings: dict[str, object]) -> None:
    api = probe(stubs.host("level_zero", **settings)).api("level_zero")
    assert (api.state, api.gpus) == (ApiState.FAILED, ())


@pytest.mark.parametrize("bus", [True, False])
def test_a_level_zero_loader_without_intel_s_driver_is_told(
    stubs: StubDrivers, tmp_path: Path, *, bus: bool
) -> None:
    """intel/compute-runtime#832: libze1 is installed, and libze-intel-gpu1 is not."""
    if bus:
        on_bus(tmp_path, "0x8086", "0x4c8a", "i915")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=ubuntu\nID_LIKE=debian\n", "utf-8")
    host = stubs.host("level_zero", root=tmp_path, zeInit=0x78000001)
    problem = probe(host).api("level_zero").problem
    assert (problem is not None) == bus
    assert problem is None or "apt install libze-intel-gpu1" in problem.fix


def test_a_driver_of_level_zero_that_finds_no_gpu_is_not_missing(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    on_bus(tmp_path, "0x8086", "0x4c8a", "i915")
    driver = tmp_path / "usr/lib/libze_intel_gpu.so.1"
    driver.parent.mkdir(parents=True)
    shutil.copy(stubs.library("level_zero"), driver)
    host = stubs.host("level_zero", root=tmp_path, zeInit=0x78000001)
    assert probe(host).api("level_zero").problem is None


def on_bus(root: Path, vendor: str, device: str, driver: str) -> None:
    card = root / "sys/bus/pci/devices/0000:00:02.0"
    card.mkdir(parents=True)
    for name, value in {"class": "0x030000", "vendor": vendor, "device": device}.items():
        (card / name).write_text(value + "\n", "utf-8")
    (card / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")


# --- OpenCL ------------------------------------------------------------------------------


def test_an_adreno_is_seen_through_opencl(stubs: StubDrivers) -> None:
    api = probe(stubs.host("opencl")).api("opencl")
    assert (api.state, api.version) == (ApiState.OK, "3.0")
    (gpu,) = api.gpus
    assert (gpu.name, gpu.kind) == ("QUALCOMM Adreno(TM) 750", GpuKind.INTEGRATED)
    assert (gpu.memory, gpu.vendor_id, gpu.api_version) == (8 << 30, 0x5143, "3.0")
    assert gpu.driver == "E031.45"


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"cl_type": 2}, GpuKind.SOFTWARE),
        ({"cl_type": 4, "cl_unified": 0}, GpuKind.DISCRETE),
        ({"cl_type": 8}, GpuKind.OTHER),
    ],
)
def test_kinds_of_opencl_devices(
    stubs: StubDrivers, settings: dict[str, object], kind: GpuKind
) -> None:
    (gpu,) = probe(stubs.host("opencl", **settings)).api("opencl").gpus
    assert gpu.kind is kind


def test_devices_are_numbered_through_all_platforms(stubs: StubDrivers) -> None:
    gpus = probe(stubs.host("opencl", cl_platforms=2, cl_count=2)).api("opencl").gpus
    assert [gpu.uuid for gpu in gpus[:2]] == ["c1" * 16, "c2" * 16]
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]


def test_a_loader_without_a_platform_is_named(stubs: StubDrivers) -> None:
    api = probe(stubs.host("opencl", clGetPlatformIDs=-1001)).api("opencl")
    assert (api.state, slug(api)) == (ApiState.FAILED, "opencl-loader-without-icd")


def test_intel_gpus_of_opencl_count_for_openvino(stubs: StubDrivers) -> None:
    host = stubs.host("opencl", cl_vendor=0x8086, cl_name="Intel(R) Arc(TM) Graphics")
    (gpu,) = probe(host).api("openvino").gpus
    assert (gpu.name, gpu.api) == ("Intel(R) Arc(TM) Graphics", "openvino")
    assert probe(stubs.host("opencl")).api("openvino").state is ApiState.ABSENT


def test_real_pocl_is_seen_and_is_software() -> None:
    require_library("OpenCL")
    require_library("pocl")
    gpus = probe(LocalHost()).api("opencl").gpus
    assert GpuKind.SOFTWARE in {gpu.kind for gpu in gpus}
