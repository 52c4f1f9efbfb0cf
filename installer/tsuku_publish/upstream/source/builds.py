"""The facts of each asset of a release: where it is built, for which machines, and with what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tsuku_publish.upstream.source.cmake import (
    cuda_architectures,
    defaults,
    flags_of,
    is_on,
    toolchain,
)
from tsuku_publish.upstream.source.expressions import UNKNOWN, filled
from tsuku_publish.upstream.source.marked import Fact, Text, UnreadableSource
from tsuku_publish.upstream.source.publishing import Publishing, uploads
from tsuku_publish.upstream.source.scripts import ScriptCommand, commands
from tsuku_publish.upstream.source.tree import SourceTree
from tsuku_publish.upstream.source.workflows import Step, WorkflowJob

_Facts = dict[str, Fact]

_UBUNTU = re.compile(r"(ubuntu-[0-9]{2}\.[0-9]{2})(-arm|-s390x)?")
_WITHOUT_A_RELEASE = {"ubuntu-latest", "ubuntu-slim"}
_MACOS = re.compile(r"macos-([0-9]+)(-intel)?")
_WINDOWS = re.compile(r"windows-[0-9]{4}(?:-vs[0-9]{4})?")
_CUDA_IMAGE = re.compile(r"nvidia/cuda:[0-9.]+-devel-ubuntu([0-9]{2}\.[0-9]{2})")
_PROCESSORS = {"": "amd64", "-arm": "arm64", "-s390x": "s390x", "arm64": "arm64"}
_PROCESSORS |= {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64"}
_BACKENDS = {
    "GGML_CUDA": "cuda",
    "GGML_HIP": "rocm",
    "GGML_SYCL": "sycl",
    "GGML_OPENVINO": "openvino",
    "GGML_VULKAN": "vulkan",
    "GGML_OPENCL": "opencl",
    "GGML_HEXAGON": "hexagon",
    "GGML_METAL": "metal",
}
_TOOLKITS = {
    "cuda": re.compile(
        r"nvidia/cuda:([0-9.]+)-devel|/cuda_nvcc-windows-x86_64-([0-9.]+)-archive\.zip"
    ),
    "rocm": re.compile(r"rocm\[[^\]]*\]==([0-9.]+)"),
    "sycl": re.compile(
        r"intel-(?:oneapi-toolkit|deep-learning-essentials|oneapi-base-toolkit)-([0-9.]+)_offline"
    ),
    "openvino": re.compile(r"openvino_toolkit_[a-z0-9]+_([0-9.]+)\.[0-9a-f]+_x86_64"),
}
_GFX = ("AMDGPU_TARGETS", "GPU_TARGETS", "CMAKE_HIP_ARCHITECTURES")
_PACKERS = {"tar", "7z", "zip"}
_COPIERS = {"cp", "copy-item", "robocopy"}
_HTTPS = "vendor/cpp-httplib/CMakeLists.txt"
_HTTPS_CHOICES = {
    "LLAMA_BUILD_BORINGSSL": "boringssl",
    "LLAMA_BUILD_LIBRESSL": "libressl",
    "LLAMA_OPENSSL": "openssl if found",
}
_HEADERS = "libssl-dev"


def assets(told: Publishing) -> dict[str, _Facts]:
    """Return the facts of every asset, by its name with ``{tag}``. Raises ``UnreadableSource``."""
    tag = str(told.facts["tag"].value)
    # By the name with which it is uploaded: its name in the release, and its facts.
    made: dict[str, tuple[str, _Facts]] = {}
    for run in told.builder.runs():
        if run.happens() is False:
            continue
        for uploaded, facts in _of_job(run).items():
            at = facts["job"].at
            if uploaded in made:
                raise UnreadableSource(at, f"{uploaded} is made twice")
            made[uploaded] = (told.final(uploaded, at).replace(tag, "{tag}"), facts)
    for uploaded, (_, facts) in made.items():
        if "backends" in facts and (server := told.server_of(uploaded)):
            origin, at = server
            if origin not in made:
                raise UnreadableSource(at, f"no job makes {origin}")
            name, base = made[origin]
            facts["server from"] = Fact(name, at)
            facts |= {key: base[key] for key in ("https", "openmp")}
        if "companion" in facts:
            companion = facts["companion"]
            facts["companion"] = Fact(made[str(companion.value)][0], companion.at)
    packed = {name.replace(tag, "{tag}"): {"job": Fact("publish", at)} for name, at in told.packed}
    return dict(sorted((dict(made.values()) | packed).items()))


def _of_job(job: WorkflowJob) -> dict[str, _Facts]:
    """Return the facts of the files that one run of a job uploads."""
    found = [*uploads(job.steps)]
    if not found:
        return {}
    build = _of_build(job)
    companions = [name for _, _, name in found if name.startswith("cudart-")]
    if len(found) - len(companions) != 1 or len(companions) > 1:
        raise UnreadableSource(job.table.at, "it uploads other files than a build and its runtime")
    result = {}
    for step, path, name in found:
        facts = dict(build)
        if companions and name in companions:
            facts = {key: build[key] for key in ("job", "platform", "toolkit") if key in build}
        elif companions:
            facts["companion"] = Fact(companions[0], path.at)
        result[name] = facts | _packed(job.steps, step, name)
    return result


def _of_build(job: WorkflowJob) -> _Facts:
    """Return the facts of what a job builds: its machines, its backends, and their toolkits."""
    source = job.workflow.source
    flags, at = _flags(job)
    facts: _Facts = {"job": Fact(job.name, job.table.at)}
    if condition := job.table.text("if"):
        facts["condition"] = Fact(str(condition), condition.at)
    facts |= _machine(job, flags)
    apple = str(facts["platform"].value).startswith(("darwin", "ios"))
    options = {**defaults(source, apple=apple), **flags}
    enabled = [flag for flag in _BACKENDS if _on(options, flag)]
    backends = tuple(_BACKENDS[flag] for flag in enabled)
    own = "GGML_CPU" not in flags or _on(flags, "GGML_CPU")
    place = next((flags[flag].at for flag in enabled if flag in flags), at)
    facts["backends"] = Fact((*backends, *(("cpu",) if own else ())), place)
    for backend in backends:
        if backend in _TOOLKITS:
            facts["toolkit"] = _toolkit(job, backend, at)
        if backend == "cuda":
            sass, ptx, place = cuda_architectures(source, str(facts["toolkit"].value), flags)
            facts |= {"sass": Fact(sass, place), "ptx": Fact(ptx, place)}
        if backend == "rocm":
            targets = [flags[name] for name in _GFX if name in flags]
            if len(targets) != 1:
                raise UnreadableSource(at, "its GPU targets cannot be told")
            values = re.split(r"[;,]", str(targets[0].value))
            facts["gfx"] = Fact(tuple(values), targets[0].at)
    if str(facts["platform"].value).startswith("darwin"):
        target = flags.get("CMAKE_OSX_DEPLOYMENT_TARGET")
        number = _MACOS.fullmatch(str(facts["runner"].value))
        # Without a target the compiler takes the version of the system that it runs on.
        facts["macos"] = target or Fact(f"{number[1] if number else ''}.0", facts["runner"].at)
    facts["https"] = _https(job, options)
    facts["openmp"] = _openmp(options, at)
    return facts


def _on(options: Mapping[str, Fact], name: str) -> bool:
    return name in options and is_on(str(options[name].value))


def _flags(job: WorkflowJob) -> tuple[_Facts, str]:
    """Return the flags of the only call of CMake that configures llama.cpp, and its place."""
    found = [command for step in job.steps for command in _configures(step)]
    if len(found) != 1:
        raise UnreadableSource(
            job.table.at, f"it configures {len(found)} builds, and one was known"
        )
    flags = flags_of(found[0], job.workflow.source)
    for name, fact in flags.items():
        flags[name] = Fact(fact.value, _of_matrix(job, fact) or fact.at)
    return flags, found[0].at


def _of_matrix(job: WorkflowJob, fact: Fact) -> str | None:
    """Return the line of the matrix that a fact comes from: there it is changed."""
    path, _, number = fact.at.rpartition(":")
    line = job.workflow.source.read(path).splitlines()[int(number) - 1]
    for key, node in job.matrix.items():
        if f"matrix.{key} " in line and isinstance(node, Text) and str(fact.value) in node:
            return node.at
    return None


def _configures(step: Step) -> Iterator[ScriptCommand]:
    for command in commands(step.lines()):
        words = command.words
        if words[0] == "cd" and "cmake" not in words:
            return  # what follows builds something else, such as OpenCL's headers
        if words[0] == "cmake" and "-B" in words and "--build" not in words:
            yield command


def _machine(job: WorkflowJob, flags: _Facts) -> _Facts:
    """Return the runner, the system and the platform of a build. Raises ``UnreadableSource``."""
    told = job.told("runs-on")
    if told is None:
        raise UnreadableSource(job.table.at, "it has no runs-on")
    runner, at = told
    container = job.told("container")
    ubuntu, macos = _UBUNTU.fullmatch(runner), _MACOS.fullmatch(runner)
    system, processor = "", "amd64"
    if ubuntu:
        system, processor = ubuntu[1], _PROCESSORS[ubuntu[2] or ""]
    elif macos:
        system, processor = "macos", "amd64" if macos[2] else "arm64"
    elif _WINDOWS.fullmatch(runner):
        system = "windows"
    elif runner not in _WITHOUT_A_RELEASE or container is None:
        raise UnreadableSource(at, f"the system of the runner {runner} is not known")
    facts = {"runner": Fact(runner, at), "system": Fact(system, at)}
    if container:
        image = _CUDA_IMAGE.fullmatch(container[0])
        system = f"ubuntu-{image[1]}" if image else container[0]
        facts |= {"system": Fact(system, container[1]), "container": Fact(*container)}
    name = {"macos": "darwin", "windows": "windows"}.get(system, "linux")
    platform = _crossed(job.workflow.source, flags, name) or Fact(f"{name}-{processor}", at)
    return facts | {"platform": platform}


def _crossed(source: SourceTree, flags: _Facts, name: str) -> Fact | None:
    """Return the platform of a build that is compiled on a system for another machine, if it is."""
    if target := flags.get("CMAKE_SYSTEM_NAME"):
        if target.value != "iOS":
            raise UnreadableSource(target.at, f"{target.value} is not known here")
        return Fact("ios-arm64", target.at)
    file = flags.get("CMAKE_TOOLCHAIN_FILE")
    path = str(file.value).replace("\\", "/") if file else ""
    if file is None or path.endswith("/vcpkg.cmake"):
        return None  # vcpkg's only adds libraries
    if path.endswith("/android.toolchain.cmake"):
        if "ANDROID_ABI" not in flags or flags["ANDROID_ABI"].value != "arm64-v8a":
            raise UnreadableSource(file.at, "ANDROID_ABI is another one than arm64-v8a")
        return Fact("android-arm64", file.at)
    system, processor, place = toolchain(source, path)
    if system.lower() != name or processor.lower() not in _PROCESSORS:
        raise UnreadableSource(place, f"{system} {processor} is not known here")
    return Fact(f"{name}-{_PROCESSORS[processor.lower()]}", place)


def _toolkit(job: WorkflowJob, backend: str, at: str) -> Fact:
    """Return the version of the maker's toolkit that a job installs."""
    places: dict[str, str] = {}
    for place, text in _texts(job):
        for match in _TOOLKITS[backend].finditer(text):
            places.setdefault(next(filter(None, match.groups())), place)
    if len(places) != 1:
        told = ", ".join(places) or "none"
        raise UnreadableSource(at, f"its {backend} toolkit cannot be told: {told}")
    return Fact(*places.popitem())


