"""The gate: a check that a build runs here and offers its backend, before it is committed.

The check can only reject a build. A device that is listed can still fail at its first kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tsuku_llm.ground import system_limits
from tsuku_llm.ground.errors import GateFailed
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.launch.ask.child import ProcessResult, ask
from tsuku_llm.launch.ask.last_words import last_lines
from tsuku_llm.launch.failed.diagnosis import (
    CPU_OVERRIDE,
    Diagnosis,
    after_config,
    diagnose,
    ending,
)
from tsuku_llm.launch.failed.failure import distribution, why_not_started
from tsuku_llm.launch.plan.build_arguments import help_lines
from tsuku_llm.launch.plan.devices import (
    ListedDevice,
    choose,
    own_devices,
    parse_devices,
    with_kinds,
)
from tsuku_llm.launch.plan.planning import Build, plan_question
from tsuku_llm.launch.plan.upstream_config import reads_config
from tsuku_llm.machine.backends import TABLE, BackendFacts, facts_of, parts_of

GATE_LIMIT = 60.0
"""Seconds for each question. The first start after a boot loads a driver from disk."""

_HELP_LIMIT = 10.0
"""Seconds for the help, which no driver delays: another program may serve instead."""

_LAST_LINES = 8


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """The answer to ``--list-devices``; ``code`` is None after a timeout.

    ``answered``: the server printed a list, even an empty one; silence does not count.
    """

    devices: tuple[ListedDevice, ...]
    code: int | None
    text: str
    answered: bool


@dataclass(frozen=True, slots=True)
class GateReport:
    """The result for a build that may be committed.

    ``device`` are the listed devices that are called as the one that the build was chosen for.
    ``takes`` are the lines of its help with its arguments, empty if it does not tell them.
    ``reads_config``: it reads upstream's ``config.ini``.
    """

    version: str
    devices: tuple[ListedDevice, ...] = ()
    device: str | None = None
    takes: tuple[str, ...] = ()
    reads_config: bool = False


def list_devices(build: Build, environ: Mapping[str, str]) -> DeviceListing:
    """Ask the server for its devices. Raises GateFailed if it cannot be started."""
    answer = _ask(build, ("--list-devices",), environ, GATE_LIMIT)
    # Versions differ in the stream on which they print the list.
    said, other = parse_devices(answer.stdout), parse_devices(answer.stderr)
    text = f"{answer.stderr}{answer.stdout}"
    answered = answer.code == 0 and (said, other) != (None, None)
    return DeviceListing(with_kinds(said or other or (), text), answer.code, text, answered)


def gate(build: Build, environ: Mapping[str, str], *, expected: str | None = None) -> GateReport:
    """Ask the server for its version, and for its devices if it has a GPU backend.

    ``expected`` is the name of the device that the build was chosen for. Raises
    GateFailed with the cause, the server's last lines, and what to do.
    """
    # Pass the variant's fixed arguments too: they may be what keeps it from the GPU.
    started = _ask(build, (*build.arguments, "--version"), environ, GATE_LIMIT)
    text = f"{started.stdout}{started.stderr}"
    _require_success(build, started.code, text)
    devices: tuple[ListedDevice, ...] = ()
    if build.backend != "cpu":
        # It runs. Now ask what it can run on: a second process, which loads the GPU's driver.
        listing = list_devices(build, environ)
        _require_success(build, listing.code, listing.text)
        devices = listing.devices
        # ggml ignores a backend that does not start: the server would run on the CPU. A build with
        # several backends needs a device for each: else the build of one of them is enough.
        for part in parts_of(build.backend):
            if not own_devices(devices, part):
                problem = no_device(build._replace(backend=part), listing, environ)
                _refuse(build, problem, problem.facts)
    # A build that runs and tells no arguments is not refused for it. Forks of upstream print the
    # help on the other stream.
    told = _ask(build, ("--help",), environ, _HELP_LIMIT)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("version:")]
    return GateReport(
        version=next(iter([*named, *lines]), ""),
        devices=devices,
        device=choose(own_devices(devices, build.backend), expected),
        takes=help_lines(told.stdout) or help_lines(told.stderr),
        reads_config=reads_config(build.executable),
    )


def _ask(
    build: Build, arguments: Sequence[str], environ: Mapping[str, str], limit: float
) -> ProcessResult:
    """Ask one question; a build that cannot be started is refused."""
    try:
        return ask(plan_question(build, arguments, environ), limit)
    except OSError as exc:
        # A limit of the system says nothing about the build: no other variant is tried.
        system_limits.refuse(exc, f"starting the {build.backend} build")
        _refuse(build, why_not_started(exc, build.executable), (str(exc),), exc)


def _require_success(build: Build, code: int | None, text: str) -> None:
    if code == 0:
        return
    if code is None:
        found = Diagnosis(
            "timed-out",
            f"it did not answer within {GATE_LIMIT:g} seconds",
            "a driver may hang: reboot, or update it",
            CPU_OVERRIDE,
            fault="backend",
        )
    else:
        unknown = Diagnosis(
            "unknown",
            f"it {ending(code)}",
            f"look at the output of {TSUKU} probe",
            CPU_OVERRIDE,
            fault="unknown",
        )
        known = diagnose(code, text, distribution=distribution())
        found = known or after_config(text) or unknown
    _refuse(build, found, last_lines(text, _LAST_LINES))


def no_device(build: Build, listing: DeviceListing, environ: Mapping[str, str]) -> Diagnosis:
    """Explain why a list lacks the backend's devices: what is listed instead, and the cause.

    The cause comes from the driver's output, if that has a known complaint. The facts are the
    environment variables that can hide devices. A start sets the backend's own variable if one of
    another interface leaves cards out: then that one is the user's.
    """
    backend = facts_of(build.backend)
    hiding = [name for name in backend.hiding_variables if name in environ]
    given, _, nothing = backend.given_by or ("", "", "")
    if given in hiding and environ[given] == nothing and (theirs := _of_others(backend, environ)):
        value = f"{theirs}={environ[theirs]}"
        return Diagnosis(
            "no-device",
            f"it lists no device: {value} leaves it none",
            f"correct or unset {theirs}",
            CPU_OVERRIDE,
            facts=(f"{value} is set, and {given}={nothing} follows from it",),
            fault="backend",
        )
    # Another backend's devices in the list show that the build itself works.
    others = ", ".join(device.name for device in listing.devices)
    found = f"only {others}" if others else "no device"
    known = diagnose(0, listing.text, distribution=distribution())
    cause = known.cause if known else f"its {build.backend} backend did not start"
    return Diagnosis(
        "no-device",
        f"it lists {found}: {cause}",
        known.fix if known else backend.first_look,
        CPU_OVERRIDE,
        facts=tuple(f"{name}={environ[name]} is set and can hide devices" for name in hiding),
        fault="backend",
    )


def _of_others(backend: BackendFacts, environ: Mapping[str, str]) -> str | None:
    """Return the variable of another interface for cards that this backend can use."""
    others = (row for row in TABLE if row.vendors & backend.vendors)
    names = (name for row in others for name in row.hiding_variables)
    return next(
        (each for each in names if each in environ and each not in backend.hiding_variables), None
    )


def _refuse(
    build: Build,
    diagnosis: Diagnosis,
    facts: tuple[str, ...],
    cause: OSError | None = None,
) -> NoReturn:
    raise GateFailed(
        f"the {build.backend} build does not run here: {diagnosis.cause}",
        facts=facts,
        hint=diagnosis.hint(build.backend, build.reinstall),
    ) from cause
