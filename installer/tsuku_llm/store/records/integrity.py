"""The check that a tree is still what its receipt says.

The listing must match name by name. Each file has a fingerprint from stat: size, modification
time, change time, inode. If it equals the one taken when the file was verified, the file was
not written since then: setting the modification time back changes the change time. Any other
file is hashed again.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import StoreError, TamperedInstall
from tsuku_llm.ground.files import open_to_read, read_small, replace_file
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.tree_entry import FileEntry
from tsuku_llm.store.records.receipt import Receipt

FINGERPRINT = "fingerprint.json"
TREE = "tree"
_LIMIT = 16 << 20
_CHUNK = 1 << 18
_SHOWN = 12
_LOOKS = 5
_WORTH_THREADS = 4 << 20
_EXTRA = "not part of the build: "
_KINDS = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}

Stamp = tuple[int, ...]
"""Size in bytes, modification and change time in ns, and inode of a file."""

Stamps = dict[str, Stamp]


class TreeListing(NamedTuple):
    """The content of a tree: the kind of each name, the files' stamps, the links' targets.

    ``programs`` are the files that their owner may run.
    """

    kinds: Mapping[str, str]
    files: Stamps
    links: Mapping[str, str]
    programs: AbstractSet[str]


def list_tree(tree: Path) -> TreeListing:
    """Read the names and stamps of a tree without following links. Raises ``OSError``."""
    if not stat.S_ISDIR(os.lstat(tree).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(tree))
    kinds: dict[str, str] = {}
    files: Stamps = {}
    links: dict[str, str] = {}
    programs: set[str] = set()
    pending = [("", os.fspath(tree))]
    while pending:
        prefix, folder = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name, status = prefix + entry.name, os.lstat(entry.path)
                kinds[name] = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
                if kinds[name] == "file":
                    files[name] = stamp_of(status)
                    if is_program(status):
                        programs.add(name)
                elif kinds[name] == "link":
                    links[name] = os.readlink(entry.path)  # hot: no Path per name
                elif kinds[name] == "folder":
                    pending.append((f"{name}/", entry.path))
    return TreeListing(kinds, files, links, programs)


def is_program(status: os.stat_result) -> bool:
    """Tell whether the owner of a file may run it. On Windows no mode says so."""
    return sys.platform == "win32" or bool(status.st_mode & stat.S_IXUSR)


def stamp_of(status: os.stat_result) -> Stamp:
    """Make the stamp of a file from its status."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def find_differences(
    version: Path, receipt: Receipt, *, full: bool = False, known: Mapping[Stamp, str] | None = None
) -> list[str]:
    """List every name that is not what the receipt says.

    ``full`` hashes every file; without it, none is hashed if the listing already differs. ``known``
    has digests of files that were hashed moments ago. If a file's stamp changed but its content did
    not, the new stamp is stored, if the folder is writable. Raises StoreError if the file system
    reports an error.
    """
    tree = version / TREE
    with disk_errors("checking the installed build", tree):
        try:
            listing = list_tree(tree)
            found = differences(listing, receipt)
            # A copy or a backup may have all of the content and not the modes. A tree that is being
            # put together gets them last, so ``differences`` does not ask for them.
            idle = listing.files.keys() - listing.programs
            found += [
                f"cannot be executed any more: {file.path}"
                for file in receipt.files
                if file.executable and file.path in idle
            ]
        except (FileNotFoundError, NotADirectoryError):
            listing = TreeListing({}, {}, {}, set())
            found = [f"missing: {tree.name}"]
        if found and not full:
            return found
        stamps = {} if full else read_stamps(version)
        # A file that still has the stamp from its verification was not written since: skip it.
        suspects = [
            file
            for file in receipt.files
            if file.path in listing.files and stamps.get(file.path) != listing.files[file.path]
        ]
        # A file of another size is in ``found`` already; hashing it would add nothing.
        same_size = [file for file in suspects if listing.files[file.path][0] == file.size]
        fresh, changed = verify_files(tree, same_size, known or {})
    found += [f"content changed: {path}" for path in changed]
    # The content is right: store the new stamps, so that the next start need not hash again.
    current = listing.files | fresh
    if suspects and not found and current != read_stamps(version):
        with suppress(OSError):  # root's install, used by another user: hash at each start
            replace_file(version / FINGERPRINT, stamps_to_json(current))
    return found


_READ_STAMPS = records.fields({"files": records.named(records.many(records.checked(int)))})


def undamaged(version: Path, files: Iterable[FileEntry]) -> Iterator[FileEntry]:
    """Give those of a version's files whose content is as its receipt says, as far as stamps tell.

    A file with another stamp is hashed. One that cannot be read counts as damaged. The executable
    flag of what is given is that of the file as it is now.
    """
    stamps = read_stamps(version)
    for file in files:
        # Another process may remove the version meanwhile.
        with suppress(OSError):
            status = os.lstat(version / TREE / file.path)
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
                continue
            unwritten = stamp_of(status) == stamps.get(file.path)
            if unwritten or not verify_files(version / TREE, (file,), {})[1]:
                yield file._replace(executable=file.executable and is_program(status))


