"""What signed metadata say of this program itself: its newest version, and its wheel's digest."""

from __future__ import annotations

import re
from typing import NamedTuple

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
