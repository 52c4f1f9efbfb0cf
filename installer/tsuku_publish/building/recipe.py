"""What CMake is told for a variant: its name, its switches and its flags. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.records import documented
from tsuku_publish.building.matrix import BuildMatrix, Words
from tsuku_publish.building.place import ZigPlace
from tsuku_publish.building.toolchain import Toolchain

_RELEASE: Mapping[str, str] = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "GGML_NATIVE": "OFF",
    "GGML_RPC": "ON",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    # Else what is on the machine, or on a server of the web, would decide what the build holds.
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "GGML_RPC_RDMA": "OFF",
}
"""Upstream's switches of a release, and those that make the result independent of the machine."""

_SWITCHES: Mapping[str, str] = {
    "GGML_CUDA": "cuda",
    "GGML_VULKAN": "vulkan",
    "GGML_HIP": "rocm",
    "GGML_SYCL": "sycl",
    "GGML_OPENCL": "opencl",
    "GGML_OPENVINO": "openvino",
    "GGML_METAL": "metal",
}
_OPTION = re.compile(r"(?:GGML|LLAMA)_[A-Z0-9_]+")
_SUFFIX = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
"""What may follow a backend in the name of a variant: a version, or a name such as ``fp16``."""
_ON = re.compile(r"on|yes|true|y|-?(?=[0-9.]*[1-9])[0-9]+(\.[0-9]*)?", re.IGNORECASE)
"""What CMake takes for true, also every number but 0."""

_ARCHITECTURE = re.compile(r"([0-9]{1,2})\.?([0-9])([af]?)(-real|-virtual)?")
_GFX = re.compile(r"gfx[0-9a-f]{3,6}")
_LEVELS: Mapping[str, str] = {
    "x86-64-v1": "x86-64",
    **{f"x86-64-v{level}": f"x86-64-v{level}" for level in (2, 3, 4)},
}
BASELINES = (*_LEVELS,)
_OLDEST = 50
"""Maxwell: llama.cpp has no code for older cards."""


@dataclass(frozen=True, slots=True)
class BuildWishes:
    """What the user asks for; empty: the default.

    ``source`` is a path or a requirement, None if none was named. ``release`` is a tag, ``b11434``.
    ``base`` is a name in the data or a folder; None: this machine.
    """

    variants: Words = ()
    source: str | None = None
    release: str | None = None
    cuda_architectures: Words = ()
    gfx: Words = ()
    baseline: str = BASELINES[0]
    base: str | None = None


@documented(
    *("variant", "backends", "platform", "flags", "link_flags", "notes", "sass", "ptx", "gfx")
)
@dataclass(frozen=True, slots=True)
class Recipe:
    """A variant and everything that decides its bytes, but for the source and the tools.

    ``platform`` is that of this machine. ``notes`` say what was taken from the environment, and
    what was left out. ``flags`` and ``link_flags`` are arguments of the compilers. ``sass``,
    ``ptx`` and ``gfx`` are the cards that it is compiled for; empty where the toolkit's own
    default counts.
    """

    variant: str
    backends: Words
    platform: str
    definitions: Mapping[str, str]
    flags: Words
    link_flags: Words
    generator: str
    cuda_architectures: Words
    gfx: Words
    notes: tuple[str, ...]

    @property
    def sass(self) -> Words:
        """The NVIDIA cards that it has machine code for."""
        return device_code(self.cuda_architectures)[0]

    @property
    def ptx(self) -> Words:
        """The NVIDIA cards from which on the driver compiles its code."""
        return device_code(self.cuda_architectures)[1]


def backends_of(word: str, matrix: BuildMatrix) -> Words:
    """Return the backends of a variant as it is typed: ``cuda+vulkan``, ``cuda-12.4``.

    Raises ``UsageError``.
    """
    parts = [part.partition("-") for part in word.lower().split("+")]
    names = tuple(name for name, _, _ in parts)
    known = all(
        # The variant is also the name of a folder.
        name in matrix.backends and (not dash or _SUFFIX.fullmatch(suffix))
        for name, dash, suffix in parts
    )
    if not known or len(set(names)) < len(names):
        raise UsageError(
            f"{word} cannot be built",
            facts=(f"backends: {', '.join(matrix.backends)}",),
            hint="name one of them, or several at once, such as cuda+vulkan or cuda-12.4+vulkan",
        )
    # The CPU's plugins are in every build.
    return tuple(name for name in names if name != "cpu") or ("cpu",)


