"""The release files of the signed manifest: platform → variant → artifacts.

This module has the types and one parser. The parser takes only ``VerifiedBytes``: unsigned data
is never interpreted. Unknown fields are ignored, except inside ``requires`` (see
``requirements``). A variant with a backend, a format of archive or a kind of URL that this version
does not know is kept: it counts as a variant with an unknown requirement. So a new word in one
variant does not hide the rest of the release from programs of today.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, BinaryIO, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from tsuku_llm.catalog.requirements import Bytes, Dotted, Requirements, read_requirements
from tsuku_llm.ground.errors import ManifestError
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import URL_USER
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry
from tsuku_llm.machine.backends import NAMES, POLICIES
from tsuku_llm.trust import Target, VerifiedBytes, decode_json
from tsuku_llm.trust.metadata import RELATIVE_PATH

FORMAT = 1

PIECE = 4 << 20
"""The size of a piece in release files, in bytes."""

ARCHIVES = 16
"""The most archives of one variant; Intel's runtime for SYCL comes in ten packages."""

Format = Literal["tar.gz", "zip", "wheel"]
FORMATS: tuple[str, ...] = get_args(Format)
"""The formats of archives that this version can unpack."""

_SCHEMES = ("https://", "pkg:pypi/")
"""The beginnings of the URLs that this version can download from."""

# The patterns end in \Z: "$" also matches before a final line feed.
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._+-]{0,63}\Z")]
RelativePath = Annotated[str, msgspec.Meta(pattern=rf"^{RELATIVE_PATH}\Z", max_length=255)]
RootFolder = Annotated[str, msgspec.Meta(pattern=rf"^(?:{RELATIVE_PATH})?\Z", max_length=255)]
# A manifest is public, and URLs are printed and stored: a user or password in a URL is refused.
# Another scheme is a word of a newer version, except for those that are known and never allowed.
_OTHER_SCHEME = r"(?!(?:https?|file|ftp):)[a-z][a-z0-9+.-]{1,31}:"
_URL = rf"^(?!.*{URL_USER})(?:https://|{_OTHER_SCHEME})[!-~]+\Z"
Url = Annotated[str, msgspec.Meta(pattern=_URL, max_length=2000)]
Publisher = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Date = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")]


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
class Archive:
    """One archive, without its content; ``Artifact`` says what the fields are."""

    url: Url
    sha256: Sha256
    size: Bytes | None = None
    format: Name
    root: RootFolder = ""
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


@documented("url", "sha256", "size", "format")
@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact(Archive):
    """One archive to download.

    In every variant that can fit, this version knows ``format`` and the scheme of ``url``. ``size``
    is in bytes, None if upstream published none. ``root`` is the folder inside the archive whose
    content is installed; "" means all of it. With ``pieces``, each piece can be verified and used,
    or downloaded again, before the others have arrived. The list has exactly one digest for each
    piece. Without ``files`` an archive's content is not known; of a wheel only these are installed.
    """

    files: tuple[FileEntry, ...] | None = None
    links: tuple[LinkEntry, ...] = ()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Startable:
    """What a start needs to know of a variant.

    ``backend`` may be a name that this version does not know; ``requires.unknown`` says so.
    ``server`` is the path of the executable in the installed tree. ``arguments`` always come
    before the user's arguments (``--device none`` for the CPU variant of a GPU build).
    """

    backend: Name
    server: RelativePath
    arguments: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()


@documented(by="name")
@dataclass(frozen=True, slots=True, kw_only=True)
class Variant(Startable):
    """One build of a release for one platform.

    ``parts`` are the signed variants that this one is made of; it has no other facts than theirs.
    No release file lists such a variant.
    """

    name: str
    requires: Requirements
    artifacts: tuple[Artifact, ...]
    parts: tuple[Variant, ...] = ()

    @property
    def signed(self) -> tuple[Variant, ...]:
        """The variants of the release file that it is made of: itself, if that lists it."""
        return self.parts or (self,)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What names a release; ``Release`` says what the fields are."""

    release: Name
    publisher: Publisher
    published: Date
    version: Dotted | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Published):
    """What a release file says of the whole release; ``Release`` says what the fields are."""

    revoked: bool = False
    unattested: Reason | None = None
    unmeasured: Reason | None = None


@documented("release", "version", "publisher", "unattested", "unmeasured")
@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Head):
    """One release of one publisher. ``release`` is upstream's tag ("b11429").

    ``unattested`` is the reason why the builder of its archives was not verified, None if it was.
    ``unmeasured`` is the reason why its archives were not read: what its variants require is then
    taken from how they were built.
    """

    platforms: Mapping[str, Platform]

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
class _Artifact(Archive):
    files: tuple[_File, ...] | None = None
    links: tuple[_Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant(Startable):
    requires: Any
    artifacts: Annotated[tuple[_Artifact, ...], msgspec.Meta(min_length=1, max_length=ARCHIVES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Platform:
    default: Name
    preference: dict[Name, tuple[Name, ...]]
    variants: dict[Name, _Variant]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release(Head):
    format: Literal[1]
    platforms: dict[Name, _Platform]


RELEASE_FILE: type = _Release
"""The form of a release file, of which ``ci.schemas`` makes the published schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEntry(Published):
    """The signed entry of a release, apart from its file: enough to list and to order it.

    ``sequence`` is greater for newer releases; ``channels`` may be empty.
    """

    sequence: Annotated[int, msgspec.Meta(ge=0)]
    channels: tuple[Name, ...]


_NUMBERED = re.compile(r"b([0-9]{1,15})")
"""A release's tag, which has its place in the order of releases."""


