"""The update of this program: a new version beside the old one, then one exchange.

The version's own lock names every package that it needs, with its digests. The version itself is
what signed metadata name, if they name one; else it is what the package index says, and the user is
told.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from tsuku_llm import __version__
from tsuku_llm.catalog.repositories import OFFICIAL
from tsuku_llm.ground.errors import DigestMismatch, NoUpdater, TsukuError, UpdaterFailed
from tsuku_llm.ground.foreign import read_text
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.ground.processes import children, inherited
from tsuku_llm.ground.records import documented
from tsuku_llm.machine.own_copy import NAME, PUBLISHER, Updater, publisher_command
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.program.copy_facts import copy_facts, own_updater
from tsuku_llm.steps.program.renewed import StagedCopy, staged_copy
from tsuku_llm.steps.program.signed_program import SignedProgram, parse_lock, program_in
from tsuku_llm.steps.session import Session

_PIP = "import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
_COMMON = ("--no-deps", "--only-binary=:all:")
_OF_PIP = ("--disable-pip-version-check", "--no-input", "--no-warn-script-location", "--quiet")
_COMPILE = "import compileall, sys; compileall.compile_dir(sys.argv[1], quiet=2, {})"
_LOCK_TIMEOUT = 600.0
"""Seconds to wait for another update of this copy."""


def _signed_program(session: Session) -> SignedProgram | None:
    """Return what the newest signed metadata of the official repository say of this program.

    None if they name no version. A repository that the user added decides nothing here. Raises
    ``ManifestError`` for what cannot be understood.
    """
    session = session.with_settings(repository=OFFICIAL)
    try:
        catalog = refresh(session)
    except TsukuError as error:
        session.user.note(f"the signed metadata are not new: {error.message}")
        catalog = load_catalog(session)
    return program_in(catalog)


@documented("version", "*updater", "ran", "new_version", "signed")
class SelfUpdate(NamedTuple):
    """What a run found and did; ``version`` was the program's, ``new_version`` is it now.

    ``ran`` tells whether an update was tried. ``new_version`` is None if it was not. ``signed``
    tells whether signed metadata name what is installed now.
    """

    updater: Updater
    version: str
    ran: bool = False
    new_version: str | None = None
    signed: bool = False


def self_update(
    session: Session, *, dry_run: bool, agreed: Callable[[Updater], bool]
) -> SelfUpdate:
    """Find how this copy was installed, and update it if ``agreed``.

    Raises ``NoUpdater`` if it cannot be updated, ``UpdaterFailed``, ``TrustError`` and
    ``StoreError``; then the old version works as before.
    """
    note = session.user.note
    updater = own_updater()
    found = SelfUpdate(updater, __version__)
    if dry_run:
        return found
    if updater.reason:
        facts = (updater.text, updater.reason)
        raise NoUpdater("this copy cannot update itself", facts=facts, hint=updater.hint)
    if sys.platform == "win32":
        raise NoUpdater(
            "this copy cannot update itself while it runs",
            facts=(updater.text, "Windows does not replace the files of a running program"),
            hint=f"run this yourself: {sys.executable} -m pip install --upgrade {NAME}",
        )
    if not agreed(updater):
        return found
    if updater.clone:
        return found._replace(ran=True, new_version=_update_clone(updater, updater.clone, note))
    signed = _signed_program(session)
    if signed and Version(signed.version) <= Version(__version__):
        return found._replace(ran=True, new_version=__version__, signed=True)
    with staged_copy(_LOCK_TIMEOUT) as staged:
        version = _newest(staged, updater, signed)
        if Version(version) <= Version(__version__):
            return found._replace(ran=True, new_version=__version__)
        if not signed:
            note(f"not signed: the package index says that {version} is the newest version")
        _install_version(staged, updater, version, signed)
        _finish(staged)
    if _is_there(PUBLISHER, __version__):
        # Signed metadata name the client's wheel alone, and the publisher needs its version.
        again = publisher_command(copy_facts(), version)
        note(f"{PUBLISHER} is still {__version__}; to update it: {again}")
    return found._replace(ran=True, new_version=version, signed=signed is not None)


def _update_clone(updater: Updater, clone: Path, note: Callable[[str], None]) -> str:
    """Let git update a clone, and install it; return the version."""
    # git runs the clone's hooks, and pip the code that builds it.
    check_path(clone, sticky=False)
    for command in updater.commands:
        _run(command)
    note("not signed: the clone's git repository says what the newest version is")
    if not updater.tool:
        return __version__
    with staged_copy(_LOCK_TIMEOUT) as staged:
        _install_clone(staged, updater, clone)
        return _finish(staged)


def _newest(staged: StagedCopy, updater: Updater, signed: SignedProgram | None) -> str:
    """Put the new version into a folder of its own, where it is read; return its number."""
    pin = staged.folder / "program.txt"
    digest = f"=={signed.version} --hash=sha256:{signed.sha256}" if signed else ""
    pin.write_text(f"{NAME}{digest}\n", "utf-8")
    look = staged.folder / "program"
    hashed = ("--require-hashes",) if signed else ()
    words = ("install", *_COMMON, *hashed, f"--target={look}", f"--requirement={pin}")
    _run_tool(staged, updater, words)
    infos = [*look.glob("tsuku_llm-*.dist-info")]
    if len(infos) != 1 or not (look / "tsuku_llm").is_dir():
        raise UpdaterFailed("the package index has another package under this program's name")
    return infos[0].name.removeprefix("tsuku_llm-").removesuffix(".dist-info")


def _install_version(
    staged: StagedCopy, updater: Updater, version: str, signed: SignedProgram | None
) -> None:
    """Install a version and what its lock pins into the copy."""
    lock = staged.folder / "program/tsuku_llm/locked.txt"
    try:
        wanted = parse_lock(read_text(lock))
    except (OSError, ValueError) as error:
        raise UpdaterFailed(
            f"{NAME} {version} does not name the packages that it needs",
            facts=(str(error), "this version stays"),
        ) from error
    pins = [
        each.pin
        for each in wanted
        if (each.requirement.marker is None or each.requirement.marker.evaluate())
        and not _is_there(each.name, str(each.requirement.specifier).removeprefix("=="))
    ]
    if pins:
        file = staged.folder / "locked.txt"
        file.write_text("".join(f"{each}\n" for each in pins), "utf-8")
        _run_tool(
            staged,
            updater,
            ("install", *_COMMON, "--require-hashes", f"--requirement={file}"),
            any_index=True,
        )
    pin = staged.folder / "program.txt"
    if not signed:
        pin.write_text(f"{NAME}=={version}\n", "utf-8")
    hashed = ("--require-hashes",) if signed else ()
    _run_tool(staged, updater, ("install", *_COMMON, *hashed, f"--requirement={pin}"))


def _install_clone(staged: StagedCopy, updater: Updater, clone: Path) -> None:
    """Install a clone and what its lock pins into the copy; the packages that build it, too."""
    lock = clone / "installer/tsuku_llm/locked.txt"
    words = ("install", *_COMMON, "--require-hashes", f"--requirement={lock}")
    _run_tool(staged, updater, words, any_index=True)
    editable = ("--editable",) if updater.editable else ()
    build = ("install", "--no-deps", "--no-build-isolation", "--no-index")
    _run_tool(staged, updater, (*build, *editable, str(clone)))
    publisher = clone / "installer/publish"
    if _is_there(PUBLISHER, __version__) and publisher.is_dir():
        _run_tool(staged, updater, (*build, *editable, str(publisher)))


def _finish(staged: StagedCopy) -> str:
    """Try the new program, and put it into its place; return its version."""
    python = str(staged.python)
    done = children.run(
        [python, "-I", "-m", "tsuku_llm", "--version"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    if done.returncode or not done.stdout.strip():
        raise UpdaterFailed("the new version does not start", facts=("the old one stays",))
    paths = f"stripdir={str(staged.home)!r}, prependdir={str(staged.prefix)!r}"
    children.run([python, "-I", "-c", _COMPILE.format(paths), str(staged.packages)])
    staged.commit()
    return str(done.stdout.split()[-1])


def _is_there(name: str, version: str) -> bool:
    try:
        return installed_version(name) == version
    except PackageNotFoundError:
        return False


def _run_tool(
    staged: StagedCopy, updater: Updater, words: Sequence[str], *, any_index: bool = False
) -> None:
    """Run ``install`` of pip or uv for the copy; only one index counts unless ``any_index``.

    An index that was added for other packages must not say which version of this program is the
    newest, or what it is. A package with a digest may come from anywhere.
    """
    python = str(staged.python)
    environ = {**inherited.environment(), **dict(updater.index), "TMPDIR": str(staged.folder)}
    if updater.tool == "uv":
        command = ["uv", "pip", *words, f"--python={python}", "--quiet"]
        command += [] if any_index else ["--index-strategy=first-index"]
    else:
        command = [python, "-I", "-c", _PIP, *words, *_OF_PIP]
        # Settings for the user's own packages, which would refuse or move what is installed here.
        environ |= {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "PIP_REQUIRE_HASHES": "0"}
        environ |= {} if any_index else _one_index(staged, python, environ)
    _run(command, environ)


def _one_index(staged: StagedCopy, python: str, environ: dict[str, str]) -> dict[str, str]:
    """Return settings of pip that leave only its first index, or only links if it has no index."""
    listed = children.run(
        [python, "-I", "-c", _PIP, "config", "list"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    said = (line.partition("=") for line in listed.stdout.splitlines())
    empty = staged.folder / "empty"
    empty.mkdir(exist_ok=True)
    found = {"PIP_EXTRA_INDEX_URL": empty.as_uri()}
    if not any(
        value.strip("'\"").lower() not in ("0", "false", "no", "off", "")
        for key, _, value in said
        if key.endswith(".no-index")
    ):
        found["PIP_FIND_LINKS"] = str(empty)
    return found


def _run(command: Sequence[str], environ: dict[str, str] | None = None) -> None:
    """Run a tool; its words go to stderr. Raises ``UpdaterFailed`` and ``DigestMismatch``."""
    try:
        child = children.start(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise UpdaterFailed(f"{command[0]} cannot be started", facts=(str(error),)) from error
    said = b""
    with child:
        assert child.stderr
        try:
            # Its words are the user's; stdout has only our answer.
            while part := os.read(child.stderr.fileno(), _SAID):
                os.write(2, part)
                said = (said + part)[-_SAID:]
            code = child.wait()
        except BaseException:
            # Ctrl-C has reached it as well; a SIGTERM to us alone has not.
            child.terminate()
            raise
    if not code:
        return
    if b"DO NOT MATCH THE HASHES" in said or b"Hash mismatch" in said:
        raise DigestMismatch(
            "the package index has other files than those that were named by their digests",
            facts=("this version stays", "its own words are above"),
            hint="tell the operator of the package index",
        )
    raise UpdaterFailed(
        f"{Path(command[0]).name} ended with exit code {code}",
        facts=("its own words are above",),
        hint="nothing was changed: this version still works",
    )


_SAID = 1 << 16
