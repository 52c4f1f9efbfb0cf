"""The check before a start: whether the build lists its backend's devices, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tsuku_llm.ground.errors import GateFailed, SystemLimitReached
from tsuku_llm.launch.plan.devices import ListedDevice, own_devices
from tsuku_llm.launch.plan.fingerprint import driver_fingerprint
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.machine.backends import VENDORS, facts_of, may_hide_devices, meaning, parts_of
from tsuku_llm.machine.card_speeds import plain_name
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.store.records.receipt import Receipt

if TYPE_CHECKING:
    from tsuku_llm.launch.failed.diagnosis import Diagnosis
    from tsuku_llm.launch.memory.fit import Card
    from tsuku_llm.launch.run.gate import DeviceListing
    from tsuku_llm.machine.host import Host
    from tsuku_llm.steps.session import Session
    from tsuku_llm.store.records.installed import Installed


class Check(NamedTuple):
    """The result of asking a build for its devices.

    ``devices`` is None without an answer; they are ``recalled`` if that is an earlier one.
    ``problem`` is why the backend cannot be used, None if it can; ``complaint`` is a sentence on
    anything else that is odd. ``hardware`` is the probe's result when the build was installed.
    ``maker`` is the PCI id of the maker whose devices alone are wanted, None for any. ``fit_tool``
    is the build's own program that tells what memory a model needs; None without one.
    """

    build: Build
    devices: tuple[ListedDevice, ...] | None = None
    problem: Diagnosis | None = None
    facts: tuple[str, ...] = ()
    complaint: str = ""
    recalled: bool = False
    hardware: Mapping[str, Any] = {}
    maker: int | None = None
    fit_tool: Build | None = None

    @property
    def cards(self) -> tuple[Card, ...]:
        """The devices of the build's own backend, none for the processor.

        The probe knows what kinds they are, who made them, and which of them the build has no code
        for. Those are left out, and with a ``maker`` the devices of other makers, too.
        """
        if self.build.backend == "cpu" or not self.devices:
            return ()
        from tsuku_llm.launch.memory.placement import cards_of

        backend = self.build.backend
        probed = tuple(_probed(self.hardware, backend))
        kinds = {gpu["name"]: gpu["kind"] for gpu in probed}
        cards = cards_of(_told_apart(own_devices(self.devices, backend), probed), kinds)
        others = {
            plain_name(gpu["name"])
            for gpu in probed
            if gpu.get("unusable")
            or (self.maker and gpu.get("vendor_id") not in (None, self.maker))
        }
        return tuple(card for card in cards if plain_name(card.description) not in others)


def check_devices(
    build: Build,
    version: str,
    notes: StateNotes,
    environ: Mapping[str, str],
    *,
    ask_again: bool = False,
) -> Check:
    """Ask the build for its devices, or recall its last answer if nothing has changed since.

    With ``ask_again`` the last answer does not count: not every loss of a GPU leaves a trace that
    ``launch.plan.fingerprint`` can read.

    A list without a device of the backend is asked for again at each start: the driver may only be
    coming up. A question that hangs, crashes or gives an unreadable answer does not stop the start,
    which will show whether the build works.
    """
    # The processor is always there.
    if build.backend == "cpu":
        return Check(build)
    known = None if ask_again else notes.listed(version)
    if known is not None:
        return Check(build, known.devices, recalled=True)
    # A start with a remembered list starts no child process, so these come late.
    from tsuku_llm.launch.run.gate import list_devices, no_device

    try:
        listing = list_devices(build, environ)
    except (GateFailed, SystemLimitReached) as error:
        return Check(build, complaint=error.message)
    if not listing.answered:
        return Check(build, complaint=_silence(listing))
    if not own_devices(listing.devices, build.backend):
        problem = no_device(build, listing, environ)
        return Check(build, listing.devices, problem, problem.facts)
    # Only a list with the backend's devices is kept: an empty one may be right just now only.
    names = (name for part in parts_of(build.backend) for name in facts_of(part).hiding_variables)
    given = {name: environ[name] for name in names if name in environ}
    notes.keep_devices(version, listing.devices, given)
    return Check(build, listing.devices)


def with_given_cards(session: Session, installed: Installed) -> dict[str, str]:
    """Return the environment in which a build uses no card that another interface was not given.

    ``CUDA_VISIBLE_DEVICES`` limits Vulkan too, and the other way round. This asks the drivers once
    for each state of them and of the variables.
    """
    environ = dict(session.machine.environ)
    # Without such a variable a start loads nothing of the probe.
    if not may_hide_devices(environ):
        return environ
    from tsuku_llm.probe import probe
    from tsuku_llm.probe.visible import is_limited_elsewhere, only_given

    backend = installed.receipt.backend
    if not any(is_limited_elsewhere(part, environ) for part in parts_of(backend)):
        return environ
    notes = StateNotes(session.paths.state, driver_fingerprint(session.machine.environ))
    if listed := notes.listed(installed.id):
        given = listed.given
    else:
        hardware = probe(session.machine.host, session.settings.probe_timeout)
        given = only_given(backend, hardware, environ)
    for name, value in given.items():
        if name not in environ:
            session.user.note(
                f"{name}={value} for the server: a variable leaves the other cards to other users"
            )
    return {**given, **environ}


def has_machine_code(check: Check) -> bool:
    """Tell whether the build has machine code for every device that it can use.

    A device that the install did not see may need other code.
    """
    probed = _probed(check.hardware, check.build.backend)
    known = {plain_name(gpu["name"]) for gpu in probed if gpu.get("machine_code")}
    cards = check._replace(maker=None).cards
    return bool(cards) and all(plain_name(card.description) in known for card in cards)


def _told_apart(
    devices: Sequence[ListedDevice], probed: Sequence[Mapping[str, Any]]
) -> tuple[ListedDevice, ...]:
    """Add the kinds of devices of one name that the probe found to be of several kinds.

    HIP calls a card without a name "AMD Radeon Graphics", as it does an integrated GPU. Both list
    their devices in the driver's order, so as many of them as the probe found are the same ones.
    """
    found = list(devices)
    for plain in {plain_name(gpu["name"]) for gpu in probed}:
        kinds = [gpu["kind"] for gpu in probed if plain_name(gpu["name"]) == plain]
        ours = [at for at, each in enumerate(found) if plain_name(each.description) == plain]
        if len(set(kinds)) <= 1 or len(kinds) != len(ours):
            continue
        for at, kind in zip(ours, kinds, strict=True):
            # What the build itself says comes first.
            if found[at].integrated is None and kind in ("integrated", "discrete"):
                found[at] = found[at]._replace(integrated=kind == "integrated")
    return tuple(found)


def wanted_maker(receipt: Receipt, requested: str) -> int | None:
    """Return the PCI id of the maker whose GPUs the user asks for, now or at the install.

    ``requested`` is the setting ``llm.backend``. None for any other request.
    """
    word = receipt.requested if requested == "auto" else requested
    if word == "auto":
        return None

    # A variant may have the name of a maker: then its name counts.
    return None if word == receipt.variant else VENDORS.get(meaning(word))


def with_other_processes(cards: Sequence[Card], env: Mapping[str, str]) -> tuple[Card, ...]:
    """Add which processes hold memory of these devices, as far as NVIDIA's library knows it."""
    from tsuku_llm.launch.gpu.nvml import gpu_memory, with_holders

    seen = gpu_memory(env) if cards else None
    return with_holders(cards, seen) if seen else tuple(cards)


