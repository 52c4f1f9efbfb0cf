"""The headers of a model's GGUF files, read from disk, and the size of each of its layers.

A server keeps the input embeddings in main memory, also if every layer is on the GPU. So only
the sizes of the layers say how much memory of the GPU a number of layers needs. A file that differs
from the format is no error, its layers are unknown.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.launch.memory.model_header import (
    HeaderBudget,
    ModelHeader,
    joined,
    parts_of,
    read_growing,
)

_BLOCK = re.compile(r"blk\.(\d{1,5})\.")
_OUTPUT = re.compile(r"output(?:_norm)?\.")


class ModelLayout(NamedTuple):
    """The bytes of a model: ``layers`` in order, ``output``, and everything ``total``.

    The input embeddings and other tensors that stay in main memory are only in ``total``. A model
    without output weights uses its embeddings for them, and the GPU gets a copy: so what is on
    the GPU can be more than these numbers.
    """

    total: int
    layers: tuple[int, ...] = ()
    output: int = 0

    def on_gpu(self, layers: int | None) -> int:
        """Return the bytes that this many layers need on the GPU; None for all of them.

        llama.cpp counts the output as the last layer, and fills the GPU from the end.
        """
        if layers is None:
            return sum(self.layers) + self.output
        kept = max(0, len(self.layers) + 1 - layers)
        return sum(self.layers[kept:]) + (self.output if layers else 0)


def read_layout(path: str) -> ModelLayout | None:
    """Read the layout of a model with all its parts; without layers if the tables are unreadable.

    None if a part does not exist or cannot be read.
    """
    try:
        header = read_header(path)
    except OSError:
        return None
    except ValueError:
        try:
            return ModelLayout(sum(os.stat(part).st_size for part in parts_of(path)))
        except OSError:
            return None
    layers: dict[int, int] = {}
    output = 0
    for tensor in header.tensors:
        if block := _BLOCK.match(tensor.name):
            layers[int(block[1])] = layers.get(int(block[1]), 0) + tensor.size
        elif _OUTPUT.match(tensor.name):
            output += tensor.size
    return ModelLayout(header.size, tuple(layers[number] for number in sorted(layers)), output)


def read_header(path: str) -> ModelHeader:
    """Read the headers of a model's files, and nothing of its weights.

    Raises ``OSError`` for a part that cannot be read, and ``ValueError`` for one that is no GGUF
    file.
    """
    budget = HeaderBudget()
    return joined([_read_file(part, budget) for part in parts_of(path)])


def _read_file(path: str, budget: HeaderBudget) -> ModelHeader:
    # Not mapped: another process may cut the file off, and the kernel would then end this one.
    with open_foreign(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = b""

        def beginning(length: int) -> tuple[bytes, int]:
            nonlocal data
            data += file.read(length - len(data))
            return data, size

        return read_growing(beginning, budget)
