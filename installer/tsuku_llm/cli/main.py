"""The entry point of the process: it sets up the interpreter, then imports the rest."""

from __future__ import annotations

import gc
import os
import sys

from tsuku_llm.cli.table import COMPLETE
from tsuku_llm.ground.processes.search_paths import drop_relative

TYPE_CHECKING = False  # as in typing, which takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code."""
    run_process(_run)


def run_process(run: Callable[[], int]) -> None:
    """Run a program of ours that imports its modules in ``run``, and exit with its code."""
    gc.set_threshold(200_000)  # imports make no garbage: collect less often
    _open_closed_streams()
    # Some libraries start programs by themselves: click a shell, ansible-runner its programs. Here,
    # for our own commands alone, and not for an application that imports this package.
    drop_relative(os.environ)
    try:
        code = run()
    except KeyboardInterrupt:  # during the imports
        code = 130
    gc.freeze()  # else the interpreter collects everything at exit
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open /dev/null as each of the descriptors 0, 1 and 2 that was closed before the start.

    A file that is opened later would get such a number. The server's output, which goes to 1 and 2,
    would then be written into a lock or a record. ``sys.stdout`` and ``sys.stderr`` stay None.
    """
    # In this order: the system gives each new file the lowest free number.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            # The server inherits it: otherwise its own first file would get this number.
            os.set_inheritable(opened, True)


def _print_version() -> bool:
    """Print the version; return False for ``run`` if stdout is a terminal, or does not work."""
    from tsuku_llm import __version__

    try:
        if sys.stdout.isatty():
            return False
        sys.stdout.write(f"tsuku-llm {__version__}\n")
        sys.stdout.flush()
    except (OSError, AttributeError):  # a full disk, a broken pipe, or closed before the start
        return False
    return True


def _run() -> int:
    # Scripts ask for the version often, and click takes longer to import than all of this. A
    # person at a terminal is also told how this copy was installed, which takes longer still.
    if COMPLETE in os.environ:
        from tsuku_llm.cli.completion import answer

        answer(os.environ[COMPLETE])
        return 0
    if sys.argv[1:] == ["--version"] and _print_version():
        return 0
    from tsuku_llm.cli.entry import run

    return run(sys.argv[1:])
