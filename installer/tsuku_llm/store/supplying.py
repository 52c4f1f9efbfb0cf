"""Files that other versions have, linked into a staged tree in the place of an archive.

A donor is hashed again before it is trusted: its version was verified long ago. As that
takes as long as fetching something else, linking is one step and hashing another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tsuku_llm.durable import make_folder
from tsuku_llm.errors import StoreError
from tsuku_llm.store.integrity import verify_files
from tsuku_llm.store.receipt import FileRecord
from tsuku_llm.store.sharing import Content
from tsuku_llm.store.staging import Staging


def can_supply(files: Sequence[FileRecord], donors: Mapping[Content, Path]) -> bool:
    """Whether there are donors for all of these files; empty ones need none."""
    return bool(files) and donors.keys() >= {(f.sha256, f.executable) for f in files if f.size}


def supply(tree: Path, files: Sequence[FileRecord], donors: Mapping[Content, Path]) -> bool:
    """Link all of these files into ``tree``, or none; whether they are there now.

    None where one has no donor, its name is taken, or the file system has no hard links.
    """
    if not can_supply(files, donors):
        return False
    linked: list[FileRecord] = []
    with suppress(OSError, StoreError):
        for file in files:
            target = tree / file.path
            make_folder(target.parent)
            if file.size:
                target.hardlink_to(donors[file.sha256, file.executable])
            else:
                target.touch(exist_ok=False)
            linked.append(file)
        return True
    withdraw(tree, linked)
    return False


def confirm(staging: Staging, files: Sequence[FileRecord]) -> list[str]:
    """Hash what was linked; the names of what is not what it should be.

    What was hashed is remembered for the commit, which hashes it again only where it was
    touched since. A disk that does not play along confirms nothing.
    """
    try:
        stamps, changed = verify_files(staging.tree, files, {})
    except OSError:
        return [file.path for file in files]
    right = (file for file in files if file.path not in changed)
    staging.hashed.update({stamps[file.path]: file.sha256 for file in right})
    return changed


def withdraw(tree: Path, files: Sequence[FileRecord]) -> None:
    """Take links out of ``tree`` again."""
    for file in files:
        with suppress(OSError):
            (tree / file.path).unlink()
