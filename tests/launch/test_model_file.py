"""What people give to ``-m`` by mistake, with a server that says nothing, or only "magic"."""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gguf_files import layered_model, write_gguf

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.launch.failed.failure import by_beginning, explain
from tsuku_llm.launch.plan.planning import LaunchPlan

MAGIC = "gguf_init_from_reader: invalid magic characters: '????', expected 'GGUF'\n"


def gguf(values: Mapping[str, str], tensors: int = 0) -> bytes:
    """A header with texts alone; its tensors have no data."""
    data = struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(values))
    for key, value in values.items():
        data += struct.pack("<Q", len(key)) + key.encode()
        data += struct.pack("<IQ", 8, len(value)) + value.encode()
    for number in range(tensors):
        data += struct.pack("<Q3sIQIQ", 3, f"t{number:02}"[:3].encode(), 1, 0, 0, 0)
    return data + bytes(-len(data) % 32)


WRONG = {
    # tobi/qmd issue 548: a page that a proxy gave in place of the model.
    "web-page": (b"<!DOCTYPE html><html>" + b" " * 5000, "a web page", "the file itself"),
    "xml": (b'\n<?xml version="1.0"?><Error>AccessDenied</Error>', "a web page", "login"),
    # What huggingface.co answers without a token.
    "words": (b"Invalid username or password.", "an answer of a web server", "token"),
    "json": (b'{"error":"Repository not found"}', "an answer of a web server", "token"),
    # ollama/ollama issue 3010 and git-lfs/git-lfs docs/spec.md: a clone without LFS.
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4081004224\n",
        "a pointer of Git LFS",
        "git lfs pull",
    ),
    "empty": (b"", "empty", "download it again"),
    "three-bytes": (b"GGU", "incomplete", "download it again"),
    "cut-in-its-header": (gguf({"general.name": "x" * 60})[:50], "incomplete", "again"),
    "zeros": (bytes(5000), "filled with zeros", "download it again"),
    # huggingface/safetensors README: eight bytes of length, then JSON.
    "safetensors": (
        struct.pack("<Q", 20) + json.dumps({"__metadata__": {}}).encode(),
        "a safetensors file",
        "convert_hf_to_gguf.py",
    ),
    "pytorch": (b"PK\x03\x04archive/data.pkl", "a zip archive", "unpack it"),
    "gzip": (b"\x1f\x8b\x08\x00" + b"x" * 20, "a compressed file", "unpack it first"),
    # llama.cpp pull request 2398: GGUF came in August 2023.
    "ggjt": (b"tjgg\x03\x00\x00\x00", "from before August 2023", "GGUF"),
    # llama.cpp convert_lora_to_gguf.py writes this type, convert_hf_to_gguf.py --mmproj the next.
    "lora": (gguf({"general.type": "adapter"}, 1), "a LoRA adapter", "with --lora"),
    "mmproj": (
        gguf({"general.type": "mmproj", "general.architecture": "clip"}, 1),
        "a projector",
        "with --mmproj",
    ),
    "old-mmproj": (gguf({"general.architecture": "clip"}, 1), "a projector", "with --mmproj"),
    # llama.cpp tools/imatrix/imatrix.cpp.
    "imatrix": (gguf({"general.type": "imatrix"}, 1), "an importance matrix", "with -m"),
    # llama.cpp models/ggml-vocab-*.gguf.
    "vocabulary": (gguf({"general.architecture": "llama"}), "without weights", "another file"),
}


def told(folder: Path, *argv: str, said: str = "", code: int = 1) -> LaunchError:
    plan = LaunchPlan(("/llama-server", *argv, "--port", "0"), folder, {}, "cpu")
    with pytest.raises(LaunchError) as caught:
        explain(plan, code, said, oom_killed=False)
    return caught.value


@pytest.mark.parametrize("said", ["", MAGIC, "srv: starting\n"], ids=["lost", "magic", "cut"])
@pytest.mark.parametrize(("content", "what", "cure"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_model_is_named(
    content: bytes, what: str, cure: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    error = told(tmp_path, "-m", "m.gguf", said=said)
    assert what in error.message
    assert str(tmp_path / "m.gguf") in error.message
    assert error.hint
    assert cure in error.hint
    # The server's own words stay.
    assert not said.strip() or any(said.strip() in fact for fact in error.facts)


def test_a_file_of_another_option_is_named_with_it(tmp_path: Path) -> None:
    layered_model(tmp_path / "m.gguf", layers=2, size=6400)
    (tmp_path / "p.gguf").write_bytes(WRONG["lfs"][0])
    for option in ("--mmproj", "--lora", "--model-draft"):
        error = told(tmp_path, "-m", "m.gguf", option, "p.gguf", said=MAGIC)
        assert f"the file given with {option} is a pointer of Git LFS" in error.message
    # Where they belong, a projector and an adapter are right.
    for kind, option in (("mmproj", "--mmproj"), ("lora", "--lora")):
        (tmp_path / "p.gguf").write_bytes(WRONG[kind][0])
        assert "does not know why" in told(tmp_path, "-m", "m.gguf", option, "p.gguf").message


def test_a_later_part_of_a_split_model_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf({"general.architecture": "llama"}, 1))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(WRONG["web-page"][0])
    assert "a web page" in told(tmp_path, "-m", "m-00001-of-00002.gguf").message


def test_a_model_that_was_cut_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a": 64_000, "b": 64_000})
    os.truncate(path, 20_000)
    assert "incomplete (it ends before its last tensor)" in told(tmp_path, "-m", "m.gguf").message


def test_what_the_server_says_of_another_matter_counts_more(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(WRONG["web-page"][0])
    error = told(tmp_path, "-m", "m.gguf", said="error: invalid argument: --frob\n")
    assert "--frob" in error.message


def test_a_good_model_is_not_accused(tmp_path: Path) -> None:
    # With 123 tensors, "{" is the ninth byte, as in a safetensors file.
    write_gguf(tmp_path / "m.gguf", {f"t{number}": 32 for number in range(123)})
    assert (tmp_path / "m.gguf").read_bytes()[8:9] == b"{"
    error = told(tmp_path, "-m", "m.gguf", code=-11)
    assert "m.gguf" not in error.message
    # A model that is downloaded has no file yet.
    assert "does not know why" in told(tmp_path, "-hf", "a/b").message
    assert "does not exist" in told(tmp_path, "-m", "absent.gguf").message


@given(st.binary(max_size=200))
def test_a_gguf_file_is_never_taken_for_something_else(rest: bytes) -> None:
    assert by_beginning(b"GGUF" + rest, 4 + len(rest)) is None


@given(st.binary(max_size=100), st.integers(0, 1 << 40))
def test_any_beginning_is_read_without_an_error(beginning: bytes, size: int) -> None:
    found = by_beginning(beginning, size)
    assert found is None or all(found)
