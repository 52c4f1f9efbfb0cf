"""The cards that variables leave out: one truth for all interfaces that list the same cards. Pure.

A variable such as ``CUDA_VISIBLE_DEVICES`` is read by one interface, and another one lists every
card. On a shared machine that is another user's card (ollama/ollama#16592). So a card that its
maker's interface was not given is marked in the others, and no build uses it through them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from tsuku_llm.machine.backends import TABLE, VENDORS, backends_of, facts_of, parts_of
from tsuku_llm.machine.hardware import Api, Gpu, GpuKind, Hardware, Problem


class Limit(NamedTuple):
    """The variables that give the cards of a maker to its own interface."""

    maker: int
    api: str
    variables: tuple[str, ...]


def _limits() -> Iterator[Limit]:
    """Yield the limit of each maker; HIP also reads CUDA's variable, which is NVIDIA's."""
    taken: set[str] = set()
    for word, maker in VENDORS.items():
        row = facts_of(backends_of(word)[0])
        yield Limit(
            maker, row.api, tuple(name for name in row.hiding_variables if name not in taken)
        )
        taken |= set(row.hiding_variables)


LIMITS = tuple(_limits())
_NAMED = {row.api: row.hiding_variables[:1] for row in TABLE if row.api}
"""The variable that chooses among the cards of each interface."""

VARIABLES = tuple(
    dict.fromkeys(
        name
        for names in (*(limit.variables for limit in LIMITS), *_NAMED.values())
        for name in names
    )
)
_NOTHING = frozenset({"", "-1", "none", "nodevfiles", "void"})
_EVERYTHING = re.compile(r"all|\*|(?:\*|level_zero|opencl)(?::(?:\*|gpu))?", re.IGNORECASE)


_BY_INDEX = "GGML_VK_VISIBLE_DEVICES"
"""The variable of ggml's Vulkan backend: numbers of devices, in the order of Vulkan's loader."""

_INDEXED = next(row.api for row in TABLE if _BY_INDEX in row.hiding_variables)


def mark_hidden(apis: tuple[Api, ...], variables: Mapping[str, str]) -> tuple[Api, ...]:
    """Mark each GPU that a variable leaves out, wherever another interface lists it."""
    for limit in LIMITS:
        name = _named(limit, variables)
        if name is None:
            continue
        own = next((api for api in apis if api.name == limit.api), None)
        given = _given(own, variables[name])
        apis = tuple(
            api
            # A user who sets the variable of this interface has chosen the cards there.
            if api.name == limit.api or _chosen_in(api.name, variables)
            else _marked(api, limit.maker, given, name)
            for api in apis
        )
    vulkan = next((api for api in apis if api.name == _INDEXED), None)
    if vulkan is None or _BY_INDEX not in variables:
        return apis
    chosen = _chosen_by_index(vulkan, variables[_BY_INDEX])
    for maker in VENDORS.values():
        # A maker whose cards Vulkan does not list at all was not chosen from.
        if not any(gpu.vendor_id == maker for gpu in vulkan.hardware_gpus):
            continue
        given = tuple(gpu for gpu in chosen if gpu.vendor_id == maker)
        apis = tuple(
            api
            if api.name == _INDEXED or _chosen_in(api.name, variables)
            else _marked(api, maker, given, _BY_INDEX)
            for api in apis
        )
    own = _only_chosen(vulkan, chosen, variables[_BY_INDEX])
    return tuple(own if api.name == _INDEXED else api for api in apis)


def _chosen_by_index(vulkan: Api, value: str) -> tuple[Gpu, ...]:
    """Return the devices of Vulkan's loader that ggml's backend takes; none if one is missing.

    Source: ``ggml_vk_instance_init`` in ggml-vulkan.cpp (b11434). Blanks or commas are between the
    numbers, the first other character ends the list, and a number without a device is an error.
    """
    listed = re.match(r"(?:[\s,]*[+-]?[0-9]+)*", value, re.ASCII)
    numbers = re.findall(r"[+-]?[0-9]+", listed[0] if listed else "")
    # 20 digits are a size_t at most, and Python refuses to read thousands.
    wanted = {int(number[:20]) for number in numbers}
    if not wanted <= {gpu.index for gpu in vulkan.gpus}:
        return ()
    return tuple(gpu for gpu in vulkan.gpus if gpu.index in wanted)


def _only_chosen(vulkan: Api, chosen: tuple[Gpu, ...], value: str) -> Api:
    """Mark what ggml's Vulkan backend leaves out: Vulkan's loader does not read the variable."""
    if not vulkan.hardware_gpus:
        return vulkan
    gpus = tuple(gpu if gpu in chosen else replace(gpu, hidden_by=_BY_INDEX) for gpu in vulkan.gpus)
    problem = vulkan.problem
    if all(gpu.hidden_by for gpu in gpus if gpu.kind is not GpuKind.SOFTWARE):
        text = f"{_BY_INDEX}={value!r} leaves no GPU of this machine to a Vulkan build"
        problem = Problem("vulkan-hidden", text, f"correct or unset {_BY_INDEX}")
    return replace(vulkan, gpus=gpus, problem=problem)


def _named(limit: Limit, variables: Mapping[str, str]) -> str | None:
    """Return the variable that limits a maker's own interface, None if all cards are given."""
    name = next((each for each in limit.variables if each in variables), None)
    return None if name is None or _EVERYTHING.fullmatch(variables[name].strip()) else name


