"""``explain -m``: models of any size, in parts, on this machine and on a host."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import model_headers
from support.http_faults import Behaviour, FaultServer, answer, good, head, raw
from support.model_headers import Q4_0, write_header, write_shape
from support.program import Result

from tsuku_llm.launch.memory.model_header import parts_of

Program = Callable[..., Result]
Explained = Callable[..., Any]

MACHINE = str(Path(__file__).parents[1] / "snapshots" / "windows-11-rtx-4090.json")
GB = 10**9


@pytest.fixture
def explained(program: Program) -> Explained:
    """What is told of a model for a recorded card of 25 GB; the words are for the server."""

    def explain(model: object, *words: str) -> Any:
        told = program("explain", "--json", "-m", str(model), "--hardware", MACHINE, "--", *words)
        return json.loads(told.stdout)["data"]["model"]

    return explain


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_shape(tmp_path / "llama.gguf", model_headers.llama(), vocabulary=9)


def test_a_model_is_compared_with_a_recorded_card(llama: Path, explained: Explained) -> None:
    found = explained(llama, "-c", "8192")
    assert found["fits"] is True
    assert found["context"] == 8192
    assert found["cache_size"] == 8192 * 32 * 2 * 8 * 128 * 2
    assert found["layers"] == found["on_devices"] == 33
    # The input embeddings stay in main memory.
    assert 0 < found["device_size"] <= found["size"] - 128_256 * 4096 * 2
    (card,) = found["devices"]
    assert card["name"] == "NVIDIA GeForce RTX 4090"
    assert card["free"] is None
    assert card["total"] > 25 * GB


def test_the_servers_own_variables_count_for_a_recorded_machine(
    llama: Path, explained: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "8192")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # this is about our own cards
    found = explained(llama)
    assert (found["context"], found["fits"]) == (8192, True)


def test_a_url_of_a_file_is_told_as_a_path(llama: Path, program: Program) -> None:
    for prefix in ("file:", "file://", "FILE://localhost"):
        result = program("serve", "-m", f"{prefix}{llama}")
        assert result.code == 2
        assert f"give the path alone: -m {llama}\n" in result.stderr
        assert "--model-url" not in result.stderr


def test_the_words_come_after_the_variants(llama: Path, program: Program) -> None:
    words = ("--", "-c", "131072", "-ctk", "q8_0", "-ctv", "q8_0")
    result = program("explain", "-m", str(llama), "--hardware", MACHINE, *words)
    assert result.code == 0
    head, _, told = result.stdout.partition("the model does not fit:\n")
    assert "vulkan" in head
    first, layers, remedies = told.splitlines()
    assert first.startswith("  needs 25.")
    assert "of 33 layers go to the GPU" in layers
    assert "-c " in remedies
    # It is in q8_0 already.
    assert "-ctk" not in remedies


def test_a_sparse_file_of_400_gigabytes_is_read_at_once(
    tmp_path: Path, explained: Explained
) -> None:
    shape = model_headers.llama(layers=126, width=16384, inner=53248, heads=128)
    path = write_shape(tmp_path / "huge.gguf", shape)
    assert path.stat().st_size > 400 * GB
    found = explained(path, "-c", "4096")
    assert found["fits"] is False
    header = path.stat().st_size - found["weights"]
    assert 0 < header < 10_000_000
    # Nothing but the header is read, and no more memory is used.
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from tsuku_llm.launch.memory.gguf import read_header; print(read_header(sys.argv[1]).size)"
    )
    if sys.platform != "win32":
        line = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert int(done.stdout) == path.stat().st_size


def test_all_parts_of_a_model_count(tmp_path: Path, explained: Explained) -> None:
    shape = model_headers.llama(layers=2, width=1024, inner=2048, heads=16)
    whole = write_shape(tmp_path / "whole.gguf", shape, vocabulary=9)
    first, second = {}, {}
    for name, dimensions in shape.tensors.items():
        (second if name.startswith("blk.1") else first)[name] = dimensions
    parts = tmp_path / "parts"
    parts.mkdir()
    begin = write_shape(
        parts / "m-00001-of-00002.gguf", shape._replace(tensors=first), vocabulary=9
    )
    write_header(parts / "m-00002-of-00002.gguf", {}, second, model_headers.F16)

    assert explained(begin) == explained(whole)


@pytest.mark.parametrize("option", ["--mmproj", "-md"])
def test_companions_are_added(
    option: str, llama: Path, tmp_path: Path, explained: Explained
) -> None:
    shape = model_headers.llama(layers=2, width=1024, inner=2048, heads=16)
    other = write_shape(tmp_path / "other.gguf", shape, weights=Q4_0, vocabulary=9)

    alone = explained(llama, "-c", "4096")["size"]
    assert explained(llama, "-c", "4096", option, str(other))["size"] - alone > 100_000_000


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none.gguf", None, "cannot be read"),
        ("page.gguf", b"<!doctype html>", "no GGUF file"),
        ("short.gguf", b"GGUF\3\0\0\0", "no GGUF file"),
        ("empty.gguf", b"", "no GGUF file"),
    ],
)
def test_a_file_that_is_no_model_is_refused(
    name: str, content: bytes | None, reason: str, tmp_path: Path, program: Program
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    result = program("explain", "-m", str(path))
    assert (result.code, result.stdout) == (7, "")
    assert result.stderr.startswith("error[bad-model]: the model ")
    assert reason in result.stderr


def test_an_error_names_the_file_that_is_no_model(
    llama: Path, tmp_path: Path, program: Program
) -> None:
    other = tmp_path / "projector.gguf"
    other.write_bytes(b"<!doctype html>")
    result = program("explain", "-m", str(llama), "--", "--mmproj", str(other))
    assert result.code == 7
    assert str(other) in result.stderr
    assert str(llama) not in result.stderr


def test_a_part_alone_and_an_incomplete_file_are_refused(tmp_path: Path, program: Program) -> None:
    def refused(path: Path) -> str:
        result = program("explain", "-m", str(path))
        assert result.code == 7
        return str(result.stderr)

    dimensions = {"blk.0.a.weight": (64, 64), "blk.0.b.weight": (64, 64)}
    keys = {"split.no": 1, "split.count": 2}
    part = write_header(tmp_path / "m-00002-of-00002.gguf", keys, dimensions, model_headers.F16)
    assert "name the first part" in refused(part)
    keys = {"split.no": 0, "split.count": 2}
    renamed = write_header(tmp_path / "renamed.gguf", keys, dimensions, model_headers.F16)
    assert "one of 2 parts" in refused(renamed)
    whole = write_header(tmp_path / "m.gguf", {}, dimensions, model_headers.F16)
    with whole.open("rb+") as file:
        file.truncate(whole.stat().st_size // 3)
    assert "ends before its last tensor" in refused(whole)
    assert "download it again" in refused(whole)


def test_arguments_of_a_build_that_does_not_tell_them(program: Program) -> None:
    result = program("explain", "--", "-c", "4096")
    assert result.code == 0
    assert "no installed build tells how it reads arguments" in result.stderr


# --- from a host -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of 18 MB, of which the header is 3 MB."""
    shape = model_headers.llama(layers=1, width=64, inner=128, heads=1)
    return write_shape(tmp_path_factory.mktemp("host") / "m.gguf", shape).read_bytes()


