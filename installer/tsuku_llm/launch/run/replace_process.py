"""The replacement of this process by a program, for ``serve --exec`` and ``run``.

A small module, as such a start loads it alone: no threads and no child processes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import NoReturn

from tsuku_llm.ground.processes.inherited import environment
from tsuku_llm.launch.plan.planning import LaunchPlan


def replace_process(plan: LaunchPlan, *, keep: Collection[int] = ()) -> NoReturn:
    """Replace this process by the program of ``plan``, which keeps the descriptors in ``keep``.

    Not for Windows, where exec returns the terminal to the shell at once. Raises LaunchError
    if the program cannot be started.
    """
    flush_output()
    # Python ignores these signals, and exec would keep that: give the program the defaults.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        for descriptor in keep:
            # Python opens files close-on-exec. This keeps, for example, a version's lock held:
            # the lock lives as long as the program, and no other process sees a gap.
            os.set_inheritable(descriptor, True)
        # The last step before the exec: if it fails, we are still in the user's folder.
        os.chdir(plan.cwd)
        os.execve(plan.argv[0], plan.argv, environment(plan.own_env))  # noqa: S606 - a list, without a shell
    except OSError as exc:
        # Nothing has run yet: the caller's locks and files are as before.
        from tsuku_llm.launch.failed.failure import refuse

        refuse(plan, exc)


def flush_output() -> None:
    """Flush what we printed, so that the program's output comes after it."""
    for stream in (sys.stdout, sys.stderr):
        # None: the descriptor was closed before this program started.
        if stream is None:
            continue
        # A closed terminal or a full disk must not prevent the start.
        with suppress(OSError):
            stream.flush()
