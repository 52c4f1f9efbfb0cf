"""Runs of the program through a fork server, if needed under strace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.fork_server import RELEASE
from support.tools import require_tool
from support.waiting import PROMPTLY, Standstill, comes, family, seen

RSS_LIMIT = 150 << 20
LIMIT = 600.0
"""Seconds for a run; the longest, with a server that sends slowly, takes 400 before it gives up."""

_TESTS = Path(__file__).parents[1]
_BUG = 1
_ATTACHED = "attached"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run: a negative code is a signal; ``rss`` is its peak in bytes.

    ``hung`` tells what a run that did not end, and was killed, was doing.
    """

    pid: int
    code: int
    stdout: str
    stderr: str
    rss: int
    hung: tuple[str, ...] = ()

    def wrong(self) -> list[str]:
        """Return what no run may do, whichever fault it met."""
        found = [*self.hung]
        if "Traceback" in self.stderr or self.code == _BUG:
            found.append(f"a traceback: {self.stderr[-4000:]!r}")
        errors = sum(line.startswith("error[") for line in self.stderr.splitlines())
        if self.code > 0 and errors != 1:
            found.append(f"{errors} errors told with exit code {self.code}: {self.stderr!r}")
        if self.rss > RSS_LIMIT:
            found.append(f"{self.rss >> 20} MiB of memory")
        return found


class Running:
    """A run that waits for ``release``; ``end`` waits for its end.

    It is in ``unended`` until then.
    """

    def __init__(
        self, send: socket.socket, order: Mapping[str, object], unended: set[Running]
    ) -> None:
        # Files in memory instead of pipes: a run may write any amount before it is read.
        self._streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
        answers, answer = os.pipe()
        socket.send_fds(send, [json.dumps(order).encode()], [*self._streams, answer])
        # The keeper has its own copy; with ours closed, the pipe ends when the keeper ends.
        os.close(answer)
        self._answers = os.fdopen(answers)
        if not comes(self._answers, PROMPTLY):
            raise Standstill(f"the fork server did not answer within {PROMPTLY:.0f} s")
        self.pid = int(self._answers.readline())
        self._unended = unended
        unended.add(self)

    def release(self) -> None:
        """Let the program begin."""
        os.kill(self.pid, RELEASE)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def said(self) -> str:
        """Return what it has written to stderr so far."""
        return self._read(1)

    def seen(self) -> str:
        """Return what it is doing now, for an error message."""
        return f"{seen(self.pid)}; it said {self.said()!r}"

    def end(self, limit: float = LIMIT) -> Ended:
        """Wait at most ``limit`` seconds for its end, then kill it and its children.

        Raises ``Standstill`` if SIGKILL does not end it.
        """
        hung: tuple[str, ...] = ()
        if not comes(self._answers, limit):
            hung = (f"no end after {limit:g} s: {seen(self.pid)}",)
            self._kill_all()
        with self._answers:
            code, rss = map(int, self._answers.readline().split())
        self._unended.discard(self)
        ended = Ended(self.pid, code, self._read(0), self._read(1), rss << 10, hung)
        for each in self._streams:
            os.close(each)
        return ended

    def _kill_all(self) -> None:
        for each in family(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not comes(self._answers, PROMPTLY):
            raise Standstill(f"SIGKILL does not end process {self.pid}: {seen(self.pid)}")

    def _read(self, number: int) -> str:
        stream = self._streams[number]
        return os.pread(stream, os.fstat(stream).st_size, 0).decode("utf-8", "replace")


class Program:
    """The fork server; safe to use from several threads.

    ``folder`` gets strace's logs. The interpreter starts in ``env``, such as with PYTHONWARNINGS.

    Each order is one packet on the socket, and its answers come on their own pipe: orders of two
    threads cannot mix.
    """

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._unended: set[Running] = set()
        # SEQPACKET keeps each order one message, with its descriptors.
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "support.fork_server"]
        with theirs:
            self._server = subprocess.Popen(
                [*command, str(theirs.fileno())],
                cwd=_TESTS,
                env=env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        """The process of the fork server; its runs inherit its limits."""
        return self._server.pid

    def close(self) -> None:
        """End the fork server, and the runs that are left because something went wrong."""
        for each in [*self._unended]:
            each.end(0)
        self._channel.close()
        self._server.wait(PROMPTLY)

    def hold(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Running:
        """Prepare a run that has not begun yet."""
        order = {"argv": list(argv), "env": dict(env), "cwd": str(cwd), "umask": _umask()}
        return Running(self._channel, order, self._unended)

    def traced(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, *options: str
    ) -> tuple[Ended, str]:
        """Run under ``strace -f`` with these options; return strace's log, too."""
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix="strace-") as log:
            running = self.hold(argv, env, cwd)
            with attached(running.pid, "-o", log.name, *options):
                running.release()
                ended = running.end()
            return ended, Path(log.name).read_text("utf-8", "replace")


def _umask() -> int:
    """Read this process's umask, which can otherwise only be replaced."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition("Umask:")[2].split()[0], 8)


@contextlib.contextmanager
def attached(pid: int, *options: str) -> Iterator[None]:
    """Strace a process and its children for the block, and until they have ended.

    Skips if that is not allowed. Raises ``Standstill`` if strace does not attach.
    """
    command = [require_tool("strace"), "-f", "-p", str(pid), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr  # asked for above
        try:
            if not comes(tracer.stderr, PROMPTLY):
                raise Standstill(f"strace does not attach to process {pid}: {seen(pid)}")
            line = tracer.stderr.readline()
            if _ATTACHED not in line:
                pytest.skip(f"strace cannot trace here: {line.strip()}")
            yield
            with contextlib.suppress(subprocess.TimeoutExpired):
                tracer.wait(5)  # a child of the program may still run
            tracer.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                tracer.wait(PROMPTLY)
        finally:
            tracer.kill()
