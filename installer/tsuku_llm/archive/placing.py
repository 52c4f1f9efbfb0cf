"""Where the files of an archive belong whose layout nobody measured.

The manifest lists no files of upstream's archives, and its ``root`` for them is assumed. So
they are unpacked aside, each as it is. Then the server is found by its name, a top folder is
left out, companions (a GPU runtime, for one) are put beside the server, and all is moved into
the tree. What an archive may have is checked twice: as it lies in the archive, and as it will
lie in the tree. Deciding is pure; ``place`` alone moves files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from tsuku_llm.archive.member import unsafe
from tsuku_llm.archive.names import Names, checked_parts
from tsuku_llm.archive.tree import opened_tree
from tsuku_llm.archive.unpack import Unpacked, UnpackedFile, UnpackedLink
from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import UnsafeArchive
from tsuku_llm.manifest import Artifact

_SHOWN = 8
"""Names of what was found that an error shows."""


@dataclass(frozen=True, slots=True)
class Aside:
    """An archive that was unpacked as it is, into a folder of its own."""

    artifact: Artifact
    folder: Path
    items: tuple[Unpacked, ...]


Moves = Mapping[str, tuple[Path, Unpacked]]
"""By path in the tree: the file or link that was unpacked, and what it will be."""


def place(
    archives: Sequence[Aside], tree: Path, server: str, present: Mapping[str, Unpacked]
) -> tuple[str, tuple[Unpacked, ...]]:
    """Move what archives brought into the tree; gives the server's path and what was moved.

    ``server`` is the path that the manifest assumes, ``present`` what listed archives brought
    into the tree by path. Raises ``UnsafeArchive`` before anything is moved, and the errors
    of the disk.
    """
    found, moves = arrange(archives, server, present)
    with disk_errors("unpacking", tree), opened_tree(tree) as opened:
        for path, (source, _) in moves.items():
            opened.folder(tuple(path.split("/"))[:-1])
            source.rename(tree / path)
    return found, tuple(item for _, item in moves.values())


def arrange(
    archives: Sequence[Aside], server: str, present: Mapping[str, Unpacked]
) -> tuple[str, Moves]:
    """Decide where everything goes; gives the server's path in the tree too. Pure.

    Raises ``UnsafeArchive`` where there is no server or more than one, and where two archives
    bring different things of one name.
    """
    if server in present:
        main, found = None, server
    else:
        main, found = _server(archives, server)
    beside = PurePosixPath(found).parent
    moves: dict[str, tuple[Path, Unpacked]] = {}
    for archive in archives:
        own = archive is main
        top = _main_root(archive, server) if own else _common_folder(archive.items)
        for item in archive.items:
            path = PurePosixPath(item.path).relative_to(top)
            moved = replace(item, path=str(path if own else beside / path))
            known = moves[moved.path][1] if moved.path in moves else present.get(moved.path)
            if known is None:
                moves[moved.path] = (archive.folder / item.path, moved)
            elif not _same(known, moved):
                raise unsafe("two archives bring different files of one name", moved.path)
    _check_names([*present.values(), *(item for _, item in moves.values())])
    return found, moves


def _server(archives: Sequence[Aside], server: str) -> tuple[Aside, str]:
    """Find the archive that has the server, and the server's path in the tree."""
    name = PurePosixPath(server).name
    found = [
        (archive, item)
        for archive in archives
        for item in archive.items
        if isinstance(item, UnpackedFile) and PurePosixPath(item.path).name == name
    ]
    # Two archives may bring the same file of the same name: that is one server.
    places = {
        (str(PurePosixPath(item.path).relative_to(_main_root(archive, server))), item.sha256)
        for archive, item in found
    }
    if len(places) == 1:
        return found[0][0], next(iter(places))[0]
    if found:
        paths = [item.path for _, item in found]
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
    """The folder that is left out of the build's own archive.

    The one that the manifest assumes where that holds, else a single top folder.
    """
    root = PurePosixPath("" if archive.artifact.format == "wheel" else archive.artifact.root)
    paths = [PurePosixPath(item.path) for item in archive.items]
    if root / server in paths and all(root in path.parents for path in paths):
        return root
    tops = {path.parts[0] for path in paths}
    inside = all(len(path.parts) > 1 for path in paths)
    return PurePosixPath(tops.pop() if len(tops) == 1 and inside else "")


def _common_folder(items: Sequence[Unpacked]) -> PurePosixPath:
    """The folder in which everything of a companion lies, however deep."""
    folders = [PurePosixPath(item.path).parent for item in items]
    common = folders[0] if folders else PurePosixPath()
    while not all(common in (folder, *folder.parents) for folder in folders):
        common = common.parent
    return common


def _same(known: Unpacked, other: Unpacked) -> bool:
    if isinstance(known, UnpackedFile) and isinstance(other, UnpackedFile):
        return known.sha256 == other.sha256
    return known == other


def _check_names(items: Sequence[Unpacked]) -> None:
    """Refuse a tree that no single archive could bring."""
    names = Names()
    for item in items:
        parts = checked_parts(item.path)
        if isinstance(item, UnpackedLink):
            names.link(parts, item.target)
        else:
            names.add(parts, "file")
    names.check_links()


def as_it_is(artifact: Artifact) -> Artifact:
    """Describe an archive without its assumed top folder; in a wheel it is no assumption."""
    return artifact if artifact.format == "wheel" else replace(artifact, root="")
