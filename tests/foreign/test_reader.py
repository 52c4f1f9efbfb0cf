"""The one reader of what others made: pipes, devices, the kernel's files, giants, odd JSON."""

from __future__ import annotations

import gc
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tsuku_llm.ground import foreign
from tsuku_llm.ground.foreign import (
    kernel_text,
    open_foreign,
    parse_json,
    parse_object,
    read_answer,
    read_beginning,
    read_foreign,
)

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="files of Linux")


def test_a_plain_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "file", tmp_path / "link"):
        assert read_foreign(path, 5) == b"12345"
        assert read_beginning(path, 3) == b"123"
        with open_foreign(path) as file:
            assert file.read() == b"12345"
    (tmp_path / "empty").touch()
    assert read_foreign(tmp_path / "empty", 0) == b""


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "x")
    return folder / "x"


def folder(folder: Path) -> Path:
    (folder / "x").mkdir()
    return folder / "x"


def link_to(target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x").symlink_to(target)
        return folder / "x"

    return make


def giant(folder: Path) -> Path:
    with (folder / "x").open("wb") as file:
        file.truncate(1 << 40)
    return folder / "x"


ODD_FILES: dict[str, Callable[[Path], Path]] = {
    "pipe": fifo,
    "folder": folder,
    "missing": lambda folder: folder / "x",
    "link to nothing": link_to("nothing"),
    "link to itself": link_to("x"),
    "zero": link_to("/dev/zero"),
    "terminal": link_to("/dev/ptmx"),
    "proc": link_to("/proc/self/status"),
    "kernel log": link_to("/proc/kmsg"),
    "memory": link_to("/proc/self/mem"),
    "sys": link_to("/sys/kernel/uevent_seqnum"),
    "NUL in its name": lambda folder: folder / "a\0b",
    "lone surrogate in its name": lambda folder: folder / "\ud800",
    "long name": lambda folder: folder / ("x" * 5000),
}


@LINUX
@pytest.mark.parametrize("odd", ODD_FILES)
@pytest.mark.parametrize("read", [read_foreign, read_beginning])
def test_N06_a_file_that_is_none_is_an_error_of_the_system(
    read: Callable[[Path, int], bytes], odd: str, tmp_path: Path
) -> None:
    path = ODD_FILES[odd](tmp_path)
    with pytest.raises(OSError):  # noqa: PT011 - each system has its own words
        read(path, 100)
    with pytest.raises(OSError):  # noqa: PT011 - each system has its own words
        open_foreign(path)


def test_N06_a_giant_is_refused_and_its_beginning_is_read(tmp_path: Path) -> None:
    path = giant(tmp_path)
    with pytest.raises(OSError, match="larger than 1,000 bytes"):
        read_foreign(path, 1000)
    assert read_beginning(path, 1000) == bytes(1000)


@LINUX
def test_N06_a_file_that_is_replaced_by_a_pipe_meanwhile_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    real = os.open

    def replaced(name: Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return real(name, flags)

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(OSError, match="not a regular file"):
        read_foreign(path, 10)


def test_N06_a_slow_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "SECONDS", -1.0)
    (tmp_path / "file").write_bytes(b"xx")
    with pytest.raises(TimeoutError):
        read_foreign(tmp_path / "file", 10)


@LINUX
def test_the_kernels_own_files_are_read_up_to_a_limit() -> None:
    assert kernel_text("/proc/self/stat").startswith(f"{os.getpid()} ")
    assert foreign.read_kernel("/dev/zero", 10) == bytes(10)


def test_N06_an_answer_without_an_end_is_cut_off() -> None:
    assert read_answer(io.BytesIO(b"12345"), 5) == b"12345"
    with (
        Path("/dev/zero").open("rb") as endless,
        pytest.raises(OSError, match="more than 99 bytes"),
    ):
        read_answer(endless, 99)


ODD_JSON: dict[str, bytes] = {
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 500 + b"1" + b"}" * 500,
    "33 levels": b"[" * 34 + b"]" * 34,
    "lone surrogate": b'{"a": "\\ud800"}',
    "lone surrogate in a key": b'{"\\uDFFF": 1}',
    "bytes of a surrogate": b'"\xed\xa0\x80"',
    "latin-1": b'"\xe9"',
    "NaN": b"[NaN]",
    "infinity": b"[-Infinity]",
    "1e999": b'{"size": 1e999}',
    "-1e999": b'{"size": -1e999}',
    "long integer": b"9" * 100_000,
    "repeated key": b'{"a": 1, "a": 2}',
    "cut off": b'{"a": ',
    "two values": b"{} {}",
    "nothing": b"",
    "NULs": bytes(1000),
}


@pytest.mark.parametrize("odd", ODD_JSON)
def test_N06_json_that_cannot_be_used_is_a_value_error(odd: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the reason depends on the version of Python
        parse_json(ODD_JSON[odd])
    with pytest.raises(ValueError):  # noqa: PT011 - the reason depends on the version of Python
        parse_object(ODD_JSON[odd])


@pytest.mark.parametrize("data", [b"null", b"[]", b"1", b'"text"', b"true"])
def test_N06_another_value_in_the_place_of_an_object_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        parse_object(data)


def test_usual_json_is_decoded_as_ever() -> None:
    document = {"a": [1, -(2**63), 2**64 - 1, 1.5, 1e308, None, True, "é\U0001f600", {"": []}]}
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False)):
        assert parse_json(text) == parse_json(text.encode()) == document


class _Deep:
    """Garbage whose finalizer needs more frames than a decoder leaves at its deepest level."""

    def __del__(self) -> None:
        def descend(levels: int) -> None:
            if levels:
                descend(levels - 1)

        descend(100)


def test_no_finalizer_runs_while_a_decoder_is_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    before = gc.get_threshold()
    try:
        for allocations in range(500, 1100, 20):
            gc.collect()
            garbage = _Deep()
            garbage.itself = garbage  # type: ignore[attr-defined]
            del garbage
            gc.set_threshold(allocations)
            with pytest.raises(ValueError, match="nested too deep"):
                parse_json("[" * 100_000)
            assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
    assert not lost
