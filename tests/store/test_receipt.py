from __future__ import annotations

import json
from contextlib import suppress
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stored import make_receipt

from tsuku_llm.ground.errors import CorruptStore
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry
from tsuku_llm.store.records.receipt import ArtifactRecord, Receipt, reinstall_by_id, version_id
from tsuku_llm.store.store import Store

PARTS = st.from_regex(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,8}", fullmatch=True)
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
SIZES = st.integers(0, 1 << 40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


TEXTS = {name for name, kind in get_type_hints(Receipt).items() if kind is str}


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    names = draw(st.lists(PARTS, min_size=2, max_size=8, unique=True))
    paths = [f"{draw(PATHS)}/{name}" if draw(st.booleans()) else name for name in names]
    paths = [f"{number}-{path}" for number, path in enumerate(paths)]
    links = paths[: len(paths) // 2]
    texts = {name: draw(st.text()) for name in sorted(TEXTS - {"id", "server", "installed_at"})}
    return make_receipt()._replace(
        **texts,
        server=draw(st.sampled_from(paths)),
        device=draw(st.none() | st.text()),
        arguments=tuple(draw(st.lists(st.text(), max_size=3))),
        detected=tuple(draw(st.lists(st.text(), max_size=3))),
        reasons=draw(st.dictionaries(st.text(), st.text(), max_size=3)),
        hidden_by=tuple(draw(st.lists(st.text(), max_size=2))),
        hardware=draw(st.dictionaries(st.text(), JSON, max_size=3)),
        artifacts=(ArtifactRecord(draw(st.text()), draw(DIGESTS), draw(SIZES)),),
        files=tuple(
            FileEntry(path, draw(SIZES), draw(DIGESTS), draw(st.booleans()))
            for path in paths[len(links) :]
        ),
        links=tuple(LinkEntry(path, "x") for path in links),
    )


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+]{0,8}", fullmatch=True), st.text("ab.-0", min_size=1)
)
def test_an_id_says_which_build_to_install_again(release: str, variant: str) -> None:
    found = reinstall_by_id(version_id(release, variant, ["a"]))
    assert found == f"tsuku-llm install --force --release {release} --backend {variant}"
    assert reinstall_by_id("b1") == "tsuku-llm install --force"


@given(receipts())
def test_a_receipt_is_read_back_unchanged(receipt: Receipt) -> None:
    assert Receipt.from_json(receipt.to_json()) == receipt


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_junk_is_refused_with_a_reason(junk: bytes) -> None:
    with pytest.raises(CorruptStore):
        Receipt.from_json(junk)


@given(st.data())
def test_a_receipt_with_one_value_changed_is_read_or_refused(data: st.DataObject) -> None:
    document = json.loads(make_receipt().to_json())
    key = data.draw(st.sampled_from(sorted(document)))
    document[key] = data.draw(JSON)
    try:
        receipt = Receipt.from_json(json.dumps(document).encode())
    except CorruptStore:
        return
    assert key == "format" or _plain(getattr(receipt, key)) == document[key]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@given(st.integers(0, 5000), st.integers(0, 255))
def test_a_receipt_with_one_byte_changed_is_read_or_refused(position: int, byte: int) -> None:
    content = bytearray(make_receipt().to_json())
    content[position % len(content)] = byte
    with suppress(CorruptStore):
        Receipt.from_json(bytes(content))


def spoiled(**changes: object) -> bytes:
    return json.dumps(json.loads(make_receipt().to_json()) | changes).encode()


FILE = {"path": "llama-server", "size": 1, "sha256": "0" * 64, "executable": True}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(200),
        b"\xff\xfe",
        b"null",
        b"[" * 100_000,
        b'{"format": 1, "format": 1}',
        make_receipt().to_json()[:-20],
        spoiled(format=2),
        spoiled(format=None),
        spoiled(id="../b100"),
        spoiled(id=""),
        spoiled(hardware={"x": float("nan")}),
        spoiled(hardware=[]),
        spoiled(device=3),
        spoiled(arguments="--no-webui"),
        spoiled(reasons={"cuda": 3}),
        spoiled(installed_at="yesterday"),
        spoiled(server="other"),
        spoiled(files=[FILE, FILE], links=[]),
        spoiled(files=[FILE | {"size": True}], links=[]),
        spoiled(files=[FILE | {"size": -1}], links=[]),
        spoiled(files=[FILE | {"size": 1 << 60}], links=[]),
        spoiled(files=[FILE | {"sha256": "0" * 63}], links=[]),
        spoiled(files=[FILE, FILE | {"path": "/etc/passwd"}], links=[]),
        spoiled(files=[FILE, FILE | {"path": "a/../../b"}], links=[]),
        spoiled(files=[FILE, FILE | {"path": "a\\b"}], links=[]),
        spoiled(files=[FILE, FILE | {"path": "llama-server/x"}], links=[]),
        spoiled(files=[FILE], links=[{"path": "l", "target": "/etc"}]),
        spoiled(files=[FILE], links=[{"path": "l", "target": ".."}]),
        spoiled(files=[FILE], links=[{"path": "a/l", "target": "../../x"}]),
        spoiled(files=[FILE], links=["l"]),
    ],
)
def test_C10_anything_but_a_receipt_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptStore):
        Receipt.from_json(content)


def test_an_unknown_key_is_ignored() -> None:
    assert Receipt.from_json(spoiled(colour="green")) == make_receipt()


def test_what_an_earlier_version_did_not_write_is_not_known() -> None:
    """A clone that is pulled serves on with what it installed before."""
    document = json.loads(make_receipt().to_json())
    for later in ("takes", "reads_config", "computed_on"):
        del document[later]
    read = Receipt.from_json(json.dumps(document).encode())
    assert (read.takes, read.reads_config, read.computed_on) == ((), False, "")


def test_the_id_names_release_variant_and_digest() -> None:
    assert version_id("b1", "cpu", ["aa", "bb"]) == version_id("b1", "cpu", ["bb", "aa"])
    assert version_id("b1", "cpu", ["aa"]) != version_id("b1", "cpu", ["bb"])
    assert version_id("b11429", "cuda-13.4", ["aa"]).startswith("b11429-cuda-13.4-")
    assert len(version_id("b1", "cpu", ["aa"])) == len("b1-cpu-") + 12


@pytest.mark.parametrize("name", ["model-package", "fleet-" + "a" * 64, "b100"])
def test_a_lock_has_a_name_that_list_does_not_call_foreign(store: Store, name: str) -> None:
    """After 'chat pkg:pypi/NAME', list and prune named a lock of ours as left alone."""
    with pytest.raises(ValueError, match="cannot name a lock"):
        store.lock(name)


@pytest.mark.parametrize("name", ["../x", "/etc", "", ".", "..", "a/b", ".hidden", "a\nb"])
def test_an_id_is_always_a_plain_name(store: Store, name: str) -> None:
    assert store.find(name) is None
    with pytest.raises(ValueError, match="cannot name a lock"):
        store.lock(name)
