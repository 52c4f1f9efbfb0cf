"""Where a model goes: figures from data sheets, and rules that hold for any cards and models.

The simulation takes a token for the time in which each card reads its layers, one card after the
other. It does not use the program's table of cards.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tsuku_llm.launch.memory.fit import Card
from tsuku_llm.launch.memory.need import MemoryNeed
from tsuku_llm.launch.memory.placement import (
    cards_of,
    memory_matters,
    place,
    place_side_by_side,
)
from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.report import GpuHolder, Placement

GB = 10**9
GIB = 1 << 30


def card(
    name: str,
    free: float | None,
    total: float | None = None,
    *,
    called: str = "a card",
    speed: int | None = None,
    integrated: bool = False,
    holders: tuple[GpuHolder, ...] = (),
) -> Card:
    """A card whose memory is given in GB."""
    sizes = [None if size is None else int(size * GB) for size in (free, total or free)]
    return Card(name, called, *sizes, integrated, speed, holders)


def need(gigabytes: float, layers: int = 32, *, companions: float = 0) -> MemoryNeed:
    """A model of equal layers: nine tenths of it are weights, the rest is cache."""
    one = int(gigabytes * GB / (layers + 1))
    return MemoryNeed(
        layers=(one * 9 // 10,) * layers,
        cache=(one // 10,) * layers,
        output=one,
        other=one,
        compute=300 << 20,
        companions=int(companions * GB),
    )


def has_room(size: int, free: int | None) -> bool:
    """Upstream's margin of a GiB for each device, and a twentieth for errors of the estimate."""
    return size * 1.05 + GIB <= (free or 0)


H200 = "NVIDIA H200"
TWO_H200 = (
    card("Vulkan0", 149.9, 150.8, called=H200, speed=4800),
    card("Vulkan1", 149.9, 150.8, called=H200, speed=4800),
)


def test_a_small_model_goes_onto_one_of_two_equal_cards() -> None:
    made = place(TWO_H200, need(3.1))
    assert made.arguments() == ("--device", "Vulkan0")
    assert "3.4 GB of 149.9 GB free on Vulkan0 (NVIDIA H200)" in made.told


def test_a_model_that_needs_both_goes_onto_both_and_the_server_divides_it() -> None:
    made = place(TWO_H200, need(200))
    assert made.arguments() == ("--device", "Vulkan0,Vulkan1")
    assert "no single device" in made.told


def test_a_card_that_another_process_fills_is_passed_over_and_named() -> None:
    busy = TWO_H200[0]._replace(
        free=int(1.2 * GB), holders=(GpuHolder(4711, "python3", int(142.6 * GB)),)
    )
    made = place((busy, TWO_H200[1]), need(3.1))
    assert made.arguments() == ("--device", "Vulkan1")
    told = "Vulkan0 (NVIDIA H200) has 1.2 GB of 150.8 GB free: python3 (4711) has 142.6 GB"
    assert made.passed_over == (told,)
    assert told in made.told


def test_no_more_cards_than_needed_take_part() -> None:
    four = tuple(card(f"CUDA{n}", 80, called="A100", speed=2039) for n in range(4))
    assert place(four, need(130)).devices == ("CUDA0", "CUDA1")
    assert place(four, need(290)).devices == ("CUDA0", "CUDA1", "CUDA2", "CUDA3")


def test_the_one_with_the_most_free_memory_of_equal_cards_is_taken() -> None:
    cards = tuple(
        card(f"ROCm{n}", free, 24, called="W7900", speed=864) for n, free in enumerate((12, 21, 20))
    )
    assert place(cards, need(5)).devices == ("ROCm1",)
    assert place(cards, need(30)).devices == ("ROCm1", "ROCm2")


def test_the_faster_card_is_taken_although_the_other_one_has_more_memory() -> None:
    cards = (card("CUDA0", 25.4, called="RTX 3090", speed=936),)
    cards += (card("CUDA1", 24.9, called="RTX 4090", speed=1008),)
    assert place(cards, need(8)).devices == ("CUDA1",)
    unknown = tuple(each._replace(speed=None) for each in cards)
    assert place(unknown, need(8)).devices == ("CUDA0",)


