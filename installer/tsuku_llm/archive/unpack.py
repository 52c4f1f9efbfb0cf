"""Unpack one archive, or copy one folder; or only make links if the files are installed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tsuku_llm.archive.formats.gzips import GzipReader
from tsuku_llm.archive.formats.member import (
    CHUNK,
    LARGEST,
    MEMBERS,
    Budget,
    Chunk,
    Member,
    unsafe,
)
from tsuku_llm.archive.formats.tars import tar_members
from tsuku_llm.archive.formats.zips import zip_members
from tsuku_llm.archive.names import Names, Parts, SignedList, checked_parts
from tsuku_llm.archive.tree import Tree, opened_tree
from tsuku_llm.archive.writing import THREADS, Writer, Written
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry


def in_order(artifact: Artifact) -> bool:
    """Return whether an archive can be unpacked while it downloads.

    A zip file and a wheel cannot: their directory is at the end.
    """
    return artifact.format == "tar.gz"


def unpack(
    file: BinaryIO | Path,
    artifact: Artifact,
    into: Path,
    budget: Budget | None = None,
    threads: int = THREADS,
) -> tuple[TreeEntry, ...]:
    """Unpack an archive whose digest is verified; return its files and links, sorted by path.

    ``into`` may hold files of another artifact: files of one name must then be the same. Two
    calls must not use one folder at the same time. ``file`` must be seekable only for zip
    and wheel; ``threads`` is the number of threads that write their members. Without
    ``budget``, the manifest's limits hold.

    Members outside ``artifact.root`` are refused, but skipped in a wheel, whose metadata is
    there, and so are those of a wheel that are not in the manifest's list. Links are made after all
    files are written, so nothing is written through a link. Nothing is flushed to the disk: the
    store does that at the commit.

    Raises ``UnsafeArchive``, also for a malformed archive; ``DigestMismatch`` for a file that
    differs from the manifest's list; ``NoSpace``, ``NotWritable`` or ``StoreError`` for the
    disk. The files that are written by then stay.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(disk_errors("unpacking", into))
        packed = None
        if isinstance(file, Path):
            packed, file = file.stat().st_size, stack.enter_context(file.open("rb"))
        budget = budget or Budget.of(artifact, packed)
        tree = stack.enter_context(opened_tree(into))
        in_stream = in_order(artifact)
        if in_stream:
            members = tar_members(GzipReader(file, budget), budget)
        else:
            members = zip_members(file, budget)
        # A tar stream gives one member after the other, so a second thread would only wait.
        return _write_all(members, artifact, tree, 1 if in_stream else threads)


def copy_folder(folder: Path, artifact: Artifact, into: Path) -> tuple[TreeEntry, ...]:
    """Copy a build's folder as ``unpack`` would unpack its archive; return what was copied.

    ``artifact`` describes the folder. Raises the errors of ``unpack``.
    """
    with disk_errors("copying the build", into), opened_tree(into) as tree:
        # A larger folder is probably the one in which a build was compiled.
        members = folder_members(folder, Budget(LARGEST, MEMBERS))
        return _write_all(members, artifact, tree, THREADS)


def _write_all(
    members: Iterator[Member], artifact: Artifact, tree: Tree, threads: int
) -> tuple[TreeEntry, ...]:
    names = Names()
    listing = SignedList(artifact)
    # Each file that is being written: its path, and what waits until it is complete.
    files: list[tuple[str, bool, Callable[[], Written]]] = []
    links: list[tuple[Parts, str]] = []
    # This thread reads the archive and makes all checks. The writer's threads write the files.
    with Writer(tree, threads) as writer:
        for member in members:
            parts = checked_parts(member.name, folder=member.kind == "folder")
            inside = _below_root(parts, member, artifact)
            if inside is None or listing.leaves_out(inside):
                continue
            if member.kind == "link":
                names.link(inside, member.target)
                links.append((inside, member.target))  # made at the end
            elif member.kind == "file":
                # First: so no two threads ever write one path.
                names.add(inside, "file")
                path = "/".join(inside)
                executable = listing.expect(path, member)
                written = writer.write(member, inside, executable=executable)
                files.append((path, executable, written))
            elif inside:
                names.add(inside, "folder")
                listing.check_folder(inside)
                tree.folder(inside)
        # Inside the block: if a digest is wrong, the writer gives up all that still waits.
        done: list[TreeEntry] = []
        for path, executable, written in files:
            size, digest = written()
            listing.check(path, digest)
            done.append(FileEntry(path, size, digest, executable))
    # The threads have ended here, and all names are known.
    names.check_links()
    listing.check_links(links)
    listing.check_complete(done_paths={item.path for item in done})
    for inside, target in links:
        tree.link(inside, target)
        done.append(LinkEntry("/".join(inside), target))
    return tuple(sorted(done, key=lambda item: item.path))


