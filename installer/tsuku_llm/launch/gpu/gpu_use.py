"""The signs of where a running server computes, from what was observed of it. Pure.

Each sign says on_gpu, partly, on_cpu or unknown; ``verdict`` has their weights and the policy.
Wordings change, drivers refuse answers, and ``/proc`` may be closed: a sign that cannot be read
says unknown, and its evidence tells why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tsuku_llm.launch.ask.log import LogFacts
from tsuku_llm.launch.plan.devices import ListedDevice, backend_named, own_devices
from tsuku_llm.launch.plan.report import CanaryResult, Sign, Verdict
from tsuku_llm.launch.plan.wishes import Wishes
from tsuku_llm.machine.backends import facts_of, parts_of

# Names of ggml's buffers: in the machine's memory ("CPU", "CPU_Mapped", "CUDA_Host"), and on
# another machine ("RPC0[...]").
_HOST_MEMORY = re.compile(r"^(?:cpu|amx|blas|host|\w+_host)(?:_\w+)?$", re.IGNORECASE)
_ELSEWHERE = re.compile(r"^rpc", re.IGNORECASE)
# Software renderers: drivers list them as devices, but they compute on the CPU.
_SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader", re.IGNORECASE)

CONTEXT = 768 << 20
"""Bytes that a driver may take for a process that computes nothing there (CUDA: about 550 MB)."""

_WHOLE = 0.9
"""The part of the layers' bytes that must be on the GPU for "all of them".

The rest are tensors that some models leave unused, and differences of the counts.
"""

_PART = 0.1
"""The part of the layers' bytes beyond a context that shows that the GPU holds weights."""

_SMALL = 5 * CONTEXT // 2
"""Bytes of a model whose memory must be half more than a context before that shows anything."""

_NO_GPU = ("cpu", "blas", "rpc")
_CPU_PLUGIN = re.compile(r"ggml-cpu")


class ProcessSample(NamedTuple):
    """The facts about the processes of one server. None: not permitted, or not on this system.

    ``nodes`` are the GPU device nodes that they have open, without those in /dev/dri of NVIDIA's
    driver. ``libraries`` are the names of the files that they have mapped. Memory is in bytes:
    ``device_memory`` is what the drivers count as the GPU's own, ``memory`` includes main memory
    that is lent to the GPU. ``model_mapped`` is the part of the model's files that is mapped.
    ``busy`` is a count of the GPU's work that only grows.
    """

    nodes: tuple[str, ...] | None = None
    libraries: frozenset[str] | None = None
    memory: int | None = None
    device_memory: int | None = None
    model_mapped: int | None = None
    busy: int | None = None


class Observed(NamedTuple):
    """The observations of one server. None: not asked, or cannot be known.

    ``files`` are the names in the build's folder. ``listed`` is the answer to
    ``--list-devices`` (empty: it lists no device). Memory is in bytes: ``nvidia_memory`` is what
    NVIDIA's library counts for the server's processes, which the kernel does not count.
    ``risen`` is how much more of the device is used since the start. ``model_size`` is the size
    of the model's files. ``whole`` are the bytes of all its layers, and ``wanted`` of those that
    the user asked for: as many as possible, if the arguments do not say how many. ``needed`` is
    the estimate of what a GPU with all layers holds, with their cache and all else.
    """

    backend: str
    files: frozenset[str] = frozenset()
    wishes: Wishes = Wishes(names_model=True)
    listed: tuple[ListedDevice, ...] | None = None
    log: LogFacts = LogFacts()
    process: ProcessSample = ProcessSample()
    nvidia_memory: int | None = None
    risen: int | None = None
    model_size: int | None = None
    whole: int | None = None
    wanted: int | None = None
    needed: int | None = None
    canary: CanaryResult = CanaryResult()

    @property
    def memory(self) -> tuple[int, int] | None:
        """The least and the most GPU memory of the server's processes, None if not known.

        The most includes main memory that is lent to the GPU. A process that has a device open
        whose driver does not count has an unknown amount.
        """
        counted, nvidia = self.process.memory, self.nvidia_memory
        for node in self.process.nodes or ():
            if node.startswith("/dev/nvidia"):
                known = nvidia is not None
            elif node.startswith(("/dev/dri/", "/dev/kfd")):
                known = counted is not None
            else:
                known = False
            if not known:
                return None
        if counted is None and nvidia is None:
            return None
        own = self.process.device_memory
        return (nvidia or 0) + (own or 0), (nvidia or 0) + (counted or 0)

    @property
    def is_router(self) -> bool:
        """True if the server was given no model, and none answered: its children compute."""
        return not (self.wishes.names_model or self.canary.answered)


