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
import sys

import tsuku_llm

TYPE_CHECKING = False  # as in typing, which takes time to import, also for --version
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, MutableMapping, Sequence
    from pathlib import Path
    from typing import Any

ROOT = os.path.abspath(os.sep) if sys.platform != "win32" else sys.prefix  # noqa: PTH100
"""The working folder of a child: every system has it, and only its administrator writes there.

Not a folder below the one for temporary files: uv and git also read what is above their folder. On
Windows every user can make files in the root of a disk.
"""

CALLERS_FOLDER = None
"""The working folder of a program whose arguments may have relative paths of the user's."""

_SEARCH_PATHS = frozenset({
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "GGML_BACKEND_PATH"),
    *("DYLD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "DYLD_FRAMEWORK_PATH"),
    *("DYLD_FALLBACK_LIBRARY_PATH", "DYLD_FALLBACK_FRAMEWORK_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "ANSIBLE_COLLECTIONS_PATH", "PERL5LIB"),
    *("PERLLIB", "RUBYLIB", "NODE_PATH", "XDG_DATA_DIRS", "XDG_CONFIG_DIRS"),
})  # fmt: skip
"""Variables whose entries name folders or files with code; an empty one is the caller's folder."""

_HOMES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
_NO_HOME = "/nonexistent"


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
    import subprocess  # noqa: PLC0415 - many commands start no program

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
    import subprocess  # noqa: PLC0415

    options.setdefault("check", False)
    return subprocess.run(command, cwd=cwd, env=environment(env), **options)  # noqa: PLW1510


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
    import subprocess  # noqa: PLC0415
    from contextlib import suppress  # noqa: PLC0415
    from threading import Timer  # noqa: PLC0415

    from tsuku_llm.ground.foreign import read_answer  # noqa: PLC0415

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
        import signal  # noqa: PLC0415

        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    with child:
        assert child.stdin  # noqa: S101 - they are pipes
        assert child.stdout  # noqa: S101
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
    import shutil  # noqa: PLC0415

    # An empty PATH would let ``which`` look at ours.
    return shutil.which(program, path=environment(environ).get("PATH", os.defpath))


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables (ours for None) for a child, without what leads into the caller's folder.

    Search paths lose their relative and empty entries. A home folder in which another user can
    write is replaced by that of the account.
    """
    found = dict(os.environ if given is None else given)
    _drop_relative(found)
    if sys.platform == "win32":
        return found
    for name in _HOMES:
        if (folder := found.get(name)) and not is_private(folder):
            del found[name]
            if name == "HOME":
                found[name] = _home_of_account()
    return found


def find_no_program_here() -> None:
    """Drop the relative entries of this process's own search paths.

    Some libraries start programs by themselves: click a shell, ansible-runner its programs. It is
    for our own commands alone, not for an application that imports this package.
    """
    _drop_relative(os.environ)


def is_private(folder: str | Path) -> bool:
    """Tell whether no other user can put a file into an existing folder, or replace it.

    A folder that does not exist counts as private.
    """
    from pathlib import Path  # noqa: PLC0415

    from tsuku_llm.ground.errors import StoreError, UnsafeLocation  # noqa: PLC0415
    from tsuku_llm.ground.ownership import check_path  # noqa: PLC0415

    try:
        check_path(Path(folder), sticky=False)
    except UnsafeLocation:
        return False
    except StoreError:  # it cannot be looked at, so nothing is loaded from it
        return True
    return True


def python(code: str, *arguments: str) -> list[str]:
    """Return the line that runs ``code`` in an isolated Python with the modules of this process."""
    here = _callers_folder()
    own = os.path.dirname(os.path.dirname(os.path.abspath(tsuku_llm.__file__)))  # noqa: PTH100, PTH120
    # ``python -m`` and ``-c`` put the caller's folder first: it counts only if we are from there.
    found = (each for each in sys.path if os.path.isabs(each) and os.path.exists(each))  # noqa: PTH110, PTH117
    path = [each for each in found if each not in {own, here} and is_private(each)]
    path.append(own)
    warnings = (f"-W{each}" for each in sys.warnoptions)
    begin = f"import sys; sys.path[:] = {path!r}\n"
    return [sys.executable, "-I", *warnings, "-c", begin + code, *arguments]


class no_core_dumps:  # noqa: N801 - a context manager, without contextlib's time at each start
    """Let the processes that start in the block make no core dumps.

    A core of a server is as large as its model, and may hold prompts. Only the soft limit is 0:
    the user can raise it for a process that runs (``prlimit --core=unlimited --pid PID``).
    """

    def __enter__(self) -> None:
        """Set the limit."""
        if sys.platform != "win32":
            import resource  # noqa: PLC0415 - Windows has none

            # Around the start and not in the child: code between fork and exec is not safe with
            # threads. For this moment the limit is ours as well, also in other threads, which does
            # no harm.
            self._limits = resource.getrlimit(resource.RLIMIT_CORE)
            resource.setrlimit(resource.RLIMIT_CORE, (0, self._limits[1]))

    def __exit__(self, *_: object) -> None:
        """Set it back."""
        if sys.platform != "win32":
            import resource  # noqa: PLC0415

            resource.setrlimit(resource.RLIMIT_CORE, self._limits)


def this_program(*arguments: str) -> list[str]:
    """Return the line that runs ``tsuku-llm`` again with other arguments."""
    # The program looks there for what it was called.
    named = f"sys.argv[0] = {sys.argv[0]!r}; "
    return python(f"{named}from tsuku_llm.cli.main import main; main()", *arguments)


def _callers_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - as sys.path has it
    except OSError:  # it was removed
        return ""


def _drop_relative(environ: MutableMapping[str, str]) -> None:
    for name in _SEARCH_PATHS & environ.keys():
        kept = _absolute_entries(name, environ[name])
        if kept and kept == environ[name]:
            continue
        if kept:
            environ[name] = kept
        else:
            # An empty variable would mean the caller's folder again.
            del environ[name]


def _absolute_entries(name: str, value: str) -> str:
    # The loader also splits these two at spaces. A plain name is one of the system's libraries.
    loaded = name in ("LD_PRELOAD", "LD_AUDIT")
    entries = (
        value.replace(" ", os.pathsep).split(os.pathsep) if loaded else value.split(os.pathsep)
    )
    return os.pathsep.join(
        each
        for each in entries
        if os.path.isabs(each) or (loaded and each and os.sep not in each)  # noqa: PTH117
    )


def _home_of_account() -> str:
    """Return the home folder of this user's account; one that does not exist if it is unsafe."""
    if sys.platform != "win32":
        import pwd  # noqa: PLC0415

        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return _NO_HOME
        if os.path.isabs(home) and is_private(home):  # noqa: PTH117
            return home
    return _NO_HOME