def _below_root(parts: Parts, member: Member, artifact: Artifact) -> Parts | None:
    """Get a member's path below the root; None for a member that is not installed."""
    root = tuple(artifact.root.split("/")) if artifact.root else ()
    if parts[: len(root)] == root:
        if len(parts) == len(root) and member.kind != "folder":
            raise unsafe("the archive's top folder is not a folder", member.name)
        return parts[len(root) :]
    if artifact.format == "wheel" or (member.kind == "folder" and root[: len(parts)] == parts):
        return None
    raise unsafe("a member is outside the archive's top folder", member.name)


def make_links(artifact: Artifact, into: Path) -> tuple[LinkEntry, ...]:
    """Make the links that the manifest lists for an artifact, as unpacking it would.

    Its listed files must be in ``into``. Raises ``UnsafeArchive`` for links that its archive
    must not have, before it makes the first one, and the errors of the disk.
    """
    if not artifact.links:
        return ()
    # The same checks as for an archive's members, with the listed files as its members.
    names = Names()
    for file in artifact.files or ():
        names.add(checked_parts(file.path), "file")
    for link in artifact.links:
        names.link(checked_parts(link.path), link.target)
    names.check_links()
    with disk_errors("linking", into), opened_tree(into) as tree:
        for link in artifact.links:
            tree.link(checked_parts(link.path), link.target)
    return artifact.links


_READ = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    # A fifo that took the place of a file meanwhile must not block.
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise ``StoreError`` with the file: the caller's errors are about the disk that it writes."""
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        raise StoreError(
            "a file of the build cannot be read",
            facts=(f"{error.strerror}: {error.filename or path}",),
            hint="make it readable for you, or remove it; then run the command again",
        ) from error


def folder_members(folder: Path, budget: Budget) -> Iterator[Member]:
    """Yield the members below a folder, sorted by name.

    Raises ``UnsafeArchive``, ``StoreError`` for what cannot be read or is gone, and ``OSError``.
    """

    def refused(error: OSError) -> None:
        with _reading(folder):
            raise error

    # Without onerror, os.walk skips what it cannot read.
    for place, folders, files in os.walk(folder, onerror=refused):
        folders.sort()
        # os.walk lists a link to a folder among the folders, and does not follow it.
        links = [name for name in folders if Path(place, name).is_symlink()]
        for name in sorted((*files, *links)):
            budget.member()
            yield _member(Path(place, name), folder, budget)


def _member(path: Path, folder: Path, budget: Budget) -> Member:
    name = path.relative_to(folder).as_posix()
    with _reading(path):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # as text
            return Member(name=name, kind="link", target=target)
    if not stat.S_ISREG(status.st_mode):
        raise unsafe("a member is neither a file, a folder nor a link", name)
    budget.spend(status.st_size)

    def content() -> Iterator[Chunk]:
        with _reading(path):
            descriptor = os.open(path, _READ)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise unsafe("a member changed while it was read", name)
            left = status.st_size
            while chunk := file.read(min(CHUNK, left + 1)):
                left -= len(chunk)
                # It was counted with the size that it had.
                if left < 0:
                    raise unsafe("a member grew while it was read", name)
                yield chunk

    return Member(
        name=name,
        kind="file",
        size=status.st_size,
        executable=bool(status.st_mode & 0o111),
        content=content,
        alone=True,
    )
