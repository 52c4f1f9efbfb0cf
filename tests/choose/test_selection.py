from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import (
    CUDA_12,
    CUDA_13,
    cuda,
    linux_variants,
    machine,
    release,
    rocm,
    variant,
    vulkan,
)

from tsuku_llm.catalog.manifest import Release
from tsuku_llm.choose.fitting import BY_SYSTEM, sass_serves, why_not
from tsuku_llm.choose.selection import Request, Selection, is_made_by, known_request, select
from tsuku_llm.ground.errors import SelectionError, UnknownRequest
from tsuku_llm.machine.backends import AMD, INTEL, NVIDIA, POLICIES, REQUESTS, VENDORS
from tsuku_llm.machine.hardware import Api, ApiState, Cpu, Gpu, GpuKind, Hardware, Libc, Problem


def choose(hardware: Hardware, backend: str = "auto", prefer: str = "portable") -> Selection:
    return select(release(), hardware, Request(backend, prefer))


def names(selection: Selection) -> list[str]:
    return [candidate.variant.name for candidate in selection.compatible]


def reason(selection: Selection, variant_name: str) -> str:
    return next(r.reason.slug for r in selection.rejected if r.variant.name == variant_name)


def test_a_bare_machine_gets_the_cpu_and_a_reason_for_everything_else() -> None:
    selection = choose(machine())
    assert names(selection) == ["cpu"]
    assert selection.detected == ("cpu",)
    assert reason(selection, "vulkan") == "api-not-asked"
    assert len(selection.rejected) == 4


def test_portable_puts_vulkan_before_cuda_and_native_the_other_way() -> None:
    hardware = machine(cuda(), vulkan())
    assert names(choose(hardware)) == ["vulkan", "cuda-13.4", "cuda-12.8", "cpu"]
    native = choose(hardware, prefer="native")
    assert names(native) == ["cuda-13.4", "cuda-12.8", "vulkan", "cpu"]


def test_the_users_own_order_counts() -> None:
    selection = select(release(), machine(cuda(), vulkan()), Request(prefer=("cpu", "cuda")))
    assert names(selection)[-1] == "cpu", "a GPU before the CPU, whatever the order of backends"
    assert names(selection)[0] == "cuda-13.4"


def test_the_h200_on_driver_580_runs_12_8_and_not_13_4() -> None:
    selection = choose(machine(cuda("9.0", "13.0")), "cuda")
    assert names(selection) == ["cuda-12.8"]
    assert reason(selection, "cuda-13.4") == "cuda-ptx"


@pytest.mark.parametrize(
    ("capability", "driver", "expected"),
    [
        ("8.9", "13.0", ["cuda-13.4", "cuda-12.8"]),  # SASS: minor-version compatibility
        ("8.9", "12.2", ["cuda-12.8"]),
        ("8.9", "11.8", []),
        ("6.1", "12.8", ["cuda-12.8"]),  # a 1080 Ti on driver 570
        ("6.1", "12.2", []),  # and on 535: only PTX, and the driver cannot compile it
        ("12.0", "13.0", ["cuda-13.4", "cuda-12.8"]),
        ("12.1", "13.0", ["cuda-13.4", "cuda-12.8"]),  # GB10: SASS of 13.4, PTX 9.0 of 12.8
        ("3.5", "13.4", []),
        ("8.7", "13.4", []),  # Orin: a Jetson's SASS and libraries are its own
        ("5.3", "13.4", []),
    ],
)
def test_the_sass_and_ptx_rule(capability: str, driver: str, expected: list[str]) -> None:
    assert names(choose(machine(cuda(capability, driver)), "cuda")) == expected


@pytest.mark.parametrize(
    ("entry", "capability", "serves"),
    [
        ("8.6", "8.9", True),
        ("8.9", "8.6", False),
        ("12.0a", "12.1", False),
        ("8.6", "9.0", False),
        ("8.7", "8.7", True),
        ("8.7", "8.9", False),  # code for a Jetson runs on no card
        ("7.2", "7.5", False),
    ],
)
def test_machine_code_serves_its_own_major_only(entry: str, capability: str, serves: bool) -> None:
    assert sass_serves(entry, capability) is serves