def test_unlike_cards_share_what_neither_holds_and_the_faster_one_gets_more() -> None:
    cards = (card("CUDA0", 12, called="RTX 3060", speed=360),)
    cards += (card("CUDA1", 24, called="RTX 4090", speed=1008),)
    made = place(cards, need(27, 40))
    option, devices, split, counts = made.arguments()
    assert (option, split) == ("--device", "--tensor-split")
    shares = dict(zip(devices.split(","), map(int, counts.split(",")), strict=True))
    assert sum(shares.values()) == 41
    assert shares["CUDA1"] > 2 * shares["CUDA0"] > 0
    assert "the faster device has as many layers" in made.reason


def test_a_split_is_not_said_to_be_needed_where_a_slower_card_holds_all() -> None:
    cards = (card("CUDA0", 14, called="RTX 4090", speed=1008),)
    cards += (card("CUDA1", 23, called="GTX 1080 Ti", speed=484),)
    made = place(cards, need(16))
    assert set(made.devices) == {"CUDA0", "CUDA1"}
    assert "no single device" not in made.reason
    assert "in parts it is faster than on CUDA1 (GTX 1080 Ti) alone" in made.reason


def test_no_card_is_called_faster_if_the_speeds_are_not_known() -> None:
    cards = tuple(card(f"V{n}", 8 + n, called=f"card {n}")._replace(speed=None) for n in range(10))
    made = place(cards, need(80, 32))
    assert made.layers
    assert "faster" not in made.reason
    assert f"; {made.main} has as many layers as it can hold" in made.reason


def test_an_integrated_device_never_computes_beside_a_card() -> None:
    cards = (
        card("Vulkan0", 60, called="Radeon 780M", integrated=True),
        card("Vulkan1", 11, called="RTX 4070"),
        card("Vulkan2", 11, called="RTX 4070"),
    )
    for size in (3, 14, 40, 500):
        assert "Vulkan0" not in place(cards, need(size)).devices
    assert place(cards, None).devices == ("Vulkan1", "Vulkan2")
    assert place(cards, need(3), setting="all").devices == ("Vulkan1", "Vulkan2")
    assert place(cards[:1], need(3)).devices == ("Vulkan0",)


def test_a_large_integrated_device_is_better_than_a_tiny_card() -> None:
    cards = (
        card("Vulkan0", 0.9, called="GT 710"),
        card("Vulkan1", 90, called="Radeon 8060S", integrated=True),
    )
    assert place(cards, need(40)).devices == ("Vulkan1",)
    assert place(cards, None).devices == ("Vulkan1",)


def test_a_model_that_fits_nowhere_gets_every_card_that_holds_a_layer() -> None:
    cards = (card("CUDA0", 11, 12), card("CUDA1", 0.4, 12), card("CUDA2", 10, 12))
    made = place(cards, need(90))
    assert made.arguments() == ("--device", "CUDA0,CUDA2")
    assert "21.0 GB are free on 2 devices" in made.reason
    assert "CUDA1 (a card) has 400 MB of 12.0 GB free" in made.told


def test_a_need_in_doubt_counts_only_if_one_card_has_room_for_the_most() -> None:
    two = [Card(f"CUDA{at}", "NVIDIA H200", 140 * GB, 150 * GB) for at in range(2)]
    small = place(two, need(20)._replace(doubt="most"))
    assert small.devices == ("CUDA0",)
    assert small.reason.startswith("needs at most 20")
    for doubted in (need(200)._replace(doubt="most"), need(20)._replace(doubt="least")):
        made = place(two, doubted)
        assert made.devices == ("CUDA0", "CUDA1")
        assert "it is not known how much memory the model needs" in made.reason


@pytest.mark.parametrize("wanted", [None, need(3)])
def test_without_known_memory_all_cards_are_used(wanted: MemoryNeed | None) -> None:
    cards = (card("MTL0", None), card("MTL1", None))
    assert place(cards, wanted).devices == ("MTL0", "MTL1")


def test_a_full_card_is_passed_over_if_the_need_is_not_known() -> None:
    cards = (card("CUDA0", 1.2, 143.8), card("CUDA1", 143, 143.8))
    made = place(cards, None)
    assert made.devices == ("CUDA1",)
    assert made.passed_over == ("CUDA0 (a card) has 1.2 GB of 143.8 GB free",)
    # If all are full, the server may still find room.
    assert place(cards[:1], None).devices == ("CUDA0",)


