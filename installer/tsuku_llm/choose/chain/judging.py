"""The judgement of the chain, link by link, and what helps.

The driver's links go from the bus to a device that its API lists. After these come the variant's
requirement, the installed tree, and the server's list of devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tsuku_llm.catalog.manifest import Variant
from tsuku_llm.choose.chain.links import Chain, Link, LinkState, Listed, Stage, Subject, subject_of
from tsuku_llm.choose.chain.ways import (
    CLOSED_FILES,
    adapters_in,
    install_api,
    system_fix,
    ways_to_gpus,
)
from tsuku_llm.choose.fitting import Reason, api_obstacle, lacking_libraries, system_obstacle
from tsuku_llm.choose.selection import Selection
from tsuku_llm.ground.errors import NotInstalled, TsukuError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.backends import (
    AMD,
    INTEL,
    NVIDIA,
    VENDOR_DRIVER,
    backend_of_api,
    facts_of,
)
from tsuku_llm.machine.fixes import Need, fix_for, for_any_gpu
from tsuku_llm.machine.hardware import Api, ApiState, Hardware, Problem
from tsuku_llm.machine.kernel_drivers import BusCard, not_driven
from tsuku_llm.machine.packages import advice_for
from tsuku_llm.machine.places import Kind


def diagnose(
    subject: Subject,
    hardware: Hardware,
    selection: Selection,
    installed: str | TsukuError,
    listed: Listed | TsukuError | None,
) -> Chain:
    """Judge every link of a subject; a CPU build has no driver's links.

    ``selection`` covers every variant, also those that are not requested. ``installed`` is
    the id of the intact version that ``serve`` would start, or the error that prevents it.
    ``listed`` is the server's answer, or its error; None if it was not asked.
    """
    name = facts_of(subject.backend).api
    driver = driver_links(subject, hardware, hardware.api(name)) if name else ()
    after = (
        _requirement(subject, hardware, selection),
        _tree(subject, installed),
        _server(subject, listed),
    )
    return Chain(subject, (*driver, *after))


# --- the driver ---------------------------------------------------------------------------------


def driver_links(subject: Subject, hardware: Hardware, api: Api) -> tuple[Link, ...]:
    """Judge the five links from the bus to the device."""
    # The vendors whose adapters matter: the device's, or all that the backend serves.
    gpu = subject.gpu or next(iter(api.hardware_gpus), None)
    known = gpu.vendor_id if gpu else None
    vendors = frozenset({known}) if known else facts_of(subject.backend).vendors
    adapters = tuple(adapters_in(hardware.evidence, vendors))
    evidence = _evidence(api, adapters)
    faults = _faults(subject.backend, hardware, api, adapters)
    # A listed device proves the library too, also if its path was not found out.
    listed = bool(api.hardware_gpus)
    holds = {
        Stage.PCI: bool(adapters),
        Stage.MODULE: any(each.driver for each in adapters) or bool(evidence[Stage.MODULE]),
        Stage.LIBRARY: listed or api.library is not None,
        Stage.INIT: api.state is ApiState.OK or Stage.DEVICE in faults,
        Stage.DEVICE: listed,
    }
    links = []
    for stage, held in holds.items():
        fault = faults.get(stage)
        # Without evidence a link is unknown: a container may hide the bus and the modules.
        state = LinkState.BROKEN if fault else LinkState.OK if held else LinkState.UNKNOWN
        facts = tuple(evidence[stage])
        if not facts and stage in (Stage.PCI, Stage.MODULE) and _shows_bus(hardware):
            facts = (_NOT_ON_BUS,)
        links.append(Link(stage, state, facts, fault))
    return tuple(links)


_NOT_ON_BUS = "the PCI bus has no GPU that this backend uses"


def _shows_bus(hardware: Hardware) -> bool:
    """Tell whether display adapters are seen, so that none is hidden; WSL has Microsoft's there."""
    seen = any(fact.call.startswith("PCI ") for fact in hardware.evidence)
    return seen and not hardware.place.wsl


# --- evidence --------------------------------------------------------------------------------


