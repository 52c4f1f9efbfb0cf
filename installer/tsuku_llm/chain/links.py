"""The values of the chain: its links, their faults, and its subject."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tsuku_llm.errors import SelectionError, TsukuError
from tsuku_llm.hardware import Gpu
from tsuku_llm.manifest import Variant


class Place(str, enum.Enum):
    """The links in their order."""

    PCI = "pci"
    MODULE = "kernel-module"
    LIBRARY = "user-library"
    INIT = "api-init"
    DEVICE = "device"
    REQUIREMENT = "requirement"
    TREE = "installed-tree"
    LIST = "server-list"


class State(str, enum.Enum):
    """The state of a link; ``UNKNOWN`` does not count as a fault."""

    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why a link is broken: one sentence and one fix; ``error`` is its class.

    A ``transient`` fault goes away (a reboot, a GPU that wakes up), so it says nothing about
    what the machine can do.
    """

    slug: str
    text: str
    fix: str
    error: type[TsukuError] = SelectionError
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """One link. ``evidence`` are facts as texts; ``fault`` is set only if it is broken."""

    place: Place
    state: State
    evidence: tuple[str, ...] = ()
    fault: Fault | None = None


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


@dataclass(frozen=True, slots=True)
class Chain:
    """The links of a subject, in order."""

    subject: Subject
    links: tuple[Link, ...]

    @property
    def broken(self) -> Link | None:
        """The first broken link."""
        return next((link for link in self.links if link.fault), None)

    @property
    def fault(self) -> Fault | None:
        """The fault of the first broken link, which is the one to repair."""
        return self.broken.fault if self.broken else None

    @property
    def exit_code(self) -> int:
        """The exit code of the first fault's error class, or 0 without a fault."""
        return self.fault.error.exit_code if self.fault else 0
