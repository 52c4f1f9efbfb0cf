"""The placement of files from archives whose layout is not known in advance.

The manifest lists no files of upstream's archives, and their ``root`` is an assumption. So
each archive is unpacked unchanged into a separate folder. Then we find the server by its
name and leave out a top folder. Companions (for example a GPU runtime) go into the server's
folder. Finally everything moves into the tree. The names are checked twice: as they are in
the archive, and as they will be in the tree. The decisions are pure; only ``place`` moves
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from tsuku_llm.archive.formats.member import unsafe
from tsuku_llm.archive.names import Names, checked_parts
from tsuku_llm.archive.tree import PROGRAM_MODE, opened_tree
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UnsafeArchive
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry

_SHOWN = 8
"""Limit on the found names that an error shows."""


@dataclass(frozen=True, slots=True)
class Aside:
    """An archive whose ``items`` are in a folder: one of its own, or the tree of a build."""

    artifact: Artifact
    folder: Path
    items: tuple[TreeEntry, ...]


Moves = Mapping[str, tuple[Path, TreeEntry]]
"""For each path in the tree: the unpacked file's present path, and its entry in the tree."""


def place(
    archives: Sequence[Aside], tree: Path, server: str, present: Mapping[str, TreeEntry]
) -> tuple[str, tuple[TreeEntry, ...]]:
    """Move the archives' files into the tree; return the server's path and the moved files.

    ``server`` is the path that the manifest assumes. ``present`` has what listed archives put
    into the tree, by path. Raises ``UnsafeArchive`` before it moves anything, and the errors
    of the disk.
    """
    # All decisions first: a refused archive must not leave a half-filled tree.
    found, moves = arrange(archives, server, present)
    move(moves, tree, found)
    return found, tuple(item for _, item in moves.values())


def move(moves: Moves, tree: Path, server: str = "") -> None:
    """Move unpacked files into the tree. Raises the errors of the disk."""
    with disk_errors("unpacking", tree), opened_tree(tree) as opened:
        for path, (source, _) in moves.items():
            opened.folder(tuple(path.split("/"))[:-1])
            # Before the store sets the modes: the server is started once before that. A file that
            # another version shares can be started, and its mode must stay.
            if path == server and not source.stat().st_mode & 0o100:
                source.chmod(PROGRAM_MODE)
            source.rename(tree / path)


def arrange(
    archives: Sequence[Aside], server: str, present: Mapping[str, TreeEntry]
) -> tuple[str, Moves]:
    """Decide where each file goes; return the server's path in the tree, and the moves. Pure.

    Raises ``UnsafeArchive`` unless there is exactly one server, and if two archives have
    different files of one name.
    """
    # A listed archive has the server: then all of these are companions.
    if server in present:
        main, found = None, server
    else:
        main, found = _server(archives, server)
    beside = PurePosixPath(found).parent
    moves: dict[str, tuple[Path, TreeEntry]] = {}
    for archive in archives:
        own = archive is main
        top = _main_root(archive, server) if own else _common_folder(archive.items)
        for item in archive.items:
            path = PurePosixPath(item.path).relative_to(top)
            moved: TreeEntry = item._replace(path=str(path if own else beside / path))
            # Archives made on Windows mark no file as executable.
            if own and moved.path == found and isinstance(moved, FileEntry):
                moved = moved._replace(executable=True)
            known = moves[moved.path][1] if moved.path in moves else present.get(moved.path)
            # The same file in two archives is fine: the first one is used.
            if known is None:
                moves[moved.path] = (archive.folder / item.path, moved)
            elif not _same(known, moved):
                raise unsafe("two archives have different files of the same name", moved.path)
    check_names([*present.values(), *(item for _, item in moves.values())])
    return found, moves


def _server(archives: Sequence[Aside], server: str) -> tuple[Aside, str]:
    """Find the archive that has the server, and the server's path in the tree."""
    name = PurePosixPath(server).name
    found: list[tuple[Aside, FileEntry, str]] = []
    for archive in archives:
        # Once for each archive, as it looks at all paths: an archive may have many servers.
        top = _main_root(archive, server)
        found += [
            (archive, item, str(PurePosixPath(item.path).relative_to(top)))
            for item in archive.items
            if isinstance(item, FileEntry) and PurePosixPath(item.path).name == name
        ]
    # Two archives may bring the same file of the same name: that is one server.
    if len({(path, item.sha256) for _, item, path in found}) == 1:
        return found[0][0], found[0][2]
    if found:
        paths = [item.path for _, item, _ in found]
        raise _other_layout(f"it has more than one {name}", server, paths)
    paths = [item.path for archive in archives for item in archive.items]
    raise _other_layout(f"it has no {name}", server, paths)


def _other_layout(what: str, server: str, paths: Sequence[str]) -> UnsafeArchive:
    shown = sorted(paths, key=lambda path: (path.count("/"), path))[:_SHOWN]
    more = f" and {len(paths) - len(shown)} more" if len(paths) > len(shown) else ""
    facts = (
        f"expected: one {PurePosixPath(server).name}, as in {server}",
        f"found: {', '.join(shown) or 'nothing'}{more}",
    )
    return unsafe(what, facts=facts)


def _main_root(archive: Aside, server: str) -> PurePosixPath:
    """Choose the folder to leave out of the archive that has the server.

    This is the folder that the manifest assumes, if that is right, else a single top folder.
    """
    root = PurePosixPath("" if archive.artifact.format == "wheel" else archive.artifact.root)
    paths = [PurePosixPath(item.path) for item in archive.items]
    if root / server in paths and all(root in path.parents for path in paths):
        return root
    tops = {path.parts[0] for path in paths}
    inside = all(len(path.parts) > 1 for path in paths)
    return PurePosixPath(tops.pop() if len(tops) == 1 and inside else "")


def _common_folder(items: Sequence[TreeEntry]) -> PurePosixPath:
    """Find the deepest folder that holds all files of a companion."""
    folders = [PurePosixPath(item.path).parent for item in items]
    common = folders[0] if folders else PurePosixPath()
    while not all(common in (folder, *folder.parents) for folder in folders):
        common = common.parent
    return common


def _same(known: TreeEntry, other: TreeEntry) -> bool:
    if isinstance(known, FileEntry) and isinstance(other, FileEntry):
        return known.sha256 == other.sha256
    return known == other


def check_names(items: Sequence[TreeEntry]) -> None:
    """Refuse a tree whose names would be refused in a single archive."""
    names = Names()
    for item in items:
        parts = checked_parts(item.path)
        if isinstance(item, LinkEntry):
            names.link(parts, item.target)
        else:
            names.add(parts, "file")
    names.check_links()


def as_it_is(artifact: Artifact) -> Artifact:
    """Describe an archive without its assumed top folder; a wheel keeps it, as it is known."""
    return artifact if artifact.format == "wheel" else replace(artifact, root="")
