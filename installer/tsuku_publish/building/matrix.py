"""What can be built, with which tools, and for which machines: the data of ``matrix.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated

import msgspec
import tomli

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuildTool:
    """A program, a header or a CMake package that a build needs, and where it may be.

    ``variables`` name environment variables with the program or a folder above it; they come first.
    ``commands`` are looked for on the PATH, then in ``folders``. ``files`` are patterns below
    ``roots``; the text of the file, or of ``version_file`` beside it, shows the ``version``.
    ``optional`` says what happens without it. ``packages`` are names by package manager.
    """

    title: str
    packages: Mapping[str, str]
    commands: Words = ()
    variables: Words = ()
    folders: Words = ()
    files: Words = ()
    roots: Words = ()
    version: str = r"(\d+\.\d+(?:\.\d+)*)"
    version_file: str = ""
    least: str = ""
    optional: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class BuildableBackend:
    """A backend as CMake knows it.

    ``definitions`` switch it on. ``cmake`` is the oldest CMake for it, if others do with an older
    one. ``versioned_by`` names the tool whose version is a part of the variant's name.
    ``companions`` are folders below that tool's own, with libraries that a build brings along.
    """

    definitions: Mapping[str, str]
    platforms: Words
    tools: Words = ()
    cmake: str = ""
    versioned_by: str = ""
    companions: Words = ()


@dataclass(frozen=True, slots=True)
class CudaLine:
    """The default architectures of CUDA toolkits from a version on, in CMake's words.

    ``drivers`` is the oldest driver for Linux that runs them.
    """

    toolkit: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+\Z")]
    architectures: Words
    drivers: str
    purpose: str


@dataclass(frozen=True, slots=True)
class NewerTools:
    """What a base takes from a newer suite of the same system to build one backend.

    ``programs`` are packages with a program of the same name. They get all libraries that they
    need, apart from the base's. ``packages`` are unpacked over the base, without what they depend
    on: they must not need a newer glibc. ``needs`` are packages of the base's own suite for them.
    """

    backend: str
    suite: str
    toolkit: Annotated[str, msgspec.Meta(pattern=r"^([0-9]+\.[0-9]+)?\Z")] = ""
    components: str = "main"
    programs: Words = ()
    packages: Words = ()
    needs: Words = ()


@dataclass(frozen=True, slots=True)
class BaseSystem:
    """An older system to build on: a suite of Debian, as debootstrap names it.

    It can build ``backends`` with its own tools, and others with those of ``newer`` suites. It
    gets the packages of their tools, and ``packages``. ``environment`` is for the tools:
    compilers, and switches of the source.
    """

    suite: str
    purpose: str
    backends: Words
    packages: Words = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    newer: tuple[NewerTools, ...] = ()

    def builds(self) -> Words:
        """Return the variants that it can build, such as ``cpu`` and ``cuda-12.4``."""
        return (*self.backends, *(f"{row.backend}-{row.toolkit}".rstrip("-") for row in self.newer))


@dataclass(frozen=True, slots=True)
class ZigTarget:
    """A C library that zig compiles for; ``target`` is its name for zig."""

    target: str
    purpose: str
    link_flags: Words = ()


@dataclass(frozen=True, slots=True)
class Zig:
    """zig's compilers, as the package index has them, and what a build with them is told.

    ``sha256`` is that of the wheel for ``platform``. ``bases`` are what ``--base`` names.
    ``environment`` has switches of the source.
    """

    version: str
    platform: str
    sha256: str
    backends: Words
    flags: Words
    link_flags: Words
    definitions: Mapping[str, str]
    environment: Mapping[str, str]
    bases: Mapping[str, ZigTarget]

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"ziglang=={self.version}"


@dataclass(frozen=True, slots=True)
class BuildableVariant:
    """A variant that a repository may offer, and the machines that it is for.

    ``platforms`` are those where it can be built, if they are fewer than its backends'.
    """

    name: str
    backends: Words
    purpose: str
    toolkit: str = ""
    platforms: Words = ()


@dataclass(frozen=True, slots=True)
class BuildMatrix:
    """Everything that ``matrix.toml`` says."""

    tools: Mapping[str, BuildTool]
    backends: Mapping[str, BuildableBackend]
    cuda: tuple[CudaLine, ...]
    bases: Mapping[str, BaseSystem]
    zig: Zig
    variants: tuple[BuildableVariant, ...]

    def tools_of(self, backends: Words) -> Words:
        """Return the names of the tools for these backends: those of every build come first."""
        own = [name for backend in backends for name in self.backends[backend].tools]
        return ("cmake", "ninja", "make", "ccache", "cc", "cxx", *dict.fromkeys(own))

    def least(self, name: str, backends: Words) -> str:
        """Return the oldest version of a tool that these backends can be built with; "" for any."""
        asked = [self.tools[name].least]
        if name == "cmake":
            asked += [self.backends[backend].cmake for backend in backends]
        return max(filter(None, asked), key=numbers, default="")

    def cuda_line(self, toolkit: str) -> CudaLine | None:
        """Return the newest line that a toolkit has; None for one that is too old."""
        known = [line for line in self.cuda if numbers(line.toolkit) <= numbers(toolkit)]
        return max(known, key=lambda line: numbers(line.toolkit), default=None)


def numbers(version: str) -> tuple[int, ...]:
    """Return a dotted version as numbers, to compare it."""
    return tuple(int(part) for part in version.split("."))


def load_matrix() -> BuildMatrix:
    """Read the data of this package."""
    text = files("tsuku_publish.building").joinpath("matrix.toml").read_text("utf-8")
    return msgspec.convert(tomli.loads(text), BuildMatrix)
