"""Every kind of requirement against any machine: the rules once more, by plain tuples."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import machine, release, variant

from tsuku_llm.catalog.manifest import Variant
from tsuku_llm.choose.fitting import ptx_serves, sass_serves, why_not
from tsuku_llm.machine.backends import NAMES, facts_of
from tsuku_llm.machine.hardware import Api, ApiState, Cpu, Gpu, GpuKind, Hardware, Libc

VERSIONS = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(
    lambda numbers: ".".join(map(str, numbers))
)
LIBRARIES = ("libone.so.1", "libtwo.so.2")
FEATURES = ("avx", "avx2", "fma", "avx512f")
CAPABILITIES = ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0", "12.1")
CODE = st.lists(st.sampled_from([*CAPABILITIES, "9.0a", "12.0a"]), max_size=3)

REQUIREMENTS: dict[str, st.SearchStrategy[Any]] = {
    "glibc": VERSIONS,
    "musl": st.booleans(),
    "libstdcxx": VERSIONS,
    "macos": VERSIONS,
    "vcruntime": VERSIONS,
    "libraries": st.lists(st.sampled_from(LIBRARIES), max_size=3),
    "x86_64_level": st.integers(1, 4),
    "cpu_features": st.lists(st.sampled_from(FEATURES), max_size=3),
    "memory": st.integers(0, 5),
    "vulkan": VERSIONS,
    "cuda": st.fixed_dictionaries({"toolkit": VERSIONS, "sass": CODE, "ptx": CODE}),
    "rocm": st.fixed_dictionaries(
        {
            "runtime": VERSIONS,
            "gfx": st.lists(st.sampled_from(["gfx90a", "gfx1100"]), max_size=2),
        }
    ),
    "opencl": st.fixed_dictionaries({"device": st.sampled_from(["Adreno", "adreno", "Mali"])}),
    "a requirement of tomorrow": st.just(True),
}
BACKENDS = st.sampled_from(NAMES)

MACHINES = st.builds(
    Hardware,
    os=st.just("linux"),
    arch=st.just("amd64"),
    os_version=st.none() | VERSIONS,
    libc=st.none() | st.builds(Libc, st.sampled_from(["glibc", "musl"]), st.none() | VERSIONS),
    libstdcxx=st.none() | VERSIONS,
    vcruntime=st.none() | VERSIONS,
    libraries=st.dictionaries(
        st.sampled_from(LIBRARIES), st.none() | st.sampled_from([*LIBRARIES, "libthree.so.3"])
    ),
    cpu=st.none()
    | st.builds(
        Cpu,
        st.none(),
        st.none(),
        st.lists(st.sampled_from(FEATURES)).map(tuple),
        st.none() | st.integers(1, 4),
    ),
    memory=st.none() | st.integers(0, 5),
)
GPUS = st.builds(
    Gpu,
    st.just("any"),
    st.just(0),
    st.sampled_from(["Qualcomm Adreno X1", "Mali G710", "another"]),
    st.sampled_from([kind for kind in GpuKind if kind is not GpuKind.SOFTWARE]),
    compute_capability=st.none() | st.sampled_from(CAPABILITIES),
    gfx=st.none() | st.sampled_from(["gfx90a", "gfx1030", "gfx1100"]),
    api_version=st.none() | VERSIONS,
    storage_16bit=st.none() | st.booleans(),
)


def numbers(version: str) -> tuple[int, ...]:
    """A version without its final zeros, as 1.0 is 1."""
    parts = [int(part) for part in version.split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def below(have: str | None, floor: str | None) -> bool:
    return have is not None and floor is not None and numbers(have) < numbers(floor)


def names_another_api(requires: dict[str, Any], backend: str) -> bool:
    """Whether a requirement is about an API of another backend, which these machines lack."""
    return bool({"cuda", "rocm", "vulkan", "opencl"} & requires.keys() - {backend})


def made(backend: str, requires: dict[str, Any]) -> Variant:
    (found,) = release({"cpu": variant(backend, requires)}).platforms["linux-amd64"].variants
    return found


def system_fits(requires: dict[str, Any], hardware: Hardware) -> bool:
    cpu, libc = hardware.cpu or Cpu(None, None), hardware.libc
    missing = set(requires.get("cpu_features", ())) - set(cpu.features)
    return not (
        "a requirement of tomorrow" in requires
        or ("glibc" in requires and libc is not None and libc.name != "glibc")
        or (requires.get("musl") and libc is not None and libc.name != "musl")
        or below(libc.version if libc else None, requires.get("glibc"))
        or below(hardware.libstdcxx, requires.get("libstdcxx"))
        or below(hardware.os_version, requires.get("macos"))
        or below(hardware.vcruntime, requires.get("vcruntime"))
        or any(hardware.libraries.get(name) for name in requires.get("libraries", ()))
        or (cpu.level is not None and cpu.level < requires.get("x86_64_level", 1))
        or (cpu.features and missing)
        or (hardware.memory is not None and hardware.memory < requires.get("memory", 0))
    )


def device_fits(backend: str, requires: dict[str, Any], version: str | None, gpu: Gpu) -> bool:
    needed = requires.get(backend)
    if backend == "vulkan":
        needed = needed or "0"
    if backend == "opencl" and needed is None:
        return any(maker in gpu.name for maker in ("Adreno", "QUALCOMM", "Intel"))
    if needed is None or backend not in ("cuda", "rocm", "vulkan", "opencl"):
        return True
    if backend == "rocm":
        # libamdhip64.so.5, .6, .7: one for each major version, and ROCm 10 still has 7.
        same = version is None or library_of(version) == library_of(needed["runtime"])
        return gpu.gfx in needed["gfx"] and same
    if backend == "vulkan":
        return gpu.storage_16bit is not False and not (
            below(version, needed) or below(gpu.api_version, needed)
        )
    if backend == "opencl":
        return needed["device"].lower() in gpu.name.lower()
    return cuda_fits(needed, version, gpu.compute_capability)


def library_of(version: str) -> int:
    return min(7, int(version.split(".", maxsplit=1)[0]))


def cuda_fits(needed: dict[str, Any], driver: str | None, capability: str | None) -> bool:
    if capability is None:
        return False
    major, minor = map(int, capability.split("."))
    for entry in needed["sass"]:
        code, device = entry.rstrip("a").split("."), (major, minor)
        exact = entry.endswith("a")
        same = (int(code[0]), int(code[1])) == device
        if same or (not exact and int(code[0]) == major and int(code[1]) <= minor):
            # The gate starts the build, and finds a driver that is too old for its machine code.
            major = int(needed["toolkit"].split(".")[0])
            return driver is None or int(driver.split(".")[0]) >= major
    compiles = any(
        entry == f"{capability}a" or (not entry.endswith("a") and not below(capability, entry))
        for entry in needed["ptx"]
    )
    # The gate cannot find a driver that is too old for PTX: its version must be known.
    return compiles and driver is not None and not below(driver, needed["toolkit"])


@given(st.fixed_dictionaries({}, optional=REQUIREMENTS), MACHINES)
def test_a_system_fits_exactly_when_it_has_every_minimum_version(
    requires: dict[str, Any], hardware: Hardware
) -> None:
    found = why_not(made("cpu", requires), hardware)
    fits = system_fits(requires, hardware) and not names_another_api(requires, "cpu")
    assert (found is None) == fits, found


@given(BACKENDS, st.fixed_dictionaries({}, optional=REQUIREMENTS), st.none() | VERSIONS, GPUS)
def test_a_device_fits_exactly_when_the_build_has_code_for_it(
    backend: str, requires: dict[str, Any], version: str | None, gpu: Gpu
) -> None:
    requires.pop("a requirement of tomorrow", None)
    name = facts_of(backend).api
    apis = (Api(name, ApiState.OK, None, version, gpus=(gpu,)),) if name else ()
    hardware = replace(
        machine(*apis),
        **dict.fromkeys(("libc", "libstdcxx", "cpu", "memory")),
    )
    found = why_not(made(backend, requires), hardware)
    fits = backend == "cpu" or device_fits(backend, requires, version, gpu)
    assert (found is None) == (fits and not names_another_api(requires, backend))


@given(
    BACKENDS,
    st.fixed_dictionaries({}, optional=REQUIREMENTS),
    st.sampled_from(sorted(REQUIREMENTS)),
    MACHINES,
)
def test_a_further_requirement_never_makes_a_variant_fit(
    backend: str, requires: dict[str, Any], dropped: str, hardware: Hardware
) -> None:
    fewer = {key: value for key, value in requires.items() if key != dropped}
    if why_not(made(backend, requires), hardware) is None:
        assert why_not(made(backend, fewer), hardware) is None


@pytest.mark.parametrize(
    ("entry", "capability", "sass", "ptx"),
    [
        ("8.6", "8.9", True, True),
        ("8.6", "8.0", False, False),
        ("8.6", "9.0", False, True),
        ("9.0a", "9.0", True, True),
        ("9.0a", "10.0", False, False),
        ("12.0a", "12.1", False, False),
        ("9.0", "10.0", False, True),
    ],
)
def test_architecture_specific_code_runs_only_on_that_architecture(
    entry: str, capability: str, sass: bool, ptx: bool
) -> None:
    assert (sass_serves(entry, capability), ptx_serves(entry, capability)) == (sass, ptx)
