"""Whether somebody else could replace what is about to be run.

A program is as safe as every folder on the way to it: who may write in one of them may
rename the next and put another in its place. The rule is sshd's StrictModes: each belongs
to root or to the user and nobody else may write there. A sticky folder (/tmp) is all right,
as nobody can rename what is not theirs; so is a group that has no other member.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import require_trusted_owner
from tsuku_llm.errors import UnsafeLocation

if sys.platform != "win32":
    import grp
    import pwd

_MOST_LINKS = 40


def check_ancestors(path: Path) -> None:
    """Refuse a path that others than root and this user could exchange.

    Links on the way are followed and their own folders checked as well. Raises
    UnsafeLocation with the command that mends it, or the errors of a lookup.
    """
    if sys.platform == "win32":  # no such modes there
        return
    with disk_errors("checking who owns the way to the build", path):
        for step, status in _steps(path):
            require_trusted_owner(step, status)
            if not stat.S_ISLNK(status.st_mode):
                _require_unwritable(step, status)


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link from the root to ``path``, links followed one by one."""
    here = Path(os.sep)
    ahead = list(reversed(Path(os.path.abspath(path)).parts[1:]))  # noqa: PTH100  # keeps links
    yield here, here.lstat()
    links = 0
    while ahead:
        part = ahead.pop()
        if part == os.pardir:
            here = here.parent
            continue
        step = here / part
        status = step.lstat()
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, "too many links", str(path))
        target = step.readlink()
        if target.is_absolute():
            here = Path(os.sep)
        ahead += [part for part in reversed(target.parts) if part != os.sep]


def _require_unwritable(path: Path, status: os.stat_result) -> None:
    mode = status.st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return
    by_others = bool(mode & stat.S_IWOTH)
    if not by_others and not (mode & stat.S_IWGRP and not _is_private(status.st_gid)):
        return
    who, right = ("every user", "o-w") if by_others else ("its group", "g-w")
    raise UnsafeLocation(
        f"{who} can write to {path}, and so replace the server",
        facts=(f"mode: {stat.filemode(mode)}",),
        hint=f"run: chmod {right} '{path}'",
    )


def _is_private(gid: int) -> bool:
    """Whether a group is root's or this user's alone (user-private groups, umask 002)."""
    if sys.platform != "win32" and gid != 0:
        try:
            user = pwd.getpwuid(os.geteuid())
            group = grp.getgrgid(gid)
        except KeyError:
            return False
        others = set(group.gr_mem) - {user.pw_name}
        return gid == user.pw_gid and group.gr_name == user.pw_name and not others
    return True
