"""The size of each layer of a model, read from the table of tensors in its GGUF files.

A server keeps the input embeddings in main memory, also if every layer is on the GPU. So only
the sizes of the layers say how much memory of the GPU a number of layers needs. The format is
described in ggml's docs/gguf.md; a file that differs is no error, its layers are unknown.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LARGEST_HEADER = 256 << 20
"""Bytes that are read of one file; the largest vocabularies make headers of about 20 MB."""

_MOST = 1 << 22
"""Tensors, keys or items of an array that are read; more are no model."""

# Bytes of each value type of a key: uint8, int8, uint16, int16, uint32, int32, float32, bool.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32

_PART = re.compile(r"-0*1-of-(\d{1,5})\.gguf$")
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
    parts = [path]
    # The user names the first part, and the server finds the others by their numbers.
    if found := _PART.search(path):
        stem, count = path[: found.start()], found[1]
        parts = [f"{stem}-{n:0{len(count)}}-of-{count}.gguf" for n in range(1, int(count) + 1)]
    total = 0
    try:
        found_parts = [os.stat(part) for part in parts]  # noqa: PTH116
        # Opening a pipe would wait for a writer.
        if not all(stat.S_ISREG(each.st_mode) for each in found_parts):
            return None
        total = sum(each.st_size for each in found_parts)
        tensors = [each for part in parts for each in _tensors(part)]
    except OSError:
        return None
    except (ValueError, struct.error, OverflowError):
        return ModelLayout(total)
    return _layout(total, tensors)


def _layout(total: int, tensors: Sequence[tuple[str, int]]) -> ModelLayout:
    layers: dict[int, int] = {}
    output = 0
    for name, size in tensors:
        if block := _BLOCK.match(name):
            layers[int(block[1])] = layers.get(int(block[1]), 0) + size
        elif _OUTPUT.match(name):
            output += size
    return ModelLayout(total, tuple(layers[number] for number in sorted(layers)), output)


def _tensors(path: str) -> Iterator[tuple[str, int]]:
    """Yield the name and size of each tensor of one file. Raises ValueError, struct.error."""
    with open(path, "rb") as file:  # noqa: PTH123
        size = os.fstat(file.fileno()).st_size
        if size < 24:  # noqa: PLR2004 - the fixed part of a header
            raise ValueError("no GGUF")
        # Mapped: only the pages of the header are read, however large the model is.
        with mmap.mmap(file.fileno(), min(size, _LARGEST_HEADER), access=mmap.ACCESS_READ) as data:
            yield from _table(data, size)


def _table(data: mmap.mmap, size: int) -> Iterator[tuple[str, int]]:
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
    if magic != b"GGUF" or not 2 <= version < 1 << 16 or max(tensors, keys) > _MOST:  # noqa: PLR2004
        raise ValueError("no GGUF of a known version")
    at, alignment = 24, _ALIGNMENT
    for _ in range(keys):
        key, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        if key == "general.alignment" and kind == 4:  # noqa: PLR2004 - uint32
            (alignment,) = struct.unpack_from("<I", data, at + 4)
        at = _after(data, at + 4, kind)
    found: list[tuple[int, str]] = []
    for _ in range(tensors):
        name, at = _text(data, at)
        (dimensions,) = struct.unpack_from("<I", data, at)
        if dimensions > 8:  # noqa: PLR2004 - ggml has four
            raise ValueError("a tensor of too many dimensions")
        at += 4 + 8 * dimensions + 4
        (offset,) = struct.unpack_from("<Q", data, at)
        at += 8
        found.append((offset, name))
    # The data begin at the next multiple of the alignment; a tensor ends where the next begins.
    begin = -(-at // max(1, alignment)) * max(1, alignment)
    ordered = sorted(found)
    ends = [offset for offset, _ in ordered[1:]] + [size - begin]
    for (offset, name), end in zip(ordered, ends, strict=False):
        if end < offset:
            raise ValueError("a tensor outside the file")
        yield name, end - offset


def _text(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise ValueError("a text outside the header")
    return data[at + 8 : end].decode("utf-8", "replace"), end


def _after(data: mmap.mmap, at: int, kind: int) -> int:
    """Return the place behind a value of a key."""
    if kind in _SIZES:
        return at + _SIZES[kind]
    if kind == _STRING:
        (length,) = struct.unpack_from("<Q", data, at)
        return int(at + 8 + length)
    if kind != _ARRAY:
        raise ValueError(f"a value of the unknown type {kind}")
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _SIZES:
        return int(at + _SIZES[inner] * count)
    if inner != _STRING or count > _MOST:
        raise ValueError("an array that no model has")
    # The vocabulary: a quarter of a million texts, whose lengths must be read one by one.
    length_at = struct.Struct("<Q").unpack_from
    for _ in range(count):
        at += 8 + length_at(data, at)[0]
    return at
