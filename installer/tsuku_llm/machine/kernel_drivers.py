"""Which kernel module drives a GPU, and what is wrong if another one does, or none. Pure.

It also says which drivers serve which of NVIDIA's cards: the branches, and the flavour of module.

Sources: the device numbers by chip, pci.ids of 2026-08-22; which of AMD's generations need an
option for amdgpu, ``drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c`` of Linux; which of Intel's only xe
drives, ``include/drm/intel/pciids.h`` of Linux. Of NVIDIA's cards: the last branch of a generation,
``legacybranch`` of supported-gpus.json, which is in NVIDIA's drivers 580.178.04 and 615.71.09; the
first branch, the release notes of the drivers; the flavours, the chapter "Open Linux Kernel
Modules" of the drivers' README (from Turing on), and NVIDIA's driver installation guide (Blackwell:
open modules only).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tsuku_llm.machine.backends import AMD, INTEL, NVIDIA
from tsuku_llm.machine.fixes import Need, fix_for
from tsuku_llm.machine.hardware import Problem
from tsuku_llm.machine.places import MachinePlace


class BusCard(NamedTuple):
    """A display controller or accelerator; ``driver`` is the kernel module bound to it, if any.

    ``name`` is its slot ("PCI 0000:01:00.0"), or Windows' name for it. ``numbers`` are its ids as
    text. ``power`` is its state before the drivers were asked; asking wakes one in D3cold that
    works.
    """

    name: str
    vendor: int | None
    device: int | None
    driver: str | None
    numbers: str = ""
    power: str | None = None

    @property
    def slot(self) -> str:
        """Its place on the bus, as Linux writes it."""
        return self.name.removeprefix("PCI ")


SET_ASIDE = ("vfio-pci", "pci-stub")
"""The modules that keep a card for a virtual machine."""

# Radeon HD 7000 and 8000, R5 to R9 of the 200 and 300 series: radeon, unless it is told otherwise.
_SI = ((0x6600, 0x6631), (0x6660, 0x666F), (0x6780, 0x679F), (0x6800, 0x683F))
_CIK = (
    *((0x1304, 0x131D), (0x6640, 0x665F), (0x67A0, 0x67BE)),
    *((0x9830, 0x983F), (0x9850, 0x985F)),
)
# Lunar Lake, Battlemage, Panther Lake, Wildcat Lake.
_XE_ONLY = (
    *((0x6420, 0x6420), (0x64A0, 0x64B0), (0xE202, 0xE2FF)),
    *((0xB080, 0xB0FF), (0xFD80, 0xFD81)),
)


def undriven(cards: Iterable[BusCard], place: MachinePlace) -> Problem | None:
    """Return the problem of the first card if no program can use any of them; None if one can."""
    found = [not_driven(card, place) for card in cards]
    return None if None in found else next(iter(found), None)


def not_driven(card: BusCard, place: MachinePlace) -> Problem | None:
    """Return the problem of a card that no program can use as the kernel drives it."""
    if card.driver in SET_ASIDE:
        text = f"{card.name} is reserved for a virtual machine ({card.driver})"
        return Problem("gpu-set-aside", text, fix_for(Need.SET_ASIDE, place))
    if card.vendor == AMD and card.driver == "radeon":
        return _on_radeon(card, place)
    needs_xe = card.vendor == INTEL and _in(card.device, _XE_ONLY)
    if needs_xe and card.driver not in ("xe", None):
        text = f"{card.name} is driven by the module {card.driver}, and only xe serves it"
        return Problem("no-kernel-driver", text, fix_for(Need.INTEL_NEW_MODULE, place))
    if card.driver is not None:
        return None
    need = {
        AMD: Need.AMD_MODULE,
        INTEL: Need.INTEL_NEW_MODULE if needs_xe else Need.INTEL_OLD_MODULE,
        NVIDIA: Need.NVIDIA_MODULE,
    }.get(card.vendor or 0)
    if need is None:
        return None
    text = f"no kernel driver is bound to {card.name}"
    return Problem("no-kernel-driver", text, fix_for(need, place))


def _on_radeon(card: BusCard, place: MachinePlace) -> Problem:
    text = f"{card.name} is driven by the old module radeon, which Vulkan's drivers do not support"
    generation = "si" if _in(card.device, _SI) else "cik" if _in(card.device, _CIK) else None
    if generation is None:
        return Problem("old-kernel-driver", text, "use another GPU: amdgpu does not serve this one")
    fix = fix_for(Need.AMD_OLD_MODULE, place, generation=generation)
    return Problem("old-kernel-driver", text, fix)


def _in(device: int | None, ranges: tuple[tuple[int, int], ...]) -> bool:
    return device is not None and any(first <= device <= last for first, last in ranges)


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

MODULE_SWITCHES = (
    ("/lib/modprobe.d/blacklist-nvidia.conf", "nvidia-prime", "prime-select"),
    ("/etc/modprobe.d/blacklist-nvidia.conf", "nvidia-prime", "prime-select"),
    ("/etc/modprobe.d/blacklist-nvidia.conf", "EnvyControl", "envycontrol"),
    ("/etc/modprobe.d/supergfxd.conf", "", "supergfxctl"),
    ("/etc/modprobe.d/system76-power.conf", "", "system76-power"),
    ("/usr/lib/modprobe.d/optimus-manager.conf", "", "optimus-manager"),
    ("/usr/lib/modprobe.d/09-nvidia-modprobe-bbswitch-G04.conf", "", "suse-prime"),
    ("/etc/modprobe.d/09-nvidia-modprobe-bbswitch-G04.conf", "", "suse-prime"),
    ("/etc/modprobe.d/bumblebee.conf", "", "bumblebee"),
    ("/etc/modprobe.d/blacklist-nvidia.conf", "", ""),
)
"""Files that may keep NVIDIA's module from being loaded, a word in them, and the program that wrote
them: it switches the GPUs of a laptop. The last one is a person's.

Sources: prime-select of canonical/nvidia-prime, envycontrol.py of bayasdev/envycontrol,
omacom/omarchy#5408 for supergfxd, src/graphics.rs of pop-os/system76-power,
modules/optimus-manager.conf of Askannz/optimus-manager, openSUSE/SUSEPrime#79, and
Bumblebee-Project/Bumblebee#822.
"""

# Modes in which only the parts for a screen are left out have lines for nvidia-drm alone.
_LEFT_OUT = re.compile(r"^\s*(?:blacklist\s+nvidia|alias\s+nvidia\s+off)\s*$", re.MULTILINE)


def keeps_nvidia_away(text: str) -> bool:
    """Tell whether a file of modprobe.d keeps the module nvidia from being loaded at boot."""
    return _LEFT_OUT.search(text) is not None


WITHOUT_VULKAN = frozenset({"Fermi"})
"""The generations that no build can use: NVIDIA's Vulkan is for Kepler and newer, by its page of
Vulkan drivers, and llama.cpp's CUDA for Maxwell and newer."""


def generation_of(device: int | None) -> Generation | None:
    """Return the generation of a PCI device number; None if it is not known."""
    return next((each for each in GENERATIONS if _in(device, each.ids)), None)
