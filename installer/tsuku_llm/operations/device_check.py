"""The check before a start: whether the build lists its backend's devices, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.errors import GateFailed, SystemLimitReached
from tsuku_llm.launch.devices import ListedDevice, own_devices
from tsuku_llm.launch.planning import Build
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.state_notes import StateNotes

if TYPE_CHECKING:
    from tsuku_llm.launch.causes import Diagnosis
    from tsuku_llm.launch.gate import DeviceListing


class Check(NamedTuple):
    """The result of asking a build for its devices.

    ``build`` has the device to use, if the list still has it. ``devices`` is None without an
    answer. ``problem`` is why the backend cannot be used, None if it can; ``complaint`` is a
    sentence on anything else that is odd.
    """

    build: Build
    devices: tuple[ListedDevice, ...] | None = None
    problem: Diagnosis | None = None
    facts: tuple[str, ...] = ()
    complaint: str = ""


def check_devices(  # noqa: PLR0913
    build: Build,
    version: str,
    notes: StateNotes,
    environ: Mapping[str, str],
    *,
    ask_again: bool = False,
    limit: float | None = None,
) -> Check:
    """Ask the build for its devices, or recall its last answer if nothing has changed since.

    With ``ask_again`` the last answer does not count: not every loss of a GPU leaves a trace that
    ``launch.fingerprint`` can read.

    A list without a device of the backend is asked for again at each start: the driver may only be
    coming up. A question that hangs, crashes or gives an unreadable answer does not stop the start,
    which will show whether the build works. ``limit`` is in seconds, None for the limit of the
    gate.
    """
    # The processor is always there.
    if build.backend == "cpu":
        return Check(build)
    known = None if ask_again else notes.devices(version)
    if known is not None:
        return Check(_with_listed_device(build, known), known)
    # A start with a remembered list starts no child process, so these come late.
    from tsuku_llm.launch.gate import (  # noqa: PLC0415
        GATE_LIMIT,
        hiding_variables,
        list_devices,
        no_device,
    )

    try:
        limit = GATE_LIMIT if limit is None else limit
        listing = list_devices(build, environ, limit=limit)
    except (GateFailed, SystemLimitReached) as error:
        return Check(build, complaint=error.message)
    if not listing.answered:
        return Check(build, complaint=_silence(listing))
    if not own_devices(listing.devices, build.backend):
        problem = no_device(build, listing)
        facts = hiding_variables(build, environ)
        # Without the device: told to use one that is gone, the server would not even start.
        return Check(_with_listed_device(build, listing.devices), listing.devices, problem, facts)
    # Only a list with the backend's devices is kept: an empty one may be right just now only.
    notes.keep_devices(version, listing.devices)
    return Check(_with_listed_device(build, listing.devices), listing.devices)


def explain(session: Session, backend: str) -> tuple[tuple[str, ...], str]:
    """Ask the drivers why a backend lacks devices; return facts, and one fix or an empty string.

    This loads the drivers and the modules for the probe, so only a failing start calls it.
    """
    from tsuku_llm.backends import facts_of  # noqa: PLC0415
    from tsuku_llm.fitting import api_obstacle  # noqa: PLC0415
    from tsuku_llm.probe import probe  # noqa: PLC0415

    hardware = probe(session.machine.host, session.settings.probe_timeout)
    api = hardware.api(facts_of(backend).api)
    if api.problem:
        return (api.problem.text,), api.problem.fix
    obstacle = api_obstacle(api)
    return ((obstacle.text,) if obstacle else ()), ""


def _with_listed_device(build: Build, devices: tuple[ListedDevice, ...]) -> Build:
    """Drop the receipt's device if it is not listed (any more): the server would not start."""
    wanted = set(build.device.split(",")) if build.device else set()
    return build if wanted <= {device.name for device in devices} else build._replace(device=None)


def _silence(listing: DeviceListing) -> str:
    if listing.code is None:
        return "the build does not list its devices in time: a driver may hang"
    if listing.code:
        return f"the build ends with code {listing.code} when it is asked for its devices"
    return "the build's list of devices cannot be read"
