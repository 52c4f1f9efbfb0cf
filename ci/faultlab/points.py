"""The system calls of one run, and the faults that make sense at each.

``strace --inject`` counts the calls of one name separately in each thread. So (name, ordinal) hits
the first thread that gets there. A call of another thread with the same name and ordinal is reached
by counting only the calls on the path that it uses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CALL = re.compile(r"(?P<thread>\d+) +(?P<name>\w+)\((?P<rest>.*)")
_BORN = re.compile(r"(?P<thread>\d+) +(?:<\.\.\. )?clone3?(?:\(| resumed).* = (?P<child>\d+)\b")
# Names with random digits, which differ from run to run.
_WORKING_FOLDER = re.compile(r'AT_FDCWD<[^>]*>(?=, "/)')
_UNNAMED = re.compile(r"/staging/[0-9a-f]{16}|\.[0-9a-f]{16}\.tmp")
_SOCKET = "socket:["
_THREAD = "CLONE_THREAD"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CHANGING = _words(
    "write pwrite64 writev ftruncate fallocate fsync fdatasync mkdir mkdirat rename renameat "
    "renameat2 unlink unlinkat rmdir link linkat symlink symlinkat chmod fchmod fchmodat "
    "utimensat copy_file_range sendfile"
)
_BY_PATH = _words(
    "mkdir mkdirat rename renameat renameat2 unlink unlinkat rmdir link linkat symlink symlinkat "
    "chmod fchmodat utimensat openat newfstatat access faccessat2 readlink chdir statfs"
)
_BLOCKING = _words(
    "openat read write pread64 pwrite64 close flock fsync fdatasync connect poll recvfrom sendto "
    "ftruncate fallocate getdents64"
)
_BY_NAME = _CHANGING - {"fsync", "fdatasync", "write"}
_FULL = _CHANGING - {"unlink", "unlinkat", "rmdir", "chmod", "fchmod", "fchmodat"}
_NEW_DESCRIPTOR = _words("openat socket pipe2 dup memfd_create")
_NEVER_FAILS = _words("lseek ioctl fcntl getsockname getpeername getsockopt")


@dataclass(frozen=True, slots=True)
class Call:
    """One system call of a recorded run; ``ordinal`` counts from 1 in its thread."""

    thread: int
    name: str
    ordinal: int
    text: str

    @property
    def creates(self) -> bool:
        """Whether it opens a file for writing."""
        return self.name == "openat" and re.search(r"O_(CREAT|WRONLY|RDWR)", self.text) is not None

    @property
    def on_socket(self) -> bool:
        """Whether it is about the network."""
        return _SOCKET in self.text or self.name == "socket"

    @property
    def changes(self) -> bool:
        """Whether it may change a file or a folder."""
        return (self.name in _CHANGING and not self.on_socket) or self.creates


@dataclass(frozen=True, slots=True)
class Point:
    """A place to inject a fault: the call, and the one path to count calls on, if any.

    The path is relative to the home's folder, as each run has another home.
    """

    call: Call
    ordinal: int
    path: str = ""

    def options(self, fault: str, folder: Path) -> list[str]:
        """Return strace's options; ``fault`` is ``signal=KILL`` or ``error=EIO``."""
        name = self.call.name
        only = ["-P", str(folder / self.path)] if self.path else []
        inject = f"inject={name}:{fault}:when={self.ordinal}"
        return [*only, "-e", f"trace={name}", "-e", inject]

    def __str__(self) -> str:
        on = f" on {self.path}" if self.path else ""
        return f"{self.call.name} {self.ordinal}{on} [{self.call.text[:160]}]"


def calls_in(log: str, pid: int) -> list[Call]:
    """Return the calls of one process in order, without those of its child processes."""
    ours = {pid}
    counts: Counter[tuple[int, str]] = Counter()
    calls = []
    making_threads: set[int] = set()
    for line in log.splitlines():
        found = _CALL.match(line)
        if found:
            thread, name = int(found["thread"]), found["name"]
            # clone makes a thread or a process: only threads belong to the process itself.
            (making_threads.add if _THREAD in line else making_threads.discard)(thread)
            counts[thread, name] += 1
            calls.append(Call(thread, name, counts[thread, name], found["rest"]))
        born = _BORN.match(line)
        if born and int(born["thread"]) in ours & making_threads:
            ours.add(int(born["child"]))
    return [call for call in calls if call.thread in ours]


def points_in(calls: Iterable[Call], folder: Path) -> list[Point]:
    """Return the places where calls use a folder or the network."""
    taken: set[tuple[str, int]] = set()
    points = []
    for call, path, on_path in _with_paths(calls, folder):
        if str(folder) not in _paths_of(call) and not call.on_socket:
            taken.add((call.name, call.ordinal))
        elif (call.name, call.ordinal) not in taken:
            taken.add((call.name, call.ordinal))
            points.append(Point(call, call.ordinal))
        elif path:
            points.append(Point(call, on_path, path.removeprefix(f"{folder}/")))
    return points


def _with_paths(calls: Iterable[Call], folder: Path) -> Iterator[tuple[Call, str, int]]:
    """Yield each call with its path, or "" if the path differs from run to run."""
    counts: Counter[tuple[int, str, str]] = Counter()
    pattern = re.compile(rf'{re.escape(str(folder))}[^">]*')
    for call in calls:
        found = pattern.search(_paths_of(call))
        path = found[0] if found and not _UNNAMED.search(found[0]) else ""
        counts[call.thread, call.name, path] += 1
        yield call, path, counts[call.thread, call.name, path]


def _paths_of(call: Call) -> str:
    """Return a call's text without the working folder, where its path does not depend on it."""
    return _WORKING_FOLDER.sub("AT_FDCWD", call.text)


def can_fail(call: Call, error: str) -> bool:
    """Tell whether the call could end with this error on some system."""
    return _CAN_FAIL[error](call)


def _on_disk(call: Call) -> bool:
    return not call.on_socket and call.name not in _NEVER_FAILS  # sockets are for rows H


_CAN_FAIL: dict[str, Callable[[Call], bool]] = {
    "ENOSPC": lambda call: _on_disk(call) and (call.name in _FULL or "O_CREAT" in call.text),
    "EDQUOT": lambda call: _on_disk(call) and (call.name in _FULL or "O_CREAT" in call.text),
    "EIO": _on_disk,
    "EINTR": lambda call: call.name in _BLOCKING,
    "EACCES": lambda call: _on_disk(call) and call.name in _BY_PATH,
    "EROFS": lambda call: _on_disk(call) and (call.name in _BY_NAME or call.creates),
    "EMFILE": lambda call: call.name in _NEW_DESCRIPTOR,
}