def require_useful(wishes: BuildWishes, backends: Iterable[str], matrix: BuildMatrix) -> None:
    """Refuse options that none of the variants has, or not the base. Raises ``UsageError``."""
    options = (
        ("--cuda-architectures", "cuda", wishes.cuda_architectures),
        ("--gfx", "rocm", wishes.gfx),
    )
    given = frozenset(backends)
    for option, backend, words in options:
        if words and backend not in given:
            raise UsageError(
                f"{option} is only for {backend}",
                hint=f"leave it out, or build {backend} as well",
            )
    if wishes.base in matrix.zig.bases and wishes.baseline != BASELINES[0]:
        raise UsageError(
            f"--baseline is not for the base {wishes.base}",
            facts=("zig's linker cannot write the level into the files",),
            hint="leave it out: the plugins for newer processors are in the build anyway",
        )


def wanted(environ: Mapping[str, str]) -> str:
    """Return the variant that ``GGML_CUDA=1`` and its siblings ask for; "" if none is on."""
    return "+".join(name for switch, name in _SWITCHES.items() if _is_on(environ.get(switch)))


def recipe(
    word: str,
    matrix: BuildMatrix,
    toolchain: Toolchain,
    wishes: BuildWishes,
    switches: Mapping[str, str],
) -> Recipe:
    """Decide what CMake is told; ``switches`` are those that the environment sets.

    Raises ``UsageError`` for what cannot be built here.
    """
    platform = toolchain.platform
    backends = backends_of(word, matrix)
    _require_platform(backends, platform, matrix)
    architectures = _architectures(backends, matrix, toolchain, wishes)
    gfx = _gfx(backends, wishes)
    definitions = {**_RELEASE, **_portable(platform)}
    for name in backends:
        definitions |= matrix.backends[name].definitions
    if architectures:
        definitions["CMAKE_CUDA_ARCHITECTURES"] = ";".join(architectures)
    if "cuda" in backends and (nvcc := toolchain.get("nvcc")):
        # CMake might find another one, and the variant is named after this one.
        definitions["CMAKE_CUDA_COMPILER"] = str(nvcc.path)
    if gfx:
        definitions["GPU_TARGETS"] = ";".join(gfx)
    if toolchain.get("ccache"):
        languages = ("C", "CXX", *(("CUDA",) if "cuda" in backends else ()))
        definitions |= {f"CMAKE_{each}_COMPILER_LAUNCHER": "ccache" for each in languages}
    asked, notes = _passed_on(switches, backends)
    flags, link_flags = _baseline(platform, wishes.baseline)
    if isinstance(place := toolchain.place, ZigPlace):
        march = f"-march={_LEVELS[BASELINES[0]].replace('-', '_')}"  # zig's own names
        flags = (march, *place.zig.flags)
        link_flags = (*place.zig.link_flags, *place.target.link_flags)
        definitions |= place.zig.definitions
    return Recipe(
        variant=_name(word, backends, matrix, toolchain),
        backends=backends,
        platform=platform,
        definitions={**definitions, **asked},
        flags=flags,
        link_flags=link_flags,
        generator="Ninja" if toolchain.get("ninja") else "Unix Makefiles",
        cuda_architectures=architectures,
        gfx=gfx,
        notes=notes,
    )


def device_code(architectures: Sequence[str]) -> tuple[Words, Words]:
    """Return the SASS and the PTX of CMake's architectures, as a release file names them."""
    found = [(name, kind) for name, kind in map(_parts, architectures)]
    return (
        tuple(name for name, kind in found if kind != "-virtual"),
        tuple(name for name, kind in found if kind != "-real"),
    )


def _parts(architecture: str) -> tuple[str, str]:
    found = _ARCHITECTURE.fullmatch(architecture)
    if found is None:
        raise UsageError(
            f"{architecture} is no CUDA architecture",
            hint="write them as 8.6 or 86, with -real (machine code) or -virtual (PTX) behind "
            "it for only one: --cuda-architectures 8.6-real,9.0",
        )
    major, minor, suffix, kind = found.groups()
    return f"{int(major)}.{minor}{suffix}", kind or ""


