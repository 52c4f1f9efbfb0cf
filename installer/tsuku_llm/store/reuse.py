"""Files of other versions, linked into a staged tree: identical files are stored once.

There are two occasions. Before a download, ``supply`` links all files of an archive, which then
need not be downloaded. At the commit, ``share`` replaces extracted files by links. If the file
system has no hard links, or refuses one more, there are two copies.

A source is the same file in another version, as far as stamps tell. It is hashed again before it is
trusted, because its version was verified long ago. Hashing can take as long as downloading other
archives, so ``supply`` links, and ``confirm`` hashes later.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tsuku_llm.ground.errors import StoreError, TsukuError
from tsuku_llm.ground.files import copy_new, make_folder
from tsuku_llm.ground.tree_entry import FileEntry
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.integrity import (
    Stamp,
    find_differences,
    read_stamps,
    tampered,
    undamaged,
    verify_files,
)
from tsuku_llm.store.staging import ASIDE, Staging

Content = tuple[str, bool]
"""SHA-256 and the executable flag of a file: files with both equal can be shared."""

_UNSEALED = {True: 0o755, False: 0o644}
"""The mode of a copied file until the commit, by its executable flag: the server starts before."""


def find_sources(
    files: Iterable[FileEntry], others: Iterable[Installed], *, damaged: bool = False
) -> dict[Content, Path]:
    """Find the same files in other versions; empty files are left out.

    A source may have the other executable flag: then it can be copied, but not linked. ``damaged``
    takes the receipts' word; otherwise each source is as its receipt says, as far as stamps tell.
    """
    wanted = {file.sha256 for file in files if file.size}
    found: dict[Content, Path] = {}
    for other in others:
        same = [
            file
            for file in other.receipt.files
            if file.sha256 in wanted and (file.sha256, file.executable) not in found
        ]
        for file in same if damaged or not same else undamaged(other.path, same):
            found[file.sha256, file.executable] = other.tree / file.path
    return found


def sources_of_all(
    files: Sequence[FileEntry], others: Iterable[Installed]
) -> dict[Content, Path] | None:
    """Find all of these files in other versions; None if one is missing. Empty files need none."""
    sources = find_sources(files, others)
    there = {sha256 for sha256, _ in sources}
    complete = bool(files) and there >= {file.sha256 for file in files if file.size}
    return sources if complete else None


def supply(tree: Path, files: Sequence[FileEntry], others: Iterable[Installed]) -> bool:
    """Link these files of other versions into ``tree``, or none; tell whether they are there.

    A file that cannot be linked is copied. None are there if a file has no source, its name is
    taken, or the file system reports an error. Call ``confirm`` afterwards.
    """
    sources = sources_of_all(files, others)
    if sources is None:
        return False
    linked: list[FileEntry] = []
    with suppress(OSError, StoreError):
        for file in files:
            target = tree / file.path
            make_folder(target.parent)
            if file.size:
                _supply_one(file, target, sources)
            else:
                # Empty files are created: a hard link would only save its own cost.
                target.touch(exist_ok=False)
            # Only what we created may be withdrawn: a name that was taken belongs to another
            # archive.
            linked.append(file)
        return True
    withdraw(tree, linked)
    return False


def _supply_one(file: FileEntry, target: Path, sources: Mapping[Content, Path]) -> None:
    """Link or copy one file. Raises ``OSError``."""
    source = sources.get((file.sha256, file.executable))
    if source:
        try:
            target.hardlink_to(source)
        except FileExistsError:
            raise
        except OSError:  # no hard links (exFAT, some network file systems), or not one more
            copy_new(source, target, _UNSEALED[file.executable])
    else:
        # A link has the mode of its source, which has the other flag.
        copy_new(sources[file.sha256, not file.executable], target, _UNSEALED[file.executable])


def confirm(staging: Staging, folder: Path, files: Sequence[FileEntry]) -> list[str]:
    """Hash the files linked into a staged folder; return the names of those that differ.

    The digests are remembered for the commit, which hashes a file again only if it was touched
    since. If the file system reports an error, all names are returned.
    """
    try:
        stamps, changed = verify_files(folder, files, {})
    except OSError:
        return [file.path for file in files]
    right = (file for file in files if file.path not in changed)
    staging.hashed.update({stamps[file.path]: file.sha256 for file in right})
    return changed


def withdraw(tree: Path, files: Sequence[FileEntry]) -> None:
    """Remove linked files from ``tree``; a file that cannot be removed stays."""
    for file in files:
        with suppress(OSError):
            (tree / file.path).unlink()


def share(
    staging: Staging, files: Sequence[FileEntry], sources: Mapping[Content, Path]
) -> dict[Stamp, str]:
    """Replace files of a staged tree by links to their sources; return the links' digests.

    The extracted copies are kept aside until the sources are hashed. If a source differs, its copy
    is put back. A file that ``supply`` linked already was hashed then; it is hashed again only
    if it was touched since. Raises ``OSError`` if a copy cannot be put back, TamperedInstall if
    a differing file has no copy.
    """
    tree, aside = staging.tree, staging.path / ASIDE
    aside.mkdir()
    supplied = {stamp[-1] for stamp in staging.hashed}
    linked: dict[str, tuple[FileEntry, Path | None]] = {}
    for number, file in enumerate(files):
        source = sources.get((file.sha256, file.executable))
        if (tree / file.path).lstat().st_ino in supplied:
            # ``supply`` brought it, whether its source is still there or not: another name may have
            # been used to change it since. There is no copy to put back.
            linked[file.path] = file, None
        elif source and _link(source, tree / file.path, aside / str(number)):
            linked[file.path] = file, aside / str(number)
    records = [file for file, _ in linked.values()]
    # Hash after linking: another process may damage or remove a source's version at any time, and
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


def _link(source: Path, target: Path, copy: Path) -> bool:
    """Move ``target`` to ``copy`` and link ``source`` in its place; undo it if that is no file."""
    target.replace(copy)
    with suppress(OSError):
        target.hardlink_to(source)
        # Looked at after linking: a link or a fifo may be in the place of the file.
        if stat.S_ISREG(target.lstat().st_mode):
            return True
    copy.replace(target)
    return False


def inodes_of(version: Path) -> frozenset[int]:
    """Return the inodes of a version's files, as recorded when it was verified."""
    # The stamps come from a file that may be damaged: one may be empty.
    return frozenset(stamp[-1] for stamp in read_stamps(version).values() if stamp)


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
                find_differences(other.path, other.receipt, known=digests)