def _texts(job: WorkflowJob) -> Iterator[tuple[str, str]]:
    """Return every text in which a job says what it installs, with its place."""
    if container := job.told("container"):
        yield container[1], container[0]
    for node in job.table.table("env").values():
        if isinstance(node, Text):
            yield node.at, node
    for step in job.steps:
        yield from ((at, line) for at, line in step.lines() if line is not UNKNOWN)
        for node in step.table.table("with").values():
            if isinstance(node, Text):
                text = filled(node, step.lookup, node.at)
                yield from [] if text is UNKNOWN else [(node.at, text)]


def _https(job: WorkflowJob, options: Mapping[str, Fact]) -> Fact:
    """Return where HTTPS comes from: boringssl, libressl, the system's openssl, or off.

    "openssl if found" is a build that takes the system's where its headers are, and whose job does
    not install them.
    """
    text = job.workflow.source.read(_HTTPS)
    places = [text.find(f"if ({name})") for name in _HTTPS_CHOICES]
    if -1 in places or places != sorted(places):
        order = tuple(_HTTPS_CHOICES)
        raise UnreadableSource(f"{_HTTPS}:1", f"it does not choose in the order {order}")
    chosen = next((name for name in _HTTPS_CHOICES if _on(options, name)), None)
    if chosen is None:
        off = options.get("LLAMA_OPENSSL")
        return Fact("off", off.at if off else f"{_HTTPS}:1")
    if chosen == "LLAMA_OPENSSL":
        for step in job.steps:
            for at, line in step.lines():
                if line is not UNKNOWN and _HEADERS in line.split():
                    return Fact("openssl", at)
    return Fact(_HTTPS_CHOICES[chosen], options[chosen].at)


