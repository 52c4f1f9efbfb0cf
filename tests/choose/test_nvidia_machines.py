"""Upstream's builds and our CUDA lines on any machine with NVIDIA cards, by NVIDIA's own rules.

The rules are written down here once more, in numbers: NVIDIA's CUDA compatibility guide (minor
version compatibility, PTX) and the programming guide (binary compatibility).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.machines import (
    CUDA_12,
    CUDA_13,
    NEW_FLOOR,
    OLD_FLOOR,
    machine,
    release,
    variant,
    vulkan,
)

from tsuku_llm.choose.fitting import usable_gpus
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind, Hardware, Libc
from tsuku_publish.building.matrix import load_matrix
from tsuku_publish.building.recipe import device_code

Pair = tuple[int, int]

TEGRA = {(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)}
"""Jetson TX1, TX2, Xavier, Orin, and Thor as CUDA 12 names it: code of no other GPU runs there."""
CARDS = {
    "Tesla K40": (3, 5),
    "Tesla K80": (3, 7),
    "GTX 750 Ti": (5, 0),
    "GTX Titan X": (5, 2),
    "Tesla P100": (6, 0),
    "GTX 1080 Ti": (6, 1),
    "V100": (7, 0),
    "RTX 2080": (7, 5),
    "A100": (8, 0),
    "RTX 3090": (8, 6),
    "RTX 4090": (8, 9),
    "H100": (9, 0),
    "B200": (10, 0),
    "B300": (10, 3),
    "Thor": (11, 0),
    "RTX 5090": (12, 0),
    "GB10": (12, 1),
    "a card of tomorrow": (13, 0),
}
JETSONS = {"Jetson TX1": (5, 3), "Jetson Xavier": (7, 2), "Jetson Orin": (8, 7), "Thor": (10, 1)}


@dataclass(frozen=True)
class Build:
    """A CUDA build: its toolkit and device code in numbers, as ``a`` for one device exactly."""

    name: str
    toolkit: Pair
    sass: tuple[tuple[Pair, bool], ...]
    ptx: tuple[Pair, ...]
    document: dict[str, Any]

    def runs(self, card: Pair, driver: Pair | None) -> bool:
        """Whether NVIDIA says that it runs; a driver that tells no version runs machine code."""
        if card in TEGRA and card not in [code for code, _ in self.sass]:
            return False
        if any(serves(code, exact, card) for code, exact in self.sass):
            return driver is None or driver[0] >= self.toolkit[0]
        return (
            any(code <= card for code in self.ptx)
            and driver is not None
            and (driver >= self.toolkit)
        )


def serves(code: Pair, exact: bool, card: Pair) -> bool:
    if exact or code in TEGRA or card in TEGRA:
        return code == card
    return code[0] == card[0] and code[1] <= card[1]


def pair(text: str) -> Pair:
    major, minor = text.removesuffix("a").split(".")
    return int(major), int(minor)


def build(name: str, needs: dict[str, Any], floor: dict[str, str]) -> Build:
    return Build(
        name,
        pair(needs["toolkit"]),
        tuple((pair(each), each.endswith("a")) for each in needs["sass"]),
        tuple(pair(each) for each in needs["ptx"]),
        variant("cuda", {**floor, "cuda": needs}),
    )


def line(toolkit: str, *architectures: str) -> Build:
    found = load_matrix().cuda_line(toolkit)
    sass, ptx = device_code(architectures or (found.architectures if found else ()))
    needs = {"toolkit": toolkit, "sass": [*sass], "ptx": [*ptx]}
    return build(f"own-{toolkit}", needs, OLD_FLOOR)


UPSTREAM = (build("up-13.4", CUDA_13, NEW_FLOOR), build("up-12.8", CUDA_12, NEW_FLOOR))
LINES = (line("13.4"), line("12.8"), line("12.4"), line("11.8"))
ALL = {each.name: each for each in (*UPSTREAM, *LINES, line("12.6", "87-real"))}
OLD, NEW, ALPINE = Libc("glibc", "2.35"), Libc("glibc", "2.39"), Libc("musl", "1.2.5")


def nvidia(cards: list[tuple[str, Pair, int]], driver: Pair | None) -> Api:
    gpus = tuple(
        Gpu(
            "cuda", at, name, GpuKind.DISCRETE, memory << 30, 0x10DE,
            compute_capability=f"{capability[0]}.{capability[1]}",
        )
        for at, (name, capability, memory) in enumerate(cards)
    )  # fmt: skip
    version = f"{driver[0]}.{driver[1]}" if driver else None
    return Api("cuda", ApiState.OK, "libcuda.so.1", version, gpus=gpus)


DRIVERS = st.none() | st.tuples(st.integers(10, 13), st.integers(0, 9))
KNOWN_CARDS = st.tuples(
    st.sampled_from([*CARDS.items(), *JETSONS.items()]), st.sampled_from([2, 8, 24, 80])
).map(lambda drawn: (*drawn[0], drawn[1]))
MACHINES = st.builds(
    lambda cards, driver, with_vulkan, libc: machine(
        nvidia(cards, driver),
        *([vulkan()] if with_vulkan else []),
        libc=libc,
        libstdcxx={"2.35": "3.4.30", "2.39": "3.4.33"}.get(libc.version),
    ),
    st.lists(KNOWN_CARDS, min_size=1, max_size=3),
    DRIVERS,
    st.booleans(),
    st.sampled_from([OLD, NEW, ALPINE]),
)
BUILDS = st.lists(st.sampled_from(sorted(ALL)), unique=True)
OTHERS = {
    "vulkan": variant("vulkan", {**OLD_FLOOR, "vulkan": "1.2"}),
    "cpu": variant("cpu", dict(OLD_FLOOR)),
    "cpu-musl": variant("cpu", {"musl": True}),
}


def chosen(names: list[str], hardware: Hardware, **request: Any) -> Any:
    variants = {**{name: ALL[name].document for name in names}, **OTHERS}
    return select(release(variants), hardware, Request(**request))


def system_runs(each: Build, hardware: Hardware) -> bool:
    if hardware.libc == ALPINE:
        return False
    return hardware.libc == NEW or each.document["requires"]["glibc"] == OLD_FLOOR["glibc"]


def driver_of(hardware: Hardware) -> Pair | None:
    version = hardware.api("cuda").version
    return pair(version) if version else None


@given(BUILDS, MACHINES, st.sampled_from(["portable", "native"]))
def test_what_is_chosen_runs_and_what_runs_is_not_passed_over(
    names: list[str], hardware: Hardware, prefer: str
) -> None:
    """The CPU is only chosen if no build runs on any card."""
    found = chosen(names, hardware, prefer=prefer)
    driver, cards = driver_of(hardware), hardware.api("cuda").gpus
    for candidate in found.compatible:
        if candidate.variant.name in ALL:
            each = ALL[candidate.variant.name]
            assert system_runs(each, hardware)
            assert each.runs(pair(candidate.gpu.compute_capability), driver)
    runnable = {
        name
        for name in names
        if system_runs(ALL[name], hardware)
        and any(ALL[name].runs(pair(card.compute_capability or ""), driver) for card in cards)
    }
    assert {each.variant.name for each in found.compatible} & ALL.keys() == runnable
    if runnable:
        assert found.selected.variant.backend != "cpu"


def rank(found: Any, hardware: Hardware) -> tuple[bool, float, int, bool]:
    """How good a choice is: any build, the memory of its best card, how many cards, no compiling.

    The last two count only between builds for the same best card.
    """
    if not found.compatible:
        return False, 0, 0, False
    best = found.selected
    cards = len(usable_gpus(best.variant, hardware))
    return True, best.gpu.memory if best.gpu else 0, cards, best.note is None


@given(BUILDS, st.sampled_from(sorted(ALL)), MACHINES, st.sampled_from(["portable", "native"]))
def test_one_more_build_never_makes_it_worse(
    names: list[str], added: str, hardware: Hardware, prefer: str
) -> None:
    before = [name for name in names if name != added]
    old, new = (chosen(each, hardware, prefer=prefer) for each in (before, [*before, added]))
    (there, memory, *rest), (still, more, *others) = rank(old, hardware), rank(new, hardware)
    assert still >= there
    # Sizes of one tier count as the same.
    assert more >= 0.85 * memory
    if (old.compatible and new.compatible) and old.selected.gpu == new.selected.gpu:
        assert others >= rest
