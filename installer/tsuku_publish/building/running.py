"""Other programs, run with a log: pip, CMake and what they start."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tsuku_llm.ground.disk import disk_errors, is_full
from tsuku_llm.ground.errors import NoSpace
from tsuku_llm.ground.processes import children
from tsuku_llm.ground.safe_text import printable, redacted
from tsuku_publish.errors import BuildFailed

_GRACE = 10.0
"""Seconds that compilers have to remove their temporary files after a terminate signal."""

_PIP = ("--no-deps", "--disable-pip-version-check", "--no-input", "--progress-bar=off")
_RUN_PIP = "import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
_SHOWN = 8
_LONGEST = 300
_TAIL = 1 << 20
"""Bytes at the end of the output that are searched for the reason of a failure."""
_BLOCK = 1 << 16

_RELEVANT = re.compile(
    r"\berror\b|^FAILED:|CMake Error|\bfatal\b|undefined reference|cannot find|No space left"
    r"|\bKilled\b|not found|No such file|internal compiler|^E: ",
    re.IGNORECASE,
)
_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|don't have enough free space", re.IGNORECASE
)
_OUT_OF_MEMORY = re.compile(
    r"Killed signal terminated program|cc1plus.*Killed|virtual memory exh|(?:^|: )Killed$"
)


def run_logged(
    command: Sequence[str], *, doing: str, log: Path, folder: Path, environ: Mapping[str, str]
) -> None:
    """Run a program and append its output to a log, as far as the disk has room for it.

    The program and its children end with us, also by ctrl-c, SIGTERM and SIGKILL. Raises
    ``BuildFailed`` with the last lines that say why, ``NoSpace``, and the errors of the disk.
    """
    with disk_errors(doing, folder), log.open("ab", buffering=0) as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        with _copied_to(file) as (output, said), _child(command, folder, environ, output) as child:
            code = child.wait()
    if code:
        lines = said.decode("utf-8", "replace").splitlines()
        raise _failure(doing, code, lines, log, folder)


def run_pip(
    words: Sequence[str],
    *,
    doing: str,
    log: Path,
    folder: Path,
    scratch: Path,
    environ: Mapping[str, str],
) -> None:
    """Run a command of pip with the user's own index and settings.

    Its temporary files, some 200 MB, are in ``scratch``, which the caller removes. Raises what
    ``run_logged`` raises.
    """
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch.absolute()))
    run_logged(
        children.python(_RUN_PIP, *words, *_PIP),
        doing=doing,
        log=log,
        folder=folder,
        environ={
            **environ,
            **temporary,
            "PYTHONUTF8": "1",
            # Settings for the user's own packages, which would refuse what is asked here.
            "PIP_REQUIRE_HASHES": "0",
            "PIP_REQUIRE_VIRTUALENV": "0",
            "PIP_USER": "0",
        },
    )


@contextlib.contextmanager
def _copied_to(log: IO[bytes]) -> Iterator[tuple[IO[bytes], bytearray]]:
    """Yield a pipe whose bytes are written to a log, and the end of these bytes.

    The end is kept in memory: a compiler whose disk is full says so, and then its log has no room
    for these words either.
    """
    reading, writing = os.pipe()
    end = bytearray()

    def copy() -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while block := pipe.read(_BLOCK):
                end.extend(block)
                del end[:-_TAIL]
                # Also not to a log that was closed: see below.
                with contextlib.suppress(OSError, ValueError):
                    log.write(block)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            yield pipe, end
    finally:
        # A process that stays behind, such as a cache's server, may keep the pipe open.
        thread.join(_GRACE)


@contextlib.contextmanager
def _child(
    command: Sequence[str], folder: Path, environ: Mapping[str, str], output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    # A new session: CMake passes no signal on to Ninja, so all of them get it from us, at once.
    with children.start(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as child:
        try:
            with _ended_with_us(child.pid):
                yield child
        finally:
            if child.poll() is None:
                end_group(child)


@contextlib.contextmanager
def _ended_with_us(group: int) -> Iterator[None]:
    """End a process group if we are killed before it ends.

    A shell reads from a pipe whose other end only we have. It reads the end of the pipe when we are
    gone, however that came, and a line when all is well.
    """
    if os.name != "posix":
        yield
        return
    # As ``end_group`` does it: SIGTERM, and SIGKILL for what has not ended by then. The first
    # process of a namespace, such as a base's debootstrap, ignores SIGTERM.
    waits = f"for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 -{group} || exit; sleep 1; done"
    with children.start(
        ["/bin/sh", "-c", f"read line || {{ kill -TERM -{group}; {waits}; kill -KILL -{group}; }}"],
        stderr=subprocess.DEVNULL,
        stdin=subprocess.PIPE,
        # Else ctrl-c in a terminal would end it before the group.
        start_new_session=True,
    ) as watch:
        try:
            yield
        finally:
            watch.communicate(b"done\n")


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a process and its children: SIGTERM first, so that they remove temporary files."""
    if os.name != "posix":
        child.kill()
        return
    for number, grace in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
        # The child was not waited for, so its pid, which is also its group's, is still its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
            return


def _failure(
    doing: str, code: int, lines: list[str], log: Path, folder: Path
) -> BuildFailed | NoSpace:
    written = [redacted(printable(line.rstrip()))[:_LONGEST] for line in lines if line.strip()]
    relevant: list[str] = []
    explained = False
    for line in written:
        # CMake says what is wrong in the indented lines below the place of the error.
        explained = explained and line.startswith(" ")
        if explained or _RELEVANT.search(line):
            relevant.append(line)
            explained = explained or "CMake Error" in line
    shown = tuple(line.strip() for line in [*dict.fromkeys(relevant or written)][-_SHOWN:])
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    facts = (*shown, f"it ended with {ending}", f"log: {log}")
    if any(map(_FULL.search, written)) or is_full(folder):
        return NoSpace(
            f"there is no space left on the disk, while {doing}",
            facts=(*facts, f"folder: {folder}"),
            hint="free some space there; the next run continues where this one ended",
        )
    hint = "mend what the log names, then run it again: it continues where this run ended"
    if any(map(_OUT_OF_MEMORY.search, written)):
        hint = "a compiler ran out of memory: run it again with fewer at a time, such as --jobs 1"
    return BuildFailed(f"{doing} failed", facts=facts, hint=hint)
