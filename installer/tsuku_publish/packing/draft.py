"""A publisher's release file before it is signed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsuku_llm.catalog.manifest import require_release
from tsuku_llm.ground.errors import ManifestError, UsageError
from tsuku_llm.ground.files import write_output
from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.trust import decode_json
from tsuku_publish.errors import LARGEST_FILE

_NOT_PACKED = {"url": "https://host.invalid/later", "sha256": "0" * 64, "format": "tar.gz"}
"""Stands in for the archives of a variant that is packed later, while the rest is checked."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A release file and its parsed content; the entries in it are changed in place."""

    path: Path
    content: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Draft:
        """Read a release file. Raises ``UsageError`` for a file that is not a JSON object."""
        try:
            content = decode_json(read_foreign(path, LARGEST_FILE))
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from error
        except (ValueError, RecursionError) as error:
            raise _unusable(path, str(error)[:300]) from error
        if not isinstance(content, dict):
            raise _unusable(path, "it is not an object")
        return cls(path, content)

    def variant(self, name: str, platform: str | None) -> tuple[str, dict[str, Any]]:
        """Return the platform of a variant and its entry, which names a server.

        Raises ``UsageError`` unless exactly one variant has this name.
        """
        found = {key: entry for key, entry in self._variants(name) if platform in (None, key)}
        if len(found) != 1:
            where = f" for {platform}" if platform else ""
            raise UsageError(
                f"{self.path.name} has {len(found) or 'no'} variants {name}{where}",
                facts=tuple(f"platform: {key}" for key in found),
                hint="name one that it describes: --variant NAME, and --platform NAME",
            )
        return next(iter(found.items()))

    def platform(self, name: str) -> dict[str, Any]:
        """Return the entry of a platform, which is made if it is new."""
        described: dict[str, Any] = self.content["platforms"].setdefault(name, {})
        described.setdefault("variants", {})
        return described

    def require_sound(self) -> None:
        """Raise ``UsageError`` unless clients would understand what is in the file already."""
        if self.content.get("platforms"):
            self._check()
        elif self.content.get("platforms") != {}:
            raise _unusable(self.path, "it has no platforms with variants")

    def _variants(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        try:
            entries = [
                (key, platform["variants"][name])
                for key, platform in self.content["platforms"].items()
                if name in platform["variants"]
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise _unusable(self.path, "it has no platforms with variants") from error
        for _, entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("server"), str):
                raise _unusable(self.path, f"its variant {name} names no server")
        return entries

    def write(self) -> None:
        """Replace the file in one step, if clients would understand it.

        Other variants may still be without archives: a release is packed one variant after the
        other. Raises ``UsageError``, and the errors of the disk.
        """
        self._check()
        write_output(self.path, json.dumps(self.content, indent=2) + "\n")

    def _check(self) -> None:
        checked = copy.deepcopy(self.content)
        for _, _, entry in _without_archives(checked):
            entry["artifacts"] = [_NOT_PACKED]
        try:
            # The parser of the clients decides: a file that it refuses must never be signed.
            require_release(checked)
        except ManifestError as error:
            raise UsageError(
                f"clients would not understand {self.path.name}",
                facts=error.facts,
                hint="correct the release file; nothing was entered into it",
            ) from error

    @property
    def not_packed(self) -> tuple[str, ...]:
        """The variants without archives, such as "cpu for linux-amd64": they are still to pack."""
        return tuple(
            f"{name} for {platform}" for platform, name, _ in _without_archives(self.content)
        )


def _without_archives(content: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield platform, name and entry of each variant that no archive was entered for."""
    # Anything may be in the file; what is no object is for the parser to refuse.
    platforms = content.get("platforms")
    for platform, described in platforms.items() if isinstance(platforms, dict) else ():
        variants = described.get("variants") if isinstance(described, dict) else None
        for name, entry in variants.items() if isinstance(variants, dict) else ():
            if isinstance(entry, dict) and not entry.get("artifacts"):
                yield platform, name, entry


def _unusable(path: Path, fact: str) -> UsageError:
    return UsageError(
        f"{path} is no release file",
        facts=(fact,),
        hint="write what the build needs of a machine: docs/releases.md has an example",
    )
