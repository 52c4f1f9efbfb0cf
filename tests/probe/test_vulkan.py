"""Vulkan as a real child hears it from a stub loader, and the situations around drivers' files."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_roots import ICD, with_icd
from support.program import SUDO
from support.stub_drivers import StubDrivers, build
from support.tools import require_library

from tsuku_llm.machine.hardware import Api, ApiState, Evidence, GpuKind
from tsuku_llm.machine.host import DriverAnswer, LocalHost
from tsuku_llm.probe import probe
from tsuku_llm.probe.facts.machine import MachineKind
from tsuku_llm.probe.vulkan import RawVulkan, parse
from tsuku_llm.probe.worker import icd


def vulkan(host: LocalHost, limit: float = 5.0) -> Api:
    return probe(host, limit).api("vulkan")


def slug(api: Api) -> str | None:
    return api.problem.slug if api.problem else None


def test_a_vulkan_device_is_reported_with_all_its_facts(stubs: StubDrivers) -> None:
    api = vulkan(stubs.host("vulkan"))
    assert (api.state, api.version) == (ApiState.OK, "1.3.250")
    assert api.library == str(stubs.library("vulkan"))
    (gpu,) = api.gpus
    assert (gpu.name, gpu.kind) == ("NVIDIA GeForce RTX 4090", GpuKind.DISCRETE)
    assert gpu.memory == 25757220864  # not the system's heap, which is larger
    assert (gpu.vendor_id, gpu.device_id, gpu.api_version) == (0x10DE, 0x2684, "1.3.7")
    assert (gpu.driver, gpu.uuid) == ("NVIDIA 580.159.04", "b1" * 16)
    assert Evidence("vkCreateInstance", "0 (VK_SUCCESS)") in api.evidence


def test_the_driver_of_a_vulkan_1_1_device_comes_from_an_extension(
    stubs: StubDrivers,
) -> None:
    (gpu,) = vulkan(stubs.host("vulkan", vulkan_api=1 << 22 | 1 << 12)).gpus
    assert (gpu.api_version, gpu.driver) == ("1.1.0", "NVIDIA 580.159.04")


def test_a_vulkan_1_0_device_is_listed_without_details(stubs: StubDrivers) -> None:
    (gpu,) = vulkan(stubs.host("vulkan", vulkan_api=1 << 22)).gpus
    assert (gpu.api_version, gpu.driver, gpu.uuid) == ("1.0.0", None, None)


def test_each_device_says_whether_it_stores_16_bit_values(stubs: StubDrivers) -> None:
    """Ivy Bridge's driver has Vulkan 1.2 without them, and ggml then passes the device over."""
    host = stubs.host("vulkan", vulkan_count=2, vulkan_storage16_1=0)
    assert [gpu.storage_16bit for gpu in vulkan(host).gpus] == [True, False]


@pytest.mark.parametrize(
    ("api", "told"), [(1 << 22 | 1 << 12, False), (1 << 22, None)], ids=["1.1", "1.0"]
)
def test_16_bit_storage_is_asked_of_vulkan_1_1_devices(
    stubs: StubDrivers, api: int, told: bool | None
) -> None:
    (gpu,) = vulkan(stubs.host("vulkan", vulkan_api=api, vulkan_storage16=0)).gpus
    assert gpu.storage_16bit is told


