"""The types of the ``--json`` documents of ``tsuku-publish``, and the table of its commands.

``ci.schemas`` makes the published schemas from them. No command loads this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from tsuku_llm.cli.documents.keys import (
    Bytes,
    Number,
    Sha256,
    Tag,
    Unattested,
    Unmeasured,
    VariantName,
)
from tsuku_publish.feed.choosing import LeftOut, StableProposal
from tsuku_publish.feed.report import TakenRelease
from tsuku_publish.secrets import Finding


class PublisherVersionAnswer(TypedDict):
    """The answer of ``--version``: the version of tsuku-publish."""

    version: Number


class RefreshAnswer(TypedDict):
    """The answer of ``refresh``; ``notes`` are the lines that it prints without ``--json``."""

    release: Tag
    notes: list[str]


class AttestAnswer(TypedDict):
    """The answer of ``attest``: how many archives come from which source repository.

    With ``--unattested`` there are none, and ``source`` is null.
    """

    release: Tag
    archives: int
    source: str | None
    unattested: Unattested | None


class FeedAnswer(TypedDict):
    """The answer of ``feed``; ``people`` are the lines that a person has to decide about.

    ``taken`` are new in the channel; ``measured`` were recorded before, without their archives.
    ``stopped`` has the reason for each release that is not taken (again). ``offered`` are the
    releases of the channel, newest first. ``changed`` is whether this run changed what is to be
    signed.
    """

    taken: Sequence[TakenRelease]
    measured: Sequence[TakenRelease]
    waiting: Sequence[str]
    left_out: Sequence[LeftOut]
    stopped: dict[str, str]
    offered: Sequence[str]
    forgotten: Sequence[str]
    proposal: StableProposal | None
    people: Sequence[str]
    changed: bool


class RevokeAnswer(TypedDict):
    """The answer of ``revoke``; ``date`` is the first day, in UTC, such as 2026-11-22."""

    release: Tag
    date: str
    reason: str


class WithdrawAnswer(TypedDict):
    """The answer of ``withdraw``; ``withdrawn`` is the day, in UTC, such as 2026-11-22."""

    release: Tag
    withdrawn: str


class ArchiveDocument(TypedDict):
    """An archive; ``written`` is false if it was there already.

    ``file`` is null if it was not packed: users fetch it from where it was.
    """

    file: Path | None
    url: str
    sha256: Sha256
    size: Bytes | None
    written: bool


class PackAnswer(TypedDict):
    """The answer of ``pack``; ``not_packed`` are the variants that still have no archives."""

    release_file: Path
    platform: str
    variant: VariantName
    archives: list[ArchiveDocument]
    not_packed: Sequence[str]


class InitAnswer(TypedDict):
    """The answer of ``init``: the file, and the folder of the signers that were ``made`` here.

    ``signers`` is null if none was made. ``threshold`` people sign root and targets.
    """

    file: Path
    signers: Path | None
    made: Sequence[str]
    threshold: int


class CudaDocument(TypedDict):
    """The CUDA code of a build; ``toolkit`` is null if its runtime is not in the build."""

    toolkit: str | None
    sass: list[str]
    ptx: list[str]


class MeasuredDocument(TypedDict):
    """A build as its files show it; null and empty: not shown, or not needed.

    ``files`` is their number. ``missing`` are the libraries that it needs and does not have.
    ``x86_64_level`` is the level of processors that its files are marked for, if above the first.
    ``musl`` is whether it is for systems with musl.
    """

    files: int
    size: Bytes
    server: str | None
    platform: str | None
    backends: list[str]
    glibc: str | None
    libstdcxx: str | None
    cuda: CudaDocument | None
    gfx: list[str]
    missing: list[str]
    x86_64_level: int | None
    musl: bool


class MeasureAnswer(MeasuredDocument):
    """The answer of ``measure``: a build as its files show it."""

    build: Path


class SourceDocument(TypedDict):
    """The source of a build; ``sha256`` is over all its files, whatever they came in.

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
    measured: MeasuredDocument


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


class AddedDocument(TypedDict):
    """A variant that ``add`` has entered.

    ``kept`` names what it requires besides, as the release file said before.
    """

    platform: str
    variant: VariantName
    backend: str
    measured: MeasuredDocument
    kept: list[str]
    archives: list[ArchiveDocument]


class AddAnswer(TypedDict):
    """The answer of ``add``: the release file, its channel, and the variants that were entered."""

    release: Tag
    release_file: Path
    channel: str
    variants: list[AddedDocument]


class SignedAnswer(TypedDict):
    """The answer of ``sign``, ``resign`` and ``rotate``: the folder, and each role's version.

    ``notes`` are the lines that are printed without ``--json``.
    """

    folder: Path
    versions: dict[str, int]
    notes: Sequence[str]


