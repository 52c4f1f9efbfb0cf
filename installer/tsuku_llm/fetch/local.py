"""``file:`` mirrors and repositories, for networks without a server."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tsuku_llm.errors import DownloadError, HttpStatusError

CHUNK = 1 << 20


def local_chunks(url: str) -> Iterator[bytes]:
    """Read the content of a ``file:`` URL in chunks.

    Raises ``HttpStatusError`` with status 404 if the file does not exist, ``DownloadError``
    if it cannot be read.
    """
    path = _path(url)
    try:
        with open(path, "rb", opener=_opened) as file:  # Path.open takes no opener
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DownloadError(
                    f"{path} is not a regular file", hint="put the file itself there"
                )
            while chunk := file.read(CHUNK):
                yield chunk
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise HttpStatusError(
            f"there is no file {path.name} in {path.parent}",
            status=404,
            hint="check llm.mirror: the archives lie in its folder under their own names",
        ) from error
    except (OSError, ValueError) as error:
        raise DownloadError(f"{path} cannot be read", facts=(str(error),)) from error


def _opened(path: str, flags: int) -> int:
    """Open a file; if it is a pipe, do not wait until another process writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _path(url: str) -> Path:
    parts = urlsplit(url)
    # Another host is a network share on Windows: file://server/share is \\server\share.
    host = "" if parts.netloc in ("", "localhost") else f"//{parts.netloc}"
    return Path(url2pathname(f"{host}{parts.path}"))