@pytest.mark.parametrize("junk", [None, 0, 1, "true", [True]])
def test_16_bit_storage_of_another_type_is_unknown(junk: object) -> None:
    lines = (
        {"call": "open", "library": "/usr/lib/libvulkan.so.1.3.239"},
        {"call": "vkCreateInstance", "code": 0},
        {"call": "vkEnumeratePhysicalDevices", "code": 0, "count": 1},
        {"call": "device", "index": 0, "name": "x", "storage16": junk},
    )
    (gpu,) = parse(RawVulkan(DriverAnswer(lines, "done")), MachineKind()).gpus
    assert gpu.storage_16bit is None


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"vulkan_type": 1}, GpuKind.INTEGRATED),
        ({"vulkan_type": 2}, GpuKind.DISCRETE),
        ({"vulkan_type": 3}, GpuKind.VIRTUAL),
        ({"vulkan_type": 4}, GpuKind.SOFTWARE),
        ({"vulkan_type": 0}, GpuKind.OTHER),
        ({"vulkan_type": 99}, GpuKind.OTHER),
        ({"vulkan_type": 2, "vulkan_driver_id": 13}, GpuKind.SOFTWARE),
        ({"vulkan_type": 2, "vulkan_driver_id": 14}, GpuKind.SOFTWARE),
        ({"vulkan_type": 2, "vulkan_driver_id": 23}, GpuKind.OTHER),
        ({"vulkan_type": 3, "vulkan_name": "Virtio-GPU Venus (llvmpipe)"}, GpuKind.SOFTWARE),
        ({"vulkan_name": "Microsoft Direct3D12 (NVIDIA GeForce RTX 3080)"}, GpuKind.OTHER),
        ({"vulkan_name": "Microsoft Direct3D12 (Microsoft Basic Render Driver)"}, GpuKind.SOFTWARE),
    ],
)
def test_kinds_of_vulkan_devices(
    stubs: StubDrivers, settings: dict[str, object], kind: GpuKind
) -> None:
    (gpu,) = vulkan(stubs.host("vulkan", **settings)).gpus
    assert gpu.kind is kind


def test_row_5_a_hybrid_machine_shows_both_gpus(stubs: StubDrivers) -> None:
    host = stubs.host(
        "vulkan", vulkan_count=2, vulkan_type_0=1, vulkan_name_0="Intel(R) Iris(R) Xe"
    )
    gpus = vulkan(host).gpus
    assert [gpu.kind for gpu in gpus] == [GpuKind.INTEGRATED, GpuKind.DISCRETE]
    assert gpus[0].uuid != gpus[1].uuid


def test_ten_devices(stubs: StubDrivers) -> None:
    assert len(vulkan(stubs.host("vulkan", vulkan_count=10)).gpus) == 10


def test_row_8_only_llvmpipe(stubs: StubDrivers) -> None:
    host = stubs.host("vulkan", vulkan_type=4, vulkan_name="llvmpipe (LLVM 15.0.6, 256 bits)")
    api = vulkan(host)
    assert (slug(api), api.hardware_gpus, len(api.gpus)) == ("software-only", (), 1)


@pytest.mark.parametrize(
    ("call", "code"), [("vkCreateInstance", -9), ("vkEnumeratePhysicalDevices", -3)]
)
def test_row_8_a_loader_without_a_driver(
    stubs: StubDrivers, tmp_path: Path, call: str, code: int
) -> None:
    api = vulkan(stubs.host("vulkan", root=tmp_path, **{call: code}))
    assert (api.state, slug(api)) == (ApiState.FAILED, "vulkan-loader-without-icd")
    assert any(item.call == call and str(code) in item.result for item in api.evidence)


def test_a_driver_that_finds_no_device(stubs: StubDrivers, tmp_path: Path) -> None:
    root = with_icd(tmp_path, str(stubs.library("hip")))
    assert slug(vulkan(stubs.host("vulkan", root=root, vulkan_count=0))) == "vulkan-no-device"


def test_another_error_keeps_its_code(stubs: StubDrivers, tmp_path: Path) -> None:
    api = vulkan(stubs.host("vulkan", root=tmp_path, vkCreateInstance=-1))
    assert slug(api) == "vulkan-error"
    assert api.problem
    assert "-1 (VK_ERROR_OUT_OF_HOST_MEMORY)" in api.problem.text