def cuda_release(order: tuple[str, ...]) -> Release:
    """A publisher's release with these CUDA toolkits in this order."""
    kinds = {"12.8": CUDA_12, "13.4": CUDA_13}
    return release(
        {
            **{f"cuda-{each}": variant("cuda", {"cuda": kinds[each]}) for each in order},
            "cpu": variant("cpu", {}),
        }
    )


@pytest.mark.parametrize("order", [("12.8", "13.4"), ("13.4", "12.8")])
@pytest.mark.parametrize(
    ("capability", "driver", "expected"),
    [
        ("12.1", "13.4", ["cuda-13.4", "cuda-12.8", "cpu"]),  # GB10: only 13.4 has its SASS
        ("9.0", "13.0", ["cuda-12.8", "cpu"]),
    ],
)
def test_what_must_be_compiled_first_comes_after_machine_code(
    capability: str, driver: str, expected: list[str], order: tuple[str, ...]
) -> None:
    hardware = machine(cuda(capability, driver))
    assert names(select(cuda_release(order), hardware, Request())) == expected


def test_if_every_build_must_be_compiled_the_publishers_order_counts() -> None:
    hardware = machine(cuda("10.3", "13.4"))
    for order in (("12.8", "13.4"), ("13.4", "12.8")):
        expected = [*(f"cuda-{each}" for each in order), "cpu"]
        assert names(select(cuda_release(order), hardware, Request())) == expected


def test_a_third_number_of_the_toolkit_excludes_no_driver() -> None:
    """A driver for CUDA 12.8 compiles the PTX of 12.8.1: it does not tell the third number."""
    build = variant("cuda", {"cuda": {**CUDA_12, "toolkit": "12.8.1"}})
    variants = {"cpu": variant("cpu", {}), "cuda": build}
    for driver, fits in (("12.8", True), ("12.7", False), ("13.0", True)):
        selection = select(release(variants), machine(cuda("9.0", driver)), Request())
        assert (selection.candidate("cuda") is not None) is fits, driver


@pytest.mark.parametrize("order", [("12.8", "13.4"), ("13.4", "12.8")])
def test_a_driver_without_a_version_gets_the_older_toolkit_and_no_ptx(
    order: tuple[str, ...],
) -> None:
    """The gate finds a driver that is too old for machine code, and not one for PTX."""

    def found(capability: str | None) -> Selection:
        gpu = Gpu("cuda", 0, "X", GpuKind.DISCRETE, 24 << 30, compute_capability=capability)
        api = Api("cuda", ApiState.OK, "libcuda.so.1", None, gpus=(gpu,))
        return select(cuda_release(order), machine(api), Request())

    assert names(found("8.9")) == ["cuda-12.8", "cuda-13.4", "cpu"]
    assert names(found("9.0")) == ["cpu"]
    assert reason(found("9.0"), "cuda-12.8") == "cuda-ptx"
    assert "does not tell its version" in found("9.0").rejected[0].reason.text
    assert names(found(None)) == ["cpu"]
    assert reason(found(None), "cuda-13.4") == "cuda-capability"


@pytest.mark.parametrize(
    ("runtime", "version", "library", "fits"),
    [
        ("10.0", "6.3", "/opt/rocm/lib/libamdhip64.so.6", False),
        ("10.0", "5.7", "libamdhip64.so.5", False),
        ("10.0", "7.0", "libamdhip64.so.7", True),  # ROCm 10.0 still has libamdhip64.so.7
        ("10.0", "10.0", "libamdhip64.so.7", True),
        ("7.14", "10.0", "libamdhip64.so.7", True),
        ("7.2", "6.4", "libamdhip64.so.6", False),
        ("6.4", "6.1", "libamdhip64.so.6", True),
        ("6.4", "7.1", "libamdhip64.so.7", False),  # a newer library does not stand in
        ("10.0", "6.2", "amdhip64_6.dll", False),
        # A runtime that does not tell its version: its library's name does.
        ("10.0", None, "/opt/rocm/lib/libamdhip64.so.6.3.60304", False),
        ("10.0", None, "/usr/lib64/libamdhip64.so.7.0.51831", True),
        ("10.0", None, "amdhip64_6.dll", False),
        ("10.0", None, "amdhip64_7.dll", True),
        ("10.0", None, "libamdhip64.so", True),
        ("10.0", None, None, True),
    ],
)
def test_a_rocm_build_needs_the_library_that_it_was_linked_to(
    runtime: str, version: str | None, library: str | None, fits: bool
) -> None:
    built = {"rocm": {"runtime": runtime, "gfx": ["gfx1100"]}}
    offered = release({"rocm": variant("rocm", built), "cpu": variant("cpu", {})})
    gpu = Gpu("rocm", 0, "AMD X", GpuKind.DISCRETE, 24 << 30, gfx="gfx1100")
    api = Api("rocm", ApiState.OK, library, version, gpus=(gpu,))
    selection = select(offered, machine(api), Request())
    assert names(selection) == (["rocm", "cpu"] if fits else ["cpu"])
    if not fits:
        assert reason(selection, "rocm") == "rocm-runtime"
        assert f"libraries of ROCm {runtime}" in selection.rejected[0].reason.text


