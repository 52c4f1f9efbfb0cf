"""Bounded reads of what others made: users, other programs, servers, the kernel.

Files of others can be pipes, devices, links into /proc, or larger than the memory. Every such file
is read here, and every JSON document of others is decoded here. All errors are ``OSError`` for the
reading and ``ValueError`` for the decoding, with a reason in words.

The files of our own store are read by ``files.read_small``, which also refuses links and the files
of other users.

Every start loads this module, and the isolated children too: it imports nothing of the package.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress

TYPE_CHECKING = False  # as in typing, which takes time to import, also for --version
if TYPE_CHECKING:
    from typing import IO, Any, BinaryIO, NoReturn

Path = str | os.PathLike[str]

SECONDS = 60.0
"""The longest time for one small file, in seconds; a network file system may be very slow."""

LARGEST = 16 << 20
"""Bytes of a document, of a file of the kernel or of an answer, where the caller names no limit.

A table of 100,000 connections has as many; everything else has less than one megabyte.
"""

UNREADABLE = "let this user read it, and the folders above it; as its owner: chmod -R a+rX FOLDER"
"""The hint where files were copied without the permissions of others."""

_CHUNK = 1 << 20

# A pipe must not block the open, and a terminal must not become ours.
_READ = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
    _READ |= getattr(os, _flag, 0)

_PSEUDO = ("/proc", "/sys")
"""File systems whose files do things when they are read, or block."""


# --- files -----------------------------------------------------------------------------------


def open_foreign(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file of any size for reading; ``follow`` says whether it may be a link.

    Raises ``OSError`` for anything else, and for what the kernel makes (/proc, /sys).
    """
    return os.fdopen(_opened(path, follow=follow), "rb")


def read_foreign(path: Path, limit: int = LARGEST) -> bytes:
    """Read a whole file of at most ``limit`` bytes.

    Raises ``OSError``, also for a larger file and for what ``open_foreign`` refuses.
    """
    data = read_beginning(path, limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", os.fspath(path))
    return data


def read_text(path: Path, limit: int = LARGEST) -> str:
    """Read a whole file as UTF-8, with line feeds for every kind of line end.

    Raises ``OSError`` as ``read_foreign``, and ``UnicodeDecodeError``, which is a ``ValueError``.
    """
    text = read_foreign(path, limit).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_beginning(path: Path, length: int) -> bytes:
    """Read the first ``length`` bytes of a file, fewer if it ends. Raises as ``open_foreign``."""
    fd = _opened(path)
    try:
        # Never more than the file has by its own account: what a kernel makes up while it is read
        # (another mount of /proc) has no size.
        return _read(fd, min(length, os.fstat(fd).st_size), path)
    finally:
        os.close(fd)


def read_end(path: Path, length: int, start: int = 0) -> bytes:
    """Read the last ``length`` bytes of a file, none before ``start``. Raises as above."""
    with open_foreign(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start if start <= size else 0, size - length))
        return file.read(length)


def read_kernel(path: Path, limit: int = LARGEST) -> bytes:
    """Read the first ``limit`` bytes of a file of the system, such as /proc/meminfo.

    Its path is ours and not from others. Raises ``OSError``.
    """
    fd = os.open(path, _READ)
    try:
        return _read(fd, limit, path)
    finally:
        os.close(fd)


def kernel_text(path: Path, limit: int = LARGEST) -> str:
    """Read the text of a file of the system, as ``read_kernel``. Raises ``OSError``."""
    return read_kernel(path, limit).decode("utf-8", "replace")


def _opened(path: Path, *, follow: bool = True) -> int:
    try:
        # Before the open, because the open of a device can do things. The check of the open file
        # below is the one that counts: another process may replace the file in between.
        _require_plain(os.stat(path, follow_symlinks=follow), path)
        fd = os.open(path, _READ | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    except ValueError as error:  # a NUL, or a letter that no file name has
        raise OSError(errno.EINVAL, "its name cannot be that of a file", repr(path)) from error
    try:
        _require_plain(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_plain(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    devices: list[int] = []
    for folder in _PSEUDO:
        with suppress(OSError):
            devices.append(os.stat(folder).st_dev)
    if status.st_dev in devices:
        raise OSError(errno.EINVAL, "it is a file of the kernel", os.fspath(path))


def _read(fd: int, limit: int, path: Path) -> bytes:
    ends = time.monotonic() + SECONDS
    pieces: list[bytes] = []
    left = limit
    while left > 0 and (piece := os.read(fd, min(left, _CHUNK))):
        pieces.append(piece)
        left -= len(piece)
        if time.monotonic() > ends:
            raise TimeoutError(errno.ETIMEDOUT, "reading it takes too long", os.fspath(path))
    return b"".join(pieces)


# --- answers ---------------------------------------------------------------------------------


def read_answer(stream: IO[bytes], limit: int = LARGEST) -> bytes:
    """Read a pipe or a body to its end. Raises ``OSError`` for more than ``limit`` bytes.

    The time limit is the caller's, who can end the other side.
    """
    pieces: list[bytes] = []
    left = limit + 1
    while left > 0 and (piece := stream.read(min(left, _CHUNK))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes")
    return b"".join(pieces)


# --- JSON ------------------------------------------------------------------------------------

_DEEPEST = 32
"""Levels of nesting; what is read has fewer than ten. python-tuf has a limit of its own."""

_LONGEST_INTEGER = 20
"""Characters of an integer: those of 64 bits."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(
    data: bytes | str,
    *,
    ours: bool = False,
    parse_int: Callable[[str], int] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Decode JSON of others; refuse what two readers may understand differently.

    Refused are repeated keys, NaN, Infinity, floats that become infinite (1e999), integers of more
    than 20 characters, lone surrogates, and more than 32 levels. In documents of ``ours`` a lone
    surrogate may stand for a byte of a path that is not UTF-8. ``parse_int`` and ``parse_float``
    may refuse more. Raises ``ValueError`` only.
    """
    import gc
    import json

    text = data if isinstance(data, str) else data.decode("utf-8")
    # Let nothing be collected while the decoder goes as deep as its input says. A collection runs
    # the finalizers of others' objects, which have no frame left at the deepest level: Python
    # prints a traceback for each, and continues.
    collects = gc.isenabled()
    gc.disable()
    try:
        value = json.loads(
            text,
            object_pairs_hook=_no_repeats,
            parse_int=parse_int or _integer,
            parse_float=parse_float or _float,
            parse_constant=_no_constant,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    finally:
        if collects:
            gc.enable()
    _require_shallow(value)
    # Bytes can only have one as an escape. Two of them may be one letter.
    if isinstance(data, str) or _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode(
            "utf-8", "surrogateescape" if ours else "strict"
        )
    return value


def parse_object(data: bytes | str, *, ours: bool = False) -> dict[str, Any]:
    """Decode a JSON object, as ``parse_json``. Raises ``ValueError``, also for other values."""
    value = parse_json(data, ours=ours)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key appears twice")
    return document


def _integer(text: str) -> int:
    # The length first: converting a very long text takes quadratic time.
    if len(text) > _LONGEST_INTEGER:
        raise ValueError("a number is too long")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _require_shallow(value: Any) -> None:
    # Level by level and not by recursion: the input decides how deep it is.
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return
        level = below
    raise ValueError(f"it is nested more than {_DEEPEST} deep")
