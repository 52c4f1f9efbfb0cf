"""Documents about repositories, and about mirrors and bundles of them."""

from __future__ import annotations

from typing import TypedDict

from tsuku_llm.cli.documents.keys import (
    Bytes,
    Channel,
    File,
    Moment,
    RepositoryName,
    Sha256,
    Tag,
    VariantName,
)


class MirroredArchive(TypedDict):
    """An archive of a mirror; ``size`` is null if none was signed."""

    name: str
    sha256: Sha256
    size: Bytes | None


class SweptFiles(TypedDict):
    """What is in the folder of a mirror and belongs to nothing: paths relative to the folder.

    ``unused`` are the program's own files; a prune has removed them. ``foreign`` is the rest.
    """

    unused: list[str]
    size: Bytes
    foreign: list[str]


class MirrorAnswer(TypedDict):
    """The answer of ``mirror``: ``outcome`` is planned, updated or unchanged.

    ``artifacts`` is the number of archives that the mirror has, with ``size`` bytes as far as that
    is signed. ``fetched`` came in this run, or would come. ``swept`` is null without ``--prune``.
    """

    outcome: str
    place: str
    repository: RepositoryName
    releases: list[Tag]
    signed: Moment | None
    expires: Moment
    artifacts: int
    size: Bytes
    fetched: list[MirroredArchive]
    swept: SweptFiles | None


class MirrorCheckAnswer(TypedDict):
    """The answer of ``mirror --check``: ``differences`` is empty if the mirror is intact."""

    place: str
    repository: RepositoryName
    intact: bool
    differences: list[str]
    artifacts: int
    size: Bytes
    swept: SweptFiles


class BundledBuildDocument(TypedDict):
    """A build in a bundle; ``artifacts`` are the digests of its archives."""

    release: Tag
    channel: Channel
    platform: str
    variant: VariantName
    artifacts: list[Sha256]


class BundledProgramDocument(TypedDict):
    """The program in a bundle for one Python, such as 3.11; ``glibc`` is the oldest that works."""

    platform: str
    python: str
    glibc: str | None


class BundleAnswer(TypedDict):
    """The answer of ``bundle create`` and ``bundle show``.

    ``outcome`` is planned, created or shown. ``sha256`` is that of the file, null for a plan.
    ``size`` is that of the file, or of the archives of a plan. ``made_by`` is the version of the
    program that made it, ``fingerprint`` the SHA-256 of the repository's root of trust.
    """

    outcome: str
    path: File
    sha256: Sha256 | None
    size: Bytes
    made_by: str
    repository: RepositoryName
    fingerprint: Sha256
    expires: Moment
    builds: list[BundledBuildDocument]
    programs: list[BundledProgramDocument]
