"""The header of a GGUF file: what a model says of itself, and its table of tensors. Pure.

The format is described in ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

LARGEST_HEADER = 64 << 20
"""Bytes that are read of one file; the largest vocabularies make headers of about 20 MB."""

_FIRST = 1 << 20
"""Bytes that are read at first; each time that they are too few, four times as many."""

_MOST = 1 << 16
"""Keys, and tensors, that a model has at most; the largest one of 2026 has about 2,000 tensors."""

_KEPT = 1 << 12
"""Items of an array of numbers that is kept: upstream has at most 512 layers."""

_LONGEST = 1 << 10
"""Bytes of a text that is kept; templates and licences are not."""

_MOST_PARTS = 1000
"""Files of one model; the largest split models have about a hundred."""

# How struct reads each type of a value: uint8, int8, uint16, int16, uint32, int32, float32, bool,
# uint64, int64, float64.
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_FORMATS |= {12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32

_PART = re.compile(r"-0*1-of-(\d{1,5})\.gguf$")

_ANY_PART = re.compile(r"-(\d{1,5})-of-(\d{1,5})\.gguf$")

Number = int | float


class HeaderBudget:
    """What may be kept and read of all headers of one model, whatever they say.

    A file of some kilobytes can claim any number of everything, and a sparse file can have it.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = {
            "values": 1 << 17,  # keys, and numbers of arrays
            "tensors": _MOST,
            "bytes of names": 8 << 20,  # and of texts
            "texts": 1 << 22,  # of arrays, which are only skipped: a vocabulary has 0.3 million
        }

    def take(self, what: str, count: int) -> None:
        """Use a part of the budget. Raises ``NotGguf`` when it is used up."""
        self.left[what] -= count
        if self.left[what] < 0:
            raise NotGguf(f"more {what} than a model has")


class NotGguf(ValueError):
    """Data that are no header of a known version."""


class CutOff(NotGguf):
    """The beginning of a file of a known version, whose end is missing."""


class ShortHeader(ValueError):
    """The beginning of a header: more bytes of the file are needed."""


class Tensor(NamedTuple):
    """A tensor of a file: its name, its dimensions and its size in bytes."""

    name: str
    shape: tuple[int, ...]
    size: int


class ModelHeader(NamedTuple):
    """The header of a model, joined from all its parts; ``size`` is that of the files, in bytes.

    ``values`` are the keys with one value, ``arrays`` those with several numbers. Long texts and
    lists of texts, such as the vocabulary, are left out.
    """

    size: int
    values: Mapping[str, Number | str]
    arrays: Mapping[str, tuple[Number, ...]]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """The name of the model's architecture, with which most of its keys begin."""
        return str(self.values.get("general.architecture", ""))

    @property
    def numbers(self) -> int:
        """How many weights the model has."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def number(self, key: str, default: int = 0) -> int:
        """Return the whole number of an architecture's key, or ``default``."""
        value = self.values.get(f"{self.architecture}.{key}")
        return int(value) if isinstance(value, (int, float)) and abs(value) < 1 << 63 else default

    def of_layer(self, key: str, layer: int, default: int = 0) -> int:
        """Return the number of a key that may have another value for each layer."""
        several = self.arrays.get(f"{self.architecture}.{key}")
        if several is None:
            return self.number(key, default)
        value = several[layer] if layer < len(several) else default
        return int(value) if abs(value) < 1 << 63 else default


def parts_of(name: str) -> tuple[str, ...]:
    """Return the paths or URLs of all parts of a model.

    The user names the first part, and the server finds the others by their numbers.
    """
    path, rest = name, ""
    # A URL may go on with a query, such as "?download=true".
    if "://" in name and (query := re.search("[?#]", name)):
        path, rest = name[: query.start()], name[query.start() :]
    found = _PART.search(path)
    if found is None or int(found[1]) > _MOST_PARTS:
        return (name,)
    stem, count = path[: found.start()], found[1]
    numbers = range(1, int(count) + 1)
    return tuple(f"{stem}-{number:0{len(count)}}-of-{count}.gguf{rest}" for number in numbers)


def first_part(path: str) -> str:
    """Return the path of a model's first part, which the server takes, for that of any part."""
    found = _ANY_PART.search(path)
    if found is None:
        return path
    number = found[1]
    return f"{path[: found.start()]}-{1:0{len(number)}}-of-{found[2]}.gguf"


def joined(headers: Sequence[ModelHeader]) -> ModelHeader:
    """Join the headers of a model's parts: the first one describes the model.

    Raises ``NotGguf`` for a part alone: the server does not load it either.
    """
    first = headers[0].values
    if first.get("split.no"):
        raise NotGguf("it is a later part of a split model: name the first part")
    if (count := first.get("split.count", 0)) not in (0, 1, len(headers)):
        raise NotGguf(
            f"it is one of {count} parts, and its name does not end like -00001-of-00002.gguf"
        )
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    return headers[0]._replace(size=sum(header.size for header in headers), tensors=tensors)


