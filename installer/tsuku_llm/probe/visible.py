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

from tsuku_llm.machine.backends import TABLE, VENDORS, backends_of, facts_of
from tsuku_llm.machine.hardware import Api, Gpu


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


def mark_hidden(apis: tuple[Api, ...], variables: Mapping[str, str]) -> tuple[Api, ...]:
    """Mark each GPU that a variable leaves out, wherever another interface lists it."""
    for limit in LIMITS:
        name = next((each for each in limit.variables if each in variables), None)
        if name is None or _EVERYTHING.fullmatch(variables[name].strip()):
            continue
        own = next((api for api in apis if api.name == limit.api), None)
        given = _given(own, variables[name])
        apis = tuple(
            api
            # A user who sets the variable of this interface has chosen the cards there.
            if api.name == limit.api or any(each in variables for each in _NAMED[api.name])
            else _marked(api, limit.maker, given, name)
            for api in apis
        )
    return apis


def _given(own: Api | None, value: str) -> tuple[Gpu | None, ...]:
    """Return the cards that the maker's interface was given; None for each that is only counted."""
    if value.strip().lower() in _NOTHING:
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
