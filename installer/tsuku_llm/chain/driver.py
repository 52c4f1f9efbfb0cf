"""The driver's links of the chain: from the bus to a device that its API lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tsuku_llm.backends import AMD, INTEL, NVIDIA, VENDOR_DRIVER, backend_of_api, facts_of
from tsuku_llm.chain.links import Link, Place, State, Subject
from tsuku_llm.hardware import Api, ApiState, Evidence, Hardware, Problem
from tsuku_llm.selection import api_obstacle

# The adapters among the supporting facts: sysfs' ids with the bound driver, and Windows' ids.
_ON_LINUX = re.compile(r"([0-9a-f]{4}):[0-9a-f?]{4} \(driver (\S+)\)")
_ON_WINDOWS = re.compile(r"ven_([0-9a-f]{4})\S*\s*(\S*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A display adapter among the supporting facts; ``driver`` is None if none is bound."""

    name: str
    vendor: int
    id: str
    driver: str | None


def driver_links(subject: Subject, hardware: Hardware, api: Api) -> tuple[Link, ...]:
    """Judge the five links from the bus to the device."""
    adapters = tuple(_adapters(hardware.evidence, _vendors(subject, api)))
    evidence = _evidence(api, adapters)
    faults = _faults(subject.backend, hardware, api, adapters)
    # A listed device proves the library too, also if its path was not found out.
    listed = bool(api.hardware_gpus)
    holds = {
        Place.PCI: bool(adapters),
        Place.MODULE: any(each.driver for each in adapters) or bool(evidence[Place.MODULE]),
        Place.LIBRARY: listed or api.library is not None,
        Place.INIT: api.state is ApiState.OK or Place.DEVICE in faults,
        Place.DEVICE: listed,
    }
    return tuple(
        Link(place, _state(place, faults, held=held), tuple(evidence[place]), faults.get(place))
        for place, held in holds.items()
    )


def _state(place: Place, faults: Mapping[Place, Problem], *, held: bool) -> State:
    if place in faults:
        return State.BROKEN
    # Without evidence a link is unknown: a container may hide the bus and the modules.
    return State.OK if held else State.UNKNOWN


# --- evidence --------------------------------------------------------------------------------


def _vendors(subject: Subject, api: Api) -> frozenset[int]:
    """Return the vendors whose adapters matter: the device's, or all that the backend serves."""
    gpu = subject.gpu or next(iter(api.hardware_gpus), None)
    if gpu and gpu.vendor_id:
        return frozenset({gpu.vendor_id})
    return facts_of(subject.backend).vendors


def _adapters(evidence: Iterable[Evidence], vendors: frozenset[int]) -> Iterator[Adapter]:
    for fact in evidence:
        match = _ON_LINUX.match(fact.result) or _ON_WINDOWS.search(fact.result)
        if match and int(match[1], 16) in vendors:
            driver = None if match[2] in ("", "none") else match[2]
            yield Adapter(fact.call, int(match[1], 16), fact.result.split(" ")[0], driver)


def _evidence(api: Api, adapters: Iterable[Adapter]) -> dict[Place, list[str]]:
    """Sort the facts by the link to which they belong."""
    told: dict[Place, list[str]] = {place: [] for place in Place}
    for adapter in adapters:
        told[Place.PCI].append(f"{adapter.name}: {adapter.id}")
        told[Place.MODULE] += [adapter.driver] if adapter.driver else []
    for fact in api.evidence:
        told[_place_of(fact.call)].append(f"{fact.call}: {fact.result}")
    told[Place.DEVICE] += [f"{gpu.name} ({gpu.kind.value})" for gpu in api.gpus]
    return told


_LOOKS = (
    (Place.LIBRARY, re.compile(r"open |.* → ")),
    (Place.MODULE, re.compile(r"/proc/|/sys/")),
    (Place.DEVICE, re.compile(r"/dev/|[A-Z]+(?:_[A-Z]+)+$")),
)


def _place_of(call: str) -> Place:
    """Find a fact's link: files and variables by their form; the rest are driver calls."""
    return next((place for place, look in _LOOKS if look.match(call)), Place.INIT)


# --- faults ----------------------------------------------------------------------------------