def test_an_order_is_found_if_only_one_has_room() -> None:
    """A large layer in the middle only fits on the large card, between the two others."""
    cards = tuple(card(f"CUDA{n}", free) for n, free in enumerate((8, 5, 13)))
    layers = tuple(size * GB for size in (2, 3, 8, 2, 3))
    made = place(cards, MemoryNeed(layers, (0,) * 5, output=GB, other=0, compute=0))
    assert made.arguments() == ("--device", "CUDA1,CUDA2,CUDA0", "--tensor-split", "1,2,3")


def test_fewer_layers_need_less_memory() -> None:
    cards = tuple(card(f"CUDA{n}", 24) for n in range(2))
    assert len(place(cards, need(40)).devices) == 2
    assert len(place(cards, need(40), asked_layers=8).devices) == 1
    assert len(place(cards, need(40), asked_layers=0).devices) == 1


def test_the_other_models_of_a_start_go_with_the_faster_card() -> None:
    cards = tuple(card(f"CUDA{n}", 24, called="A5000", speed=768) for n in range(2))
    made = place(cards, need(18, companions=2))
    assert (made.devices, made.main) == (("CUDA0",), "CUDA0")
    assert made.arguments(draft=True) == ("--device", "CUDA0", "-devd", "CUDA0")
    made = place(cards, need(18, companions=6))
    assert made.devices == ("CUDA0", "CUDA1")


def test_a_model_of_unknown_layers_is_placed_by_its_size() -> None:
    known = MemoryNeed(layers=(), cache=(), output=30 * GB, other=0, compute=GB)
    cards = tuple(card(f"CUDA{n}", 24) for n in range(3))
    assert len(place(cards, known).devices) == 2
    assert place(cards, known._replace(output=9 * GB)).devices == ("CUDA0",)


def test_the_setting_decides() -> None:
    assert place(TWO_H200, need(3), setting="off").arguments() == ()
    assert place(TWO_H200, need(3), setting="all").devices == ("Vulkan0", "Vulkan1")
    assert place((), need(3)).arguments() == ()
    assert Placement().arguments(draft=True) == ()


# --- what the devices are --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("description", "kinds", "said", "integrated"),
    [
        ("AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)", {}, None, True),
        ("AMD Radeon 780M Graphics (RADV PHOENIX)", {}, None, True),
        ("Intel(R) UHD Graphics 770", {}, None, True),
        ("Intel(R) Graphics (ADL GT2)", {}, None, True),
        ("Intel(R) Arc(tm) Graphics (MTL)", {}, None, True),
        ("Intel(R) Arc(tm) A770 Graphics (DG2)", {}, None, False),
        ("Intel(R) Arc(TM) 140V GPU (16GB)", {}, None, True),
        ("Intel(R) Arc(TM) B390 GPU", {}, None, True),
        ("Intel(R) Arc(TM) B580 Graphics", {}, None, False),
        ("NVIDIA GB10", {}, None, True),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", {}, None, False),
        ("Strange Card 9", {}, None, False),
        ("Strange Card 9", {"Strange Card 9": "integrated"}, None, True),
        ("Strange Card 9 (driver 1.2)", {"strange card 9": "integrated"}, None, True),
        ("Intel(R) UHD Graphics 770", {"Intel(R) UHD Graphics 770": "discrete"}, None, False),
        ("Strange Card 9", {"Strange Card 9": "integrated"}, False, False),
        ("Strange Card 9", {"Strange Card 9": "discrete"}, True, True),
        ("Intel(R) Iris(R) Xe Graphics", {"Intel(R) Iris(R) Xe Graphics": "other"}, None, True),
    ],
)
def test_integrated_devices_are_known(
    description: str, kinds: dict[str, str], said: bool | None, integrated: bool
) -> None:
    (found,) = cards_of([ListedDevice("Vulkan0", description, integrated=said)], kinds)
    assert found.integrated is integrated


def test_a_renderer_on_the_processor_is_no_card() -> None:
    name = "llvmpipe (LLVM 15.0.6, 256 bits)"
    listed = [ListedDevice("Vulkan0", name), ListedDevice("Vulkan1", "NVIDIA H200", 9, 8)]
    (found,) = cards_of(listed, {name: "software"})
    assert (found.name, found.free, found.total, found.speed) == ("Vulkan1", 8, 9, 4800)


def test_free_memory_matters_if_there_is_a_choice() -> None:
    igpu = card("Vulkan0", 8, integrated=True)
    assert not memory_matters(())
    assert not memory_matters((igpu,))
    assert not memory_matters((igpu, card("Vulkan1", 8)))
    assert memory_matters((igpu, card("Vulkan1", 8), card("Vulkan2", 8)))


