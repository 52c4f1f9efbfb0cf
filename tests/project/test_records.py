"""The one reader of our JSON files: exact types, one table per file, and refusals in words."""

from enum import Enum
from typing import NamedTuple

import pytest

from tsuku_llm.ground import records


class Point(NamedTuple):
    x: int
    name: str | None = None


class Colour(str, Enum):
    RED = "red"


POINT = records.record(Point, {"x": records.count, "name": records.optional(records.text)})
ANY = records.anything


def test_named_tuples_come_back_from_what_is_stored() -> None:
    points = (Point(1), Point(2, "b"))
    stored = records.encode({"points": points, "more": {"one": points[0]}})
    read = records.fields({"points": records.many(POINT), "more": records.named(POINT)})
    assert records.parse(stored, read) == {"points": points, "more": {"one": points[0]}}


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b'{"x": 1, "x": 2}', b'{"x": NaN}', b'{"x": Infinity}', b"[" * 200_000],
)
def test_C10_what_two_readers_could_read_differently_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        records.parse(data, ANY)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (records.count, True),
        (records.count, -1),
        (records.count, 1 << 54),
        (records.count, 1.0),
        (records.flag, 1),
        (records.text, None),
        (records.digest, "0" * 64 + "\n"),
        (records.many(records.text), "ab"),
        (records.many(records.text), ["a", 1]),
        (records.named(records.text), {"a": None}),
        (records.one_of(Colour), "blue"),
        (records.one_of(Colour), ["red"]),
        (POINT, [1, "a"]),
        (POINT, {"name": "a"}),
    ],
)
def test_C10_a_value_of_another_kind_is_refused_by_its_name(
    read: records.Reader[object], value: object
) -> None:
    with pytest.raises(ValueError, match=r"^(it|x) is "):
        read(value, "it")


def test_a_file_of_another_format_is_refused_and_an_older_one_is_completed() -> None:
    read = records.fields({"a": records.text, "b": records.text}, format=2, since={"b": "new"})
    assert read({"format": 2, "a": "x", "c": 3}, "it") == {"a": "x", "b": "new"}
    assert read({"format": 2, "a": "x", "b": "y"}, "it") == {"a": "x", "b": "y"}
    with pytest.raises(ValueError, match="format is 1, this version reads 2"):
        read({"format": 1, "a": "x"}, "it")
