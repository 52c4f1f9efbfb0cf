"""The table of the documents of ``tsuku-publish``, as ``answers`` has those of ``tsuku-llm``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from ci.schemas.keys import Sha256, Tag
from tsuku_llm.catalog.revocations import Revocation
from tsuku_publish.building.orders import Orders
from tsuku_publish.feed.report import FeedReport, Matter
from tsuku_publish.packing.adding import AddedVariant
from tsuku_publish.packing.measuring import MeasuredBuild
from tsuku_publish.packing.pack import PackReport
from tsuku_publish.secrets import Finding
from tsuku_publish.signing.review import Review
from tsuku_publish.upstream.source.facts import Difference, SourceFacts


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
    "feed": (FeedReport, {"people": list[Matter]}),
    "upstream": (
        {
            "facts": SourceFacts,
            "changes": tuple[Difference, ...],
            "disagreements": tuple[str, ...],
            "recorded": Path | None,
        },
    ),
    "revoke": ({"release": str, "date": str, "reason": str},),
    "withdraw": ({"release": str, "withdrawn": str},),
    "pack": (PackReport,),
    "init": ({"file": Path, "signers": Path | None, "made": tuple[str, ...], "threshold": int},),
    "build": (Orders,),
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
