"""How this copy of the program was installed, and what an update of it did."""

from __future__ import annotations

import shlex

from tsuku_llm._version import __version__
from tsuku_llm.ground.own_name import PROGRAM
from tsuku_llm.machine.own_copy import Updater
from tsuku_llm.steps.program.self_update import SelfUpdate


def version_lines(name: str, updater: Updater) -> tuple[str, ...]:
    """Return the same for people, of the program called ``name``."""
    return (f"{name} {__version__}", updater.text)


def lines(done: SelfUpdate) -> tuple[str, ...]:
    """Return the same for people."""
    if done.ran:
        if done.new_version == done.version:
            return (f"there is no newer version; {PROGRAM} is {done.version}",)
        proof = "signed metadata name it" if done.signed else "no signed metadata name it"
        return (f"updated {PROGRAM} from {done.version} to {done.new_version}; {proof}",)
    updater = done.updater
    head = f"{PROGRAM} {done.version}: {updater.text}"
    if updater.reason:
        return (head, f"it cannot update itself: {updater.reason}", updater.hint)
    return (head, f"updater: {steps(updater)}", "nothing was run; to run it, add --yes")


def steps(updater: Updater) -> str:
    """Return what an update runs, in words."""
    installs = f"{updater.tool} installs the new version beside this one, which it then replaces"
    words = (*map(shlex.join, updater.commands), *((installs,) if updater.tool else ()))
    return "; then ".join(words)
