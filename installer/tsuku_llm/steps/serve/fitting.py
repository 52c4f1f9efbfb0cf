"""Whether a start's model fits: its headers, the memory that is free, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground.errors import DoesNotFit
from tsuku_llm.launch.memory.fit import TOOL, Fit, judge, together
from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.main_memory import main_memory
from tsuku_llm.launch.memory.memory_options import MemoryOptions, memory_options
from tsuku_llm.launch.memory.model_header import ModelHeader
from tsuku_llm.launch.memory.need import MemoryNeed, estimate_need
from tsuku_llm.launch.plan.planning import Build, LaunchPlan
from tsuku_llm.launch.plan.wishes import Wishes, wishes_in
from tsuku_llm.machine.backends import facts_of
from tsuku_llm.steps.choosing.which import build_of, tools_of
from tsuku_llm.steps.drivers.device_check import Check, with_other_processes
from tsuku_llm.store.records.installed import Installed

if TYPE_CHECKING:
    from tsuku_llm.launch.memory.fit import Card
    from tsuku_llm.launch.memory.fit_tool import CacheCorrection
    from tsuku_llm.steps.serve.all_models import RoutedModel

_SMALL_PART = 2
"""A need of less than this part of a device's memory is not worth a question before a start."""


class ModelFiles(NamedTuple):
    """The headers of a start's models."""

    model: ModelHeader
    draft: ModelHeader | None = None
    projector: ModelHeader | None = None

    def need(self, options: MemoryOptions) -> MemoryNeed:
        """Estimate the memory for these options, without a driver's own."""
        return estimate_need(self.model, options, draft=self.draft, projector=self.projector)

    def judged(
        self,
        options: MemoryOptions,
        wishes: Wishes,
        devices: Sequence[Card],
        host: Card,
        *,
        backend: str,
        correction: CacheCorrection | None = None,
    ) -> Fit:
        """Compare these models with the memory of devices; those that the user named count."""
        # In the user's order, which is the server's: it counts for margins and for a number.
        named = [space for each in wishes.devices for space in devices if _is(space, each)]
        used = tuple(named or devices)
        if wishes.only is not None:
            # A number beyond the last one ends the server: then any comparison will do.
            used = used[wishes.only : wishes.only + 1] or used
        driver = facts_of(backend).driver_memory

        def estimate(changed: MemoryOptions) -> MemoryNeed:
            need = self.need(changed)._replace(driver=driver)
            return correction.applied(need) if correction else need

        return judge(
            estimate,
            options,
            used,
            host,
            own_context=self.model.number("context_length"),
            numbers=self.model.numbers,
            asked_layers=wishes.device_layers,
        )


def read_models(options: MemoryOptions, read: Callable[[str], ModelHeader]) -> ModelFiles:
    """Read the headers of the models that the options name, with the errors of ``read``."""
    return ModelFiles(
        read(options.model or ""),
        read(options.draft) if options.draft else None,
        read(options.projector) if options.projector else None,
    )


