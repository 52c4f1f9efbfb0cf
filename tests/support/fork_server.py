"""A server that forks the program thousands of times without repeating its imports.

``python -m support.fork_server DESCRIPTOR`` imports the program and waits on a socket. Each
order comes with three descriptors (stdout, stderr, and one for the answers). For each order the
server forks a keeper. The keeper forks the program, waits for it, and reports how it ended. The
child prepares itself, reports its process id, and waits to be released by a signal, in a system
call into which no fault is injected. Then it runs the program's entry point and ends as an
interpreter ends. Only finding and reading modules is skipped; ``tests/project/test_start_up.py``
is about that.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

import tsuku_llm

RELEASE = signal.SIGUSR1
_PATIENCE = 600.0
"""Seconds after which a child that was not released gives up."""

_LARGEST_ORDER = 1 << 18
_MAIN = os.path.join(tsuku_llm.__path__[0], "__main__.py")  # noqa: PTH118 - sys.argv has strings
_NEVER = ("tsuku_llm.__main__", "tsuku_llm.probe.worker")
_FOREIGN = (
    *("httpx", "tuf.api.metadata", "tuf.api.serialization.json", "filelock"),
    *("truststore", "tomli", "tomlkit", "encodings.idna", "encodings.utf_8_sig", "_strptime"),
)


def main(descriptor: int) -> int:
    """Serve orders until the other end closes its socket; in the forked child, be the program."""
    _import_all(module.name for module in pkgutil.walk_packages(tsuku_llm.__path__, "tsuku_llm."))
    _import_all(_FOREIGN)
    # The collector must not touch shared pages: that would copy them in every child.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the keepers: no zombies
    with socket.socket(fileno=descriptor) as channel:
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_ORDER, 3)
            if not message:
                return 0
            # Only the main thread exists: no lock can be held in the copy.
            if os.fork() == 0:
                break
            # The keeper has its own copies. An open one here would keep the reader from seeing the
            # end.
            for each in descriptors:
                os.close(each)
    # In the keeper: with SIGCHLD ignored, wait4 could not report how the program ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return _keep(json.loads(message), descriptors)


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        if not name.startswith(_NEVER):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _keep(order: dict[str, Any], descriptors: list[int]) -> int:
    stdout, stderr, answer = descriptors
    # Block the signal before the fork: one that comes before the child waits for it stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELEASE})
    child = os.fork()
    if child == 0:
        return _be_the_program(order, stdout, stderr, answer)
    for each in (stdout, stderr):
        os.close(each)
    _, status, usage = os.wait4(child, 0)
    os.write(answer, b"%d %d\n" % (os.waitstatus_to_exitcode(status), usage.ru_maxrss))
    os._exit(0)


def _be_the_program(order: dict[str, Any], stdout: int, stderr: int, answer: int) -> int:
    # A new session: signals of the terminal do not reach the program.
    os.setsid()
    for source, target in ((stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    os.umask(order["umask"])
    # As after ``python -m tsuku_llm``: the program starts itself again from these.
    sys.argv = [_MAIN, *order["argv"]]
    sys.orig_argv = [sys.executable, "-m", "tsuku_llm", *order["argv"]]
    from tsuku_llm.cli.main import main as program  # noqa: PLC0415

    # Last: who reads this attaches a tracer, and none of the calls above are the program's. Two
    # processes write a line each into this pipe: a few bytes, which is atomic.
    os.write(answer, b"%d\n" % os.getpid())
    os.close(answer)
    if not signal.sigtimedwait({RELEASE}, _PATIENCE):
        return 1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {RELEASE})
    try:
        program()
    except SystemExit as end:
        _end(end.code)
        raise
    return 0


def _end(code: Any) -> None:
    """End as an interpreter ends, except that the system takes the memory back.

    To free every object of a forked child copies nearly all pages first: a third of a short run.
    Returns without ending if a message is to be printed, or a stream cannot be written.
    """
    if type(code) is not int:
        return
    threading._shutdown()  # type: ignore[attr-defined]  # waits for them
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
