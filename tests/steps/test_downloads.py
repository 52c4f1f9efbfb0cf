"""Starts that have to download a model, with a build that can and with one that cannot."""

import sys
from pathlib import Path

import pytest
from support.builds import REAL_SERVER, real_build
from support.model_shelves import hub_file
from support.program import Result, environment, run_program
from support.servers import install_stand_in
from support.stored import install

from tsuku_llm.steps.choosing.which import lacks_https
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

WITHOUT = {"libllama-common.so.0": b"\0HTTPS is not supported. Please rebuild with one of:\n\0"}
WITH = {"libllama-common.so.0": b"\0SSL_CTX_new\0", "libggml-x.so": b"HTTPS is not supported"}


def serve(home: Path, *words: str, **extra: str) -> Result:
    own = {"HOME": str(home / "user"), "XDG_CACHE_HOME": "", "HF_HOME": "", "HF_HUB_CACHE": ""}
    return run_program(*words, env=environment(home, **{**own, **extra}))


def without_https(home: Path) -> None:
    steps = ("err it was started", "exit 1")
    install_stand_in(home / "llm", backend="cpu", files=WITHOUT, serve=steps)


@pytest.mark.parametrize("flags", [(), ("--exec",), ("--dry-run",), ("--detach",)], ids=str)
def test_a_build_without_https_does_not_start_for_a_download(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    without_https(tmp_path)
    done = serve(tmp_path, "serve", *flags, "--", "-hf", "org/M-GGUF:Q8_0")
    assert done.code == 7
    assert "it was started" not in done.stderr
    assert "built without HTTPS" in done.stderr
    assert "  asked for: -hf org/M-GGUF:Q8_0\n" in done.stderr
    assert "tsuku-llm serve -m FILE.gguf" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--hf-repo", "a/b"),
        ("-mu", "https://example.org/m.gguf"),
        ("--docker_repo", "smollm2"),
        ("-m", "/m.gguf", "-hfd", "a/b"),
        ("-m", "/m.gguf", "--mmproj-url", "https://example.org/m.gguf"),
    ],
)
def test_each_way_to_download_needs_https(words: tuple[str, ...], tmp_path: Path) -> None:
    without_https(tmp_path)
    assert serve(tmp_path, "serve", "--dry-run", "--", *words).code == 7


def test_a_variable_is_a_request_too(tmp_path: Path) -> None:
    without_https(tmp_path)
    assert serve(tmp_path, "serve", "--dry-run", LLAMA_ARG_HF_REPO="a/b").code == 7
    offline = {"LLAMA_ARG_HF_REPO": "a/b", "LLAMA_ARG_OFFLINE": "1"}
    assert serve(tmp_path, "serve", "--dry-run", **offline).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("-hf", "a/b", "--offline"),
        ("-m", "/m.gguf"),
        ("--model-url", "http://127.0.0.1/m.gguf"),
        ("-hf", "Org/M-GGUF"),
    ],
)
def test_what_needs_no_https_starts(words: tuple[str, ...], tmp_path: Path) -> None:
    without_https(tmp_path)
    hub = tmp_path / "user" / ".cache" / "huggingface" / "hub"
    # Upstream takes a repository from its cache if no host answers.
    hub_file(hub, "org/M-GGUF", "M-Q4_0.gguf")
    assert serve(tmp_path, "serve", "--dry-run", "--", *words).code == 0


def test_an_endpoint_without_https_needs_none(tmp_path: Path) -> None:
    without_https(tmp_path)
    words = ("serve", "--dry-run", "--", "-hf", "a/b")
    assert serve(tmp_path, *words, HF_ENDPOINT="http://127.0.0.1:1/").code == 0


def test_a_build_with_https_starts(tmp_path: Path) -> None:
    install_stand_in(tmp_path / "llm", backend="cpu", files=WITH)
    assert serve(tmp_path, "serve", "--dry-run", "--", "-hf", "a/b").code == 0


def test_upstream_s_channel_is_advised_only_to_another_one(tmp_path: Path) -> None:
    words = ("serve", "--dry-run", "--", "-hf", "a/b")
    for channel in ("stable", "index"):
        home = tmp_path / channel
        files = {"llama-server": b"#!/bin/sh\n", **WITHOUT}
        install(Store(home / "llm"), files=files, links={}, channel=channel)
        advised = "install --channel stable" in serve(home, *words).stderr
        assert advised is (channel == "index")


@pytest.mark.index
def test_the_real_build_of_the_index_tells_that_it_has_none(tmp_path: Path) -> None:
    tree = real_build(tmp_path / "real")
    folder = tree / Path(REAL_SERVER).parent
    files = {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and "ggml" not in path.name
    }
    assert lacks_https(install(Store(tmp_path / "llm"), files=files, links={}))


def test_no_advice_names_a_download_that_the_build_cannot_do(tmp_path: Path) -> None:
    without_https(tmp_path)
    url = "https://example.org/m.gguf"
    for words in (("models",), ("serve", "-m", "nothing"), ("serve", "-m", url)):
        done = serve(tmp_path, *words)
        said = done.stdout + done.stderr
        assert "download a GGUF file with another program" in said, said
        assert "-hf" not in said
        assert "--model-url" not in said
