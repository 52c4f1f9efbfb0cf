"""The device list in the wordings of several versions, and what is read out of it."""

import pytest

from tsuku_llm.launch import ListedDevice, parse_devices
from tsuku_llm.launch.devices import choose, own_devices

MIB = 1024 * 1024
H200 = ListedDevice("Vulkan0", "NVIDIA H200", 143771 * MIB, 143000 * MIB)

LISTS = {
    "current": (
        "Available devices:\n  Vulkan0: NVIDIA H200 (143771 MiB, 143000 MiB free)\n",
        (H200,),
    ),
    "none": ("Available devices:\n  (none)\n", ()),
    "nothing-after-heading": ("Available devices:\n", ()),
    "empty": ("", ()),
    "no-list": ("error: invalid argument: --list-devices\n", ()),
    "log-lines-before": (
        "ggml_cuda_init: found 1 CUDA devices:\n"
        "  Device 0: NVIDIA A10G, compute capability 8.6, VMM: yes\n"
        "load_backend: loaded CUDA backend from /opt/libggml-cuda.so\n"
        "Available devices:\n"
        "  CUDA0: NVIDIA A10G (22723 MiB, 22500 MiB free)\n",
        (ListedDevice("CUDA0", "NVIDIA A10G", 22723 * MIB, 22500 * MIB),),
    ),
    "brackets-in-the-name": (
        "available devices:\r\n"
        "  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)\r\n"
        "  Vulkan1: Intel(R) Iris(R) Xe Graphics (15000 MiB, 14000 MiB free)\r\n",
        (
            ListedDevice(
                "Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24560 * MIB, 24000 * MIB
            ),
            ListedDevice("Vulkan1", "Intel(R) Iris(R) Xe Graphics", 15000 * MIB, 14000 * MIB),
        ),
    ),
    "no-memory": (
        "Available devices:\n  MTL0: Apple M3 Max\n  BLAS: Accelerate (0 MiB, 0 MiB free)\n",
        (ListedDevice("MTL0", "Apple M3 Max"), ListedDevice("BLAS", "Accelerate", 0, 0)),
    ),
    "other-memory-wording": (
        "List of devices:\n  ROCm0: AMD Instinct MI300X (196288 MiB total; 195000 MiB free)\n"
        "  SYCL0: Intel Arc A770 (15473 MiB)\n",
        (
            ListedDevice("ROCm0", "AMD Instinct MI300X", 196288 * MIB, 195000 * MIB),
            ListedDevice("SYCL0", "Intel Arc A770", 15473 * MIB),
        ),
    ),
    "rpc": (
        "Available devices:\n  RPC0[10.0.0.2:50052]: RPC0 (8000 MiB, 7000 MiB free)\n",
        (ListedDevice("RPC0[10.0.0.2:50052]", "RPC0", 8000 * MIB, 7000 * MIB),),
    ),
}


@pytest.mark.parametrize(("text", "expected"), LISTS.values(), ids=LISTS)
def test_lists_are_read(text: str, expected: tuple[ListedDevice, ...]) -> None:
    assert parse_devices(text) == expected


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
    assert " ".join(device.name for device in own) == expected


TWO_CARDS = (
    ListedDevice("Vulkan0", "Intel(R) Graphics (ADL GT2)"),
    ListedDevice("Vulkan1", "NVIDIA GeForce RTX 4090"),
    ListedDevice("Vulkan2", "NVIDIA GeForce RTX 4090"),
)


@pytest.mark.parametrize(
    ("expected", "device"),
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
def test_the_expected_device_is_found_by_its_name(expected: str | None, device: str | None) -> None:
    assert choose(TWO_CARDS, expected) == device
