"""The system's limits on processes, threads, files, memory and dates: which was reached.

Source of the numbers: getrlimit(2), fork(2), and the kernel's description of cgroup v2
(``pids.max``).
"""

from __future__ import annotations

import errno
import sys
import time

from tsuku_llm.ground.errors import SystemLimitReached
from tsuku_llm.ground.foreign import kernel_text

_NO_THREAD = "can't start new thread"
"""How Python words the error, which is a plain ``RuntimeError``."""
_PIDS = "/sys/fs/cgroup/pids.max"
_FIXES = {
    "open files": "raise the limit: ulimit -n 4096",
    "processes or threads": "raise the limit: ulimit -u 4096; of a container: --pids-limit 4096; "
    "of a systemd unit: TasksMax=4096",
    "larger": "raise the limit: ulimit -f unlimited",
    "clock": "set this machine's clock",
    "memory": "end other programs, or raise the limit on memory",
}


def reached(error: BaseException) -> str | None:
    """Say which limit of the system an error shows; None if it shows none."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return _told("there is not enough memory", ("ulimit -v, in bytes", _own("RLIMIT_AS")))
    threads = isinstance(error, RuntimeError) and str(error).startswith(_NO_THREAD)
    if threads or number == errno.EAGAIN:
        # Both limits count threads too. Which one was reached is not told, so name both.
        both = (("ulimit -u", _own("RLIMIT_NPROC")), (_PIDS, _of_cgroup()))
        return _told("no more processes or threads are allowed", *both)
    if number == errno.EMFILE:
        limit = ("ulimit -n", _own("RLIMIT_NOFILE"))
        return _told("this process has too many open files", limit)
    if isinstance(error, OverflowError) and not _has_a_date():
        return "this machine's clock says a year after 2262, which no program in Python can read"
    if number == errno.EFBIG and (most := _own("RLIMIT_FSIZE")) is not None:
        return _told("no file of this process may become larger", ("ulimit -f, in bytes", most))
    whole = "the whole system has too many open files (fs.file-max)"
    return whole if number == errno.ENFILE else None


def refuse(error: BaseException, doing: str) -> None:
    """Raise ``SystemLimitReached`` if an error shows a limit of the system.

    ``doing`` completes "while ...".
    """
    limit = reached(error)
    if limit:
        facts = (f"{error}, while {doing}",)
        raise SystemLimitReached(limit, facts=facts, hint=fix_of(limit) or "") from error


def fix_of(text: str) -> str | None:
    """Return how to change the limit that a text of ``reached`` names, also a recorded one."""
    return next((fix for words, fix in _FIXES.items() if words in text), None)


def _told(text: str, *limits: tuple[str, int | None]) -> str:
    """Add the values of the limits that are known."""
    known = ", ".join(f"{name}: {value}" for name, value in limits if value is not None)
    return f"{text} ({known})" if known else text


def _has_a_date() -> bool:
    """Tell whether Python can read this machine's clock: it counts nanoseconds in 64 bits."""
    try:
        time.time()
    except OverflowError:
        return False
    return True


def _own(name: str) -> int | None:
    """Return this process's soft limit; None if it is unlimited or unknown."""
    if sys.platform == "win32":
        return None
    try:
        import resource
    except ImportError:  # it is a file, too, which cannot be opened when too many are open
        return None
    number = resource.getrlimit(getattr(resource, name))[0]
    return None if number == resource.RLIM_INFINITY else number


def _of_cgroup() -> int | None:
    try:
        # In a container its own cgroup is mounted here. This may need a file that cannot be
        # opened any more: then the limit stays unknown.
        text = kernel_text(_PIDS, 32).strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