def collect_signs(seen: Observed) -> tuple[Sign, ...]:
    """Collect every sign, also those that say unknown."""
    return tuple(sign for source in _SOURCES for sign in source(seen))


def backend_in_use(seen: Observed, decided: Verdict) -> str | None:
    """Return the backend that computes; None if that is not known."""
    if decided is Verdict.ON_CPU:
        return "cpu"
    if decided is Verdict.UNKNOWN:
        return None
    places = (backend_named(name) for name, _ in _on_devices(seen.log.buffers))
    return next(filter(None, places), seen.backend)


def bytes_on_gpu(seen: Observed, decided: Verdict) -> int | None:
    """Return how many bytes of the model are on the GPU; None if that is not known.

    The log's own numbers come first. Else it is the most that fits with the memory of the
    process and with the part of the model's files that is still mapped in main memory.
    """
    size = seen.model_size
    if size is None or decided is Verdict.UNKNOWN:
        return None
    if decided is not Verdict.PARTLY:
        # The input embeddings always stay in main memory: they are not counted as missing.
        return size if decided is Verdict.ON_GPU else 0
    if weights := seen.log.weights:
        return min(size, sum(each for _, each in _on_devices(weights)))
    bounds = [seen.memory[1] if seen.memory else None, _unmapped(seen)]
    known = [bound for bound in bounds if bound is not None]
    return min(size, *known) if known else None


def gpu_names(seen: Observed) -> tuple[str, ...]:
    """Return the names of the devices that the model is on, such as ``Vulkan0``."""
    used = dict.fromkeys(name for name, _ in _on_devices(seen.log.buffers))
    listed = tuple(each.name for each in own_devices(seen.listed or (), seen.backend))
    return tuple(used) or seen.wishes.devices or listed


def shortfall(seen: Observed, decided: Verdict, minimum: float | None) -> str | None:
    """Return why a server does not keep the promise of ``--require-gpu``, None if it does.

    ``minimum`` is the share of the model that must be on the GPU, None for all of the layers
    that the user asked for. With 0, a server of which nothing is known passes as well.
    """
    if decided is Verdict.ON_CPU:
        return "the server does not run on the GPU"
    if decided is Verdict.ON_GPU or minimum == 0:
        return None
    if decided is Verdict.UNKNOWN:
        # Nothing computes in a router yet, and other machines cannot be looked at.
        excused = seen.is_router or seen.wishes.remote
        return None if excused else "nothing shows that the server uses the GPU"
    held = bytes_on_gpu(seen, decided)
    if minimum is not None:
        layers = seen.log.layers
        share = layers[0] / layers[1] if layers and layers[1] else None
        if held is not None and seen.model_size:
            share = held / seen.model_size
        short = share is None or share < minimum
    elif seen.wishes.split or seen.wishes.remote:
        short = False
    elif seen.log.layers:
        # The layers of the log are exact; the bytes are estimates.
        offloaded, total = seen.log.layers
        short = offloaded < min(total, seen.wishes.layers or total)
    else:
        short = seen.wanted is not None and (held is None or held < _WHOLE * seen.wanted)
    required = "required" if minimum is not None else "asked for"
    return f"less of the model is on the GPU than was {required}" if short else None


# --- one function for each sign ---------------------------------------------------------------


def _arguments(seen: Observed) -> Iterator[Sign]:
    if seen.wishes.refusal:
        yield Sign("arguments", Verdict.ON_CPU, seen.wishes.refusal)


def _device_list(seen: Observed) -> Iterator[Sign]:
    if seen.listed is None:
        return
    own = own_devices(seen.listed, seen.backend)
    hardware = [device for device in own if not _SOFTWARE.search(device.description)]
    # A device in the list could be used. That does not show that this server uses it.
    says = Verdict.UNKNOWN if hardware else Verdict.ON_CPU
    names = ", ".join(f"{each.name}: {each.description}" for each in hardware or seen.listed)
    yield Sign("device-list", says, f"--list-devices: {names or 'no device'}")


def _plugins(seen: Observed) -> frozenset[str]:
    """Return the names of the backend's plugin in the build; none if it is part of the server."""
    names = [f"ggml-{facts_of(part).plugin}" for part in parts_of(seen.backend)]
    return frozenset(file for file in seen.files if any(name in file for name in names))