# --- the simulation --------------------------------------------------------------------------

HANDOVER = 0.001
"""Seconds for one more device and token."""


def test_servers_that_all_have_room_get_one_card_each() -> None:
    """The largest is placed first; the next one goes where more is free."""
    placed = place_side_by_side(TWO_H200, [need(20), need(90), need(30)])
    assert placed == ("Vulkan1", "Vulkan0", "Vulkan1")


def test_servers_without_room_for_all_get_none() -> None:
    """One card each would let fewer of them in at a time than the server's own division does."""
    assert place_side_by_side(TWO_H200, [need(90), need(90)]) == ("Vulkan0", "Vulkan1")
    assert place_side_by_side(TWO_H200, [need(90), need(90), need(60)]) is None
    assert place_side_by_side(TWO_H200, [need(200), need(1)]) is None
    unknown = card("Vulkan0", None), TWO_H200[1]
    assert place_side_by_side(unknown, [need(90), need(90)]) is None
    assert place_side_by_side(TWO_H200, [need(1)._replace(doubt="most")]) is None


def test_each_server_takes_what_its_driver_takes() -> None:
    eleven = card("CUDA0", 11), card("CUDA1", 3)
    servers = [need(2)] * 4
    assert place_side_by_side(eleven, servers) == ("CUDA0",) * 4
    heavy = [each._replace(driver=GB) for each in servers]
    assert place_side_by_side(eleven, heavy) is None


def test_a_projector_goes_where_the_server_puts_it() -> None:
    """The router's servers share one environment, so it is the first device for all of them."""
    placed = place_side_by_side(TWO_H200, [need(90), need(5, companions=1)])
    assert placed == ("Vulkan0", "Vulkan0")


def test_the_faster_card_is_filled_first() -> None:
    cards = (
        card("Vulkan0", 20, called="slow", speed=300),
        card("Vulkan1", 16, called="fast", speed=900),
    )
    placed = place_side_by_side(cards, [need(8), need(4), need(4)])
    assert placed == ("Vulkan1", "Vulkan1", "Vulkan0")


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=4),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
)
def test_no_card_gets_more_servers_than_it_has_room_for(free: list[int], sizes: list[int]) -> None:
    cards = [card(f"CUDA{number}", each) for number, each in enumerate(free)]
    servers = [need(size) for size in sizes]
    placed = place_side_by_side(cards, servers)
    if placed is None:
        # Then the largest card does not hold them all, either.
        assert not has_room(sum(each.on_one_device for each in servers), max(free) * GB)
        return
    for each in cards:
        held = [one for one, name in zip(servers, placed, strict=True) if name == each.name]
        if held:
            assert has_room(sum(one.on_one_device for one in held), each.free)


@dataclass(frozen=True)
class Machine:
    """Cards as ``(name of the data sheet, GB of memory, GB/s of the data sheet)``."""

    cards: tuple[tuple[str, float, float], ...]

    @property
    def listed(self) -> list[ListedDevice]:
        """What the build says: half a GB is always in use."""
        return [
            ListedDevice(f"CUDA{n}", name, int(size * GB), int((size - 0.5) * GB))
            for n, (name, size, _) in enumerate(self.cards)
        ]

    def time(self, made: Placement, wanted: MemoryNeed) -> float:
        """The seconds for a token; infinite for what has no room."""
        indexes = [int(name.removeprefix("CUDA")) for name in made.devices]
        free = [self.listed[index].free or 0 for index in indexes]
        count = len(wanted.layers) + 1
        parts: Sequence[float] = made.layers or free
        spans, until, begin = [], 0.0, 0
        for part in parts:
            until += part
            end = math.ceil(count * until / sum(parts) - 1e-9)
            spans.append((begin, end))
            begin = end
        return self.time_of(indexes, spans, wanted)

    def time_of(
        self, indexes: Sequence[int], spans: Sequence[tuple[int, int]], wanted: MemoryNeed
    ) -> float:
        total = HANDOVER * (len(indexes) - 1)
        for index, (start, end) in zip(indexes, spans, strict=True):
            held = wanted.on_device(start, end)
            if not has_room(held, self.listed[index].free):
                return math.inf
            total += (held - wanted.compute) / GB / self.cards[index][2]
        return total

    def best_by_hand(self, wanted: MemoryNeed) -> float:
        """The best time of all orders of all cards, and of all divisions among up to three."""
        count, found = len(wanted.layers) + 1, math.inf
        for size in range(1, len(self.cards) + 1):
            for order in permutations(range(len(self.cards)), size):
                for spans in _divisions(count, size):
                    found = min(found, self.time_of(order, spans, wanted))
        return found