def _chosen_in(api: str, variables: Mapping[str, str]) -> bool:
    return any(each in variables for each in _NAMED.get(api, ()))


def is_limited_elsewhere(backend: str, variables: Mapping[str, str]) -> bool:
    """Tell whether a variable of another interface may leave out cards that a build would use."""
    row = facts_of(backend)
    if not row.given_by or _chosen_in(row.api, variables):
        return False
    others = (limit for limit in LIMITS if limit.api != row.api and limit.maker in row.vendors)
    by_index = row.api != _INDEXED and _BY_INDEX in variables
    return by_index or any(_named(limit, variables) for limit in others)


def only_given(backend: str, hardware: Hardware, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep a build from the cards that were not given; often none.

    A variable that is set is the user's own word, and comes before these.
    """
    parts = (part for part in parts_of(backend) if is_limited_elsewhere(part, variables))
    return dict(found for part in parts if (found := given_to(part, hardware)))


def given_to(backend: str, hardware: Hardware) -> tuple[str, str] | None:
    """Return the variable, and its value, that gives a build only the cards that are not hidden.

    None if no card of its interface is hidden.
    """
    api = hardware.api(facts_of(backend).api)
    if not any(gpu.hidden_by for gpu in api.hardware_gpus):
        return None
    usable = [gpu for gpu in api.hardware_gpus if not gpu.hidden_by]
    cards = [gpu for gpu in usable if gpu.kind is GpuKind.DISCRETE]
    # As the backends do by themselves: the cards, else one that is part of the processor.
    cards = cards or usable[:1]
    once: dict[str | int, Gpu] = {}
    for gpu in cards:
        # Two drivers may list one card.
        once.setdefault(gpu.uuid or gpu.index, gpu)
    name, first, nothing = facts_of(backend).given_by
    return name, first + ",".join(str(gpu.index) for gpu in once.values()) if once else nothing


def _given(own: Api | None, value: str) -> tuple[Gpu | None, ...]:
    """Return the cards that the maker's interface was given; None for each that is only counted."""
    # A part of a card (MIG) is not the card, and other interfaces know no parts.
    if value.strip().lower() in _NOTHING or value.strip().startswith("MIG-"):
        return ()
    if own and (own.gpus or (own.problem and own.problem.slug.endswith("-hidden"))):
        return own.hardware_gpus
    # It does not work here: the variable still says how many.
    return (None,) * len([part for part in value.split(",") if part.strip()])


def _marked(api: Api, maker: int, given: tuple[Gpu | None, ...], name: str) -> Api:
    cards = [gpu for gpu in api.hardware_gpus if gpu.vendor_id == maker]
    # As many as were given: these are the same.
    if len(cards) <= len(given):
        return api
    known = {gpu.uuid for gpu in given if gpu and gpu.uuid}
    hidden = {id(gpu) for gpu in cards if gpu.uuid is None or gpu.uuid not in known}
    gpus = tuple(replace(gpu, hidden_by=name) if id(gpu) in hidden else gpu for gpu in api.gpus)
    return replace(api, gpus=gpus)
