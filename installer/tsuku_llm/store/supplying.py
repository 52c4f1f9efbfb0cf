"""Files of other versions, linked into a staged tree so that an archive need not be downloaded.

A donor is hashed again before it is trusted, because its version was verified long ago. Hashing
can take as long as downloading other archives, so linking and hashing are separate steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tsuku_llm.errors import StoreError
from tsuku_llm.files import make_folder
from tsuku_llm.store.integrity import verify_files
from tsuku_llm.store.receipt import FileRecord
from tsuku_llm.store.sharing import Content
from tsuku_llm.store.staging import Staging


def can_supply(files: Sequence[FileRecord], donors: Mapping[Content, Path]) -> bool:
    """Tell whether all of these files have donors; empty files need none."""
    return bool(files) and donors.keys() >= {(f.sha256, f.executable) for f in files if f.size}


def supply(tree: Path, files: Sequence[FileRecord], donors: Mapping[Content, Path]) -> bool:
    """Link all of these files into ``tree``, or none; return whether they are linked.

    None are linked if a file has no donor, its name is taken, or linking fails.
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
                # Empty files are created: a hard link would only save its own cost.
                target.touch(exist_ok=False)
            # Only what we created may be withdrawn: a name that was taken belongs to another
            # archive.
            linked.append(file)
        return True
    withdraw(tree, linked)
    return False


def confirm(staging: Staging, files: Sequence[FileRecord]) -> list[str]:
    """Hash the linked files; return the names of those that differ.

    The digests are remembered for the commit, which hashes a file again only if it was touched
    since. If the file system reports an error, all names are returned.
    """
    try:
        stamps, changed = verify_files(staging.tree, files, {})
    except OSError:
        return [file.path for file in files]
    right = (file for file in files if file.path not in changed)
    staging.hashed.update({stamps[file.path]: file.sha256 for file in right})
    return changed


def withdraw(tree: Path, files: Sequence[FileRecord]) -> None:
    """Remove linked files from ``tree``; a file that cannot be removed stays."""
    for file in files:
        with suppress(OSError):
            (tree / file.path).unlink()
