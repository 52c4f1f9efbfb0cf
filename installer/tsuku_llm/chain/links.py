"""The values: links, what is wrong with one, and what the chain is about."""

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
    """Whether a link holds; an unknown one is no fault."""

    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a link is broken: one sentence and one fix; ``error`` is its family.

    A ``transient`` fault passes (a reboot, a GPU that wakes up): it says nothing about what
    the machine can do.
    """

    slug: str
    text: str
    fix: str
    error: type[TsukuError] = SelectionError
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """One link. ``evidence`` are facts as texts; ``fault`` is there exactly if it is broken."""

    place: Place
    state: State
    evidence: tuple[str, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined: a backend, and the build of it that counts.

    ``wanted`` is what ``--backend`` has to say to get it: a variant only if one was named.
    ``variant`` is None where the release has none; ``gpu`` is the device that it should use.
    """

    wanted: str
    backend: str
    variant: Variant | None
    gpu: Gpu | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """The installed server's answer to ``--list-devices``.

    ``devices`` are all of them, one text each; ``chosen`` are the names of those that
    are the subject's GPU, None where none is called like it.
    """

    devices: tuple[str, ...]
    chosen: str | None


@dataclass(frozen=True, slots=True)
class Chain:
    """Every link of a subject, in order."""

    subject: Subject
    links: tuple[Link, ...]

    @property
    def broken(self) -> Link | None:
        """The first broken link."""
        return next((link for link in self.links if link.fault), None)

    @property
    def fault(self) -> Fault | None:
        """What is wrong with the first broken link: the one thing to mend."""
        return self.broken.fault if self.broken else None

    @property
    def exit_code(self) -> int:
        """0 where no link is broken, else that of the first fault's family."""
        return self.fault.error.exit_code if self.fault else 0
