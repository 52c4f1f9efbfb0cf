"""The memory that a server needs for a model, estimated from its GGUF headers. Pure."""

from __future__ import annotations

from typing import NamedTuple


class MemoryNeed(NamedTuple):
    """The memory of one start, all in bytes.

    ``layers`` are the weights of each layer, in order, and ``cache`` is what each of them keeps of
    the context. ``output`` are the weights that count as the last layer. ``other`` are weights
    that stay in main memory, such as the input embeddings. ``compute`` are the buffers of one
    device that computes; each further device needs them too. ``host_compute`` are those that
    stay in main memory also with every layer on a GPU.
    ``companions`` is the whole need of the other models of this start (mmproj, draft).
    """

    layers: tuple[int, ...]
    cache: tuple[int, ...]
    output: int
    other: int
    compute: int
    host_compute: int = 0
    companions: int = 0

    @property
    def weights(self) -> int:
        """The weights of the model itself."""
        return sum(self.layers) + self.output + self.other

    def on_device(self, first: int = 0, last: int | None = None) -> int:
        """Return the need of a device that gets these layers; the output is the last of them.

        ``first`` to ``last`` (exclusive) are numbers of layers; None: up to the output.
        """
        count = len(self.layers)
        end = count + 1 if last is None else last
        held = sum(self.layers[first:end]) + sum(self.cache[first:end])
        return held + (self.output if end > count else 0) + self.compute

    @property
    def on_one_device(self) -> int:
        """The need of a single device that holds every layer."""
        return self.on_device() + self.companions

    @property
    def total(self) -> int:
        """Everything, in whatever memory."""
        return self.on_one_device + self.other + self.host_compute