def _openmp(options: Mapping[str, Fact], at: str) -> Fact:
    if "GGML_OPENMP" not in options:
        raise UnreadableSource(at, "whether it uses OpenMP cannot be told")
    if not _on(options, "GGML_OPENMP"):
        return Fact("off", options["GGML_OPENMP"].at)
    if _on(options, "GGML_OPENMP_FETCH"):
        return Fact("brought along", options["GGML_OPENMP_FETCH"].at)
    return Fact("the compiler's, if found", options["GGML_OPENMP"].at)


def _packed(steps: list[Step], upload: Step, name: str) -> _Facts:
    """Return what an archive is made of, and what its step copies there before."""
    for step in steps:
        found = [*commands(step.lines())]
        for command in found:
            if command.words[0] not in _PACKERS or name not in command.words:
                continue
            after = command.words[command.words.index(name) + 1 :]
            # Of a line that only a run knows, the text says enough.
            script = step.table.require("run").lines()
            copied = [each for each in commands(script) if each.words[0].lower() in _COPIERS]
            facts = {"packs": Fact(tuple(_contents(after)), command.at)}
            if copied:
                lines = tuple(" ".join(each.words) for each in copied)
                facts["copies"] = Fact(lines, copied[0].at)
            return facts
    raise UnreadableSource(upload.table.at, f"no line packs {name}")


def _contents(words: tuple[str, ...]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word in ("--transform", "-s"):
            next(rest, None)
        elif word != "-C":
            yield word