def _probed(hardware: Mapping[str, Any], backend: str) -> Iterator[Mapping[str, Any]]:
    """Yield each device with a name and a kind that the probe found by the APIs of a backend.

    The receipt has the probe's words; a part that is missing there is unknown.
    """
    found = [each for each in hardware.get("apis") or () if isinstance(each, dict)]
    for api in (facts_of(part).api for part in parts_of(backend)):
        listed = chain.from_iterable(
            each.get("gpus") or () for each in found if each.get("name") == api
        )
        for gpu in listed:
            if isinstance(gpu, dict) and "name" in gpu and "kind" in gpu:
                yield {**gpu, "name": str(gpu["name"]), "kind": str(gpu["kind"])}


def explain(backend: str, host: Host, limit: int) -> tuple[tuple[str, ...], str]:
    """Ask the drivers why a backend lacks devices; return facts, and one fix or an empty string.

    A driver may take ``limit`` seconds to answer. This loads the drivers and the modules for the
    probe, so only a failing start calls it.
    """
    from tsuku_llm.choose.fitting import api_obstacle
    from tsuku_llm.probe import probe

    hardware = probe(host, limit)
    api = hardware.api(facts_of(backend).api)
    if api.problem:
        return (api.problem.text,), api.problem.fix
    obstacle = api_obstacle(api)
    return ((obstacle.text,) if obstacle else ()), ""


def _silence(listing: DeviceListing) -> str:
    if listing.code is None:
        return "the build does not list its devices in time: a driver may hang"
    if listing.code:
        return f"the build ends with code {listing.code} when it is asked for its devices"
    return "the build's list of devices cannot be read"
