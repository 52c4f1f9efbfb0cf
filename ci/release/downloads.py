"""The archives that a release file names, from a folder or from where users download them."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ci.release.contents import Contents, read_archive
from ci.release.errors import ReleaseError
from tsuku_llm.errors import TsukuError
from tsuku_llm.manifest import Artifact, parse_artifact


def artifacts_of(document: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return every archive of a release file by its SHA-256."""
    return {
        raw["sha256"]: parse_artifact(raw)
        for platform in document["platforms"].values()
        for variant in platform["variants"].values()
        for raw in variant["artifacts"]
    }


def file_name(artifact: Artifact) -> str:
    """Return the name of an archive's file; a package URL has it in its query."""
    url = urlsplit(artifact.url)
    named = parse_qs(url.query).get("file_name")
    return named[0] if named else url.path.rpartition("/")[2]


def read(artifact: Artifact, folder: Path | None, environ: Mapping[str, str]) -> Contents:
    """Read an archive in ``folder``; without a folder, download it and do not keep it.

    Raises ``ReleaseError``.
    """
    with _archive(artifact, folder, environ) as path:
        return read_archive(path, artifact)


@contextmanager
def _archive(artifact: Artifact, folder: Path | None, environ: Mapping[str, str]) -> Iterator[Path]:
    if folder is not None:
        path = folder / file_name(artifact)
        if not path.is_file():
            raise ReleaseError(f"{folder} has no {path.name}")
        yield path
        return
    from tsuku_llm.fetch import Network, fetch  # noqa: PLC0415

    # Downloaded and verified by the program's own code, as a user would get it.
    with tempfile.TemporaryDirectory(prefix="release-") as partials, Network(environ) as network:
        try:
            path = fetch(artifact, Path(partials), network)
        except TsukuError as error:
            raise ReleaseError("; ".join((error.message, *error.facts))) from error
        yield path
