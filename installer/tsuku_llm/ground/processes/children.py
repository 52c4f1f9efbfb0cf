"""The start of every other program, and what it gets of ours: no file of the caller's folder.

A command is often typed in a folder that other users can write, such as /tmp. Programs load code
and settings from their working folder and from search paths with relative entries: Python modules,
libraries, ansible.cfg, uv.toml, or a program of that name. So a child process starts in the root
folder of the file system, and gets no relative entry of a search path. A home folder in which
another user can write is replaced.

``tests/project/test_children.py`` has the list of the places that start a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import tsuku_llm
from tsuku_llm.ground.foreign import read_answer
from tsuku_llm.ground.processes.inherited import environment, is_private

ROOT = os.path.abspath(os.sep) if sys.platform != "win32" else sys.prefix
"""The working folder of a child: every system has it, and only its administrator writes there.

Not a folder below the one for temporary files: uv and git also read what is above their folder. On
Windows every user can make files in the root of a disk.
"""

CALLERS_FOLDER = None
"""The working folder of a program whose arguments may have relative paths of the user's."""


def start(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = ROOT,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a program; ``env`` is its environment before ``environment``, None for ours.

    The other options are those of ``subprocess.Popen``. Raises ``OSError``.
    """
    return subprocess.Popen(command, cwd=cwd, env=environment(env), **options)


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = ROOT,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as ``start`` starts it; the options are ``subprocess.run``'s.

    Raises ``OSError``, and ``subprocess.TimeoutExpired``.
    """
    return subprocess.run(
        command, cwd=cwd, env=environment(env), check=options.pop("check", False), **options
    )


def answer(
    command: Sequence[str | Path],
    seconds: float,
    limit: int,
    *,
    said: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Run a program of others with ``said`` on its input; return its exit code and its stdout.

    Its stderr is dropped. Raises ``OSError`` if it cannot be started, does not end in time, or
    says more than ``limit`` bytes; it is killed then.
    """
    pipe = subprocess.PIPE
    child = start(
        command,
        env=env,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        # With everything that it has started: that has our pipe, too.
        if sys.platform == "win32":
            child.kill()
            return

        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    with child:
        assert child.stdin
        assert child.stdout
        late = Timer(seconds, end)
        late.start()
        try:
            with suppress(BrokenPipeError), child.stdin as stdin:
                stdin.write(said)
            heard = read_answer(child.stdout, limit)
            code = child.wait()
        except BaseException:
            end()
            raise
        finally:
            late.cancel()
            late.join()
    return code, heard


def which(program: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the path of a program that a child would find by its name."""
    import shutil

    # An empty PATH would let ``which`` look at ours.
    return shutil.which(program, path=environment(environ).get("PATH", os.defpath))


def python(code: str, *arguments: str) -> list[str]:
    """Return the line that runs ``code`` in an isolated Python with the modules of this process."""
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    own = os.path.dirname(os.path.dirname(os.path.abspath(tsuku_llm.__file__)))
    # ``python -m`` and ``-c`` put the caller's folder first: it counts only if we are from there.
    found = (each for each in sys.path if os.path.isabs(each) and os.path.exists(each))
    path = [each for each in found if each not in {own, here} and is_private(each)]
    path.append(own)
    warnings = (f"-W{each}" for each in sys.warnoptions)
    begin = f"import sys; sys.path[:] = {path!r}\n"
    return [sys.executable, "-I", *warnings, "-c", begin + code, *arguments]


def this_program(*arguments: str) -> list[str]:
    """Return the line that runs ``tsuku-llm`` again with other arguments."""
    # The program looks there for what it was called.
    named = f"sys.argv[0] = {sys.argv[0]!r}; "
    return python(f"{named}from tsuku_llm.cli.main import main; main()", *arguments)
