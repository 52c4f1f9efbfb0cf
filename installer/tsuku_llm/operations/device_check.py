"""Before a start: whether the build lists its backend's devices, and if not, why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tsuku_llm import launch
from tsuku_llm.errors import GateFailed
from tsuku_llm.operations.memory import Memory
from tsuku_llm.operations.session import Session


class Check(NamedTuple):
    """What the list says of a build.

    ``build`` is it with the device to hand over, if that is still listed. ``devices`` is None
    where there was no answer. ``problem`` is why the backend cannot be used, None where
    nothing speaks against it; ``complaint`` a sentence on what else is odd.
    """

    build: launch.Build
    devices: tuple[launch.ListedDevice, ...] | None = None
    problem: launch.Diagnosis | None = None
    facts: tuple[str, ...] = ()
    complaint: str = ""


def check_devices(
    build: launch.Build,
    version: str,
    memory: Memory,
    environ: Mapping[str, str],
    *,
    limit: float | None = None,
) -> Check:
    """Ask the build for its devices, or remember what it said when nothing was different.

    A list that has none of the backend's is asked for each time: a driver may be about to
    come up. One that hangs (for ``limit`` seconds; None: as long as
    the gate waits), crashes or cannot be read accuses nobody:
    the start will tell.
    """
    if build.backend == "cpu":
        return Check(build)
    known = memory.devices(version)
    if known is not None:
        return Check(_with_listed_device(build, known), known)
    try:
        limit = launch.GATE_LIMIT if limit is None else limit
        listing = launch.list_devices(build, environ, limit=limit)
    except GateFailed as error:
        return Check(build, complaint=error.message)
    if not listing.answered:
        return Check(build, complaint=_silence(listing))
    if not launch.own_devices(listing.devices, build.backend):
        problem = launch.no_device(build, listing)
        return Check(build, listing.devices, problem, launch.hiding_variables(build, environ))
    memory.keep_devices(version, listing.devices)
    return Check(_with_listed_device(build, listing.devices), listing.devices)


def explain(session: Session, backend: str) -> tuple[tuple[str, ...], str]:
    """What the drivers themselves say of a backend without devices: facts, and one fix or "".

    Asks them, and loads what that takes: only for a start that is going wrong.
    """
    from tsuku_llm.probe import probe  # noqa: PLC0415
    from tsuku_llm.selection import API_OF_BACKEND, api_obstacle  # noqa: PLC0415

    api = probe(session.host).api(API_OF_BACKEND[backend])
    if api.problem:
        return (api.problem.text,), api.problem.fix
    obstacle = api_obstacle(api)
    return ((obstacle.text,) if obstacle else ()), ""


def _with_listed_device(
    build: launch.Build, devices: tuple[launch.ListedDevice, ...]
) -> launch.Build:
    """Hand over no device that is not there any more: the server would refuse to start."""
    wanted = set(build.device.split(",")) if build.device else set()
    return build if wanted <= {device.name for device in devices} else build._replace(device=None)


def _silence(listing: launch.Listing) -> str:
    if listing.code is None:
        return "the build does not list its devices in time: a driver that hangs looks like this"
    if listing.code:
        return f"the build ends with code {listing.code} when it is asked for its devices"
    return "the build's list of devices cannot be read"
