"""The placement of a start: the questions before it, and its devices in the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tsuku_llm.launch.planning import LaunchPlan
from tsuku_llm.launch.wishes import Wishes, visible_devices, wishes_in
from tsuku_llm.operations.device_check import Check

if TYPE_CHECKING:
    from tsuku_llm.launch.model_header import ModelHeader
    from tsuku_llm.launch.need import MemoryNeed
    from tsuku_llm.launch.placement import Card
    from tsuku_llm.launch.report import Placement


class Placed(NamedTuple):
    """A plan with its devices; ``check`` has the list of devices that was the newest for it.

    ``placement`` is None where no device can be used. ``told`` is a sentence for the user, empty if
    there was nothing to choose.
    """

    plan: LaunchPlan
    check: Check
    placement: Placement | None = None
    told: str = ""


def place_start(
    plan: LaunchPlan,
    check: Check,
    hardware: Mapping[str, Any],
    setting: str,
    ask_again: Callable[[], Check],
) -> Placed:
    """Choose the devices for a start, unless the user has; ``setting`` is ``llm.placement``.

    ``hardware`` is the probe's result when the build was installed. If free memory decides and the
    list of devices was recalled, ``ask_again`` asks the build, as other processes come and go. If
    that gives no list, the recalled one counts.
    """
    # The processor, or a build that lists no device: nothing to choose.
    if plan.backend == "cpu" or not check.devices:
        return Placed(plan, check)
    from tsuku_llm.backends import facts_of  # noqa: PLC0415 - a start on the CPU does without these
    from tsuku_llm.launch.devices import own_devices  # noqa: PLC0415
    from tsuku_llm.launch.nvml import gpu_memory, with_holders  # noqa: PLC0415
    from tsuku_llm.launch.placement import cards_of, memory_matters, place  # noqa: PLC0415
    from tsuku_llm.launch.report import Placement  # noqa: PLC0415

    wishes = wishes_in(plan.argv, plan.env)
    facts = facts_of(plan.backend)
    kinds = dict(_kinds(hardware, facts.api))
    cards = cards_of(own_devices(check.devices, plan.backend), kinds)
    if not cards:
        return Placed(plan, check)
    chosen = wishes.placed or visible_devices(plan.env, facts.hiding_variables)
    if chosen:
        placement = Placement(reason=f"chosen by {chosen}")
        return Placed(plan, check, placement, _told(placement, cards))
    if setting == "auto" and memory_matters(cards):
        if check.recalled:
            now = ask_again()
            # A build that does not answer now is not asked a third time: the start will show.
            check = now if now.devices else check
            cards = cards_of(own_devices(check.devices or (), plan.backend), kinds)
        seen = gpu_memory(plan.env)
        cards = with_holders(cards, seen) if seen else cards
    need = _need_of(plan)
    placement = place(cards, need, setting=setting, asked_layers=_layers(wishes))
    placed = plan.placed(placement, len(check.build.arguments), draft=wishes.draft)
    return Placed(placed, check, placement, _told(placement, cards))


def _told(placement: Placement, cards: Sequence[Card]) -> str:
    # One device, and nothing to choose: the line of the decision names it.
    return f"placed: {placement.told}" if len(cards) > 1 else ""


def _layers(wishes: Wishes) -> int | None:
    # A refusal is "no layer": any device will do for what is left.
    return 0 if wishes.refusal else wishes.layers


def _kinds(hardware: Mapping[str, Any], api: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the kind of each device that the probe found by this API.

    The receipt has the probe's words; a part that is missing there is unknown.
    """
    for each in hardware.get("apis") or ():
        if isinstance(each, dict) and each.get("name") == api:
            for gpu in each.get("gpus") or ():
                if isinstance(gpu, dict) and "name" in gpu and "kind" in gpu:
                    yield str(gpu["name"]), str(gpu["kind"])


def _need_of(plan: LaunchPlan) -> MemoryNeed | None:
    """Estimate the need of a start from the headers of its files; None without a readable one."""
    from tsuku_llm.launch.gguf import read_header, read_layout  # noqa: PLC0415 - as above
    from tsuku_llm.launch.memory_options import memory_options  # noqa: PLC0415
    from tsuku_llm.launch.need import MemoryNeed, estimate_need  # noqa: PLC0415

    options = memory_options(plan.argv, plan.env)
    # A URL is no path: such a model may not be here yet.
    if not options.model:
        return None

    def companion(path: str | None) -> ModelHeader | None:
        # One that cannot be read counts as nothing: the start says what is wrong with it.
        with suppress(OSError, ValueError):
            return read_header(path) if path else None
        return None

    try:
        header = read_header(options.model)
    except OSError:
        return None
    except ValueError:
        layout = read_layout(options.model)
        if layout is None:
            return None
        # Only the size is known: a fifth for the cache, and room for the buffers.
        size = layout.total + layout.total // 5
        return MemoryNeed(layers=(), cache=(), output=size, other=0, compute=_BUFFERS)
    return estimate_need(
        header,
        options,
        draft=companion(options.draft),
        projector=companion(options.projector),
    )


_BUFFERS = 512 << 20
"""Bytes for the compute buffers of a device, if nothing is known of the model."""