def test_a_gpu_without_16_bit_storage_is_none_of_the_vulkan_build() -> None:
    old = Gpu("vulkan", 0, "Intel HD 4600", GpuKind.INTEGRATED, 2 << 30, storage_16bit=False)
    new = Gpu("vulkan", 1, "Arc A310", GpuKind.DISCRETE, 4 << 30, storage_16bit=True)
    unasked = Gpu("vulkan", 1, "Arc A310", GpuKind.DISCRETE, 4 << 30)

    def found(*gpus: Gpu) -> Selection:
        return choose(machine(Api("vulkan", ApiState.OK, "l", "1.3", gpus=gpus)))

    alone = found(old)
    assert names(alone) == ["cpu"]
    assert reason(alone, "vulkan") == "vulkan-16bit-storage"
    assert names(found(old, new)) == ["vulkan", "cpu"]
    assert found(old, new).selected.gpu == new
    assert names(found(unasked)) == ["vulkan", "cpu"]


@pytest.mark.parametrize(
    ("capability", "driver", "nearest"),
    [
        ("8.0", "12.4", "cuda-12.8"),  # both need a newer driver: the older one will do
        ("6.1", "12.2", "cuda-12.8"),  # 13.4 has no code for it
        ("8.6", "11.8", "cuda-12.8"),
        ("9.0", "13.0", "cuda-12.8"),
        ("8.9", "13.4", "cuda-13.4"),
        ("3.5", "11.4", "cuda-13.4"),  # no driver helps: the first of the release
    ],
)
def test_the_nearest_variant_needs_the_smallest_update_of_the_driver(
    capability: str, driver: str, nearest: str
) -> None:
    found = choose(machine(cuda(capability, driver))).nearest("cuda")
    assert found is not None
    assert found.name == nearest
    assert choose(machine()).nearest("sycl") is None


def test_a_build_that_another_system_needs_is_the_nearest_only_if_all_are() -> None:
    old = variant("vulkan", {"glibc": "2.31", "libstdcxx": "3.4.28", "vulkan": "1.2"})
    both = release({**linux_variants(), "vulkan-debian11": old})
    rhel_9 = machine(libc=Libc("glibc", "2.34"), libstdcxx="3.4.29")
    found = select(both, rhel_9, Request()).nearest("vulkan")
    assert (found and found.name) == "vulkan-debian11", "only the driver is missing"
    found = select(release(), rhel_9, Request()).nearest("vulkan")
    assert (found and found.name) == "vulkan"


def test_discrete_comes_before_integrated_across_backends() -> None:
    hardware = machine(cuda(), vulkan(GpuKind.INTEGRATED))
    assert names(choose(hardware))[0] == "cuda-13.4"


def test_the_device_is_the_discrete_one_with_most_memory() -> None:
    gpus = (
        Gpu("vulkan", 0, "APU", GpuKind.INTEGRATED, 64 << 30, api_version="1.3"),
        Gpu("vulkan", 1, "small", GpuKind.DISCRETE, 4 << 30, api_version="1.3"),
        Gpu("vulkan", 2, "big", GpuKind.DISCRETE, 24 << 30, api_version="1.3"),
        Gpu("vulkan", 3, "old", GpuKind.DISCRETE, 80 << 30, api_version="1.1"),
    )
    api = Api("vulkan", ApiState.OK, "libvulkan.so.1", "1.3", gpus=gpus)
    chosen = choose(machine(api)).selected
    assert chosen.gpu is gpus[2]


