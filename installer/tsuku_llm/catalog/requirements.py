"""What a variant requires of a machine: the values, and their parser.

A release file may be newer than this program. A requirement with a key or a word that this
version does not know is kept by name in ``unknown``. The variant is then refused, because a
requirement that cannot be checked is not met; the other variants of the release are not affected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

# The patterns end in \Z: "$" also matches before a final line feed.
Dotted = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9}){0,3}\Z")]
Architecture = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,2}\.[0-9]a?\Z")]
CpuFeature = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{2,32}\Z")]
GfxTarget = Annotated[str, msgspec.Meta(pattern=r"^gfx[0-9a-f]{3,8}\Z")]
Library = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}\Z")]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


@dataclass(frozen=True, slots=True)
class CudaRequirement:
    """The contents of a CUDA build: device code per compute capability, and its toolkit.

    ``sass`` entries run without compilation ("8.6", or "12.0a" for exactly that device). ``ptx``
    entries are compiled on the user's machine, by a driver at least as new as ``toolkit``.
    """

    toolkit: Dotted
    sass: tuple[Architecture, ...]
    ptx: tuple[Architecture, ...]


@dataclass(frozen=True, slots=True)
class RocmRequirement:
    """The targets of a ROCm build: ``gfx`` targets, and ``runtime``, the ROCm version line."""

    runtime: Dotted
    gfx: tuple[GfxTarget, ...]


@dataclass(frozen=True, slots=True)
class OpenclRequirement:
    """The OpenCL device of a build: ``device`` must be a part of a usable device's name."""

    device: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The requirements of a variant on the machine. None means: not required.

    ``glibc``, ``libstdcxx`` (GLIBCXX symbol version), ``macos`` and ``vcruntime`` are lowest
    versions. ``musl`` requires a system whose C library is musl. ``x86_64_level`` is the level of
    the psABI. ``cpu_features`` are instruction sets beyond that level, with the names of Linux'
    /proc/cpuinfo. ``libraries`` are shared libraries that the system's loader must find.
    ``vulkan`` is the lowest instance and device version. ``level_zero`` and ``openvino`` require an
    Intel device. ``memory`` is in bytes. A requirement about an API counts for a variant of any
    backend. ``unknown`` names what this version cannot check: keys, and words
    with their key.
    """

    glibc: Dotted | None = None
    musl: bool = False
    libstdcxx: Dotted | None = None
    macos: Dotted | None = None
    vcruntime: Dotted | None = None
    libraries: Annotated[tuple[Library, ...], msgspec.Meta(max_length=64)] = ()
    x86_64_level: Annotated[int, msgspec.Meta(ge=1, le=4)] | None = None
    cpu_features: Annotated[tuple[CpuFeature, ...], msgspec.Meta(max_length=64)] = ()
    memory: Bytes | None = None
    vulkan: Dotted | None = None
    cuda: CudaRequirement | None = None
    rocm: RocmRequirement | None = None
    opencl: OpenclRequirement | None = None
    level_zero: bool = False
    openvino: bool = False
    metal: bool = False
    unknown: tuple[str, ...] = ()


_KINDS = get_type_hints(Requirements, include_extras=True)
del _KINDS["unknown"]  # a file that has this key means something that this version does not know
_INNER_KINDS = {
    name: get_type_hints(kind, include_extras=True)
    for name, hint in _KINDS.items()
    for kind in get_args(hint)
    if is_dataclass(kind)
}
_SHOWN = 60
"""Characters of an unknown word that are kept."""


def read_requirements(raw: object) -> Requirements:
    """Read the requirements of one variant; never refuse them.

    What this version does not know is in ``unknown``: "npu", "cuda.family", "cuda.sass '13.0x'".
    """
    if not isinstance(raw, dict):
        return Requirements(unknown=(f"requires {_shown(raw)}",))
    known: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in raw.items():
        strange = list(_strange(key, value, _KINDS))
        unknown += strange
        if not strange:
            known[key] = msgspec.convert(value, _KINDS[key])
    return Requirements(**known, unknown=tuple(sorted(unknown)))


def _strange(key: str, value: object, kinds: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Yield the names of the keys and words below one key that are not of their kinds."""
    name = f"{inside}{key}"[:_SHOWN]
    if key not in kinds:
        yield name
        return
    inner = {} if inside else _INNER_KINDS.get(key, {})
    found: list[str] = []
    if inner and isinstance(value, dict):
        # msgspec would ignore an unknown key inside of a requirement.
        for each, its in value.items():
            found += _strange(each, its, inner, f"{key}.")
    if not found and not _is_of(kinds[key], value):
        # In a list only the words that are not understood are worth naming.
        words = value if isinstance(value, list) else [value]
        alone = [word for word in words if not _is_of(kinds[key], [word])]
        found = [f"{name} {_shown(word)}" for word in alone or [value]]
    yield from found


def _is_of(kind: Any, value: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _shown(value: object) -> str:
    return f"{value!a}"[:_SHOWN]