def _architectures(
    backends: Words, matrix: BuildMatrix, toolchain: Toolchain, wishes: BuildWishes
) -> Words:
    """Return the architectures in CMake's words: as asked, or as the toolkit's line has them."""
    if "cuda" not in backends:
        return ()
    asked = []
    for each in wishes.cuda_architectures:
        name, kind = _parts(each)
        asked.append(name.replace(".", "") + kind)
        if int(re.sub(r"\D", "", name)) < _OLDEST:
            raise UsageError(
                f"llama.cpp has no code for cards of the architecture {name}",
                hint="Maxwell (5.0) is the oldest; an older card can only use Vulkan or the CPU",
            )
    nvcc = toolchain.get("nvcc")
    line = matrix.cuda_line(nvcc.version) if nvcc and nvcc.version else None
    return tuple(dict.fromkeys(asked)) or (line.architectures if line else ())


def _gfx(backends: Words, wishes: BuildWishes) -> Words:
    if "rocm" not in backends:
        return ()
    for each in wishes.gfx:
        if not _GFX.fullmatch(each):
            raise UsageError(
                f"{each} is no AMD GPU", hint="write them as rocminfo does: --gfx gfx1030,gfx1100"
            )
    return tuple(dict.fromkeys(wishes.gfx))


def _require_platform(backends: Words, platform: str, matrix: BuildMatrix) -> None:
    for name in backends:
        if platform not in matrix.backends[name].platforms:
            raise UsageError(
                f"{name} cannot be built on {platform}",
                facts=(f"it can on: {', '.join(matrix.backends[name].platforms)}",),
                hint="build it on such a machine; `add` takes the builds of several machines",
            )


def _portable(platform: str) -> dict[str, str]:
    """Return what makes a build run on other machines than this one."""
    if platform.startswith("darwin-"):
        # As upstream: one library for the CPU, and Metal inside.
        off = {} if platform == "darwin-arm64" else {"GGML_METAL": "OFF"}
        return {"CMAKE_INSTALL_RPATH": "@loader_path", "CMAKE_OSX_DEPLOYMENT_TARGET": "13.3", **off}
    every = {"GGML_CPU_ALL_VARIANTS": "ON"} if platform != "linux-s390x" else {}
    return {"CMAKE_INSTALL_RPATH": "$ORIGIN", "GGML_BACKEND_DL": "ON", **every}


def _baseline(platform: str, level: str) -> tuple[Words, Words]:
    if level not in _LEVELS:
        raise UsageError(
            f"{level} is no level of a processor", hint=f"name one: {', '.join(_LEVELS)}"
        )
    if not platform.endswith("-amd64"):
        if level != BASELINES[0]:
            raise UsageError(f"--baseline is not for {platform}", hint="leave it out")
        return (), ()
    # The linker writes the level into the files, where `measure` and the system's loader read it.
    marked = () if level == BASELINES[0] or platform.startswith("darwin") else (f"-Wl,-z,{level}",)
    return (f"-march={_LEVELS[level]}",), marked


def _name(word: str, backends: Words, matrix: BuildMatrix, toolchain: Toolchain) -> str:
    """Return the variant's name, with the version of each toolkit that a machine must match."""
    typed = dict(part.partition("-")[::2] for part in word.lower().split("+"))
    named = []
    for name in backends:
        tool = toolchain.get(matrix.backends[name].versioned_by)
        version = ".".join(tool.version.split(".")[:2]) if tool else ""
        told = typed.get(name, "")
        if tool and told and told != version:
            raise UsageError(
                f"{name}-{told} cannot be built with this toolkit",
                facts=(f"{tool.title}: {tool.version}, {tool.path}",),
                hint=f"put the toolkit {told} first on the PATH, or build {name}",
            )
        named.append(f"{name}-{told or version}".rstrip("-"))
    return "+".join(named)


def switches_of(environ: Mapping[str, str], options: frozenset[str]) -> dict[str, str]:
    """Return the backends' switches in the environment, and the other ``options`` of the source."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name in _SWITCHES or (name in options and _OPTION.fullmatch(name))
    }


def _passed_on(
    switches: Mapping[str, str], backends: Words
) -> tuple[dict[str, str], tuple[str, ...]]:
    asked: dict[str, str] = {}
    notes: list[str] = []
    for name, value in switches.items():
        if name not in _SWITCHES:
            asked[name] = value
            notes.append(f"{name}={value} is passed on to CMake")
        elif _is_on(value) == (_SWITCHES[name] in backends):
            notes.append(f"{name}={value} agrees with the variant")
        else:
            notes.append(f"{name}={value} is left out: the variant was named")
    return asked, tuple(notes)


def _is_on(value: str | None) -> bool:
    return _ON.fullmatch(value or "") is not None