def test_software_devices_never_count() -> None:
    selection = choose(machine(vulkan(GpuKind.SOFTWARE)))
    assert names(selection) == ["cpu"]
    assert reason(selection, "vulkan") == "software-only"


def test_a_second_gpu_saves_a_variant_that_the_first_cannot_run() -> None:
    gpus = (
        Gpu("rocm", 0, "APU", GpuKind.INTEGRATED, gfx="gfx90c"),
        Gpu("rocm", 1, "7900", GpuKind.DISCRETE, gfx="gfx1100"),
    )
    selection = choose(machine(Api("rocm", ApiState.OK, "hip", "7.0", gpus=gpus)), "rocm")
    assert selection.selected.gpu is gpus[1]


def test_a_gfx_target_outside_the_build_is_refused_by_name() -> None:
    selection = choose(machine(rocm("gfx803")))
    assert reason(selection, "rocm-10.0") == "rocm-gfx"


@pytest.mark.parametrize(
    ("changes", "slug", "left"),
    [
        ({"libc": Libc("glibc", "2.36"), "libstdcxx": "3.4.30"}, "libc-floor", ["vulkan", "cpu"]),
        ({"libc": Libc("musl", "1.2.4")}, "musl", []),
        ({"libstdcxx": "3.4.29"}, "libstdcxx", []),
    ],
)
def test_minimum_versions_of_libraries(
    changes: dict[str, object], slug: str, left: list[str]
) -> None:
    selection = choose(machine(cuda(), vulkan(), **changes))
    assert names(selection) == left, slug


@pytest.mark.parametrize(
    ("system", "features", "expected"),
    [
        ("linux", ("avx512_bf16", "avx512_vnni", "avx_vnni"), None),
        ("linux", ("avx512_vnni",), "needs a processor with avx512_bf16, avx_vnni"),
        ("linux", (), None),
        ("windows", ("avx2",), None),
    ],
)
def test_an_instruction_set_beyond_the_level_is_judged_where_the_system_lists_them_all(
    system: str, features: tuple[str, ...], expected: str | None
) -> None:
    built = variant("cpu", {"cpu_features": ("avx512_bf16", "avx512_vnni", "avx_vnni")})
    offered = release({"cpu": built}).platforms["linux-amd64"].variants[0]
    reason = why_not(offered, machine(os=system, cpu=Cpu(None, None, features, 4)))
    assert (reason and reason.text) == expected


def test_backend_gpu_is_a_gpu_or_an_error_with_every_reason() -> None:
    selection = choose(machine(), "gpu")
    with pytest.raises(SelectionError) as caught:
        _ = selection.selected
    assert len(caught.value.facts) == 5


@pytest.mark.parametrize("word", ["quantum", "", "cuda-99"])
def test_an_unknown_request_lists_the_known_ones(word: str) -> None:
    with pytest.raises(UnknownRequest) as caught:
        choose(machine(), word)
    assert "vulkan" in caught.value.facts[0]
    assert "cuda-12.8" in caught.value.facts[1]


def test_another_platform_is_named() -> None:
    with pytest.raises(UnknownRequest, match="freebsd-riscv"):
        choose(machine(os="freebsd", arch="riscv"))


def test_a_requirement_from_the_future_is_not_met() -> None:
    newer = variant("cuda", {"cuda": {**CUDA_13, "sass": ["8.9", "13.0f"]}})
    future = release({"newer": newer, "npu": variant("npu", {}), **linux_variants()})
    selection = select(future, machine(cuda()), Request())
    assert names(selection) == ["cuda-13.4", "cuda-12.8", "cpu"]
    assert reason(selection, "newer") == reason(selection, "npu") == "unknown-requirement"
    told = {each.variant.name: each.reason.text for each in selection.rejected}
    assert "not understood by this version" in told["newer"]
    assert "cuda.sass '13.0f'" in told["newer"]
    assert "backend npu" in told["npu"]


