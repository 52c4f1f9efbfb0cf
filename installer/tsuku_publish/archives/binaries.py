"""What the programs and libraries of a build need of a machine, read with LIEF in their files.

These are ELF files (Linux), PE files (Windows) and Mach-O files (macOS): the versions of symbols
and systems, the libraries, and the GPUs that their device code is for.
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tsuku_llm.ground.foreign import open_foreign
from tsuku_publish.archives.fatbin import SECTION, DeviceCode, device_code
from tsuku_publish.archives.offload import SECTIONS, gfx_targets
from tsuku_publish.errors import PublishError

Version = tuple[int, ...]

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

_CUDA_OF_PE = ".nv_fatb"
"""``.nv_fatbin``, cut to eight bytes."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one file needs of the system.

    ``floors`` are lowest versions, by the words of a release file: of glibc and libstdcxx the
    highest symbol versions that it refers to (of GLIBC and GLIBCXX; CXXABI counts as the GLIBCXX of
    the same library), of macos the deployment target. ``runtimes`` are the oldest Visual C++
    runtimes by the runtime's DLL. ``libraries`` are those that it needs, with names as
    ``system_libraries`` has them. ``gfx`` are the AMD GPUs that it has code for, None if it has
    none that can be read. ``x86_64_level`` is the level of processors that it is marked for, None
    for the first one and without a mark. ``musl`` is whether it is a program that musl's loader
    starts. ``platforms`` are those whose processors can run it: "linux-amd64"; none for a processor
    that no platform has.
    """

    floors: Mapping[str, Version]
    libraries: frozenset[str]
    platforms: frozenset[str]
    device_code: DeviceCode | None = None
    gfx: tuple[str, ...] | None = None
    x86_64_level: int | None = None
    musl: bool = False
    runtimes: Mapping[str, Version] = field(default_factory=dict)


def floors_of(needs: Iterable[Needs], brought: Collection[str]) -> dict[str, str]:
    """Return the lowest versions that the most demanding file needs, as in a release file.

    ``brought`` are the names of the build's own files: a Visual C++ runtime among them is used in
    place of the system's.
    """
    found: dict[str, Version] = {}
    for each in needs:
        asked = [lowest for dll, lowest in each.runtimes.items() if dll not in brought]
        for name, lowest in (*each.floors.items(), *(("vcruntime", lowest) for lowest in asked)):
            found[name] = max(lowest, found.get(name, lowest))
    return {name: ".".join(map(str, lowest)) for name, lowest in found.items()}


def file_names(paths: Iterable[str]) -> frozenset[str]:
    """Return the names under which a loader finds the files of a build."""
    names = {path.rpartition("/")[2] for path in paths}
    # Windows compares names without their case.
    return frozenset(names | {name.lower() for name in names if name.lower().endswith(".dll")})


def needs_of(path: Path) -> Needs | None:
    """Read one file; return None if it is no program or library.

    Raises ``PublishError`` for one that cannot be read.
    """
    with open_foreign(path) as file:
        start = file.read(4)
        read = next((read for magic, read in _FORMATS.items() if start.startswith(magic)), None)
        if read is None:
            return None
        import lief  # noqa: PLC0415 - a large library, for the commands that measure

        # What it cannot read is an error here, and not a line on the terminal.
        lief.logging.disable()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # a number that is no word of LIEF's
                return read(lief, path, file)
        except PublishError as error:
            raise PublishError(f"{path.name}: {error}", hint=error.hint) from error
        except Exception as error:  # LIEF may raise any exception on a damaged file
            raise PublishError(f"{path.name} is damaged: {error}") from error


# --- ELF ------------------------------------------------------------------------------------


_ELF_HEADER = 52
"""Bytes of the shorter header, that of 32-bit files."""


def _needs_of_elf(lief: Any, path: Path, file: BinaryIO) -> Needs:
    config = lief.ELF.ParserConfig()
    config.parse_relocations = config.parse_symtab_symbols = config.parse_overlay = False
    # LIEF is lenient: a file that ends in its header has no segments for it.
    elf = lief.ELF.parse(str(path), config) if path.stat().st_size >= _ELF_HEADER else None
    if elf is None:
        raise PublishError("it is a damaged ELF file")
    # Programs run without the table, but device code is found by it.
    if len(elf.segments) and not len(elf.sections):
        raise PublishError(
            "it has no table of sections, so what it needs cannot be measured",
            hint="leave out the tool that removed it, such as sstrip or upx; strip keeps it",
        )
    versions = [*_versions(lief, elf)]
    cuda, hip = elf.get_section(SECTION), elf.get_section(SECTIONS[0])
    return Needs(
        floors={
            name: max(found)
            for name, kind in (("glibc", "GLIBC"), ("libstdcxx", "GLIBCXX"))
            if (found := [number for each, number in versions if each == kind])
        },
        libraries=frozenset(map(_name, elf.libraries)),
        device_code=device_code(file, cuda.offset, cuda.size) if cuda else None,
        gfx=gfx_targets(file, hip.offset, hip.size) if hip else None,
        x86_64_level=_x86_64_level(lief, elf),
        # Neither its symbols nor its name, libc.so, tell musl: Android's library has that name.
        musl=elf.has_interpreter and "/ld-musl-" in elf.interpreter,
        platforms=_platforms("linux", elf.header.machine_type.name),
    )


def _versions(lief: Any, elf: Any) -> Iterator[tuple[str, Version]]:
    needed = [*elf.symbols_version_requirement]
    told = elf.get(lief.ELF.DynamicEntry.TAG.VERNEEDNUM)
    # LIEF leaves out what it cannot read: then a floor would be too low.
    if len(needed) != (told.value if told else 0):
        raise PublishError("its table of needed versions is damaged")
    for each in needed:
        for auxiliary in each.get_auxiliary_symbols():
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


def _x86_64_level(lief: Any, elf: Any) -> int | None:
    """Return the level that the linker wrote into the file, which the system's loader checks."""
    levels = [
        _LEVELS.get(isa.name, 1)
        for note in elf.notes
        if isinstance(note, lief.ELF.NoteGnuProperty)
        for each in note.properties
        if isinstance(each, lief.ELF.X86ISA)
        for flag, isa in each.values
        if flag == lief.ELF.X86ISA.FLAG.NEEDED
    ]
    level = max(levels, default=1)
    return level if level > 1 else None


