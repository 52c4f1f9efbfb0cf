"""The verdict on where a running server computes, from what was observed of it. Pure.

Each sign says on_gpu, on_cpu or unknown, and has a weight. Wordings change, lists hang, and
``/proc`` may be closed, so "unknown" is a good answer. The verdict is on_cpu only if the
signs for it outweigh the signs for on_gpu by two. So one wrong sign cannot outvote a right
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tsuku_llm.launch.devices import ListedDevice, backend_named, own_devices
from tsuku_llm.launch.log import LogFacts
from tsuku_llm.launch.report import Sign, Verdict

# Names of ggml's buffers: in the machine's memory ("CPU", "CPU_Mapped", "CUDA_Host"), and on
# another machine ("RPC0[...]").
_HOST_MEMORY = re.compile(r"^(?:cpu|amx|blas|host|\w+_host)(?:_\w+)?$", re.IGNORECASE)
_ELSEWHERE = re.compile(r"^rpc", re.IGNORECASE)
# Software renderers: drivers list them as devices, but they compute on the CPU.
_SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader", re.IGNORECASE)

_CONTEXT = 768 << 20
"""Bytes that a driver may take for a process that computes nothing there (CUDA: about 550 MB)."""

# By how much the signs for the CPU must outweigh the others.
_AGAINST = 2

_WEIGHTS: Mapping[tuple[str, Verdict], int] = {
    ("arguments", Verdict.ON_CPU): 2,
    ("device-list", Verdict.ON_CPU): 2,
    ("device-list", Verdict.ON_GPU): 1,
    ("plugin", Verdict.ON_CPU): 2,
    ("buffers", Verdict.ON_CPU): 2,
    ("buffers", Verdict.ON_GPU): 2,
    ("layers", Verdict.ON_CPU): 1,
    ("loaded", Verdict.ON_CPU): 1,
    ("complaint", Verdict.ON_CPU): 1,
    ("device-nodes", Verdict.ON_CPU): 1,
    ("process-memory", Verdict.ON_GPU): 2,
    ("device-memory", Verdict.ON_GPU): 1,
}
"""The weight of each statement of a sign. Only UNKNOWN is not listed; it counts 0."""


class ProcessSample(NamedTuple):
    """The facts about one process. None: not permitted, or not on this system.

    ``nodes`` are the GPU device nodes that it has open. ``libraries`` are the names of the
    files that it has mapped. ``memory`` is the GPU memory that the kernel's drivers count for
    it, in bytes.
    """

    nodes: tuple[str, ...] | None = None
    libraries: frozenset[str] | None = None
    memory: int | None = None


class Observed(NamedTuple):
    """The observations of one server. None: not asked, or cannot be known.

    ``files`` are the names in the build's folder. ``refusal`` is the user's argument that
    keeps a server from the GPU. ``listed`` is the answer to ``--list-devices`` (empty: it
    lists no device). Memory is in bytes: ``process_memory`` is the GPU memory of this
    process, ``risen`` how much more of the device is used since the start.
    """

    backend: str
    files: frozenset[str] = frozenset()
    refusal: str | None = None
    listed: tuple[ListedDevice, ...] | None = None
    log: LogFacts = LogFacts()
    process: ProcessSample = ProcessSample()
    process_memory: int | None = None
    risen: int | None = None
    model_size: int | None = None


def collect_signs(seen: Observed) -> tuple[Sign, ...]:
    """Collect every sign, also those that say unknown."""
    return tuple(sign for source in _SOURCES for sign in source(seen))


def verdict(found: Iterable[Sign]) -> Verdict:
    """Weigh the signs and return the verdict."""
    weight = {Verdict.ON_GPU: 0, Verdict.ON_CPU: 0, Verdict.UNKNOWN: 0}
    for sign in found:
        weight[sign.says] += _WEIGHTS.get((sign.name, sign.says), 0)
    # on_cpu can end a server, so it needs a clear lead. For on_gpu any lead is enough.
    if weight[Verdict.ON_CPU] >= weight[Verdict.ON_GPU] + _AGAINST:
        return Verdict.ON_CPU
    if weight[Verdict.ON_GPU] > weight[Verdict.ON_CPU]:
        return Verdict.ON_GPU
    return Verdict.UNKNOWN


def backend_in_use(seen: Observed, decided: Verdict) -> str | None:
    """Return the backend that computes; None if that is not known."""
    if decided is Verdict.ON_CPU:
        return "cpu"
    if decided is Verdict.UNKNOWN:
        return None
    places = (backend_named(name) for name, _ in _on_devices(seen.log.buffers))
    return next(filter(None, places), seen.backend)


def _arguments(seen: Observed) -> Iterator[Sign]:
    if seen.refusal:
        yield Sign("arguments", Verdict.ON_CPU, seen.refusal)


def _device_list(seen: Observed) -> Iterator[Sign]:
    if seen.listed is None:
        return
    own = own_devices(seen.listed, seen.backend)
    hardware = [device for device in own if not _SOFTWARE.search(device.description)]
    if not hardware:
        names = ", ".join(f"{each.name}: {each.description}" for each in seen.listed)
        yield Sign("device-list", Verdict.ON_CPU, f"--list-devices: {names or 'no device'}")
        return
    # A listed device proves only that it could be used. The user's own argument keeps the
    # server from it, or a model that does not fit: the server leaves the rest on the CPU.
    free = [device.free for device in hardware if device.free is not None]
    has_room = seen.model_size is None or not free or sum(free) > seen.model_size
    fits = seen.refusal is None and has_room
    says = Verdict.ON_GPU if fits else Verdict.UNKNOWN
    names = ", ".join(f"{each.name}: {each.description}" for each in hardware)
    yield Sign("device-list", says, f"--list-devices: {names}")


def _plugin(seen: Observed) -> Iterator[Sign]:
    """Check that the backend's plugin is mapped; without it the server cannot use the backend."""
    # Imported here: a start needs the table only once its server is watched.
    from tsuku_llm.backends import facts_of  # noqa: PLC0415

    # No sign for a build without plugins: its backend is part of the server.
    name = f"ggml-{facts_of(seen.backend).plugin}"
    own = {file for file in seen.files if name in file}
    # A process without any file of the build is a wrapper that started the server.
    if not own or seen.process.libraries is None or not seen.files & seen.process.libraries:
        return
    if own & seen.process.libraries:
        yield Sign("plugin", Verdict.UNKNOWN, f"mapped: {min(own & seen.process.libraries)}")
    else:
        yield Sign("plugin", Verdict.ON_CPU, f"not mapped: {min(own)}")