def parse_keys(data: bytes) -> tuple[Mapping[str, Number | str], int]:
    """Return the keys with one value at the beginning of a file, and how many tensors it has.

    They are as many as ``data`` holds: what describes a model comes before its vocabulary.
    Raises ``NotGguf``.
    """
    reader = _Reader(data, HeaderBudget())
    # The data end within a key.
    with suppress(struct.error, OverflowError, ShortHeader):
        reader.read_keys()
    return reader.values, reader.tensors


def read_growing(
    beginning: Callable[[int], tuple[bytes, int]], budget: HeaderBudget
) -> ModelHeader:
    """Read as much of a file as its header needs.

    ``beginning`` returns the first bytes of the file, as many as it is asked for if there are so
    many, and the size of the file. All parts of a model share a ``budget``. Raises ``NotGguf``,
    and the errors of ``beginning``.
    """
    length = _FIRST
    while True:
        data, size = beginning(length)
        before = dict(budget.left)
        try:
            return parse_header(data, size, budget)
        except ShortHeader:
            if len(data) < length or length >= LARGEST_HEADER:
                raise CutOff("its header does not end") from None
        budget.left = before
        length *= 4


def parse_header(data: bytes, size: int, budget: HeaderBudget) -> ModelHeader:
    """Parse the first bytes of a file of ``size`` bytes.

    Raises ``ShortHeader`` if the header is longer than ``data``, and ``NotGguf`` for anything else.
    """
    reader, found = _Reader(data, budget), list[tuple[int, str, tuple[int, ...]]]()
    try:
        reader.read_keys()
        # A long text or array at the end was skipped, and not read.
        if reader.at > len(data):
            raise ShortHeader("a value outside the header")
        budget.take("tensors", reader.tensors)
        for _ in range(reader.tensors):
            name = reader.text(*reader.unpack("Q"))
            (dimensions,) = reader.unpack("I")
            if dimensions > 4:
                raise NotGguf("a tensor of too many dimensions")
            *sides, _, offset = reader.unpack(f"{dimensions}QIQ")
            found.append((offset, name, tuple(sides)))
    # A number of 64 bits that no file has is an offset that Python's buffers do not take.
    except (struct.error, OverflowError) as error:
        raise ShortHeader("the header is longer") from error
    # The data begin at the next multiple of the alignment; a tensor ends where the next begins.
    alignment = reader.values.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise NotGguf("an alignment that is no number")
    begin = -(-reader.at // alignment) * alignment
    ordered = sorted(found)
    ends = [offset for offset, _, _ in ordered[1:]] + [size - begin]
    table = []
    for (offset, name, shape), end in zip(ordered, ends, strict=False):
        if end < offset:
            raise CutOff("it ends before its last tensor")
        table.append(Tensor(name, shape, end - offset))
    return ModelHeader(size, reader.values, reader.arrays, tuple(table))


class _Reader:
    """A reader of the first bytes of a file, in which ``at`` is the place of the next number.

    Its methods raise ``struct.error``, ``OverflowError`` or ``ShortHeader`` where the data end, and
    ``NotGguf``.
    """

    def __init__(self, data: bytes, budget: HeaderBudget) -> None:
        self.at = 0
        self.tensors = 0
        self.values: dict[str, Number | str] = {}
        self.arrays: dict[str, tuple[Number, ...]] = {}
        self._data = data
        self._budget = budget

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """Return the next numbers, by their types as ``struct`` names them."""
        found = struct.unpack_from(f"<{layout}", self._data, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return found

    def text(self, length: int) -> str:
        """Return the next bytes as a text."""
        begin, self.at = self.at, self.at + length
        if self.at > len(self._data):
            raise ShortHeader("a text outside the header")
        self._budget.take("bytes of names", length)
        return self._data[begin : self.at].decode("utf-8", "replace")

    def read_keys(self) -> None:
        """Read how many tensors there are, and the keys, which come before them."""
        if not b"GGUF".startswith(bytes(self._data[:4])):
            raise NotGguf("no GGUF")
        _, version, tensors, keys = self.unpack("4sIQQ")
        if not 2 <= version < 1 << 16 or max(tensors, keys) > _MOST:
            raise NotGguf("no GGUF of a known version")
        self.tensors = tensors
        for _ in range(keys):
            key = self.text(*self.unpack("Q"))
            (kind,) = self.unpack("I")
            self._budget.take("values", 1)
            if kind in _FORMATS:
                (self.values[key],) = self.unpack(_FORMATS[kind])
            elif kind == _ARRAY:
                self._read_array(key)
            elif kind != _STRING:
                raise NotGguf(f"a value of the unknown type {kind}")
            else:
                (length,) = self.unpack("Q")
                if length > _LONGEST:
                    self.at += length
                else:
                    self.values[key] = self.text(length)

    def _read_array(self, key: str) -> None:
        """Keep an array of numbers, and skip any other."""
        inner, count = self.unpack("IQ")
        if inner in _FORMATS:
            if count > _KEPT:
                self.at += struct.calcsize(_FORMATS[inner]) * count
                return
            self._budget.take("values", count)
            self.arrays[key] = self.unpack(f"{count}{_FORMATS[inner]}")
            return
        if inner != _STRING:
            raise NotGguf("an array that no model has")
        self._budget.take("texts", count)
        # The vocabulary: a quarter of a million texts, whose lengths must be read one by one.
        data, at, length_at = self._data, self.at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
        self.at = at
