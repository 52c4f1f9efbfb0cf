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
_HTTPS_CHOICES = ("LLAMA_BUILD_BORINGSSL", "LLAMA_BUILD_LIBRESSL", "LLAMA_OPENSSL")
_HEADERS = "libssl-dev"


def assets(source: SourceTree, told: Publishing) -> dict[str, _Facts]:  # noqa: C901 - by steps
    """Return the facts of every asset, by its name with ``{tag}``. Raises ``UnreadableSource``."""
    made: dict[str, tuple[str, _Facts]] = {}
    for name, table in told.builder.jobs.items():
        for run in told.builder.runs(name, table.at):
            if "uses" in run.table or run.happens() is False:
                continue
            for uploaded, facts in _of_job(source, run).items():
                if uploaded in made:
                    raise UnreadableSource(facts["job"].at, f"{uploaded} is made twice")
                final = told.merged.final(uploaded)
                if final is None:
                    raise UnreadableSource(facts["job"].at, f"no line publishes {uploaded}")
                made[uploaded] = (final, facts)
    tag = str(told.facts["tag"].value)
    found: dict[str, _Facts] = {}
    for uploaded, (final, facts) in made.items():
        if "backends" in facts and (server := told.merged.server_of(uploaded)):
            origin, at = server
            if origin not in made:
                raise UnreadableSource(at, f"no job makes {origin}")
            base = made[origin][1]
            facts["server from"] = Fact(made[origin][0].replace(tag, "{tag}"), at)
            facts |= {key: base[key] for key in ("https", "openmp")}
        if "companion" in facts:
            companion, at = facts["companion"].value, facts["companion"].at
            facts["companion"] = Fact(made[str(companion)][0].replace(tag, "{tag}"), at)
        found[final.replace(tag, "{tag}")] = facts
    for name, at in told.packed:
        found[name.replace(tag, "{tag}")] = {"job": Fact("publish", at)}
    return dict(sorted(found.items()))


def _of_job(source: SourceTree, job: WorkflowJob) -> dict[str, _Facts]:
    """Return the facts of the files that one run of a job uploads."""
    found = [(step, path, name) for step, path, name in uploads(job)]
    if not found:
        return {}
    steps = [*job.walk()]
    flags, at = _flags(source, job, steps)
    build = _of_build(source, job, steps, flags, at)
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
        result[name] = facts | _packed(steps, step, name)
    return result


def _of_build(
    source: SourceTree, job: WorkflowJob, steps: list[Step], flags: _Facts, at: str
) -> _Facts:
    facts: _Facts = {"job": Fact(job.name, job.table.at)}
    if condition := job.table.text("if"):
        facts["condition"] = Fact(str(condition), condition.at)
    facts |= _machine(source, job, flags)
    apple = str(facts["platform"].value).startswith(("darwin", "ios"))
    options = defaults(source, apple=apple)
    enabled = {
        name: (flag, word)
        for flag, word in _BACKENDS.items()
        if (name := word)
        and (fact := flags.get(flag) or options.get(flag))
        and is_on(str(fact.value))
    }
    backends = tuple(word for _, word in enabled.values())
    own = "GGML_CPU" not in flags or is_on(str(flags["GGML_CPU"].value))
    places = [flags[flag].at for flag, _ in enabled.values() if flag in flags]
    facts["backends"] = Fact((*backends, *(("cpu",) if own else ())), places[0] if places else at)
    for backend in backends:
        if backend in _TOOLKITS:
            facts["toolkit"] = _toolkit(job, steps, backend, at)
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
    facts["https"] = _https(source, steps, flags, options)
    facts["openmp"] = _openmp(flags, options, at)
    return facts


def _flags(source: SourceTree, job: WorkflowJob, steps: list[Step]) -> tuple[_Facts, str]:
    """Return the flags of the only call of CMake that configures llama.cpp, and its place."""
    found = [(step, command) for step in steps for command in _configures(step)]
    if len(found) != 1:
        raise UnreadableSource(
            job.table.at, f"it configures {len(found)} builds, and one was known"
        )
    ((_, command),) = found
    flags = flags_of(command, source)
    for name, fact in flags.items():
        flags[name] = Fact(fact.value, _of_matrix(source, job, fact) or fact.at)
    return flags, command.at


def _of_matrix(source: SourceTree, job: WorkflowJob, fact: Fact) -> str | None:
    """Return the line of the matrix that a fact comes from: there it is changed."""
    path, _, number = fact.at.rpartition(":")
    line = source.read(path).splitlines()[int(number) - 1]
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