def _buffers(seen: Observed) -> Iterator[Sign]:
    if not seen.log.buffers:
        return
    text = ", ".join(f"{name} {size / (1 << 20):.2f} MiB" for name, size in seen.log.buffers)
    # A single buffer on a device is enough: with few layers offloaded, most are on the host.
    if any(size for _, size in _on_devices(seen.log.buffers)):
        yield Sign("buffers", Verdict.ON_GPU, text)
    elif any(_ELSEWHERE.match(name) for name, _ in seen.log.buffers):
        yield Sign("buffers", Verdict.UNKNOWN, text)
    else:
        yield Sign("buffers", Verdict.ON_CPU, text)


def _on_devices(buffers: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return [
        (name, size)
        for name, size in buffers
        if size and not _HOST_MEMORY.match(name) and not _ELSEWHERE.match(name)
    ]


def _layers(seen: Observed) -> Iterator[Sign]:
    if seen.log.layers:
        offloaded, total = seen.log.layers
        # Upstream prints "33/33" without a GPU too: only 0 proves something.
        says = Verdict.UNKNOWN if offloaded else Verdict.ON_CPU
        yield Sign("layers", says, f"offloaded {offloaded}/{total} layers to GPU")


def _loaded(seen: Observed) -> Iterator[Sign]:
    if seen.log.loaded:
        own = any(backend_named(name) == seen.backend for name in seen.log.loaded)
        # A name that we do not know may be a new name of the backend: then say unknown.
        others = all(backend_named(name) or name.lower() in _NO_GPU for name in seen.log.loaded)
        says = Verdict.ON_CPU if others and not own else Verdict.UNKNOWN
        yield Sign("loaded", says, f"loaded backends: {', '.join(seen.log.loaded)}")


_NO_GPU = ("cpu", "blas", "rpc")


def _complaint(seen: Observed) -> Iterator[Sign]:
    if seen.log.complaint:
        yield Sign("complaint", Verdict.ON_CPU, seen.log.complaint)


def _device_nodes(seen: Observed) -> Iterator[Sign]:
    nodes = seen.process.nodes
    if nodes is not None:
        # Open nodes prove nothing: drivers open them to list devices.
        says = Verdict.UNKNOWN if nodes else Verdict.ON_CPU
        yield Sign("device-nodes", says, f"open: {', '.join(nodes) or 'no GPU device node'}")


def _process_memory(seen: Observed) -> Iterator[Sign]:
    if seen.process_memory is not None:
        text = f"{seen.process_memory:,} bytes of GPU memory are this process's"
        yield Sign("process-memory", _holds_the_model(seen.process_memory, seen), text)


def _device_memory(seen: Observed) -> Iterator[Sign]:
    # Weaker than the process's own memory: another program may have taken it.
    if seen.risen is not None and seen.process_memory is None:
        text = f"{seen.risen:,} bytes more of the GPU's memory are used since the start"
        yield Sign("device-memory", _holds_the_model(seen.risen, seen), text)


def _holds_the_model(memory: int, seen: Observed) -> Verdict:
    """Judge whether the memory exceeds a driver's own use by at least half of the model."""
    enough = seen.model_size is not None and memory - _CONTEXT >= seen.model_size / 2
    return Verdict.ON_GPU if enough else Verdict.UNKNOWN


_SOURCES = (
    _arguments,
    _device_list,
    _plugin,
    _buffers,
    _layers,
    _loaded,
    _complaint,
    _device_nodes,
    _process_memory,
    _device_memory,
)