_LEVELS = {"V2": 2, "V3": 3, "V4": 4}


# --- Windows --------------------------------------------------------------------------------


def _needs_of_pe(lief: Any, path: Path, file: BinaryIO) -> Needs:
    config = lief.PE.ParserConfig()
    config.parse_signature = config.parse_rsrc = config.parse_reloc = False
    config.parse_exports = config.parse_exceptions = False
    pe = lief.PE.parse(str(path), config)
    if pe is None or len(pe.sections) != pe.header.numberof_sections:
        raise PublishError("it is a damaged Windows program")
    # In the file a section is padded to its alignment; in memory it may be longer than in the file.
    sections = {
        each.name: (each.offset, min(each.virtual_size, each.sizeof_raw_data))
        for each in pe.sections
    }
    cuda, hip = sections.get(_CUDA_OF_PE), sections.get(SECTIONS[1])
    imports = _imports_of(pe)
    linker = (pe.optional_header.major_linker_version, pe.optional_header.minor_linker_version)
    return Needs(
        floors={},
        libraries=frozenset(imports),
        platforms=_platforms("windows", pe.header.machine.name),
        device_code=device_code(file, *cuda) if cuda else None,
        gfx=gfx_targets(file, *hip) if hip else None,
        runtimes=oldest_runtimes(imports, linker),
    )


# Microsoft promises only that a runtime as new as the newest toolset of a program runs it ("C++
# binary compatibility between Visual Studio versions"). Nearly all programs run with older ones,
# and many machines have one: what counts here are the changes that really end a program.

_FIRST_RUNTIMES: Mapping[str, Version] = {
    "vcruntime140.dll": (14, 0),
    "msvcp140.dll": (14, 0),
    "concrt140.dll": (14, 0),
    "vcomp140.dll": (14, 0),
    # Microsoft's C++ blog, "Making C++ Exception Handling Smaller On x64": Visual Studio 2019.
    "vcruntime140_1.dll": (14, 20),
}
"""The runtime that first had a DLL. For any other one the toolset's own version counts."""
_RUNTIME = re.compile(r"(?:vcruntime|msvcp|concrt|vcomp)140(?:_[a-z0-9_]+)?\.dll")

