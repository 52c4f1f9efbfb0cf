"""This machine, as a ``Host``.

Drivers take longer to answer than the rest of the program takes to load, so they are asked first
(see ``steps.prefetch``). This module therefore imports only what a child's start needs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys

from tsuku_llm.ground.foreign import kernel_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tsuku_llm.ground.processes.driver_child import (
        Asking,
        Child,
        DriverAnswer,
        Tell,
    )
Raw = str | int | None


class ChildProgram:
    """What a child runs: ``module`` of ``folder``, alone, without site-packages.

    ``module`` must have ``main(root, limit, questions)`` and speak as ``driver_child`` describes.
    ``environment`` turns this process's environment into the child's. Its other arguments are a
    private folder that lives as long as the question (None if none can be made), and the prefix of
    every path ("" on a real machine).
    """

    __slots__ = ("environment", "folder", "module")

    def __init__(
        self,
        folder: str | Path,
        module: str,
        environment: Callable[[Mapping[str, str], str | None, str], Mapping[str, str]],
    ) -> None:
        self.folder = folder
        self.module = module
        self.environment = environment


READ_LIMIT = 65536


class LocalHost:
    """This machine. ``root`` prefixes every path, ``environ`` replaces the environment.

    ``tell`` is called for each question that is slow while its answer is waited for.
    """

    name = None

    def __init__(
        self,
        root: Path | None = None,
        environ: Mapping[str, str] | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._tell = tell
        self._root = "" if root is None else str(root)
        self._environ = dict(os.environ if environ is None else environ)

    def system(self) -> Mapping[str, Raw]:
        """Answer as ``Host`` describes, without the node name, which would identify a machine."""
        bits = 64 if sys.maxsize > 1 << 32 else 32
        libc = None
        if sys.platform == "linux":
            # The C library that this interpreter runs on, such as "glibc 2.36".
            with contextlib.suppress(OSError, ValueError):
                libc = os.confstr("CS_GNU_LIBC_VERSION")
        return {"os": sys.platform, "libc": libc, "bits": bits, **_kernel()}

    def read_text(self, path: str) -> str | None:
        """Answer as ``Host`` describes."""
        try:
            return kernel_text(self._root + path, READ_LIMIT)
        except (OSError, ValueError):
            return None

    def list_dir(self, path: str) -> tuple[str, ...] | None:
        """Answer as ``Host`` describes."""
        try:
            return tuple(sorted(os.listdir(self._root + path)))
        except (OSError, ValueError):
            return None

    def access(self, path: str) -> str | None:
        """Answer as ``Host`` describes."""
        path = self._root + path
        try:
            os.lstat(path)
        except PermissionError:
            # SELinux refuses even the status of a device that a container was given (podman#15930).
            folder, name = os.path.split(path)
            with contextlib.suppress(OSError):
                if name in os.listdir(folder):
                    return "rw EACCES"
            return None
        except (OSError, ValueError):
            return None
        modes = (("r", os.R_OK), ("w", os.W_OK))
        rights = "".join(letter for letter, mode in modes if os.access(path, mode))
        # What opens a socket or a named pipe may wait for the other end.
        try:
            status = os.stat(path)
        except OSError:
            return rights
        return _opened(path, status, rights) if stat.S_ISCHR(status.st_mode) else rights

    def lacks(self, path: str) -> bool:
        """Answer as ``Host`` describes."""
        return self.access(path) is None

    def environment(self, name: str) -> str | None:
        """Answer as ``Host`` describes."""
        return self._environ.get(name)

    def ask(self, program: ChildProgram, questions: Sequence[str], limit: float) -> Asking:
        """Ask as ``Host`` describes: the child starts at once, and a thread listens to it."""
        scratch = _scratch_folder(self._environ)
        environ = program.environment(self._environ, scratch, self._root)
        # Isolated and without site-packages: no file of the user can change what the child runs.
        command = [sys.executable, "-I", "-S", "-E", "-c", _START, str(program.folder)]
        command += [program.module, self._root, str(limit)]
        start = functools.partial(_start, command, environ, scratch)
        first = None
        if questions:
            with contextlib.suppress(OSError):  # Child starts it again and reports that it fails
                first = start(questions)
        try:
            # Import these only now: the child starts in the meantime.
            from tsuku_llm.ground.processes.driver_child import Asking, Child

            child = Child(start, limit, first)
            return Asking(child, functools.partial(_ask_in, scratch, child, questions), self._tell)
        except BaseException:
            # An interrupt, before anybody else knows of the child: it may hang in a driver already.
            from tsuku_llm.ground.processes.driver_child import Child

            Child(start, limit, first).cancel()
            if scratch:
                _remove(scratch)
            raise


def _opened(path: str, status: os.stat_result, rights: str) -> str:
    """Open a device node; where that fails, return the rights and the name of the error.

    access(2) says nothing of AppArmor, of a file system that is mounted with nodev, or of a node
    that no driver is behind.
    """
    import errno

    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        # SELinux and device rules also refuse access(2). So here the file's own rights count, too.
        allowed = "".join(
            letter for letter, bit in (("r", 4), ("w", 2)) if letter in rights or _may(status, bit)
        )
        name = errno.errorcode.get(error.errno or 0, "EIO")
        if error.errno == errno.EACCES and os.statvfs(path).f_flag & os.ST_NODEV:
            name = "nodev"
        return f"{allowed} {name}"
    return "rw"


def _may(status: os.stat_result, bit: int) -> bool:
    """Tell whether owner, group and mode of a file let this process read (4) or write (2) it."""
    if sys.platform == "win32":
        return False
    member = status.st_gid in (os.getegid(), *os.getgroups())
    whose = 6 if status.st_uid == os.geteuid() else 3 if member else 0
    return bool(status.st_mode & bit << whose)


_START = (
    "import importlib, sys; sys.path.append(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main(sys.argv[3], float(sys.argv[4]), sys.argv[5:])"
)


def _scratch_folder(environ: Mapping[str, str]) -> str | None:
    """Make a private folder; return None if no folder for temporary files can be written.

    ``tempfile`` has the same list of places, but takes longer to import than the question. Unlike
    it, this leaves out the current folder: a command must not write into the user's project.
    """
    named = (environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    # A container with a read-only root may have only the last two, in memory.
    usual = ("/tmp", "/var/tmp", environ.get("XDG_RUNTIME_DIR"), "/dev/shm")  # noqa: S108 - made with a name of its own
    name = f"tsuku-llm-{os.urandom(12).hex()}"
    for folder in (*named, *usual):
        # A relative path would depend on the current folder.
        if folder and os.path.isabs(folder):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # missing, read-only or full: try the next one
                os.mkdir(path, 0o700)
                return path
    return None


def _start(
    command: Sequence[str],
    environ: Mapping[str, str],
    scratch: str | None,
    questions: Sequence[str],
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, so that it can be killed with every process it started."""
    import subprocess

    from tsuku_llm.ground.processes import children

    return children.start(
        [*command, *questions],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # the child keeps it and gives drivers another stdout
        stderr=subprocess.DEVNULL,
        # Drivers may write core files and logs where they run. Without a folder of ours, the root
        # folder is there on every system, and only the superuser can write to it.
        cwd=scratch or children.ROOT,
        env=environ,
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def _ask_in(scratch: str | None, child: Child, questions: Sequence[str]) -> dict[str, DriverAnswer]:
    try:
        return child.ask_all(questions)
    finally:
        # The last child has ended or was left behind; no other process uses the folder.
        if scratch:
            _remove(scratch)


def _remove(scratch: str) -> None:
    try:
        for name in os.listdir(scratch):
            os.unlink(f"{scratch}/{name}")
        os.rmdir(scratch)
    except OSError:
        import shutil

        with contextlib.suppress(OSError):  # ignore_errors does not cover everything in it
            shutil.rmtree(scratch, ignore_errors=True)


def _kernel() -> Mapping[str, Raw]:
    if sys.platform == "win32":
        version = sys.getwindowsversion()
        release = f"{version.major}.{version.minor}.{version.build}"
        return {"machine": _windows_machine(), "release": release}
    names = os.uname()
    # An x86 process on an Apple processor sees x86_64 and a kernel of RELEASE_ARM64.
    translated = sys.platform == "darwin" and "ARM64" in names.version
    return {"machine": "arm64" if translated else names.machine, "release": names.release}


def _windows_machine() -> str | None:
    """Return the system's own architecture, which Windows hides from emulated processes."""
    if sys.platform != "win32":
        return None
    import ctypes

    process, native = ctypes.c_ushort(), ctypes.c_ushort()
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    current = ctypes.c_void_p(kernel.GetCurrentProcess())
    if kernel.IsWow64Process2(current, ctypes.byref(process), ctypes.byref(native)):
        return {0x8664: "AMD64", 0xAA64: "ARM64"}.get(native.value, f"{native.value:#x}")
    return os.environ.get("PROCESSOR_ARCHITECTURE")
