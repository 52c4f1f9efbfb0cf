"""The build's other tools (llama-cli, llama-bench), run after the same checks as ``serve``.

Also the dry runs of ``serve`` and ``run``: what would be started. They start and check nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.launch.planning import LaunchPlan, plan_server, plan_tool, require_no_plugins
from tsuku_llm.operations.caches import build_caches, would_give
from tsuku_llm.operations.revocation import require_not_revoked, signed_status
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.which import become, build_of, requested_version, tool_of
from tsuku_llm.ownership import check_path
from tsuku_llm.store.installed import Installed

_TOLD = ("LLAMA_", "GGML_", "LD_LIBRARY_PATH")
"""Beginnings of the names of variables that change what a build does, besides its arguments."""

_SECRET = re.compile(r"KEY$|TOKEN|PASSWORD|SECRET")


def run_tool(session: Session, tool: str, arguments: Sequence[str]) -> int:
    """Check the installed tree and become ``tool``; on Windows wait and return its exit code.

    Raises ``NotInstalled`` if the build has no such tool, ``TamperedInstall``, ``UnsafeLocation``,
    ``Revoked`` and ``LaunchError``.
    """
    reader = session.reader
    installed = requested_version(reader, session)
    # From here on other processes cannot remove this version, nor the drivers' caches; the tool
    # inherits the descriptors and keeps the holds.
    with (
        reader.hold(installed) as held,
        build_caches(session, installed.receipt.backend) as caches,
    ):
        plan = plan_of(installed, tool, arguments, caches.environ)
        reader.check(installed)
        require_not_revoked(session, installed.receipt)
        # llama.cpp also loads plugins from the current folder: it must be safe, and have none.
        check_path(plan.cwd)
        require_no_plugins(plan.cwd)
        session.user.note(installed.receipt.line)
        return become(plan, tuple(each for each in (held, caches.held) if each is not None))


def plan_of(
    installed: Installed, tool: str, arguments: Sequence[str], environ: Mapping[str, str]
) -> LaunchPlan:
    """Return the plan to become ``tool``. Raises ``NotInstalled``."""
    build = build_of(installed)._replace(server=tool_of(installed.receipt, tool))
    return plan_tool(build, arguments, cwd=working_folder(), environ=environ)


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
    installed = requested_version(session.reader, session)
    build = build_of(installed)
    environ = would_give(session, build.backend)
    plan = plan_server(build, arguments, cwd=working_folder(), environ=environ)
    return _shown(session, installed, plan)


def planned_tool(session: Session, tool: str, arguments: Sequence[str]) -> Planned:
    """Return what ``run`` would start. Raises ``NotInstalled``."""
    installed = requested_version(session.reader, session)
    plan = plan_of(installed, tool, arguments, would_give(session, installed.receipt.backend))
    return _shown(session, installed, plan)


def _shown(session: Session, installed: Installed, plan: LaunchPlan) -> Planned:
    """Return a plan to show: the variables that change what a build does, without their secrets."""
    from tsuku_llm.operations.credentials import masked  # noqa: PLC0415 - a run does without

    for line in signed_status(session, verify=False).of(installed.receipt).lines:
        session.user.note(f"{installed.receipt.release}: {line}")
    # What the start adds for the drivers' caches is shown, too.
    own = session.machine.environ
    told = {
        name: value
        for name, value in sorted(plan.env.items())
        if name.startswith(_TOLD) or name not in own
    }
    shown = {name: "***" if _SECRET.search(name) else value for name, value in told.items()}
    removed = tuple(sorted(own.keys() - plan.env.keys()))
    argv = masked(plan.argv)
    return Planned(installed.id, installed.receipt.line, argv, plan.cwd, shown, removed)
