"""The table of the documents of ``tsuku-publish``, as ``answers`` has those of ``tsuku-llm``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from ci.schemas.keys import Sha256, Tag, VariantName
from tsuku_llm.catalog.revocations import Revocation
from tsuku_publish.feed.report import FeedReport
from tsuku_publish.packing.adding import AddedVariant
from tsuku_publish.packing.measuring import MeasuredBuild
from tsuku_publish.packing.pack import PackReport
from tsuku_publish.secrets import Finding
from tsuku_publish.signing.review import Review


class SourceDocument(TypedDict):
    """The source of a build; ``sha256`` is the digest of all its files, whatever the archive.

    ``archive_sha256`` is null for a tree, ``release`` null if it is not known. ``time`` is in
    seconds since 1970.
    """

    name: str
    sha256: Sha256
    archive_sha256: Sha256 | None
    release: Tag | None
    commit: str
    time: int


class FoundToolDocument(TypedDict):
    """A tool of this machine; ``version`` is null if it does not tell one."""

    name: str
    version: str | None
    path: Path


class MissingToolDocument(TypedDict):
    """A tool that this machine lacks; ``reason`` is about one that is too old."""

    name: str
    reason: str | None
    advice: str
    optional: bool


class BuildResultDocument(TypedDict):
    """A finished build; ``continued`` is whether an earlier run had begun it.

    ``companions`` are the libraries of the toolkit that ``tree`` brings along.
    """

    tree: Path
    receipt: Path
    sbom: Path
    continued: bool
    companions: list[str]
    measured: MeasuredBuild


class BaseDocument(TypedDict):
    """The system that a build is compiled in; ``glibc`` is null for zig and for another libc."""

    root: Path
    system: str
    glibc: str | None


class UnmadeBaseDocument(TypedDict):
    """A base that ``build`` would make first, with these packages."""

    name: str
    root: Path
    packages: list[str]


class SourceBuildDocument(TypedDict):
    """What is built with what; ``install`` is the command for what is missing, if it is known.

    ``base`` is null for a build with this machine's own tools. ``cmake`` and ``flags`` are
    arguments. ``notes`` are about variables of the environment. ``sass``, ``ptx`` and
    ``gfx`` are the cards that it is compiled for; empty where the toolkit's own default counts.
    ``result`` is null with ``build show``.
    """

    variant: VariantName
    backends: list[str]
    platform: str
    base: BaseDocument | None
    cmake: list[str]
    flags: list[str]
    notes: list[str]
    sass: list[str]
    ptx: list[str]
    gfx: list[str]
    tools: list[FoundToolDocument]
    missing: list[MissingToolDocument]
    install: str | None
    result: BuildResultDocument | None


class BuildAnswer(TypedDict):
    """The answer of ``build`` and ``build show``; ``source`` is null if ``show`` got none.

    ``unmade`` are bases that ``show`` found missing; what would be built in them is not in
    ``builds``.
    """

    source: SourceDocument | None
    builds: list[SourceBuildDocument]
    unmade: list[UnmadeBaseDocument]


class PromotedRelease(TypedDict):
    """A release that goes to the channel; ``because`` is null if it waited for 72 hours."""

    release: Tag
    sha256: Sha256
    because: str | None


class CheckedRole(TypedDict):
    """The newest metadata of a role: its version's number, its last day, and the days left."""

    number: int
    expires: str
    days: int


class PublishedState(TypedDict):
    """What ``check --published`` found there: each role's version, and the newest root's."""

    versions: dict[str, int]
    root: int


class CheckAnswer(TypedDict):
    """The answer of ``check``; ``late`` has the roles that must be signed again.

    ``withdrawn`` are the releases whose revocation is not in force any more, each with the day.
    ``root`` is the version of the newest root. ``published`` is null without ``--published``.
    """

    roles: dict[str, CheckedRole]
    revoked: list[Revocation]
    withdrawn: dict[str, str]
    root: int
    late: list[str]
    published: PublishedState | None


_SIGNED = {"folder": Path, "versions": dict[str, int], "notes": list[str]}

ANSWERS: dict[str, tuple[type | Mapping[str, Any], ...]] = {
    "": ({"version": str},),
    "refresh": ({"release": str, "notes": list[str]},),
    "attest": ({"release": str, "archives": int, "source": str | None, "unattested": str | None},),
    "feed": (FeedReport,),
    "revoke": ({"release": str, "date": str, "reason": str},),
    "withdraw": ({"release": str, "withdrawn": str},),
    "pack": (PackReport,),
    "init": ({"file": Path, "signers": Path | None, "made": tuple[str, ...], "threshold": int},),
    "build": (BuildAnswer,),
    "add": (
        {
            "release": str,
            "release_file": Path,
            "channel": str,
            "variants": tuple[AddedVariant, ...],
        },
    ),
    "measure": ({"build": Path, "measured": MeasuredBuild},),
    "review": ({"review": Review, "gathered": bool, "files": dict[str, list[str]]},),
    "promote": ({"channel": str, "releases": list[PromotedRelease]},),
    "sign": (_SIGNED,),
    "resign": (_SIGNED,),
    "rotate": (_SIGNED,),
    "new-signer": ({"name": str, "scheme": str, "public": str, "line": str},),
    "publish": ({"target": Path, "versions": dict[str, int], "wheel": Path | None},),
    "check": (CheckAnswer,),
    "secrets": ({"found": tuple[Finding, ...], "searched": int},),
}
"""The documents that each command may have in ``data``, next to that of ``--help`` and none."""