def fit_of_start(
    plan: LaunchPlan,
    check: Check,
    cards: Sequence[Card],
    ask_again: Callable[[], Check],
    *,
    models: ModelFiles | None,
    certain: bool,
) -> Fit | None:
    """Judge a start before it is made; None if its model is not a file that can be read here.

    ``cards`` are the devices of ``check``. A recalled list does not know what is free now.
    ``ask_again`` asks the build; that is left out for a small model, unless the answer has to be
    ``certain``. ``models`` are None where they were not read before. Upstream's own tool is asked
    if the answer has to be certain, or is no.
    """
    options, wishes = memory_options(plan.argv, plan.env), wishes_in(plan.argv, plan.env)
    try:
        models = models or read_models(options, read_header)
    except (OSError, ValueError):
        # A model that the server fetches by itself; or the server says what is wrong with its file.
        return None
    host, devices = main_memory(), spaces_of(cards)
    if check.recalled:
        devices = tuple(space._replace(free=None) for space in devices)
        half = [space._replace(total=(space.total or 0) // _SMALL_PART) for space in devices]
        small = models.judged(options, wishes, half, host, backend=plan.backend)
        if certain or not small.fits or small.shortened:
            cards = ask_again().cards or cards
            # Without an answer the sizes count: the start will show.
            devices = spaces_of(cards) or devices
    judged = partial(models.judged, options, backend=plan.backend)
    found = judged(wishes, devices, host)
    if found.fits is False and not any(card.holders for card in cards):
        # Only now, as this asks a driver: who has the memory that is missing?
        devices = spaces_of(with_other_processes(cards, plan.env))
        found = judged(wishes, devices, host)
    if check.fit_tool is None or (found.fits and not certain):
        return _or_elsewhere(found, judged, wishes, devices)
    need = models.need(options)
    correction = corrected_by_tool(check.fit_tool, need, options, wishes, plan.env)
    judged = partial(judged, correction=correction)
    return _or_elsewhere(judged(wishes, devices, host), judged, wishes, devices)


class Routed(NamedTuple):
    """A model of a router: the options with which its server starts, and its headers."""

    options: MemoryOptions
    files: ModelFiles


def read_routed(plan: LaunchPlan, models: Sequence[RoutedModel]) -> tuple[Routed, ...] | None:
    """Read the headers of a router's models; None if one of them cannot be read."""
    found = []
    for each in models:
        projector = ("--mmproj", each.projector) if each.projector else ()
        options = memory_options((*plan.argv, "-m", each.path, *projector), plan.env)
        try:
            found.append(Routed(options, read_models(options, read_header)))
        except (OSError, ValueError):
            return None
    return tuple(found)


def fitting_together(
    plan: LaunchPlan, models: Sequence[Routed], devices: Sequence[Card]
) -> int | None:
    """Return how many of a router's models fit at a time, each as a start with it alone is judged.

    None if that is not known of one of them.
    """
    wishes, host = wishes_in(plan.argv, plan.env), main_memory()
    fits, margin = list[Fit](), 0
    for options, files in models:
        fits.append(files.judged(options, wishes, devices, host, backend=plan.backend))
        margin = sum(map(options.margin, range(len(fits[-1].devices))))
    return together(fits, margin)


def fit_tool_of(installed: Installed) -> Build | None:
    """Return the build's own program that tells what memory a model needs; None without one."""
    path = tools_of(installed.receipt).get(TOOL)
    return build_of(installed)._replace(server=path) if path else None


def corrected_by_tool(
    tool: Build | None,
    need: MemoryNeed,
    options: MemoryOptions,
    wishes: Wishes,
    environ: Mapping[str, str],
) -> CacheCorrection | None:
    """Ask the build's own tool for the cache of a start; None without a tool or an answer."""
    if tool is None:
        return None
    from tsuku_llm.launch.memory.fit_tool import ask_fit_tool, correction_of  # noqa: PLC0415 - only then

    return correction_of(need, ask_fit_tool(tool, options, wishes.devices, environ))


def _or_elsewhere(
    found: Fit, judged: Callable[..., Fit], wishes: Wishes, devices: Sequence[Card]
) -> Fit:
    """Name a device with room for a model that does not fit on those that were chosen."""
    if found.fits is not False or not wishes.devices:
        return found
    anywhere = wishes._replace(devices=())
    room = [
        f"use --device {space.name}: {space.told_memory}"
        for space in devices
        if not any(_is(space, each) for each in wishes.devices)
        and (alone := judged(anywhere, (space,), found.host)).fits
        and not alone.shortened
    ]
    return found._replace(remedies=(*room[:1], *found.remedies))


def _is(space: Card, name: str) -> bool:
    # Upstream compares these names without regard to case.
    return space.name.casefold() == name.casefold()


def require_fit(fit: Fit | None) -> None:
    """Refuse a start that does not fit, or of which that is not known. Raises ``DoesNotFit``."""
    if fit is None:
        raise DoesNotFit(
            "the model has to fit, and it cannot be read before the start",
            hint="name GGUF files of this machine (-m, --mmproj, -md), or leave out --require-fit",
        )
    if not fit.fits:
        raise DoesNotFit(
            "the model does not fit"
            if fit.fits is False
            else "it is not known what the model needs"
            if fit.need.doubt
            else "the free memory is not known",
            facts=fit.told,
            hint="change what it needs, or leave out --require-fit: this is an estimate",
        )


def spaces_of(cards: Sequence[Card]) -> tuple[Card, ...]:
    """Return the devices that a start may use: no integrated one beside a card."""
    return tuple(card for card in cards if not card.integrated) or tuple(cards)
