"""The placement of a start: the questions before it, and its devices in the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.launch.memory.gguf import read_header, read_layout
from tsuku_llm.launch.memory.memory_options import memory_options
from tsuku_llm.launch.memory.need import MemoryNeed
from tsuku_llm.launch.plan.devices import backend_named
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import Placement
from tsuku_llm.launch.plan.wishes import (
    DEVICE,
    last_value,
    visible_devices,
    wishes_in,
    without_options,
)
from tsuku_llm.machine.backends import facts_of, maker_in, parts_of
from tsuku_llm.steps.drivers.device_check import Check, with_other_processes
from tsuku_llm.steps.serve.fitting import ModelFiles, Routed, corrected_by_tool, read_models

if TYPE_CHECKING:
    from tsuku_llm.launch.memory.fit import Card
    from tsuku_llm.steps.serve.all_models import RouterPreset


class Placed(NamedTuple):
    """A plan with its devices; ``check`` has the list of devices that was the newest for it.

    ``cards`` are the devices of that list. ``placement`` is None where no device can be used.
    ``told`` is a sentence for the user, empty if there was nothing to choose. ``models`` are the
    headers of the models, None where they were not read. ``preset`` are the models of a router.
    """

    plan: LaunchPlan
    check: Check
    cards: tuple[Card, ...] = ()
    placement: Placement | None = None
    told: str = ""
    models: ModelFiles | None = None
    preset: RouterPreset | None = None

    def without_devices(self) -> Placed:
        """Return this for a router whose models have a device each: its own would count for all."""
        reason = "each model on one device, where all have room at a time"
        return self._replace(
            plan=self.plan._replace(argv=tuple(without_options(self.plan.argv, DEVICE))),
            placement=Placement(reason=reason),
            told=f"placed: {reason}",
        )


def place_start(
    plan: LaunchPlan,
    check: Check,
    setting: str,
    ask_again: Callable[[], Check],
) -> Placed:
    """Choose the devices for a start, unless the user has; ``setting`` is ``llm.placement``.

    If free memory decides and the list of devices was recalled, ``ask_again`` asks the build, as
    other processes come and go. If that gives no list, the recalled one counts. Upstream's own tool
    is asked for a need that the model's file does not tell.
    """
    cards = check.cards
    # The processor, or a build that lists no device: nothing to choose.
    if not cards:
        return Placed(plan, check)
    # A start on the CPU does without these.
    from tsuku_llm.launch.memory.placement import memory_matters, place

    wishes = wishes_in(plan.argv, plan.env)
    models: ModelFiles | None = None
    first, *others = parts_of(plan.backend)
    if others and visible_devices(plan.env, facts_of(first).hiding_variables):
        # The variable may hide every card of a maker from its own interface, not from the other.
        makers = facts_of(first).vendors
        shown = [
            card
            for card in cards
            if backend_named(card.name) == first or maker_in(card.description) not in makers
        ]
        cards = tuple(shown) or cards
    chosen = _chosen(plan)
    # A build with several backends lists a card once for each. Only names of devices choose
    # between these, so the server gets each card's own name in all other cases. A list of names
    # would leave other machines (--rpc) out.
    named = last_value(plan.argv, plan.env, DEVICE) or wishes.remote
    if others and not named and (chosen or setting == "off"):
        why = f"chosen by {chosen}" if chosen else "llm.placement is off"
        # As the server does that chooses itself: integrated devices only without a card.
        names = tuple(card.name for card in cards if not card.integrated)
        names = names or tuple(card.name for card in cards)
        placement = Placement(names, names[0], f"{why}; each card once")
        plan = plan.placed(placement, len(check.build.arguments), draft=wishes.draft)
    elif chosen:
        placement = Placement(reason=f"chosen by {chosen}")
    else:
        if setting == "auto" and memory_matters(cards):
            if check.recalled:
                now = ask_again()
                # A build that does not answer now is not asked a third time: the start will show.
                check = now if now.devices else check
                cards = check.cards
            cards = with_other_processes(cards, plan.env)
        models, need = _models_of(plan, check)
        # Without a layer any device will do for what is left.
        placement = place(
            cards,
            need,
            setting=setting,
            asked_layers=wishes.device_layers,
            margin=memory_options(plan.argv, plan.env).margin(0),
        )
        plan = plan.placed(placement, len(check.build.arguments), draft=wishes.draft)
    # One device, and nothing to choose: the line of the decision names it.
    told = f"placed: {placement.told}" if len(cards) > 1 else ""
    return Placed(plan, check, cards, placement, told, models)


def devices_of_each(
    plan: LaunchPlan, placed: Placed, models: Sequence[Routed], setting: str
) -> tuple[str, ...] | None:
    """Choose one device for each model of a router, if all have room there at a time.

    Otherwise, and where the user has chosen, the router divides each as ``placed`` says: one device
    each would let fewer of them in at a time. ``plan`` is the one before it was ``placed``.
    """
    placement = placed.placement
    if setting != "auto" or _chosen(plan) or not (models and placement and placement.devices[1:]):
        return None
    from tsuku_llm.launch.memory.placement import place_side_by_side

    driver = facts_of(plan.backend).driver_memory
    return place_side_by_side(
        [card for card in placed.cards if card.name in placement.devices],
        [each.files.need(each.options)._replace(driver=driver) for each in models],
        asked_layers=wishes_in(plan.argv, plan.env).device_layers,
        margin=memory_options(plan.argv, plan.env).margin(0),
    )


def _chosen(plan: LaunchPlan) -> str | None:
    """Return the word or the variable with which the user has chosen devices."""
    wishes = wishes_in(plan.argv, plan.env)
    return wishes.placed or visible_devices(plan.env, facts_of(plan.backend).hiding_variables)


def _models_of(plan: LaunchPlan, check: Check) -> tuple[ModelFiles | None, MemoryNeed | None]:
    """Read the headers of a start's models, and estimate its need; None for what is unknown."""
    options = memory_options(plan.argv, plan.env)
    try:
        # A URL is no path: such a model may not be here yet.
        models = read_models(options, read_header)
    except OSError:
        return None, None
    except ValueError:
        layout = read_layout(options.model) if options.model else None
        if layout is None:
            return None, None
        # Only the size is known: a fifth for the cache, and room for the buffers.
        size = layout.total + layout.total // 5
        return None, MemoryNeed(layers=(), cache=(), output=size, other=0, compute=_BUFFERS)
    need = models.need(options)
    if not need.doubt:
        return models, need
    wishes = wishes_in(plan.argv, plan.env)
    correction = corrected_by_tool(check.fit_tool, need, options, wishes, plan.env)
    return models, correction.applied(need) if correction else need


_BUFFERS = 512 << 20
"""Bytes for the compute buffers of a device, if nothing is known of the model."""
