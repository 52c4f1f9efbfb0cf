"""What a probe concludes about a machine: values only, without the way to find them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tsuku_llm.machine.places import MachinePlace


class GpuKind(str, enum.Enum):
    """The kind of a device, as its driver reports it (the values are Vulkan's device types)."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"
    VIRTUAL = "virtual"
    SOFTWARE = "software"
    OTHER = "other"


class ApiState(str, enum.Enum):
    """The stage that a driver API reached when it was asked."""

    OK = "ok"
    """It initialised and enumerated its devices (maybe none)."""
    ABSENT = "absent"
    """Its library is not installed."""
    FAILED = "failed"
    """Its library is installed, but did not load or returned an error."""
    TIMED_OUT = "timed-out"
    """It did not answer within the limit: it is slow, or it hangs."""
    CRASHED = "crashed"
    NOT_STARTED = "not-started"
    """The child process that would have asked it could not be started."""
    NOT_ASKED = "not-asked"
    """It does not exist on this operating system."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One question to the machine and its answer, as text."""

    call: str
    result: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A named situation: ``slug`` for programs, one sentence for people, and one fix.

    A ``transient`` problem (a driver that waits for a reboot, a GPU asleep) must never be
    remembered as "this machine has no GPU".
    """

    slug: str
    text: str
    fix: str
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as one API enumerates it. The same card appears once per API.

    ``memory`` is in bytes, None if the API does not report it. ``index`` is the position in the
    API's own enumeration. ``compute_capability`` is NVIDIA's ("9.0"), ``gfx`` AMD's ("gfx1100"),
    ``api_version`` the device's own version of the API. ``storage_16bit`` tells whether a Vulkan
    device has 16-bit values in storage buffers, without which ggml's backend passes it over; None
    if it was not asked. ``shared_memory`` and ``invocations`` are what a Vulkan device gives to one
    group of shaders, in bytes and in number, and ``float_16`` whether it computes with half
    precision; they were not asked if they are None. ``hidden_by`` is the variable that leaves the
    card out for its maker's interface: then no build uses it through this one.
    """

    api: str
    index: int
    name: str
    kind: GpuKind
    memory: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    compute_capability: str | None = None
    gfx: str | None = None
    api_version: str | None = None
    driver: str | None = None
    uuid: str | None = None
    storage_16bit: bool | None = None
    shared_memory: int | None = None
    invocations: int | None = None
    float_16: bool | None = None
    hidden_by: str | None = None


@dataclass(frozen=True, slots=True)
class Api:
    """The answer of one driver API.

    ``name`` is an ``api`` of the table in ``backends``. ``version`` is the API version that the
    library supports ("13.0" for CUDA: the newest toolkit whose PTX it can compile), ``driver`` the
    driver's own version text.
    """

    name: str
    state: ApiState
    library: str | None = None
    version: str | None = None
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    problem: Problem | None = None

    @property
    def hardware_gpus(self) -> tuple[Gpu, ...]:
        """The devices that are not software renderers."""
        return tuple(gpu for gpu in self.gpus if gpu.kind is not GpuKind.SOFTWARE)


@dataclass(frozen=True, slots=True)
class Libc:
    """The C library: ``name`` is ``glibc``, ``musl`` or ``unknown``.

    ``refuses`` says why no program that was made for other systems starts here; None if they do.
    """

    name: str
    version: str | None
    refuses: str | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor: ``level`` is the x86-64 level (1 to 4), None on other processors."""

    vendor: str | None
    name: str | None
    features: tuple[str, ...] = ()
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """A whole machine, as far as the choice of a variant depends on it.

    ``os`` is ``linux``, ``darwin`` or ``windows``; ``arch`` is ``amd64``, ``arm64`` or the
    machine's own word for it. ``libstdcxx`` is the newest GLIBCXX symbol version that the system's
    libstdc++ defines ("3.4.30"), None if unknown. ``vcruntime`` is the version of Windows' Visual
    C++ runtime, "0" if none is installed. ``libraries`` has each shared library that was asked for,
    with the one that this system lacks for it, None if it can be loaded. ``evidence`` holds
    supporting facts (the devices on the PCI bus): they explain, and never decide. ``simulated``
    names the snapshot if the machine is a replayed one. ``packages`` is the family of the package
    manager (``packages.family_of``), "" if it is not known, and ``place`` where this program runs.
    """

    os: str
    arch: str
    os_version: str | None = None
    libc: Libc | None = None
    libstdcxx: str | None = None
    vcruntime: str | None = None
    libraries: Mapping[str, str | None] = field(default_factory=dict)
    cpu: Cpu | None = None
    memory: int | None = None
    apis: tuple[Api, ...] = ()
    problems: tuple[Problem, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    simulated: str | None = None
    packages: str = ""
    place: MachinePlace = field(default_factory=MachinePlace)

    @property
    def container(self) -> bool:
        """Whether the kernel, its modules and its device files are a host's."""
        return self.place.contained

    @property
    def platform(self) -> str:
        """The manifest's platform key, such as ``linux-amd64``."""
        return f"{self.os}-{self.arch}"

    def api(self, name: str) -> Api:
        """Return the answer of one API; an API that was never asked is ``not-asked``."""
        for api in self.apis:
            if api.name == name:
                return api
        return Api(name, ApiState.NOT_ASKED)

    @property
    def all_problems(self) -> tuple[Problem, ...]:
        """Every named situation: the machine's own first, then one per API."""
        return self.problems + tuple(api.problem for api in self.apis if api.problem)
