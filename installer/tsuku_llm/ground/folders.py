"""Open folders: a folder is opened before anything in it is removed.

Between two steps, a path can start to name another folder, by a link or a rename. So a folder is
opened once, without following a link. Its owner is checked, and each removal names a file below
the open descriptor. Windows has no such calls: there the path is used, and links are refused
just before each use.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore
from tsuku_llm.ground.files import TEMPORARY_SUFFIX, open_for_changes
from tsuku_llm.ground.ownership import require_trusted_owner

if sys.platform == "win32":
    from shutil import rmtree

_OPEN = (
    os.O_RDONLY
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EMLINK})
_REPARSE_POINT = 0x400
"""The attribute of links and junctions on Windows."""


class Folder:
    """An open folder that this user or root owns; its methods raise ``OSError``.

    ``descriptor`` is None on Windows, where ``path`` is used instead.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor

    def names(self) -> list[str]:
        """List the names in the folder, sorted."""
        place = self.path if self.descriptor is None else self.descriptor
        return sorted(os.listdir(place))  # of a descriptor

    def own_status(self) -> os.stat_result:
        """Return the status of the folder itself."""
        if self.descriptor is None:
            return self.path.stat()
        return os.fstat(self.descriptor)

    def status(self, name: str) -> os.stat_result:
        """Return the status of a name without following a link."""
        return os.stat(self._at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def is_file(self, name: str) -> bool:
        """Tell whether a name is a regular file that this user or root owns."""
        return self._is(name, stat.S_ISREG)

    def is_folder(self, name: str) -> bool:
        """Tell whether a name is a folder, not a link, that this user or root owns."""
        return self._is(name, stat.S_ISDIR)

    def _is(self, name: str, kind: Callable[[int], bool]) -> bool:
        try:
            status = self.status(name)
        except OSError:
            return False
        # To Python a junction of Windows is a folder and not a link: its attribute shows it.
        linked = bool(getattr(status, "st_file_attributes", 0) & _REPARSE_POINT)
        owned = sys.platform == "win32" or status.st_uid in (0, os.geteuid())
        return owned and not linked and kind(status.st_mode)

    def unlink(self, name: str) -> None:
        """Remove a file or a link."""
        os.unlink(self._at(name), dir_fd=self.descriptor)

    def rmdir(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(self._at(name), dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Remove a folder and all its content without following links."""
        if sys.platform == "win32":
            rmtree(self.path / name)
            return
        with self.inner(name) as folder:
            # A folder of a build is sealed; another user's cannot be opened up, nor emptied.
            if folder.descriptor is not None:
                with suppress(OSError):
                    open_for_changes(folder.descriptor)
            with os.scandir(folder.descriptor) as entries:
                # Read all names before the first removal: a changing folder may hide names from a
                # scan.
                kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for entry, is_folder in kinds:
                (folder.remove_tree if is_folder else folder.unlink)(entry)
        self.rmdir(name)

    def remove_matching(self, ours: re.Pattern[str], *, below: str = "") -> None:
        """Remove this program's files below the folder; foreign files and their folders stay.

        ``ours`` matches relative paths with ``/``: of files, of links, and of folders, which end
        with ``/``.
        """
        for name in self.names():
            path = below + name
            if self.is_folder(name):
                if ours.fullmatch(path + "/"):
                    with self.inner(name) as folder:
                        folder.remove_matching(ours, below=path + "/")
                    with suppress(OSError):  # foreign files are in it
                        self.rmdir(name)
            elif ours.fullmatch(path):
                self.unlink(name)

    @contextmanager
    def inner(self, name: str) -> Iterator[Folder]:
        """Open a folder in this one for the block, without following a link."""
        path = self.path / name
        if sys.platform == "win32":
            if not self.is_folder(name):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path))
            yield Folder(path, None)
            return
        descriptor = os.open(name, _OPEN, dir_fd=self.descriptor)
        try:
            yield Folder(path, descriptor)
        finally:
            with suppress(OSError):  # nothing was written
                os.close(descriptor)

    def drop_temporaries(self, files: str, older_than: float) -> None:
        """Remove files that a crash of ``files.replace_file`` left, as far as possible.

        ``files`` is a regular expression for the names that were being replaced. ``older_than``
        is in seconds since the epoch; infinity means all.
        """
        temporary = temporaries(files)
        with suppress(OSError):
            for name in self.names():
                ours = temporary.fullmatch(name) and self.is_file(name)
                if ours and self.status(name).st_mtime < older_than:
                    self.unlink(name)

    def _at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)


def temporaries(files: str) -> re.Pattern[str]:
    """Make the pattern of the names under which ``files.replace_file`` first writes."""
    return re.compile(rf"\.(?:{files})\.[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}")


@contextmanager
def opened(base: Path, *parts: str) -> Iterator[Folder | None]:
    """Open the folder ``base``/``parts`` for the block; None if it does not exist.

    The way to ``base`` may contain links, ``parts`` may not. Raises CorruptStore if a part is a
    link or not a folder, UnsafeLocation if another user owns it, StoreError.
    """
    path = base
    found: Folder | None = None
    with ExitStack() as stack:
        with disk_errors(f"opening the folder {path.joinpath(*parts).name}", base):
            try:
                folder = stack.enter_context(_outermost(base))
                require_trusted_owner(base, folder.own_status())
                for part in parts:
                    path = folder.path / part
                    # Each step opens its folder below the descriptor of the one before: a rename
                    # on the way cannot lead us elsewhere.
                    folder = stack.enter_context(folder.inner(part))
                    require_trusted_owner(path, folder.own_status())
                found = folder
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in _NO_FOLDER:
                    raise
                raise _no_folder(path, base) from error
        yield found


def _no_folder(path: Path, base: Path) -> CorruptStore:
    """Make the error for a link or a file in the place of a folder below ``base``."""
    linked = os.path.islink(path)
    hint = f"to use a larger disk, make {base} itself a link, or set TSUKU_HOME to a folder there"
    return CorruptStore(
        f"{path.name} is not a folder" + (" but a link, which is not followed" if linked else ""),
        facts=(f"path: {path}",),
        hint=f"move that path away; {hint}" if linked else "move that path away, then run it again",
    )


@contextmanager
def _outermost(base: Path) -> Iterator[Folder]:
    """Open a folder that may be a link; the data folder may be one."""
    if sys.platform == "win32":
        base.stat()
        yield Folder(base, None)
        return
    descriptor = os.open(base, _OPEN & ~os.O_NOFOLLOW)
    try:
        yield Folder(base, descriptor)
    finally:
        with suppress(OSError):  # nothing was written
            os.close(descriptor)
