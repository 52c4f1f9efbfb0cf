"""The Python half of turns.c: it stops the program after each call that may change a disk.

strace can inject a SIGSTOP into every call, but that misses some calls. Such a stop is one of the
whole process, and the SIGCONT that ends it discards the SIGSTOP that another thread has pending: of
the 374 calls of an update, which downloads and hashes in threads, three were never looked at. Also,
strace's output is meant for people. With ptrace the kernel holds each thread separately before and
after its call, and no signal is sent.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from support.builds import compile_program
from support.waiting import PROMPTLY, Standstill, comes, seen

SILENCE = 120.0
"""Seconds without such a call after which the program hangs: commands make hundreds a second."""


def build_turns(folder: Path) -> Path:
    """Compile the helper into a folder; skip if there is no compiler."""
    return compile_program(folder / "turns", Path(__file__).with_name("turns.c"))


@contextlib.contextmanager
def taking_turns(
    turns: Path, pid: int, disk: Path, silence: float = SILENCE
) -> Iterator[Iterator[str]]:
    """Yield an iterator over the calls of a process and its children that may change a disk.

    The disk is the one of the folder ``disk``. Each call that has ended comes as a text such as
    ``31 fsync 0`` (thread, name, result). Until the next text is asked for, no such call is under
    way. The process must have one thread at first. Any process that is left when the block ends is
    killed.

    Raises ``Standstill`` if no call came for ``silence`` seconds while a process is left. Skips if
    processes cannot be traced.
    """
    command = [str(turns), str(pid), str(disk)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        try:
            if not comes(_told(tracer), PROMPTLY):
                raise Standstill(f"process {pid} cannot be attached to: {seen(pid)}")
            if not _told(tracer).readline():
                pytest.skip("processes cannot be traced here")
            yield _calls(tracer, pid, silence)
        finally:
            # The kernel then kills the traced processes as well (PTRACE_O_EXITKILL).
            tracer.kill()


def _calls(tracer: subprocess.Popen[bytes], pid: int, silence: float) -> Iterator[str]:
    call = "the beginning"
    while comes(_told(tracer), silence):
        call = _told(tracer).readline().decode().strip()
        if not call:
            return
        yield call
        assert tracer.stdin  # noqa: S101  # asked for above
        # The answer lets the held thread go on: the caller has finished looking at the disk.
        tracer.stdin.write(b"\n")
        tracer.stdin.flush()
    raise Standstill(f"no call for {silence:.0f} s after {call}: {seen(pid)}")


def _told(tracer: subprocess.Popen[bytes]) -> IO[bytes]:
    """Return the pipe for its lines; it waits for an answer to each, so no line is read ahead."""
    assert tracer.stdout  # noqa: S101  # asked for above
    return tracer.stdout