def _evidence(api: Api, adapters: Iterable[BusCard]) -> dict[Stage, list[str]]:
    """Sort the facts by the link to which they belong."""
    told: dict[Stage, list[str]] = {stage: [] for stage in Stage}
    for adapter in adapters:
        told[Stage.PCI].append(f"{adapter.name}: {adapter.numbers}")
        told[Stage.MODULE] += [adapter.driver] if adapter.driver else []
    for fact in api.evidence:
        # Files and variables are known by their form; the rest are calls of the driver.
        stage = next((stage for stage, look in _LOOKS if look.match(fact.call)), Stage.INIT)
        told[stage].append(f"{fact.call}: {fact.result}")
    told[Stage.DEVICE] += [f"{gpu.name} ({gpu.kind.value})" for gpu in api.gpus]
    return told


_LOOKS = (
    (Stage.LIBRARY, re.compile(r"open |.* → ")),
    (Stage.MODULE, re.compile(r"/proc/|/sys/")),
    (Stage.DEVICE, re.compile(r"/dev/|[A-Z]+(?:_[A-Z]+)+$")),
)


# --- faults ----------------------------------------------------------------------------------


def _faults(
    backend: str, hardware: Hardware, api: Api, adapters: tuple[BusCard, ...]
) -> dict[Stage, Problem]:
    """Collect the broken links and their faults; none if the API lists a hardware device."""
    reason = api_obstacle(api)
    if reason is None:
        return {}
    # What a driver says of its own module tells more than the bus does.
    told = api.problem and _OF_API.get(api.problem.slug) is Stage.MODULE
    module = None if told else _nvidias(adapters, hardware) or _unbound(backend, adapters, hardware)
    found = {Stage.MODULE: module} if module else {}
    # A problem of the whole machine explains the API's own one.
    problem = next((each for each in hardware.problems if each.slug in _OF_MACHINE), api.problem)
    if problem:
        return {**found, _broken_by(problem, api): problem}
    unnamed = Problem(reason.slug, reason.text, _driver_fix(hardware, api, adapters))
    return {**found, _reached(api): unnamed}


_OF_MACHINE = {"wsl-without-gpu": Stage.MODULE, "drivers-not-asked": Stage.INIT}
_OF_API = {
    "gpu-set-aside": Stage.MODULE,
    "nouveau": Stage.MODULE,
    "nvidia-card-not-started": Stage.MODULE,
    "nvidia-driver-too-new": Stage.MODULE,
    "nvidia-driver-too-old": Stage.MODULE,
    "nvidia-module-flavour": Stage.MODULE,
    "nvidia-module-missing": Stage.MODULE,
    "nvidia-switched-off": Stage.MODULE,
    "nvidia-too-old": Stage.MODULE,
    "cuda-stub-library": Stage.LIBRARY,
    "driver-not-searched": Stage.LIBRARY,
    "intel-runtime-missing": Stage.LIBRARY,
    "vulkan-icd-broken": Stage.LIBRARY,
    "vulkan-driver-file-missing": Stage.LIBRARY,
    "vulkan-driver-hidden": Stage.LIBRARY,
    "vulkan-loader-without-icd": Stage.LIBRARY,
    "opencl-loader-without-icd": Stage.LIBRARY,
    "mig-without-instance": Stage.DEVICE,
    "cuda-hidden": Stage.DEVICE,
    "cuda-no-device": Stage.DEVICE,
    "container-lost-gpu": Stage.DEVICE,
    "container-without-gpu": Stage.DEVICE,
    "nvidia-card-lost": Stage.DEVICE,
    "nvidia-files-missing": Stage.DEVICE,
    **dict.fromkeys(CLOSED_FILES, Stage.DEVICE),
    "rocm-hidden": Stage.DEVICE,
    "vulkan-hidden": Stage.DEVICE,
    "rocm-no-device": Stage.DEVICE,
    "no-kernel-driver": Stage.MODULE,
    "old-kernel-driver": Stage.MODULE,
    "vulkan-driver-too-old": Stage.LIBRARY,
    "zluda": Stage.LIBRARY,
    "vulkan-no-device": Stage.DEVICE,
    "software-only": Stage.DEVICE,
}
"""The link that a named problem breaks, if it is not the one at which the API stopped."""


def _broken_by(problem: Problem, api: Api) -> Stage:
    stage = _OF_MACHINE.get(problem.slug) or _OF_API.get(problem.slug)
    # The chain breaks at its first fault: without the library, its devices do not matter.
    if stage is Stage.DEVICE and api.library is None:
        return Stage.LIBRARY
    return stage or _reached(api)


def _reached(api: Api) -> Stage:
    """Return the link at which the API stopped."""
    if api.state in (ApiState.CRASHED, ApiState.TIMED_OUT):
        return Stage.INIT
    if api.state is ApiState.OK:
        return Stage.DEVICE
    return Stage.LIBRARY if api.library is None else Stage.INIT