def parse_entry(target: Target) -> ReleaseEntry:
    """Read the signed entry of a release. Raises ``ManifestError``."""
    try:
        return msgspec.convert(target.custom, ReleaseEntry)
    except msgspec.ValidationError as error:
        raise _not_understood(f"the entry of {target.path[:100]}", error) from error


def entry_in(data: VerifiedBytes, release: str, channel: str) -> ReleaseEntry:
    """Make the entry of a release from its file, whose name says which release it is.

    For files in a delegated role's own folder, which is the channel: their targets metadata has no
    entry. Raises ``ManifestError`` for a name that is not "b" and a number, and for no JSON. A file
    that this version cannot read otherwise gets an entry, too: it may say that it is revoked.
    """
    number = _NUMBERED.fullmatch(release)
    if number is None:
        raise _not_understood(f"{release[:100]!a}", ValueError('it is not "b" and a number'))
    try:
        document = decode_json(data)
    except (ValueError, RecursionError) as error:
        raise _not_understood("a release file", error) from error
    named = Published(release=release, publisher="unknown", published="1970-01-01")
    if isinstance(document, dict):
        with suppress(msgspec.ValidationError):
            named = msgspec.convert({**document, "release": release}, Published)
    return ReleaseEntry(sequence=int(number[1]), channels=(channel,), **_facts(named, Published))


def parse_release(data: VerifiedBytes) -> Release:
    """Read one release file.

    Raises ``ManifestError`` for anything that is not a release file of format 1: wrong types,
    repeated keys, floats, malformed digests or paths, a default that is not a variant. A word that
    this version does not know makes one variant incompatible, and is no error.
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
    """Raise ``ManifestError`` unless this version understands every word of a release file.

    A publisher calls it before signing: an unknown word there is most likely a mistake. A file to
    use goes through ``parse_release``, verified.
    """
    try:
        for platform in _release(document).platforms.values():
            _require_known(platform)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise _not_understood("a release file", error) from error


def parse_artifact(document: object) -> Artifact:
    """Read the entry of one archive, for a publisher. Raises ``ManifestError``."""
    try:
        artifact = _artifact(msgspec.convert(document, _Artifact))
    except (msgspec.ValidationError, ValueError) as error:
        raise _not_understood("an archive", error) from error
    if artifact.format not in FORMATS:
        raise _not_understood("an archive", ValueError(f"there is no format {artifact.format!r}"))
    if not artifact.url.startswith(_SCHEMES):
        raise _not_understood("an archive", ValueError(f"no client can fetch {artifact.url!r}"))
    return artifact


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
        _require_host(msgspec.convert(url, Url))
    except ValueError:
        return False
    return url.startswith("https://")


def _require_host(url: str) -> str:
    """Return a URL; raise ``ValueError`` if its host or port cannot be read, as in https://[::1."""
    # The syntax of another scheme is not ours to know.
    if url.startswith("https:"):
        parts = urlsplit(url)
        _ = parts.port  # it raises for what is no port
        if not parts.hostname:
            raise ValueError(f"a URL without a host: {url[:100]}")
    return url


def _not_understood(what: str, error: Exception) -> ManifestError:
    return ManifestError(
        f"{what} of the manifest cannot be understood",
        facts=(str(error)[:300],),
        hint="update tsuku-llm: the repository may use a newer format",
    )


def _release(document: object) -> Release:
    raw = msgspec.convert(document, _Release)
    platforms = {}
    for name, platform in raw.platforms.items():
        if platform.default not in platform.variants:
            message = (
                f"platform {name}: the default {platform.default!r} is not one of its variants"
            )
            raise ValueError(message)
        platforms[name] = Platform(
            name=name,
            default=platform.default,
            preference=platform.preference,
            variants=tuple(_variant(key, value) for key, value in platform.variants.items()),
        )
    return Release(platforms=platforms, **_facts(raw, Head))


def _facts(raw: object, kind: type) -> dict[str, Any]:
    """Return the fields of ``kind``, which are the same in the file and in the public value."""
    return {each.name: getattr(raw, each.name) for each in fields(kind)}


def _variant(name: str, raw: _Variant) -> Variant:
    requires = read_requirements(raw.requires)
    strange = [] if raw.backend in NAMES else [f"backend {raw.backend}"]
    formats = {each.format for each in raw.artifacts}
    strange += [f"format {each}" for each in sorted(formats.difference(FORMATS))]
    urls = [each.url for each in raw.artifacts if not each.url.startswith(_SCHEMES)]
    strange += [f"url {scheme}" for scheme in sorted({url.partition("/")[0][:40] for url in urls})]
    return Variant(
        name=name,
        requires=replace(requires, unknown=(*strange, *requires.unknown)),
        artifacts=tuple(_artifact(each) for each in raw.artifacts),
        **_facts(raw, Startable),
    )


def _require_known(platform: Platform) -> None:
    """Raise ``ValueError`` for a word of a platform that this version does not know."""
    for variant in platform.variants:
        if variant.requires.unknown:
            unknown = ", ".join(variant.requires.unknown)
            message = f"variant {variant.name} for {platform.name} has unknown words: {unknown}"
            raise ValueError(message)
    for policy, order in platform.preference.items():
        if policy not in POLICIES or not set(order) <= set(NAMES):
            message = f"platform {platform.name}: the preference {policy!r} has an unknown word"
            raise ValueError(message)


def _artifact(raw: _Artifact) -> Artifact:
    _require_host(raw.url)
    files = raw.files
    return Artifact(
        files=None
        if files is None
        else tuple(FileEntry(f.path, f.size, f.sha256, f.executable) for f in files),
        links=tuple(LinkEntry(link.path, link.target) for link in raw.links),
        **_facts(raw, Archive),
    )