@pytest.mark.parametrize(
    "requires",
    [
        {"glibc": "9.9"},
        {"musl": True},
        {"libstdcxx": "9.9.9"},
        {"macos": "99.0"},
        {"vcruntime": "99.0"},
        {"libraries": ["libgone.so.3"]},
        {"x86_64_level": 4},
        {"cpu_features": ["avx512_bf16"]},
        {"memory": 1 << 40},
    ],
    ids=lambda requires: next(iter(requires)),
)
def test_no_driver_removes_what_the_system_lacks(requires: dict[str, Any]) -> None:
    needy = release({"cpu": variant("cpu", requires)}).platforms["linux-amd64"].variants[0]
    cpu = Cpu("GenuineIntel", "a processor", ("avx",), 3)
    lacks = {"libgone.so.3": "libgone.so.3"}
    old = machine(cpu=cpu, os_version="15.0", vcruntime="14.0", libraries=lacks)
    found = why_not(needy, old)
    assert found
    assert found.slug in BY_SYSTEM
    if "glibc" in requires:
        found = why_not(needy, machine(libc=Libc("musl", "1.2.5")))
        assert found
        assert found.slug in BY_SYSTEM


SSL, CRYPTO, HIPBLAS = "libssl.so.3", "libcrypto.so.3", "libhipblas.so.3"


@pytest.mark.parametrize(
    ("lacks", "family", "said"),
    [
        ({}, "debian", None),
        ({SSL: None, CRYPTO: None}, "debian", None),
        ({SSL: SSL}, "debian", f"needs {SSL}, which this system lacks (package libssl3)"),
        (
            {SSL: SSL, CRYPTO: CRYPTO},
            "fedora",
            f"needs {SSL}, {CRYPTO}, which this system lacks (package openssl-libs)",
        ),
        # One that is there lacks the other: the lacking one is what to install.
        ({SSL: CRYPTO, CRYPTO: CRYPTO}, "alpine", f"needs {CRYPTO} through {SSL}, {CRYPTO}"),
        ({HIPBLAS: HIPBLAS}, "arch", f"needs {HIPBLAS}, which this system lacks (package hipblas)"),
        ({HIPBLAS: HIPBLAS}, "debian", "AMD's packages hipblas and rocblas"),
        (
            {SSL: SSL, HIPBLAS: HIPBLAS},
            "debian",
            f"needs {SSL}, {HIPBLAS}, which this system lacks (package libssl3; install the ROCm",
        ),
        (
            {HIPBLAS: "libodd.so.1"},
            "",
            f"needs libodd.so.1 through {HIPBLAS}, which this system lacks (install the package",
        ),
    ],
)
def test_a_library_that_a_build_does_not_bring(
    lacks: dict[str, str | None], family: str, said: str | None
) -> None:
    needs = {"libraries": [SSL, CRYPTO, HIPBLAS]}
    needy = release({"cpu": variant("cpu", needs)}).platforms["linux-amd64"].variants[0]
    found = why_not(needy, machine(libraries=lacks, packages=family))
    if said is None:
        assert found is None
    else:
        assert found
        assert found.slug == "libraries"
        assert said in found.text


def test_a_missing_driver_is_told_before_the_library_of_its_toolkit() -> None:
    needs = {"rocm": {"runtime": "10.0", "gfx": ["gfx1100"]}, "libraries": [HIPBLAS]}
    needy = release({**linux_variants(), "rocm-10.0": variant("rocm", needs)})
    (build,) = (
        each for each in needy.platforms["linux-amd64"].variants if each.name == "rocm-10.0"
    )
    lacks = {HIPBLAS: HIPBLAS}
    absent = why_not(build, machine(libraries=lacks))
    assert absent
    assert absent.slug == "api-not-asked"
    without = why_not(build, machine(rocm("gfx1030"), libraries=lacks))
    assert without
    assert without.slug == "rocm-gfx"
    lacking = why_not(build, machine(rocm("gfx1100"), libraries=lacks))
    assert lacking
    assert lacking.slug == "libraries"


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("Intel(R) Arc(TM) B580 Graphics", True),
        ("QUALCOMM Adreno(TM) 741", True),
        ("NVIDIA H200", False),
        ("gfx1100", False),
    ],
)
def test_an_opencl_build_that_names_no_device_is_for_adreno_and_intel(
    name: str, fits: bool
) -> None:
    """``add`` cannot see the maker in the files, and ggml-opencl refuses all others."""
    gpu = Gpu("opencl", 0, name, GpuKind.DISCRETE, 8 << 30)
    api = Api("opencl", ApiState.OK, "libOpenCL.so.1", "3.0", gpus=(gpu,))
    offered = release({"opencl": variant("opencl", {}), "cpu": variant("cpu", {})})
    found = select(offered, machine(api), Request())
    assert (found.selected.variant.name == "opencl") is fits
    if not fits:
        assert reason(found, "opencl") == "opencl-device"


