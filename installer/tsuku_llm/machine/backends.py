"""The table of backends: one row with everything that the program knows about each.

The other modules read this table and name no backend of their own, except for a rule that only
one backend has. ``tests/test_backends.py`` lists these exceptions. CONTRIBUTING.md says what else
a new backend needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import permutations
from typing import Literal, NamedTuple, get_args

from tsuku_llm.ground.own_name import TSUKU

BackendName = Literal["cpu", "cuda", "rocm", "sycl", "vulkan", "opencl", "openvino", "metal"]
"""The names of all rows, for the manifest's parser and for mypy."""

Policy = Literal["portable", "native"]
"""The names of the manifest's orders of backends.

The default puts Vulkan first: one archive of 32 MB serves all makers, and is not tied to a driver's
version. On an H200 it generated a fifth fewer tokens per second than CUDA.
"""

NAMES: tuple[str, ...] = get_args(BackendName)
POLICIES: tuple[str, ...] = get_args(Policy)

# The vendor numbers of the PCI bus.
NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086

VENDORS: Mapping[str, int] = {"nvidia": NVIDIA, "amd": AMD, "intel": INTEL}
"""The makers of GPUs that a user may request instead of a backend."""

REQUESTS: tuple[str, ...] = ("auto", "gpu", *VENDORS, *NAMES)
"""The words for a request, besides the names of variants; ``meaning`` knows others for them."""

VENDOR_DRIVER = "install the GPU's driver from its vendor"

_COMPANION = f"the CUDA companion archive is missing: {TSUKU} install --force"
_ROCM = "install the ROCm runtime of the variant's version, with AMD's packages hipblas and rocblas"
_ONEAPI = (
    "install Intel's oneAPI runtime: the packages intel-oneapi-runtime-dpcpp-cpp and "
    "intel-oneapi-runtime-mkl of its repositories"
)


class BackendFacts(NamedTuple):
    """A row: a backend of ggml, with the driver API that it needs.

    ``title`` is its name in sentences.
    ``api`` is the name of that API in ``Hardware``, empty for the CPU, and ``api_label`` its name
    in messages. ``words`` are other names that users bring along. ``api_fix`` says how to install
    the API on Linux, and ``api_libraries`` which libraries a package manager may have for it, by
    the vendor of the adapter. ``vendors`` are the makers of the adapters that the backend can use,
    as numbers of the PCI bus.

    ``device_prefixes`` are the beginnings of ggml's names for the devices, in lower case
    ("CUDA0", "MTL0"). ``plugin`` is the part of the plugin's file name after "ggml-".
    ``hiding_variables`` are the environment variables that choose or hide devices. ``given_by`` is
    the one that gives a build its devices, what its value has before their numbers, and the value
    that gives none. ``first_look`` says what to do first if the server lists no device.

    ``driver_memory`` is what a driver takes of a device for each process, in bytes, as measured on
    an H200 (ci/bench/performance.md); 0 if it was not measured.

    ``packages`` has the distributions' packages of the libraries that a build needs, by the
    beginning of the library's name and by family of distributions. ``library_fixes`` has the
    advice for libraries that come from no distribution's package.

    ``caches`` are the names of the drivers' caches in ``launch.plan.driver_caches``: what may
    compile code for this backend when it is first used.

    ``joins`` are the backends whose plugin can join a build of this one, for GPUs of other makers.
    """

    name: str
    title: str = ""
    api: str = ""
    api_label: str = ""
    words: tuple[str, ...] = ()
    api_fix: str = VENDOR_DRIVER
    api_libraries: Mapping[int, tuple[str, ...]] = {}
    vendors: frozenset[int] = frozenset({NVIDIA, AMD, INTEL})
    device_prefixes: tuple[str, ...] = ()
    plugin: str = ""
    hiding_variables: tuple[str, ...] = ()
    given_by: tuple[str, ...] = ()
    driver_memory: int = 0
    first_look: str = "check that the GPU's driver is installed"
    packages: Mapping[str, Mapping[str, str]] = {}
    library_fixes: Mapping[str, str] = {}
    caches: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()


