"""The parser of ``llama-server --list-devices``. Pure.

The wording changes between versions. The parser relies only on what has stayed: one device
per line, its name, a colon, its description, and sometimes its memory in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tsuku_llm.machine.backends import TABLE, facts_of, maker_in, parts_of

_LONGEST = 1000
"""Characters of one line that are read: at worst, the patterns' time grows with the square."""

# Upstream prints "Available devices:".
_HEADER = re.compile(r"\W*(?:\w+ )*devices\s*:\s*", re.IGNORECASE)
_LINE = re.compile(r"\s*(?P<name>[A-Za-z][\w.-]*(?:\[[^\]]*\])?)\s*:\s+(?P<rest>\S.*)")
_MEMORY = re.compile(
    r"\s*\((?P<total>\d+)\s*MiB(?:[^()]*?(?P<free>\d+)\s*MiB\s*free)?[^()]*\)\s*$", re.IGNORECASE
)
_MIB = 1024 * 1024

# ggml-vulkan's words about each device: "ggml_vulkan: 0 = NAME (DRIVER) | uma: 1 | fp16: …".
_UMA = re.compile(r"ggml_(?P<backend>vulkan): (?P<number>\d+) = .*\| uma: (?P<uma>[01])\b")

# ggml lists these as devices as well.
_NO_GPU = ("cpu", "blas", "rpc", "accel")


class ListedDevice(NamedTuple):
    """One line of the list; ``memory`` and ``free`` are in bytes, None if not printed.

    ``integrated``: it uses the machine's own memory; None if the build does not say.
    """

    name: str
    description: str
    memory: int | None = None
    free: int | None = None
    integrated: bool | None = None


def parse_devices(text: str) -> tuple[ListedDevice, ...] | None:
    """Parse the list; None for a text without one; ``(none)`` is an empty list."""
    lines = (line[:_LONGEST].rstrip() for line in text.splitlines())
    # Log lines may come before the heading, and others after it, such as a warning of the driver.
    if not any(_HEADER.fullmatch(line) for line in lines):
        return None
    return tuple(_device(found) for found in map(_LINE.match, lines) if found)


def with_kinds(devices: Sequence[ListedDevice], text: str) -> tuple[ListedDevice, ...]:
    """Add what the build's own log says about the kinds of its devices."""
    found = (_UMA.search(line[:_LONGEST]) for line in text.splitlines())
    kinds = {f"{each['backend']}{each['number']}": each["uma"] == "1" for each in found if each}
    return tuple(
        device._replace(integrated=kinds.get(device.name.casefold())) for device in devices
    )


def own_devices(devices: Sequence[ListedDevice], backend: str) -> tuple[ListedDevice, ...]:
    """Return the devices that can belong to ``backend``, each card once if it names several.

    These are the devices with the backend's prefix. Without any, return those whose prefix
    belongs to no known backend, because upstream may have changed a name.
    """
    if len(parts_of(backend)) > 1:
        return _each_once(devices, parts_of(backend))
    prefixes = facts_of(backend).device_prefixes
    own = tuple(device for device in devices if _has_prefix(device, prefixes))
    known = (*_NO_GPU, *(prefix for each in TABLE for prefix in each.device_prefixes))
    return own or tuple(device for device in devices if not _has_prefix(device, known))


def _each_once(
    devices: Sequence[ListedDevice], backends: Sequence[str]
) -> tuple[ListedDevice, ...]:
    """Return the devices of several backends, in their order, no card through two of them.

    Two interfaces give one card two names, and nothing in the list says that it is the same. But
    it has one maker. So where a maker's own interface lists a card, a later backend's devices count
    only if their descriptions name another maker.
    """
    found: list[ListedDevice] = []
    taken: set[int] = set()
    for backend in backends:
        row = facts_of(backend)
        own = [each for each in devices if _has_prefix(each, row.device_prefixes)]
        if taken:
            own = [each for each in own if maker_in(each.description) not in {None, *taken}]
        found += own
        # The interface of one maker lists all of its cards; a later one has nothing to add.
        if own and len(row.vendors) == 1:
            taken |= row.vendors
    return tuple(found)


def backend_named(name: str) -> str | None:
    """Return the backend in the name of a device, buffer or plugin, such as "CUDA0"."""
    low = name.casefold()
    return next((each.name for each in TABLE if low.startswith(each.device_prefixes)), None)


def choose(devices: Sequence[ListedDevice], expected: str | None) -> str | None:
    """Return every listed device called ``expected``, separated by commas; None without any."""
    if expected is None:
        return None
    wanted = _normal(expected)
    # Equal names first: "RTX 4070" is contained in "RTX 4070 Ti".
    equal = [device.name for device in devices if _normal(device.description) == wanted]
    # Then one that contains the other: drivers add their own name in brackets.
    alike = [
        device.name
        for device in devices
        if (named := _normal(device.description))
        and wanted
        and (named in wanted or wanted in named)
    ]
    return ",".join(equal or alike) or None


def _device(line: re.Match[str]) -> ListedDevice:
    """Split a line; without brackets at its end, the memory is not known."""
    name, rest = line["name"], line["rest"]
    memory = _MEMORY.search(rest)
    if memory is None:
        return ListedDevice(name, rest)
    free = None if memory["free"] is None else int(memory["free"]) * _MIB
    return ListedDevice(name, rest[: memory.start()], int(memory["total"]) * _MIB, free)


def _has_prefix(device: ListedDevice, prefixes: tuple[str, ...]) -> bool:
    return device.name.casefold().startswith(prefixes)


def _normal(description: str) -> str:
    return " ".join(description.casefold().split())
