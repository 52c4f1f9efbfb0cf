"""What a build is and what it needs of a machine, read from its files."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.ground.tree_entry import FileEntry, TreeEntry
from tsuku_llm.machine.backends import TABLE, facts_of
from tsuku_publish.archives.binaries import Needs, file_names, floors_of, needs_of
from tsuku_publish.archives.system_libraries import ASKED_LIBRARIES, not_of_the_system
from tsuku_publish.packing.pack import opened
from tsuku_publish.packing.tree import without_top

_SERVER = re.compile(r"(?:.*/)?llama-server(?:\.exe)?")
_PLUGIN = re.compile(r"(?:lib)?ggml-([a-z]+)(?:-[\w.+-]+)?\.(?:so|dll|dylib)(?:\.[0-9.]+)?")
_BY_PLUGIN = {row.plugin: row.name for row in TABLE if row.plugin}
_BY_LIBRARY = {
    "libcuda.so": "cuda",
    "libamdhip64.so": "rocm",
    "libOpenCL.so": "opencl",
    "libvulkan.so": "vulkan",
    "libsycl.so": "sycl",
    "libopenvino.so": "openvino",
}
"""The backends of builds that have no plugins, by a library that they are linked with."""
_MUSL = re.compile(r"libc\.so|libc\.musl-\w+\.so\.1")
"""musl's names: its own, and that of Alpine's packages."""
_RUNTIME = re.compile(r"libcudart\.so\.([0-9]+\.[0-9]+)\.[0-9]+")
_LINE = re.compile(r"[a-z]+-([0-9]+\.[0-9]+)(?:[-+].*)?")
"""A variant's name with its first toolkit's version: "cuda-13.0-own", "rocm-10.0+vulkan"."""

# The first bytes of a program: format, then processor.
_ELF_MACHINES = {62: "linux-amd64", 183: "linux-arm64", 22: "linux-s390x"}
_PE_MACHINES = {0x8664: "windows-amd64", 0xAA64: "windows-arm64"}
_MACHO_MACHINES = {0x01000007: "darwin-amd64", 0x0100000C: "darwin-arm64"}
PLATFORMS = (*_ELF_MACHINES.values(), *_MACHO_MACHINES.values(), *_PE_MACHINES.values())


@dataclass(frozen=True, slots=True)
class CudaCode:
    """The CUDA code of a build: its architectures, and its toolkit if the runtime is there."""

    toolkit: str | None
    sass: tuple[str, ...]
    ptx: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredBuild:
    """A build as its files show it.

    ``server`` and ``platform`` are None if the files do not show them. ``backends`` are those with
    a plugin, with code, or with a linked driver; the CPU always counts. ``libraries`` are those
    that the build needs and that clients look for on each machine. ``missing`` are those that
    neither the build has nor clients look for. ``x86_64_level`` is the highest level of processors
    that a file is marked for, None for the first one. ``musl`` is whether a program is linked with
    musl. ``floors`` are the lowest versions of the system that it runs with, by the words of a
    release file: glibc, libstdcxx, macos (the deployment target), vcruntime. Sizes are in bytes.
    """

    files: int
    size: int
    server: str | None
    platform: str | None
    backends: tuple[str, ...]
    floors: Mapping[str, str]
    cuda: CudaCode | None
    gfx: tuple[str, ...]
    libraries: tuple[str, ...]
    missing: tuple[str, ...]
    x86_64_level: int | None
    musl: bool


def server_of(items: Sequence[TreeEntry]) -> str | None:
    """Return the path of the server; None unless exactly one file has its name."""
    found = [
        item.path for item in items if isinstance(item, FileEntry) and _SERVER.fullmatch(item.path)
    ]
    return found[0] if len(found) == 1 else None


def measure(build: Path, aside: Path) -> MeasuredBuild:
    """Read a folder or an archive, which is unpacked in ``aside``.

    Raises ``UsageError``, ``UnsafeArchive``, ``PublishError``, and the errors of the disk.
    """
    with opened(build, aside) as folder:
        return measure_tree(*without_top(folder))


def measure_tree(tree: Path, items: Sequence[TreeEntry]) -> MeasuredBuild:
    """Read every file of a build. Raises ``PublishError`` for a damaged one.

    Raises ``UsageError`` if two of its files have different CUDA code, code for other AMD GPUs,
    another C library, or are for different platforms.
    """
    files = [item for item in items if isinstance(item, FileEntry)]
    platforms = {file.path: told for file in files if (told := _platform_of(tree / file.path))}
    if len({*platforms.values()}) > 1:
        # One file of each platform is enough to find them.
        facts = {told: path for path, told in reversed(platforms.items())}
        raise UsageError(
            "files of the build are for different platforms",
            facts=tuple(f"{told}: {path}" for told, path in sorted(facts.items())),
            hint="leave out what is not for the server's platform",
        )
    needs = {file.path: found for file in files if (found := needs_of(tree / file.path))}
    names = file_names(item.path for item in items)
    floors = floors_of(needs.values(), names)
    asked = {library for each in needs.values() for library in each.libraries}
    server = server_of(items)
    musl = any(each.musl for each in needs.values())
    if musl and "glibc" in floors:
        raise UsageError(
            "some files of the build are for musl, and others for glibc",
            facts=(f"glibc: {floors['glibc']}",),
            hint="build all of them for the same system",
        )
    if musl:
        asked = {name for name in asked if not _MUSL.fullmatch(name)}
    foreign = not_of_the_system(asked - names)
    return MeasuredBuild(
        files=len(files),
        size=sum(file.size for file in files),
        server=server,
        platform=platforms.get(server or ""),
        backends=_backends(names, needs),
        floors=floors,
        cuda=_cuda(names, needs),
        gfx=_gfx(needs),
        libraries=tuple(sorted(foreign & ASKED_LIBRARIES)),
        missing=tuple(sorted(foreign - ASKED_LIBRARIES)),
        x86_64_level=max((each.x86_64_level or 0 for each in needs.values()), default=0) or None,
        musl=musl,
    )


def backend_of(variant: str, build: MeasuredBuild) -> str:
    """Return the backend of a variant: its name's word before "-" or "+", or the only GPU's.

    Raises ``UsageError`` if the build has code for several, and the name does not say which.
    """
    told = re.split(r"[-+]", variant, maxsplit=1)[0]
    if told in {row.name for row in TABLE}:
        return told
    gpus = [name for name in build.backends if name != "cpu"]
    if len(gpus) > 1:
        raise UsageError(
            f"{variant}: the build has code for several backends",
            facts=tuple(gpus),
            hint=f"begin the variant's name with the backend, such as {gpus[0]}-{variant}",
        )
    return gpus[0] if gpus else "cpu"


def requirements_of(
    variant: str, backend: str, platform: str, build: MeasuredBuild, system: Collection[str] = ()
) -> dict[str, Any]:
    """Return what a variant requires, as in a release file.

    ``system`` are more libraries that clients look for on each machine. Raises ``UsageError`` for a
    library that is missing, and for a GPU build without code for its backend, or whose toolkit or
    GPUs cannot be told.
    """
    missing = [name for name in build.missing if name not in system]
    if missing:
        raise UsageError(
            f"{variant}: the build needs libraries that it does not bring along",
            facts=tuple(missing),
            hint="copy them next to the server, or name each that clients should look for on each "
            "machine before they download: --system-library NAME",
        )
    _require_code(variant, backend, build)
    found: dict[str, Any] = {**build.floors, **({"musl": True} if build.musl else {})}
    if not platform.startswith("linux-"):
        found = {name: floor for name, floor in found.items() if name in ("macos", "vcruntime")}
    if libraries := sorted({*build.libraries, *build.missing}):
        found["libraries"] = libraries
    if build.x86_64_level:
        found["x86_64_level"] = build.x86_64_level
    line = _LINE.fullmatch(variant)
    if backend == "cuda":
        found["cuda"] = _cuda_requirement(variant, line[1] if line else None, build)
    elif backend == "rocm":
        if not (line and build.gfx):
            raise UsageError(
                f"{variant}: its ROCm version or its GPUs cannot be told",
                facts=(f"GPUs with code: {', '.join(build.gfx) or 'none'}",),
                hint="name the variant rocm-MAJOR.MINOR, and the folder with ggml's HIP library",
            )
        found["rocm"] = {"runtime": line[1], "gfx": [*build.gfx]}
    elif backend == "vulkan":
        found["vulkan"] = "1.2"
    elif backend in {"sycl", "openvino", "metal"}:
        found["level_zero" if backend == "sycl" else backend] = True
    return found


def _require_code(variant: str, backend: str, build: MeasuredBuild) -> None:
    # A script does not show what it starts, and on macOS Metal may be in any file.
    if build.platform in _ELF_MACHINES.values() and backend not in build.backends:
        raise UsageError(
            f"{variant}: no file of the build has code for {facts_of(backend).title}",
            facts=(f"it has: {', '.join(build.backends)}",),
            hint="name the folder with ggml's library for it, or begin the variant's name with "
            "what the build has",
        )


def _cuda_requirement(variant: str, line: str | None, build: MeasuredBuild) -> dict[str, Any]:
    toolkit = line or (build.cuda.toolkit if build.cuda else None)
    if build.cuda is None or toolkit is None:
        fact = "no file has CUDA code" if build.cuda is None else "no libcudart.so is in the build"
        raise UsageError(
            f"{variant}: what it needs of a GPU cannot be told",
            facts=(fact,),
            hint="name the folder with ggml's CUDA library, and the variant cuda-MAJOR.MINOR",
        )
    return {"toolkit": toolkit, "sass": [*build.cuda.sass], "ptx": [*build.cuda.ptx]}


def _backends(names: Collection[str], needs: dict[str, Needs]) -> tuple[str, ...]:
    plugins = {found[1] for name in names if (found := _PLUGIN.fullmatch(name))}
    linked = {library for each in needs.values() for library in each.libraries}
    present = {"cpu"} | {_BY_PLUGIN[plugin] for plugin in plugins & _BY_PLUGIN.keys()}
    present |= {
        backend
        for start, backend in _BY_LIBRARY.items()
        if any(name.startswith(start) for name in linked)
    }
    present |= {"cuda"} if any(each.device_code for each in needs.values()) else set()
    present |= {"rocm"} if any(each.gfx for each in needs.values()) else set()
    return tuple(row.name for row in TABLE if row.name in present)


def _cuda(names: Collection[str], needs: dict[str, Needs]) -> CudaCode | None:
    codes = {
        path: each.device_code
        for path, each in needs.items()
        if each.device_code and _is_llama_cpps(path)
    }
    if not codes:
        return None
    _require_same("CUDA code", codes)
    runtime = next((found[1] for name in names if (found := _RUNTIME.fullmatch(name))), None)
    code = next(iter(codes.values()))
    return CudaCode(runtime, code.sass, code.ptx)


def _gfx(needs: dict[str, Needs]) -> tuple[str, ...]:
    own = {path: each.gfx for path, each in needs.items() if each.gfx and _is_llama_cpps(path)}
    _require_same("code for AMD GPUs", own)
    return next(iter(own.values()), ())


def _is_llama_cpps(path: str) -> bool:
    # The libraries of NVIDIA and AMD have code for other GPUs than ggml's kernels.
    return path.rpartition("/")[2].startswith(("libggml", "ggml", "libllama", "llama"))


def _require_same(what: str, codes: dict[str, Any]) -> None:
    if len({repr(code) for code in codes.values()}) > 1:
        raise UsageError(
            f"files of the build have different {what}",
            facts=tuple(sorted(codes)),
            hint="build them for the same GPUs: one list holds for the whole variant",
        )


def _platform_of(path: Path) -> str | None:
    """Return the platform of a file by its first bytes; None for a script and others."""
    with open_foreign(path) as file:
        head = file.read(4096)
    try:
        if head.startswith(b"\x7fELF"):
            order = "<" if head[5] == 1 else ">"
            return _ELF_MACHINES.get(struct.unpack_from(f"{order}H", head, 18)[0])
        if head.startswith(b"MZ"):
            (at,) = struct.unpack_from("<I", head, 60)
            return _PE_MACHINES.get(struct.unpack_from("<H", head, at + 4)[0])
        if head.startswith(b"\xcf\xfa\xed\xfe"):
            return _MACHO_MACHINES.get(struct.unpack_from("<I", head, 4)[0])
    except (struct.error, IndexError):
        return None
    return None
