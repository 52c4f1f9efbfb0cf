"""A copy of a Python environment's packages that is changed, and then takes their place at once.

pip removes a package before it installs the next one, so a kill in between would leave none. Here
pip works in a copy. One system call then exchanges the two folders: every process sees the old
packages or the new ones, and a kill at any time leaves a program that works.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import drop_tree, unique
from tsuku_llm.ground.foreign import read_text
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.store.locks import exclusive

_STAGE = ".tsuku-llm-update-"
_LOCK = ".tsuku-llm-update.lock"
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux's renameat2(2), and RENAME_SWAP of macOS' renamex_np(2)."""
_AT_FDCWD = -100


class StagedCopy(NamedTuple):
    """A copy of the packages of the environment ``prefix``, with a Python that uses it.

    ``folder`` is private and removed at the end; ``home`` is the copied environment in it.
    """

    prefix: Path
    folder: Path

    @property
    def home(self) -> Path:
        """The environment of the copy."""
        return self.folder / "env"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its packages."""
        return self.home / _packages(self.prefix).relative_to(self.prefix)

    def commit(self) -> None:
        """Exchange the packages of the environment for those of the copy.

        Raises ``StoreError``; then the environment is as before, but for new scripts.
        """
        with disk_errors("putting the new packages into their place", self.prefix):
            # Scripts and manual pages first: the old packages work with them, too.
            for path in sorted(self.home.rglob("*")):
                inside = path.relative_to(self.home)
                if path.is_dir() or inside.parts[0] not in ("bin", "share") or path == self.python:
                    continue
                if inside.parts[0] == "bin":
                    # Their first line names the copy's interpreter.
                    own, new = (os.fsencode(each) for each in (self.home, self.prefix))
                    path.write_bytes(path.read_bytes().replace(own, new))
                (self.prefix / inside).parent.mkdir(parents=True, exist_ok=True)
                path.replace(self.prefix / inside)
            # The rename must not reach the disk before the files.
            os.sync()
            exchange(self.packages, _packages(self.prefix))


@contextmanager
def staged_copy(timeout: float) -> Iterator[StagedCopy]:
    """Copy the packages of this process's environment for the block.

    Another process that does the same is waited for, for ``timeout`` seconds. Raises
    ``StoreError``, ``UnsafeLocation`` and ``LockTimeout``.
    """
    prefix = Path(sys.prefix)
    packages = _packages(prefix)
    check_path(packages, sticky=False)
    with ExitStack() as stack, disk_errors("copying the program's packages", prefix):
        stack.enter_context(exclusive(prefix / _LOCK, timeout=timeout))
        # What killed runs left; nobody else is at work here.
        for each in prefix.glob(f"{_STAGE}*"):
            drop_tree(each)
        # A name of its own: a pip that outlived a killed run may still write into the other one.
        staged = StagedCopy(prefix, prefix / f"{_STAGE}{unique()}")
        staged.folder.mkdir(0o700)
        stack.callback(drop_tree, staged.folder)
        staged.python.parent.mkdir(parents=True)
        staged.python.symlink_to(getattr(sys, "_base_executable", sys.executable))
        (staged.home / "pyvenv.cfg").write_text(_settings(prefix), "utf-8")
        staged.packages.parent.mkdir(parents=True)
        if (prefix / "lib64").is_symlink():  # Python may look for compiled packages there
            (staged.home / "lib64").symlink_to("lib")
        shutil.copytree(packages, staged.packages, symlinks=True, copy_function=_link)
        yield staged


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders of one file system. Raises ``OSError``.

    It is one step where the system can do that, which Linux (3.15) and macOS can on usual file
    systems. Elsewhere it is two renames.
    """
    system = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        failed = system.renamex_np(*paths, ctypes.c_uint(_EXCHANGE))
    elif hasattr(system, "renameat2"):
        at = ctypes.c_int(_AT_FDCWD)
        failed = system.renameat2(at, paths[0], at, paths[1], ctypes.c_uint(_EXCHANGE))
    else:  # musl before 1.2.6
        failed = -1
        ctypes.set_errno(errno.ENOSYS)
    if not failed:
        return
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        raise OSError(number, os.strerror(number), str(other))
    aside = one.with_name(f"{one.name}.old")
    other.rename(aside)
    try:
        one.rename(other)
    except OSError:
        aside.rename(other)
        raise
    aside.rename(one)


def _packages(prefix: Path) -> Path:
    """Return the folder of an environment's packages. Raises ``StoreError`` for two of them."""
    found = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    if len({each.resolve() for each in found}) > 1:
        raise StoreError(
            "this environment cannot be updated",
            facts=(f"it has two folders of packages, in {prefix}",),
            hint="make a new environment, and install tsuku-llm there",
        )
    return Path(sysconfig.get_path("purelib"))


def _settings(prefix: Path) -> str:
    """Return a ``pyvenv.cfg`` like that of the environment; conda's environments have none."""
    with suppress(OSError):
        return read_text(prefix / "pyvenv.cfg")
    return f"home = {Path(sys.executable).parent}\ninclude-system-site-packages = false\n"


def _link(source: str, target: str) -> str:
    """Give a file a second name: pip replaces files, and writes into none. Else copy it."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target