def read_stamps(version: Path) -> Stamps:
    """Read the stored stamps of a version; empty if damaged, and then every file is hashed."""
    try:
        content = read_small(version / FINGERPRINT, _LIMIT)
        stamps: Stamps = records.parse(content, _READ_STAMPS)["files"] if content else {}
    except (StoreError, ValueError):
        return {}
    return stamps


def differences(listing: TreeListing, receipt: Receipt) -> list[str]:
    """Describe every name that differs from the receipt, for people; pure."""
    kinds = expected_kinds(receipt)
    found = [f"missing: {name}" for name in sorted(kinds.keys() - listing.kinds.keys())]
    found += [f"{_EXTRA}{_shown(name)}" for name in sorted(listing.kinds.keys() - kinds.keys())]
    for name, kind in kinds.items():
        now = listing.kinds.get(name, kind)
        if now != kind:
            found.append(f"a {kind} became a {now}: {name}")
    for file in receipt.files:
        size = listing.files[file.path][0] if file.path in listing.files else file.size
        if size != file.size:
            found.append(f"size changed from {file.size} to {size} bytes: {file.path}")
    for link in receipt.links:
        target = listing.links.get(link.path, link.target)
        if target != link.target:
            found.append(f"link changed: {link.path} -> {_shown(target)}")
    return found


def only_extra(found: Sequence[str]) -> bool:
    """Tell whether all of these differences are names that are not part of the build. Pure."""
    return all(line.startswith(_EXTRA) for line in found)


def expected_kinds(receipt: Receipt) -> dict[str, str]:
    """Return the kind that each name must have: the files, the links, and their folders."""
    kinds = dict.fromkeys((file.path for file in receipt.files), "file")
    kinds |= dict.fromkeys((link.path for link in receipt.links), "link")
    folders = (name[:at] for name in kinds for at, char in enumerate(name) if char == "/")
    return kinds | dict.fromkeys(folders, "folder")


def verify_files(
    tree: Path, files: Sequence[FileEntry], known: Mapping[Stamp, str]
) -> tuple[Stamps, list[str]]:
    """Hash files, return their stamps and the names of those that differ.

    Two threads hash if the files are large together. ``known`` has digests of files that were
    hashed moments ago. Raises ``OSError``.
    """
    if sum(file.size for file in files) < _WORTH_THREADS:
        found = {file.path: _digest(tree / file.path, known) for file in files}
    else:
        found = _digests(tree, files, known)
    stamps = {path: stamp for path, (stamp, _) in found.items()}
    return stamps, sorted(file.path for file in files if found[file.path][1] != file.sha256)


def _digests(
    tree: Path, files: Sequence[FileEntry], known: Mapping[Stamp, str]
) -> dict[str, tuple[Stamp, str]]:
    """Hash files in this thread and one more, the largest first."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a start hashes nothing

    waiting = iter(sorted(files, key=lambda file: file.size, reverse=True))
    found: dict[str, tuple[Stamp, str]] = {}

    def hash_on() -> None:
        # Both threads take from the same list iterator. ``next`` on it is atomic under the GIL, so
        # each file is hashed once, and each thread writes its own keys of ``found``.
        for file in waiting:
            found[file.path] = _digest(tree / file.path, known)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(hash_on)
        hash_on()
        # Wait for the other thread; an ``OSError`` in it is raised here.
        other.result()
    return found


def _digest(path: Path, known: Mapping[Stamp, str]) -> tuple[Stamp, str]:
    """Hash a file; return the stamp it had before and after, and its SHA-256.

    If the stamp differs after hashing, hash again: another process may only have added or
    removed a hard link to the file. After 5 tries the digest is "changing".
    """
    from hashlib import sha256  # noqa: PLC0415 - as above

    fd = open_to_read(path)
    with open(fd, "rb", buffering=0) as file:  # opened above, with flags
        # Stamps come from the open descriptor: another process may replace the path meanwhile.
        before, buffer = stamp_of(os.fstat(fd)), memoryview(bytearray(_CHUNK))
        for _ in range(_LOOKS):
            if before in known:
                return before, known[before]
            digest = sha256()
            file.seek(0)
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
            after = stamp_of(os.fstat(fd))
            if before == after:
                return after, digest.hexdigest()
            before = after
    return before, "changing"


def tampered(
    name: str, found: Sequence[str], repair: str = f"{TSUKU} install --force"
) -> TamperedInstall:
    """Make the error for a tree that differs, with the names and the command that repairs it."""
    facts = tuple(found[:_SHOWN])
    if len(found) > _SHOWN:
        facts += (f"and {len(found) - _SHOWN} more",)
    again = f"install it again: {repair}"
    return TamperedInstall(
        f"{name} is not as it was installed",
        facts=facts,
        # ``StoreReader.admit`` does that.
        hint=f"the next start moves such files out of the build; or {again}"
        if only_extra(found)
        else again,
    )


def stamps_to_json(stamps: Mapping[str, Stamp]) -> bytes:
    """Encode the stamps as they are stored next to the tree."""
    return json.dumps({"format": 1, "files": stamps}).encode("ascii") + b"\n"


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)
