"""The device list in the wordings of several versions, and what is read out of it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.plan.devices import (
    ListedDevice,
    choose,
    own_devices,
    parse_devices,
    with_kinds,
)

MIB = 1024 * 1024

CUDA_LOG = """\
ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA A10G, compute capability 8.6, VMM: yes
load_backend: loaded CUDA backend from /opt/libggml-cuda.so
Available devices:
  CUDA0: NVIDIA A10G (22723 MiB, 22500 MiB free)
"""
TWO_VENDORS = """\
available devices:\r
  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)\r
  Vulkan1: Intel(R) Iris(R) Xe Graphics (15000 MiB, 14000 MiB free)\r
"""
OTHER_WORDS = """\
List of devices:
  ROCm0: AMD Instinct MI300X (196288 MiB total; 195000 MiB free)
  SYCL0: Intel Arc A770 (15473 MiB)
"""


def device(name: str, description: str, memory: int, free: int | None = None) -> ListedDevice:
    return ListedDevice(name, description, memory * MIB, None if free is None else free * MIB)


LISTS = {
    "current": (
        "Available devices:\n  Vulkan0: NVIDIA H200 (143771 MiB, 143000 MiB free)\n",
        [device("Vulkan0", "NVIDIA H200", 143771, 143000)],
    ),
    "none": ("Available devices:\n  (none)\n", []),
    "nothing-after-heading": ("Available devices:\n", []),
    "empty": ("", None),
    "no-list": ("error: invalid argument: --list-devices\n", None),
    "log-before": (CUDA_LOG, [device("CUDA0", "NVIDIA A10G", 22723, 22500)]),
    "brackets-in-a-name": (
        TWO_VENDORS,
        [
            device("Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24560, 24000),
            device("Vulkan1", "Intel(R) Iris(R) Xe Graphics", 15000, 14000),
        ],
    ),
    "no-memory": (
        "Available devices:\n  MTL0: Apple M3 Max\n  BLAS: Accelerate (0 MiB, 0 MiB free)\n",
        [ListedDevice("MTL0", "Apple M3 Max"), device("BLAS", "Accelerate", 0, 0)],
    ),
    "other-words": (
        OTHER_WORDS,
        [
            device("ROCm0", "AMD Instinct MI300X", 196288, 195000),
            device("SYCL0", "Intel Arc A770", 15473),
        ],
    ),
    "rpc": (
        "Available devices:\n  RPC0[10.0.0.2:50052]: RPC0 (8000 MiB, 7000 MiB free)\n",
        [device("RPC0[10.0.0.2:50052]", "RPC0", 8000, 7000)],
    ),
}


@pytest.mark.parametrize(("text", "expected"), LISTS.values(), ids=LISTS)
def test_device_lists_are_parsed(text: str, expected: list[ListedDevice] | None) -> None:
    assert parse_devices(text) == (None if expected is None else tuple(expected))


def named(*names: str) -> tuple[ListedDevice, ...]:
    return tuple(ListedDevice(name, "a GPU") for name in names)


@pytest.mark.parametrize(
    ("backend", "listed", "expected"),
    [
        ("vulkan", "Vulkan0 Vulkan1", "Vulkan0 Vulkan1"),
        ("cuda", "CUDA0 BLAS", "CUDA0"),
        ("rocm", "ROCm0", "ROCm0"),
        ("rocm", "HIP0", "HIP0"),
        ("sycl", "SYCL0", "SYCL0"),
        ("opencl", "GPUOpenCL", "GPUOpenCL"),
        ("metal", "MTL0 BLAS", "MTL0"),
        ("metal", "Metal", "Metal"),
        ("openvino", "OPENVINO0", "OPENVINO0"),
        ("vulkan", "VK0", "VK0"),
        ("vulkan", "CUDA0", ""),
        ("cuda", "CPU BLAS RPC0", ""),
        ("cuda", "", ""),
    ],
)
def test_a_backend_owns_its_devices(backend: str, listed: str, expected: str) -> None:
    own = own_devices(named(*listed.split()), backend)
    assert " ".join(each.name for each in own) == expected


TWO_CARDS = (
    ListedDevice("Vulkan0", "Intel(R) Graphics (ADL GT2)"),
    ListedDevice("Vulkan1", "NVIDIA GeForce RTX 4090"),
    ListedDevice("Vulkan2", "NVIDIA GeForce RTX 4090"),
)


@pytest.mark.parametrize(
    ("expected", "chosen"),
    [
        (None, None),
        ("NVIDIA GeForce RTX 4090", "Vulkan1,Vulkan2"),
        ("nvidia  geforce rtx 4090", "Vulkan1,Vulkan2"),
        ("Intel(R) Graphics", "Vulkan0"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "Vulkan1,Vulkan2"),
        ("AMD Radeon", None),
        ("", None),
    ],
)
def test_the_expected_device_is_found_by_its_name(expected: str | None, chosen: str | None) -> None:
    assert choose(TWO_CARDS, expected) == chosen


UMA_LOG = """\
ggml_vulkan: Found 3 Vulkan devices:
ggml_vulkan: 0 = AMD Radeon Graphics (RADV PHOENIX) (radv) | uma: 1 | fp16: 1 | bf16: 0
ggml_vulkan: 1 = NVIDIA H200 (NVIDIA) | uma: 0 | fp16: 1 | matrix cores: NV_coopmat2
ggml_vulkan: 2 = Odd | uma: 1 | one (x) | uma: 0 | fp16: 1
"""


def test_the_log_of_vulkan_tells_integrated_devices() -> None:
    listed = named("Vulkan0", "Vulkan1", "Vulkan2", "Vulkan3", "CUDA0")
    found = [each.integrated for each in with_kinds(listed, UMA_LOG)]
    assert found == [True, False, False, None, None]
    assert with_kinds(listed, "ggml_vulkan: 0 = cut off | uma:") == listed


NAMES_OF_CARDS = {
    "NVIDIA GeForce RTX 4090": "NVIDIA GeForce RTX 4090",
    "NVIDIA H200": "NVIDIA H200 (NVIDIA)",
    "NVIDIA H200 MIG 1g.18gb": "NVIDIA H200",
    "Quadro K620": "Quadro K620",
}
OF_OTHERS = (
    "AMD Radeon RX 6700 XT (RADV NAVI22)",
    "Radeon RX 580 Series",
    "Intel(R) Arc(tm) A770 Graphics (DG2)",
)
UNKNOWN = ("llvmpipe (LLVM 17.0.6, 256 bits)", "a card")


@given(
    st.lists(st.sampled_from(sorted(NAMES_OF_CARDS)), min_size=1),
    st.lists(st.sampled_from(OF_OTHERS + UNKNOWN)),
    st.randoms(),
)
def test_a_combined_build_lists_every_card_once(
    nvidia: list[str], others: list[str], order: Random
) -> None:
    """Both interfaces list the first cards, in an order of their own; Vulkan alone the others."""
    through_vulkan = [*(NAMES_OF_CARDS[name] for name in nvidia), *others]
    order.shuffle(through_vulkan)
    listed = (
        *(ListedDevice(f"CUDA{at}", name) for at, name in enumerate(nvidia)),
        *(ListedDevice(f"Vulkan{at}", name) for at, name in enumerate(through_vulkan)),
    )
    own = own_devices(listed, "cuda+vulkan")
    assert [each.description for each in own if each.name.startswith("CUDA")] == nvidia
    joined = [each.description for each in own if each.name.startswith("Vulkan")]
    # A device of no known maker may be one of the first cards.
    assert sorted(joined) == sorted(each for each in others if each in OF_OTHERS)


def test_a_card_that_its_makers_interface_hides_is_listed_by_the_other() -> None:
    listed = (
        ListedDevice("Vulkan0", "NVIDIA H200"),
        ListedDevice("Vulkan1", "AMD Radeon RX 6700 XT (RADV NAVI22)"),
    )
    assert own_devices(listed, "cuda+vulkan") == listed


def test_an_integrated_amd_gpu_comes_through_rocm_alone() -> None:
    listed = (
        ListedDevice("ROCm0", "AMD Radeon Graphics"),
        ListedDevice("Vulkan0", "AMD Radeon 8060S (RADV GFX1151)"),
        ListedDevice("Vulkan1", "NVIDIA GeForce RTX 4090"),
    )
    assert [each.name for each in own_devices(listed, "rocm+vulkan")] == ["ROCm0", "Vulkan1"]
