"""Hard links between versions: identical files are stored once.

A donor is the same file in another version. It is hashed again before it is trusted, because
its version was verified long ago. If the file system has no hard links, or refuses one more,
the extracted copy stays.
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
"""SHA-256 and the executable flag of a file: files with both equal can be shared."""


def donors(files: Iterable[FileRecord], others: Iterable[Installed]) -> dict[Content, Path]:
    """Find the same files in other versions; empty files are left out."""
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
    """Replace files of a staged tree by links to their donors; return the links' digests.

    The extracted copies are kept aside until the donors are hashed. If a donor differs, its copy
    is put back. A file that ``supply`` linked already was hashed then; it is hashed again only
    if it was touched since. Raises ``OSError`` if a copy cannot be put back, TamperedInstall if
    a differing file has no copy.
    """
    tree, aside = staging.tree, staging.path / ASIDE
    aside.mkdir()
    linked: dict[str, tuple[FileRecord, Path | None]] = {}
    for number, file in enumerate(files):
        donor = donors.get((file.sha256, file.executable))
        if donor and _same(donor, tree / file.path):
            # ``supply`` linked it before: there is no copy to put back.
            linked[file.path] = file, None
        elif donor and _link(donor, tree / file.path, aside / str(number)):
            linked[file.path] = file, aside / str(number)
    records = [file for file, _ in linked.values()]
    # Hash after linking: another process may damage or remove a donor's version at any time, and
    # only the file that is now in our tree counts.
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
    """Move ``target`` to ``copy`` and link ``donor`` in its place; undo it if linking fails."""
    target.replace(copy)
    try:
        target.hardlink_to(donor)
    except OSError:
        copy.replace(target)
        return False
    return True


def inodes_of(version: Path) -> frozenset[int]:
    """Return the inodes of a version's files, as recorded when it was verified."""
    return frozenset(stamp[-1] for stamp in read_stamps(version).values())


def refresh_sharers(
    others: Iterable[Installed], inodes: Collection[int], digests: Mapping[Stamp, str]
) -> None:
    """Store new fingerprints for the versions that share these inodes.

    Adding or removing a hard link changes the change time of the inode, and so the stamp under
    every other name. ``digests`` are of files that were hashed moments ago.
    """
    for other in others:
        if not inodes_of(other.path).isdisjoint(inodes):
            with suppress(TsukuError):
                # No lock on the other version: the check only replaces its fingerprint file. Damage
                # that is found here is reported when that version is used.
                check_version(other.path, other.receipt, known=digests)
