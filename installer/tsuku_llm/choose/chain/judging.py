"""The judgement of the whole chain, of the links after the driver's, and what helps.

These links are the variant's requirement, the installed tree, and the server's list of devices.
"""

from __future__ import annotations

from tsuku_llm.catalog.manifest import Variant
from tsuku_llm.choose.chain.driver import driver_links
from tsuku_llm.choose.chain.links import Chain, Link, LinkState, Listed, Stage, Subject, subject_of
from tsuku_llm.choose.chain.ways import system_fix, ways_to_gpus
from tsuku_llm.choose.fitting import Reason, lacking_libraries, system_obstacle
from tsuku_llm.choose.selection import Selection
from tsuku_llm.ground.errors import NotInstalled, TsukuError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.backends import facts_of
from tsuku_llm.machine.hardware import Hardware, Problem
from tsuku_llm.machine.packages import advice_for


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
    if name and not hardware.api(name).hardware_gpus:
        return system_obstacle(variant, hardware)
    return next(each.reason for each in selection.rejected if each.variant is variant)


def _fix(subject: Subject, reason: Reason, selection: Selection, hardware: Hardware) -> str:
    own = system_fix(reason.slug, hardware)
    if reason.slug == "libraries" and subject.variant:
        lacking = lacking_libraries(subject.variant.requires, hardware)
        own = advice_for(lacking, hardware.packages, container=hardware.place.contained)
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