def _plugin(seen: Observed) -> Iterator[Sign]:
    """Check that the backend's plugin is mapped; without it the server cannot use the backend."""
    own, libraries = _plugins(seen), seen.process.libraries
    # A process without any file of the build is a wrapper that started the server.
    if not own or libraries is None or not seen.files & libraries:
        return
    if own & libraries:
        yield Sign("plugin", Verdict.UNKNOWN, f"mapped: {min(own & libraries)}")
    # A router may load no plugin at all; if it loads some, it loads all.
    elif not seen.is_router or any(map(_CPU_PLUGIN.search, libraries)):
        yield Sign("plugin", Verdict.ON_CPU, f"not mapped: {min(own)}")


def _buffers(seen: Observed) -> Iterator[Sign]:
    if not seen.log.buffers:
        return
    text = ", ".join(f"{name} {size / (1 << 20):.2f} MiB" for name, size in seen.log.buffers)
    if _on_devices(seen.log.buffers) and not _is_software(seen.log):
        weights = sum(size for _, size in _on_devices(seen.log.weights))
        # A log with the context's buffers alone does not tell where the weights are.
        missing = seen.log.weights and seen.whole and weights < _WHOLE * seen.whole
        yield Sign("buffers", Verdict.PARTLY if missing else Verdict.ON_GPU, text)
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
        # Upstream prints "33/33" without a GPU too: only a smaller number proves something.
        says = Verdict.UNKNOWN if offloaded >= total else Verdict.PARTLY
        says = says if offloaded else Verdict.ON_CPU
        yield Sign("layers", says, f"offloaded {offloaded}/{total} layers to GPU")


def _is_software(log: LogFacts) -> bool:
    return log.device is not None and _SOFTWARE.search(log.device) is not None


def _software(seen: Observed) -> Iterator[Sign]:
    if _is_software(seen.log):
        yield Sign("software", Verdict.ON_CPU, f"using device {seen.log.device}")


def _loaded(seen: Observed) -> Iterator[Sign]:
    if seen.log.loaded:
        own = any(backend_named(name) in parts_of(seen.backend) for name in seen.log.loaded)
        # A name that we do not know may be a new name of the backend: then say unknown.
        others = all(backend_named(name) or name.lower() in _NO_GPU for name in seen.log.loaded)
        says = Verdict.ON_CPU if others and not own else Verdict.UNKNOWN
        yield Sign("loaded", says, f"loaded backends: {', '.join(seen.log.loaded)}")


def _complaint(seen: Observed) -> Iterator[Sign]:
    if seen.log.complaint:
        # Another backend's complaint says nothing about this one: a build may have several.
        words = re.findall(r"[a-z]+", seen.log.complaint.lower())
        named = {backend for word in words if (backend := backend_named(word))}
        # ggml's code for ROCm is its code for CUDA, and so are the names in its messages.
        related = {"cuda", "rocm"} if seen.backend in ("cuda", "rocm") else {seen.backend}
        # A build with several computes on the other maker's cards if one of its backends complains.
        says = Verdict.ON_CPU if not named or named & related else Verdict.UNKNOWN
        yield Sign("complaint", says, seen.log.complaint)


def _device_nodes(seen: Observed) -> Iterator[Sign]:
    nodes, libraries = seen.process.nodes, seen.process.libraries
    if nodes is None:
        return
    # Open nodes show nothing: drivers open them to list devices. But a process that has loaded the
    # backend and no device open cannot compute there. A router and a client of other machines need
    # not have one.
    loaded = libraries is not None and _plugins(seen) & libraries
    needed = loaded and not seen.is_router and not seen.wishes.remote
    says = Verdict.ON_CPU if needed and not nodes else Verdict.UNKNOWN
    yield Sign("device-nodes", says, f"open: {', '.join(nodes) or 'no GPU device node'}")


def _process_memory(seen: Observed) -> Iterator[Sign]:
    if seen.memory is None:
        yield Sign("process-memory", Verdict.UNKNOWN, "no driver counts this process's GPU memory")
        return
    least, most = seen.memory
    text = f"{most:,} bytes of GPU memory are this process's"
    says = _holds(seen, least, most)
    if seen.wishes.shared and says is not Verdict.ON_GPU:
        # The count lacks what the GPU shares with the processor: too little of it shows nothing.
        says, text = Verdict.UNKNOWN, f"{text}, not counting what {seen.wishes.shared} shares"
    yield Sign("process-memory", says, text)
    # Too little to show the GPU. But if something else shows it, the model is not there as a whole.
    comparable = not (seen.is_router or seen.wishes.remote or seen.wishes.shared)
    whole = _whole(seen)
    if says is Verdict.UNKNOWN and comparable and whole is not None and most < _WHOLE * whole:
        text = f"no more than {most:,} bytes of the model can be on the GPU"
        yield Sign("memory-bound", Verdict.PARTLY, text)


