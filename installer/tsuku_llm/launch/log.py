"""What a server's log says of where it computes, in the wordings of many versions. Pure.

Since mid-2026 upstream prints almost none of it unless asked (``-lv 4``): an absent line says
nothing. And "offloaded 33/33 layers to GPU" is printed on machines without any GPU, so a
number of layers proves something only when it is 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_MIB = 1024 * 1024
_LONGEST = 4096
"""Bytes of one line that are looked at."""

_MOST = 256
"""Backends and buffers that are remembered; a server with many cards names dozens."""

_BUFFER = re.compile(
    r"(?P<where>[A-Za-z]\w*(?:\[[^\]]*\])?)\s+(?P<what>model|KV|RS)\s+buffer size\s*="
    r"\s*(?P<size>[\d.]+)\s*MiB",
    re.IGNORECASE,
)
_LAYERS = re.compile(r"offloaded (?P<offloaded>\d+)/(?P<total>\d+) layers", re.IGNORECASE)
_LOADED = re.compile(r"load_backend: loaded (?P<backend>\w+) backend", re.IGNORECASE)
_DEVICE = re.compile(r"using device (?P<name>\w+) \((?P<description>.+?)\) (?:\(|- )")
_LISTENS = re.compile(r"listening on:? (?:https?://)?(?:\[[^\]]+\]|[^\s:,]+)(?::(?P<port>\d+))?")
_COMPLAINT = re.compile(
    r"no usable GPU found|compiled without GPU support|ggml_vulkan: No devices found"
    r"|failed to initialize (?:CUDA|ROCm|HIP|Metal)|no (?:CUDA|ROCm)[\w -]* devices? found"
    r"|no ROCm-capable device is detected|no CUDA-capable device is detected",
    re.IGNORECASE,
)


class LogFacts(NamedTuple):
    """What was read so far. Sizes are bytes.

    ``loaded`` are the backends that the loader of plugins named; ``buffers`` has for each
    place that holds weights or context how much; ``device`` is the one that the model was
    given, in words; ``complaint`` is a line that says that there is no GPU; ``port`` is
    where it ``listens``, None for a Unix socket.
    """

    loaded: tuple[str, ...] = ()
    buffers: tuple[tuple[str, int], ...] = ()
    layers: tuple[int, int] | None = None
    device: str | None = None
    complaint: str | None = None
    listens: bool = False
    port: int | None = None


def read_line(facts: LogFacts, line: str) -> LogFacts:
    """The facts after one more line."""
    low = line.lower()
    for words, pattern, add in _RULES:
        # The fixed words first: without them a pattern is tried at each letter of a long line.
        if words in low and (found := pattern.search(line)):
            return add(facts, found)
    return facts


def _add_buffer(facts: LogFacts, found: re.Match[str]) -> LogFacts:
    if len(facts.buffers) == _MOST:
        return facts
    size = int(float(found["size"]) * _MIB)
    return facts._replace(buffers=(*facts.buffers, (found["where"], size)))


def _add_layers(facts: LogFacts, found: re.Match[str]) -> LogFacts:
    return facts._replace(layers=(int(found["offloaded"]), int(found["total"])))


def _add_loaded(facts: LogFacts, found: re.Match[str]) -> LogFacts:
    if len(facts.loaded) == _MOST:
        return facts
    return facts._replace(loaded=(*facts.loaded, found["backend"]))


def _add_device(facts: LogFacts, found: re.Match[str]) -> LogFacts:
    return facts._replace(device=facts.device or f"{found['name']}: {found['description']}")


def _add_address(facts: LogFacts, found: re.Match[str]) -> LogFacts:
    port = int(found["port"]) if found["port"] else None
    return facts._replace(listens=True, port=port)


def _add_complaint(facts: LogFacts, found: re.Match[str]) -> LogFacts:
    return facts._replace(complaint=facts.complaint or found.string.strip())


_RULES: tuple[tuple[str, re.Pattern[str], Callable[[LogFacts, re.Match[str]], LogFacts]], ...] = (
    ("buffer size", _BUFFER, _add_buffer),
    ("offloaded", _LAYERS, _add_layers),
    ("load_backend", _LOADED, _add_loaded),
    ("using device", _DEVICE, _add_device),
    ("listening on", _LISTENS, _add_address),
    ("", _COMPLAINT, _add_complaint),
)


class LogReader:
    """Puts the lines of a stream together and reads each once."""

    def __init__(self) -> None:
        self.facts = LogFacts()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Read what the stream has brought; a line is read when it is complete."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LONGEST]
        for line in lines:
            self.facts = read_line(self.facts, line[:_LONGEST].decode("utf-8", "replace"))
