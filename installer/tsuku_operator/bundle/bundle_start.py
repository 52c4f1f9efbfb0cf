"""The program that ``sh FILE`` runs from a bundle: it installs tsuku-llm, and then a build.

It runs on any Python from 3.10 on, with what comes with Python. The few modules of this package
that it needs (who may write to a folder) need nothing more, and are read from the bundle's wheel.
The shell script before it has compared the digest of the whole file. pip compares each wheel with
its digest, and takes nothing from elsewhere. What follows is ``tsuku-llm install --bundle``, which
trusts nothing of the file but signed metadata.

Several may run at once. One process at a time works in a folder, from its first file to the end of
the install: it holds a lock there, and so do its children, which live on if it is killed. Only the
holder removes anything, and only what such a run makes.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

USAGE = """\
Usage: sh FILE [--into DIR] [--program-only] [ARGUMENT OF tsuku-llm install...]

Install tsuku-llm and the build that fits this machine from this file, without a network.

  --into DIR      Put the program into this folder, not below ~/.local/share.
  --program-only  Install the program only; then: tsuku-llm install --bundle FILE

To use another Python: PYTHON=/path/to/python3 sh FILE
"""

COMPLETE = "from-bundle"
"""The file of a complete environment: the digest of what was installed into it."""

LOCK = "from-bundle.lock"
"""The first file in an environment of ours, locked by the process that works there."""

_MARK = b"made by tsuku-llm from a bundle\n"
"""The content of the lock file: a file that only has its name is not ours."""

_MADE = {"bin", "include", "lib", "lib64", "share", "pyvenv.cfg", "Include", "Lib", "Scripts", LOCK}
"""What an environment consists of; with it come folders of the name ``wheels-...``."""

_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class StartWishes(NamedTuple):
    """What the user asked for; ``arguments`` go to ``tsuku-llm install``."""

    into: str | None
    program_only: bool
    arguments: tuple[str, ...]


def main() -> int:
    """Install from the bundle that ``sys.argv`` begins with; return the exit code."""
    bundle = Path(sys.argv[0]).resolve()
    wishes = _wishes(sys.argv[1:])
    os.umask(0o022)  # the program is to be read by the account that runs it, under any umask
    with zipfile.ZipFile(bundle) as archive:
        found = _program_for_this_machine(json.loads(archive.read("bundle.json")))
        requirements = archive.read(found["requirements"])
        # Another Python of the same version needs an environment of its own.
        digest = sha256(requirements + sys.executable.encode("utf-8", "replace")).hexdigest()[:16]
        home = Path(wishes.into).absolute() if wishes.into else _usual_folder() / digest
        if sys.platform != "win32" and (strange := re.search(r'["$`\\]|[^ -~\w]', str(home))):
            # The first lines of an installed script are read by a shell, within double quotes.
            _fail(
                2, "bad-usage", f"the program cannot be started from {home}",
                f"its name has {strange[0]!r}, which a shell would not take as it is",
                hint="name another folder with --into DIR",
            )  # fmt: skip
        _find_modules(archive, found["wheels"])
        program = home / ("Scripts" if sys.platform == "win32" else "bin") / "tsuku-llm"
        with _errors_told(home), _held(home, digest) as held:
            if held.is_new:
                with _removed_after_an_error(held):
                    _install(archive, found["wheels"], requirements, held)
                    (home / COMPLETE).write_text(f"{digest}\n", "ascii")
            if not wishes.program_only:
                # -I: no variable and no file of the current folder chooses its modules.
                command = [str(_python_of(home)), "-I", str(program), "install", "--yes"]
                command += ["--bundle", str(bundle), *wishes.arguments]
                # Without its build, the program of this run goes again: all or nothing.
                with _removed_after_an_error(held) if held.is_new else nullcontext():
                    if code := subprocess.call(command, **held.inherited):
                        _say("the program was not kept; to keep it: --program-only")
                        sys.exit(code)
            _link(program)
    return 0


class _Held(NamedTuple):
    """A folder that this process may change: ``lock`` is the open lock file, None without one.

    ``is_new`` says that its program is yet to be installed, ``is_made`` that this run made the
    folder itself.
    """

    home: Path
    lock: int | None
    is_new: bool
    is_made: bool

    @property
    def inherited(self) -> dict[str, Any]:
        """What a child needs to hold the lock, too, after a kill of this process."""
        has_lock = self.lock is not None and sys.platform != "win32"
        return {"pass_fds": (self.lock,)} if has_lock else {}


@contextmanager
def _held(home: Path, digest: str) -> Iterator[_Held]:
    """Hold the folder of the environment for the block; it is complete or empty there.

    Waits for another process that works in it. Raises ``OSError``, and the errors of ``ownership``.
    """
    found = None
    while found is None:
        # Who held the lock may have removed the folder, and the lock with it: then once more.
        with suppress(FileNotFoundError):
            found = _locked(home)
    lock, is_made = found
    try:
        yield _Held(home, lock, _begun(home, digest), is_made)
    finally:
        if lock is not None:
            os.close(lock)


def _locked(home: Path) -> tuple[int | None, bool] | None:
    """Make and lock the folder; return the open lock and whether the folder is new.

    The lock is None if nobody here can change the folder. Returns None, or raises
    ``FileNotFoundError``, if another process has removed it meanwhile.
    """
    from tsuku_llm.ground.files import make_folder
    from tsuku_llm.ground.ownership import check_path

    # Before it is made, and after: in a folder like /tmp others may have made it meanwhile.
    check_path(home)
    is_made = not home.exists()
    make_folder(home)
    check_path(home)
    is_complete = (home / COMPLETE).exists()
    if not is_complete and not _is_ours(home):
        _refuse(home)
    try:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        lock = os.open(home / LOCK, flags, 0o600)
    except OSError:
        if is_complete:  # on read-only media, or root's
            return None, False
        raise
    try:
        _lock(lock, home)
        status = os.fstat(lock)
        if os.path.samestat(status, (home / LOCK).lstat()):
            if status.st_size == 0:
                os.write(lock, _MARK)
            return lock, is_made
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _lock(lock: int, home: Path) -> None:
    """Lock an open file, and say so if that takes time. The system frees it after a kill."""
    waits = f"waiting for another run of a bundle, which works in {home}"
    if sys.platform == "win32":
        import msvcrt

        with suppress(OSError):
            msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
            return
        _say(waits)
        while True:
            with suppress(OSError):  # it gives up after ten seconds
                msvcrt.locking(lock, msvcrt.LK_LOCK, 1)
                return
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(waits)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _is_ours(home: Path) -> bool:
    """Tell whether a folder is empty, or has only what a run that was killed left."""
    names = {each.name for each in home.iterdir() if not each.name.startswith("wheels-")}
    if LOCK not in names:
        return not any(home.iterdir())
    status = (home / LOCK).lstat()
    if names - _MADE or not stat.S_ISREG(status.st_mode):
        return False
    # Another process may have made it this moment, and not have written to it yet.
    return (home / LOCK).read_bytes() == _MARK or (status.st_size == 0 and names == {LOCK})


def _begun(home: Path, digest: str) -> bool:
    """Empty a folder that a killed run left; return False if it is complete. Raises ``OSError``."""
    if (home / COMPLETE).exists():
        if (home / COMPLETE).read_text("ascii").strip() == digest:
            return False
        _fail(
            2, "bad-usage", f"{home} has the program of another bundle",
            hint="name a new folder with --into DIR, or remove that one",
        )  # fmt: skip
    # Looked at again under the lock: another run may have filled it while this one waited.
    if not _is_ours(home):
        _refuse(home)
    _empty(home)
    return True


def _refuse(home: Path) -> NoReturn:
    _fail(2, "bad-usage", f"{home} is not empty", hint="name a new folder with --into DIR")


def _empty(home: Path) -> None:
    """Remove what a run made in its folder, but for the lock. Raises ``OSError``."""
    for path in home.iterdir():
        if path.name in (COMPLETE, *_MADE - {LOCK}) or path.name.startswith("wheels-"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def _removed_after_an_error(held: _Held) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _empty(held.home)
            # Others wait for this lock: they find that its name is gone, and begin again.
            if [each.name for each in held.home.iterdir()] == [LOCK]:
                (held.home / LOCK).unlink()
            if held.is_made:
                held.home.rmdir()
        raise


@contextmanager
def _errors_told(home: Path) -> Iterator[None]:
    """End with an error of this program's, or of the system, as ``tsuku-llm`` does."""
    from tsuku_llm.ground.errors import TsukuError

    try:
        yield
    except TsukuError as error:
        _fail(error.exit_code, error.slug, error.message, *error.facts, hint=error.hint)
    except OSError as error:
        _fail(
            6, "store", f"the program cannot be installed into {home}", str(error),
            hint="free some space, or name another folder with --into DIR",
        )  # fmt: skip


