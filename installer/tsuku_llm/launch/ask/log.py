"""The facts in a server's log about where it computes, for many versions' wordings. Pure.

Since mid-2026 upstream prints almost none of these lines without ``-lv 4``: a missing line
proves nothing. "offloaded 33/33 layers to GPU" is printed on machines without a GPU too.
So a number of layers proves something only if it is smaller than the model's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MIB = 1024 * 1024
_LONGEST = 4096
"""Bytes of one line that are read."""

_MOST = 256
"""Backends and buffers that are kept; a server with many cards names dozens."""

# As in this line: load_tensors: CUDA0 model buffer size = 4095.05 MiB
# A model's own texts are logged too: a number must be one, and \b keeps a long word linear.
_BUFFER = re.compile(
    r"\b(?P<where>[A-Za-z]\w*(?:\[[^\]]*\])?)\s+(?P<what>model|KV|RS)\s+buffer size\s*="
    r"\s*(?P<size>[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*MiB",
    re.IGNORECASE,
)
_LAYERS = re.compile(
    r"offloaded (?P<offloaded>[0-9]{1,9})/(?P<total>[0-9]{1,9}) layers", re.IGNORECASE
)
_LOADED = re.compile(r"load_backend: loaded (?P<backend>\w+) backend", re.IGNORECASE)
_DEVICE = re.compile(r"using device (?P<name>\w+) \((?P<description>.+?)\) (?:\(|- )")
_LISTENS = re.compile(
    r"listening on:? (?:https?://)?(?:\[[^\]]+\]|[^\s:,]*)(?::(?P<port>[0-9]{1,5})(?![0-9]))?"
)
_ASKED = b"/health"
"""The path of our own questions: upstream logs each request with its path."""

_BEGIN = 64
"""Bytes of a line that may come before the path of a question: time, level, function."""

_SERVES = (b"model loaded", b"listening on")
"""The server logs these once it serves; every version so far logs one of the two."""

_COMPLAINT = re.compile(
    r"no usable GPU found|compiled without GPU support|ggml_vulkan: No devices found"
    r"|failed to initialize (?:CUDA|ROCm|HIP|Metal)|no (?:CUDA|ROCm)[\w -]* devices? found"
    r"|no ROCm-capable device is detected|no CUDA-capable device is detected",
    re.IGNORECASE,
)


class LogFacts(NamedTuple):
    """The facts that were read so far.

    ``loaded`` are the backends that ggml's plugin loader named. ``buffers`` are the places
    that hold weights or context, each with its size in bytes; ``weights`` are those of them that
    hold weights. ``layers`` are the model's, offloaded and in total; a draft model comes later and
    does not count. ``device`` is the model's device in words. ``complaint`` is a line that denies
    a GPU. ``port`` is where the server ``listens``, None for a Unix socket.
    """

    loaded: tuple[str, ...] = ()
    buffers: tuple[tuple[str, int], ...] = ()
    weights: tuple[tuple[str, int], ...] = ()
    layers: tuple[int, int] | None = None
    device: str | None = None
    complaint: str | None = None
    listens: bool = False
    port: int | None = None


def read_line(facts: LogFacts, line: str) -> LogFacts:
    """Return the facts after one more line."""
    low = line.lower()
    # The fixed words first: a pattern is tried at every character of a long line.
    if "buffer size" in low and (found := _BUFFER.search(line)):
        buffer = (found["where"], int(float(found["size"]) * _MIB))
        weights = (buffer,) if found["what"].lower() == "model" else ()
        if len(facts.buffers) < _MOST:
            facts = facts._replace(
                buffers=(*facts.buffers, buffer), weights=(*facts.weights, *weights)
            )
    elif "offloaded" in low and (found := _LAYERS.search(line)):
        layers = int(found["offloaded"]), int(found["total"])
        facts = facts._replace(layers=facts.layers or layers)
    elif "load_backend" in low and (found := _LOADED.search(line)):
        if len(facts.loaded) < _MOST:
            facts = facts._replace(loaded=(*facts.loaded, found["backend"]))
    elif "using device" in low and (found := _DEVICE.search(line)):
        device = f"{found['name']}: {found['description']}"
        facts = facts._replace(device=facts.device or device)
    elif "listening on" in low and (found := _LISTENS.search(line)):
        port = int(found["port"]) if found["port"] else None
        facts = facts._replace(listens=True, port=port)
    elif _COMPLAINT.search(line):
        facts = facts._replace(complaint=facts.complaint or line.strip())
    return facts


class LogReader:
    """The reader that assembles a stream's lines and reads each of them once.

    One thread feeds it. Others may read ``facts``, ``serves`` and ``said`` meanwhile: they are
    immutable values, which are replaced as a whole.
    """

    def __init__(self) -> None:
        self.facts = LogFacts()
        self.serves = False
        """True once the log says that the server serves."""
        self._said = 0
        self._rest = b""

    @property
    def said(self) -> int:
        """The bytes of the lines so far, without those about questions for ``/health``.

        The begin of a line counts only once it is longer than such a line may be before its path:
        the loader draws its progress in one line.
        """
        return self._said + max(0, len(self._rest) - _BEGIN)

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the stream; a line is read when it is complete."""
        text = self._rest + data
        # Also in a line that is not complete yet: a server may be killed in the middle of it.
        self.serves = self.serves or any(mark in text for mark in _SERVES)
        *lines, rest = text.split(b"\n")
        # A stream without line ends must not fill the memory.
        self._rest = rest[:_LONGEST]
        # A server that hangs in its load may still answer our questions, and log each of them.
        self._said += sum(len(line) for line in lines if _ASKED not in line)
        for line in lines:
            self.facts = read_line(self.facts, line[:_LONGEST].decode("utf-8", "replace"))
