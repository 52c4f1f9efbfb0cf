"""The values of the chain (links, faults, subject), and the choice of the subject."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tsuku_llm.catalog.manifest import Variant
from tsuku_llm.choose.chain.ways import adapters_in, ways_to_gpus
from tsuku_llm.choose.selection import Selection, best_gpu
from tsuku_llm.ground.errors import SelectionError, TsukuError
from tsuku_llm.ground.records import documented
from tsuku_llm.machine.backends import NAMES, VENDORS, backends_of, facts_of, meaning
from tsuku_llm.machine.hardware import Api, Gpu, Hardware, Problem


class Stage(str, enum.Enum):
    """The links in their order."""

    PCI = "pci"
    MODULE = "kernel-module"
    LIBRARY = "user-library"
    INIT = "api-init"
    DEVICE = "device"
    REQUIREMENT = "requirement"
    TREE = "installed-tree"
    LIST = "server-list"


class LinkState(str, enum.Enum):
    """The state of a link; ``UNKNOWN`` does not count as a fault."""

    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@documented("stage", "state", "evidence", "fault")
@dataclass(frozen=True, slots=True)
class Link:
    """One link. ``evidence`` are facts as texts; ``fault`` is set only if it is broken.

    ``error`` is the class of the fault: it gives the exit code. ``of_system`` tells that the rest
    of the system is at fault, such as its C library: then no driver helps.
    """

    stage: Stage
    state: LinkState
    evidence: tuple[str, ...] = ()
    fault: Problem | None = None
    error: type[TsukuError] = SelectionError
    of_system: bool = False


@documented("backend", "variant")
@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of the chain: a backend, and the variant of it that is examined.

    ``requested`` is the value of ``--backend`` that selects it: a variant only if the user named
    one. ``variant`` is None if the release contains no build of the backend. ``gpu`` is the
    device that the build should use.
    """

    requested: str
    backend: str
    variant: Variant | None
    gpu: Gpu | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """The installed server's answer to ``--list-devices``.

    ``devices`` are all of them, one text each. ``chosen`` are the names of those that
    are the subject's GPU, None if no device has its name.
    """

    devices: tuple[str, ...]
    chosen: str | None


@documented("*subject", "links", "broken")
@dataclass(frozen=True, slots=True)
class Chain:
    """The links of a subject, in order."""

    subject: Subject
    links: tuple[Link, ...]

    @property
    def broken(self) -> Link | None:
        """The first broken link; before the drivers, one that no driver can mend."""
        links = sorted(self.links, key=lambda link: not link.of_system)
        return next((link for link in links if link.fault), None)

    @property
    def fault(self) -> Problem | None:
        """The fault of the first broken link, which is the one to repair."""
        return self.broken.fault if self.broken else None

    @property
    def exit_code(self) -> int:
        """The exit code of the first fault's error class, or 0 without a fault."""
        return self.broken.error.exit_code if self.broken else 0


# --- the choice of the subject ---------------------------------------------------------------


def subject_of(
    requested: str, selection: Selection, hardware: Hardware, active: tuple[str, str] | None
) -> Subject:
    """Choose the subject: what is requested, else the GPU build in use, else the best one.

    The best one is the best variant for a GPU. ``selection`` covers every variant, also those
    that are not requested. ``active`` is the backend and the variant of the active version.
    """
    # A variant that the user names counts as it is.
    named = {variant.name: variant for variant in selection.variants}
    if requested.lower() in named:
        requested = requested.lower()
        return _of(requested, named[requested], hardware)
    backend = _backend(meaning(requested), selection, hardware, active)
    variant = selection.nearest(backend)
    # Among the backend's variants, the installed one is the one to examine.
    if active and active[0] == backend:
        variant = named.get(active[1], variant)
    return _of(backend, variant, hardware) if variant else Subject(backend, backend, None)


def _of(requested: str, variant: Variant, hardware: Hardware) -> Subject:
    return Subject(requested, variant.backend, variant, best_gpu(variant, hardware))


def _backend(
    requested: str, selection: Selection, hardware: Hardware, active: tuple[str, str] | None
) -> str:
    if requested in NAMES:
        return requested
    # If not even the CPU's build fits, the system is at fault, and no GPU's driver helps.
    if requested == "auto" and not selection.compatible:
        names = [each.backend for each in selection.variants]
        return "cpu" if "cpu" in names else names[0]
    if requested in VENDORS:
        # A maker's own interface is the one to examine, as far as there is a build for it.
        offered = {variant.backend for variant in selection.variants}
        own = [backend for backend in backends_of(requested) if backend in offered]
        if own:
            return own[0]
    # A CPU build in use does not tell which GPU backend to examine, if there is a GPU at all.
    if active and (active[0] != "cpu" or (requested == "auto" and not _shows_a_gpu(hardware))):
        return active[0]
    fitting = [candidate.variant.backend for candidate in selection.compatible]
    # The processor comes before another backend that fits only if the GPU is slower.
    if requested == "auto" and fitting[0] == "cpu" and {*fitting} != {"cpu"}:
        return "cpu"
    best = next((backend for backend in fitting if backend != "cpu"), None)
    # Without GPU builds for this platform: "gpu" if the user asks for one, else "cpu".
    return best or _most_promising(selection, hardware) or ("gpu" if requested == "gpu" else "cpu")


_NORMAL_WITHOUT_A_GPU = {
    "software-only",
    "vulkan-loader-without-icd",
    "opencl-loader-without-icd",
}
"""The problems that a machine without a GPU has as well; any other is a sign of one."""


def _shows_a_gpu(hardware: Hardware) -> bool:
    """Return whether anything shows that the machine has a GPU, or is meant to have one."""
    return (
        any(api.hardware_gpus for api in hardware.apis)
        or any(adapters_in(hardware.evidence, frozenset(VENDORS.values())))
        or any(each.slug not in _NORMAL_WITHOUT_A_GPU for each in hardware.all_problems)
    )


def _most_promising(selection: Selection, hardware: Hardware) -> str | None:
    """Choose the GPU backend whose way takes the least; else the one that came furthest.

    The order among equals is the manifest's.
    """
    if ways := ways_to_gpus(selection, hardware):
        return min(ways, key=lambda way: way.effort).backend
    backends = [each.backend for each in selection.variants if each.backend != "cpu"]
    return max(backends, key=lambda each: _promise(hardware.api(facts_of(each).api)), default=None)


def _promise(api: Api) -> tuple[bool, bool, bool, bool]:
    # In this order: it lists a device; its fault goes away; its fault is known, so the user
    # gets a fix; its library is installed.
    problem = api.problem
    return (
        bool(api.hardware_gpus),
        problem is not None and problem.transient,
        problem is not None,
        api.library is not None,
    )
