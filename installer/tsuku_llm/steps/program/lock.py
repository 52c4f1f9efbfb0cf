"""The lock of this program: each dependency for every platform, with its digests. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


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
