"""The header of a GGUF file: what a model says of itself, and its table of tensors. Pure.

The format is described in ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

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
_FIRST_KEY = 24

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
    values: dict[str, Number | str] = {}
    tensors = 0
    # The data end within a key.
    with suppress(struct.error, OverflowError, ShortHeader):
        tensors, keys = _counts(data)
        budget = HeaderBudget()
        at = _FIRST_KEY
        for _ in range(keys):
            key, at = _text(data, at, budget)
            at = _value(data, at, key, values, {}, budget)
    return values, tensors


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
    try:
        return _parsed(data, size, budget)
    # A number of 64 bits that no file has is an offset that Python's buffers do not take.
    except (struct.error, OverflowError) as error:
        raise ShortHeader("the header is longer") from error


def _counts(data: bytes) -> tuple[int, int]:
    """Return how many tensors and how many keys a file has."""
    magic = bytes(data[:4])
    if not b"GGUF".startswith(magic):
        raise NotGguf("no GGUF")
    _, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
    if not 2 <= version < 1 << 16 or max(tensors, keys) > _MOST:
        raise NotGguf("no GGUF of a known version")
    return tensors, keys


def _parsed(data: bytes, size: int, budget: HeaderBudget) -> ModelHeader:
    tensors, keys = _counts(data)
    values: dict[str, Number | str] = {}
    arrays: dict[str, tuple[Number, ...]] = {}
    at = _FIRST_KEY
    for _ in range(keys):
        key, at = _text(data, at, budget)
        at = _value(data, at, key, values, arrays, budget)
    # A long text or array at the end was skipped, and not read.
    if at > len(data):
        raise ShortHeader("a value outside the header")
    budget.take("tensors", tensors)
    found: list[tuple[int, str, tuple[int, ...]]] = []
    for _ in range(tensors):
        name, at = _text(data, at, budget)
        (dimensions,) = struct.unpack_from("<I", data, at)
        if dimensions > 4:
            raise NotGguf("a tensor of too many dimensions")
        shape = struct.unpack_from(f"<{dimensions}Q", data, at + 4)
        at += 4 + 8 * dimensions + 4
        (offset,) = struct.unpack_from("<Q", data, at)
        at += 8
        found.append((offset, name, shape))
    # The data begin at the next multiple of the alignment; a tensor ends where the next begins.
    alignment = values.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise NotGguf("an alignment that is no number")
    begin = -(-at // alignment) * alignment
    ordered = sorted(found)
    ends = [offset for offset, _, _ in ordered[1:]] + [size - begin]
    table = []
    for (offset, name, shape), end in zip(ordered, ends, strict=False):
        if end < offset:
            raise CutOff("it ends before its last tensor")
        table.append(Tensor(name, shape, end - offset))
    return ModelHeader(size, values, arrays, tuple(table))


def _value(
    data: bytes,
    at: int,
    key: str,
    values: dict[str, Number | str],
    arrays: dict[str, tuple[Number, ...]],
    budget: HeaderBudget,
) -> int:
    """Read the type and the value of a key, and return the place behind it."""
    (kind,) = struct.unpack_from("<I", data, at)
    at += 4
    budget.take("values", 1)
    if kind in _FORMATS:
        (values[key],) = struct.unpack_from("<" + _FORMATS[kind], data, at)
        return int(at + struct.calcsize(_FORMATS[kind]))
    if kind == _STRING:
        (length,) = struct.unpack_from("<Q", data, at)
        if length > _LONGEST:
            return int(at + 8 + length)
        values[key], at = _text(data, at, budget)
        return at
    if kind == _ARRAY:
        return _array(data, at, key, arrays, budget)
    raise NotGguf(f"a value of the unknown type {kind}")


def _text(data: bytes, at: int, budget: HeaderBudget) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise ShortHeader("a text outside the header")
    budget.take("bytes of names", length)
    return data[at + 8 : end].decode("utf-8", "replace"), end


def _array(
    data: bytes,
    at: int,
    key: str,
    arrays: dict[str, tuple[Number, ...]],
    budget: HeaderBudget,
) -> int:
    """Keep an array of numbers, skip any other, and return the place behind it."""
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _FORMATS:
        if count <= _KEPT:
            budget.take("values", count)
            arrays[key] = struct.unpack_from(f"<{count}{_FORMATS[inner]}", data, at)
        return int(at + struct.calcsize(_FORMATS[inner]) * count)
    if inner != _STRING:
        raise NotGguf("an array that no model has")
    budget.take("texts", count)
    # The vocabulary: a quarter of a million texts, whose lengths must be read one by one.
    length_at = struct.Struct("<Q").unpack_from
    for _ in range(count):
        at += 8 + length_at(data, at)[0]
    return at
