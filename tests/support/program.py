"""Run the program as users do: in a separate process, with a separate home."""

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.forked import Program
from support.hints import check_hints
from support.schemas import check_output
from support.tools import open_terminal

from ci import schemas

PROGRAM = os.environ.get("TSUKU_LLM_PROGRAM")
"""The program of a folder of ``ci.program``, if the tests run that instead of these modules."""
COMMAND: tuple[str, ...] = (PROGRAM,) if PROGRAM else (sys.executable, "-m", "tsuku_llm")
PUBLISHER = (sys.executable, "-m", "tsuku_publish")
TIMEOUT = 600
"""Seconds; only so that a test that hangs ends."""

SUDO = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
"""What a hint has before a command for root: root is not told to use it."""

_AT_THE_START = re.compile("PYTHON|LD_|LC_|LANG|TZ$|MALLOC_|GLIBC_|OPENSSL_")
"""The variables that the loader and the interpreter read when a process starts."""


@dataclass(frozen=True)
class Result:
    """How a run ended and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)


def environment(home: Path, **extra: str) -> dict[str, str]:
    """Return an environment without the developer's settings, with ``TSUKU_HOME``.

    No test checks for updates by accident, and an install asks for newer metadata only if a
    test wants that: the built-in address is a real host's.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TSUKU_")}
    # As after an install: hints have the plain name, because the shell finds it.
    kept["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), kept.get("PATH", os.defpath)))
    quiet = {"PYTHONWARNINGS": "error", "TSUKU_LLM_UPDATE_CHECK": "false"}
    quiet |= {"TSUKU_LLM_REFRESH": "never"}
    return {**kept, "TSUKU_HOME": str(home), **quiet, **extra}


_USUAL = environment(Path(os.devnull))
"""The environment of the fork server: that of this process before any test changed it."""

_FORKS = (
    sys.platform == "linux"
    and PROGRAM is None
    and not any(name.startswith("COVERAGE_") for name in _USUAL)
)
"""``ci/coverage`` measures processes that start an interpreter."""


def run_program(
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path | None = None,
    command: tuple[str, ...] = COMMAND,
) -> Result:
    """Run it, or another command of ours, to its end; check its JSON document.

    If possible, the program is forked from a process that has done its imports: still one process
    for each run, but much cheaper. A test about the start of the interpreter uses ``COMMAND``.
    """
    if command == COMMAND and _FORKS and _start_of(env) == _start_of(_USUAL):
        result = _forked(arguments, env, cwd or Path.cwd())
    else:
        done = subprocess.run(
            [*command, *arguments],
            env=env,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        result = Result(done.returncode, done.stdout, done.stderr)
    is_publisher = any("tsuku_publish" in word for word in command)
    program = schemas.PUBLISHER if is_publisher else schemas.CLIENT
    check_output(arguments, result.stdout, program)
    check_hints(result.stderr)
    return result


def _forked(arguments: tuple[str, ...], env: Mapping[str, str], cwd: Path) -> Result:
    running = _fork_server().hold(arguments, env, cwd)
    running.release()
    ended = running.end(TIMEOUT)
    if ended.hung:
        raise subprocess.TimeoutExpired(arguments, TIMEOUT, ended.stdout, ended.stderr)
    return Result(ended.code, ended.stdout, ended.stderr)


@functools.cache
def _fork_server() -> Program:
    program = Program(Path(tempfile.gettempdir()), _USUAL)
    atexit.register(program.close)
    return program


def _start_of(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _AT_THE_START.match(name)}


def run_on_terminal(typed: bytes, *arguments: str, env: Mapping[str, str]) -> tuple[int, str]:
    """Run it on a terminal with this input; return its exit code and the terminal's text.

    The terminal is so wide that no line is wrapped.
    """
    ours, theirs = open_terminal()
    try:
        os.write(ours, typed)
        child = subprocess.Popen(
            [*COMMAND, *arguments],
            env={**env, "COLUMNS": "1000"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        said = b"".join(iter(lambda: _read(ours), b""))
        return child.wait(), said.decode()
    finally:
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other end is closed
        return b""
