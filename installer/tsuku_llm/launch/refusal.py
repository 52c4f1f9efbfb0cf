"""Why the system would not start a server at all."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tsuku_llm.errors import LaunchError
from tsuku_llm.launch.diagnosis import Diagnosis
from tsuku_llm.launch.planning import Plan


def refuse(plan: Plan, error: OSError) -> NoReturn:
    """Raise LaunchError with what the system's refusal means."""
    diagnosis = why_not_started(error, Path(plan.argv[0]))
    raise LaunchError(
        f"the server cannot be started: {diagnosis.cause}",
        facts=(str(error),),
        hint=diagnosis.hint(plan.backend),
    ) from error


def why_not_started(error: OSError, executable: Path) -> Diagnosis:
    """Explain why the system refused to start ``executable``."""
    if error.errno == errno.EACCES:
        return _NOEXEC if _on_noexec(executable) else _NOT_EXECUTABLE
    if error.errno == errno.ENOENT:
        return _NO_INTERPRETER if executable.exists() else _NO_SERVER
    if error.errno == errno.ENOEXEC or getattr(error, "winerror", None) in _BAD_IMAGE:
        return _WRONG_ARCHITECTURE
    cause = f"the system refused to start it: {error.strerror or error}"
    return Diagnosis("refused", cause, "see the system's log")


def _on_noexec(executable: Path) -> bool:
    if sys.platform != "linux":
        return False
    with suppress(OSError):
        return bool(os.statvfs(executable).f_flag & os.ST_NOEXEC)
    return False


_BAD_IMAGE = (193, 216)
"""ERROR_BAD_EXE_FORMAT, ERROR_EXE_MACHINE_TYPE_MISMATCH."""

_NOEXEC = Diagnosis(
    "noexec",
    "it lies on a file system that is mounted noexec",
    "move the store to a file system mounted without noexec (TSUKU_HOME)",
)
_NOT_EXECUTABLE = Diagnosis(
    "not-executable",
    "the system does not allow this user to run it",
    "check the permissions of the file and its folders, and the system's security policy",
)
_NO_SERVER = Diagnosis(
    "server-missing", "the file is not there", "install it again: tsuku-llm install --force"
)
_NO_INTERPRETER = Diagnosis(
    "musl",
    "the dynamic loader that it names is not on this system (another C library, such as musl, "
    "or another architecture)",
    "run it on a glibc distribution of the build's architecture",
)
_WRONG_ARCHITECTURE = Diagnosis(
    "wrong-architecture",
    "it is for another processor architecture, or damaged",
    "install the build for this machine: tsuku-llm install --force",
)