def _driver_fix(hardware: Hardware, api: Api, adapters: tuple[BusCard, ...]) -> str:
    """Return the fix for a stop that is not one of the named problems."""
    stage = _reached(api)
    if api.state is ApiState.NOT_ASKED:
        return _NO_SUCH_API
    backend = backend_of_api(api.name)
    fix = _RESTART
    if stage is Stage.LIBRARY:
        seen = {each.vendor for each in adapters}
        fix = install_api(backend, hardware, seen) if backend else VENDOR_DRIVER
    if adapters or stage is Stage.INIT:
        return fix
    # Other GPUs on the bus: it is visible, and there is none for this backend. A server may have
    # only the adapter of its board's management; an Arm chip has its GPU elsewhere.
    other = any(adapters_in(hardware.evidence, frozenset({NVIDIA, AMD, INTEL})))
    alone = hardware.place.kind is Kind.BARE_METAL and hardware.arch == "amd64"
    if other or (alone and _shows_bus(hardware)):
        return _NO_SUCH_GPU
    # A container or a virtual machine has to be given one first.
    given = for_any_gpu(hardware.place)
    if stage is Stage.DEVICE:
        return given or _ON_THE_BUS
    in_wsl, makers = hardware.place.kind is Kind.WSL, backend.vendors if backend else ()
    if given and (NVIDIA in makers or not in_wsl):
        # NVIDIA's driver of Windows brings all of it: no package is missing here.
        here = "" if in_wsl and set(makers) == {NVIDIA} else fix
        joint = "one of another maker" if in_wsl else "then here"
        return f"{given}; {joint}: {here}" if here else given
    # Without a visible adapter it is not certain that the machine has such a GPU.
    return f"if this machine has such a GPU: {fix}; if not, nothing is wrong"


_NO_SUCH_API = "nothing on this machine changes that: no system of its kind has this backend"
_NO_SUCH_GPU = "nothing on this machine changes that: it has no GPU for this backend"
_RESTART = "restart the machine; if the problem remains, reinstall the GPU's driver"
_ON_THE_BUS = (
    "connect the GPU, if it is external; one in the machine: switch it on in the firmware's setup"
)


def _nvidias(adapters: tuple[BusCard, ...], hardware: Hardware) -> Problem | None:
    """Return what CUDA says of NVIDIA's kernel module, which serves all interfaces."""
    problem = hardware.api("cuda").problem
    if problem is None or _OF_API.get(problem.slug) is not Stage.MODULE:
        return None
    return problem if adapters and all(each.vendor == NVIDIA for each in adapters) else None


def _unbound(backend: str, adapters: tuple[BusCard, ...], hardware: Hardware) -> Problem | None:
    """Return the fault if the backend can use none of the adapters as the kernel drives them."""
    faults = []
    for card in adapters:
        fault = not_driven(card, hardware.place) if hardware.os == "linux" else None
        if backend == "cuda" and card.driver == "nouveau":
            text = f"{card.name} uses the driver nouveau, which does not support CUDA"
            fix = fix_for(Need.NVIDIA_DRIVER, hardware.place)
            fault = Problem("nouveau", text, f"{fix}; or use Vulkan")
        # One adapter without a fault is enough.
        if fault is None:
            return None
        faults.append(fault)
    return next(iter(faults), None)


# --- requirement -----------------------------------------------------------------------------


def remedy(
    requested: str, everything: Selection, hardware: Hardware, elsewhere: str, active: str = ""
) -> str:
    """Say what helps, as ``doctor`` would for this request, and what else leads to a build.

    ``everything`` compares all variants of the release, also those that are not requested.
    ``elsewhere`` is the command that takes a fitting variant from another release or channel, ""
    if there is none. ``active`` is the variant that is installed: to install it changes nothing,
    so the text is empty if that is all. Else it says so if nothing helps.
    """
    subject = subject_of(requested, everything, hardware, None)
    chain = diagnose(subject, hardware, everything, NotInstalled(""), None)
    fix = chain.fault.fix if chain.fault else NOTHING
    # Who asks for any GPU is told what takes the least, as explain and install do.
    if requested == "gpu" and (found := ways_to_gpus(everything, hardware)):
        fix = min(found, key=lambda way: way.effort).fix
    # Only what fits here is offered, and never the request that has just failed.
    best = next(iter(everything.compatible), None)
    other = f"{TSUKU} install --backend {best.variant.name}" if best else ""
    # Some fixes of the chain name a variant already; what was asked for comes before that.
    ways = (elsewhere, fix) if f"{TSUKU} install" in fix else (fix, elsewhere or other)
    known = ("", f"{TSUKU} install --backend {active}")
    return "; or: ".join(way for way in ways if way not in known)


