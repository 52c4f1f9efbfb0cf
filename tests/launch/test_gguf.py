"""The table of tensors in a model's file: the bytes of its layers, and what is no table."""

import os
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gguf_files import write_gguf

from tsuku_llm.launch.memory.gguf import ModelLayout, read_layout

TENSORS = {
    "token_embd.weight": 64,
    "blk.0.a": 32,
    "blk.1.a": 96,
    "output_norm.w": 32,
    "output.w": 64,
}


def test_the_layers_and_the_output_are_added_up(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", TENSORS)
    found = read_layout(str(path))
    assert found == ModelLayout(path.stat().st_size, (32, 96), 96)


def test_the_parts_of_a_model_are_one_model(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", {"blk.0.a": 32})
    second = write_gguf(tmp_path / "m-00002-of-00002.gguf", {"blk.0.b": 32, "blk.1.a": 64})
    total = first.stat().st_size + second.stat().st_size
    assert read_layout(str(first)) == ModelLayout(total, (64, 64), 0)
    second.unlink()
    assert read_layout(str(first)) is None


@pytest.mark.parametrize(
    ("layers", "size"), [(None, 224), (0, 0), (1, 96), (2, 192), (3, 224), (99, 224)]
)
def test_the_last_layers_come_first_to_the_gpu(layers: int | None, size: int) -> None:
    """``-ngl 1`` is the output alone, ``-ngl 2`` the output and the last layer."""
    assert ModelLayout(288, (32, 96), 96).on_gpu(layers) == size


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"<html>" + b" " * 100,
        struct.pack("<4sIQQ", b"GGUF", 1, 0, 0) + bytes(8),
        struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0) + bytes(8),
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, (1 << 64) - 1) + bytes(8),
        struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 9, 1 << 62) + bytes(8),
        struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 8, 1 << 21) + bytes(8),
    ],
)
def test_a_file_without_a_table_has_only_a_size(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    assert read_layout(str(path)) == ModelLayout(len(data))


def test_the_size_of_a_model_is_that_of_all_its_parts(tmp_path: Path) -> None:
    """Also of files whose tables cannot be read."""
    for number in (1, 2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(b"x" * number)
    assert read_layout(str(tmp_path / "m-00001-of-00003.gguf")) == ModelLayout(6)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_missing_model_has_no_layout(tmp_path: Path) -> None:
    assert read_layout(str(tmp_path / "none.gguf")) is None
    assert read_layout(str(tmp_path)) is None
    os.mkfifo(tmp_path / "pipe.gguf")
    assert read_layout(str(tmp_path / "pipe.gguf")) is None


@given(junk=st.binary(max_size=400), at=st.integers(0, 400))
def test_any_bytes_are_read_or_refused(
    junk: bytes, at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    good = write_gguf(path, TENSORS).read_bytes()
    path.write_bytes(good[:at] + junk + good[at + len(junk) :])
    found = read_layout(str(path))
    assert found
    assert sum(found.layers) + found.output <= found.total
