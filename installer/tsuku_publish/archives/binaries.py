"""What ELF and Windows files need of a machine: versions of symbols, libraries, device code.

Of Windows files only the device code is read; their needs of the system are not measured.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tsuku_llm.ground.foreign import open_foreign
from tsuku_publish.archives.fatbin import SECTION, DeviceCode, device_code
from tsuku_publish.archives.offload import SECTIONS, gfx_targets
from tsuku_publish.errors import PublishError

Version = tuple[int, ...]

_ELF = b"\x7fELF"
_VERNEED = 16
"""Bytes that one entry of a table of needed versions takes at least."""
_LEVEL_NEEDED = "GNU_PROPERTY_X86_ISA_1_NEEDED"
_NUMBERED = re.compile(r"(GLIBC|GLIBCXX)_([0-9]+(?:\.[0-9]+)+)")
_GLIBCXX_OF_CXXABI = (
    *(9, 10, 11, 14, 15, 17, 18),  # gcc 4.2 to 4.8
    *(20, 21, 22, 23, 26, 29, 31, 33, 34),  # gcc 4.9, 5, 6, 7, 9, 11, 13, 14 and 15
)
"""The N of GLIBCXX_3.4.N in the libstdc++ that introduced CXXABI_1.3.1, 1.3.2 and so on.

One library has both. Source: "ABI Policy and Guidelines" in the manual of libstdc++.
"""
_NAMED: Mapping[str, tuple[str, Version]] = {
    "GLIBC_ABI_DT_RELR": ("GLIBC", (2, 36)),
    "CXXABI_1.3": ("GLIBCXX", (3, 4)),
} | {
    f"CXXABI_1.3.{number}": ("GLIBCXX", (3, 4, last))
    for number, last in enumerate(_GLIBCXX_OF_CXXABI, 1)
}
"""Versions with another name or another number, and the version that introduced them."""
_UNKNOWN = re.compile(r"GLIBC_.*|CXXABI_[0-9.]+")

_ON_EVERY_SYSTEM: dict[str, tuple[str, ...]] = {
    "glibc: the oldest version that a build runs with is measured": (
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld64.so.1"),
        *("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"),
    ),
    "libstdc++: its oldest version is measured, too": ("libstdc++.so.6",),
    "the compiler: each system with libstdc++ has it": ("libgcc_s.so.1",),
    "OpenMP: the client names the package if a system lacks it": ("libgomp.so.1",),
    "the driver's own library or loader: the client looks for it before it downloads": (
        *("libcuda.so.1", "libOpenCL.so.1", "libvulkan.so.1"),
    ),
}
"""The sonames that a build need not bring along, in groups by the reason why systems have them."""

SYSTEM_LIBRARIES = frozenset(name for names in _ON_EVERY_SYSTEM.values() for name in names)
"""`add` and `measure` accept these; ``[libraries]`` of ``rules.toml`` adds a project's own."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one file needs of the system.

    ``glibc`` and ``libstdcxx`` are the highest symbol versions that it refers to (of GLIBC and
    GLIBCXX; CXXABI counts as the GLIBCXX of the same library), None if it refers to none.
    ``libraries`` are the sonames that it needs. ``gfx`` are the AMD GPUs that it has code for, None
    if it has none that can be read. ``x86_64_level`` is the level of processors that it is marked
    for, None for the first one and without a mark. ``musl`` is whether it is a program that musl's
    loader starts.
    """

    glibc: Version | None
    libstdcxx: Version | None
    libraries: frozenset[str]
    device_code: DeviceCode | None
    gfx: tuple[str, ...] | None = None
    x86_64_level: int | None = None
    musl: bool = False


def needs_of(path: Path) -> Needs | None:
    """Read one file; return None if it is neither an ELF file nor one of Windows.

    Raises ``PublishError`` for one that cannot be read.
    """
    return _needs_of_elf(path) or _needs_of_pe(path)


def _needs_of_elf(path: Path) -> Needs | None:
    """Read an ELF file; return None for any other file.

    Raises ``PublishError`` for an ELF file that cannot be read.
    """
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    with open_foreign(path) as file:
        if file.read(len(_ELF)) != _ELF:
            return None
        try:
            return _needs(ELFFile(file), file)
        except PublishError as error:
            raise PublishError(f"{path.name}: {error}", hint=error.hint) from error
        except Exception as error:  # on a damaged file pyelftools may raise any exception
            raise PublishError(f"{path.name} is a damaged ELF file: {error}") from error


def _needs(elf: Any, file: BinaryIO) -> Needs:
    # Programs run without the table, but what they need is found by it.
    if elf.num_segments() and not elf.num_sections():
        raise PublishError(
            "it has no table of sections, so what it needs cannot be measured",
            hint="leave out the tool that removed it, such as sstrip or upx; strip keeps it",
        )
    versions = [*_versions(elf)]
    return Needs(
        glibc=max((number for kind, number in versions if kind == "GLIBC"), default=None),
        libstdcxx=max((number for kind, number in versions if kind == "GLIBCXX"), default=None),
        libraries=frozenset(_libraries(elf)),
        device_code=_cuda_code_of_elf(elf, file),
        gfx=_gfx_of_elf(elf, file),
        x86_64_level=_x86_64_level(elf),
        musl=_is_of_musl(elf),
    )


def _versions(elf: Any) -> Iterator[tuple[str, Version]]:
    section = elf.get_section_by_name(".gnu.version_r")
    if section is None:
        return
    # A damaged count could make pyelftools read for a very long time.
    if section.num_versions() * _VERNEED > section["sh_size"]:
        raise PublishError("its table of needed versions is longer than its section")
    for _, auxiliaries in section.iter_versions():
        for auxiliary in auxiliaries:
            yield from _numbered(auxiliary.name)


def _numbered(name: str) -> Iterator[tuple[str, Version]]:
    """Yield a symbol version that counts: of glibc or libstdc++."""
    found = _NUMBERED.fullmatch(name)
    if found:
        yield found[1], tuple(int(part) for part in found[2].split("."))
    elif name in _NAMED:
        yield _NAMED[name]
    elif _UNKNOWN.fullmatch(name):
        # A new version must be added to _NAMED, or the floor would be too low.
        library = "glibc" if name.startswith("GLIBC_") else "libstdc++"
        raise PublishError(
            f"it needs {name}, of which no {library} version is known",
            hint="leave glibc's own libraries out of the build"
            if name == "GLIBC_PRIVATE"
            else "a newer tsuku-llm may know it",
        )


def _libraries(elf: Any) -> Iterator[str]:
    section = elf.get_section_by_name(".dynamic")
    for tag in section.iter_tags("DT_NEEDED") if section else ():
        yield tag.needed


def _is_of_musl(elf: Any) -> bool:
    # Neither its symbols nor its name, libc.so, tell musl: Android's library has that name, too.
    programs = elf.iter_segments("PT_INTERP")
    return any("/ld-musl-" in segment.get_interp_name() for segment in programs)


def _x86_64_level(elf: Any) -> int | None:
    """Return the level that the linker wrote into the file, which the system's loader checks."""
    section = elf.get_section_by_name(".note.gnu.property")
    if section is None or elf["e_machine"] != "EM_X86_64":
        return None
    properties = [
        each
        for note in section.iter_notes()
        if note["n_type"] == "NT_GNU_PROPERTY_TYPE_0"
        for each in note["n_desc"]
    ]
    # One bit for each level: 1 for the baseline, 2, 4 and 8 for those above it.
    needed = [each.pr_data for each in properties if each.pr_type == _LEVEL_NEEDED]
    level = max((bits.bit_length() for bits in needed), default=0)
    return level if level > 1 else None


