"""The writing of the one file of a bundle: the script ``bundle_head.sh``, and a zip file behind it.

The same members always give the same bytes: members have no dates, and their order is that of the
writer. ``tsuku_llm.fetch.places.bundle_file`` says what the parts are for, and reads them.
"""

from __future__ import annotations

import hashlib
import pkgutil
import re
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tsuku_llm.fetch.places.bundle_file import BundleDescription
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.files import TEMPORARY_SUFFIX, flush_folder, rename, seal_file, unique
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.records import encode

_CHUNK = 1 << 20


def _head(size: int, sha256: str) -> bytes:
    """Return the script: everything before the zip file. Its length depends on no value."""
    script = pkgutil.get_data("tsuku_operator.bundle", "bundle_head.sh") or b""
    head = script.replace(b"@SIZE@", b"%-20d" % size).replace(b"@SHA256@", sha256.encode("ascii"))
    begins = len(head) - len("@HEAD@") + 5
    return head.replace(b"@HEAD@", b"%-5d" % begins)


class BundleWriter:
    """A bundle that is being written; the name appears when it is complete."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._begins = file.write(_head(0, "0" * 64))
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)

    def add(self, name: str, data: bytes) -> None:
        """Write a member."""
        self.add_chunks(name, len(data), iter((data,)))

    def add_chunks(self, name: str, size: int, chunks: Iterator[bytes]) -> None:
        """Write a member of ``size`` bytes, chunk by chunk."""
        info = zipfile.ZipInfo(name)  # its date is 1980
        info.create_system = 3  # Unix, on every system: the mode below is one of Unix
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        info.file_size = size
        with self._zip.open(info, "w") as member:
            for chunk in chunks:
                member.write(chunk)

    def close(self) -> None:
        """End the zip file, if an error has not left time for that; the disk may be full."""
        with suppress(OSError, ValueError):
            self._zip.close()

    def finish(self) -> str:
        """Write the end and the script; return the SHA-256 of the whole file."""
        self._zip.close()
        size = self._file.tell()
        self._file.seek(self._begins)
        rest = hashlib.sha256()
        while chunk := self._file.read(_CHUNK):
            rest.update(chunk)
        head = _head(size, rest.hexdigest())
        self._file.seek(0)
        self._file.write(head)
        self._file.seek(0)
        whole = hashlib.sha256()
        while chunk := self._file.read(_CHUNK):
            whole.update(chunk)
        return whole.hexdigest()


@contextmanager
def written_bundle(path: Path) -> Iterator[BundleWriter]:
    """Write a bundle in the block: afterwards the file is complete, or not there.

    The caller keeps other processes away from this name. Raises ``StoreError``.
    """
    beside = path.with_name(f".{path.name}.{unique()}{TEMPORARY_SUFFIX}")
    with disk_errors("writing the bundle", path.parent):
        with opened(path.parent) as folder:
            if folder is not None:
                # What a killed process left: nobody else writes this name now.
                folder.drop_temporaries(re.escape(path.name), float("inf"))
        try:
            with beside.open("xb+") as file:
                writer = BundleWriter(file)
                try:
                    yield writer
                finally:
                    writer.close()
            seal_file(beside, 0o644)
            rename(beside, path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
        flush_folder(path.parent)


def describe(description: BundleDescription) -> bytes:
    """Return ``bundle.json``."""
    return encode({"format": 1, "program": "tsuku-llm", **description._asdict()})
