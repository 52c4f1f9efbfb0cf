"""Mutated release files and entries that the right keys signed: an answer or one error of ours.

Accepted releases then go to all code that reads a release: the choice of a variant, the space
that it needs, the URLs. Each of them may raise only errors of the program.
"""

import contextlib
import copy
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from support.downloads import Clock
from support.machines import (
    cuda,
    full_artifact,
    linux_variants,
    machine,
    release_dict,
    rocm,
    variant,
    vulkan,
)
from support.mutations import CHANGES, EDITS, Change, Edit, changed, edited, fuzz, text_of

from tsuku_llm.archive.names import SignedList
from tsuku_llm.catalog.manifest import Artifact, Release, parse_entry, parse_release
from tsuku_llm.choose.selection import Request, next_after, select
from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch import fetch, present
from tsuku_llm.fetch.http import urls
from tsuku_llm.fetch.places.pip_index import parse_package_url
from tsuku_llm.ground.errors import DownloadError, ManifestError, SelectionError, StoreError
from tsuku_llm.steps.install.downloads import space_of
from tsuku_llm.trust import Target, VerifiedBytes, decode_json

SHA = "ab" * 32
MACHINES = (machine(), machine(cuda()), machine(vulkan(), rocm("gfx1100"), memory=None))
REQUESTS = (Request(), Request("gpu", "native"), Request("cuda", ("vulkan", "cpu")))
ENTRY = {
    "release": "b2",
    "sequence": 2,
    "publisher": "tests",
    "published": "2026-01-01",
    "channels": ["stable", "nightly"],
    "version": "0.2.0",
}


@cache
def document() -> dict[str, Any]:
    """A release with every field that there is."""
    wheel = {"url": "pkg:pypi/p@1?file_name=p-1-py3-none-any.whl", "sha256": SHA, "format": "wheel"}
    requires = {"memory": 2**33, "x86_64_level": 3, "cpu_features": ["avx2"], "metal": True}
    odd = variant("opencl", {**requires, "opencl": {"device": "Adreno"}})
    odd |= {"artifacts": [full_artifact(SHA), wheel], "arguments": ["--device", "none"]}
    made = release_dict(
        {**linux_variants(), "odd": odd, "sycl": variant("sycl", {"level_zero": 1})}
    )
    made["platforms"]["linux-amd64"]["variants"]["sycl"]["requires"]["level_zero"] = True
    parse_release(VerifiedBytes(json.dumps(made).encode()))
    return made


def use(release: Release) -> None:
    """Everything that reads a release without asking anybody."""
    for hardware in MACHINES:
        for request in REQUESTS:
            with contextlib.suppress(SelectionError):
                selection = select(release, hardware, request)
                assert next_after(selection, {"cpu"}) is not None
                assert selection.selected.variant.name
    for platform in release.platforms.values():
        for each in platform.variants:
            assert platform.variant(each.name)
            assert each.download_size is None or each.download_size >= 0
            assert space_of(each.artifacts, [0] * len(each.artifacts)).facts
            for artifact in each.artifacts:
                use_artifact(artifact)


def use_artifact(artifact: Artifact) -> None:
    assert SignedList(artifact)
    assert urls.shown(artifact.url).isprintable()
    if artifact.url.startswith("pkg:"):
        with contextlib.suppress(DownloadError):
            parse_package_url(artifact.url)


def outcome(data: bytes) -> Release | None:
    try:
        release = parse_release(VerifiedBytes(data))
    except ManifestError:
        event("refused")
        return None
    event("accepted")
    use(release)
    return release


@fuzz
@given(CHANGES)
def test_M27_a_release_file_of_another_structure(changes: list[Change]) -> None:
    mutated = copy.deepcopy(document())
    changed(mutated, changes)
    outcome(text_of(mutated))


@fuzz
@given(EDITS)
def test_M27_a_release_file_of_other_bytes(edits: list[Edit]) -> None:
    outcome(edited(json.dumps(document()).encode(), edits))


@fuzz
@given(CHANGES)
def test_M27_an_entry_of_another_structure(changes: list[Change]) -> None:
    custom = {"custom": copy.deepcopy(ENTRY)}
    changed(custom, changes)
    try:
        value = decode_json(text_of(custom))["custom"]
    except (ValueError, RecursionError, KeyError):
        return
    try:
        entry = parse_entry(Target("releases/b2.json", 1, SHA, value))
    except ManifestError:
        event("refused")
        return
    event("accepted")
    assert isinstance(entry.sequence, int)
    assert all(isinstance(channel, str) for channel in entry.channels)


URLS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["https://", "https://", "https:", "pkg:pypi/"]),
    st.sampled_from(["h", "[", "[::1]", "u:p@h", "h:0", "h:99999", "h:x", "xn--", "a..b", "-", ""])
    | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=6),
    st.sampled_from(["", "/", "/x", "/?q", "/#f", "/%zz", "/..", "//", "/a.tar.gz"])
    | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12),
)


@fuzz
@given(URLS, st.booleans())
def test_H26_a_signed_url_of_any_form(url: str, mirrored: bool) -> None:
    """No host is reached: every request goes to a proxy that refuses."""
    made = copy.deepcopy(document())
    made["platforms"]["linux-amd64"]["variants"]["odd"]["artifacts"][0]["url"] = url
    release = outcome(json.dumps(made).encode())
    if release is None or url.startswith("pkg:"):
        return
    (artifact, _) = release.platforms["linux-amd64"].variants[5].artifacts
    mirrors = ("https://mirror/", ORIGIN) if mirrored else ()
    with (
        tempfile.TemporaryDirectory() as folder,
        Clock().network({"HTTPS_PROXY": "http://127.0.0.1:9"}, mirrors=mirrors) as network,
    ):
        with pytest.raises((DownloadError, StoreError)):
            fetch(artifact, Path(folder), network)
        assert present(artifact, Path(folder)) == 0