@pytest.mark.parametrize(
    "requires",
    [
        {"vulkan": "1.2"},
        {"level_zero": True},
        {"openvino": True},
        {"metal": True},
        {"opencl": {"device": "Arc"}},
        {"cuda": {"toolkit": "13.4", "sass": ["8.9"], "ptx": []}},
        {"rocm": {"runtime": "10.0", "gfx": ["gfx1100"]}},
    ],
    ids=lambda requires: next(iter(requires)),
)
def test_a_requirement_on_another_api_counts_for_any_backend(requires: dict[str, Any]) -> None:
    """For example a build with the plugins of two backends."""
    both = {"cuda": {"toolkit": "13.4", "sass": ["8.9"], "ptx": []}, **requires}
    offered = release({"both": variant("cuda", both), "cpu": variant("cpu", requires)})
    alone = set(requires) == {"cuda"}
    found = names(select(offered, machine(cuda()), Request()))
    assert found == (["both", "cpu"] if alone else [])
    if "vulkan" in requires:
        assert names(select(offered, machine(cuda(), vulkan()), Request())) == ["both", "cpu"]
        assert names(select(offered, machine(cuda(), vulkan(version="1.1")), Request())) == []


def test_a_named_problem_is_the_reason() -> None:
    problem = Problem("reboot-needed", "the driver was updated", "reboot", transient=True)
    api = Api("cuda", ApiState.FAILED, "libcuda.so.1", problem=problem)
    assert reason(choose(machine(api)), "cuda-12.8") == "reboot-needed"


# --- the words that users bring along ----------------------------------------------------

# The same cards as those of ``rocm`` and ``cuda``, with the same memory.
RADEON = Gpu("vulkan", 0, "RX 7800", GpuKind.DISCRETE, 16 << 30, AMD, api_version="1.3")
GEFORCE = Gpu("vulkan", 1, "RTX 3090", GpuKind.DISCRETE, 24 << 30, NVIDIA, api_version="1.3")
ARC = Gpu("vulkan", 2, "Arc A380", GpuKind.DISCRETE, 6 << 30, INTEL, api_version="1.3")
LLVMPIPE = Gpu("vulkan", 3, "llvmpipe", GpuKind.SOFTWARE, vendor_id=0x10005, api_version="1.3")


def listed(*gpus: Gpu) -> Api:
    return Api("vulkan", ApiState.OK, "libvulkan.so.1", "1.3", gpus=gpus)


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("hip", "rocm"),
        ("HIP", "rocm"),
        ("oneAPI", "sycl"),
        ("level_zero", "sycl"),
        ("OCL", "opencl"),
        ("npu", "openvino"),
        ("Apple", "metal"),
        ("Vulkan", "vulkan"),
        ("CUDA-12.8", "cuda-12.8"),
        ("GPU", "gpu"),
        ("Auto", "auto"),
        ("NVIDIA", "nvidia"),
    ],
)
def test_another_name_of_a_backend_asks_for_that_backend(word: str, same: str) -> None:
    hardware = machine(cuda(), vulkan(), rocm("gfx1100"))
    selection = choose(hardware, word)
    assert selection == choose(hardware, same)
    assert selection.requested == same


@pytest.mark.parametrize(
    ("word", "best", "gpu"),
    [
        ("nvidia", ["cuda-13.4", "cuda-12.8", "vulkan"], GEFORCE),
        ("amd", ["rocm-10.0", "vulkan"], RADEON),
        ("intel", ["vulkan"], ARC),
    ],
)
def test_a_maker_means_its_gpus_and_its_own_interface_first(
    word: str, best: list[str], gpu: Gpu
) -> None:
    hardware = machine(cuda(), rocm("gfx1100"), listed(RADEON, GEFORCE, ARC))
    selection = choose(hardware, word)
    assert names(selection) == best
    (through_vulkan,) = (each for each in selection.compatible if each.variant.name == "vulkan")
    assert through_vulkan.gpu == gpu


