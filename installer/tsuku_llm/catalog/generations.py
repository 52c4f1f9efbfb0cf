"""Whole copies side by side, and the name of the one that counts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tsuku_llm.catalog.copies import read_file
from tsuku_llm.catalog.repositories import OF_A_COPY
from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import (
    flush_folder,
    make_folder,
    rename,
    replace_file,
    unique,
    write_new,
)
from tsuku_llm.errors import CorruptStore, StoreError
from tsuku_llm.folders import opened
from tsuku_llm.standing import CURRENT

_NAME = re.compile(r"[0-9a-f]{16}")


def current_copy(folder: Path) -> Path | None:
    """The folder of the copy that counts, None where nothing was ever kept.

    Raises ``StoreError``.
    """
    data = read_file(folder / CURRENT)
    if data is None:
        return None
    name = data.decode("ascii", "replace")
    copy = folder / "copies" / name
    with disk_errors("looking at the copy of the metadata", folder):
        linked = any(each.is_symlink() for each in (copy, copy.parent))
    if linked or not _NAME.fullmatch(name):
        raise CorruptStore(
            f"{folder / 'current'} names no copy",
            hint=f"run: tsuku-llm repository refresh {folder.name}",
        )
    return copy


def keep(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a whole copy beside the others, then let ``current`` name it.

    A crash leaves the old copy or the new one as the current one. The copy before stays, as
    a reader may be in it. Raises ``OSError``, ``StoreError``.
    """
    name = hashlib.sha256(files["metadata/timestamp.json"]).hexdigest()[:16]
    copies = folder / "copies"
    make_folder(copies)
    staging = copies / unique()
    for file, data in files.items():
        make_folder((staging / file).parent)
        write_new(staging / file, data)
    for parent, _, _ in os.walk(staging):
        flush_folder(Path(parent))
    # If there is one it does not verify: a valid one is not kept again.
    _remove_copies(folder, lambda found: found == name)
    if os.path.lexists(copies / name):  # a link, or something foreign in it: it is kept
        rename(copies / name, copies / f"{name}.{unique()}.set-aside")
    rename(staging, copies / name)
    flush_folder(copies)
    before = _name_before(folder)
    replace_file(folder / CURRENT, name.encode())
    with contextlib.suppress(OSError):
        _remove_copies(folder, lambda found: found not in (name, before))


def _remove_copies(repository: Path, chosen: Callable[[str], bool]) -> None:
    """Remove copies that this program made; what else lies there, or in them, stays."""
    with opened(repository, "copies") as copies:
        for name in copies.names() if copies else ():
            if copies and _NAME.fullmatch(name) and chosen(name) and copies.is_folder(name):
                with copies.inner(name) as copy:
                    copy.remove_matching(OF_A_COPY)
                with contextlib.suppress(OSError):  # something foreign is in it
                    copies.rmdir(name)


def _name_before(folder: Path) -> str | None:
    with contextlib.suppress(StoreError):
        copy = current_copy(folder)
        return copy.name if copy else None
    return None
