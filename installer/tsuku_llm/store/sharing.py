"""Identical files of several versions are stored once, by hard links.

A donor is hashed again before it is trusted: its version was verified long ago. Where a
file system has no hard links, or refuses one more, the copy that was unpacked stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tsuku_llm.errors import TsukuError
from tsuku_llm.store.installed import Installed
from tsuku_llm.store.integrity import (
    Stamp,
    check_version,
    read_stamps,
    tampered,
    verify_files,
)
from tsuku_llm.store.receipt import FileRecord
from tsuku_llm.store.staging import ASIDE, Staging

Content = tuple[str, bool]
"""SHA-256 and whether it is executable: what two files must have in common."""


def donors(files: Iterable[FileRecord], others: Iterable[Installed]) -> dict[Content, Path]:
    """Where other versions have the same files."""
    wanted = {(file.sha256, file.executable) for file in files if file.size}
    return {
        (file.sha256, file.executable): other.tree / file.path
        for other in others
        for file in other.receipt.files
        if (file.sha256, file.executable) in wanted
    }


def share(
    staging: Staging, files: Sequence[FileRecord], donors: Mapping[Content, Path]
) -> dict[Stamp, str]:
    """Replace files of a staged tree by links to their donors; the digests of what was linked.

    The unpacked copies wait aside until the donors were hashed, and come back where one is
    not what it should be. What was supplied by its donor already was hashed then, and is
    hashed again only where it was touched since. Raises ``OSError`` when a copy cannot be put
    back, TamperedInstall where there is none.
    """
    tree, aside = staging.tree, staging.path / ASIDE
    aside.mkdir()
    linked: dict[str, tuple[FileRecord, Path | None]] = {}
    for number, file in enumerate(files):
        donor = donors.get((file.sha256, file.executable))
        if donor and _same(donor, tree / file.path):
            linked[file.path] = file, None
        elif donor and _link(donor, tree / file.path, aside / str(number)):
            linked[file.path] = file, aside / str(number)
    records = [file for file, _ in linked.values()]
    stamps, changed = verify_files(tree, records, staging.hashed)
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


def inodes_of(version: Path) -> frozenset[int]:
    """The inodes of a version's files, as they were when it was verified."""
    return frozenset(stamp[-1] for stamp in read_stamps(version).values())


def refresh_sharers(
    others: Iterable[Installed], inodes: Collection[int], digests: Mapping[Stamp, str]
) -> None:
    """Fresh fingerprints for the versions that share these inodes.

    Making or removing a hard link changes the change time of every other name. A version
    that is found damaged here is reported when it is used. ``digests`` are known already.
    """
    for other in others:
        if not inodes_of(other.path).isdisjoint(inodes):
            with suppress(TsukuError):
                check_version(other.path, other.receipt, known=digests)
