"""The release files of the signed manifest: platform → variant → artifacts.

This module has the types and one parser. The parser takes only ``VerifiedBytes``: unsigned data
is never interpreted. Unknown fields are ignored, except inside ``requires``: an unknown key there
is kept by name and makes the variant incompatible, because a requirement that cannot be checked
is not met.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, BinaryIO, Literal

import msgspec

from tsuku_llm.backends import BackendName, Policy
from tsuku_llm.errors import ManifestError
from tsuku_llm.safe_text import URL_USER
from tsuku_llm.tree_entry import FileEntry, LinkEntry
from tsuku_llm.trust import Target, VerifiedBytes, decode_json
from tsuku_llm.trust.metadata import RELATIVE_PATH

FORMAT = 1

PIECE = 4 << 20
"""The size of a piece in release files, in bytes."""

ARCHIVES = 8
"""The most archives of one variant."""

Format = Literal["tar.gz", "zip", "wheel"]

# The patterns end in \Z: "$" also matches before a final line feed.
Dotted = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9}){0,3}\Z")]
Architecture = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,2}\.[0-9]a?\Z")]
CpuFeature = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{2,32}\Z")]
GfxTarget = Annotated[str, msgspec.Meta(pattern=r"^gfx[0-9a-f]{3,8}\Z")]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._+-]{0,63}\Z")]
RelativePath = Annotated[str, msgspec.Meta(pattern=rf"^{RELATIVE_PATH}\Z", max_length=255)]
RootFolder = Annotated[str, msgspec.Meta(pattern=rf"^(?:{RELATIVE_PATH})?\Z", max_length=255)]
# A manifest is public, and URLs are printed and stored: a user or password in a URL is refused.
_URL = rf"^(?!.*{URL_USER})(https://[!-~]+|pkg:pypi/[!-~]+)\Z"
Url = Annotated[str, msgspec.Meta(pattern=_URL, max_length=2000)]
Publisher = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Date = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")]


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
    versions. ``x86_64_level`` is the level of the psABI. ``cpu_features`` are instruction sets
    beyond that level, with the names of Linux' /proc/cpuinfo. ``vulkan`` is the lowest instance
    and device version. ``level_zero`` and ``openvino`` require an Intel device. ``memory`` is in
    bytes. ``unknown`` has the keys that this version cannot check.
    """

    glibc: Dotted | None = None
    libstdcxx: Dotted | None = None
    macos: Dotted | None = None
    vcruntime: Dotted | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The SHA-256 of every ``size`` bytes of the archive; the last piece may be shorter."""

    size: Annotated[int, msgspec.Meta(ge=65536, le=1 << 26)]
    sha256: tuple[Sha256, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The entries of a release file about an archive's bytes: size, digest and pieces."""

    size: int
    sha256: str
    pieces: Pieces

    @classmethod
    def of(cls, file: BinaryIO, piece_size: int = PIECE) -> Measured:
        """Measure a file from its current position to the end, in one read."""
        whole, size, pieces = hashlib.sha256(), 0, []
        while piece := file.read(piece_size):
            whole.update(piece)
            size += len(piece)
            pieces.append(hashlib.sha256(piece).hexdigest())
        return cls(size, whole.hexdigest(), Pieces(size=piece_size, sha256=tuple(pieces)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One archive to download.

    ``size`` is in bytes, None if upstream published none. ``root`` is the folder inside the
    archive whose content is installed; "" means all of it. With ``pieces``, each piece can be
    verified and used, or downloaded again, before the others have arrived. The list has exactly
    one digest for each piece.
    """

    url: str
    sha256: str
    size: int | None = None
    format: Format
    root: str = ""
    files: tuple[FileEntry, ...] | None = None
    links: tuple[LinkEntry, ...] = ()
    pieces: Pieces | None = None

    def __post_init__(self) -> None:
        if self.pieces is None:
            return
        if self.size is None:
            raise ValueError("an artifact with pieces has no size")
        # Rounded up: the last piece may be shorter.
        count = -(-self.size // self.pieces.size)
        if len(self.pieces.sha256) != count:
            raise ValueError(f"{count} pieces are needed, {len(self.pieces.sha256)} are listed")

    def document(self) -> dict[str, Any]:
        """Build its entry for a release file, without fields that have their defaults."""
        values = ((each.default, each.name, getattr(self, each.name)) for each in fields(self))
        entry = {name: value for default, name, value in values if value != default}
        if self.files is not None:
            entry["files"] = [file.document() for file in self.files]
        if self.links:
            entry["links"] = [link._asdict() for link in self.links]
        plain: dict[str, Any] = msgspec.to_builtins(entry)
        return plain


@dataclass(frozen=True, slots=True)
class Variant:
    """One build of a release for one platform.

    ``server`` is the path of the executable in the installed tree. ``arguments`` always come
    before the user's arguments (``--device none`` for the CPU variant of a GPU build).
    """

    name: Name
    backend: BackendName
    server: RelativePath
    requires: Requirements
    artifacts: tuple[Artifact, ...]
    arguments: tuple[str, ...] = ()

    @property
    def download_size(self) -> int | None:
        """The bytes of all its archives; None if one size is not known."""
        total = 0
        for artifact in self.artifacts:
            if artifact.size is None:
                return None
            total += artifact.size
        return total


@dataclass(frozen=True, slots=True)
class Platform:
    """The variants for one platform, best first within a backend.

    ``preference`` orders backends by policy (``portable``, ``native``).
    """

    name: str
    default: str
    preference: Mapping[str, tuple[str, ...]]
    variants: tuple[Variant, ...]

    def variant(self, name: str) -> Variant | None:
        """Find a variant by its name; None if there is none."""
        return next((variant for variant in self.variants if variant.name == name), None)


@dataclass(frozen=True, slots=True)
class Release:
    """One release of one publisher. ``release`` is upstream's tag ("b11429").

    ``unattested`` is the reason why the builder of its archives was not verified, None if it was.
    """

    release: str
    version: str | None
    publisher: str
    published: str
    revoked: bool
    platforms: Mapping[str, Platform]
    unattested: str | None = None

    @property
    def builds(self) -> tuple[tuple[str, ...], ...]:
        """The sorted digests of each variant's archives, each build once."""
        variants = (each for platform in self.platforms.values() for each in platform.variants)
        found = {tuple(sorted(archive.sha256 for archive in each.artifacts)) for each in variants}
        return tuple(sorted(found))


# The next six are the form of the file as msgspec reads it. ``_release`` turns them into the
# public types above.
@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: RelativePath
    size: Bytes
    sha256: Sha256
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    path: RelativePath
    target: RelativePath


@dataclass(frozen=True, slots=True, kw_only=True)
class _Artifact:
    url: Url
    sha256: Sha256
    size: Bytes | None = None
    format: Format
    root: RootFolder = ""
    files: tuple[_File, ...] | None = None
    links: tuple[_Link, ...] = ()
    pieces: Pieces | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    backend: BackendName
    server: RelativePath
    requires: dict[str, Any]
    artifacts: Annotated[tuple[_Artifact, ...], msgspec.Meta(min_length=1, max_length=ARCHIVES)]
    arguments: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Platform:
    default: Name
    preference: dict[Policy, tuple[BackendName, ...]]
    variants: dict[Name, _Variant]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    format: Literal[1]
    release: Name
    publisher: Publisher
    published: Date
    platforms: dict[Name, _Platform]
    version: Dotted | None = None
    revoked: bool = False
    unattested: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEntry:
    """The signed entry of a release, apart from its file: enough to list and to order it.

    ``sequence`` is greater for newer releases; ``channels`` may be empty.
    """

    release: Name
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    publisher: Publisher
    published: Date
    channels: tuple[Name, ...]
    version: Dotted | None = None


def parse_entry(target: Target) -> ReleaseEntry:
    """Read the signed entry of a release. Raises ``ManifestError``."""
    try:
        return msgspec.convert(target.custom, ReleaseEntry)
    except msgspec.ValidationError as error:
        raise _not_understood(f"the entry of {target.path[:100]}", error) from error


def parse_release(data: VerifiedBytes) -> Release:
    """Read one release file.

    Raises ``ManifestError`` for anything that is not a release file of format 1: wrong types,
    repeated keys, floats, malformed digests or paths, a default that is not a variant.
    """
    try:
        return _release(decode_json(data))
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise _not_understood("a release file", error) from error


def says_revoked(data: VerifiedBytes) -> bool:
    """Tell whether a release file says that its release was revoked.

    It also reads files that ``parse_release`` refuses: a newer format, or an unknown word, must
    not hide a revocation.
    """
    try:
        document = decode_json(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and bool(document.get("revoked"))


def require_release(document: object) -> None:
    """Raise ``ManifestError`` unless this is the document of a release file.

    A publisher calls it before signing. A file to use goes through ``parse_release``, verified.
    """
    try:
        _release(document)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise _not_understood("a release file", error) from error


def parse_artifact(document: object) -> Artifact:
    """Read the entry of one archive, for a publisher. Raises ``ManifestError``."""
    try:
        return _artifact(msgspec.convert(document, _Artifact))
    except (msgspec.ValidationError, ValueError) as error:
        raise _not_understood("an archive", error) from error


def can_list(path: str) -> bool:
    """Tell whether a release file can name a file of this path, or a link with this target."""
    try:
        msgspec.convert(path, RelativePath)
    except msgspec.ValidationError:
        return False
    return True


def can_fetch(url: str) -> bool:
    """Tell whether a release file can name an archive at this URL: https, without a user."""
    try:
        msgspec.convert(url, Url)
    except msgspec.ValidationError:
        return False
    return url.startswith("https://")


def _not_understood(what: str, error: Exception) -> ManifestError:
    return ManifestError(
        f"{what} of the manifest cannot be understood",
        facts=(str(error)[:300],),
        hint="update tsuku-llm: the repository may use a newer format",
    )


def _release(document: object) -> Release:
    raw = msgspec.convert(document, _Release)
    return Release(
        release=raw.release,
        version=raw.version,
        publisher=raw.publisher,
        published=raw.published,
        revoked=raw.revoked,
        platforms={name: _platform(name, value) for name, value in raw.platforms.items()},
        unattested=raw.unattested,
    )


def _platform(name: str, raw: _Platform) -> Platform:
    if raw.default not in raw.variants:
        message = f"platform {name}: the default {raw.default!r} is not one of its variants"
        raise ValueError(message)
    return Platform(
        name=name,
        default=raw.default,
        preference={policy: tuple(order) for policy, order in raw.preference.items()},
        variants=tuple(
            Variant(
                name=key,
                backend=value.backend,
                server=value.server,
                requires=_requirements(value.requires),
                artifacts=tuple(_artifact(each) for each in value.artifacts),
                arguments=value.arguments,
            )
            for key, value in raw.variants.items()
        ),
    )


def _artifact(raw: _Artifact) -> Artifact:
    files = raw.files
    return Artifact(
        url=raw.url,
        sha256=raw.sha256,
        size=raw.size,
        format=raw.format,
        root=raw.root,
        files=None
        if files is None
        else tuple(FileEntry(f.path, f.size, f.sha256, f.executable) for f in files),
        links=tuple(LinkEntry(link.path, link.target) for link in raw.links),
        pieces=raw.pieces,
    )


_REQUIREMENTS = frozenset(Requirements.__dataclass_fields__) - {"unknown"}


def _requirements(raw: dict[str, Any]) -> Requirements:
    known = {key: value for key, value in raw.items() if key in _REQUIREMENTS}
    unknown = tuple(sorted(raw.keys() - _REQUIREMENTS))
    return msgspec.convert({**known, "unknown": unknown}, Requirements)
