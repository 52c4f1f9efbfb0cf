"""The child's main function: it answers one question after another and exits without clean-up."""

from __future__ import annotations

import _thread
import faulthandler
import importlib
import os
import sys

from . import search
from .protocol import Channel

if sys.platform == "win32":
    import msvcrt
else:
    import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

THREADS = 8  # more than CUDA's and Vulkan's drivers start; the server needs more than that
OLDEST, NEWEST = 9, 19  # minor versions of Python 3 that run this package
STARTED_AGAIN = "TSUKU_LLM_STARTED_AGAIN"
END_AFTER = 2.0  # seconds beyond the parent's limit: the parent should end the child first


def main(root: str, limit: float, questions: Sequence[str]) -> None:
    """Answer each question through its module, on the pipe that stdout was.

    ``limit`` is in seconds per question. If the parent was killed and a driver hangs, the child
    ends itself ``END_AFTER`` seconds later.
    """
    if python := system_python(root):
        again = [python, *sys.orig_argv[1:]]
        os.execve(python, again, {**os.environ, STARTED_AGAIN: "1"})  # noqa: S606 - no shell
    pipe = _take_stdout()
    _die_quietly()
    greeting = Channel(pipe, None)
    try:
        # Without threads drivers fail as well, each in its own way: some abort. Say so before the
        # first one, so that no driver is blamed.
        _require_threads()
        _watch(limit)
    except RuntimeError:
        greeting.greet(lacking="thread")
        os._exit(1)
    greeting.greet()
    for question in questions:
        channel = Channel(pipe, question, root)
        channel.before(question)
        _watch(limit)
        module, _, names = question.partition(":")
        try:
            ask = importlib.import_module(f".questions.{module}", __package__).ask
            ask(channel, root, *filter(None, names.split(",")))
        except Exception as error:  # noqa: BLE001 - the next question must still be asked
            channel.answer("error", error=f"{type(error).__name__}: {error}")
        channel.end()
    os._exit(0)  # skip the drivers' own destructors, which may crash, too


def system_python(root: str) -> str | None:
    """Return the system's Python, if this one was started by another loader than the system's.

    Another loader (Nix, Guix, Homebrew, musl beside glibc) does not read the system's cache, so
    drivers do not find their libraries through it. None if this Python will do, or is the only one.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            mapped = file.read()
    except OSError:  # also on systems without it
        return None
    loaders = [root + path for path in search.LOADERS.get(search.MACHINE, ())]
    loaders = [os.path.realpath(path) for path in loaders if os.path.exists(path)]
    # The variable ends it, should the one that is found have another loader, too.
    if STARTED_AGAIN in os.environ or not loaders or any(path in mapped for path in loaders):
        return None
    for minor in range(NEWEST, OLDEST - 1, -1):
        path, modules = f"{root}/usr/bin/python3.{minor}", f"python3.{minor}/ctypes/__init__.py"
        whole = any(os.path.exists(f"{root}/usr/{lib}/{modules}") for lib in ("lib", "lib64"))
        if whole and os.access(path, os.X_OK):
            return path
    return None


def _require_threads() -> None:
    """Start as many threads as a driver may need, and end them. Raises ``RuntimeError``."""
    waiting = _thread.allocate_lock()

    def wait() -> None:
        with waiting:
            pass

    # They all wait for this lock, so that they exist at the same time.
    with waiting:
        for _ in range(THREADS):
            _thread.start_new_thread(wait, ())


def _watch(limit: float) -> None:
    """Restart the watchdog's time. Raises ``RuntimeError`` if no thread can be started.

    It is a thread in C: it ends the process even while a driver holds the GIL in a hung call.
    """
    faulthandler.dump_traceback_later(limit + END_AFTER, exit=True, file=2)


def _take_stdout() -> int:
    """Duplicate the pipe and point stdout to the null device, because drivers print to stdout."""
    pipe = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return pipe


def _die_quietly() -> None:
    """Turn off core files and crash windows."""
    if sys.platform == "win32":
        msvcrt.SetErrorMode(msvcrt.SEM_FAILCRITICALERRORS | msvcrt.SEM_NOGPFAULTERRORBOX)
    else:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
