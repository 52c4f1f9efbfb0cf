"""The check that no other user can replace files that are run, written or obeyed here.

A path is only as safe as each folder above it: a user who may write in one of them can replace
the next one. The rule is that of sshd's StrictModes: each step belongs to root or to this user,
and no other user may write to it. A sticky folder (/tmp) is accepted, because users can rename
only their own files there. Write permission for a group without other members is accepted too:
with umask 002 (Debian, Fedora) all files belong to such a private group.

The result stays valid until root or this user changes a mode, because no other user can write to
the folders above. The exception is a missing name in a sticky folder: any user can create it.
For that, ``files.make_folder`` checks the owner of each folder that it makes.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UnsafeLocation

if sys.platform != "win32":
    import grp
    import pwd

_MOST_LINKS = 40


def check_path(path: Path, *, sticky: bool = True) -> None:
    """Refuse a path if another user could replace it or a step on the way to it.

    Links are followed one by one: the link, its folder and the path of its target are all
    checked. The check ends at the first name that does not exist. Without ``sticky``, the path
    itself must not be a sticky folder, because any user can add files to that. Raises
    UnsafeLocation with the command that fixes it, and StoreError if a lookup fails.
    """
    if sys.platform == "win32":  # it has no such modes
        return
    with disk_errors("checking who owns the path", path):
        for step, status in _steps(path):
            require_trusted_owner(step, status, alone=step != path)
            if not stat.S_ISLNK(status.st_mode):
                _require_unwritable(step, status)
        if not sticky:
            with suppress(FileNotFoundError):
                _require_unwritable(path, path.stat(), sticky=False)


def check_own_folder(folder: Path) -> None:
    """Refuse a folder, as ``check_path``, and one into which another user could put a file.

    So a sticky folder (/tmp) is refused, too. Raises UnsafeLocation and StoreError.
    """
    check_path(folder)
    if sys.platform != "win32":
        with disk_errors("checking who owns the folder", folder):
            _require_unwritable(folder, folder.stat(), sticky=False)


def check_below(folder: Path) -> None:
    """Refuse a folder whose content is run if another user could change anything in it.

    The way to it is ``check_path``'s, and may end with a link. Links below it are not followed: no
    other user can change them here.
    Raises UnsafeLocation with the command that fixes it, and StoreError if a lookup fails.
    """
    if sys.platform == "win32":
        return
    with disk_errors("checking who owns the files", folder):
        # In a sticky folder other users can add files, such as one more library that is loaded.
        _require_unwritable(folder, folder.stat(), sticky=False, all_of=folder)
        pending = [os.fspath(folder)]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISLNK(status.st_mode):
                        continue
                    path = Path(entry.path)
                    require_trusted_owner(path, status)
                    _require_unwritable(path, status, sticky=False, all_of=folder)
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)


def require_trusted_owner(path: Path, status: os.stat_result, *, alone: bool = False) -> None:
    """Refuse a file or folder that neither root nor this user owns.

    With ``alone``, the hint's command leaves out the folder's content. Raises UnsafeLocation.
    """
    if sys.platform == "win32" or status.st_uid in (0, os.geteuid()):
        return
    kind = "the link " if stat.S_ISLNK(status.st_mode) else ""
    how = "chown -h" if kind else "chown" if alone else "chown -R"
    command = f"{how} {os.geteuid()} {_quoted(path)}"
    # Only root can give a file to another user (chown(2)).
    hint = f"run it as that user, or let root make it yours: {command}"
    if os.geteuid() == 0:
        # With sudo, HOME may be the user's: then that user must keep the home and what is in it.
        hint = "run it as that user, or with root's own HOME (sudo -H)"
        hint += "" if alone else f"; if it shall be root's: {command}"
    raise UnsafeLocation(
        f"{kind}{path.name} belongs to another user (uid {status.st_uid})",
        facts=(f"path: {path}",),
        hint=hint,
    )


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder and link from the root to ``path``, as far as they exist.

    Raises ``OSError``.
    """
    here = Path(os.sep)
    # A stack: the next part of the path is at the end, and a link's target is put on top.
    # Not abspath or normpath: they cut "link/.." out of the text, but the system follows the link.
    ahead = list(reversed(path.absolute().parts[1:]))
    yield here, here.lstat()
    links = 0
    while ahead:
        part = ahead.pop()
        if part == os.pardir:
            here = here.parent
            continue
        step = here / part
        try:
            status = step.lstat()
        except FileNotFoundError:
            return
        # /dev/null, the HOME of many services, is every user's to write, with nothing below it.
        if ahead and stat.S_IFMT(status.st_mode) not in (stat.S_IFDIR, stat.S_IFLNK):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(step))
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


def _require_unwritable(
    path: Path, status: os.stat_result, *, sticky: bool = True, all_of: Path | None = None
) -> None:
    """Refuse what other users can write; with ``sticky``, a sticky folder is accepted.

    The hint's command mends the whole folder ``all_of``, if it is given. Raises UnsafeLocation.
    """
    mode = status.st_mode
    if sticky and stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return
    by_others = bool(mode & stat.S_IWOTH)
    by_group = bool(mode & stat.S_IWGRP) and not (
        _is_private(status.st_gid, os.geteuid()) and not _has_acl(path)
    )
    if not by_others and not by_group:
        return
    right = "go-w" if by_others and by_group else "o-w" if by_others else "g-w"
    who = "every user" if by_others else f"its group ({_group_name(status.st_gid)})"
    hint = f"run: chmod {right} {_quoted(path)}"
    if all_of:
        hint = f"run: chmod -R go-w {_quoted(all_of)}"
    # On FAT, exFAT and NTFS, chmod ends well and changes nothing (mount(8), "umask"). Each of their
    # folders has the mode of the mount point, which is the first that is looked at.
    elif os.path.ismount(path):
        hint += "; if its mode stays (FAT, NTFS), mount it with umask=022, or use another disk"
    raise UnsafeLocation(
        f"{who} can write to {path}, and so replace files there",
        facts=(f"mode: {stat.filemode(mode)}",),
        hint=hint,
    )


@cache  # one group owns most of a path, and a directory service answers slowly
def _is_private(gid: int, uid: int) -> bool:
    """Tell whether only root and the user ``uid`` are in a group, by the system's lists.

    In root's own group, only the listed members count: some systems give this group to system
    accounts without a login.
    """
    if sys.platform == "win32":
        return True
    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == 0
    if set(group.gr_mem) - {user.pw_name, "root"}:
        return False
    if gid == 0:
        return True
    # Demand the user's own group of the user's name: a directory service may list no members of
    # a shared group.
    if (gid, group.gr_name) != (user.pw_gid, user.pw_name):
        return False
    # A group does not list the users who have it as their primary group: look at every user.
    return all(each.pw_uid in (0, user.pw_uid) for each in pwd.getpwall() if each.pw_gid == gid)


def _has_acl(path: Path) -> bool:
    """Tell whether an access list may let more users write than the mode shows."""
    if sys.platform != "linux":
        return False
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:  # a file system without access lists
        return False


def _group_name(gid: int) -> str:
    if sys.platform != "win32":
        try:
            return grp.getgrgid(gid).gr_name
        except KeyError:
            pass
    return f"gid {gid}"


def _quoted(path: Path) -> str:
    text = shlex.quote(str(path))
    return text if text.startswith("'") else f"'{text}'"
