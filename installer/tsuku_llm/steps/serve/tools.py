"""The build's other tools (llama-cli, llama-bench), run after the same checks as ``serve``.

Also the dry runs of ``serve`` and ``run``: what would be started. They start nothing, make the
same checks and end with the same errors; that of ``serve`` asks the build for its devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.ground.errors import BackendFailed, SilentCpu
from tsuku_llm.ground.records import documented
from tsuku_llm.launch.plan.planning import LaunchPlan, plan_tool
from tsuku_llm.launch.plan.secret_arguments import masked, shown_variable
from tsuku_llm.machine.backends import may_hide_devices
from tsuku_llm.steps.choosing.revocation import require_not_revoked
from tsuku_llm.steps.choosing.which import (
    become,
    build_of,
    requested_version,
    require_safe_folder,
    tool_of,
)
from tsuku_llm.steps.drivers.caches import build_caches, would_give
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.records.installed import Installed

if TYPE_CHECKING:
    from tsuku_llm.launch.plan.report import Placement
    from tsuku_llm.steps.serve.all_models import RouterPreset
    from tsuku_llm.steps.serve.version_start import Serving

_TOLD = ("LLAMA_", "GGML_", "MTMD_", "LD_LIBRARY_PATH")
"""Beginnings of the names of variables that change what a build does, besides its arguments."""


def run_tool(session: Session, tool: str, arguments: Sequence[str]) -> int:
    """Check the installed tree and become ``tool``; on Windows wait and return its exit code.

    Raises ``NotInstalled`` if the build has no such tool, ``TamperedInstall``, ``UnsafeLocation``,
    ``Revoked`` and ``LaunchError``.
    """
    reader = session.reader
    installed = requested_version(session)
    # From here on other processes cannot remove this version, nor the drivers' caches; the tool
    # inherits the descriptors and keeps the holds.
    with (
        reader.hold(installed) as held,
        build_caches(
            installed.receipt.backend,
            session.paths,
            _given(session, installed),
            session.user.note,
        ) as caches,
    ):
        plan = _checked_plan(session, installed, tool, arguments, caches.environ)
        session.user.note(installed.receipt.line)
        return become(plan, tuple(each for each in (held, caches.held) if each is not None))


def _given(session: Session, installed: Installed) -> Mapping[str, str]:
    """Return the environment with the cards that this user was given."""
    if not may_hide_devices(session.machine.environ):
        return session.machine.environ
    from tsuku_llm.steps.drivers.device_check import with_given_cards

    return with_given_cards(session, installed)


def _checked_plan(
    session: Session,
    installed: Installed,
    tool: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> LaunchPlan:
    """Return the plan to become ``tool`` after every check. The caller holds the version."""
    build = build_of(installed)._replace(server=tool_of(installed.receipt, tool))
    plan = plan_tool(build, arguments, cwd=working_folder(), environ=environ)
    session.reader.admit(installed)
    require_not_revoked(session, installed.receipt)
    require_safe_folder(session.paths, plan.cwd)
    return plan


@documented("id", "argv", "cwd", "environment", "removed", "placement", "preset")
@dataclass(frozen=True, slots=True)
class Planned:
    """A start that is only shown.

    ``environment`` is the part of the environment that the build reads.
    ``removed`` are the variables that the build does not get: they could load foreign code, or are
    a router's for its own servers.
    ``placement`` is None for a build for the CPU, and where its devices are not known. ``preset``
    has the models of a start without a model; the file is not written.
    """

    id: str
    line: str
    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]
    removed: tuple[str, ...] = ()
    placement: Placement | None = None
    preset: RouterPreset | None = None


def planned(session: Session, arguments: Sequence[str], how: Serving) -> Planned:
    """Return what ``serve`` would start, after the same checks and with the same errors.

    A failed backend leads to the next variant, as in ``serve``, if that is installed.
    """
    from tsuku_llm.launch.plan.fingerprint import driver_fingerprint
    from tsuku_llm.steps.drivers.state_notes import StateNotes
    from tsuku_llm.steps.serve.fallback import next_version, remembered
    from tsuku_llm.steps.serve.version_start import VersionStart

    # A dry run asks nothing, and takes no consent for granted.
    session = session._replace(user=session.user._replace(ask=lambda _: False, can_ask=False))
    cwd, gpu_only = working_folder(), how.require_gpu
    notes = StateNotes(session.paths.state, driver_fingerprint(session.machine.environ))
    preferred = requested_version(session)
    installed, failures = remembered(session, notes, preferred, gpu_only=gpu_only)
    # As in ``serve``: ``next_version`` goes down the ranking, so this ends.
    while True:
        start = VersionStart(session, arguments, how, installed, notes, cwd, failures.failed)
        try:
            placed = start.planned()
        except (BackendFailed, SilentCpu) as error:
            failures = failures.longer(installed, error)
            other = next_version(session, preferred, failures, gpu_only=gpu_only, installs=False)
            if other:
                installed = other
                continue
            if gpu_only or not isinstance(error, SilentCpu):
                raise
            placed = start._replace(insist=True).planned()
        environ, plan = session.machine.environ, placed.plan
        return _shown(environ, installed, plan, placed.placement, placed.preset)


def planned_tool(session: Session, tool: str, arguments: Sequence[str]) -> Planned:
    """Return what ``run`` would start, after the same checks and with the same errors."""
    installed = requested_version(session)
    environ = would_give(installed.receipt.backend, session.paths, _given(session, installed))
    with session.reader.hold(installed):
        plan = _checked_plan(session, installed, tool, arguments, environ)
    return _shown(session.machine.environ, installed, plan)


def _shown(
    environ: Mapping[str, str],
    installed: Installed,
    plan: LaunchPlan,
    placement: Placement | None = None,
    preset: RouterPreset | None = None,
) -> Planned:
    """Return a plan to show: the variables that change what a build does, without their secrets."""
    # What the start adds for the drivers' caches is shown, too.
    told = {
        name: value
        for name, value in sorted(plan.env.items())
        if name.startswith(_TOLD) or name not in environ
    }
    shown = {name: shown_variable(name, value) for name, value in told.items()}
    removed = tuple(sorted(environ.keys() - plan.env.keys()))
    argv = masked(plan.argv)
    line = installed.receipt.line
    return Planned(installed.id, line, argv, plan.cwd, shown, removed, placement, preset)
