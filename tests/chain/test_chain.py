"""Each link of the chain broken once: it is found, named with one fix, and has its exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import machines

from tsuku_llm.catalog.manifest import parse_release
from tsuku_llm.choose.chain.judging import diagnose
from tsuku_llm.choose.chain.links import Chain, Link, LinkState, Listed, Stage, subject_of
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.ground.errors import (
    CorruptStore,
    GateFailed,
    NotInstalled,
    TamperedInstall,
    TsukuError,
)
from tsuku_llm.machine.backends import NAMES, facts_of
from tsuku_llm.machine.hardware import (
    Api,
    ApiState,
    Evidence,
    Gpu,
    GpuKind,
    Hardware,
    Libc,
    Problem,
)
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.trust import VerifiedBytes

ROOT = Path(__file__).parents[2]
SNAPSHOTS = sorted((ROOT / "tests" / "snapshots").glob("*.json"))
(PUBLISHED,) = (ROOT / "manifests" / "targets" / "releases").glob("*.b11429.json")
RELEASE = parse_release(VerifiedBytes(PUBLISHED.read_bytes()))
BUS = (Evidence("PCI 0000:01:00.0", "10de:2684 (driver nvidia)"),)
CUDA = replace(
    machines.cuda(),
    evidence=(
        Evidence("open libcuda.so.1", "/usr/lib/libcuda.so.580"),
        Evidence("cuInit", "0 (CUDA_SUCCESS)"),
        Evidence("/proc/driver/nvidia/version", "580.95"),
        Evidence("CUDA_VISIBLE_DEVICES", "'0'"),
    ),
)
GOOD = machines.machine(CUDA, evidence=BUS)
LISTED = Listed(("CUDA0: NVIDIA X",), "CUDA0")
REBOOT = Problem("driver-updated-reboot", "it was updated", "restart", transient=True)


def examined(
    hardware: Hardware = GOOD,
    *,
    requested: str = "cuda",
    active: tuple[str, str] | None = None,
    installed: str | TsukuError = "b1-cuda-12.8-0123",
    listed: Listed | TsukuError | None = LISTED,
) -> Chain:
    selection = select(machines.release(), hardware, Request())
    subject = subject_of(requested, selection, hardware, active)
    return diagnose(subject, hardware, selection, installed, listed)


@pytest.mark.parametrize(
    ("word", "backend"),
    [("HIP", "rocm"), ("nvidia", "cuda"), ("AMD", "rocm"), ("CUDA-12.8", "cuda")],
)
def test_the_words_of_a_request_name_the_backend_to_examine(word: str, backend: str) -> None:
    assert examined(requested=word, active=("vulkan", "vulkan")).subject.backend == backend


def link(chain: Chain, stage: Stage) -> Link:
    return next(each for each in chain.links if each.stage is stage)


def without_device(state: ApiState, problem: Problem | None = None, **changes: Any) -> Hardware:
    """The good machine, whose CUDA stopped."""
    api = replace(CUDA, state=state, gpus=(), problem=problem)
    return replace(GOOD, apis=(replace(api, **changes),))


def driven_by(driver: str) -> Hardware:
    bus = (Evidence("PCI 0000:01:00.0", f"10de:2684 (driver {driver})"),)
    stopped = without_device(ApiState.ABSENT, library=None, evidence=())
    return replace(stopped, evidence=bus)


def of_vulkan(*gpus: Gpu, state: ApiState = ApiState.OK, **changes: Any) -> Hardware:
    return machines.machine(Api("vulkan", state, "libvulkan.so.1", "1.3", gpus=gpus, **changes))


SOFTWARE = Gpu("vulkan", 0, "llvmpipe", GpuKind.SOFTWARE)
FITS_NOWHERE = replace(GOOD, libc=Libc("glibc", "2.31"))
ONLY_PTX = machines.machine(machines.cuda("9.0", "13.0"), machines.vulkan())


def problem(slug: str) -> Problem:
    return Problem(slug, f"{slug} is so", f"mend {slug}")


BROKEN = {
    "nothing-drives-it": (Stage.MODULE, driven_by("none"), "no-kernel-driver"),
    "set-aside": (Stage.MODULE, driven_by("vfio-pci"), "gpu-set-aside"),
    "nouveau": (Stage.MODULE, driven_by("nouveau"), "nouveau"),
    "module-not-loaded": (
        Stage.MODULE,
        without_device(ApiState.FAILED, problem("nvidia-module-missing")),
        "nvidia-module-missing",
    ),
    "H11-wsl-without-dxg": (
        Stage.MODULE,
        machines.machine(problems=(problem("wsl-without-gpu"),)),
        "wsl-without-gpu",
    ),
    "no-library": (Stage.LIBRARY, machines.machine(), "api-not-asked"),
    "library-absent": (
        Stage.LIBRARY,
        without_device(ApiState.ABSENT, library=None),
        "api-absent",
    ),
    "H13-container": (
        Stage.LIBRARY,
        without_device(ApiState.ABSENT, problem("container-without-gpu"), library=None),
        "container-without-gpu",
    ),
    "toolkit-stub": (
        Stage.LIBRARY,
        without_device(ApiState.FAILED, problem("cuda-stub-library")),
        "cuda-stub-library",
    ),
    "H03-not-rebooted": (
        Stage.INIT,
        without_device(ApiState.FAILED, REBOOT),
        "driver-updated-reboot",
    ),
    "unnamed-code": (Stage.INIT, without_device(ApiState.FAILED), "api-failed"),
    "crashed": (
        Stage.INIT,
        without_device(ApiState.CRASHED, problem("driver-crashed"), library=None),
        "driver-crashed",
    ),
    "timed-out": (Stage.INIT, without_device(ApiState.TIMED_OUT), "api-timed-out"),
    "hidden": (
        Stage.DEVICE,
        without_device(ApiState.FAILED, problem("cuda-hidden")),
        "cuda-hidden",
    ),
    "container-without-device": (
        Stage.DEVICE,
        without_device(ApiState.FAILED, problem("container-without-gpu")),
        "container-without-gpu",
    ),
    "no-device": (Stage.DEVICE, without_device(ApiState.OK), "no-device"),
    "H14-glibc": (Stage.REQUIREMENT, FITS_NOWHERE, "glibc"),
}


@pytest.mark.parametrize(("stage", "hardware", "slug"), BROKEN.values(), ids=BROKEN)
def test_the_first_broken_link_to_the_device_is_named(
    stage: Stage, hardware: Hardware, slug: str
) -> None:
    chain = examined(hardware)
    assert chain.broken
    assert (chain.broken.stage, chain.broken.state) == (stage, LinkState.BROKEN)
    assert chain.fault
    assert chain.fault.slug == slug
    assert chain.fault.fix
    assert chain.exit_code == 3


INSTALLED = {
    "not-installed": (Stage.TREE, NotInstalled("nothing"), None, 7),
    "tampered": (Stage.TREE, TamperedInstall("changed", hint="install --force"), None, 5),
    "corrupt": (Stage.TREE, CorruptStore("no receipt", hint="install --force"), None, 6),
    "gate": (Stage.LIST, "b1", GateFailed("lists no device", facts=("x",), hint="reboot"), 7),
}


@pytest.mark.parametrize(
    ("stage", "installed", "listed", "code"), INSTALLED.values(), ids=INSTALLED
)
def test_a_broken_build_has_the_exit_code_of_its_error(
    stage: Stage, installed: str | TsukuError, listed: TsukuError | None, code: int
) -> None:
    chain = examined(installed=installed, listed=listed)
    assert chain.broken
    assert (chain.broken.stage, chain.exit_code) == (stage, code)
    assert chain.fault
    assert chain.fault.fix
    before = chain.links[: chain.links.index(chain.broken)]
    assert all(each.state is LinkState.OK for each in before)


def test_a_whole_chain_has_every_link_and_its_evidence() -> None:
    chain = examined()
    assert (chain.broken, chain.fault, chain.exit_code) == (None, None, 0)
    assert [each.stage for each in chain.links] == list(Stage)
    assert {each.state for each in chain.links} == {LinkState.OK}
    assert [each.evidence for each in chain.links] == [
        ("PCI 0000:01:00.0: 10de:2684",),
        ("nvidia", "/proc/driver/nvidia/version: 580.95"),
        ("open libcuda.so.1: /usr/lib/libcuda.so.580",),
        ("cuInit: 0 (CUDA_SUCCESS)",),
        ("CUDA_VISIBLE_DEVICES: '0'", "NVIDIA X (discrete)"),
        ("cuda-13.4 fits NVIDIA X",),
        ("b1-cuda-12.8-0123",),
        ("CUDA0: NVIDIA X",),
    ]


def test_a_machine_without_a_visible_bus_is_not_broken() -> None:
    chain = examined(replace(GOOD, evidence=()))
    assert chain.broken is None
    assert link(chain, Stage.PCI).state is LinkState.UNKNOWN
    nothing = examined(machines.machine(machines.cuda()))
    assert link(nothing, Stage.MODULE).state is LinkState.UNKNOWN
    assert link(nothing, Stage.LIBRARY).state is LinkState.OK


def test_a_device_that_the_api_lists_counts_more_than_the_bus() -> None:
    strange = (Evidence("PCI 0000:01:00.0", "10de:2684 (driver none)"),)
    assert examined(replace(GOOD, evidence=strange)).broken is None


def test_adapters_of_other_vendors_prove_nothing() -> None:
    other = (Evidence("PCI 0000:00:02.0", "1a03:2000 (driver ast)"),)
    assert link(examined(replace(GOOD, evidence=other)), Stage.PCI).state is LinkState.UNKNOWN


def test_one_adapter_with_a_driver_is_enough() -> None:
    first = Evidence("PCI 0000:00:01.0", "10de:2684 (driver vfio-pci)")
    hardware = replace(without_device(ApiState.FAILED, REBOOT), evidence=(first, *BUS))
    assert link(examined(hardware), Stage.MODULE).state is LinkState.OK


def test_the_bus_is_searched_for_the_vendor_of_the_device() -> None:
    gpu = Gpu("vulkan", 0, "A card", GpuKind.DISCRETE, vendor_id=0x1002, api_version="1.3")
    cards = (*BUS, Evidence("PCI 0000:03:00.0", "1002:73bf (driver amdgpu)"))
    chain = examined(replace(of_vulkan(gpu), evidence=cards), requested="vulkan")
    assert link(chain, Stage.PCI).evidence == ("PCI 0000:03:00.0: 1002:73bf",)


@pytest.mark.parametrize(
    ("hardware", "fix"),
    [
        (driven_by("nvidia"), "install the NVIDIA driver"),
        (without_device(ApiState.ABSENT, library=None), "if this machine has such a GPU: install"),
        (replace(driven_by("nvidia"), os="windows"), "install the GPU's driver from its vendor"),
    ],
    ids=["card", "no-card", "windows"],
)
def test_a_missing_library_is_recommended_only_if_the_card_is_there(
    hardware: Hardware, fix: str
) -> None:
    bus = hardware.evidence if "if this" not in fix else ()
    selection = select(machines.release(), GOOD, Request())
    subject = subject_of("cuda", selection, hardware, None)
    fault = diagnose(subject, replace(hardware, evidence=bus), selection, "b1", LISTED).fault
    assert fault
    assert fault.fix.startswith(fix)


def test_an_old_system_is_named_even_without_a_device() -> None:
    hardware = replace(without_device(ApiState.OK), libc=Libc("glibc", "2.31"))
    chain = examined(hardware)
    assert link(chain, Stage.DEVICE).fault
    assert chain.broken
    assert chain.broken.stage is Stage.REQUIREMENT, "a device would not help"
    requirement = link(chain, Stage.REQUIREMENT).fault
    assert requirement
    assert requirement.slug == "glibc"


def test_an_adapter_of_windows_is_known() -> None:
    windows = (Evidence("NVIDIA X", r"pci\ven_10de&dev_2684 32.0.15"),)
    chain = examined(replace(GOOD, evidence=windows))
    assert link(chain, Stage.PCI).evidence == (r"NVIDIA X: pci\ven_10de&dev_2684",)
    assert link(chain, Stage.MODULE).evidence[0] == "32.0.15"


def test_links_after_a_broken_one_are_unknown() -> None:
    chain = examined(without_device(ApiState.FAILED, REBOOT), installed=NotInstalled("x"))
    assert chain.fault
    assert chain.fault.transient
    assert link(chain, Stage.LIBRARY).state is LinkState.OK
    assert link(chain, Stage.DEVICE).state is LinkState.UNKNOWN
    assert link(chain, Stage.REQUIREMENT).state is LinkState.UNKNOWN


def test_an_intact_build_is_shown_despite_a_broken_driver() -> None:
    chain = examined(without_device(ApiState.FAILED, REBOOT))
    assert [link(chain, stage).state for stage in (Stage.TREE, Stage.LIST)] == [LinkState.OK] * 2


def test_a_software_renderer_does_not_count_as_a_device() -> None:
    chain = examined(of_vulkan(SOFTWARE), requested="vulkan")
    assert chain.broken
    assert chain.broken.stage is Stage.DEVICE
    assert "llvmpipe (software)" in chain.broken.evidence


@pytest.mark.parametrize(
    ("hardware", "fix"),
    [
        (ONLY_PTX, "update NVIDIA's driver; or: tsuku-llm install --backend cuda-12.8"),
        (FITS_NOWHERE, "use a newer release of the distribution, for example in a container"),
    ],
    ids=["ptx", "nothing-fits"],
)
def test_the_fix_of_a_requirement_is_an_upgrade_or_another_variant(
    hardware: Hardware, fix: str
) -> None:
    chain = examined(hardware, requested="cuda-13.4")
    assert chain.broken
    assert chain.broken.stage is Stage.REQUIREMENT
    assert chain.fault
    assert chain.fault.fix == fix


def test_a_backend_without_a_build_names_what_fits() -> None:
    chain = examined(requested="sycl")
    requirement = link(chain, Stage.REQUIREMENT).fault
    assert requirement
    assert (requirement.slug, requirement.fix) == (
        "no-build",
        "tsuku-llm install --backend cuda-13.4",
    )


def test_a_list_that_does_not_name_the_gpu_is_unknown() -> None:
    found = link(examined(listed=Listed(("CUDA0: Another",), None)), Stage.LIST)
    assert found.state is LinkState.UNKNOWN
    assert found.evidence[-1] == "none of them is called NVIDIA X"


def test_the_cpu_needs_no_driver() -> None:
    chain = examined(requested="cpu", listed=Listed((), None))
    assert [each.stage for each in chain.links] == [Stage.REQUIREMENT, Stage.TREE, Stage.LIST]
    assert chain.exit_code == 0


# --- what is examined --------------------------------------------------------------------

BOTH = machines.machine(machines.vulkan(GpuKind.DISCRETE), machines.cuda())


@pytest.mark.parametrize(
    ("requested", "active", "hardware", "subject"),
    [
        ("auto", None, BOTH, ("vulkan", "vulkan", "vulkan")),
        ("gpu", None, BOTH, ("vulkan", "vulkan", "vulkan")),
        ("auto", ("cuda", "cuda-12.8"), BOTH, ("cuda", "cuda", "cuda-12.8")),
        ("auto", ("cuda", "cuda-11"), BOTH, ("cuda", "cuda", "cuda-13.4")),
        ("auto", ("cpu", "cpu"), BOTH, ("vulkan", "vulkan", "vulkan")),
        ("cuda", ("vulkan", "vulkan"), BOTH, ("cuda", "cuda", "cuda-13.4")),
        ("cuda-12.8", None, BOTH, ("cuda-12.8", "cuda", "cuda-12.8")),
        ("auto", None, machines.machine(), ("vulkan", "vulkan", "vulkan")),
        ("auto", None, without_device(ApiState.FAILED, REBOOT), ("cuda", "cuda", "cuda-13.4")),
        ("metal", None, BOTH, ("metal", "metal", None)),
    ],
)
def test_the_right_build_is_examined(
    requested: str,
    active: tuple[str, str] | None,
    hardware: Hardware,
    subject: tuple[str, str, str | None],
) -> None:
    found = examined(hardware, requested=requested, active=active).subject
    name = found.variant.name if found.variant else None
    assert (found.requested, found.backend, name) == subject


@pytest.mark.parametrize(("requested", "backend"), [("auto", "cpu"), ("gpu", "gpu")])
def test_a_platform_without_a_gpu_build(requested: str, backend: str) -> None:
    release = machines.release({"cpu": machines.variant("cpu", {})})
    selection = select(release, GOOD, Request())
    subject = subject_of(requested, selection, GOOD, None)
    chain = diagnose(subject, GOOD, selection, "b1-cpu", Listed((), None))
    assert subject.backend == backend
    assert (chain.exit_code == 0) == (requested == "auto")


# --- all machines ------------------------------------------------------------------------


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_no_recorded_machine_has_both_a_device_and_a_broken_driver_link(path: Path) -> None:
    hardware = probe(ReplayHost.load(path))
    selection = select(RELEASE, hardware, Request())
    for backend in (*NAMES, "auto"):
        subject = subject_of(backend, selection, hardware, None)
        chain = diagnose(subject, hardware, selection, NotInstalled("nothing"), None)
        assert chain.fault
        assert chain.fault.fix
        assert "\n" not in chain.fault.fix
        assert [each.stage for each in chain.links] == sorted(
            (each.stage for each in chain.links), key=list(Stage).index
        )
        api = hardware.api(facts_of(subject.backend).api)
        driver = [each for each in chain.links if each.stage in list(Stage)[:5]]
        broken = [each for each in driver if each.fault]
        assert bool(broken) == bool(driver and not api.hardware_gpus)
