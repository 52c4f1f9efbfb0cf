"""The record of a run's changes to a folder, and the states that a crash may leave.

The model is the one of ALICE (Pillai et al., OSDI 2014): a change of names is durable once its
folder is flushed, bytes are durable once their file is flushed, and any part of everything else may
be there after a power loss. A rename is one change, and is durable with either of its folders.
"""

from __future__ import annotations

import ast
import os
import random
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path, PurePosixPath

TRACED = (
    "openat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,"
    "unlinkat,rmdir,write,pwrite64,writev,ftruncate,fsync,fdatasync,copy_file_range,sendfile"
)
"""The calls to record; with ``-y`` and strings of any length."""

_LINE = re.compile(r"(?P<thread>\d+) +(?P<call>.*)")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
_STRING = r'"((?:[^"\\]|\\.)*)"'
_PATH = re.compile(rf"(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?{_STRING}")
_FILE = re.compile(r"\d+<([^>]*?)(?:\(deleted\))?>")
_OF_OLD = ("remove", "rename", "link")
_UNKNOWN = {"writev", "copy_file_range", "sendfile"}
_ALL_SUBSETS = 4
_RANDOM_SUBSETS = 6

MODES = ("kept", "lost", "zeros", "half")
"""What may have happened to bytes that were not flushed."""


Entry = tuple[int, str]
"""A folder's node and a name in it."""

ROOT = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One change: of a name in a folder, or of a file's bytes.

    ``kind`` is create, mkdir, symlink, link, rename, remove, write, truncate or flush. ``node`` is
    the file or folder, ``entry`` the name that changes, ``source`` the old name of a rename.
    ``data`` are the bytes and ``offset`` their position, None for the end.
    """

    kind: str
    node: int
    entry: Entry | None = None
    source: Entry | None = None
    data: bytes = b""
    offset: int | None = None

    def written(self, content: bytes) -> bytes:
        """Return a file's content after this write or truncation."""
        if self.kind == "truncate":
            return self.data
        at = len(content) if self.offset is None else self.offset
        return content[:at].ljust(at, b"\0") + self.data + content[at + len(self.data) :]


@dataclass(slots=True)
class Disk:
    """Names and their nodes; ``nodes`` has a file's bytes, a link's target, or None for a folder.

    Names belong to their folder's node, so that they move with it. A node that is not reachable
    from the root does not exist.
    """

    names: dict[Entry, int] = field(default_factory=dict)
    nodes: dict[int, bytes | None] = field(default_factory=lambda: {ROOT: None})
    links: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """Read a folder as it is."""
        disk = cls()
        known = {folder.lstat().st_ino: ROOT}
        for path in sorted(folder.rglob("*")):
            status = path.lstat()
            node = known.setdefault(status.st_ino, len(disk.nodes))
            disk.names[known[path.parent.lstat().st_ino], path.name] = node
            if stat.S_ISLNK(status.st_mode):
                disk.links.add(node)
                disk.nodes[node] = os.fsencode(path.readlink())
            else:
                disk.nodes[node] = path.read_bytes() if path.is_file() else None
        return disk

    def copy(self) -> Disk:
        """Return a copy that can be changed."""
        return Disk(dict(self.names), dict(self.nodes), set(self.links))

    def apply(self, change: Change) -> None:
        """Apply a change of a name."""
        assert change.entry  # noqa: S101  # no other change is applied
        if change.kind == "remove":
            self.names.pop(change.entry, None)
            return
        if change.source:
            self.names.pop(change.source, None)
        self.names[change.entry] = change.node

    def find(self, path: str) -> int | None:
        """Return the node of a path below the root."""
        node: int | None = ROOT
        for name in PurePosixPath(path).parts:
            node = None if node is None else self.names.get((node, name))
        return node

    def entry(self, path: str) -> Entry:
        """Return the folder's node and the name, for a path whose folder exists."""
        pure = PurePosixPath(path)
        parent = self.find(pure.parent.as_posix().removeprefix("."))
        if parent is None:
            raise RuntimeError(f"the journal does not know the folder of {path}")
        return parent, pure.name

    def tree(self) -> dict[str, int]:
        """Return every path with its node, folders before their content."""
        inside: dict[int, list[tuple[str, int]]] = {}
        for (parent, name), node in self.names.items():
            inside.setdefault(parent, []).append((name, node))
        found: dict[str, int] = {}
        waiting = [("", ROOT)]
        while waiting:
            path, folder = waiting.pop()
            for name, node in inside.get(folder, ()):
                found[path + name] = node
                if self.nodes[node] is None:
                    waiting.append((f"{path}{name}/", node))
        return found

    def view(self) -> dict[str, bytes | None]:
        """Return the content at each path."""
        return {path: self.nodes[node] for path, node in self.tree().items()}

    def digest(self) -> int:
        """Return a number that is equal for disks with equal content."""
        return hash(frozenset(self.view().items()))

    def write(self, folder: Path) -> None:
        """Make a folder with this content."""
        made: dict[int, Path] = {}
        folder.mkdir()
        for name, node in self.tree().items():
            path, content = folder / name, self.nodes[node]
            if content is None:
                path.mkdir(0o755)
            elif node in made:
                path.hardlink_to(made[node])
            elif node in self.links:
                path.symlink_to(os.fsdecode(content))
            else:
                path.write_bytes(content)
                # The model records no modes, and a program without its own would be damaged.
                path.chmod(0o755)
            made.setdefault(node, path)


