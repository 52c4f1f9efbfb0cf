"""The order of devices by kind and memory, whichever API lists them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tsuku_llm.machine.hardware import Gpu, GpuKind

SMALL_CARD = 5 << 29
"""Bytes: a card with less holds no model worth serving. Between 2 and 3 GB, which are sold."""

ROOMY = 8 << 30
"""Bytes of an integrated device that is better than a small card."""

ALIKE = 0.85
"""The part of the largest card's memory from which on another card counts as equally large.

Two drivers may report a tenth more or less for the same card. Sizes that are sold differ by more,
such as 10 and 12 GB, or 20 and 24 GB.
"""

_KIND_RANKS = {
    GpuKind.DISCRETE: 0,
    GpuKind.INTEGRATED: 1,
    # 2: a small card beside a roomy integrated device
    GpuKind.VIRTUAL: 3,
    GpuKind.OTHER: 4,
    GpuKind.SOFTWARE: 5,
}
_BEHIND_RANK = 2

CPU_RANK = 6
"""The rank of the processor, behind every device."""


def device_ranks(gpus: Iterable[Gpu]) -> Mapping[Gpu, tuple[int, int]]:
    """Rank devices of any APIs, the best lowest: the kind, then a tier of cards by memory.

    A discrete card comes before an integrated device, but a card of 1 GB does not beat a processor
    whose GPU has 96 GB. Each driver reports a slightly different size for the same card, so cards
    of about the same size are in one tier. A card whose driver does not tell its memory is in the
    first tier. Integrated devices are not compared by memory: each driver reports another part of
    the machine's memory for the same device.
    """
    devices = list(gpus)
    room = [gpu.memory or 0 for gpu in devices if gpu.kind is GpuKind.INTEGRATED]
    behind = SMALL_CARD if max(room, default=0) >= ROOMY else 0
    ranks: dict[Gpu, tuple[int, int]] = {}
    tier, largest = 0, 0
    for gpu in sorted(devices, key=lambda gpu: gpu.memory or 0, reverse=True):
        if gpu.kind is not GpuKind.DISCRETE or not gpu.memory:
            ranks[gpu] = (_KIND_RANKS[gpu.kind], 0)
            continue
        # Clearly smaller than the largest card of the tier: a tier of its own.
        if gpu.memory < ALIKE * largest:
            tier += 1
            largest = 0
        largest = largest or gpu.memory
        ranks[gpu] = (_BEHIND_RANK if gpu.memory < behind else _KIND_RANKS[gpu.kind], tier)
    return ranks
