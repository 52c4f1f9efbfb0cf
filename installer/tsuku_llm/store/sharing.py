"""Identical files of several versions are stored once, by hard links.

A donor is hashed again before it is trusted: its version was verified long ago. Where a
file system has no hard links, or refuses one more, the copy that was unpacked stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tsuku_llm.store.integrity import Stamp, tampered, verify_files
from tsuku_llm.store.receipt import FileRecord

Content = tuple[str, bool]
"""SHA-256 and whether it is executable: what two files must have in common."""


def share(
    tree: Path, files: Sequence[FileRecord], donors: Mapping[Content, Path], aside: Path
) -> dict[Stamp, str]:
    """Replace files of ``tree`` by links to their donors; the digests of what was linked.

    The unpacked copies wait in ``aside`` until the donors were hashed, and come back where
    one is not what it should be. What was supplied by its donor already is hashed only.
    Raises ``OSError`` when a copy cannot be put back, TamperedInstall where there is none.
    """
    aside.mkdir()
    linked: dict[str, tuple[FileRecord, Path | None]] = {}
    for number, file in enumerate(files):
        donor = donors.get((file.sha256, file.executable))
        if donor and _same(donor, tree / file.path):
            linked[file.path] = file, None
        elif donor and _link(donor, tree / file.path, aside / str(number)):
            linked[file.path] = file, aside / str(number)
    records = [file for file, _ in linked.values()]
    stamps, changed = verify_files(tree, records, {})
    for path, (_, copy) in linked.items():
        if path not in changed:
            if copy:
                copy.unlink()
        elif copy:
            copy.replace(tree / path)
        else:
            raise tampered("what another version supplied", [f"content changed: {path}"])
    aside.rmdir()
    return {stamps[file.path]: file.sha256 for file in records if file.path not in changed}


def _same(donor: Path, target: Path) -> bool:
    try:
        return donor.samefile(target)
    except OSError:
        return False


def _link(donor: Path, target: Path, copy: Path) -> bool:
    """Put a link to ``donor`` in the place of ``target``, which moves to ``copy``."""
    target.replace(copy)
    try:
        target.hardlink_to(donor)
    except OSError:
        copy.replace(target)
        return False
    return True