class Journal:
    """The changes that a recorded run made below a folder, on top of its earlier content."""

    def __init__(self, before: Disk, log: str, folder: Path) -> None:
        self.before = before
        self.changes: list[Change] = []
        self._after = before.copy()
        self._folder = str(folder)
        for name, arguments, result in _calls(log):
            self._read(name, arguments, result)

    @property
    def after(self) -> Disk:
        """The disk after all changes."""
        return self._after

    def _read(self, name: str, arguments: str, result: int) -> None:
        # A call that failed changed nothing.
        if result < 0:
            return
        if name in ("write", "pwrite64", "ftruncate", "fsync", "fdatasync") or name in _UNKNOWN:
            self._read_file_call(name, arguments)
            return
        paths = [self._relative(match) for match in _PATH.finditer(arguments)]
        kind = name.removesuffix("2").removesuffix("at")
        if kind == "open":
            self._read_open(arguments, paths)
        elif kind == "symlink":
            target = _PATH.search(arguments)
            assert target  # noqa: S101  # strace prints it
            self._change("symlink", paths[-1], data=_decoded(target[2]))
        elif kind in ("rename", "link"):
            self._change(kind, paths[-1], source=paths[0] or "")
        elif kind in ("unlink", "rmdir"):
            self._change("remove", paths[-1])
        else:
            self._change(kind, paths[-1])

    def _read_open(self, arguments: str, paths: list[str | None]) -> None:
        path = paths[0] if paths else None
        if path is None or "O_CREAT" not in arguments:
            return
        node = self._after.find(path)
        if node is None:
            self._change("create", path)
        elif "O_TRUNC" in arguments:
            self._bytes(Change("truncate", node))

    def _read_file_call(self, name: str, arguments: str) -> None:
        found = _FILE.match(arguments)
        path = self._below(found[1]) if found else None
        node = None if path is None else self._after.find(path)
        if node is None:
            return
        if name in _UNKNOWN:
            raise RuntimeError(f"the journal cannot read {name}({arguments[:200]}")
        last = arguments.rpartition(", ")[2]
        if name in ("fsync", "fdatasync"):
            self.changes.append(Change("flush", node))
        elif name == "ftruncate":
            content = self._after.nodes[node] or b""
            self._bytes(Change("truncate", node, data=content[: int(last)].ljust(int(last), b"\0")))
        else:
            text = re.search(_STRING, arguments)
            data = _decoded(text[1] if text else "")
            offset = int(last) if name == "pwrite64" else None
            self._bytes(Change("write", node, data=data, offset=offset))

    def _bytes(self, change: Change) -> None:
        self._after.nodes[change.node] = change.written(self._after.nodes[change.node] or b"")
        self.changes.append(change)

    def _change(self, kind: str, path: str | None, source: str = "", data: bytes = b"") -> None:
        if path is None:
            return
        disk = self._after
        node = disk.find(path if kind == "remove" else source) if kind in _OF_OLD else None
        if node is None:
            node = len(disk.nodes)
            disk.nodes[node] = None if kind == "mkdir" else data
        if kind == "symlink":
            disk.links.add(node)
        old = disk.entry(source) if kind == "rename" else None
        change = Change(kind, node, disk.entry(path), old, data)
        disk.apply(change)
        self.changes.append(change)

    def _relative(self, found: re.Match[str]) -> str | None:
        folder, name = found[1] or "", os.fsdecode(_decoded(found[2]))
        return self._below(os.path.normpath(Path(folder) / name))

    def _below(self, path: str) -> str | None:
        if path == self._folder:
            return ""
        return (
            path.removeprefix(f"{self._folder}/") if path.startswith(f"{self._folder}/") else None
        )

    # States

    def states(self, chance: random.Random) -> Iterator[tuple[str, Disk]]:
        """Yield every state that a crash may leave, each once, with a text that names it."""
        seen: set[int] = set()
        for length in range(len(self.changes) + 1):
            for text, disk in self.states_after(length, chance):
                digest = disk.digest()
                if digest not in seen:
                    seen.add(digest)
                    yield text, disk

    def states_after(self, length: int, chance: random.Random) -> Iterator[tuple[str, Disk]]:
        """Yield the states that a crash right after the first ``length`` changes may leave."""
        done = self.changes[:length]
        lasting = _lasting(done)
        # These changes of names were made but not flushed: any subset of them may be on the disk.
        pending = [at for at, change in enumerate(done) if change.entry and at not in lasting]
        contents = {mode: dict(self._contents(done, mode)) for mode in MODES}
        for kept in _subsets(pending, chance):
            disk = self.before.copy()
            disk.nodes.update(self._after.nodes)
            disk.links |= self._after.links
            for at, change in enumerate(done):
                if at in lasting or at in kept:
                    disk.apply(change)
            for mode, nodes in contents.items():
                state = Disk(disk.names, {**disk.nodes, **nodes}, disk.links)
                yield f"after change {length}, unflushed names {sorted(kept)}, bytes {mode}", state

    def _contents(self, done: Iterable[Change], mode: str) -> Iterator[tuple[int, bytes]]:
        flushed: dict[int, bytes] = {}
        now: dict[int, bytes] = {}
        for change in done:
            node = change.node
            old = now.get(node, self.before.nodes.get(node) or b"")
            if change.kind == "create":
                now[node], flushed[node] = b"", b""
            elif change.kind in ("write", "truncate"):
                now[node] = change.written(old)
            elif change.kind == "flush" and node in now:
                flushed[node] = now[node]
        for node, content in now.items():
            yield node, _survived(flushed.get(node, self.before.nodes.get(node)), content, mode)


