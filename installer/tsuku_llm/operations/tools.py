"""The build's other tools (llama-cli, llama-bench), run after the same checks as ``serve``.

Also the dry runs of ``serve`` and ``run``: what would be started. They start nothing; that of
``serve`` asks the build for its devices, after the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.errors import TsukuError
from tsuku_llm.launch.planning import LaunchPlan, plan_server, plan_tool, require_no_plugins
from tsuku_llm.operations.caches import build_caches, would_give
from tsuku_llm.operations.revocation import ReleaseStatus, require_not_revoked, signed_status
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.which import become, build_of, requested_version, tool_of
from tsuku_llm.ownership import check_path
from tsuku_llm.store.installed import Installed

if TYPE_CHECKING:
    from tsuku_llm.launch.report import Placement

_TOLD = ("LLAMA_", "GGML_", "MTMD_", "LD_LIBRARY_PATH")
"""Beginnings of the names of variables that change what a build does, besides its arguments."""


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
    ``placement`` is None for a build for the CPU, and where its devices are not known.
    """

    id: str
    line: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    removed: tuple[str, ...] = ()
    placement: Placement | None = None


def planned(session: Session, arguments: Sequence[str]) -> Planned:
    """Return what ``serve`` would start. Raises ``NotInstalled``."""
    from tsuku_llm.launch.fingerprint import driver_fingerprint  # noqa: PLC0415 - a run does without
    from tsuku_llm.launch.wishes import downloads_in  # noqa: PLC0415
    from tsuku_llm.operations.device_check import check_devices, wanted_maker  # noqa: PLC0415
    from tsuku_llm.operations.placing import place_start  # noqa: PLC0415
    from tsuku_llm.operations.state_notes import StateNotes  # noqa: PLC0415

    installed = requested_version(session.reader, session)
    build = build_of(installed)
    environ = would_give(session, build.backend)
    plan = plan_server(build, arguments, cwd=working_folder(), environ=environ)
    notes = StateNotes(session.paths.state, driver_fingerprint(session.machine.environ))
    ask = partial(check_devices, build, installed.id, notes, environ)
    placement: Placement | None = None
    status = _tell_status(session, installed)
    if downloads_in(arguments, environ):
        from tsuku_llm.operations.downloads import require_https  # noqa: PLC0415 - only then

        require_https(session, installed, arguments, environ)
    try:
        with session.reader.hold(installed):
            session.reader.check(installed)
            # Asking for devices runs the build: only one that ``serve`` would run, too.
            if status.revocation and not session.allow_revoked:
                return _shown(session, installed, plan)
            placed = place_start(
                plan,
                ask(),
                installed.receipt.hardware,
                session.settings.placement,
                partial(ask, ask_again=True),
                maker=wanted_maker(installed.receipt, session.settings.backend),
            )
            plan, placement = placed.plan, placed.placement
    except TsukuError as error:
        session.user.note(f"the devices are not known: {error.message}")
    return _shown(session, installed, plan, placement)


def planned_tool(session: Session, tool: str, arguments: Sequence[str]) -> Planned:
    """Return what ``run`` would start. Raises ``NotInstalled``."""
    installed = requested_version(session.reader, session)
    plan = plan_of(installed, tool, arguments, would_give(session, installed.receipt.backend))
    _tell_status(session, installed)
    return _shown(session, installed, plan)


def _tell_status(session: Session, installed: Installed) -> ReleaseStatus:
    """Print what is known of the release; return it."""
    status = signed_status(session, verify=False).of(installed.receipt)
    for line in status.lines:
        session.user.note(f"{installed.receipt.release}: {line}")
    return status


def _shown(
    session: Session,
    installed: Installed,
    plan: LaunchPlan,
    placement: Placement | None = None,
) -> Planned:
    """Return a plan to show: the variables that change what a build does, without their secrets."""
    from tsuku_llm.launch.secret_arguments import (  # noqa: PLC0415 - a run does without
        masked,
        shown_variable,
    )

    # What the start adds for the drivers' caches is shown, too.
    own = session.machine.environ
    told = {
        name: value
        for name, value in sorted(plan.env.items())
        if name.startswith(_TOLD) or name not in own
    }
    shown = {name: shown_variable(name, value) for name, value in told.items()}
    removed = tuple(sorted(own.keys() - plan.env.keys()))
    argv = masked(plan.argv)
    line = installed.receipt.line
    return Planned(installed.id, line, argv, plan.cwd, shown, removed, placement)
