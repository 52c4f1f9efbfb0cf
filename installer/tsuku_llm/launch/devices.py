"""The devices that ``llama-server --list-devices`` prints, and what they say. Pure.

The wording drifts between versions, so the parser keeps to what has stayed: one device
per line, its name, a colon, its description, and maybe its memory in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LONGEST = 1000
"""Letters of one line that are looked at: the patterns take the square of it at worst."""

_HEADER = re.compile(r"\W*(?:\w+ )*devices\s*:\s*", re.IGNORECASE)
_LINE = re.compile(r"\s*(?P<name>[A-Za-z][\w.-]*(?:\[[^\]]*\])?)\s*:\s+(?P<rest>\S.*)")
_MEMORY = re.compile(
    r"\s*\((?P<total>\d+)\s*MiB(?:[^()]*?(?P<free>\d+)\s*MiB\s*free)?[^()]*\)\s*$", re.IGNORECASE
)
_MIB = 1024 * 1024

_PREFIXES = {
    "cuda": ("cuda",),
    "vulkan": ("vulkan",),
    "rocm": ("rocm", "hip"),
    "sycl": ("sycl",),
    "opencl": ("gpuopencl", "opencl"),
    "metal": ("mtl", "metal"),
    "openvino": ("openvino",),
}
_NO_GPU = ("cpu", "blas", "rpc", "accel")


class ListedDevice(NamedTuple):
    """One line of the list; ``memory`` and ``free`` are bytes, None where not printed."""

    name: str
    description: str
    memory: int | None = None
    free: int | None = None


def parse_devices(text: str) -> tuple[ListedDevice, ...]:
    """Read the list; log lines before its heading are passed over, ``(none)`` is empty."""
    lines = _lines(text)
    return tuple(_devices(lines)) if _skip_header(lines) else ()


def has_list(text: str) -> bool:
    """Whether there is a list in a text, be it an empty one."""
    return _skip_header(_lines(text))


def _lines(text: str) -> Iterator[str]:
    return (line[:_LONGEST].rstrip() for line in text.splitlines())


def _skip_header(lines: Iterator[str]) -> bool:
    """Take lines up to the heading; whether there is one."""
    return any(_HEADER.fullmatch(line) for line in lines)


def own_devices(devices: Sequence[ListedDevice], backend: str) -> tuple[ListedDevice, ...]:
    """Give the devices that can be ``backend``'s.

    They are those with its prefix; where there are none, those with a prefix that is
    nobody's, because a name may have changed upstream.
    """
    prefixes = _PREFIXES.get(backend, ())
    own = tuple(device for device in devices if _has_prefix(device, prefixes))
    known = (*_NO_GPU, *(prefix for each in _PREFIXES.values() for prefix in each))
    return own or tuple(device for device in devices if not _has_prefix(device, known))


def backend_named(name: str) -> str | None:
    """The backend that a device, a buffer or a plugin is called after, such as "CUDA0"."""
    low = name.casefold()
    return next((each for each, words in _PREFIXES.items() if low.startswith(words)), None)


def choose(devices: Sequence[ListedDevice], expected: str | None) -> str | None:
    """Give the value for ``--device``: every listed device called ``expected``.

    All of them, not the first: two equal cards serve one model together, and naming one
    would leave the other idle. None where nothing matches: then the server decides.
    """
    if expected is None:
        return None
    wanted = _normal(expected)
    equal = [device.name for device in devices if _normal(device.description) == wanted]
    alike = [device.name for device in devices if _alike(_normal(device.description), wanted)]
    return ",".join(equal or alike) or None


def _devices(lines: Iterator[str]) -> Iterator[ListedDevice]:
    for line in lines:
        found = _LINE.match(line)
        if found:
            yield _device(found["name"], found["rest"])


def _device(name: str, rest: str) -> ListedDevice:
    memory = _MEMORY.search(rest)
    if memory is None:
        return ListedDevice(name, rest)
    return ListedDevice(
        name, rest[: memory.start()], _bytes(memory["total"]), _bytes(memory["free"])
    )


def _bytes(mebibytes: str | None) -> int | None:
    return None if mebibytes is None else int(mebibytes) * _MIB


def _has_prefix(device: ListedDevice, prefixes: tuple[str, ...]) -> bool:
    return device.name.casefold().startswith(prefixes)


def _normal(description: str) -> str:
    return " ".join(description.casefold().split())


def _alike(description: str, wanted: str) -> bool:
    """Whether one contains the other: drivers add their own name in brackets."""
    return bool(description and wanted) and (description in wanted or wanted in description)