@pytest.fixture
def no_loader(tmp_path: Path) -> dict[str, str]:
    """Hide a real loader behind a broken file, as an installed one is found otherwise."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "libvulkan.so.1").write_bytes(b"")
    return {"LD_LIBRARY_PATH": str(folder)}


def test_a_loader_that_does_not_load_is_broken(no_loader: dict[str, str]) -> None:
    api = vulkan(LocalHost(None, no_loader))
    assert (api.state, slug(api)) == (ApiState.FAILED, "vulkan-loader-broken")


def test_the_h200s_driver_without_its_dependency(stubs: StubDrivers, tmp_path: Path) -> None:
    root = with_icd(tmp_path, "libGLX_nvidia.so.0")
    api = vulkan(stubs.host("vulkan", root=root, vkCreateInstance=-9))
    assert slug(api) == "vulkan-icd-broken"
    assert api.problem
    assert "libGLX_nvidia.so.0 does not load" in api.problem.text


def test_a_library_that_nvidias_driver_opens_later_is_named(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    """On the H200 the driver's library loads, and without libEGL finds no device."""
    driver = tmp_path / "libGLX_nvidia.so.0"
    driver.symlink_to(stubs.library("hip"))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "libEGL.so.1").write_bytes(b"")
    root = with_icd(tmp_path, str(driver))
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "os-release").write_text('ID="opensuse-leap"\n')
    paths = f"{stubs.library('vulkan').parent}:{hidden}"
    environ = {"LD_LIBRARY_PATH": paths}
    api = vulkan(stubs.host(root=root, environ=environ, vkCreateInstance=-9))
    assert slug(api) == "vulkan-icd-broken"
    assert api.problem
    assert api.problem.fix == f"{SUDO}zypper install libglvnd"


def test_a_missing_dependency_of_a_driver_is_named(stubs: StubDrivers, tmp_path: Path) -> None:
    driver = stubs.library_needing("libnowhere.so.6")
    api = vulkan(stubs.host("vulkan", root=with_icd(tmp_path, str(driver)), vkCreateInstance=-9))
    assert slug(api) == "vulkan-icd-broken"
    assert api.problem
    assert "libnowhere.so.6" in api.problem.text
    assert api.problem.fix == "install what provides libnowhere.so.6"


def test_a_vulkan_1_0_loader_counts() -> None:
    lines = (
        {"call": "open", "library": "/usr/lib/libvulkan.so.1.0.0"},
        {"call": "vkEnumerateInstanceVersion", "error": "the library has no such function"},
        {"call": "vkCreateInstance", "code": 0},
        {"call": "vkEnumeratePhysicalDevices", "code": 0, "count": 0},
    )
    assert parse(RawVulkan(DriverAnswer(lines, "done")), MachineKind()).version == "1.0"


def test_row_9_drivers_without_a_loader_need_one_package() -> None:
    absent = "libvulkan.so.1: cannot open shared object file: No such file or directory"
    opened = {"call": "open", "library": None, "names": ["libvulkan.so.1"], "errors": [absent]}
    icd = {"call": "icd", "file": ICD.format("radeon"), "library": "libvulkan_radeon.so"}
    api = parse(RawVulkan(DriverAnswer((opened, icd), "done")), MachineKind())
    assert (api.state, slug(api)) == (ApiState.ABSENT, "vulkan-icd-without-loader")
    assert api.problem
    assert api.problem.fix == "install the Vulkan loader (libvulkan.so.1)"
    debian = parse(RawVulkan(DriverAnswer((opened, icd), "done")), MachineKind(packages="debian"))
    assert debian.problem
    assert debian.problem.fix == f"{SUDO}apt install libvulkan1"


def test_a_library_of_the_other_word_size_is_not_blamed() -> None:
    error = "/usr/lib/libvulkan_radeon.so: wrong ELF class: ELFCLASS32"
    lines = (
        {"call": "open", "library": "/usr/lib/libvulkan.so.1.3.239"},
        {"call": "vkCreateInstance", "code": -9},
        {"call": "icd", "file": "x.i686.json", "library": "libvulkan_radeon.so", "error": error},
    )
    assert slug(parse(RawVulkan(DriverAnswer(lines, "done")), MachineKind())) == "vulkan-no-device"


def test_a_known_dependency_is_named_with_its_package() -> None:
    error = "libX11.so.6: cannot open shared object file: No such file or directory"
    lines = (
        {"call": "open", "library": "/usr/lib/libvulkan.so.1.3.239"},
        {"call": "vkCreateInstance", "code": -9},
        {"call": "icd", "file": "x.json", "library": "libGLX_nvidia.so.0", "error": error},
    )
    api = parse(RawVulkan(DriverAnswer(lines, "done")), MachineKind(packages="fedora"))
    assert api.problem
    assert (api.problem.slug, api.problem.fix) == ("vulkan-icd-broken", f"{SUDO}dnf install libX11")