def _survived(flushed: bytes | None, content: bytes, mode: str) -> bytes:
    """Return what is left of a file's bytes in this mode."""
    if flushed == content or mode == "kept":
        return content
    safe = flushed or b""
    if mode == "lost":
        return safe
    if mode == "half":
        return content[: (len(safe) + len(content)) // 2]
    return safe + bytes(max(0, len(content) - len(safe)))


def _lasting(done: Iterable[Change]) -> set[int]:
    """Return the changes of names that no crash can undo, by their position."""
    lasting: set[int] = set()
    waiting: dict[int, list[int]] = {}
    for at, change in enumerate(done):
        if change.entry:
            # A rename waits for both folders: a flush of either one makes it durable.
            for folder, _ in filter(None, (change.entry, change.source)):
                waiting.setdefault(folder, []).append(at)
        elif change.kind == "flush":
            lasting.update(waiting.pop(change.node, ()))
    return lasting


def _subsets(pending: list[int], chance: random.Random) -> Iterator[frozenset[int]]:
    """Yield the unflushed changes that survived: all subsets of a few, typical ones of many."""
    if len(pending) <= _ALL_SUBSETS:
        for size in range(len(pending) + 1):
            yield from map(frozenset, combinations(pending, size))
        return
    # Typical: a prefix survives, one change is lost, or one change alone survives.
    for at, change in enumerate(pending):
        yield frozenset(pending[:at])
        yield frozenset(pending) - {change}
        yield frozenset({change})
    yield frozenset(pending)
    for _ in range(_RANDOM_SUBSETS):
        yield frozenset(at for at in pending if chance.random() < 0.5)  # noqa: PLR2004


def _calls(log: str) -> Iterator[tuple[str, str, int]]:
    """Yield each finished call of a log: name, arguments, result."""
    begun: dict[str, str] = {}
    for line in log.splitlines():
        found = _LINE.match(line)
        if not found:
            continue
        thread, text = found["thread"], found["call"]
        # strace splits a call into two lines if another thread's call is printed in between.
        if text.endswith(_UNFINISHED):
            begun[thread] = text.removesuffix(_UNFINISHED)
            continue
        resumed = _RESUMED.match(text)
        if resumed:
            text = begun.pop(thread, "") + text[resumed.end() :]
        call = _CALL.match(text)
        if call:
            yield call["name"], call["arguments"], int(call["result"])


def _decoded(text: str) -> bytes:
    """Decode a string as strace prints it, with C's escapes, which Python shares."""
    value: bytes = ast.literal_eval(f'b"{text}"')
    return value
