"""The GPUs of HIP libraries, from their offload bundles."""

import contextlib
import hashlib
import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fatbins import windows_library
from support.offload_bundles import (
    MAGIC,
    ZLIB,
    ZSTD,
    bundle,
    compressed,
    framed,
    hip_library,
    packed_zstd,
)

from tsuku_publish.archives.binaries import needs_of
from tsuku_publish.archives.contents import Contents
from tsuku_publish.archives.offload import gfx_targets
from tsuku_publish.errors import PublishError
from tsuku_publish.release_files.documents import requirements

ONE = bundle("gfx90a:xnack-", "gfx1030", "gfx1100")
OTHER = bundle("gfx1030", "gfx1100", "gfx1201", size=4096)


def read(section: bytes) -> tuple[str, ...] | None:
    return gfx_targets(io.BytesIO(section), 0, len(section))


def test_the_targets_of_a_bundle_without_their_features() -> None:
    assert read(ONE) == ("gfx90a", "gfx1030", "gfx1100")


def test_only_what_every_bundle_has_counts() -> None:
    assert read(ONE + bytes(4096 - len(ONE) % 4096) + OTHER) == ("gfx1030", "gfx1100")
    assert read(ONE + bytes(8) + OTHER + bytes(24)) == ("gfx1030", "gfx1100")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("method", [ZLIB, ZSTD])
def test_a_compressed_bundle(version: int, method: int) -> None:
    packed = compressed(ONE, version, method)
    assert read(packed + bytes(8) + OTHER) == ("gfx1030", "gfx1100")
    assert read(OTHER + packed) == ("gfx1030", "gfx1100")
    # A method that clang gets later: the rule's list stays.
    assert read(OTHER + framed(b"later", version, method=2)) is None


@pytest.mark.parametrize("method", [ZLIB, ZSTD])
def test_code_that_hardly_packs_is_no_obstacle(method: int) -> None:
    """The first block of such a stream has more bytes than the table may have."""
    code = hashlib.shake_128(b"code").digest(1 << 20)
    whole = ONE[:4096] + code
    assert read(compressed(whole, 3, method)) == ("gfx90a", "gfx1030", "gfx1100")


@pytest.mark.parametrize("method", [ZLIB, ZSTD])
def test_a_bomb_takes_no_more_memory_than_a_table(method: int) -> None:
    tight = compressed(ONE + bytes(300_000_000), 3, method)
    tracemalloc.start()
    try:
        assert read(tight) == ("gfx90a", "gfx1030", "gfx1100")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "section",
    [
        framed(b""),
        framed(b"junk"),
        framed(packed_zstd(ONE)[:30]),
        framed(packed_zstd(b"")),
        framed(packed_zstd(ONE, window=30)),
        framed(b"\x50\x2a\x4d\x18\x08\x00\x00\x00" + bytes(8) + packed_zstd(ONE)),
        framed(packed_zstd(ONE), size=3),
        framed(packed_zstd(ONE), version=3, size=1 << 63),
        framed(packed_zstd(MAGIC + b"\xff" * 8)),
        framed(packed_zstd(MAGIC + b"\x01".ljust(8, b"\0") + b"\xff" * 24)),
    ],
    ids=["empty", "junk", "cut off", "nothing", "a window of 1 GiB", "skippable", "too small",
         "too large", "endless entries", "an endless name"],
)  # fmt: skip
def test_hostile_zstd_is_one_error(section: bytes) -> None:
    with pytest.raises(PublishError, match="laid out"):
        read(section)


@pytest.mark.parametrize("section", [b"", bytes(48), bundle()])
def test_no_code_is_no_list(section: bytes) -> None:
    assert read(section) is None


@pytest.mark.parametrize("length", [1, 10, 23, 30, 40, 100, 4000, 4100, len(ONE) - 1])
def test_a_truncated_section_is_one_error(length: int) -> None:
    with pytest.raises(PublishError, match="laid out"):
        read(ONE[:length])


FORMS = (ONE, compressed(ONE), compressed(ONE, 3, ZSTD))


@given(st.binary(max_size=200), st.integers(0, 300), st.sampled_from(FORMS))
def test_any_bytes_are_a_list_or_an_error(junk: bytes, at: int, form: bytes) -> None:
    section = bytearray(form)
    section[at : at + len(junk)] = junk
    for data in (bytes(section), junk):
        with contextlib.suppress(PublishError):
            read(data)


def test_libraries_of_linux_and_windows(tmp_path: Path) -> None:
    needs = needs_of(hip_library(tmp_path / "libggml-hip.so", ONE))
    assert needs is not None
    assert needs.gfx == ("gfx90a", "gfx1030", "gfx1100")
    (tmp_path / "ggml-hip.dll").write_bytes(windows_library(ONE, b".hip_fat"))
    needs = needs_of(tmp_path / "ggml-hip.dll")
    assert needs is not None
    assert needs.gfx == ("gfx90a", "gfx1030", "gfx1100")


def record(**files: list[str]) -> Contents:
    names = [{"path": f"{name}.so"} for name in files]
    return Contents({"size": 1, "files": names}, {}, {}, (), {**files})


def test_measured_targets_replace_those_of_the_rule() -> None:
    assumed = {"rocm": {"runtime": "10.0", "gfx": ["gfx1100"]}}
    found = requirements(assumed, [record(hip=["gfx942"])], ())
    assert found == {"rocm": {"runtime": "10.0", "gfx": ["gfx942"]}}
    assert requirements(assumed, [record()], ()) == assumed
    with pytest.raises(PublishError, match="no rule expects"):
        requirements({}, [record(hip=["gfx942"])], ())
    with pytest.raises(PublishError, match="2 of its files"):
        requirements(assumed, [record(hip=["gfx942"], other=["gfx90a"])], ())


def test_the_kinds_of_processors_are_in_the_names_of_files() -> None:
    names = ["libggml-cpu-haswell.so", "libggml-cpu-zen4.so", "ggml-cpu-x64.dll", "libggml-cpu.so"]
    contents = Contents({"files": [{"path": name} for name in names]}, {}, {}, ())
    assert contents.processors == ("x64", "haswell", "zen4")