def test_a_driver_of_the_other_word_size_is_not_blamed(stubs: StubDrivers, tmp_path: Path) -> None:
    root = with_icd(tmp_path, "libnowhere.so", library_arch="32")
    api = vulkan(stubs.host("vulkan", root=root, vkCreateInstance=-9))
    assert slug(api) == "vulkan-no-device"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"ICD": 1}', '{"ICD": {"library_path": 7}}', "[" * 50000]
)
def test_a_junk_driver_file_is_ignored(stubs: StubDrivers, tmp_path: Path, content: str) -> None:
    root = with_icd(tmp_path, "x")
    (root / ICD.format("nvidia").lstrip("/")).write_text(content)
    assert vulkan(stubs.host("vulkan", root=root)).gpus


def test_a_driver_given_by_variable_is_the_only_one_looked_at(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    root = with_icd(tmp_path, "libmissing.so")
    with_icd(tmp_path, str(stubs.library("hip")), "chosen")
    environ = {"VK_DRIVER_FILES": ICD.format("chosen"), "LD_LIBRARY_PATH": _folder(stubs)}
    api = vulkan(stubs.host("vulkan", root=root, environ=environ, vulkan_count=0))
    assert slug(api) == "vulkan-no-device"


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"])
def test_a_variable_that_names_a_missing_file_is_the_cause(
    stubs: StubDrivers, tmp_path: Path, variable: str
) -> None:
    environ = {variable: "/nowhere.json", "LD_LIBRARY_PATH": _folder(stubs)}
    api = vulkan(stubs.host(root=tmp_path, environ=environ, vkCreateInstance=-9))
    assert slug(api) == "vulkan-driver-file-missing"
    assert api.problem
    assert variable in api.problem.text
    assert "/nowhere.json" in api.problem.text


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"])
@pytest.mark.parametrize("value", ["", ":"])
def test_a_variable_that_names_nothing_is_the_cause(
    stubs: StubDrivers, tmp_path: Path, variable: str, value: str
) -> None:
    """The loader then looks nowhere: no device with NVIDIA's driver and with lavapipe (1.3.239)."""
    root = with_icd(tmp_path, str(stubs.library("hip")))
    environ = {variable: value, "LD_LIBRARY_PATH": _folder(stubs)}
    api = vulkan(stubs.host(root=root, environ=environ, vkCreateInstance=-9))
    assert slug(api) == "vulkan-driver-file-missing"
    assert api.problem
    assert f"{variable} is set but names no driver" in api.problem.text
    assert any((item.call, item.result) == (variable, "names no driver") for item in api.evidence)


def test_an_empty_variable_that_adds_drivers_changes_nothing(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    root = with_icd(tmp_path, str(stubs.library("hip")))
    environ = {"VK_ADD_DRIVER_FILES": "", "LD_LIBRARY_PATH": _folder(stubs)}
    assert (
        slug(vulkan(stubs.host(root=root, environ=environ, vulkan_count=0))) == "vulkan-no-device"
    )


def test_without_a_loader_a_missing_file_is_no_driver() -> None:
    """Without it, and with a driver's file, the fix would be the loader."""
    absent = "libvulkan.so.1: cannot open shared object file: No such file or directory"
    opened = {"call": "open", "library": None, "names": ["libvulkan.so.1"], "errors": [absent]}
    missing = {"call": "icd", "file": "/x", "variable": "VK_DRIVER_FILES", "missing": True}
    api = parse(RawVulkan(DriverAnswer((opened, missing), "done")), MachineKind())
    assert (api.state, api.problem) == (ApiState.ABSENT, None)


def test_a_variable_may_name_a_folder_of_drivers(stubs: StubDrivers, tmp_path: Path) -> None:
    root = with_icd(tmp_path, str(stubs.library("hip")))
    environ = {"VK_DRIVER_FILES": "/usr/share/vulkan/icd.d", "LD_LIBRARY_PATH": _folder(stubs)}
    api = vulkan(stubs.host(root=root, environ=environ, vulkan_count=0))
    assert slug(api) == "vulkan-no-device"
    assert any(item.call.startswith(ICD.format("nvidia")) for item in api.evidence)


# --- files that the loader passes over ---------------------------------------------------


def breaking(tmp_path: Path, body: str) -> str:
    """A driver's library that does this as soon as it is loaded."""
    source = tmp_path / "breaking.c"
    start = "__attribute__((constructor)) static void start(void)"
    source.write_text(f"#include <stdlib.h>\n#include <unistd.h>\n{start} {{ {body} }}\n")
    library = tmp_path / "libbreaking.so"
    build(source, library)
    return str(library)


CRASHES, HANGS = "abort();", "for (;;) pause();"
FILTERS = [
    {"VK_LOADER_DRIVERS_DISABLE": "*bad*"},
    {"VK_LOADER_DRIVERS_DISABLE": "x.json,BAD_icd.json"},
    {"VK_LOADER_DRIVERS_DISABLE": "bad*"},
    {"VK_LOADER_DRIVERS_DISABLE": "~all~"},
    {"VK_LOADER_DRIVERS_SELECT": "*good_icd.json"},
]


@pytest.mark.parametrize("environ", FILTERS, ids=lambda environ: "=".join(*environ.items()))
def test_a_file_that_a_filter_leaves_out_is_not_opened(
    stubs: StubDrivers, tmp_path: Path, environ: dict[str, str]
) -> None:
    root = with_icd(tmp_path, breaking(tmp_path, CRASHES), "bad")
    paths = {"LD_LIBRARY_PATH": _folder(stubs)}
    host = stubs.host(root=root, environ=environ | paths, vkCreateInstance=-9)
    api = vulkan(host)
    assert (api.state, slug(api)) == (ApiState.FAILED, "vulkan-driver-hidden")
    assert api.problem
    assert f"{next(iter(environ))} makes the Vulkan loader leave out" in api.problem.text
    assert "bad_icd.json" in api.problem.text


@pytest.mark.parametrize("glob", ["", ",", "good*", "*good", "bad", "icd.json", "b*d_icd.json"])
def test_other_filters_leave_a_file_in(stubs: StubDrivers, tmp_path: Path, glob: str) -> None:
    root = with_icd(tmp_path, str(stubs.library("hip")), "bad")
    environ = {"VK_LOADER_DRIVERS_DISABLE": glob, "LD_LIBRARY_PATH": _folder(stubs)}
    assert slug(vulkan(stubs.host(root=root, environ=environ, vulkan_count=0))) == (
        "vulkan-no-device"
    )


GLOBS = st.from_regex(r"\*?[ab._]{1,4}\*?", fullmatch=True)


@given(st.from_regex(r"[abAB._]{1,6}", fullmatch=True), st.lists(GLOBS, max_size=3))
def test_patterns_with_stars_at_their_ends_match_as_in_a_shell(name: str, globs: list[str]) -> None:
    expected = any(fnmatchcase(name.lower(), glob) for glob in globs)
    assert icd._matches(name, ",".join(globs).upper()) == expected


def test_a_hidden_software_driver_is_not_the_cause(stubs: StubDrivers, tmp_path: Path) -> None:
    root = with_icd(tmp_path, "libvulkan_lvp.so", "lvp")
    environ = {"VK_LOADER_DRIVERS_DISABLE": "*lvp*", "LD_LIBRARY_PATH": _folder(stubs)}
    assert slug(vulkan(stubs.host(root=root, environ=environ, vulkan_count=0))) == (
        "vulkan-no-device"
    )


@pytest.mark.parametrize("body", [CRASHES, HANGS], ids=["crashes", "hangs"])
@pytest.mark.parametrize("kind", [1, 2], ids=["integrated", "discrete"])
def test_a_library_that_breaks_takes_no_device_of_the_loader(
    stubs: StubDrivers, tmp_path: Path, body: str, kind: int
) -> None:
    root = with_icd(tmp_path, breaking(tmp_path, body), "bad")
    api = vulkan(stubs.host("vulkan", root=root, vulkan_type=kind), limit=1.0)
    assert (api.state, len(api.hardware_gpus), api.problem) == (ApiState.OK, 1, None)


def test_a_library_that_breaks_explains_a_missing_gpu(stubs: StubDrivers, tmp_path: Path) -> None:
    root = with_icd(tmp_path, breaking(tmp_path, CRASHES), "bad")
    api = vulkan(stubs.host("vulkan", root=root, vulkan_type=4))
    assert (api.state, slug(api), len(api.gpus)) == (ApiState.OK, "driver-crashed", 1)
    assert api.problem
    assert "libbreaking.so" in api.problem.text


def _folder(stubs: StubDrivers) -> str:
    return str(stubs.library("vulkan").parent)


def test_a_render_node_that_may_not_be_opened(stubs: StubDrivers, tmp_path: Path) -> None:
    node = tmp_path / "dev" / "dri" / "renderD128"
    node.mkdir(parents=True)
    host = NoAccess(stubs.host("vulkan", root=tmp_path, vulkan_count=0))
    assert slug(vulkan(host)) == "gpu-permission"


class NoAccess(LocalHost):
    """The files are there, and root's rights are not (tests may run as root)."""

    def __init__(self, host: LocalHost) -> None:
        super().__init__(Path(host._root), host._environ)

    def access(self, path: str) -> str | None:
        return None if super().access(path) is None else ""


@pytest.mark.parametrize("vendor", ["0x10de", "0x1002"])
def test_in_a_container_the_fix_is_how_to_start_the_container(
    stubs: StubDrivers, tmp_path: Path, vendor: str
) -> None:
    slot = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:01:00.0"
    slot.mkdir(parents=True)
    (slot / "class").write_text("0x030000\n")
    (slot / "vendor").write_text(f"{vendor}\n")
    (tmp_path / ".dockerenv").touch()
    api = vulkan(stubs.host("vulkan", root=tmp_path, vkCreateInstance=-9))
    assert api.problem
    wanted = {"0x10de": "NVIDIA_DRIVER_CAPABILITIES=all", "0x1002": "--device /dev/dri"}
    assert wanted[vendor] in api.problem.fix


LLVMPIPE: dict[str, object] = {"vulkan_type": 4, "vulkan_name": "llvmpipe (LLVM 19.1.7, 256 bits)"}


@pytest.mark.parametrize("settings", [LLVMPIPE, {"vkCreateInstance": -9}], ids=["mesa", "bare"])
def test_a_container_without_any_gpu_is_told_that_nothing_is_to_be_done(
    stubs: StubDrivers, tmp_path: Path, settings: dict[str, object]
) -> None:
    (tmp_path / ".dockerenv").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text("ID=ubuntu\n")
    api = vulkan(stubs.host("vulkan", root=tmp_path, **settings))
    assert api.problem
    assert api.problem.fix.startswith("if the host has an AMD or Intel GPU: ")
    assert api.problem.fix.endswith("if it has none, nothing is wrong")
    # What lists a software device is Mesa: it is there already.
    assert ("apt install mesa-vulkan-drivers" in api.problem.fix) == (
        "vkCreateInstance" in settings
    )


@pytest.mark.parametrize("how", ["crash", "hang", "exit"])
def test_a_broken_vulkan_driver_loses_only_its_own_answers(stubs: StubDrivers, how: str) -> None:
    host = stubs.host("cuda", "vulkan", "opencl", vkEnumeratePhysicalDevices=how)
    hardware = probe(host, limit=3.0)
    states = {"crash": ApiState.CRASHED, "exit": ApiState.CRASHED, "hang": ApiState.TIMED_OUT}
    assert hardware.api("vulkan").state is states[how]
    assert hardware.api("cuda").gpus
    assert hardware.api("opencl").gpus


def test_a_driver_that_crashes_at_its_second_device_is_not_trusted(stubs: StubDrivers) -> None:
    host = stubs.host("vulkan", vulkan_count=2, vkGetPhysicalDeviceProperties="crash")
    assert vulkan(host).gpus == ()


def test_real_lavapipe_is_seen_and_is_software() -> None:
    require_library("vulkan")
    require_library("vulkan_lvp")
    api = probe(LocalHost()).api("vulkan")
    kinds = {gpu.kind for gpu in api.gpus if "llvmpipe" in gpu.name}
    assert kinds == {GpuKind.SOFTWARE}
