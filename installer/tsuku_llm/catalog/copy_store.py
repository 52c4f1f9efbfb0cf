"""The whole copies of a repository on disk, and the name of the current one.

Readers take no lock. A copy never changes after it got its name, and ``current`` is replaced in
one step, so a reader sees the old copy or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tsuku_llm.catalog.copies import read_file
from tsuku_llm.catalog.metadata_status import CURRENT
from tsuku_llm.catalog.repositories import OF_A_COPY
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore, StoreError
from tsuku_llm.ground.files import (
    flush_folder,
    make_folder,
    rename,
    replace_file,
    unique,
    write_new,
)
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.own_name import TSUKU

_NAME = re.compile(r"[0-9a-f]{16}")


def current_copy(folder: Path) -> Path | None:
    """Return the folder of the current copy; None if no copy was ever kept.

    Raises ``StoreError``.
    """
    data = read_file(folder / CURRENT)
    if data is None:
        return None
    name = data.decode("ascii", "replace")
    copy = folder / "copies" / name
    with disk_errors("reading the copy of the metadata", folder):
        # The name comes from a file that may be damaged: it must not lead out of ``copies``.
        linked = any(each.is_symlink() for each in (copy, copy.parent))
    if linked or not _NAME.fullmatch(name):
        raise CorruptStore(
            f"{folder / 'current'} names no copy",
            hint=f"run: {TSUKU} repository refresh {folder.name}",
        )
    return copy


def commit(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a whole new copy, then let ``current`` name it; return its folder.

    After a crash, the old or the new copy is the current one. The previous copy stays, because
    another process may be reading it. Raises ``OSError``, ``StoreError``.
    """
    digests = (hashlib.sha256(data).digest() for _, data in sorted(files.items()))
    name = hashlib.sha256(b"".join(digests)).hexdigest()[:16]
    copies = folder / "copies"
    make_folder(copies)
    # No other process uses this name. A crash may leave the folder: the name is one of a copy, so a
    # later ``commit`` removes it.
    staging = copies / unique()
    for file, data in files.items():
        make_folder((staging / file).parent)
        write_new(staging / file, data)
    # The files are flushed already (``write_new``); flush their names before the rename below.
    for parent, _, _ in os.walk(staging):
        flush_folder(Path(parent))
    # A copy of this name has other content, so it is damaged: ``refresh`` would not replace the
    # same. Other processes that refresh wait for the lock of our caller.
    _remove_copies(folder, lambda found: found == name)
    if os.path.lexists(copies / name):  # a link, or foreign files are in it: keep it aside
        rename(copies / name, copies / f"{name}.{unique()}.set-aside")
    rename(staging, copies / name)
    # The copy's name is durable before ``current`` names it.
    flush_folder(copies)
    before = None
    with contextlib.suppress(StoreError):  # a damaged name: there is no earlier copy to keep
        earlier = current_copy(folder)
        before = earlier.name if earlier else None
    replace_file(folder / CURRENT, name.encode())
    with contextlib.suppress(OSError):
        # All older copies, and what crashes left. ``before`` stays for processes that read it now.
        _remove_copies(folder, lambda found: found not in (name, before))
    return copies / name


def _remove_copies(repository: Path, chosen: Callable[[str], bool]) -> None:
    """Remove the chosen copies of this program; foreign files, also inside them, stay."""
    with opened(repository, "copies") as copies:
        for name in copies.names() if copies else ():
            if copies and _NAME.fullmatch(name) and chosen(name) and copies.is_folder(name):
                with copies.inner(name) as copy:
                    copy.remove_matching(OF_A_COPY)
                with contextlib.suppress(OSError):  # something foreign is in it
                    copies.rmdir(name)
