"""Counting what a reader does, so that its growth can be compared without a clock."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Copied(bytes):
    """Bytes that count how many of them are copied out by slices, here and from the slices."""

    total: list[int]

    def __new__(cls, data: bytes, total: list[int]) -> "Copied":
        made = super().__new__(cls, data)
        made.total = total
        return made

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, bytes):
            self.total[0] += len(found)
            return Copied(found, self.total)
        return found


class CopiedFile:
    """An open file whose bytes count what is copied of them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.total = [0]

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else self._at + size
        part = self._data[self._at : end]
        self._at += len(part)
        self.total[0] += len(part)
        return Copied(part, self.total)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (len(self._data) if whence == 2 else self._at if whence else 0)
        return self._at


def steps(work: Callable[[], object]) -> int:
    """How many bytecodes and calls ``work`` takes: the same number at each run."""
    count = 0

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal count
        count += 1
        frame.f_trace_opcodes = True
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def grows_linearly(cost: Callable[[int], int], size: int, factor: float = 4) -> bool:
    """Whether ``factor`` times the size costs at most a quarter more than that many times."""
    cost(size)  # modules that are loaded at the first use are not counted
    return cost(int(size * factor)) <= 1.25 * factor * cost(size)
