"""What would be started, prepared to be shown; this starts and checks nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import launch
from tsuku_llm.operations import vouching
from tsuku_llm.operations.credentials import masked
from tsuku_llm.operations.serve import requested_version
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.start import build_of
from tsuku_llm.operations.tools import plan_of
from tsuku_llm.store import Installed

_TOLD = ("LLAMA_", "GGML_", "LD_LIBRARY_PATH")
"""Beginnings of the names of variables that change what a build does, besides its arguments."""

_SECRET = re.compile(r"KEY$|TOKEN|PASSWORD|SECRET")


@dataclass(frozen=True, slots=True)
class Planned:
    """A start that is only shown; ``env`` is the part of the environment that the build reads.

    ``removed`` are the variables that the build does not get, because they could load foreign code.
    """

    version: str
    line: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    removed: tuple[str, ...] = ()


def planned(session: Session, arguments: Sequence[str]) -> Planned:
    """Return what ``serve`` would start. Raises ``NotInstalled``."""
    installed = requested_version(session.shelf, session)
    build = build_of(installed)
    plan = launch.plan(build, arguments, cwd=working_folder(), environ=session.machine.environ)
    return _shown(session, installed, plan)


def planned_tool(session: Session, tool: str, arguments: Sequence[str]) -> Planned:
    """Return what ``run`` would start. Raises ``NotInstalled``."""
    installed = requested_version(session.shelf, session)
    plan = plan_of(session, installed, tool, arguments)
    return _shown(session, installed, plan)


def _shown(session: Session, installed: Installed, plan: launch.Plan) -> Planned:
    """Return a plan to show: the variables that change what a build does, without their secrets."""
    for line in vouching.known(session, verify=False).of(installed.receipt).lines:
        session.user.note(f"{installed.receipt.release}: {line}")
    told = {name: value for name, value in sorted(plan.env.items()) if name.startswith(_TOLD)}
    shown = {name: "***" if _SECRET.search(name) else value for name, value in told.items()}
    removed = tuple(sorted(session.machine.environ.keys() - plan.env.keys()))
    argv = masked(plan.argv)
    return Planned(installed.id, installed.receipt.line, argv, plan.cwd, shown, removed)
