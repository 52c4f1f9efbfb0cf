"""The replacement of this process by the server, for ``serve --exec``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress

from tsuku_llm.launch.planning import LaunchPlan


def replace_process(plan: LaunchPlan, *, keep: Collection[int] = ()) -> int:
    """Replace this process by the server; do not return, except on Windows.

    The server keeps the descriptors in ``keep``. On Windows exec returns the terminal to the
    shell at once: there, wait for the server and return its exit code. Raises LaunchError if
    the server cannot be started.
    """
    if sys.platform == "win32":
        from tsuku_llm.launch.supervise import supervise  # noqa: PLC0415 - elsewhere nobody is left to

        return supervise(plan, keep=keep)
    flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and exec would keep that
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        for descriptor in keep:
            # Python opens files close-on-exec. This keeps, for example, a version's lock held.
            os.set_inheritable(descriptor, True)  # noqa: FBT003
        os.chdir(plan.cwd)
        os.execve(plan.argv[0], plan.argv, plan.env)  # noqa: S606
    except OSError as exc:
        from tsuku_llm.launch.failure import refuse  # noqa: PLC0415 - only then

        refuse(plan, exc)


def flush() -> None:
    """Flush what we printed, so that the server's output comes after it."""
    for stream in (sys.stdout, sys.stderr):
        # A closed terminal or a full disk must not prevent the start.
        with suppress(OSError):
            stream.flush()
