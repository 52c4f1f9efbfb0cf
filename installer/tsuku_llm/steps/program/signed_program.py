"""What is known of this program's versions: what signed metadata name, and each one's lock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.repositories import OFFICIAL
from tsuku_llm.ground.errors import ManifestError

_DIGEST = re.compile(r"\A[0-9a-f]{64}\Z")


class SignedProgram(NamedTuple):
    """The newest version of this program that signed metadata name, and its wheel's digest."""

    version: str
    sha256: str


def program_in(catalog: Catalog) -> SignedProgram | None:
    """Return what verified metadata say of this program; None if they name no version.

    Only the official repository may name one. Raises ``ManifestError`` for what cannot be
    understood: that is not the same as nothing.
    """
    said = catalog.trusted.program
    if said is None or catalog.repository.name != OFFICIAL:
        return None
    try:
        # Without a match there is no first one.
        return SignedProgram(str(Version(said["version"])), _DIGEST.findall(said["sha256"])[0])
    except (InvalidVersion, LookupError, TypeError, ValueError) as error:
        raise ManifestError(
            "what signed metadata say of this program cannot be understood",
            facts=(f"{error}"[:200],),
            hint="install a newer version by hand: the metadata may have a newer form",
        ) from error


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One version in the lock: ``needed_by`` are the packages that require it."""

    requirement: Requirement
    digests: tuple[str, ...]
    needed_by: tuple[str, ...]

    @property
    def name(self) -> str:
        """The normalized name."""
        return canonicalize_name(self.requirement.name)

    @property
    def pin(self) -> str:
        """The requirement without its marker, with the digests, as pip reads it."""
        digests = "".join(f" --hash=sha256:{digest}" for digest in self.digests)
        return f"{self.name}{self.requirement.specifier}{digests}"


def parse_lock(text: str) -> tuple[LockedPackage, ...]:
    """Read a lock as ``ci/lock`` writes it, without the packages that only build the program."""
    found = []
    for block in re.split(r"\n(?=[a-z])", text):
        line, _, rest = block.replace("\\\n", " ").partition("\n")
        needed_by = tuple(re.findall(r"^ +#(?: via|  ) ([a-z][\w.-]*)", rest, re.MULTILINE))
        if line.startswith("#") or not needed_by:
            continue
        requirement, *digests = re.split(r"\s+--hash=sha256:", line.strip())
        found.append(LockedPackage(Requirement(requirement), tuple(digests), needed_by))
    return tuple(found)
