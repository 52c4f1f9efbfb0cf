"""The header of a GGUF file can claim anything: what is kept of it has a bound in any case."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gguf_files import write_gguf

from tsuku_llm.launch.memory import model_header
from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.model_header import (
    HeaderBudget,
    ModelHeader,
    NotGguf,
    ShortHeader,
    parse_header,
    parse_keys,
    parts_of,
    read_growing,
)

SMALL = {"values": 12, "tensors": 5, "bytes of names": 200, "texts": 30}
"""A budget that small files use up."""

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def small_budget() -> HeaderBudget:
    budget = HeaderBudget()
    budget.left = dict(SMALL)
    return budget


def kept(header: ModelHeader) -> dict[str, int]:
    """Count what a header holds on to."""
    names = [*header.values, *header.arrays, *(tensor.name for tensor in header.tensors)]
    names += [value for value in header.values.values() if isinstance(value, str)]
    numbers = sum(map(len, header.arrays.values()))
    return {
        "values": len(header.values) + len(header.arrays) + numbers,
        "tensors": len(header.tensors),
        # A byte that is not UTF-8 becomes one letter.
        "bytes of names": sum(map(len, names)),
    }


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


COUNTS = st.integers(0, 40) | st.sampled_from([1 << 16, 1 << 22, 1 << 32, 1 << 63, (1 << 64) - 1])
KEYS = st.binary(max_size=9).map(text) | COUNTS.map(lambda count: struct.pack("<Q", count))
SINGLE = st.sampled_from(sorted(SIZES)).map(
    lambda kind: struct.pack("<I", kind) + bytes(SIZES[kind])
)
TEXT_VALUES = st.binary(max_size=30).map(lambda data: struct.pack("<I", 8) + text(data))
NUMBERS = st.tuples(st.sampled_from([*SIZES, 8, 9, 77]), COUNTS, st.binary(max_size=99)).map(
    lambda each: struct.pack("<IIQ", 9, each[0], each[1]) + each[2]
)
ENTRIES = st.tuples(KEYS, SINGLE | TEXT_VALUES | NUMBERS).map(b"".join)
TENSORS = st.tuples(KEYS, st.integers(0, 9), st.binary(max_size=60)).map(
    lambda each: each[0] + struct.pack("<I", each[1]) + each[2]
)
HEADERS = st.builds(
    lambda tensors, keys, entries, rest: (
        struct.pack("<4sIQQ", b"GGUF", 3, tensors, keys) + b"".join(entries) + b"".join(rest)
    ),
    COUNTS,
    COUNTS,
    st.lists(ENTRIES, max_size=20),
    st.lists(TENSORS, max_size=9),
)


@given(HEADERS, st.integers(0, 1 << 64))
def test_N06_never_more_is_kept_than_the_budget_has(data: bytes, size: int) -> None:
    budget = small_budget()
    try:
        header = parse_header(data, size, budget)
    except (NotGguf, ShortHeader):
        return
    for what, count in kept(header).items():
        assert count <= SMALL[what]


@given(HEADERS)
def test_N06_the_first_keys_of_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        values, tensors = parse_keys(data)
    except NotGguf:
        return
    assert len(values) <= 1 << 17
    assert tensors <= 1 << 16


def header_of(keys: bytes, count: int, tensors: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, count) + keys


ZEROS = b"".join(text(b"%d" % number) + struct.pack("<IB", 0, 0) for number in range(20))
CLAIMS = {
    "keys": header_of(ZEROS, 20),
    "arrays": header_of((text(b"k") + struct.pack("<IIQ", 9, 0, 4) + bytes(4)) * 4, 4),
    "tensors": header_of(b"", 0, 6),
    "names": header_of(text(b"k" * 201) + struct.pack("<IB", 0, 0), 1),
    "text": header_of(text(b"k") + struct.pack("<I", 8) + text(b"v" * 200), 1),
    "vocabulary": header_of(text(b"k") + struct.pack("<IIQ", 9, 8, 31) + text(b"") * 31, 1),
    "two vocabularies": header_of(
        b"".join(text(b"%d" % n) + struct.pack("<IIQ", 9, 8, 16) + text(b"") * 16 for n in (1, 2)),
        2,
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_N06_more_than_the_budget_has_is_no_model(claim: str) -> None:
    with pytest.raises(NotGguf, match="than a model has"):
        parse_header(CLAIMS[claim], 1 << 30, small_budget())
    # The same bytes are a header for a model's budget, or end too early.
    try:
        parse_header(CLAIMS[claim], 1 << 30, HeaderBudget())
    except ShortHeader:
        assert claim == "tensors"


@pytest.mark.parametrize(
    ("tensors", "keys"),
    [(1 << 22, 1), (1, 1 << 22), ((1 << 16) + 1, 0), (0, (1 << 16) + 1), (1 << 63, 1 << 63)],
)
def test_N06_a_sparse_file_that_claims_millions_is_refused_at_once(
    tensors: int, keys: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, tensors, keys))
        file.truncate(1 << 33)
    with pytest.raises(NotGguf):
        read_header(str(path))


def test_N06_all_parts_of_a_model_have_one_budget(tmp_path: Path) -> None:
    part = write_gguf(tmp_path / "m-00001-of-00003.gguf", {f"blk.{n}.a": 32 for n in range(2)})
    data, size = part.read_bytes(), part.stat().st_size
    budget = small_budget()
    for _ in range(2):
        read_growing(lambda length: (data[:length], size), budget)
    with pytest.raises(NotGguf, match="than a model has"):
        read_growing(lambda length: (data[:length], size), budget)


def test_N06_a_name_of_many_thousand_parts_is_one_file() -> None:
    assert len(parts_of("m-00001-of-01000.gguf")) == 1000
    assert parts_of("m-00001-of-99999.gguf") == ("m-00001-of-99999.gguf",)


def test_N06_a_header_is_asked_for_in_growing_pieces_and_never_for_more_than_its_limit() -> None:
    asked: list[int] = []
    endless = header_of(text(b"k") + struct.pack("<IQ", 8, 1 << 40), 1)

    def beginning(length: int) -> tuple[bytes, int]:
        asked.append(length)
        return endless.ljust(length, b"\0"), 1 << 50

    with pytest.raises(NotGguf, match="does not end"):
        read_growing(beginning, HeaderBudget())
    assert asked == [1 << 20, 4 << 20, 16 << 20, 64 << 20]
    assert asked[-1] == model_header.LARGEST_HEADER


def test_N06_a_file_that_shrinks_meanwhile_ends_the_reading() -> None:
    data = header_of(text(b"k") + struct.pack("<IQ", 8, 1 << 30), 1)
    with pytest.raises(NotGguf, match="does not end"):
        read_growing(lambda length: (data[:length], 1 << 50), HeaderBudget())


def test_what_was_tried_with_too_few_bytes_does_not_count() -> None:
    """A vocabulary longer than the first piece is not counted again in the next one."""
    entry = text(b"k" * 1000)
    data = header_of(text(b"k") + struct.pack("<IIQ", 9, 8, 3000) + entry * 3000, 1)
    assert len(data) > 1 << 21
    budget = HeaderBudget()
    budget.left["texts"] = 3000
    assert read_growing(lambda length: (data[:length], len(data)), budget).size == len(data)
    assert budget.left["texts"] == 0


@pytest.mark.parametrize("alignment", [0, 1 << 31, (1 << 32) - 1])
def test_N06_an_alignment_of_others_is_a_number_or_no_model(alignment: int) -> None:
    keys = text(b"general.alignment") + struct.pack("<II", 4, alignment)
    try:
        header = parse_header(header_of(keys, 1), 1 << 40, HeaderBudget())
    except NotGguf:
        assert not alignment
    else:
        assert header.values["general.alignment"] == alignment
    for kind, value in ((8, text(b"32")), (6, struct.pack("<f", float("nan")))):
        keys = text(b"general.alignment") + struct.pack("<I", kind) + value
        with pytest.raises(NotGguf, match="alignment"):
            parse_header(header_of(keys, 1), 1 << 40, HeaderBudget())