TABLE = (
    BackendFacts("cpu", title="CPU", plugin="cpu"),
    BackendFacts(
        "cuda",
        title="CUDA",
        api="cuda",
        api_label="the NVIDIA driver (CUDA)",
        words=("cublas",),
        api_fix="install the NVIDIA driver (the CUDA toolkit is not needed)",
        vendors=frozenset({NVIDIA}),
        device_prefixes=("cuda",),
        plugin="cuda",
        hiding_variables=("CUDA_VISIBLE_DEVICES",),
        given_by=("CUDA_VISIBLE_DEVICES", "", "-1"),
        driver_memory=500 << 20,
        first_look="check that nvidia-smi lists the GPU; in a container, pass it in (--gpus all)",
        library_fixes={
            "libcuda": "install NVIDIA's driver; in a container, pass the GPU in (--gpus all)",
            "libcudart": _COMPANION,
            "libcublas": _COMPANION,
        },
        caches=("nvidia-compute",),
        joins=("vulkan",),
    ),
    BackendFacts(
        "rocm",
        title="ROCm",
        api="rocm",
        api_label="the ROCm runtime (HIP)",
        words=("hip", "hipblas"),
        api_fix="install ROCm's runtime",
        vendors=frozenset({AMD}),
        device_prefixes=("rocm", "hip"),
        plugin="hip",
        hiding_variables=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        given_by=("HIP_VISIBLE_DEVICES", "", "-1"),
        first_look="check that rocminfo lists the GPU and you may open /dev/kfd (group render)",
        # Fedora's and Arch's own packages, as public scripts install them; not tried on these
        # systems. Debian's names change with each version of ROCm, and most releases have none.
        packages={
            "libamdhip64.so.7": {"fedora": "rocm-hip", "arch": "hip-runtime-amd"},
            "libhipblas.so.3": {"fedora": "hipblas", "arch": "hipblas"},
            "librocblas.so.5": {"fedora": "rocblas", "arch": "rocblas"},
        },
        library_fixes={
            **dict.fromkeys(("libamdhip", "libhip", "librocblas", "librocsolver"), _ROCM),
            "hipblas.dll": "install AMD's HIP SDK for Windows, and add its folder bin to PATH",
        },
        caches=("amd-comgr",),
        joins=("vulkan",),
    ),
    BackendFacts(
        "sycl",
        title="SYCL",
        api="level_zero",
        api_label="the Level Zero loader",
        words=("oneapi", "level-zero", "level_zero", "xpu"),
        api_fix="install Intel's compute runtime and the Level Zero loader",
        vendors=frozenset({INTEL}),
        device_prefixes=("sycl",),
        plugin="sycl",
        hiding_variables=("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
        given_by=("ONEAPI_DEVICE_SELECTOR", "level_zero:", "!level_zero:*"),
        first_look="check that sycl-ls lists the GPU and you may open /dev/dri (group render)",
        packages={
            "libze_loader": {
                "debian": "libze1",
                "fedora": "oneapi-level-zero",
                "arch": "level-zero-loader",
                "suse": "libze_loader1",
            },
            "libsycl.so": {"arch": "intel-oneapi-dpcpp-cpp"},
            "libmkl_sycl": {"arch": "intel-oneapi-mkl-sycl"},
        },
        library_fixes=dict.fromkeys(
            ("libsycl", "libmkl_", "libimf", "libsvml", "libirng", "libintlc", "libtbb"), _ONEAPI
        ),
        caches=("intel-neo", "intel-sycl"),
    ),
    BackendFacts(
        "vulkan",
        title="Vulkan",
        api="vulkan",
        api_label="the Vulkan loader",
        words=("vk",),
        api_fix="install the Vulkan loader (libvulkan.so.1) and the GPU's Vulkan driver",
        api_libraries={
            AMD: ("libvulkan.so.1", "vulkan-driver-amd"),
            INTEL: ("libvulkan.so.1", "vulkan-driver-intel"),
            NVIDIA: ("libvulkan.so.1",),
        },
        device_prefixes=("vulkan",),
        plugin="vulkan",
        driver_memory=40 << 20,
        hiding_variables=(
            "GGML_VK_VISIBLE_DEVICES",
            "GGML_DISABLE_VULKAN",
            "VK_ICD_FILENAMES",
            "VK_DRIVER_FILES",
            "VK_LOADER_DRIVERS_DISABLE",
            "VK_LOADER_DRIVERS_SELECT",
            "MESA_VK_DEVICE_SELECT",
        ),
        given_by=("GGML_VK_VISIBLE_DEVICES", "", ""),
        first_look="check that vulkaninfo --summary lists the GPU",
        packages={
            "libvulkan": {
                "debian": "libvulkan1",
                "fedora": "vulkan-loader",
                "arch": "vulkan-icd-loader",
                "suse": "libvulkan1",
                "alpine": "vulkan-loader",
            }
        },
        caches=("nvidia-gl", "mesa"),
    ),
    BackendFacts(
        "opencl",
        title="OpenCL",
        api="opencl",
        api_label="the OpenCL loader",
        words=("ocl",),
        api_fix="install the OpenCL loader (libOpenCL.so.1) and the GPU's OpenCL driver",
        api_libraries={INTEL: ("libOpenCL.so.1", "opencl-driver-intel")},
        device_prefixes=("gpuopencl", "opencl"),
        plugin="opencl",
        hiding_variables=("GGML_OPENCL_PLATFORM", "GGML_OPENCL_DEVICE", "OCL_ICD_VENDORS"),
        # ggml_opencl_probe_devices: alone, a number counts the devices of all platforms and leaves
        # that one; of several numbers it reads the first. With a name of no device it ends.
        given_by=("GGML_OPENCL_DEVICE", "", "none"),
        first_look="check that clinfo lists the GPU",
        packages={
            "libOpenCL": {
                "debian": "ocl-icd-libopencl1",
                "fedora": "ocl-icd",
                "arch": "ocl-icd",
                "suse": "libOpenCL1",
                "alpine": "opencl-icd-loader",
            }
        },
        caches=("ggml-opencl", "nvidia-compute", "intel-neo", "amd-comgr", "mesa", "pocl"),
    ),
    BackendFacts(
        "openvino",
        title="OpenVINO",
        api="openvino",
        api_label="OpenVINO's Intel driver",
        # The only backend here that computes on a neural processor (NPU).
        words=("npu", "ov"),
        api_fix="install Intel's OpenCL driver",
        api_libraries={INTEL: ("opencl-driver-intel",)},
        packages={
            "opencl-driver-intel": {
                "debian": "intel-opencl-icd",
                "fedora": "intel-compute-runtime",
                "arch": "intel-compute-runtime",
                "suse": "intel-opencl",
            }
        },
        vendors=frozenset({INTEL}),
        device_prefixes=("openvino",),
        plugin="openvino",
        # Without it ggml's OpenVINO computes on the processor, so there is no card to keep it from.
        hiding_variables=("GGML_OPENVINO_DEVICE",),
        first_look="check that clinfo lists the GPU and you may open /dev/dri (group render)",
        caches=("intel-neo",),
    ),
    BackendFacts(
        "metal",
        title="Metal",
        api="metal",
        api_label="Metal",
        # Apple's GPUs have one backend, so the maker's name needs no rule of its own.
        words=("apple", "mtl"),
        device_prefixes=("mtl", "metal"),
        plugin="metal",
        first_look="Metal needs a Mac with a GPU, and no virtual machine",
    ),
)

ELSEWHERE: Mapping[str, str] = {
    "mlx": "MLX is another program of Apple; llama.cpp has Metal for its GPUs: --backend metal",
    "coreml": "Core ML is another program of Apple; llama.cpp has Metal for it: --backend metal",
    "webgpu": "no build here has WebGPU; Vulkan serves the same GPUs: --backend vulkan",
    "directml": "llama.cpp has no DirectML; on Windows, Vulkan serves all GPUs: --backend vulkan",
    "dml": "llama.cpp has no DirectML; on Windows, Vulkan serves all GPUs: --backend vulkan",
    "tensorrt": "TensorRT is another program of NVIDIA; llama.cpp has CUDA: --backend cuda",
    "musa": "no build here has MUSA; Vulkan may serve the same GPU: --backend vulkan",
    "cann": "no build here has CANN, for Ascend's processors",
    "hexagon": "no build here has Hexagon; OpenCL serves the same chip's GPU: --backend opencl",
    "qnn": "no build here has QNN; OpenCL serves the same chip's GPU: --backend opencl",
    "ane": "llama.cpp does not use Apple's Neural Engine, but the GPU: --backend metal",
    "tpu": "llama.cpp has nothing for TPUs; on the processor: --backend cpu",
    "rpc": "RPC is an option of a server (--rpc), not a backend to choose",
}
"""Words for what other programs have, or builds of others: what they mean here."""

_BY_NAME = {row.name: row for row in TABLE}
_BY_WORD = {word: row.name for row in TABLE for word in row.words if word not in NAMES}
WORDS: tuple[str, ...] = tuple(_BY_WORD)
"""The other names of backends that ``meaning`` knows."""
_BY_API = {row.api: row for row in TABLE if row.api}


def facts_of(name: str) -> BackendFacts:
    """Return a backend's row; for a name from a newer version, a row without any facts.

    The row of several ("cuda+vulkan") has what all of these have; ``api`` and the words about it
    are those of the first.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    if JOIN in name and all(part in _BY_NAME for part in parts_of(name)):
        return _joined(name)
    return BackendFacts(name, title=name, plugin=name)


JOIN = "+"
"""The sign between the backends of a build with several, and between the variants it is made of."""


def parts_of(backend: str) -> tuple[str, ...]:
    """Return the backends of a build: if it has several, the maker's own first."""
    return tuple(backend.split(JOIN))


@cache
def _joined(name: str) -> BackendFacts:
    first, *others = rows = [_BY_NAME[part] for part in parts_of(name)]
    return first._replace(
        name=name,
        title=" and ".join(row.title for row in rows),
        words=(),
        vendors=first.vendors.union(*(row.vendors for row in others)),
        device_prefixes=tuple(prefix for row in rows for prefix in row.device_prefixes),
        hiding_variables=tuple(
            dict.fromkeys(name for row in rows for name in row.hiding_variables)
        ),
        driver_memory=max(row.driver_memory for row in rows),
        packages={key: value for row in rows for key, value in row.packages.items()},
        library_fixes={key: value for row in rows for key, value in row.library_fixes.items()},
        caches=tuple(dict.fromkeys(cache for row in rows for cache in row.caches)),
        joins=(),
    )


def build_name(backend: str, release: str) -> str:
    """Return a build as people know it: ``the Vulkan build b11429``."""
    return f"the {facts_of(backend).title} build {release}"


def may_hide_devices(environ: Mapping[str, str]) -> bool:
    """Tell whether a variable is set that chooses or hides devices of any backend."""
    return any(name in environ for row in TABLE for name in row.hiding_variables)


def backend_of_api(api: str) -> BackendFacts | None:
    """Return the row of the backend that needs this driver API."""
    return _BY_API.get(api)


def meaning(word: str) -> str:
    """Return our own word for one that users bring along: ``HIP`` means ``rocm``.

    Of several with "+" between them, the maker's own comes first: ``vk+HIP`` means
    ``rocm+vulkan``. Any other word is returned in lower case.
    """
    word = word.lower()
    if JOIN in word:
        known = [_BY_WORD.get(part, part) for part in word.split(JOIN)]
        return JOIN.join(sorted(known, key=lambda part: not facts_of(part).joins))
    return _BY_WORD.get(word, word)


def names_parts(word: str, parts: Sequence[tuple[str, str]]) -> bool:
    """Tell whether a word names the parts of a build: each of them once, in any order.

    ``parts`` are the variant and the backend of each.
    """
    words = meaning(word).split(JOIN)
    # First the count: a user may write any number of words.
    return len(words) == len(parts) and any(
        all(name in part for name, part in zip(order, parts, strict=True))
        for order in permutations(words)
    )


_MADE_BY = {
    NVIDIA: re.compile(r"nvidia|geforce|quadro|tesla|titan|grid", re.IGNORECASE),
    AMD: re.compile(r"\bamd\b|radeon|firepro|instinct|gfx[0-9]", re.IGNORECASE),
    INTEL: re.compile(r"intel|\b(?:iris|arc)\b", re.IGNORECASE),
}


def maker_in(description: str) -> int | None:
    """Return the maker that a device's description names, as a number of the PCI bus."""
    return next((maker for maker, words in _MADE_BY.items() if words.search(description)), None)


def backends_of(vendor: str) -> tuple[str, ...]:
    """Return the backends that use GPUs of this maker only: its own interfaces."""
    return tuple(row.name for row in TABLE if row.vendors == {VENDORS[vendor]})
