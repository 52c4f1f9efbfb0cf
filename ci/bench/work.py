"""Parts of an install, each run alone: ``python -m ci.bench.work NAME ...``."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tsuku_llm import fetch
from tsuku_llm.archive import unpack as archive
from tsuku_llm.archive.formats import gzips
from tsuku_llm.catalog.manifest import Artifact, Pieces

_LOOK = 0.001
"""Seconds between two looks at a starting server."""


def unpack(inflater: str, format_: Any, root: str, path: str, into: str) -> None:
    """Unpack an archive with this inflater, ``zlib`` or ``isal``."""
    gzips.LIBRARY = importlib.import_module({"isal": "isal.isal_zlib"}.get(inflater, inflater))
    artifact = Artifact(url="https://unused/", sha256="", format=format_, root=root)
    archive.unpack(Path(path), artifact, Path(into))


def download(entry: str, folder: str) -> None:
    """Download an artifact and print the time that it took.

    The clock starts when the library is loaded, but before any connection or list of certificates
    is. Another row measures the program's start.
    """
    artifact = _loaded(entry)
    with _clock():
        _fetch(artifact, Path(folder))


def crowd(count: str, entry: str, folder: str) -> None:
    """Download the same artifact in ``count`` processes at once, each into its own folder."""
    artifact = _loaded(entry)
    with _clock():
        children = []
        for number in range(int(count)):
            # The process has one thread here, so a fork copies no lock that another thread holds.
            pid = os.fork()
            if not pid:
                (Path(folder) / str(number)).mkdir()
                _fetch(artifact, Path(folder) / str(number))
                # Skip clean-up: the parent's clock and exit handlers must not run in a child.
                os._exit(0)
            children.append(pid)
        if any(os.waitpid(pid, 0)[1] for pid in children):
            sys.exit("a download failed")


def healthy(*command: str) -> None:
    """Start a server, print the time until it answers that it is healthy, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        # The system picks a free port; it is released here for the server to use.
        port = found.getsockname()[1]
    with subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL) as child:
        with _clock():
            while not _is_healthy(port):
                if child.poll() is not None:
                    sys.exit(f"it ended with {child.returncode}")
                time.sleep(_LOOK)
        child.terminate()


def _is_healthy(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
        # A raw request, as it takes less time than a client library and is repeated every
        # millisecond.
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        return b" 200 " in sock.recv(100)
    return False


def _loaded(entry: str) -> Artifact:
    import httpx  # noqa: F401, PLC0415
    import truststore  # noqa: F401, PLC0415

    fields = json.loads(entry)
    pieces = fields.pop("pieces", None)
    parts = Pieces(size=pieces["size"], sha256=tuple(pieces["sha256"])) if pieces else None
    return Artifact(**fields, pieces=parts)


def _fetch(artifact: Artifact, folder: Path) -> None:
    with fetch.Network(os.environ) as network:
        fetch.fetch(artifact, folder, network)


@contextlib.contextmanager
def _clock() -> Iterator[None]:
    started, cpu = time.perf_counter(), time.process_time()
    yield
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu": used}))


if __name__ == "__main__":
    works: dict[str, Callable[..., None]] = {
        "crowd": crowd,
        "download": download,
        "healthy": healthy,
        "unpack": unpack,
    }
    works[sys.argv[1]](*sys.argv[2:])