def _cuda_code_of_elf(elf: Any, file: BinaryIO) -> DeviceCode | None:
    section = elf.get_section_by_name(SECTION)
    if section is None:
        return None
    return device_code(file, section["sh_offset"], section["sh_size"])


def _gfx_of_elf(elf: Any, file: BinaryIO) -> tuple[str, ...] | None:
    section = elf.get_section_by_name(SECTIONS[0])
    if section is None:
        return None
    return gfx_targets(file, section["sh_offset"], section["sh_size"])


# Windows: the layout is that of Microsoft's PE/COFF specification. An offset at byte 60 leads to
# the signature; the file header (20 bytes), the optional header and the sections follow it.
_PE = b"MZ"
_SIGNATURE_AT = 60
_HEADERS = struct.Struct("<4sHH12xH2x")
"""Signature, machine, number of sections, ..., size of the optional header, ..."""
_SECTION = struct.Struct("<8sI4xII16x")
"""Name, size in memory, ..., size in the file, place in the file, ..."""
_CUDA = b".nv_fatb"
"""``.nv_fatbin``, cut to eight bytes."""
_HIP = SECTIONS[1].encode()


def _needs_of_pe(path: Path) -> Needs | None:
    """Read a Windows program or library; return None for any other file.

    Raises ``PublishError`` for one that cannot be read.
    """
    with open_foreign(path) as file:
        if file.read(len(_PE)) != _PE:
            return None
        try:
            sections = {name: place for name, *place in _sections_of_pe(file)}
            cuda, hip = sections.get(_CUDA), sections.get(_HIP)
            return Needs(
                None,
                None,
                frozenset(),
                device_code(file, *cuda) if cuda else None,
                gfx_targets(file, *hip) if hip else None,
            )
        except struct.error as error:
            raise PublishError(f"{path.name} is a damaged Windows program") from error
        except PublishError as error:
            raise PublishError(f"{path.name}: {error}") from error


def _sections_of_pe(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the place and the size of each section."""
    file.seek(_SIGNATURE_AT)
    (headers,) = struct.unpack("<I", file.read(4))
    file.seek(headers)
    signature, _, sections, optional = _HEADERS.unpack(file.read(_HEADERS.size))
    if signature != b"PE\0\0":
        raise PublishError("it is no Windows program")
    file.seek(headers + _HEADERS.size + optional)
    table = file.read(sections * _SECTION.size)
    if len(table) != sections * _SECTION.size:
        raise PublishError("its table of sections is cut off")
    for name, in_memory, in_file, place in _SECTION.iter_unpack(table):
        # In the file a section is padded to its alignment; in memory it may be longer than in the
        # file.
        yield name.rstrip(b"\0"), place, min(in_memory, in_file)
