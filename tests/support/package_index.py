"""A package index that is a folder: what pip is told, and wheels of signed repositories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tsuku_publish.repository.wheel import make_wheel

PROJECT = "Our-Metadata"
PLACE = f"pkg:pypi/{PROJECT}"


class PackageIndex:
    """A folder of wheels that a real pip asks instead of a host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @property
    def environ(self) -> dict[str, str]:
        """The caller's environment with this index and no other."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "TSUKU_"))}
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
        return {**kept, **settings, "PIP_FIND_LINKS": str(self.folder)}

    def upload(self, files: Mapping[str, bytes], version: int = 1) -> None:
        """Put a wheel of these files of a repository there."""
        self.put(make_wheel(files, PROJECT, version), version)

    def put(self, data: bytes, version: int = 1) -> None:
        """Put any bytes there, under the name of a wheel."""
        (self.folder / f"our_metadata-{version}-py3-none-any.whl").write_bytes(data)