def _machine(  # noqa: C901 - a row of kinds of runners
    source: SourceTree, job: WorkflowJob, flags: _Facts
) -> _Facts:
    """Return the runner, the system and the platform of a build. Raises ``UnreadableSource``."""
    told = job.told("runs-on")
    if told is None:
        raise UnreadableSource(job.table.at, "it has no runs-on")
    runner, at = told
    facts = {"runner": Fact(runner, at)}
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
    facts["system"] = Fact(system, at)
    if container:
        facts["container"] = Fact(*container)
        image = _CUDA_IMAGE.fullmatch(container[0])
        system = f"ubuntu-{image[1]}" if image else container[0]
        facts["system"] = Fact(system, container[1])
    name = {"macos": "darwin", "windows": "windows"}.get(system, "linux")
    platform = Fact(f"{name}-{processor}", at)
    file = flags.get("CMAKE_TOOLCHAIN_FILE")
    path = str(file.value).replace("\\", "/") if file else ""
    if path.endswith("/android.toolchain.cmake"):
        platform = Fact("android-arm64", (file or platform).at)
        if "ANDROID_ABI" not in flags or flags["ANDROID_ABI"].value != "arm64-v8a":
            raise UnreadableSource(platform.at, "ANDROID_ABI is another one than arm64-v8a")
    elif path and not path.endswith("/vcpkg.cmake"):  # vcpkg's only adds libraries
        target, processor, place = toolchain(source, path)
        if target.lower() != name or processor.lower() not in _PROCESSORS:
            raise UnreadableSource(place, f"{target} {processor} is not known here")
        platform = Fact(f"{name}-{_PROCESSORS[processor.lower()]}", place)
    if "CMAKE_SYSTEM_NAME" in flags:
        target = str(flags["CMAKE_SYSTEM_NAME"].value)
        if target != "iOS":
            raise UnreadableSource(flags["CMAKE_SYSTEM_NAME"].at, f"{target} is not known here")
        platform = Fact("ios-arm64", flags["CMAKE_SYSTEM_NAME"].at)
    return facts | {"platform": platform}


def _toolkit(job: WorkflowJob, steps: list[Step], backend: str, at: str) -> Fact:
    """Return the version of the maker's toolkit that a job installs."""
    places: dict[str, str] = {}
    for place, text in _texts(job, steps):
        for match in _TOOLKITS[backend].finditer(text):
            places.setdefault(next(filter(None, match.groups())), place)
    if len(places) != 1:
        told = ", ".join(places) or "none"
        raise UnreadableSource(at, f"its {backend} toolkit cannot be told: {told}")
    return Fact(*places.popitem())


def _texts(job: WorkflowJob, steps: list[Step]) -> Iterator[tuple[str, str]]:
    """Return every text in which a job says what it installs, with its place."""
    if container := job.told("container"):
        yield container[1], container[0]
    for node in job.table.table("env").values():
        if isinstance(node, Text):
            yield node.at, node
    for step in steps:
        yield from ((at, line) for at, line in step.lines() if line is not UNKNOWN)
        for node in step.table.table("with").values():
            if isinstance(node, Text):
                text = filled(node, step.scope.lookup, node.at)
                yield from [] if text is UNKNOWN else [(node.at, text)]


def _https(
    source: SourceTree, steps: list[Step], flags: _Facts, options: Mapping[str, Fact]
) -> Fact:
    """Return where HTTPS comes from: boringssl, libressl, the system's openssl, or off.

    "openssl if found" is a build that takes the system's where its headers are, and whose job does
    not install them.
    """
    text = source.read(_HTTPS)
    places = [text.find(f"if ({name})") for name in _HTTPS_CHOICES]
    if -1 in places or places != sorted(places):
        raise UnreadableSource(f"{_HTTPS}:1", f"it does not choose in the order {_HTTPS_CHOICES}")
    for name, word in zip(_HTTPS_CHOICES, ("boringssl", "libressl", "openssl"), strict=True):
        fact = flags.get(name) or options.get(name)
        if fact is None or not is_on(str(fact.value)):
            continue
        if word != "openssl":
            return Fact(word, fact.at)
        for step in steps:
            for at, line in step.lines():
                if line is not UNKNOWN and _HEADERS in line.split():
                    return Fact("openssl", at)
        return Fact("openssl if found", fact.at)
    off = flags.get("LLAMA_OPENSSL") or options.get("LLAMA_OPENSSL")
    return Fact("off", off.at if off else f"{_HTTPS}:1")


def _openmp(flags: _Facts, options: Mapping[str, Fact], at: str) -> Fact:
    used, fetched = (
        flags.get(name) or options.get(name) for name in ("GGML_OPENMP", "GGML_OPENMP_FETCH")
    )
    if used is None:
        raise UnreadableSource(at, "whether it uses OpenMP cannot be told")
    if not is_on(str(used.value)):
        return Fact("off", used.at)
    if fetched and is_on(str(fetched.value)):
        return Fact("brought along", fetched.at)
    return Fact("the compiler's, if found", used.at)


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
