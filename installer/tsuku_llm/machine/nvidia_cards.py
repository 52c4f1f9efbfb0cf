"""Which drivers serve which of NVIDIA's cards: the branches, and the flavour of kernel module.

Sources: the numbers of the devices by chip, pci.ids of 2026-08-22; the last branch of a generation,
``legacybranch`` of supported-gpus.json, which is in NVIDIA's drivers 580.178.04 and 615.71.09; the
first branch, the release notes of the drivers; the flavours, the chapter "Open Linux Kernel
Modules" of the drivers' README (from Turing on), and NVIDIA's driver installation guide (Blackwell:
open modules only).
"""

from __future__ import annotations

from typing import NamedTuple

OPEN, CLOSED = "open", "proprietary"
"""The flavours of the kernel module."""


class Generation(NamedTuple):
    """A generation of chips.

    ``ids`` are ranges of PCI device numbers. ``first`` and ``last`` are the branches of the driver
    that serve it; 0 if the last one is not known. ``modules`` are the flavours that do.
    """

    name: str
    ids: tuple[tuple[int, int], ...]
    first: int
    last: int
    modules: frozenset[str]


_ANY = frozenset({OPEN, CLOSED})
_CLOSED = frozenset({CLOSED})
_OPEN = frozenset({OPEN})

GENERATIONS = (
    Generation(
        "Fermi",
        ((0x06C0, 0x06DF), (0x0DC0, 0x0F06), (0x1040, 0x109B), (0x1140, 0x1140), (0x1200, 0x1251)),
        *(260, 390, _CLOSED),
    ),
    Generation("Kepler", ((0x0FA0, 0x103F), (0x1180, 0x11FF), (0x1280, 0x130B)), 304, 470, _CLOSED),
    # Their numbers are interleaved, and one branch is the last for all three.
    Generation("Maxwell, Pascal or Volta", ((0x1340, 0x1DF6),), 340, 580, _CLOSED),
    Generation("Turing", ((0x1E02, 0x1FF9), (0x2182, 0x21D1)), 410, 0, _ANY),
    Generation("Ampere", ((0x2080, 0x20FF), (0x2200, 0x223F), (0x2414, 0x25FB)), 450, 0, _ANY),
    Generation("Hopper", ((0x2302, 0x23F0),), 525, 0, _ANY),
    Generation("Ada", ((0x2681, 0x28F8),), 525, 0, _ANY),
    Generation("Blackwell (GB10)", ((0x2E00, 0x2E7F),), 580, 0, _OPEN),
    Generation("Blackwell", ((0x2900, 0x2F58),), 570, 0, _OPEN),
    Generation("Blackwell Ultra", ((0x3180, 0x3340),), 575, 0, _OPEN),
)

WITHOUT_VULKAN = frozenset({"Fermi"})
"""The generations that no build can use: NVIDIA's Vulkan is for Kepler and newer, by its page of
Vulkan drivers, and llama.cpp's CUDA for Maxwell and newer."""


def generation_of(device: int | None) -> Generation | None:
    """Return the generation of a PCI device number; None if it is not known."""
    if device is None:
        return None
    return next(
        (each for each in GENERATIONS if any(a <= device <= z for a, z in each.ids)),
        None,
    )