def _divisions(count: int, parts: int, begin: int = 0) -> Iterator[tuple[tuple[int, int], ...]]:
    if parts == 1:
        yield ((begin, count),)
        return
    for end in range(begin + 1, count - parts + 2):
        for rest in _divisions(count, parts - 1, end):
            yield ((begin, end), *rest)


MACHINES = {
    "two-h200": (("NVIDIA H200", 150.8, 4800), ("NVIDIA H200", 150.8, 4800)),
    "4090-3090": (
        ("NVIDIA GeForce RTX 4090", 25.4, 1008),
        ("NVIDIA GeForce RTX 3090", 25.4, 936),
    ),
    "3060-4090": (
        ("NVIDIA GeForce RTX 3060", 12.6, 360),
        ("NVIDIA GeForce RTX 4090", 25.4, 1008),
    ),
    "3080-3060": (
        ("NVIDIA GeForce RTX 3080", 10.5, 760),
        ("NVIDIA GeForce RTX 3060", 12.6, 360),
    ),
    "7900xtx-7600": (
        ("AMD Radeon RX 7600 (RADV NAVI33)", 8.5, 288),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 25.7, 960),
    ),
    "vendors": (
        ("Intel(R) Arc(tm) A770 Graphics (DG2)", 17.0, 560),
        ("NVIDIA GeForce RTX 4060 Ti", 17.0, 288),
    ),
    "h100-a100": (("NVIDIA A100-SXM4-80GB", 85, 2039), ("NVIDIA H100 80GB HBM3", 85, 3350)),
    "two-and-one": (
        ("NVIDIA GeForce RTX 3090", 25.4, 936),
        ("NVIDIA GeForce RTX 5090", 34.0, 1792),
        ("NVIDIA GeForce RTX 3090", 25.4, 936),
    ),
    "three-p40-and-a-3090": (
        ("Tesla P40", 25.4, 347),
        ("NVIDIA GeForce RTX 3090", 25.4, 936),
        ("Tesla P40", 25.4, 347),
    ),
    "unknown": (("Some Card", 16, 500), ("Some Card", 16, 500)),
}


@pytest.mark.parametrize("share", [0.05, 0.3, 0.45, 0.6, 0.75])
@pytest.mark.parametrize("name", MACHINES)
def test_the_placement_is_as_fast_as_the_best_by_hand(name: str, share: float) -> None:
    machine = Machine(MACHINES[name])
    wanted = need(share * sum(size for _, size, _ in machine.cards), 40)
    made = place(cards_of(machine.listed, {}), wanted)
    best = machine.best_by_hand(wanted)
    assert machine.time(made, wanted) * 0.95 <= best


# --- properties ------------------------------------------------------------------------------

