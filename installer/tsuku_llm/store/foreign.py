"""Foreign files in a store: they are listed and never removed.

If a version is removed or started and foreign files are in it, they are moved to ``set-aside``.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import (
    SEALED_FOLDER_MODE,
    flush_folder,
    make_folder,
    open_for_changes,
    unique,
)
from tsuku_llm.ground.folders import Folder, opened, temporaries
from tsuku_llm.store.in_use import IN_USE
from tsuku_llm.store.layout import (
    COPIES,
    DATA,
    PLACES,
    REPOSITORY_FOLDER,
    SERVERS,
    SET_ASIDE,
    STATE,
    FolderNames,
    is_version,
)
from tsuku_llm.store.records.installed import read_version
from tsuku_llm.store.records.integrity import TREE, expected_kinds, list_tree, read_stamps

_MOVES = 100
"""Tries to move a file while other processes move files out of the same folder."""

_OF_A_VERSION = FolderNames(
    rf"receipt\.json|fingerprint\.json|{IN_USE}"
    rf"|{temporaries(r'receipt[.]json|fingerprint[.]json').pattern}",
    TREE,
)


def foreign(data: Path) -> Iterator[Path]:
    """Yield the foreign paths in the folders of a store; change nothing."""
    yield from _misfits(data, (), DATA)
    for name, known in PLACES.items():
        yield from _misfits(data, (name,), known)
    # No name fits ``FolderNames()``: everything that was set aside is listed.
    yield from _misfits(data, (SET_ASIDE,), FolderNames())
    yield from _misfits(data, ("state",), STATE)
    for servers in (("servers",), ("state", "servers")):
        yield from _misfits(data, servers, SERVERS)
    with suppress(StoreError, OSError), opened(data, "metadata") as metadata:
        for name in metadata.names() if metadata else ():
            yield from _misfits(data, ("metadata", name), REPOSITORY_FOLDER)
            yield from _misfits(data, ("metadata", name, "copies"), COPIES)


def _misfits(data: Path, parts: tuple[str, ...], known: FolderNames) -> list[Path]:
    # This list is only a report: a folder that cannot be read is left out of it.
    with suppress(StoreError, OSError), opened(data, *parts) as folder:
        if folder is not None:
            versions = parts == ("versions",)
            return [
                folder.path / name
                for name in folder.names()
                if not known.fits(folder, name) or (versions and not is_version(folder, name))
            ]
    return []


def set_aside(data: Path, name: str) -> dict[str, Path]:
    """Move foreign files out of a version; move the whole path if it is not a version.

    Returns what was moved, relative to the version's parent, with its new path. Another process
    may move the same files at this moment. Raises ``OSError``, StoreError.
    """
    moved: dict[str, Path] = {}
    with opened(data, "versions") as versions:
        strangers = _strangers(versions, name) if versions else []
        if versions is None or not strangers:
            return moved
        # A fresh folder each time, so that files set aside earlier keep their names.
        target = data / SET_ASIDE / unique()
        for path in strangers:
            make_folder((target / path).parent)
            try:
                _move(versions.path / path, target / path)
            except FileNotFoundError:  # the other process was first
                continue
            moved[path] = target / path
            # Flush at once: the caller may remove the version next, and a crash must not lose this
            # file.
            flush_folder((target / path).parent)
    return moved


def _move(source: Path, target: Path) -> None:
    """Rename a foreign path out of a folder that may be sealed; seal that again.

    A kill in between leaves the folder open, which harms nothing. Raises ``OSError``.
    """
    sealed = False
    try:
        for left in reversed(range(_MOVES)):
            sealed = open_for_changes(source.parent) or sealed
            try:
                # To rename a folder into another one, its own ".." is changed.
                if stat.S_ISDIR(source.lstat().st_mode):
                    open_for_changes(source)
                source.rename(target)
            except PermissionError:
                # Another process that moves files may have sealed the folder since.
                if not left:
                    raise
            else:
                return
    finally:
        if sealed:
            with suppress(OSError):
                source.parent.chmod(SEALED_FOLDER_MODE)


def _strangers(versions: Folder, name: str) -> list[str]:
    """List a version's foreign paths, relative to its parent; the outermost names only."""
    try:
        versions.status(name)
    except FileNotFoundError:
        return []
    ours = _files_of(versions.path / name) if is_version(versions, name) else None
    if ours is None:
        # Not a version, or its receipt and fingerprint are both lost: all of it is foreign.
        return [name]
    with versions.inner(name) as version:
        strange = [each for each in version.names() if not _OF_A_VERSION.fits(version, each)]
        if version.is_folder(TREE):
            with version.inner(TREE) as tree:
                strange += _strange_in(tree, ours, f"{TREE}/")
    return [f"{name}/{path}" for path in strange]


def _strange_in(folder: Folder, ours: Collection[str], below: str) -> list[str]:
    """List the foreign paths in a folder of a tree; ``below`` is the way to it.

    A foreign folder is moved as a whole, so it is not opened: it may be unreadable or too deep.
    """
    found: list[str] = []
    for name in folder.names():
        path = below + name
        if path.removeprefix(f"{TREE}/") not in ours:
            found.append(path)
        elif stat.S_ISDIR(folder.status(name).st_mode):
            with folder.inner(name) as inner:
                found += _strange_in(inner, ours, f"{path}/")
    return found


def _files_of(version: Path) -> Collection[str] | None:
    """Return the names that belong in a version's tree; None if no record of them is left.

    The record is the receipt, or the fingerprint if the receipt is damaged.
    """
    with suppress(StoreError):
        installed = read_version(version)
        if installed:
            return expected_kinds(installed.receipt).keys()
    # The receipt is damaged. The fingerprint lists the files but no links, so count every link
    # as ours: removing a link loses no data.
    files = read_stamps(version)
    if not files:
        return None
    tree = version / TREE
    links = [path for path, kind in list_tree(tree).kinds.items() if kind == "link"]
    named = [*files, *links]
    return {*named, *(path[:at] for path in named for at, char in enumerate(path) if char == "/")}