def test_the_users_own_order_counts_for_a_maker_too() -> None:
    hardware = machine(cuda(), listed(GEFORCE))
    selection = select(release(), hardware, Request("nvidia", ("vulkan", "cuda")))
    assert names(selection) == ["vulkan", "cuda-13.4", "cuda-12.8"]


def test_a_maker_without_a_gpu_here_gets_no_other_makers_gpu() -> None:
    selection = choose(machine(listed(RADEON, LLVMPIPE)), "nvidia")
    assert names(selection) == []
    reasons = {each.variant.name: each.reason for each in selection.rejected}
    assert reasons["vulkan"].text == "nvidia was requested, the Vulkan loader lists no such GPU"
    assert reasons["vulkan"].slug == "no-device-of-maker"
    assert reasons["cpu"].slug == "not-requested"
    assert reasons["rocm-10.0"].slug == "not-requested"


def test_a_machines_own_reason_comes_before_the_maker() -> None:
    selection = choose(machine(), "amd")
    assert reason(selection, "vulkan") == "api-not-asked"
    old = dataclasses.replace(GEFORCE, api_version="1.0")
    selection = choose(machine(listed(RADEON, old)), "nvidia")
    assert reason(selection, "vulkan") == "vulkan"


def test_an_interface_of_one_maker_needs_no_number_of_the_pci_bus() -> None:
    assert names(choose(machine(cuda(), vulkan()), "nvidia")) == ["cuda-13.4", "cuda-12.8"]


@pytest.mark.parametrize("word", ["nvidia", "hip"])
def test_a_variant_of_that_name_is_what_its_name_asks_for(word: str) -> None:
    variants = {**linux_variants(), word: variant("vulkan", {"vulkan": "1.2"})}
    hardware = machine(cuda(), rocm("gfx1100"), listed(RADEON))
    assert names(select(release(variants), hardware, Request(word.upper()))) == [word]


@pytest.mark.parametrize(
    ("word", "near"),
    [("cudda", "cuda"), ("vulcan", "vulkan"), ("nvida", "nvidia"), ("onapi", "oneapi")],
)
def test_a_mistyped_word_gets_the_most_similar_one(word: str, near: str) -> None:
    with pytest.raises(UnknownRequest) as caught:
        choose(machine(), word)
    assert caught.value.hint == f"did you mean {near}?"


# --- properties ------------------------------------------------------------------------

capabilities = st.sampled_from(
    ["5.0", "6.1", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "12.0"]
)
versions = st.sampled_from(["11.8", "12.2", "12.8", "13.0", "13.4"])
vulkan_versions = st.sampled_from(["1.0", "1.1", "1.2.7", "1.3"])
kinds = st.sampled_from(list(GpuKind))
apis = st.lists(
    st.one_of(
        st.builds(cuda, capabilities, versions),
        st.builds(vulkan, kinds, kinds, version=vulkan_versions, device=vulkan_versions),
        st.builds(rocm, st.sampled_from(["gfx803", "gfx1030", "gfx1100"])),
    ),
    max_size=3,
    unique_by=lambda api: api.name,
)
machines = st.builds(
    lambda found, glibc, cxx: machine(*found, libc=Libc("glibc", glibc), libstdcxx=cxx),
    apis,
    st.sampled_from(["2.31", "2.34", "2.36", "2.39"]),
    st.sampled_from(["3.4.28", "3.4.30", "3.4.33"]),
)


@given(machines, st.sampled_from(REQUESTS), st.sampled_from(POLICIES))
def test_every_variant_is_either_ranked_or_has_one_reason(
    hardware: Hardware, backend: str, prefer: str
) -> None:
    selection = choose(hardware, backend, prefer)
    sorted_names = [*names(selection), *(r.variant.name for r in selection.rejected)]
    assert sorted(sorted_names) == sorted(linux_variants())
    assert [candidate.rank for candidate in selection.compatible] == list(
        range(1, len(selection.compatible) + 1)
    )
    assert all(each.reason.slug and each.reason.text for each in selection.rejected)
    assert selection == choose(hardware, backend, prefer)


