"""The child's main function: one question after another, then out without clean-up."""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys

from .channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

END_AFTER = 2.0  # seconds more than the parent waits, which has the first word


def main(root: str, limit: float, questions: Sequence[str]) -> None:
    """Answer each question through its module, on the pipe that stdout was.

    A child that hangs and whose parent was killed ends by itself.
    """
    pipe = _take_stdout()
    _die_quietly()
    Channel(pipe, None).greet()
    for question in questions:
        channel = Channel(pipe, question)
        channel.before(question)
        faulthandler.dump_traceback_later(limit + END_AFTER, exit=True, file=2)
        try:
            importlib.import_module(f".{question}", __package__).ask(channel, root)
        except Exception as error:  # noqa: BLE001 - the next question must still be asked
            channel.answer("error", error=f"{type(error).__name__}: {error}")
        channel.end()
    os._exit(0)  # the drivers' own destructors crash, too


def _take_stdout() -> int:
    """Keep the pipe for ourselves: drivers print to stdout."""
    pipe = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return pipe


def _die_quietly() -> None:
    """No core files and no crash windows."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415

        msvcrt.SetErrorMode(msvcrt.SEM_FAILCRITICALERRORS | msvcrt.SEM_NOGPFAULTERRORBOX)
    else:
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
