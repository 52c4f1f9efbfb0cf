"""The one narrow door to the machine: raw answers, no knowledge of what they mean.

Every answer is made of JSON values, so that ``snapshot`` can record and replay it.
What may crash or hang (a driver library) is loaded by ``ask`` in a short-lived child.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tsuku_llm.child import ABSENT, Answer, Asking, Child

__all__ = ["ABSENT", "Answer", "Answers", "Host", "LocalHost", "Program", "Raw"]

Raw = str | int | None
Answers = Callable[[], Mapping[str, Answer]]


@dataclass(frozen=True, slots=True)
class Program:
    """What a child runs: ``module`` of ``folder``, alone, without site-packages.

    ``module`` must have ``main(root, limit, questions)`` and speak as ``child`` describes.
    ``environment`` turns this process's environment into the child's; its other
    arguments are a private folder that lives as long as the question, and the prefix of
    every path ("" on a real machine).
    """

    folder: Path
    module: str
    environment: Callable[[Mapping[str, str], str, str], Mapping[str, str]]


class Host(Protocol):
    """A machine that can be asked. Nothing here raises: what cannot be had is None."""

    @property
    def name(self) -> str | None:
        """The name of the recording, None for the real machine."""

    def system(self) -> Mapping[str, Raw]:
        """What the interpreter knows: ``os``, ``machine``, ``release``, ``libc``, ``bits``.

        ``machine`` is the processor's, also for a process that the system emulates.
        """

    def read_text(self, path: str) -> str | None:
        """The first 64 KiB of a file, what is not UTF-8 replaced."""

    def list_dir(self, path: str) -> tuple[str, ...] | None:
        """The sorted names in a folder."""

    def access(self, path: str) -> str | None:
        """What this user may do with a file: some of "rw"; None if it is not there."""

    def environment(self, name: str) -> str | None:
        """One variable of this process's environment."""

    def ask(self, program: Program, questions: Sequence[str], limit: float) -> Answers:
        """Begin to put the questions to a child; the result waits for the answers.

        A question that breaks the child costs ``limit`` seconds at most.
        """


READ_LIMIT = 65536


class LocalHost:
    """This machine. ``root`` prefixes every path, ``environ`` replaces the environment."""

    name = None

    def __init__(self, root: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._root = "" if root is None else str(root)
        self._environ = dict(os.environ if environ is None else environ)

    def system(self) -> Mapping[str, Raw]:
        """See ``Host``; without the node name, which would identify a machine."""
        bits = 64 if sys.maxsize > 1 << 32 else 32
        return {"os": sys.platform, "libc": _libc_of_python(), "bits": bits, **_kernel()}

    def read_text(self, path: str) -> str | None:
        """See ``Host``."""
        try:
            with open(self._root + path, "rb") as file:  # noqa: PTH123
                return file.read(READ_LIMIT).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None

    def list_dir(self, path: str) -> tuple[str, ...] | None:
        """See ``Host``."""
        try:
            return tuple(sorted(os.listdir(self._root + path)))  # noqa: PTH208
        except (OSError, ValueError):
            return None

    def access(self, path: str) -> str | None:
        """See ``Host``."""
        path = self._root + path
        if not os.path.lexists(path):
            return None
        modes = (("r", os.R_OK), ("w", os.W_OK))
        return "".join(letter for letter, mode in modes if os.access(path, mode))

    def environment(self, name: str) -> str | None:
        """See ``Host``."""
        return self._environ.get(name)

    def ask(self, program: Program, questions: Sequence[str], limit: float) -> Answers:
        """See ``Host``."""
        scratch = _scratch_path()
        environ = program.environment(self._environ, scratch, self._root)
        command = [sys.executable, "-I", "-S", "-E", "-c", _START, str(program.folder)]
        child = Child([*command, program.module, self._root, str(limit)], environ, limit)
        return Asking(child, functools.partial(_ask_in, scratch, child, questions)).wait


_START = (
    "import importlib, sys; sys.path.append(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main(sys.argv[3], float(sys.argv[4]), sys.argv[5:])"
)


def _scratch_path() -> str:
    """Where to make a private folder (``tempfile`` takes longer to import than to ask)."""
    folders = [os.environ.get(name) for name in ("TMPDIR", "TEMP")]
    folder = next((folder for folder in folders if folder), "/tmp")  # noqa: S108
    return os.path.join(folder, f"tsuku-llm-{os.urandom(12).hex()}")  # noqa: PTH118


def _ask_in(scratch: str, child: Child, questions: Sequence[str]) -> dict[str, Answer]:
    try:
        os.mkdir(scratch, 0o700)  # noqa: PTH102
    except OSError:
        return dict.fromkeys(questions, Answer(end="not-started"))
    try:
        return child.ask_all(questions, scratch)
    finally:
        _remove(scratch)


def _remove(scratch: str) -> None:
    try:
        os.rmdir(scratch)  # noqa: PTH106
    except OSError:
        import shutil  # noqa: PLC0415 - most drivers leave nothing

        shutil.rmtree(scratch, ignore_errors=True)


def _libc_of_python() -> str | None:
    """The C library that this interpreter runs on, such as "glibc 2.36"."""
    if sys.platform != "linux":
        return None
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        return None


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
    """The system's own architecture, which its environment hides from emulated processes."""
    if sys.platform != "win32":
        return None
    import ctypes  # noqa: PLC0415

    process, native = ctypes.c_ushort(), ctypes.c_ushort()
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    current = ctypes.c_void_p(kernel.GetCurrentProcess())
    if kernel.IsWow64Process2(current, ctypes.byref(process), ctypes.byref(native)):
        return {0x8664: "AMD64", 0xAA64: "ARM64"}.get(native.value, f"{native.value:#x}")
    return os.environ.get("PROCESSOR_ARCHITECTURE")
