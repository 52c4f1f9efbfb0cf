"""Whether a model fits into memory, in words, and what would make it fit. Pure.

A server puts the last layers on its devices, and leaves the first ones in main memory. Each device
also needs buffers for computing. Upstream's ``--fit`` leaves a margin of each device free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tsuku_llm.ground.records import documented
from tsuku_llm.launch.memory.memory_options import ROOM, MemoryOptions
from tsuku_llm.launch.memory.need import MemoryNeed
from tsuku_llm.launch.plan.report import GpuHolder, told_size

TOOL = "llama-fit-params"
"""Upstream's own program for this question; ``fit_tool`` asks it."""

_STEP = 256
"""Tokens: upstream rounds a context to a multiple of this."""

_SMALL_CACHE = "q8_0"
_PLAIN_CACHES = ("f32", "f16", "bf16")

_LEAST_BITS = 2.0
"""Bits for each weight: a stronger quantisation does not leave much of a model."""

_HOLDERS = 3
"""Other processes that are named: those with the most memory."""


@documented("name", "free", "total", "holders")
class Card(NamedTuple):
    """A device that can hold a part of a model, or main memory; None if a size is not known.

    Memory is in bytes. ``speed`` is the bandwidth of its memory in GB/s. ``holders`` are other
    processes with memory there. ``kept`` are the bytes of what is free that are not for the model's
    layers.
    """

    name: str
    description: str = ""
    free: int | None = None
    total: int | None = None
    integrated: bool = False
    speed: int | None = None
    holders: tuple[GpuHolder, ...] = ()
    kept: int = ROOM

    @property
    def told(self) -> str:
        """The device in words, such as ``Vulkan0 (NVIDIA H200)``."""
        return f"{self.name} ({self.description})"

    @property
    def room(self) -> int | None:
        """The bytes that count: what is free, else all of it."""
        return self.total if self.free is None else self.free

    @property
    def told_memory(self) -> str:
        """The memory in words: ``Vulkan0 has 23.1 GB of 25.4 GB free (python3, 2.0 GB)``."""
        if self.room is None:
            return f"{self.name}: size unknown"
        if self.free is None:
            return f"{self.name} has {told_size(self.room)}"
        whole = f" of {told_size(self.total)}" if self.total else ""
        named = sorted(self.holders, key=lambda holder: -holder.memory)[:_HOLDERS]
        held = "; ".join(f"{each.name}, {told_size(each.memory)}" for each in named)
        in_use = f" ({held})" if held else ""
        return f"{self.name} has {told_size(self.free)}{whole} free{in_use}"