def _find_modules(archive: zipfile.ZipFile, wheels: list[str]) -> None:
    """Let ``import tsuku_llm`` find the modules in the wheel of the bundle, in memory."""
    name = next((each for each in wheels if Path(each).name.startswith("tsuku_llm-")), None)
    if name is None:
        _fail(5, "bad-bundle", "this bundle names no wheel of tsuku-llm")
    # First: another copy may be installed for this Python.
    sys.meta_path.insert(0, _Modules(zipfile.ZipFile(io.BytesIO(archive.read(name)))))


class _Modules:
    """Finds and loads modules in an open wheel."""

    def __init__(self, wheel: zipfile.ZipFile) -> None:
        self._wheel = wheel

    def find_spec(self, name: str, _path: object, _target: object = None) -> ModuleSpec | None:
        """Return where a module is, None if it is not in the wheel."""
        place = name.replace(".", "/")
        for file in (f"{place}/__init__.py", f"{place}.py"):
            if file in self._wheel.namelist():
                is_package = file != f"{place}.py"
                return importlib.util.spec_from_loader(
                    name,
                    self,  # type: ignore[arg-type]
                    origin=file,
                    is_package=is_package,
                )
        return None

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave that to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of a module."""
        file = str(module.__spec__ and module.__spec__.origin)
        exec(compile(self._wheel.read(file), file, "exec"), module.__dict__)  # noqa: S102


def _wishes(words: list[str]) -> StartWishes:
    into, program_only, rest = None, False, []
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            print(USAGE, end="")
            sys.exit(0)
        if word == "--program-only":
            program_only = True
        elif word == "--into" and words:
            into = words.pop(0)
        elif word == "--into" or word.startswith("--into="):
            into = word.partition("=")[2] or _fail(2, "bad-usage", "--into needs a folder")
        else:
            rest.append(word)
    if program_only and rest:
        _fail(2, "bad-usage", f"--program-only installs no build: what is {rest[0]} for?")
    return StartWishes(into, program_only, tuple(rest))


def _program_for_this_machine(description: dict[str, Any]) -> dict[str, Any]:
    """Return the program of the bundle for this Python; end with code 3 if it has none."""
    system = _SYSTEMS.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    here = f"{system}-{_MACHINES.get(machine, machine)}"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    programs = description["programs"]
    if not programs:
        _fail(
            3, "wrong-bundle", "this bundle has builds only, and not the program",
            hint="where tsuku-llm is installed: tsuku-llm install --bundle FILE",
        )  # fmt: skip
    offered = ", ".join(f"{each['platform']} with Python {each['python']}" for each in programs)
    found = [each for each in programs if (each["platform"], each["python"]) == (here, python)]
    if not found or platform.python_implementation() != "CPython":
        _fail(
            3, "wrong-bundle", f"this bundle is not for {here} with Python {python}",
            f"it is for {offered}",
            hint="make one here's like on a machine with a network: tsuku-llm bundle create FILE "
            f"--platform {here} --python {python}",
        )  # fmt: skip
    glibc = found[0]["glibc"]
    library, version = platform.libc_ver()
    if glibc and (library != "glibc" or _numbers(version) < _numbers(glibc)):
        _fail(
            3, "wrong-bundle", f"this bundle needs glibc {glibc}",
            f"this system has {f'{library} {version}' if library else 'another C library'}",
            hint="make one with --hardware FILE, from tsuku-llm probe --record FILE here",
        )  # fmt: skip
    return dict(found[0])


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def _usual_folder() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    folder = Path(data).expanduser()
    if not folder.is_absolute():
        _fail(2, "bad-usage", "there is no home folder for the program", hint="add --into DIR")
    return folder / "tsuku-llm-program"


def _install(archive: zipfile.ZipFile, wheels: list[str], requirements: bytes, held: _Held) -> None:
    """Make an environment with the program; pip comes from its own wheel.

    Debian's python3 has no ensurepip, so the environment is made without pip.
    """
    import venv

    home = held.home
    _say(f"installing tsuku-llm into {home}")
    venv.EnvBuilder(with_pip=False, symlinks=sys.platform != "win32").create(home)
    with tempfile.TemporaryDirectory(prefix="wheels-", dir=home) as folder:
        for name in wheels:
            with archive.open(name) as source, (Path(folder) / Path(name).name).open("wb") as to:
                shutil.copyfileobj(source, to)
        (Path(folder) / "requirements.txt").write_bytes(requirements)
        (pip,) = Path(folder).glob("pip-*.whl")
        python = _python_of(home)
        options = ["--no-index", f"--find-links={folder}", "--require-hashes", "--no-deps"]
        options += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"]
        command = [str(python), "-I", str(pip / "pip"), "--isolated", "install", *options]
        # No setting of this user decides what is installed, or from where.
        settings = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        settings |= {"PIP_CONFIG_FILE": os.devnull, "TMPDIR": folder}
        done = subprocess.run(
            [*command, "--requirement", "requirements.txt"],
            cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, **held.inherited,
        )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()][-6:]
        changed = "DO NOT MATCH THE HASHES" in done.stdout
        _fail(
            5 if changed else 6, "bad-bundle" if changed else "store",
            "pip did not install the program from this bundle", *(f"pip: {each}" for each in lines),
        )  # fmt: skip


def _python_of(home: Path) -> Path:
    return home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _link(program: Path) -> None:
    """Make a link to the program where the shell looks; what another program put there stays."""
    from tsuku_llm.ground.errors import UnsafeLocation
    from tsuku_llm.ground.ownership import check_path

    name = os.environ.get("XDG_BIN_HOME") or "~/.local/bin"
    folder = Path(name).expanduser()
    link = folder / program.name
    try:
        if not folder.is_absolute() or sys.platform == "win32":
            raise FileNotFoundError("there is no folder for a link")
        # A link of ours, or one to a program that is gone.
        ours = link.is_symlink() and (
            (link.resolve().parents[1] / COMPLETE).exists() or not link.exists()
        )
        if os.path.lexists(link) and not ours:
            raise FileExistsError(f"{link} is not from a bundle, so it stays")
        folder.mkdir(parents=True, exist_ok=True)
        check_path(folder)
        beside = folder / f".{link.name}.{os.getpid()}"
        beside.symlink_to(program)
        beside.replace(link)
    except (OSError, UnsafeLocation) as error:
        _say(f"no link was made: {error}")
        _say(f"tsuku-llm is {program}")
        return
    found = shutil.which("tsuku-llm")
    if found is None or Path(found).resolve() != program.resolve():
        _say(f"tsuku-llm is {link}; its folder is not first on your PATH")


def _say(line: str) -> None:
    """Print a line; names from elsewhere must not command the terminal."""
    # Not the package's function: a bundle of builds alone has no wheel.
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    print(shown, file=sys.stderr, flush=True)


def _fail(code: int, slug: str, message: str, *facts: str, hint: str = "") -> NoReturn:
    lines = [f"error[{slug}]: {message}", *(f"  {fact}" for fact in facts)]
    for line in [*lines, *([f"  hint: {hint}"] if hint else [])]:
        _say(line)
    sys.exit(code)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
