"""What servers and loaders say when they do not start, and what is made of it."""

import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from tsuku_llm.launch import diagnose
from tsuku_llm.launch.diagnosis import _TABLE

EXCERPTS = Path(__file__).with_name("last_words.txt").read_text(encoding="utf-8")


class Row(NamedTuple):
    """One excerpt: what it is, how the server ended, and what the cause must name."""

    slug: str
    code: int
    named: str
    tail: str


def row_of(record: str) -> Row:
    heading, _, tail = record.partition("\n")
    slug, ended, named = heading.split(" | ")
    return Row(slug, exit_code(ended), named, tail)


def exit_code(ended: str) -> int:
    return -signal.Signals[ended] if ended.startswith("SIG") else int(ended, 0)


ROWS = [row_of(record) for record in EXCERPTS.split("\n== ")[1:]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_X14_a_failed_start_has_a_cause(row: Row) -> None:
    diagnosis = diagnose(row.code, f"0.00.001 I srv: starting\n{row.tail}srv: exiting\n")
    assert diagnosis is not None
    assert diagnosis.slug == row.slug
    assert row.named in diagnosis.cause
    assert diagnosis.fix
    assert "{" not in diagnosis.cause + diagnosis.fix


def test_every_row_of_the_table_has_an_excerpt() -> None:
    tails = [row.tail for row in ROWS]
    assert [row for row in _TABLE if not any(map(row.pattern.search, tails))] == []


MLOCK = """\
warning: failed to mlock 8388608-byte buffer (after previously locking 0 bytes): \
Cannot allocate memory
"""


@pytest.mark.parametrize("tail", ["error: invalid argument: --bogus\n", MLOCK, ""])
def test_what_is_not_known_is_not_made_up(tail: str) -> None:
    assert diagnose(1, tail) is None


def test_a_missing_library_comes_with_the_package_that_has_it() -> None:
    tail = "x: error while loading shared libraries: {}: cannot open shared object file\n"
    for library, package in (
        ("libvulkan.so.1", "libvulkan1"),
        ("libgomp.so.1", "libgomp1"),
        ("libcudart.so.13", "companion"),
        ("libcuda.so.1", "NVIDIA's driver"),
        ("libodd.so.7", "libodd.so.7"),
    ):
        diagnosis = diagnose(127, tail.format(library))
        assert diagnosis is not None
        assert package in diagnosis.fix


def test_nt_statuses_may_come_signed() -> None:
    assert diagnose(0xC0000135 - (1 << 32), "") == diagnose(0xC0000135, "")


def test_the_cpu_is_offered_to_a_gpu_build_only() -> None:
    diagnosis = diagnose(1, "vk::Queue::submit: ErrorDeviceLost\n")
    assert diagnosis is not None
    assert diagnosis.hint("vulkan").endswith("tsuku-llm config set llm.backend cpu")
    assert "config set" not in diagnosis.hint("cpu")
