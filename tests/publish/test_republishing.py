"""Upstream's own archives, signed by another publisher: measured, and left where they are."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.archives import Tar, tar_gz
from support.program import environment
from support.release_data import release_tool
from support.release_server import User
from support.upstream_builds import compiled, day
from support.upstream_host import Upstream

TAG = "b11500"
CPU = f"llama-{TAG}-bin-ubuntu-x64.tar.gz"
CUDA = f"llama-{TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz"
WINDOWS = f"llama-{TAG}-bin-win-cpu-x64.zip"


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with Upstream(day(10, 11), tmp_path / "upstream") as upstream:
        yield upstream


@pytest.fixture
def data(tmp_path: Path) -> Path:
    people = ("--root", "anna", "--unencrypted", "--publisher", "ggml-org")
    done = release_tool("init", tmp_path / "company", *people)
    assert done.returncode == 0, done.stderr
    return tmp_path / "company"


def named(upstream: Upstream, name: str) -> str:
    """The URL of an asset, with the digest that upstream states."""
    assets = {each["name"]: each for each in upstream.release(TAG)["assets"]}
    digest = str(assets[name]["digest"]).replace(":", "=")
    return f"{assets[name]['browser_download_url']}#{digest}"


def add(data: Path, upstream: Upstream, *variants: str) -> Any:
    words = [word for each in variants for word in ("--variant", each)]
    return release_tool("add", TAG, "--data", data, *words, **upstream.environ)


def test_upstreams_archives_are_measured_signed_and_installed(
    upstream: Upstream, data: Path, tmp_path: Path
) -> None:
    # Unlike the other stand-ins, it has no file that the build has as well.
    runtime = Tar(name=f"cudart-{CUDA[:-7]}/libcudart.so.13", data=compiled()["cudart"], mode=0o755)
    upstream.replaced[TAG, f"cudart-{CUDA}"] = tar_gz([runtime])
    done = add(
        data,
        upstream,
        f"cpu={named(upstream, CPU)}",
        f"cuda-13.4={named(upstream, CUDA)}",
        f"cuda-13.4={named(upstream, f'cudart-{CUDA}')}",
        f"windows-amd64/cpu={named(upstream, WINDOWS)}",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((data / "releases" / f"{TAG}.json").read_text("utf-8"))
    variants = document["platforms"]["linux-amd64"]["variants"]
    (archive,) = variants["cpu"]["artifacts"]
    bytes_of = upstream.archive(TAG, CPU)
    assert bytes_of is not None
    assert archive["url"] == named(upstream, CPU).partition("#")[0]
    assert (archive["sha256"], archive["size"]) == (
        hashlib.sha256(bytes_of).hexdigest(),
        len(bytes_of),
    )
    assert (archive["root"], variants["cpu"]["server"]) == (f"llama-{TAG}", "llama-server")
    assert variants["cpu"]["requires"]["glibc"].startswith("2.")
    cuda = variants["cuda-13.4"]
    assert cuda["requires"]["cuda"]["sass"] == ["8.6", "8.9", "12.0a"]
    assert len(cuda["artifacts"]) == 2
    assert "windows-amd64" in document["platforms"]
    signers = {"TSUKU_LLM_SIGNERS": str(data.with_name("company-signers"))}
    done = release_tool("sign", "--yes", "--data", data, **signers)
    assert done.returncode == 0, done.stderr
    extra = {**upstream.environ, "TSUKU_LLM_BACKEND": "cpu"}
    user = User(tmp_path / "home", environment(tmp_path / "home", **extra))
    signed = data / "signed"
    root = str(signed / "metadata" / "1.root.json")
    done = user.run("repository", "add", "own", f"{signed.as_uri()}/", "--root", root)
    assert done.code == 0, done.stderr
    done = user.run("install", "--repository", "own")
    assert done.code == 0, done.stderr
    # The bytes come from upstream, also for the client.
    assert sum(CPU in each for each in upstream.requests) >= 2
    assert user.run("verify").code == 0


@pytest.mark.parametrize(
    ("build", "told"),
    [
        ("{url}", "is no archive with its digest"),
        ("{url}#sha256=12", "is no archive with its digest"),
        ("https://user:word@host.test/a.tar.gz#sha256=" + "5e" * 32, "without a user and password"),
        ("https://host.test/a.exe#sha256=" + "5e" * 32, "is no archive with its digest"),
        ("{url}#sha256=" + "5e" * 32, "error[digest-mismatch]"),
        ("build", "it is not said where"),
    ],
)
def test_what_cannot_be_republished_is_one_error_and_enters_nothing(
    upstream: Upstream, data: Path, build: str, told: str
) -> None:
    url = named(upstream, CPU).partition("#")[0]
    done = add(data, upstream, f"cpu={build.format(url=url)}")
    assert done.returncode != 0
    assert told in done.stderr
    assert "word" not in done.stderr.replace("password", "")
    assert not (data / "releases" / f"{TAG}.json").exists()
