"""The program that ``sh FILE`` runs from a bundle: it installs tsuku-llm, and then a build.

It runs without this package, on any Python from 3.10 on, and imports only what comes with Python.
The shell script before it has compared the digest of the whole file. pip compares each wheel with
its digest, and takes nothing from elsewhere. What follows is ``tsuku-llm install --bundle``, which
trusts nothing of the file but signed metadata.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
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

UNFINISHED = "unfinished-from-bundle"
"""The file of an environment that is being made; a killed run leaves it."""

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
        try:
            is_new = _cleared(home, digest)
            if is_new:
                with _removed_after_an_error(home):
                    _install(archive, found["wheels"], requirements, home)
                    (home / COMPLETE).write_text(f"{digest}\n", "ascii")
                    (home / UNFINISHED).unlink()
        except OSError as error:
            _fail(
                6, "store", f"the program cannot be installed into {home}", str(error),
                hint="free some space, or name another folder with --into DIR",
            )  # fmt: skip
    program = home / ("Scripts" if sys.platform == "win32" else "bin") / "tsuku-llm"
    if not wishes.program_only:
        # -I: no variable and no file of the current folder chooses its modules.
        command = [str(_python_of(home)), "-I", str(program), "install", "--yes"]
        command += ["--bundle", str(bundle), *wishes.arguments]
        # Without its build, the program of this run goes again: all or nothing.
        with _removed_after_an_error(home) if is_new else nullcontext():
            if code := subprocess.call(command):
                print("the program was not kept; to keep it: --program-only", file=sys.stderr)
                sys.exit(code)
    _link(program)
    return 0


def _cleared(home: Path, digest: str) -> bool:
    """Make the folder of the environment ready; return False if it is complete already.

    Only what this program began is removed. Raises ``OSError``.
    """
    if (home / COMPLETE).exists():
        if (home / COMPLETE).read_text("ascii").strip() == digest:
            return False
        _fail(
            2, "bad-usage", f"{home} has the program of another bundle",
            hint="name a new folder with --into DIR, or remove that one",
        )  # fmt: skip
    if (home / UNFINISHED).exists():
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        _fail(2, "bad-usage", f"{home} is not empty", hint="name a new folder with --into DIR")
    (home / UNFINISHED).touch()
    return True


@contextmanager
def _removed_after_an_error(home: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


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


def _install(archive: zipfile.ZipFile, wheels: list[str], requirements: bytes, home: Path) -> None:
    """Make an environment with the program; pip comes from its own wheel.

    Debian's python3 has no ensurepip, so the environment is made without pip.
    """
    import venv  # noqa: PLC0415 - only here

    print(f"installing tsuku-llm into {home}", file=sys.stderr)
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
            check=False,
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
        beside = folder / f".{link.name}.{os.getpid()}"
        beside.symlink_to(program)
        beside.replace(link)
    except OSError as error:
        print(f"no link was made: {error}", file=sys.stderr)
        print(f"tsuku-llm is {program}", file=sys.stderr)
        return
    found = shutil.which("tsuku-llm")
    if found is None or Path(found).resolve() != program.resolve():
        print(f"tsuku-llm is {link}; its folder is not first on your PATH", file=sys.stderr)


def _fail(code: int, slug: str, message: str, *facts: str, hint: str = "") -> NoReturn:
    lines = [f"error[{slug}]: {message}", *(f"  {fact}" for fact in facts)]
    print("\n".join([*lines, *([f"  hint: {hint}"] if hint else [])]), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