@documented(
    *("size", "device_size", "*need", "context", "devices", "host", "fits", "layers"),
    *("on_devices", "shortened", "missing", "remedies"),
)
class Fit(NamedTuple):
    """The memory that a start needs, compared with the memory that is free.

    ``on_devices`` is how many of the ``layers`` the devices get. The output counts as a layer.
    Both are 0 for a start on the processor. ``fits`` tells whether everything is where it was asked
    for, None if the memory or the need is not known. ``shortened`` is the context that the server
    makes of one that nobody asked for. ``missing`` is what main memory lacks, in bytes.
    ``remedies`` are sentences, each of which makes it fit by itself.
    """

    need: MemoryNeed
    context: int
    devices: tuple[Card, ...]
    host: Card
    fits: bool | None
    on_devices: int = 0
    layers: int = 0
    shortened: int | None = None
    missing: int = 0
    remedies: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes that the whole start needs."""
        if not self.devices:
            return self.need.on_processor
        more = len(self.devices) - 1
        return self.need.total + more * (self.need.driver + self.need.compute)

    @property
    def device_size(self) -> int:
        """The part of ``size`` that the devices need together, with every layer on them."""
        held = self.need.other + self.need.host_compute + self.need.beside()
        return self.size - held if self.devices else 0

    @property
    def told(self) -> tuple[str, ...]:
        """The comparison in words, a line for each fact."""
        cache = self.need.cache_size
        rest = self.size - self.need.weights - cache
        parts = f"weights {told_size(self.need.weights)}, cache {told_size(cache)}"
        where = "; ".join(space.told_memory for space in self.devices or (self.host,))
        bound = f"at {self.need.doubt} " if self.need.doubt else ""
        first = f"needs {bound}{told_size(self.size)} ({parts}, buffers {told_size(max(0, rest))})"
        # A file may not tell its context.
        context = f" for a context of {self.context}" if self.context else ""
        lines = [f"{first}{context}; {where}"]
        if self.need.doubt:
            lines.append("the model's file does not tell all that a server takes for it")
        if self.shortened:
            lines.append(f"the server shortens the context to about {self.shortened} to fit")
        if self.devices and self.on_devices < self.layers:
            lines.append(
                f"{self.on_devices} of {self.layers} layers go to the GPU; the rest stays in main "
                "memory, which is much slower"
            )
        if self.missing:
            lines.append(f"main memory lacks {told_size(self.missing)}: {self.host.told_memory}")
        if self.remedies:
            lines.append(f"to fit: {'; or '.join(self.remedies)}")
        elif self.fits is False:
            lines.append("no context, cache or quantisation makes it fit here: use a smaller model")
        return tuple(lines)


def judge(
    estimate: Callable[[MemoryOptions], MemoryNeed],
    options: MemoryOptions,
    devices: Sequence[Card],
    host: Card,
    *,
    own_context: int,
    numbers: int = 0,
    asked_layers: int | None = None,
) -> Fit:
    """Compare what ``estimate`` gives for the options with the memory that is free.

    ``own_context`` is the model's own, in tokens, ``numbers`` is how many weights it has.
    ``asked_layers`` are those that the user wants on devices, None for all; without any the start
    uses no device.
    """
    devices = () if asked_layers == 0 else tuple(devices)
    need = estimate(options)
    count = len(need.layers) + 1 if devices else 0
    wanted = count if asked_layers is None else min(count, asked_layers)
    context = options.context or own_context
    case = _Case(estimate, options, devices, host, wanted, context)
    plain = Fit(need, context, devices, host, None, wanted, count)
    if any(space.room is None for space in devices or (host,)):
        return plain
    if case.holds(need) and need.doubt != "least":
        return plain._replace(fits=True)
    # What the header cannot tell is no reason to refuse a start, or to change it.
    if need.doubt:
        return plain
    # Upstream shortens a context only if nobody asked for one.
    free_to_choose = options.fits_itself and not options.context
    least = options.shortest if free_to_choose else None
    if least is not None and case.holds_with(options._replace(context=least)):
        return plain._replace(fits=True, shortened=case.longest(options))
    placed = case.placed(need)
    rest = _in_host(need, placed) if devices else need.on_processor
    return plain._replace(
        fits=False,
        on_devices=placed,
        missing=max(0, rest - (rest if host.room is None else host.room)),
        remedies=tuple(_remedies(case, need, numbers)),
    )


def together(fits: Sequence[Fit], margin: int) -> int | None:
    """Return how many of these starts fit at a time, whichever they are; None if it is not known.

    Each was compared alone with the same memory. ``margin`` are the bytes that stay free on the
    devices. One that would be shortened takes the whole memory.
    """
    on_devices, in_host = list[int](), list[int]()
    device_room = host_room = 0
    for each in fits:
        rooms = [space.room for space in each.devices]
        known = [room for room in rooms if room is not None]
        if each.fits is None or each.host.room is None or len(known) < len(rooms):
            return None
        device_room, host_room = max(0, sum(known) - margin), each.host.room
        held = min(each.device_size, device_room)
        # Layers that devices have no room for stay in main memory; a cache that is shortened does
        # not.
        rest = each.size - (each.device_size if each.shortened else held)
        on_devices.append(held)
        in_host.append(min(rest, host_room))

    def holds(count: int) -> bool:
        """Tell whether the largest ones fit: then any others do."""
        return all(
            sum(sorted(sizes, reverse=True)[:count]) <= room
            for sizes, room in ((on_devices, device_room), (in_host, host_room))
        )

    return max(1, _last(len(fits), holds))


class _Case(NamedTuple):
    """A start and the memory that is there; ``wanted`` are the layers for the devices."""

    estimate: Callable[[MemoryOptions], MemoryNeed]
    options: MemoryOptions
    devices: tuple[Card, ...]
    host: Card
    wanted: int
    context: int

    def holds(self, need: MemoryNeed) -> bool:
        room = self.host.room
        if not self.devices:
            return room is None or need.on_processor <= room
        return self.placed(need) >= self.wanted and (
            room is None or _in_host(need, self.wanted) <= room
        )

    def placed(self, need: MemoryNeed) -> int:
        """Return how many of the last layers the devices hold; the output counts as one.

        Whole layers only, and the device with the most free memory first: it also holds the other
        models of the start that have no device. A driver's own memory is not free any more when a
        build lists its devices, as that process has taken it.
        """
        sizes = [*map(sum, zip(need.layers, need.cache, strict=True)), need.output]
        waiting = sizes[len(sizes) - self.wanted :]
        by_room = sorted(enumerate(self.devices), key=lambda each: -(each[1].room or 0))
        extra, count = need.companions, 0
        for number, space in by_room:
            room = (space.room or 0) - self.options.margin(number) - need.compute
            room -= extra + need.beside(space.name)
            extra = 0
            while waiting and waiting[-1] <= room:
                room -= waiting.pop()
                count += 1
        return count

    def holds_with(self, options: MemoryOptions) -> bool:
        return self.holds(self.estimate(options))

    def longest(self, options: MemoryOptions) -> int | None:
        """Return the longest shorter context that fits, in tokens; None if none does."""
        # A longer context never needs less memory.
        steps = _last(
            max(0, (self.context - 1) // _STEP),
            lambda step: self.holds_with(options._replace(context=step * _STEP)),
        )
        return steps * _STEP or None


def _last(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to ``most`` for which ``holds`` is true; 0 if there is none.

    It must be true for every number below one for which it is true.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _in_host(need: MemoryNeed, placed: int) -> int:
    """Return what main memory holds if the devices have this many layers."""
    kept = max(0, len(need.layers) + 1 - placed)
    first = sum(need.layers[:kept]) + sum(need.cache[:kept])
    # Layers in main memory are computed by the processor, with buffers of the same size.
    return need.other + need.beside() + first + (need.compute if kept else need.host_compute)


def _remedies(case: _Case, need: MemoryNeed, numbers: int) -> Iterator[str]:
    """Yield what would make it fit, the least loss first."""
    options, name = case.options, _SMALL_CACHE
    small = options._replace(key_type=name, value_type=name)
    plain = options.key_type in _PLAIN_CACHES and options.flash_attention
    if plain and case.holds_with(small):
        yield f"a cache in {name} (-ctk {name} -ctv {name})"
    if shorter := case.longest(options):
        yield f"a context of {shorter} (-c {shorter})"
    elif plain and (shorter := case.longest(small)):
        words = f"-c {shorter} -ctk {name} -ctv {name}"
        yield f"a context of {shorter} with a cache in {name} ({words})"
    # Experts compute well enough in main memory: a token uses only a few of them.
    layers = len(need.layers)
    if case.devices and case.holds_with(options._replace(experts_in_host=layers)):
        # The fewer are there, the faster.
        more = _last(
            layers, lambda less: case.holds_with(options._replace(experts_in_host=layers - less))
        )
        yield f"the experts of {layers - more} layers in main memory (-ncmoe {layers - more})"
    if numbers:
        now = need.weights * 8 / numbers
        tenths = _last(int(now * 10), lambda bits: case.holds(_scaled(need, bits / 10 / now)))
        if tenths >= _LEAST_BITS * 10:
            yield (
                f"a quantisation of at most {tenths / 10:.1f} bits for each weight (now {now:.1f})"
            )


def _scaled(need: MemoryNeed, factor: float) -> MemoryNeed:
    """Return the need with weights of another size."""
    return need._replace(
        layers=tuple(int(size * factor) for size in need.layers),
        output=int(need.output * factor),
        other=int(need.other * factor),
        shared=int(need.shared * factor),
    )
