"""What ELF files need of a machine: versions of symbols, libraries, device code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ci.release.errors import ReleaseError
from ci.release.fatbin import SECTION, DeviceCode, device_code

Version = tuple[int, ...]

_MAGIC = b"\x7fELF"
_VERNEED = 16
"""Bytes that one entry of a table of needed versions takes at least."""
_NUMBERED = re.compile(r"(GLIBC|GLIBCXX)_([0-9]+(?:\.[0-9]+)+)")
_NAMED = {"GLIBC_ABI_DT_RELR": (2, 36)}
"""Versions without a number, and the glibc that introduced them."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one file needs of the system.

    ``glibc`` and ``libstdcxx`` are the highest symbol versions that it refers to (of GLIBC and
    GLIBCXX), None if it refers to none. ``libraries`` are the sonames that it needs.
    """

    glibc: Version | None
    libstdcxx: Version | None
    libraries: frozenset[str]
    device_code: DeviceCode | None


def needs_of(path: Path) -> Needs | None:
    """Read one file; return None if it is not an ELF file.

    Raises ``ReleaseError`` for an ELF file that cannot be read.
    """
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        try:
            return _needs(ELFFile(file), file)
        except ReleaseError as error:
            raise ReleaseError(f"{path.name}: {error}") from error
        except Exception as error:  # on a damaged file pyelftools may raise any exception
            raise ReleaseError(f"{path.name} is a damaged ELF file: {error}") from error


def _needs(elf: Any, file: BinaryIO) -> Needs:
    versions = [*_versions(elf)]
    return Needs(
        glibc=max((number for kind, number in versions if kind == "GLIBC"), default=None),
        libstdcxx=max((number for kind, number in versions if kind == "GLIBCXX"), default=None),
        libraries=frozenset(_libraries(elf)),
        device_code=_device_code(elf, file),
    )


def _versions(elf: Any) -> Iterator[tuple[str, Version]]:
    section = elf.get_section_by_name(".gnu.version_r")
    if section is None:
        return
    # A damaged count could make pyelftools read for a very long time.
    if section.num_versions() * _VERNEED > section["sh_size"]:
        raise ReleaseError("its table of needed versions is longer than its section")
    for _, auxiliaries in section.iter_versions():
        for auxiliary in auxiliaries:
            yield from _numbered(auxiliary.name)


def _numbered(name: str) -> Iterator[tuple[str, Version]]:
    """Yield a symbol version that counts: of glibc or libstdc++."""
    found = _NUMBERED.fullmatch(name)
    if found:
        yield found[1], tuple(int(part) for part in found[2].split("."))
    elif name in _NAMED:
        yield "GLIBC", _NAMED[name]
    elif name.startswith("GLIBC_"):
        # A new version without a number must be added to _NAMED, or the floor would be too low.
        raise ReleaseError(f"it needs {name}, of which no glibc version is known")


def _libraries(elf: Any) -> Iterator[str]:
    section = elf.get_section_by_name(".dynamic")
    for tag in section.iter_tags("DT_NEEDED") if section else ():
        yield tag.needed


def _device_code(elf: Any, file: BinaryIO) -> DeviceCode | None:
    section = elf.get_section_by_name(SECTION)
    if section is None:
        return None
    return device_code(file, section["sh_offset"], section["sh_size"])