def _requirement(subject: Subject, hardware: Hardware, selection: Selection) -> Link:
    variant = subject.variant
    if variant is None:
        text = f"there is no {subject.backend} build for {hardware.platform}"
        fix = _instead(subject, selection) or NOTHING
        # No driver helps without a build.
        fault = Problem("no-build", text, fix)
        return Link(Stage.REQUIREMENT, LinkState.BROKEN, fault=fault, of_system=True)
    if selection.candidate(variant.name):
        on = subject.gpu.name if subject.gpu else "the processor"
        return Link(Stage.REQUIREMENT, LinkState.OK, (f"{variant.name} fits {on}",))
    reason = _reason(variant, hardware, selection)
    if reason is None:
        return Link(Stage.REQUIREMENT, LinkState.UNKNOWN, (f"{variant.name} needs a device",))
    fix = _fix(subject, reason, selection, hardware)
    fault = Problem(reason.slug, reason.text, fix)
    of_system = system_obstacle(variant, hardware) is not None
    evidence = (variant.name,)
    return Link(Stage.REQUIREMENT, LinkState.BROKEN, evidence, fault, of_system=of_system)


def _reason(variant: Variant, hardware: Hardware, selection: Selection) -> Reason | None:
    """Return the requirement that is not met; None if only a device is missing so far."""
    # Without a device the selection rejects the variant for that reason. The driver's links
    # have judged that already, so here only the rest of the system counts.
    name = facts_of(variant.backend).api
    if name and api_obstacle(hardware.api(name)):
        return system_obstacle(variant, hardware)
    return next(each.reason for each in selection.rejected if each.variant is variant)


def _fix(subject: Subject, reason: Reason, selection: Selection, hardware: Hardware) -> str:
    own = system_fix(reason.slug, hardware)
    if reason.slug == "libraries" and subject.variant:
        lacking = lacking_libraries(subject.variant.requires, hardware)
        own = advice_for(lacking, hardware.packages, container=hardware.container)
    return "; or: ".join(fix for fix in (own, _instead(subject, selection)) if fix) or NOTHING


def _instead(subject: Subject, selection: Selection) -> str | None:
    """Return the command that installs the best fitting variant, if possible of this backend."""
    fitting = [candidate.variant for candidate in selection.compatible]
    if not fitting:
        return None
    best = next((each for each in fitting if each.backend == subject.backend), fitting[0])
    return f"{TSUKU} install --backend {best.name}"


NOTHING = "nothing on this machine changes that: it needs another build of llama.cpp"
"""The fix where none helps."""


# --- the installed build ---------------------------------------------------------------------


def _tree(subject: Subject, installed: str | TsukuError) -> Link:
    if isinstance(installed, str):
        return Link(Stage.TREE, LinkState.OK, (installed,))
    # A damaged or changed tree: its own error says what to do.
    if not isinstance(installed, NotInstalled):
        return _failed(Stage.TREE, installed)
    text = f"no build of {subject.requested} is installed"
    fix = f"{TSUKU} install --backend {subject.requested}"
    fault = Problem(installed.slug, text, fix)
    return Link(Stage.TREE, LinkState.BROKEN, fault=fault, error=NotInstalled)


def _server(subject: Subject, listed: Listed | TsukuError | None) -> Link:
    if listed is None:
        return Link(Stage.LIST, LinkState.UNKNOWN, ("not asked: no intact build is installed",))
    if isinstance(listed, TsukuError):
        return _failed(Stage.LIST, listed)
    # Unknown and not broken: the server's wording of the name may differ from the driver's.
    if subject.gpu and listed.chosen is None:
        missing = f"none of them is called {subject.gpu.name}"
        return Link(Stage.LIST, LinkState.UNKNOWN, (*listed.devices, missing))
    # A CPU build lists no device: that it starts is enough.
    return Link(Stage.LIST, LinkState.OK, listed.devices or ("it starts",))


def _failed(stage: Stage, error: TsukuError) -> Link:
    fault = Problem(error.slug, error.message, error.hint)
    return Link(stage, LinkState.BROKEN, error.facts, fault, type(error))
