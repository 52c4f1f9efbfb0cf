"""Upstream's archives as they were named and shaped in autumn 2026: small, and really built.

The programs and libraries are compiled once; a build of any tag is packed from them in about a
millisecond. Builds for other processors have their number in the ELF header, and the same code.
"""

import functools
import hashlib
import io
import struct
import tempfile
import zipfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from support.archives import Tar, tar_gz
from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS, compile_library, compile_stand_in
from support.fatbins import COMPRESSED, ONE_DEVICE, PTX, SASS, container, entry, windows_library
from support.fatbins import library as cuda_library
from support.offload_bundles import bundle, hip_library

_MACHINES = {"arm64": 183, "s390x": 22}
"""The numbers of processors in an ELF header."""
_SMALL = ("-s", "-Wl,-z,noseparate-code", "-Wl,--build-id=none")
_LEVELS = ("haswell", "zen4")
_CODE = {
    "12": ((SASS, 86), (SASS, 89), (PTX, 50), (PTX, 75), (PTX, 90)),
    "13": ((SASS, 86), (SASS, 89), (PTX, 75), (PTX, 80), (PTX, 90)),
}
GFX = {
    "7.2": ("gfx1030", "gfx1100", "gfx1101", "gfx1200"),
    "7.14": ("gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200"),
    "10.0": ("gfx908", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201"),
}


def day(month: int, number: int, hour: int = 0) -> datetime:
    """A time of 2026, in UTC."""
    return datetime(2026, month, number, hour, tzinfo=timezone.utc)


# The nine changes of names and shapes between 11 August and 10 October, and when they came.
ROCM_7_14 = day(8, 11)
WINDOWS_ARM_CUDA = day(8, 18)
STABLE_VERSIONS = day(8, 25)
ROCM_10 = day(9, 3)
CUDA_13_4 = day(9, 9)
LINUX_CUDA = day(9, 15)
OPENVINO_2026_4 = day(9, 20)
OPENVINO_2026_4_1 = day(10, 2)
VULKAN_ARM = day(10, 4)
# By b12212, on all four builds, as projects that pin upstream's assets have it.
CUDA_13_5 = day(11, 9)


NOISE = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(30_000))
"""Bytes that no archive makes smaller."""


@dataclass(frozen=True)
class Name:
    """An asset of upstream: its name with ``{tag}``, and the kind of files that it holds."""

    pattern: str
    kind: str
    line: str = ""

    def of(self, tag: str) -> str:
        return self.pattern.format(tag=tag)


def names_at(when: datetime) -> tuple[Name, ...]:
    """The assets of a build that was published at that time."""
    rocm = "10.0" if when >= ROCM_10 else "7.14" if when >= ROCM_7_14 else "7.2"
    cuda = "13.4" if when >= CUDA_13_4 else "13.3"
    cuda = "13.5" if when >= CUDA_13_5 else cuda
    openvino = "2026.2.1"
    if when >= OPENVINO_2026_4:
        openvino = "2026.4.1" if when >= OPENVINO_2026_4_1 else "2026.4"
    found = [
        *_linux("ubuntu-x64", "cpu"), *_linux("ubuntu-vulkan-x64", "vulkan"),
        *_linux("ubuntu-arm64", "cpu"), *_linux("ubuntu-vulkan-arm64", "vulkan"),
        *_linux("ubuntu-s390x", "cpu"), *_linux(f"ubuntu-rocm-{rocm}-x64", "rocm", rocm),
        *_linux("ubuntu-sycl-fp32-x64", "sycl"), *_linux("ubuntu-sycl-fp16-x64", "sycl"),
        *_linux(f"ubuntu-openvino-{openvino}-x64", "openvino"),
        *_linux("linux-arm64-snapdragon", "opencl"),
        *_linux("macos-arm64", "mac"), *_linux("macos-x64", "mac"),
        *_windows("cpu-x64", "cpu"), *_windows("vulkan-x64", "vulkan"),
        *_windows("cuda-12.4-x64", "cuda", "12.4"), *_windows(f"cuda-{cuda}-x64", "cuda", cuda),
        *_windows("sycl-x64", "sycl"), *_windows(f"openvino-{openvino}-x64", "openvino"),
        *_windows("cpu-arm64", "cpu"), *_windows("opencl-adreno-arm64", "opencl"),
        *_windows(f"rocm-{rocm}-x64" if when >= ROCM_7_14 else "hip-radeon-x64", "rocm", rocm),
        Name("llama-{tag}-bin-android-arm64.tar.gz", "phone"),
        Name("llama-{tag}-bin-android-arm64-snapdragon.tar.gz", "phone"),
        Name("llama-{tag}-ui.tar.gz", "page"), Name("llama-{tag}-xcframework.zip", "page"),
    ]  # fmt: skip
    if when >= WINDOWS_ARM_CUDA:
        found += _windows(f"cuda-{cuda}-arm64", "cuda", cuda)
    if when >= LINUX_CUDA:
        for build in ("12.8-x64", f"{cuda}-x64", f"{cuda}-arm64"):
            found += _linux(f"ubuntu-cuda-{build}", "cuda", build.partition("-")[0])
    if when >= VULKAN_ARM:
        found += _windows("vulkan-arm64", "vulkan")
    return tuple(found)


