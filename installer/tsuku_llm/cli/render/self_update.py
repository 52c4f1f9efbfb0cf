"""How this copy of the program was installed, and what an update of it did."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tsuku_llm._version import __version__
from tsuku_llm.cli.program import PROGRAM
from tsuku_llm.operations.self_update import SelfUpdate
from tsuku_llm.own_copy import Updater

if TYPE_CHECKING:
    from tsuku_llm.cli.documents import running as documents


def version_data(updater: Updater) -> documents.VersionAnswer:
    """Return the version of this program and the way of its installation, for programs."""
    return {"version": __version__, "way": updater.way}


def version_lines(name: str, updater: Updater) -> tuple[str, ...]:
    """Return the same for people, of the program called ``name``."""
    return (f"{name} {__version__}", updater.text)


def data(done: SelfUpdate) -> dict[str, Any]:
    """Return what was found and done, for programs."""
    updater = done.updater
    return {
        "version": done.version,
        "way": updater.way,
        "commands": updater.commands,
        "folder": updater.folder,
        "reason": updater.reason or None,
        "ran": done.ran,
        "new_version": done.new_version,
    }


def lines(done: SelfUpdate) -> tuple[str, ...]:
    """Return the same for people."""
    if done.ran:
        if done.new_version in (None, done.version):
            return (f"the updater ran; {PROGRAM} is {done.new_version or 'of an unknown version'}",)
        return (f"updated {PROGRAM} from {done.version} to {done.new_version}",)
    updater = done.updater
    head = f"{PROGRAM} {done.version}: {updater.text}"
    if not updater.commands:
        return (head, f"it cannot update itself: {updater.reason}", updater.hint)
    return (head, f"updater: {commands_line(updater)}", "nothing was run; to run it, add --yes")


def commands_line(updater: Updater) -> str:
    """Return the commands of an updater as a shell takes them."""
    folder = (f"cd {shlex.quote(str(updater.folder))}",) if updater.folder else ()
    return " && ".join((*folder, *map(shlex.join, updater.commands)))
