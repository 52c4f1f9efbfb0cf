"""Become a server: all that ``serve --exec`` needs of running one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress

from tsuku_llm.launch.planning import Plan


def replace(plan: Plan, *, keep: Collection[int] = ()) -> int:
    """Become the server, which keeps the descriptors in ``keep``, and so never return.

    On Windows exec gives the terminal back at once: there the server is waited for, and
    its exit code returned. Raises LaunchError where it cannot be started.
    """
    if sys.platform == "win32":
        from tsuku_llm.launch.run import supervise  # noqa: PLC0415 - elsewhere nobody is left to

        return supervise(plan, keep=keep)
    flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and exec would keep that
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        for descriptor in keep:
            os.set_inheritable(descriptor, True)  # noqa: FBT003
        os.chdir(plan.cwd)
        os.execve(plan.argv[0], plan.argv, plan.env)  # noqa: S606
    except OSError as exc:
        from tsuku_llm.launch.failure import refuse  # noqa: PLC0415 - only then

        refuse(plan, exc)


def flush() -> None:
    """Send off what we printed, so that the server's output comes after it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