def _faults(
    backend: str, hardware: Hardware, api: Api, adapters: tuple[Adapter, ...]
) -> dict[Place, Problem]:
    """Collect the broken links and their faults; none if the API lists a hardware device."""
    reason = api_obstacle(api)
    if reason is None:
        return {}
    module = _unbound(backend, adapters)
    found = {Place.MODULE: module} if module else {}
    # A problem of the whole machine explains the API's own one.
    problem = next((each for each in hardware.problems if each.slug in _OF_MACHINE), api.problem)
    if problem:
        return {**found, _broken_by(problem, api): problem}
    unnamed = Problem(reason.slug, reason.text, _fix(hardware, api, adapters))
    return {**found, _reached(api): unnamed}


_OF_MACHINE = {"wsl-without-gpu": Place.MODULE}
_OF_API = {
    "nvidia-module-missing": Place.MODULE,
    "cuda-stub-library": Place.LIBRARY,
    "vulkan-icd-broken": Place.LIBRARY,
    "vulkan-loader-without-icd": Place.LIBRARY,
    "opencl-loader-without-icd": Place.LIBRARY,
    "mig-without-instance": Place.DEVICE,
    "cuda-hidden": Place.DEVICE,
    "cuda-no-device": Place.DEVICE,
    "container-without-gpu": Place.DEVICE,
    "gpu-permission": Place.DEVICE,
    "rocm-no-device": Place.DEVICE,
    "vulkan-no-device": Place.DEVICE,
    "software-only": Place.DEVICE,
}
"""The link that a named problem breaks, if it is not the one at which the API stopped."""


def _broken_by(problem: Problem, api: Api) -> Place:
    place = _OF_MACHINE.get(problem.slug) or _OF_API.get(problem.slug)
    # The chain breaks at its first fault: without the library, its devices do not matter.
    if place is Place.DEVICE and api.library is None:
        return Place.LIBRARY
    return place or _reached(api)


def _reached(api: Api) -> Place:
    """Return the link at which the API stopped."""
    if api.state in (ApiState.CRASHED, ApiState.TIMED_OUT):
        return Place.INIT
    if api.state is ApiState.OK:
        return Place.DEVICE
    return Place.LIBRARY if api.library is None else Place.INIT


def _fix(hardware: Hardware, api: Api, adapters: tuple[Adapter, ...]) -> str:
    """Return the fix for a stop that is not one of the named problems."""
    place = _reached(api)
    if api.state is ApiState.NOT_ASKED:
        return _OTHER
    if place is not Place.LIBRARY:
        return _RESTART if place is Place.INIT else _SWITCHED_ON
    backend = backend_of_api(api.name)
    fix = backend.api_fix if backend and hardware.os == "linux" else VENDOR_DRIVER
    # Without a visible adapter it is not certain that the machine has such a GPU.
    return fix if adapters else f"if this machine has such a GPU: {fix}"


_OTHER = "choose another backend: tsuku-llm backends shows which fit"
_RESTART = "restart the machine; if the problem remains, reinstall the GPU's driver"
_SWITCHED_ON = "check that the GPU is switched on, and passed to this container or virtual machine"


def _unbound(backend: str, adapters: tuple[Adapter, ...]) -> Problem | None:
    """Return the fault if the backend can use none of the adapters as the kernel drives them."""
    # One adapter without a fault is enough.
    faults = [_not_driven(backend, adapter) for adapter in adapters]
    return None if None in faults else next(iter(faults), None)


def _not_driven(backend: str, adapter: Adapter) -> Problem | None:
    if adapter.driver is None:
        module = _MODULES.get(adapter.vendor, "its module")
        fix = f"sudo modprobe {module}; if that fails, {VENDOR_DRIVER}"
        return Problem("no-kernel-driver", f"no kernel driver is bound to {adapter.name}", fix)
    if adapter.driver in ("vfio-pci", "pci-stub"):
        text = f"{adapter.name} is reserved for a virtual machine ({adapter.driver})"
        return Problem(
            "gpu-set-aside",
            text,
            "give it back to the host, or run tsuku-llm in the virtual machine",
        )
    if backend == "cuda" and adapter.driver == "nouveau":
        text = f"{adapter.name} uses the driver nouveau, which does not support CUDA"
        return Problem("nouveau", text, "install the NVIDIA driver, or use Vulkan")
    return None


_MODULES = {NVIDIA: "nvidia", AMD: "amdgpu", INTEL: "i915"}