def whole_without_ranges(body: bytes) -> Behaviour:
    return answer("200 OK", body)


@pytest.mark.parametrize("host", [good, whole_without_ranges])
def test_a_model_on_a_host_is_read_by_its_first_bytes(
    host: Callable[[bytes], Behaviour], body: bytes, tmp_path: Path, explained: Explained
) -> None:
    local = tmp_path / "m.gguf"
    local.write_bytes(body)
    with FaultServer([host(body)]) as server:
        found = explained(f"{server.url}/m.gguf", "-c", "4096")
        asked = [request.headers["range"] for request in server.requests]
    assert asked == ["bytes=0-1048575", "bytes=0-4194303"]
    assert found == explained(local, "-c", "4096")


@pytest.mark.parametrize(
    ("behaviour", "code", "slug"),
    [
        (answer("404 Not Found"), 4, "http-status"),
        (answer("200 OK", b"<!doctype html><title>Log in</title>" + bytes(5000)), 4, "bad-body"),
        (answer("200 OK", b"not a model" * 99), 7, "bad-model"),
        (raw(head("200 OK", Connection="close") + b"GGUF" * 999), 4, "bad-body"),
    ],
    ids=["404", "page", "text", "no-size"],
)
def test_an_answer_that_is_no_model_is_refused(
    behaviour: Behaviour, code: int, slug: str, program: Program
) -> None:
    with FaultServer([behaviour]) as server:
        result = program("explain", "-m", f"{server.url}/m.gguf", "--hardware", MACHINE)
    assert result.code == code
    assert result.stderr.startswith(f"error[{slug}]: ")
    # These settings are for our own files.
    assert "llm.mirror" not in result.stderr
    assert "tsuku-llm update" not in result.stderr


def test_the_parts_of_a_model_are_found_by_a_url_with_a_query() -> None:
    begin = "https://example.org/m-0000"
    assert parts_of(f"{begin}1-of-00002.gguf?download=true") == (
        f"{begin}1-of-00002.gguf?download=true",
        f"{begin}2-of-00002.gguf?download=true",
    )


def test_where_nothing_fits_the_tables_end_with_what_helps(program: Program) -> None:
    """ROCm and Metal are asked for on a Linux machine with an NVIDIA card."""
    old = Path(MACHINE).with_name("gtx-1080-ti-driver-535.json")
    for words in (("explain", "--backend", "rocm"), ("explain", "--backend", "metal")):
        told = program(*words, "--hardware", str(old))
        last = told.stdout.splitlines()[-1]
        assert last.startswith("no variant fits; hint: ")
        document = program(*words, "--hardware", str(old), "--json").document["data"]
        assert document["hint"] == last.removeprefix("no variant fits; hint: ")
    fitting = program("explain", "--hardware", str(old), "--json").document["data"]
    assert fitting["hint"] is None
