"""The GPUs of HIP libraries, from their offload bundles."""

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fatbins import windows_library
from support.offload_bundles import bundle, compressed, hip_library

from tsuku_publish.binaries import needs_of
from tsuku_publish.contents import Contents
from tsuku_publish.documents import requirements
from tsuku_publish.errors import PublishError
from tsuku_publish.offload import gfx_targets

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
def test_a_compressed_bundle(version: int) -> None:
    assert read(compressed(ONE, version) + bytes(8) + OTHER) == ("gfx1030", "gfx1100")
    # Zstandard: the rule's list stays.
    assert read(OTHER + compressed(ONE, version, method=1)) is None


@pytest.mark.parametrize("section", [b"", bytes(48), bundle()])
def test_no_code_is_no_list(section: bytes) -> None:
    assert read(section) is None


@pytest.mark.parametrize("length", [1, 10, 23, 30, 40, 100, 4000, 4100, len(ONE) - 1])
def test_a_truncated_section_is_one_error(length: int) -> None:
    with pytest.raises(PublishError, match="laid out"):
        read(ONE[:length])


@given(st.binary(max_size=200), st.integers(0, 300), st.booleans())
def test_any_bytes_are_a_list_or_an_error(junk: bytes, at: int, packed: bool) -> None:
    section = bytearray(compressed(ONE) if packed else ONE)
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