SIZES = st.integers(0, 40).map(lambda half: half * GB // 2)


@st.composite
def some_cards(draw: st.DrawFn, most: int = 4) -> tuple[Card, ...]:
    """Cards of few kinds, some of them integrated, in any order."""
    kinds = [("Fast", 1000), ("Slow", 300), ("Old", 90)]
    known = draw(st.booleans())
    found = []
    for number in range(draw(st.integers(1, most))):
        called, speed = draw(st.sampled_from(kinds))
        free = draw(SIZES)
        integrated = draw(st.integers(0, 4)) == 0
        found.append(
            Card(f"X{number}", called, free, 20 * GB, integrated, speed if known else None)
        )
    return tuple(found)


@st.composite
def some_need(draw: st.DrawFn) -> MemoryNeed:
    layers = draw(st.lists(st.integers(1, 30).map(lambda n: n * GB // 10), min_size=1, max_size=12))
    return MemoryNeed(
        layers=tuple(layers),
        cache=tuple(draw(st.sampled_from([0, GB // 20])) for _ in layers),
        output=draw(st.integers(0, 40)) * GB // 10,
        other=draw(st.integers(0, 10)) * GB // 10,
        compute=draw(st.integers(0, 5)) * GB // 10,
        companions=draw(st.sampled_from([0, 0, GB])),
    )


def _sizes(cards: Sequence[Card], made: Placement, wanted: MemoryNeed) -> list[tuple[Card, int]]:
    """What each card gets: its layers, or by free memory as the server divides them."""
    used = [next(each for each in cards if each.name == name) for name in made.devices]
    count = len(wanted.layers) + 1
    parts = made.layers or tuple(each.free or 0 for each in used)
    found, until, begin = [], 0, 0
    for each, part in zip(used, parts, strict=True):
        until += part
        end = -(-count * until // (sum(parts) or 1))
        extra = wanted.companions if each.name == made.main else 0
        found.append((each, wanted.on_device(begin, end) + extra))
        begin = end
    return found


def _fits(cards: Sequence[Card], made: Placement, wanted: MemoryNeed) -> bool:
    return all(size <= (each.free or 0) for each, size in _sizes(cards, made, wanted))


@given(some_cards(3), some_need())
def test_nothing_exceeds_free_memory_if_any_placement_has_room(
    cards: tuple[Card, ...], wanted: MemoryNeed
) -> None:
    """Any order and division of any cards, with the room that is asked for."""
    usable = [each for each in cards if not each.integrated] or list(cards)
    count = len(wanted.layers) + 1
    assume(
        any(
            all(
                has_room(
                    wanted.on_device(*span) + (wanted.companions if each is main else 0), each.free
                )
                for each, span in zip(order, spans, strict=True)
            )
            for size in range(1, len(usable) + 1)
            for order in permutations(usable, size)
            for main in [max(order, key=lambda each: each.speed or 1)]
            for spans in _divisions(count, size)
        )
    )
    made = place(cards, wanted)
    assert _fits(cards, made, wanted), made


@given(some_cards(), some_need(), st.data())
def test_more_memory_never_gives_a_worse_placement(
    cards: tuple[Card, ...], wanted: MemoryNeed, data: st.DataObject
) -> None:
    before = place(cards, wanted)
    lucky = data.draw(st.integers(0, len(cards) - 1))
    more = [
        each._replace(free=(each.free or 0) + data.draw(SIZES)) if number == lucky else each
        for number, each in enumerate(cards)
    ]
    after = place(more, wanted)
    # A discrete card that is not too small any more gets the model, also if it holds only a part:
    # all of it on an integrated device, which reads main memory, is held to be slower.
    integrated = {each.name for each in cards if each.integrated}
    assume(integrated.issuperset(before.devices) == integrated.issuperset(after.devices))
    # A faster card that has room for a part now takes it, for the shorter time of a token.
    assume(_fastest(cards, after) <= _fastest(cards, before))
    assert _worth(more, after, wanted) >= _worth(cards, before, wanted)


def _fastest(cards: Sequence[Card], made: Placement) -> int:
    return max((each.speed or 1 for each in cards if each.name in made.devices), default=0)


def _worth(cards: Sequence[Card], made: Placement, wanted: MemoryNeed) -> tuple[bool, bool]:
    """Whether everything has room, and on one device."""
    sizes = _sizes(cards, made, wanted)
    whole = all(has_room(size, each.free) for each, size in sizes)
    return whole, whole and len(made.devices) == 1


@given(some_cards(), some_need(), SIZES)
def test_more_memory_on_known_cards_never_costs_time(
    cards: tuple[Card, ...], wanted: MemoryNeed, more: int
) -> None:
    """Of cards of one kind: the fewer take part, the better."""
    same = [each._replace(description="Fast", speed=1000, integrated=False) for each in cards]
    before = place(same, wanted)
    richer = [same[0]._replace(free=(same[0].free or 0) + more), *same[1:]]
    after = place(richer, wanted)
    if _worth(same, before, wanted)[0]:
        assert len(after.devices) <= len(before.devices)


@given(some_cards(), st.none() | some_need(), st.sampled_from(["auto", "all", "off"]))
def test_every_placement_is_sound(
    cards: tuple[Card, ...], wanted: MemoryNeed | None, setting: str
) -> None:
    made = place(cards, wanted, setting=setting)
    names = [each.name for each in cards]
    kinds = {each.integrated for each in cards if each.name in made.devices}
    assert len(kinds) <= 1, "integrated devices beside others"
    assert set(made.devices) <= set(names)
    assert len(set(made.devices)) == len(made.devices)
    assert bool(made.devices) == (setting != "off")
    assert made.reason
    assert not made.layers or (wanted and sum(made.layers) == len(wanted.layers) + 1)
    assert made.main is None or made.main in made.devices