def _linux(words: str, kind: str, line: str = "") -> list[Name]:
    name = Name(f"llama-{{tag}}-bin-{words}.tar.gz", kind, line)
    if kind != "cuda":
        return [name]
    return [name, Name(f"cudart-llama-{{tag}}-bin-{words}.tar.gz", "cudart", line)]


def _windows(words: str, kind: str, line: str = "") -> list[Name]:
    name = Name(f"llama-{{tag}}-bin-win-{words}.zip", kind, line)
    if kind != "cuda":
        return [name]
    # The companion's name has no tag: one file for many builds.
    return [name, Name(f"cudart-llama-bin-win-{words}.zip", "cudart", line)]


# --- the archives -------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def packed(
    name: Name,
    tag: str,
    more: tuple[tuple[str, bytes], ...] = (),
    without: str = "",
    mode: int = 0o755,
) -> bytes:
    """The bytes of an asset of a tag, the same each time.

    A tar has ``more`` files at will, each with the ``mode``, and an archive lacks the file
    ``without``.
    """
    file = name.of(tag)
    if file.endswith(".zip"):
        files = {**_windows_files(name), "BUILD": file.encode()}
        return _zip({path: data for path, data in files.items() if path != without})
    processor = next((each for each in _MACHINES if each in file), "")
    root = file.removesuffix(".tar.gz") if name.kind == "cudart" else f"llama-{tag}"
    members = [Tar(name=f"{root}/", kind=b"5", mode=0o755)]
    for path, data in (*_files(name).items(), *more):
        if path != without:
            members.append(Tar(name=f"{root}/{path}", data=_for(processor, data), mode=mode))
        if path == "libllama.so.0.1.0":
            members.append(Tar(name=f"{root}/libllama.so.0", kind=b"2", target=path))
    return tar_gz([*members, Tar(name=f"{root}/BUILD", data=file.encode())])


def _zip(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 8, 11, 0, 0, 0)), data)
    return out.getvalue()


