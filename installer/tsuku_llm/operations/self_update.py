"""The update of this program by the tool that installed it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tsuku_llm import __version__
from tsuku_llm.errors import NoUpdater, UpdaterFailed
from tsuku_llm.operations.copy_facts import own_updater
from tsuku_llm.own_copy import Updater


class SelfUpdate(NamedTuple):
    """What a run found and did; ``version`` was the program's, ``new_version`` is it now.

    ``ran`` tells whether the updater ran. ``new_version`` is None if it did not, or if the program
    cannot tell.
    """

    updater: Updater
    version: str
    ran: bool = False
    new_version: str | None = None


def self_update(*, dry_run: bool, agreed: Callable[[Updater], bool]) -> SelfUpdate:
    """Find what updates this copy, and run it if ``agreed``.

    Raises ``NoUpdater`` if nothing does, and ``UpdaterFailed``.
    """
    updater = own_updater()
    found = SelfUpdate(updater, __version__)
    if dry_run:
        return found
    if not updater.commands:
        facts = (updater.text, updater.reason)
        raise NoUpdater("this copy cannot update itself", facts=facts, hint=updater.hint)
    if sys.platform == "win32":
        raise NoUpdater(
            "this copy cannot update itself while it runs",
            facts=(updater.text, "Windows does not replace the files of a running program"),
            hint=f"run this yourself: {' && '.join(map(' '.join, updater.commands))}",
        )
    if not agreed(updater):
        return found
    for command in updater.commands:
        _run(command, updater.folder)
    return found._replace(ran=True, new_version=_installed_version())


def _run(command: tuple[str, ...], folder: Path | None) -> None:
    try:
        # Its words go to stderr: stdout has only our answer.
        child = subprocess.Popen(command, cwd=folder, stdout=2)
    except OSError as error:
        raise UpdaterFailed(f"{command[0]} cannot be started", facts=(str(error),)) from error
    try:
        code = child.wait()
    except BaseException:
        # Ctrl-C has reached it as well; a SIGTERM to us alone has not.
        child.terminate()
        child.wait()
        raise
    if code:
        raise UpdaterFailed(
            f"{' '.join(command)} ended with exit code {code}",
            facts=("its own words are above", f"in {folder}") if folder else (),
            hint="this program still works if the updater changed nothing; else install it again",
        )


def _installed_version() -> str | None:
    """Return the version that a new process of this program has."""
    done = subprocess.run(
        [sys.executable, "-m", "tsuku_llm", "--version"],
        cwd=sys.prefix,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()[-1] if done.returncode == 0 and done.stdout.strip() else None
