"""Parts of an install, each run alone: ``python -m ci.bench.work fetch|unpack ...``."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tsuku_llm import archive, fetch
from tsuku_llm.archive import inflating
from tsuku_llm.manifest import Artifact, Pieces


def unpack(inflater: str, format_: Any, root: str, path: str, into: str) -> None:
    """Unpack an archive with this inflater, ``zlib`` or ``isal``."""
    inflating.LIBRARY = importlib.import_module({"isal": "isal.isal_zlib"}.get(inflater, inflater))
    artifact = Artifact(url="https://unused/", sha256="", format=format_, root=root)
    archive.unpack(Path(path), artifact, Path(into))


def download(entry: str, folder: str) -> None:
    """Fetch an artifact and print the time that it took.

    The clock starts when the library is loaded, but no connection and no list of
    certificates is: what the program needs to start is measured elsewhere.
    """
    import httpx  # noqa: F401, PLC0415
    import truststore  # noqa: F401, PLC0415

    fields = json.loads(entry)
    pieces = fields.pop("pieces", None)
    parts = Pieces(size=pieces["size"], sha256=tuple(pieces["sha256"])) if pieces else None
    artifact = Artifact(**fields, pieces=parts)
    started, cpu = time.perf_counter(), time.process_time()
    with fetch.Network(os.environ) as network:
        fetch.fetch(artifact, Path(folder), network)
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu": used}))


if __name__ == "__main__":
    {"download": download, "unpack": unpack}[sys.argv[1]](*sys.argv[2:])