class ReleaseChangeDocument(TypedDict):
    """What changes for one release: new, promoted, moved, changed or gone.

    ``before`` and ``after`` are its channels. Variants and requirements are compared with its own
    release file, or with the release ``compared_with``. ``because`` says why it did not wait.
    ``hosts`` have its archives. ``alarming`` are the lines that people see in red.
    """

    release: Tag
    change: str
    before: Sequence[str]
    after: Sequence[str]
    publisher: str
    unattested: Unattested | None
    unmeasured: Unmeasured | None
    bytes: Bytes
    compared_with: Tag | None
    gained: Sequence[str]
    lost: Sequence[str]
    requires: Sequence[str]
    because: str | None
    hosts: Sequence[str]
    alarming: Sequence[str]


class RoleChangeDocument(TypedDict):
    """What changes for one role: version, last day, old and new threshold, and its signers.

    ``joined`` and ``left`` have each signer with the full fingerprint of the key. ``alarming`` are
    the lines that people see in red.
    """

    role: str
    before: int
    after: int
    expires: str
    threshold: Sequence[int]
    joined: Sequence[str]
    left: Sequence[str]
    alarming: Sequence[str]


class WrittenFile(TypedDict):
    """An unsigned release file, relative to the folder that was asked for."""

    path: str
    channels: list[str]


class ReviewAnswer(TypedDict):
    """The answer of ``review``: what a signature would change.

    ``kept`` are the channels that stay as they are published. ``program`` says what self-update
    would install, null if that stays. ``digests`` are those of the bytes that the signers of each
    role sign, and of each release file. ``gathered`` says whether other
    holders have signed it. ``files`` are the release files that ``--write`` wrote.
    """

    roles: Sequence[RoleChangeDocument]
    releases: Sequence[ReleaseChangeDocument]
    revoked: Sequence[str]
    withdrawn: Sequence[str]
    forgotten: Sequence[str]
    kept: Sequence[str]
    program: str | None
    digests: dict[str, Sha256]
    gathered: bool
    files: list[WrittenFile]


class PromotedRelease(TypedDict):
    """A release that goes to the channel; ``because`` is null if it waited for 72 hours."""

    release: Tag
    sha256: Sha256
    because: str | None


class PromoteAnswer(TypedDict):
    """The answer of ``promote``."""

    channel: str
    releases: list[PromotedRelease]


class NewSignerAnswer(TypedDict):
    """The answer of ``new-signer``: the public key, and its line for ``[keys]``.

    ``public`` has hexadecimal digits for the scheme ``ed25519``, and PEM for every other one.
    """

    name: str
    scheme: str
    public: str
    line: str


class PublishAnswer(TypedDict):
    """The answer of ``publish``: the web server's folder, and each role's version there."""

    target: Path
    versions: dict[str, int]
    wheel: Path | None


class CheckedRole(TypedDict):
    """The newest metadata of a role: its version's number, its last day, and the days left."""

    number: int
    expires: str
    days: int


class RevokedRelease(TypedDict):
    """An entry of the signed list; ``withdrawn`` is empty if the revocation is in force."""

    release: Tag
    reason: str
    date: str
    withdrawn: str


class PublishedState(TypedDict):
    """What ``check --published`` found there: each role's version, and the newest root's."""

    versions: dict[str, int]
    root: int


class CheckAnswer(TypedDict):
    """The answer of ``check``; ``late`` has the roles that must be signed again.

    ``root`` is the version of the newest root. ``published`` is null without ``--published``.
    """

    roles: dict[str, CheckedRole]
    revoked: list[RevokedRelease]
    root: int
    late: list[str]
    published: PublishedState | None


class SecretsAnswer(TypedDict):
    """The answer of ``secrets``: what was found, and how many files and objects were searched."""

    found: Sequence[Finding]
    searched: int


ANSWERS: dict[str, tuple[type, ...]] = {
    "": (PublisherVersionAnswer,),
    "refresh": (RefreshAnswer,),
    "attest": (AttestAnswer,),
    "feed": (FeedAnswer,),
    "revoke": (RevokeAnswer,),
    "withdraw": (WithdrawAnswer,),
    "pack": (PackAnswer,),
    "init": (InitAnswer,),
    "build": (BuildAnswer,),
    "add": (AddAnswer,),
    "measure": (MeasureAnswer,),
    "review": (ReviewAnswer,),
    "promote": (PromoteAnswer,),
    "sign": (SignedAnswer,),
    "resign": (SignedAnswer,),
    "rotate": (SignedAnswer,),
    "new-signer": (NewSignerAnswer,),
    "publish": (PublishAnswer,),
    "check": (CheckAnswer,),
    "secrets": (SecretsAnswer,),
}
"""The documents that each command may have in ``data``, next to that of ``--help`` and none."""