def _files(name: Name) -> dict[str, bytes]:
    made = compiled()
    if name.kind == "page":
        return {"index.html": b"<!doctype html>"}
    if name.kind == "cudart":
        return {f"libcudart.so.{name.line[:2]}": made["cudart"]}
    if name.kind in ("mac", "phone"):
        # Of a Mach-O file only the header's magic number and processor are real.
        processor = 0x01000007 if "x64" in name.pattern else 0x0100000C
        header = struct.pack("<II", 0xFEEDFACF, processor)
        return {"llama-server": header + bytes(56), "LICENSE": b"MIT"}
    devices = VULKAN_STEPS if name.kind == "vulkan" else NO_DEVICE_STEPS
    steps = ["version err version: 1 (build 1)", *(f"devices {each}" for each in devices)]
    files = {
        "llama-server": made["server"],
        "stand-in.txt": "\n".join([*steps, "serve listen", ""]).encode(),
        "libllama.so.0.1.0": made["library"],
        "LICENSE": b"MIT",
    }
    if name.kind == "cuda":
        files["libggml-cuda.so"] = made[f"cuda-{name.line[:2]}"]
    elif name.kind == "rocm":
        files["libggml-hip.so"] = made[f"rocm-{name.line}"]
    elif name.kind == "cpu":
        files |= {f"libggml-cpu-{level}.so": made["library"] for level in _LEVELS}
    else:
        files[f"libggml-{name.kind}.so"] = made["library"]
    return files


def _windows_files(name: Name) -> dict[str, bytes]:
    if name.kind == "page":
        return {"Info.plist": b"<plist/>"}
    if name.kind == "cudart":
        return {f"cudart64_{name.line[:2]}.dll": windows_library(b"", b".text")}
    plain = windows_library(bytes(512), b".text")
    files = {"llama-server.exe": plain, "ggml-cpu-haswell.dll": plain, "LICENSE": b"MIT"}
    if name.kind == "cuda":
        files["ggml-cuda.dll"] = windows_library(_fatbin(name.line[:2]))
    elif name.kind == "rocm":
        files["ggml-hip.dll"] = windows_library(bundle(*GFX[name.line]), b".hip_fat")
    elif name.kind != "cpu":
        files[f"ggml-{name.kind}.dll"] = plain
    if "arm64" in name.pattern:
        files = {path: _for_windows_on_arm(data) for path, data in files.items()}
    return files


def _for_windows_on_arm(data: bytes) -> bytes:
    return data[:68] + struct.pack("<H", 0xAA64) + data[70:] if data.startswith(b"MZ") else data


def _fatbin(major: str) -> bytes:
    codes = [entry(kind, number, COMPRESSED * (kind == PTX)) for kind, number in _CODE[major]]
    return container(*codes, entry(SASS, 120, ONE_DEVICE))


@functools.cache
def compiled() -> dict[str, bytes]:
    """The programs and libraries of every kind of build."""
    with tempfile.TemporaryDirectory(prefix="upstream-") as name:
        folder = Path(name)
        made = {
            "server": compile_stand_in(folder / "llama-server", *_SMALL),
            "library": compile_library(folder / "libone.so", "int one(void){return 1;}", *_SMALL),
        }
        runtime = compile_library(folder / "libcudart.so", "int cuda(void){return 1;}", *_SMALL)
        made["cudart"] = runtime
        for major in _CODE:
            named = folder / f"libcudart.so.{major}"
            compile_library(named, "int cuda(void){return 1;}", *_SMALL)
            path = folder / f"libcuda-{major}.so"
            asked = f"-Wl,--no-as-needed,{named}"
            made[f"cuda-{major}"] = cuda_library(path, _fatbin(major), asked, *_SMALL)
        for line, targets in GFX.items():
            path = folder / f"librocm-{line}.so"
            made[f"rocm-{line}"] = hip_library(path, bundle(*targets), *_SMALL)
        return {kind: path.read_bytes() for kind, path in made.items()}


def _for(processor: str, data: bytes) -> bytes:
    if not processor or not data.startswith(b"\x7fELF"):
        return data
    if processor == "s390x":
        # Its files have the other order of bytes: a header alone, of a library.
        head = b"\x7fELF\x02\x02\x01".ljust(16, b"\0")
        return head + struct.pack(">HHIQQQIHHHHHH", 3, 22, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)
    return data[:18] + struct.pack("<H", _MACHINES[processor]) + data[20:]