_STANDARD_LIBRARY = "msvcp140.dll"
_CONSTEXPR_MUTEX: Version = (14, 40)
"""Before it, the constructor of ``std::mutex`` called the runtime; since then it fills in zeros.

An older runtime reads a pointer there when the mutex is locked: the program ends with 0xC0000005.
Source: microsoft/STL's changelog of VS 2022 17.10 ("Fixed mutex's constructor to be constexpr",
#3824), and llama.cpp#19083, #13767, #11479, #10703, all of builds since b4191.
"""
_LOCKS = frozenset({"_Mtx_lock", "_Mtx_trylock"})
_INITIALISES = "_Mtx_init_in_situ"
_LLD: Version = (14, 0)
"""What LLVM's linker writes, with which upstream links: it says nothing about the toolset."""


def _imports_of(binary: Any) -> dict[str, frozenset[str]]:
    """Return the functions that a file needs, by DLL in lower case.

    A DLL that is loaded at its first call is not here: a program starts without it.
    """
    found: dict[str, frozenset[str]] = {}
    for library in binary.imports:
        names = frozenset(each.name for each in library.entries if not each.is_ordinal)
        name = library.name.lower()
        found[name] = found.get(name, frozenset()) | names
    return found


def oldest_runtimes(imports: Mapping[str, frozenset[str]], linker: Version) -> dict[str, Version]:
    """Return the oldest Visual C++ runtime that a file runs with, by the runtime's DLL.

    ``linker`` is the version of the linker, which is that of the toolset unless it is LLVM's.
    """
    found = {
        name: _FIRST_RUNTIMES.get(name, linker) for name in imports if _RUNTIME.fullmatch(name)
    }
    functions = imports.get(_STANDARD_LIBRARY, frozenset())
    if functions & _LOCKS and (
        linker >= _CONSTEXPR_MUTEX or (linker == _LLD and _INITIALISES not in functions)
    ):
        found[_STANDARD_LIBRARY] = _CONSTEXPR_MUTEX
    return found


# --- macOS ----------------------------------------------------------------------------------


def _needs_of_macho(lief: Any, path: Path, _file: BinaryIO) -> Needs:
    """Read a Mach-O file; of one for several processors the most demanding part counts."""
    parts = lief.MachO.parse(str(path), lief.MachO.ParserConfig.quick)
    if parts is None or not len(parts):
        raise PublishError("it is a damaged macOS program")
    targets = [found for part in parts if (found := _deployment_target(lief, part))]
    kinds = lief.MachO.LoadCommand.TYPE
    # A weak library may be missing.
    needed = {kinds.LOAD_DYLIB, kinds.REEXPORT_DYLIB}
    names = [
        _name(each.name) for part in parts for each in part.libraries if each.command in needed
    ]
    return Needs(
        floors={"macos": max(targets)} if targets else {},
        # Of a name that dyld searches in the build's folders, the last part counts.
        libraries=frozenset(
            name.rpartition("/")[2] if name.startswith("@") else name for name in names
        ),
        platforms=_platforms("darwin", *(part.header.cpu_type.name for part in parts)),
    )


def _deployment_target(lief: Any, part: Any) -> Version | None:
    if part.has_build_version:
        if part.build_version.platform != lief.MachO.BuildVersion.PLATFORMS.MACOS:
            raise PublishError(f"it is for {part.build_version.platform.name}, not for macOS")
        version = part.build_version.minos
    elif part.has_version_min:
        version = part.version_min.version
    else:
        return None
    major, minor, patch = version
    return (major, minor, patch) if patch else (major, minor)


def _platforms(system: str, *processors: str) -> frozenset[str]:
    return frozenset(f"{system}-{_PROCESSORS[each]}" for each in processors if each in _PROCESSORS)


_PROCESSORS = {"X86_64": "amd64", "AMD64": "amd64", "AARCH64": "arm64", "ARM64": "arm64"} | {
    "S390": "s390x"  # ELF's one number for both widths
}
"""By LIEF's names of the processors in the headers of ELF, PE and Mach-O files."""


def _name(found: Any) -> str:
    # LIEF returns bytes for what is no text.
    if not isinstance(found, str):
        raise PublishError("a library that it needs has no name")
    return found


_FORMATS: Mapping[bytes, Callable[[Any, Path, BinaryIO], Needs]] = {
    b"\x7fELF": _needs_of_elf,
    b"MZ": _needs_of_pe,
    b"\xcf\xfa\xed\xfe": _needs_of_macho,
    b"\xca\xfe\xba\xbe": _needs_of_macho,  # for several processors
}
"""By the first bytes of a file."""
