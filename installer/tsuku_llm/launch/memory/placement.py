"""The placement of a model: on which of the listed devices a server computes, and why. Pure.

A token passes through the layers in order, so several cards do not compute it at the same time.
Each of them reads its own layers, and handing over takes time. So one card is the fastest place
for a model that fits there, and the faster cards should have as many layers as they can hold.

Integrated devices are only used alone: they read the machine's own memory, as the processor does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple

from tsuku_llm.launch.memory.fit import Card
from tsuku_llm.launch.memory.memory_options import ROOM
from tsuku_llm.launch.memory.need import MemoryNeed
from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.report import Placement, told_size
from tsuku_llm.machine.card_speeds import bandwidth_of, plain_name

_UNSURE = 1.05
"""What an estimate may be too low by. Most of a need are weights, whose size is exact."""

_HANDOVER = 1e6
"""Nanoseconds that one more device costs for each token; a byte at 1 GB/s takes one."""

_FULL = 8
"""A device with less than this part of its memory free is full, if the need is not known."""

_SMALL = 4 << 30
"""Bytes: cards with less in all, and less than a quarter of an integrated GPU, are too small."""
_QUARTER = 4

_PIECES = 32
"""Parts into which weights without known layers are divided."""

_MOST_SETS, _MOST_ORDERED = 1024, 4
"""Sets of devices that are compared, and the devices of which every order is tried."""

# The names of integrated devices, if neither the build nor the probe says what a device is.
_INTEGRATED = re.compile(
    r"\b(?:u?hd graphics|iris|intel (?:arc )?graphics|arc (?:1[34]0[tv]|b3[79]0)"
    r"|radeon (?:\d{3,4}[ms] )?graphics|radeon vega|vega \d+ graphics|radeon \d{3}m"
    r"|radeon 80[456]0s|gb10|orin|thor|xavier|tegra|adreno|mali|apple m\d)\b"
)


def cards_of(devices: Sequence[ListedDevice], kinds: Mapping[str, str]) -> tuple[Card, ...]:
    """Describe listed devices as cards; leave out renderers that use the processor.

    ``kinds`` are what the probe found, by the names of devices. The build's own word counts
    before that, and the name of a device only if neither knows it.
    """
    by_name = {plain_name(name): kind for name, kind in kinds.items()}
    found = []
    for device in devices:
        plain = plain_name(device.description)
        kind = by_name.get(plain)
        if kind == "software":
            continue
        integrated = device.integrated
        if integrated is None:
            integrated = (
                kind == "integrated"
                if kind in ("integrated", "discrete")
                else _INTEGRATED.search(plain) is not None
            )
        found.append(
            Card(
                device.name,
                device.description,
                device.memory if device.free is None else device.free,
                device.memory,
                integrated,
                bandwidth_of(device.description),
            )
        )
    return tuple(found)


def memory_matters(cards: Sequence[Card]) -> bool:
    """Tell whether the free memory of these devices decides the placement."""
    discrete = [card for card in cards if not card.integrated]
    return len(discrete or cards) > 1


def place(
    cards: Sequence[Card],
    need: MemoryNeed | None,
    *,
    setting: str = "auto",
    asked_layers: int | None = None,
    margin: int = ROOM,
) -> Placement:
    """Choose the devices for a model of which nothing was chosen by the user.

    ``need`` is None if it is not known; the most of one in doubt counts if a single device has
    room for it. ``setting`` is that of ``llm.placement``.
    ``asked_layers`` is how many of the last layers shall be on devices, None for all.
    ``margin`` are the bytes of each device that stay free.
    """
    if setting == "off":
        return Placement(reason="llm.placement is off, so the server chooses")
    if not cards:
        return Placement(reason="no device of the backend is known, so the server chooses")
    if need:
        cards = [card._replace(kept=margin + need.beside(card.name)) for card in cards]
    discrete = [card for card in cards if not card.integrated]
    integrated = [card for card in cards if card.integrated]
    own = discrete or integrated
    if setting == "all":
        return _on_all(own, "llm.placement is all")
    # A card that holds next to nothing slows an integrated GPU of this size down.
    if need is None or need.doubt == "least":
        return _unknown(integrated if _too_small(discrete, integrated) else own)
    wanted = _Wanted(need, asked_layers)
    best = _best(own, wanted)
    if best is None and _too_small(discrete, integrated):
        own = integrated
        best = _best(own, wanted)
    if need.doubt and (best is None or len(best.cards) > 1):
        return _unknown(own)
    return _partly(own, wanted) if best is None else _told(best, own, wanted)


def place_side_by_side(
    cards: Sequence[Card],
    needs: Sequence[MemoryNeed],
    *,
    asked_layers: int | None = None,
    margin: int = ROOM,
) -> tuple[str, ...] | None:
    """Choose one of the cards for each of several servers; None unless all have room at a time.

    The largest need comes first, and goes to the fastest card with room, of equal ones to the one
    with the most free memory. ``MemoryNeed.driver`` is what each server takes besides. The servers
    share their environment, which names the first card for projectors. Other arguments are those
    of ``place``.
    """
    free = {card.name: card.free for card in cards}
    compared = all(card.speed for card in cards)
    found: dict[int, str] = {}
    for number in sorted(range(len(needs)), key=lambda each: -needs[each].total):
        need = needs[number]
        whole = _Wanted(need, asked_layers).whole
        rooms = [
            card._replace(free=free[card.name], kept=margin + need.beside(card.name))
            for card in (cards[:1] if need.companions else cards)
        ]
        fitting = [card for card in rooms if _fits(card, whole)]
        if need.doubt or not fitting:
            return None
        best = max(fitting, key=lambda card: (_speed(card) if compared else 0, card.free or 0))
        taken = int(whole * _UNSURE) + need.beside(best.name) + need.driver
        free[best.name] = (best.free or 0) - taken
        found[number] = best.name
    return tuple(found[number] for number in range(len(needs)))


class _Wanted:
    """The memory for the layers that shall be on devices, by their numbers."""

    def __init__(self, need: MemoryNeed, asked: int | None) -> None:
        # A build that lists its devices has taken this already: it is not in what is free.
        need = need._replace(driver=0)
        if not need.layers:
            # Nothing is known of the parts: take equal ones.
            piece = need.output // _PIECES
            need = need._replace(
                layers=(piece,) * _PIECES, output=need.output - piece * _PIECES, cache=()
            )
        self.bound = f"at {need.doubt} " if need.doubt else ""
        self.count = len(need.layers) + 1
        # The server fills its devices from the last layer on.
        self.first = 0 if asked is None else max(0, self.count - asked)
        self.companions = need.companions
        self.compute = need.compute
        self._until = [need.on_device(0, end) - need.compute for end in range(self.count + 1)]

    def held(self, start: int, end: int) -> int:
        """Return the bytes of these layers with their cache."""
        return self._until[end] - self._until[start]

    def on_card(self, start: int, end: int, *, main: bool) -> int:
        """Return the bytes on one device; the ``main`` one has the other models, too."""
        extra = self.companions if main else 0
        return self.held(start, end) + self.compute + extra

    @property
    def whole(self) -> int:
        """The bytes for all layers on one device."""
        return self.on_card(self.first, self.count, main=True)


def _fits(card: Card, size: int) -> bool:
    """Tell whether so many bytes have room; a device of unknown memory has none."""
    return card.free is not None and size * _UNSURE + card.kept <= card.free


class _Plan(NamedTuple):
    """The layers of each card, as ``[start, end)``; ``own_split`` if the server does the same.

    ``main`` has the other models of the start, too. ``time`` is that of a token, in nanoseconds if
    the speeds are known.
    """

    cards: tuple[Card, ...]
    spans: tuple[tuple[int, int], ...]
    main: Card
    time: float
    own_split: bool = False


def _best(cards: Sequence[Card], wanted: _Wanted) -> _Plan | None:
    """Return the plan with the shortest time for a token; None if the model does not fit."""
    # A comparison with unknown numbers is none: then free memory alone counts.
    if any(card.speed is None for card in cards):
        cards = [card._replace(speed=1) for card in cards]
    found = [plan for chosen in _sets(cards) for plan in _plans(chosen, wanted)]
    # If it only fits in an unusual order, try all orders of a few cards.
    if not found and len(cards) <= _MOST_ORDERED:
        found = [
            plan
            for size in range(2, len(cards) + 1)
            for order in permutations(cards, size)
            if (plan := _filled(order, wanted, max(order, key=_speed)))
        ]
    return min(found, key=_order, default=None)


def _order(plan: _Plan) -> tuple[float, int, int, int]:
    """Order plans: the fastest, then the fewest cards, equal cards, and the most free memory."""
    kinds = len({plain_name(card.description) for card in plan.cards})
    # Rounded: sums of floats in another order are the same time.
    time = float(f"{plan.time:.9g}")
    return time, len(plan.cards), kinds, -sum(card.free or 0 for card in plan.cards)


def _speed(card: Card) -> int:
    return card.speed or 1


def _sets(cards: Sequence[Card]) -> Iterator[tuple[Card, ...]]:
    """Yield sets of cards, the faster ones first; of equal ones those with the most free memory."""
    groups: dict[tuple[int, str, int], list[Card]] = {}
    for card in cards:
        key = (_speed(card), plain_name(card.description), (card.total or 0) >> 30)
        groups.setdefault(key, []).append(card)
    ordered = [
        sorted(group, key=lambda card: -(card.free or 0))
        for _, group in sorted(groups.items(), key=lambda item: -item[0][0])
    ]
    count = 1
    for group in ordered:
        count *= len(group) + 1
    if count > _MOST_SETS:
        # A machine with so many different cards: single ones, and the fastest few.
        line = [card for group in ordered for card in group]
        yield from ((card,) for card in line)
        yield from (tuple(line[:size]) for size in range(2, len(line) + 1))
        return
    for numbers in product(*(range(len(group) + 1) for group in ordered)):
        if any(numbers):
            pairs = zip(ordered, numbers, strict=True)
            yield tuple(card for group, number in pairs for card in group[:number])


def _plans(cards: tuple[Card, ...], wanted: _Wanted) -> Iterator[_Plan]:
    """Yield the ways to put the layers on all of these cards, which are sorted by speed."""
    # What the server itself does is right for cards of one speed: each gets its share.
    if len({_speed(card) for card in cards}) == 1 and (plan := _shared(cards, wanted)):
        yield plan
        return
    # Fill the fastest card with the first layers, or with the last ones: one of the two may fit.
    for order in dict.fromkeys((cards, cards[::-1])):
        if plan := _filled(order, wanted, cards[0]):
            yield plan


def _shared(cards: tuple[Card, ...], wanted: _Wanted) -> _Plan | None:
    """Divide the layers by free memory, as the server does without ``--tensor-split``."""
    if len(cards) == 1:
        return _checked(cards, ((wanted.first, wanted.count),), wanted, cards[0], own_split=True)
    total = sum(card.free or 0 for card in cards)
    if not total:
        return None
    number, spans, begin, until = wanted.count - wanted.first, [], wanted.first, 0
    for card in cards:
        until += card.free or 0
        # The first layer whose part of the number is not below the part of the memory.
        end = wanted.first + -(-number * until // total)
        spans.append((begin, end))
        begin = end
    return _checked(cards, tuple(spans), wanted, cards[0], own_split=True)


def _filled(cards: tuple[Card, ...], wanted: _Wanted, main: Card) -> _Plan | None:
    """Fill the fastest card, then the next ones, with layers that follow each other.

    The first of ``cards`` has the first layers. Filling starts at the end where ``main`` is.
    """
    backwards = cards[-1] is main and len(cards) > 1
    spans: list[tuple[int, int]] = []
    start, end = wanted.first, wanted.count
    for card in reversed(cards) if backwards else cards:
        begin, until = (end, end) if backwards else (start, start)
        while begin > start if backwards else until < end:
            more = (begin - 1, until) if backwards else (begin, until + 1)
            if not _fits(card, wanted.on_card(*more, main=card is main)):
                break
            begin, until = more
        spans.append((begin, until))
        start, end = (start, begin) if backwards else (until, end)
    if start != end:
        return None
    return _checked(cards, tuple(reversed(spans) if backwards else spans), wanted, main)


def _checked(
    cards: tuple[Card, ...],
    spans: tuple[tuple[int, int], ...],
    wanted: _Wanted,
    main: Card,
    *,
    own_split: bool = False,
) -> _Plan | None:
    """Return the plan with its time, None if a part has no room or a card has no part."""
    time = _HANDOVER * (len(cards) - 1)
    for card, (start, end) in zip(cards, spans, strict=True):
        # A set without this card is among the sets, too.
        if start == end and len(cards) > 1:
            return None
        if not _fits(card, wanted.on_card(start, end, main=card is main)):
            return None
        time += wanted.held(start, end) / _speed(card)
    return _Plan(cards, spans, main, time, own_split)


# --- what is said of it ------------------------------------------------------------------------


def _told(plan: _Plan, own: Sequence[Card], wanted: _Wanted) -> Placement:
    names = tuple(card.name for card in plan.cards)
    need = f"needs {wanted.bound}{_gb(wanted.whole)}"
    passed = _passed_over(plan.cards, own, wanted)
    main = plan.main.name
    if len(names) == 1:
        (card,) = plan.cards
        reason = f"{need} of {_gb(card.free)} free on {card.told}{_why(card, own, wanted)}"
        return Placement(names, main, reason, passed_over=passed)
    # The memory of other processes is named by ``passed_over``.
    alone = next((card for card in own if _fits(card, wanted.whole)), None)
    reason = (
        f"{need}, which no single device has free with room"
        if alone is None
        else f"{need}; in parts it is faster than on {alone.told} alone"
    )
    if plan.own_split:
        return Placement(names, main, f"{reason}; on {len(names)} devices", passed_over=passed)
    counts = tuple(end - start for start, end in plan.spans)
    # Without known speeds none of them is called faster.
    filled = "the faster device" if len(set(map(_speed, plan.cards))) > 1 else main
    reason += f"; {filled} has as many layers as it can hold"
    return Placement(names, main, reason, counts, passed)


def _why(card: Card, own: Sequence[Card], wanted: _Wanted) -> str:
    """Say why this device and no other one: what it has more than those that fit as well."""
    others = [each for each in own if each is not card and each.name != card.name]
    rivals = [each for each in others if _fits(each, wanted.whole)]
    if not others:
        return ""
    if not rivals:
        return ", the only device with room for it"
    if any(plain_name(each.description) != plain_name(card.description) for each in rivals):
        known = all(bandwidth_of(each.description) for each in own)
        return ", the fastest device with room" if known else ", which has the most free"
    return ", one device is faster than several"


def _on_all(cards: Sequence[Card], reason: str) -> Placement:
    names = tuple(card.name for card in cards)
    return Placement(names, names[0], reason)


def _unknown(own: Sequence[Card]) -> Placement:
    """Place a model of unknown need: all cards, as the server does, but no full ones."""
    free = [card for card in own if not _is_full(card)] or own
    passed = tuple(_full(card) for card in own if card not in free)
    told = f"{len(free)} devices" if len(free) > 1 else free[0].told
    reason = f"on {told}; it is not known how much memory the model needs"
    return _on_all(free, reason)._replace(passed_over=passed)


def _partly(own: Sequence[Card], wanted: _Wanted) -> Placement:
    """Place a model that does not fit: the server puts the rest into main memory."""
    # A device without room for a single layer would only cost time.
    useful = [
        card
        for card in own
        if card.free is None
        or _fits(card, wanted.on_card(wanted.count - 1, wanted.count, main=False))
    ]
    used = useful or own
    free = sum(card.free or 0 for card in used)
    reason = f"needs {_gb(wanted.whole)}, and {_gb(free)} are free on "
    reason += used[0].told if len(used) == 1 else f"{len(used)} devices"
    if any(card.free is None for card in used):
        reason = f"needs {_gb(wanted.whole)}; the free memory is not known"
    passed = tuple(_full(card) for card in own if card not in used)
    return _on_all(used, reason)._replace(passed_over=passed)


def _passed_over(used: Sequence[Card], own: Sequence[Card], wanted: _Wanted) -> tuple[str, ...]:
    """Name the devices that others fill: empty, the model would have had room there."""
    names = {card.name for card in used}
    return tuple(
        _full(card)
        for card in own
        if card.name not in names
        and not _fits(card, wanted.whole)
        and (_fits(card._replace(free=card.total), wanted.whole) or _is_full(card))
    )


def _full(card: Card) -> str:
    held = ", ".join(
        f"{each.name or 'a process'} ({each.pid}) has {_gb(each.memory)}" for each in card.holders
    )
    text = f"{card.told} has {_gb(card.free)} of {_gb(card.total)} free"
    return f"{text}: {held}" if held else text


def _is_full(card: Card) -> bool:
    return card.free is not None and card.total is not None and card.free * _FULL < card.total


def _too_small(discrete: Sequence[Card], integrated: Sequence[Card]) -> bool:
    if not discrete or not integrated:
        return False
    held = sum(card.free or 0 for card in discrete)
    return held < _SMALL and held * _QUARTER < max(card.free or 0 for card in integrated)


def _gb(size: int | None) -> str:
    return "an unknown amount" if size is None else told_size(size)