@given(
    st.lists(st.sampled_from([RADEON, GEFORCE, ARC, LLVMPIPE]), unique=True),
    st.sampled_from([(), (cuda(),), (rocm("gfx1100"),), (cuda(), rocm("gfx803"))]),
    st.sampled_from([*VENDORS]),
    st.sampled_from([*POLICIES, ("cpu", "vulkan"), ("rocm", "cuda", "vulkan")]),
)
def test_a_maker_gets_its_own_gpus_only_and_what_any_gpu_would_get(
    gpus: list[Gpu], others: tuple[Api, ...], word: str, prefer: str | tuple[str, ...]
) -> None:
    hardware = machine(listed(*gpus), *others)
    selection = select(release(), hardware, Request(word, prefer))
    for each in selection.compatible:
        assert each.gpu
        assert is_made_by(VENDORS[word], each.gpu.api, each.gpu)
    assert {*names(selection)} <= {*names(choose(hardware, "gpu"))}
    of_all = {name for vendor in VENDORS for name in names(choose(hardware, vendor))}
    assert of_all == {*names(choose(hardware, "gpu"))}


@given(machines, st.randoms(use_true_random=False), st.sampled_from(POLICIES))
def test_the_order_in_which_drivers_are_asked_does_not_matter(
    hardware: Hardware, random: Random, prefer: str
) -> None:
    apis = list(hardware.apis)
    random.shuffle(apis)
    shuffled = dataclasses.replace(hardware, apis=tuple(apis))
    assert choose(shuffled, prefer=prefer) == choose(hardware, prefer=prefer)


FLOORED = {
    "cpu-v3": variant("cpu", {"x86_64_level": 3}),
    "cpu-v4": variant("cpu", {"x86_64_level": 4, "memory": 32 << 30}),
    "cpu-vnni": variant("cpu", {"cpu_features": ("avx512_vnni", "avx_vnni")}),
    "sycl": variant("sycl", {"level_zero": True}),
}
INSTRUCTION_SETS = ("avx2", "avx512_vnni", "avx_vnni")


cpus = st.builds(
    Cpu,
    st.none(),
    st.none(),
    st.lists(st.sampled_from(INSTRUCTION_SETS), min_size=1, unique=True).map(tuple),
    st.integers(1, 4),
)


@given(machines, apis, cpus, st.integers(0, 3), st.integers(30, 40))
def test_more_capability_never_removes_a_variant(
    hardware: Hardware, extras: list[Api], cpu: Cpu, more: int, memory: int
) -> None:
    offered = release({**linux_variants(), **FLOORED})
    poor = dataclasses.replace(hardware, cpu=cpu, memory=1 << memory)
    joined = {api.name: api for api in hardware.apis}
    joined |= {extra.name: _joined(hardware.api(extra.name), extra) for extra in extras}
    rich = dataclasses.replace(
        hardware,
        libc=Libc("glibc", "2.40"),
        libstdcxx="3.4.40",
        cpu=Cpu(None, None, INSTRUCTION_SETS, min(4, (cpu.level or 1) + more)),
        memory=1 << memory + more,
        apis=tuple(joined.values()),
    )
    before, after = (set(names(select(offered, each, Request()))) for each in (poor, rich))
    assert before <= after


def _joined(have: Api, extra: Api) -> Api:
    if have.state is ApiState.NOT_ASKED:
        return extra
    newest = max(
        have.version or "0", extra.version or "0", key=lambda v: tuple(map(int, v.split(".")))
    )
    return dataclasses.replace(have, version=newest, gpus=(*have.gpus, *extra.gpus))


@pytest.mark.parametrize(("word", "instead"), [("mlx", "metal"), ("DirectML", "vulkan")])
def test_a_word_for_what_others_have_is_told_what_it_means_here(word: str, instead: str) -> None:
    """And not the name that is spelled nearly like it."""
    with pytest.raises(UnknownRequest) as caught:
        known_request(word, ("vulkan", "cpu"))
    assert f"--backend {instead}" in caught.value.hint
    assert "did you mean" not in caught.value.hint
    assert known_request("xpu", ()) == "sycl"
