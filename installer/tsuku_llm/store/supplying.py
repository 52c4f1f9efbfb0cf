"""Files that other versions have, linked into a staged tree in the place of an archive.

A donor is hashed again before it is trusted: its version was verified long ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tsuku_llm.store.integrity import verify_files
from tsuku_llm.store.receipt import FileRecord
from tsuku_llm.store.sharing import Content


def can_supply(files: Sequence[FileRecord], donors: Mapping[Content, Path]) -> bool:
    """Whether there are donors for all of these files; empty ones need none."""
    return bool(files) and donors.keys() >= {(f.sha256, f.executable) for f in files if f.size}


def supply(tree: Path, files: Sequence[FileRecord], donors: Mapping[Content, Path]) -> bool:
    """Link all of these files into ``tree``, or none; whether they are there now.

    None where one has no donor, its donor is not what it was, its name is taken, or the file
    system has no hard links.
    """
    if not can_supply(files, donors):
        return False
    linked: list[Path] = []
    done = False
    with suppress(OSError):
        for file in files:
            target = tree / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.size:
                target.hardlink_to(donors[file.sha256, file.executable])
            else:
                target.touch(exist_ok=False)
            linked.append(target)
        _, changed = verify_files(tree, files, {})
        done = not changed
    if not done:
        for target in linked:
            with suppress(OSError):
                target.unlink()
    return done