def _whole(seen: Observed) -> int | None:
    """Return the bytes that the whole model needs on the GPU; None if they are not known."""
    return seen.model_size if seen.whole is None else seen.whole


def _holds(seen: Observed, least: int, most: int) -> Verdict:
    """Judge the GPU memory of a process; the weights on the GPU are at most ``most`` bytes."""
    # Without a loaded model, or with the model on another machine, the GPU may well be empty.
    if seen.is_router or seen.wishes.remote:
        return Verdict.ON_GPU if least >= 2 * CONTEXT else Verdict.UNKNOWN
    # No memory at all, not even a context: nothing can compute there.
    if most == 0:
        return Verdict.ON_CPU
    wanted, whole = seen.wanted, _whole(seen)
    fits = Verdict.PARTLY if whole is not None and most < _WHOLE * whole else Verdict.ON_GPU
    if wanted is None:
        # A part of unknown size was asked for: much more than a context shows that it is there.
        return fits if least >= 2 * CONTEXT else Verdict.UNKNOWN
    # No more than a context, and at least half of what was asked for has no room in it.
    if most <= CONTEXT and most < wanted / 2:
        return Verdict.ON_CPU
    enough = CONTEXT + wanted * (_PART if wanted >= _SMALL else 0.5)
    return fits if least >= enough else Verdict.UNKNOWN


def _mapped_model(seen: Observed) -> Iterator[Sign]:
    """Compare the part of the model's files that stays mapped with the bytes of all layers."""
    unmapped = _unmapped(seen)
    # llama.cpp unmaps what it has copied to the GPU. So this bounds the share of the GPU from
    # above; it shows no GPU by itself, and without mmap there is nothing to compare.
    if unmapped is None or seen.whole is None:
        return
    says = Verdict.PARTLY if unmapped < _WHOLE * seen.whole else Verdict.UNKNOWN
    text = f"{seen.process.model_mapped:,} bytes of the model's files are used in main memory"
    yield Sign("mapped-model", says, text)


def _unmapped(seen: Observed) -> int | None:
    """Return the bytes of the model that are not used in main memory; None if unknown."""
    # Single tensors of all layers in main memory keep whole ranges mapped: the user's arguments put
    # them there, or the build, if its backend cannot compute with them (Mamba's states).
    if not seen.process.model_mapped or seen.model_size is None or seen.wishes.split:
        return None
    if seen.needed is not None and seen.memory and seen.memory[0] >= _WHOLE * seen.needed:
        return None
    return max(0, seen.model_size - seen.process.model_mapped)


def _device_memory(seen: Observed) -> Iterator[Sign]:
    # Weaker than the process's own memory: another program may have taken or freed it.
    if seen.risen is None or seen.memory is not None:
        return
    says = Verdict.UNKNOWN
    if seen.wanted is not None and not seen.is_router:
        # The whole of it, as nothing tells whose memory it is.
        if seen.risen >= max(CONTEXT, _WHOLE * seen.wanted):
            says = Verdict.ON_GPU
        elif seen.risen <= CONTEXT and seen.risen < seen.wanted / 2:
            says = Verdict.ON_CPU
    text = f"{seen.risen:,} bytes more of the GPU's memory are used since the start"
    yield Sign("device-memory", says, text)


def _engines(seen: Observed) -> Iterator[Sign]:
    canary = seen.canary
    if not canary.answered:
        yield Sign("engines", Verdict.UNKNOWN, f"no canary request: {canary.problem}")
    elif canary.worked is None:
        text = "no driver shows any work of the GPU's engines for this process"
        yield Sign("engines", Verdict.UNKNOWN, text)
    elif canary.worked:
        text = "the GPU's engines worked for this process during a canary request"
        yield Sign("engines", Verdict.ON_GPU, text)
    else:
        # Weak: some drivers add up the time of their engines only now and then.
        says = Verdict.UNKNOWN if seen.wishes.remote else Verdict.ON_CPU
        yield Sign("engines", says, "the GPU's engines did nothing during a canary request")


_SOURCES = (
    _arguments,
    _device_list,
    _plugin,
    _buffers,
    _layers,
    _software,
    _loaded,
    _complaint,
    _device_nodes,
    _process_memory,
    _mapped_model,
    _device_memory,
    _engines,
)
