"""Errors of the file system, translated into this program's errors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from tsuku_llm.ground import system_limits
from tsuku_llm.ground.errors import NoSpace, NotWritable, StoreError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# EAGAIN comes from a process that cannot be started: our files are never in non-blocking mode.
_LIMITED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_PLACES = frozenset({"APPDATA", "LOCALAPPDATA"})
"""The variables below which Windows puts a program's folders."""
# What a file system cannot do: some in FUSE lack calls, FAT has no file of 4 GiB or more, and none
# renames to another disk.
_ELSEWHERE = {
    errno.ENOSYS: "a folder on another file system",
    errno.EOPNOTSUPP: "a folder on another file system",
    errno.EFBIG: "a folder on another file system",
    errno.EXDEV: "a folder that is all on one file system",
    errno.ENAMETOOLONG: "a folder with a shorter path",
}
_NEXT_TO_NOTHING = 1 << 20
"""Bytes. What failed for want of room has often removed its own file."""


@contextlib.contextmanager
def disk_errors(doing: str, folder: Path) -> Iterator[None]:
    """Turn an ``OSError`` into ``NoSpace``, ``NotWritable`` or ``StoreError``.

    ``doing`` completes "while ..."; ``folder`` is the place of the error.
    """
    try:
        yield
    except OSError as error:
        facts = (f"{error.strerror or error}, while {doing}", f"folder: {folder}")
        if error.errno in _FULL:
            raise NoSpace(
                "there is no space left on the disk", facts=facts, hint=_more_space(folder)
            ) from error
        if error.errno in _FORBIDDEN:
            yours = "make that folder yours and writable"
            if error.errno == errno.EROFS:
                yours = "mount that file system writable"
            hint = f"{yours}, or {_other(folder, 'one that is')}"
            text = f"the system does not allow {doing}"
            raise NotWritable(text, facts=facts, hint=hint) from error
        text = "a file could not be read or written"
        hint = "check the disk, then run the command again"
        # The disk is well: the user named a file in a folder that is not there.
        if error.errno in _MISSING and not folder.is_dir():
            hint = "make that folder, or name another one"
            if error.errno == errno.ENOTDIR:
                hint = "a part of that path is a file: name another folder"
                hint += f" ({name})" if (name := _variable(folder)) else ""
        if elsewhere := _ELSEWHERE.get(error.errno or 0):
            hint = _other(folder, elsewhere)
        if error.errno in _LIMITED:
            text = system_limits.reached(error) or str(error)
            hint = system_limits.fix_of(text) or (hint if elsewhere else "")
        raise StoreError(text, facts=facts, hint=hint) from error


def _variable(folder: Path) -> str:
    """Return the variable that decides where a folder is; "" for one that the user named."""
    environ = os.environ
    if (home := environ.get("TSUKU_HOME")) and folder.is_relative_to(home):
        return "TSUKU_HOME"
    places = [value for name, value in environ.items() if name in _PLACES or name[:4] == "XDG_"]
    if not any(folder.is_relative_to(each) for each in (os.path.expanduser("~"), *places) if each):
        return ""
    # Another user's TSUKU_HOME has the builds, and the user's own HOME the state and the caches.
    return "HOME" if home else "TSUKU_HOME"


def _other(folder: Path, what: str) -> str:
    """Say how to take another folder than this one."""
    return f"set {name} to {what}" if (name := _variable(folder)) else f"name {what}"


def _more_space(folder: Path) -> str:
    return f"free some space, or {_other(folder, 'a folder on a larger disk')}"


def require_space(folder: Path, needed: int, facts: tuple[str, ...] = ()) -> None:
    """Refuse to start if fewer than ``needed`` bytes are free; ``facts`` say what for.

    The folder need not exist yet. Raises ``NoSpace``, or ``StoreError`` if the free space is not
    known.
    """
    with disk_errors("asking for the free space", folder):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = _free(existing)
    if free < needed:
        raise NoSpace(
            f"at least {_megabytes(needed)} are needed and {_megabytes(free)} are free",
            facts=(*facts, f"folder: {folder}"),
            hint=_more_space(folder),
        )


def is_full(folder: Path) -> bool:
    """Tell whether there is next to no room on the disk of a folder; False if that is not known."""
    try:
        return _free(folder) < _NEXT_TO_NOTHING
    except OSError:
        return False


def _free(folder: Path) -> int:
    from shutil import disk_usage

    return disk_usage(folder).free


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
