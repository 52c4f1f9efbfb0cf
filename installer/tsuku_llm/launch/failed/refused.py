"""Why the system refused to start the server, and what family of systems this is."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tsuku_llm.ground import system_limits
from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.launch.failed.diagnosis import Diagnosis
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.machine.packages import FOR_THIS_MACHINE, REINSTALL, family_of


def refuse(plan: LaunchPlan, error: OSError) -> NoReturn:
    """Raise LaunchError with the meaning of the system's error.

    Raises ``SystemLimitReached`` if a limit of the system is the reason.
    """
    system_limits.refuse(error, "starting the server")
    diagnosis = why_not_started(error, Path(plan.argv[0]))
    raise LaunchError(
        f"the server cannot be started: {diagnosis.cause}",
        facts=(str(error),),
        hint=diagnosis.hint(plan.backend, plan.reinstall, plan.takes),
    ) from error


def why_not_started(error: OSError, executable: Path) -> Diagnosis:
    """Explain why the system refused to start ``executable``."""
    # Python opens the null device and enters the folder for the server: the error names them.
    if os.path.exists(executable) and error.filename not in (None, str(executable)):
        cause = f"{error.filename} cannot be used: {error.strerror or error}"
        return Diagnosis("refused", cause, "check that it exists here", fault="system")
    # A noexec mount and a missing execute bit give the same error.
    if error.errno == errno.EACCES:
        return _NOEXEC if _on_noexec(executable) else _NOT_EXECUTABLE
    # Linux reports ENOENT also if only the loader that the executable names is missing.
    if error.errno == errno.ENOENT:
        return _NO_INTERPRETER if os.path.exists(executable) else _NO_SERVER
    if error.errno == errno.ENOEXEC or getattr(error, "winerror", None) in _BAD_IMAGE:
        return _WRONG_ARCHITECTURE
    cause = f"the system refused to start it: {error.strerror or error}"
    return Diagnosis("refused", cause, "see the system's log", fault="system")


def distribution() -> str:
    """Return the family of this system's package manager, or "" for an unknown one."""
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    for path in _RELEASE_FILES:
        with suppress(OSError):
            return family_of(system, kernel_text(path))
    return family_of(system)


def _on_noexec(executable: Path) -> bool:
    if sys.platform != "linux":
        return False
    with suppress(OSError):
        return bool(os.statvfs(executable).f_flag & os.ST_NOEXEC)
    return False


_RELEASE_FILES = ("/etc/os-release", "/usr/lib/os-release")

_BAD_IMAGE = (193, 216)
"""Windows' ERROR_BAD_EXE_FORMAT and ERROR_EXE_MACHINE_TYPE_MISMATCH."""

_NOEXEC = Diagnosis(
    "noexec",
    "it is on a file system that is mounted noexec",
    "move the store to a file system mounted without noexec (TSUKU_HOME)",
    fault="system",
)
_NOT_EXECUTABLE = Diagnosis(
    "not-executable",
    "the system does not allow this user to run it",
    "check the permissions of the file and its folders, and the system's security policy",
    fault="system",
)
_NO_SERVER = Diagnosis(
    "server-missing",
    "the file does not exist",
    REINSTALL,
    fault="system",
)
_NO_INTERPRETER = Diagnosis(
    "musl",
    "the dynamic loader that it names is not on this system (another C library, such as musl, "
    "or another architecture)",
    "run it on a glibc distribution of the build's architecture",
    fault="system",
)
_WRONG_ARCHITECTURE = Diagnosis(
    "wrong-architecture",
    "it is for another processor architecture, or damaged",
    FOR_THIS_MACHINE,
    fault="system",
)
