"""The parser of release files: strict, total, and never another error than its own."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines import full_artifact
from support.repository import release_document

from tsuku_llm.catalog import manifest
from tsuku_llm.catalog.requirements import CudaRequirement, Requirements, RocmRequirement
from tsuku_llm.ground.errors import ManifestError
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry
from tsuku_llm.trust import Target, VerifiedBytes

SHA = "ab" * 32


def parse(document: Any) -> manifest.Release:
    return parse_text(json.dumps(document))


def parse_text(text: str) -> manifest.Release:
    return manifest.parse_release(VerifiedBytes(text.encode("utf-8", "surrogatepass")))


def document(**variant: Any) -> dict[str, Any]:
    """A release file whose one variant has these fields."""
    made = release_document("b2", version="0.2.0")
    made["platforms"]["linux-amd64"]["variants"]["cpu"].update(variant)
    return made


def with_artifact(**fields: Any) -> dict[str, Any]:
    made = document()
    made["platforms"]["linux-amd64"]["variants"]["cpu"]["artifacts"][0].update(fields)
    return made


# --- what is understood -------------------------------------------------------------------


def test_every_field_of_a_release_is_parsed() -> None:
    made = document(
        backend="cuda",
        arguments=["--device", "none"],
        requires={
            "glibc": "2.38",
            "memory": 2**33,
            "x86_64_level": 3,
            "cpu_features": ["avx512_bf16"],
            "vulkan": "1.2",
            "metal": True,
            "cuda": {"toolkit": "13.4", "sass": ["8.6", "12.0a"], "ptx": ["7.5"]},
            "rocm": {"runtime": "10.0", "gfx": ["gfx90a"]},
            "opencl": {"device": "Adreno"},
        },
        artifacts=[
            full_artifact(SHA),
            {"url": "pkg:pypi/p@1?file_name=p.whl", "sha256": SHA, "format": "wheel"},
        ],
    )
    release = parse(made)
    assert (release.release, release.version, release.revoked) == ("b2", "0.2.0", False)
    (variant,) = release.platforms["linux-amd64"].variants
    assert variant.arguments == ("--device", "none")
    assert variant.requires.cuda == CudaRequirement("13.4", ("8.6", "12.0a"), ("7.5",))
    assert variant.requires.rocm == RocmRequirement("10.0", ("gfx90a",))
    assert variant.requires.unknown == ()
    first, second = variant.artifacts
    assert first.files == (FileEntry(path="bin/x", size=1, sha256=SHA, executable=True),)
    assert first.links == (LinkEntry(path="libx.so", target="libx.so.0"),)
    assert first.pieces == manifest.Pieces(size=65536, sha256=(SHA,))
    assert (second.size, second.root, variant.download_size) == (None, "", None)


def test_a_known_size_is_the_sum_of_its_archives() -> None:
    made = document()
    artifacts = made["platforms"]["linux-amd64"]["variants"]["cpu"]["artifacts"]
    artifacts.append({**artifacts[0], "size": 41})
    (variant,) = parse(made).platforms["linux-amd64"].variants
    assert variant.download_size == 42


def test_variants_keep_their_order_and_are_found_by_name() -> None:
    made = document()
    variants = made["platforms"]["linux-amd64"]["variants"]
    for name in ("zeta", "alpha"):
        variants[name] = variants["cpu"]
    platform = parse(made).platforms["linux-amd64"]
    assert [variant.name for variant in platform.variants] == ["cpu", "zeta", "alpha"]
    found = platform.variant("zeta")
    assert found is not None
    assert found.name == "zeta"
    assert platform.variant("beta") is None


def test_unknown_fields_are_ignored_but_an_unknown_requirement_is_kept() -> None:
    made = document(requires={"npu": "9", "quantum": {"qubits": 3}, "unknown": ["x"]}, colour="red")
    made["mood"] = "good"
    (variant,) = parse(made).platforms["linux-amd64"].variants
    assert variant.requires.unknown == ("npu", "quantum", "unknown")


# --- words of a newer version ----------------------------------------------------------------

CUDA = {"toolkit": "14.0", "sass": ["8.6"], "ptx": ["9.0"]}
ROCM = {"runtime": "10.0", "gfx": ["gfx1100"]}
NOT_UNDERSTOOD: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a_list": ([], ("requires []",)),
    "a_text": ("cuda", ("requires 'cuda'",)),
    "a_key": ({"npu": {"tops": 45}}, ("npu",)),
    "two_keys": ({"glibc": "2.34", "zen": 5, "driver": "9"}, ("driver", "zen")),
    "a_key_in_cuda": ({"cuda": {**CUDA, "driver": "610.0"}}, ("cuda.driver",)),
    "a_key_in_rocm": ({"rocm": {**ROCM, "xnack": True}}, ("rocm.xnack",)),
    "a_key_in_opencl": ({"opencl": {"device": "Mali", "version": "3.0"}}, ("opencl.version",)),
    "family_code": ({"cuda": {**CUDA, "sass": ["8.6", "13.0f"]}}, ("cuda.sass '13.0f'",)),
    "new_ptx": ({"cuda": {**CUDA, "ptx": ["7.5", "virtual"]}}, ("cuda.ptx 'virtual'",)),
    "two_words": (
        {"cuda": {**CUDA, "sass": ["x", "8.9", "y"], "toolkit": "next"}},
        ("cuda.sass 'x'", "cuda.sass 'y'", "cuda.toolkit 'next'"),
    ),
    "generic_gfx": ({"rocm": {**ROCM, "gfx": ["gfx12-generic"]}}, ("rocm.gfx 'gfx12-generic'",)),
    "gfx_feature": ({"rocm": {**ROCM, "gfx": ["gfx90a:xnack+"]}}, ("rocm.gfx 'gfx90a:xnack+'",)),
    "cuda_as_text": ({"cuda": "14.0"}, ("cuda '14.0'",)),
    "cuda_without_sass": (
        {"cuda": {"toolkit": "1", "ptx": []}},
        ("cuda {'toolkit': '1', 'ptx': []}",),
    ),
    "level": ({"x86_64_level": 5}, ("x86_64_level 5",)),
    "level_as_bool": ({"x86_64_level": True}, ("x86_64_level True",)),
    "version_as_number": ({"glibc": 2}, ("glibc 2",)),
    "version_as_word": ({"macos": "next"}, ("macos 'next'",)),
    "feature": ({"cpu_features": ["avx2", "AVX 10"]}, ("cpu_features 'AVX 10'",)),
    "features_as_text": ({"cpu_features": "avx2"}, ("cpu_features 'avx2'",)),
    "flag_as_number": ({"metal": 4}, ("metal 4",)),
    "flag_as_text": ({"level_zero": "1.20"}, ("level_zero '1.20'",)),
    "negative_memory": ({"memory": -1}, ("memory -1",)),
    "long_word": ({"vulkan": "1" * 99}, ("vulkan '" + "1" * 59,)),
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_a_requirement_of_a_newer_version_concerns_one_variant_alone(name: str) -> None:
    requires, unknown = NOT_UNDERSTOOD[name]
    made = document()
    variants = made["platforms"]["linux-amd64"]["variants"]
    variants["newer"] = {**variants["cpu"], "requires": requires}
    plain, newer = parse(made).platforms["linux-amd64"].variants
    assert newer.requires.unknown == unknown
    assert plain.requires.unknown == ()
    # A publisher hears of it before the file is signed.
    with pytest.raises(ManifestError, match="cannot be understood") as caught:
        manifest.require_release(made)
    assert "newer" in caught.value.facts[0]


@pytest.mark.parametrize(
    ("change", "unknown"),
    [
        ({"backend": "npu"}, ("backend npu",)),
        ({"artifacts": [full_artifact(SHA) | {"format": "tar.zst"}]}, ("format tar.zst",)),
        (
            {"artifacts": [full_artifact(SHA) | {"url": "oci://host/a@sha256:b"}]},
            ("url oci:",),
        ),
        (
            {
                "artifacts": [
                    full_artifact(SHA),
                    full_artifact(SHA) | {"url": "pkg:npm/a@1", "format": "tgz"},
                    full_artifact(SHA) | {"url": "magnet:?xt=urn:btih:c", "format": "7z"},
                ]
            },
            ("format 7z", "format tgz", "url magnet:?xt=urn:btih:c", "url pkg:npm"),
        ),
    ],
    ids=["backend", "format", "url", "several"],
)
def test_a_backend_or_archive_of_a_newer_version_concerns_one_variant_alone(
    change: dict[str, Any], unknown: tuple[str, ...]
) -> None:
    made = document()
    platform = made["platforms"]["linux-amd64"]
    platform["variants"]["newer"] = {**platform["variants"]["cpu"], "requires": {}} | change
    release = parse(made)
    plain, newer = release.platforms["linux-amd64"].variants
    assert newer.requires.unknown == unknown
    assert plain.requires.unknown == ()
    # A revocation of that build must still be found by its digest.
    assert tuple(each.sha256 for each in newer.artifacts) in release.builds
    with pytest.raises(ManifestError):
        manifest.require_release(made)


def test_a_preference_of_a_newer_version_is_no_error() -> None:
    made = document()
    made["platforms"]["linux-amd64"]["preference"] = {"portable": ["npu", "cpu"], "green": ["cpu"]}
    assert parse(made).platforms["linux-amd64"].preference["portable"] == ("npu", "cpu")
    with pytest.raises(ManifestError):
        manifest.require_release(made)


def test_a_publisher_may_sign_a_release_without_unknown_words() -> None:
    manifest.require_release(document())


@pytest.mark.parametrize(
    "change",
    [{"format": "tar.zst"}, {"format": "rar"}, {"url": "oci://host/a"}, {"url": "pkg:npm/a@1"}],
    ids=str,
)
def test_a_publisher_enters_no_archive_that_no_client_can_use(change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match="an archive"):
        manifest.parse_artifact(full_artifact(SHA) | change)


# --- what is not --------------------------------------------------------------------------

Edit = Callable[[str], str]

BAD_TEXTS: dict[str, Edit] = {
    "M26_duplicate_key": lambda text: text.replace('"format": 1', '"format": 1, "format": 1'),
    "M26_duplicate_key_deep": lambda text: text.replace('"size": 1', '"size": 1, "size": 2'),
    "M26_float": lambda text: text.replace('"size": 1', '"size": 1.0'),
    "M26_float_exponent": lambda text: text.replace('"size": 1', '"size": 1e2'),
    "M26_nan": lambda text: text.replace('"size": 1', '"size": NaN'),
    "M26_infinity": lambda text: text.replace('"size": 1', '"size": -Infinity'),
    "M26_10_to_the_20": lambda text: text.replace('"size": 1', f'"size": {10**20}'),
    "M26_endless_integer": lambda text: text.replace('"size": 1', f'"size": {"9" * 5000}'),
    "M26_minus_one": lambda text: text.replace('"size": 1', '"size": -1'),
    "M26_bool_as_int": lambda text: text.replace('"size": 1', '"size": true'),
    "M26_bool_as_format": lambda text: text.replace('"format": 1', '"format": true'),
    "M26_int_as_text": lambda text: text.replace('"format": 1', '"format": "1"'),
    "M26_text_as_bool": lambda text: text.replace('"format": 1', '"format": 1, "revoked": "no"'),
    "M26_lone_surrogate": lambda text: text.replace('"simulator"', '"\\ud800"'),
    "M26_lone_surrogate_key": lambda text: text.replace('"publisher"', '"\\udfff": 1, "publisher"'),
    "M26_raw_surrogate": lambda text: text.replace("simulator", "\ud800"),
    "M26_nesting": lambda text: text.replace('"format": 1', f'"format": 1, "x": {NESTED}'),
    "M26_nested_objects": lambda text: text.replace('"format": 1', f'"format": 1, "x": {OBJECTS}'),
    "M26_empty": lambda _: "",
    "M26_null": lambda _: "null",
    "M26_list": lambda _: "[]",
    "M26_two_documents": lambda text: text + text,
    "M26_byte_order_mark": lambda text: "\ufeff" + text,
    "another_format": lambda text: text.replace('"format": 1', '"format": 2'),
    "no_release": lambda text: text.replace('"release"', '"relase"'),
    "no_platforms": lambda text: text.replace('"platforms"', '"platform"'),
    "bad_date": lambda text: text.replace("2026-10-05", "5.10.2026"),
    "date_with_line_feed": lambda text: text.replace("2026-10-05", "2026-10-05\\n"),
    "date_in_other_digits": lambda text: text.replace("2026-10-05", "\\u0662026-10-05"),
    "bad_version": lambda text: text.replace('"0.2.0"', '"v0.2.0"'),
    "empty_publisher": lambda text: text.replace('"simulator"', '""'),
    "backend_is_no_name": lambda text: text.replace('"backend": "cpu"', '"backend": "a b"'),
    "policy_is_no_name": lambda text: text.replace('"portable"', '"../x"'),
    "default_is_no_variant": lambda text: text.replace('"default": "cpu"', '"default": "gpu"'),
}
NESTED = "[" * 10_000 + "]" * 10_000
OBJECTS = '{"a":' * 10_000 + "1" + "}" * 10_000


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_a_malformed_release_file_is_refused(name: str) -> None:
    text = json.dumps(document())
    changed = BAD_TEXTS[name](text)
    assert changed != text
    with pytest.raises(ManifestError) as caught:
        parse_text(changed)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    assert len(str(caught.value.facts)) < 400


BAD_VARIANTS: dict[str, dict[str, Any]] = {
    "server_outside": {"server": "../llama-server"},
    "server_absolute": {"server": "/bin/sh"},
    "server_empty": {"server": ""},
    "server_line_feed": {"server": "llama-server\n"},
    "server_backslash": {"server": "bin\\llama-server"},
    "no_artifact": {"artifacts": []},
    "nine_artifacts": {"artifacts": [{}] * 9},
    "arguments_text": {"arguments": "--device none"},
}


@pytest.mark.parametrize("name", BAD_VARIANTS)
def test_a_malformed_variant_is_refused(name: str) -> None:
    with pytest.raises(ManifestError):
        parse(document(**BAD_VARIANTS[name]))


BAD_ARTIFACTS: dict[str, dict[str, Any]] = {
    "http": {"url": "http://host/a"},
    "file": {"url": "file:///etc/passwd"},
    "no_scheme": {"url": "host/a"},
    "space": {"url": "https://host/a b"},
    "line_feed": {"url": "https://host/a\n"},
    "ftp": {"url": "ftp://host/a"},
    "https_without_a_host": {"url": "https:a"},
    "https_with_an_empty_host": {"url": "https:///a"},
    "https_with_an_open_bracket": {"url": "https://[::1"},
    "https_with_no_port": {"url": "https://host:port/a"},
    "https_with_too_high_a_port": {"url": "https://host:65536/a"},
    "capitals": {"url": "HTTP://host/a"},
    "T18_password": {"url": "https://user:password@host/a.tar.gz"},
    "T18_user": {"url": "https://token@host/a.tar.gz"},
    "T18_backslash": {"url": "https://host\\@other/a.tar.gz"},
    "T18_index": {"url": "pkg:pypi/p@1?repository_url=https://u:p@host/simple&file_name=p.whl"},
    "long_url": {"url": "https://host/" + "a" * 2000},
    "short_digest": {"sha256": "ab"},
    "upper_case_digest": {"sha256": "AB" * 32},
    "digest_line_feed": {"sha256": SHA + "\n"},
    "format_is_no_name": {"format": "a b"},
    "huge": {"size": 2**40 + 1},
    "root_outside": {"root": ".."},
    "root_dot": {"root": "."},
    "root_absolute": {"root": "/"},
    "root_trailing_slash": {"root": "a/"},
    "file_outside": {"files": [{"path": "a/../../b", "size": 1, "sha256": SHA}]},
    "file_without_digest": {"files": [{"path": "a", "size": 1}]},
    "file_stream": {"files": [{"path": "a:b", "size": 1, "sha256": SHA}]},
    "link_outside": {"links": [{"path": "a", "target": "../../b"}]},
    "link_absolute": {"links": [{"path": "a", "target": "/etc"}]},
    "tiny_pieces": {"pieces": {"size": 1, "sha256": [SHA]}},
    "H37_huge_pieces": {"pieces": {"size": 2**27, "sha256": [SHA]}},
    "H37_one_piece_too_few": {"size": 65537, "pieces": {"size": 65536, "sha256": [SHA]}},
    "H37_one_piece_too_many": {"size": 65536, "pieces": {"size": 65536, "sha256": [SHA, SHA]}},
    "H37_no_pieces": {"pieces": {"size": 65536, "sha256": []}},
    "H37_piece_that_is_no_digest": {"pieces": {"size": 65536, "sha256": ["ab"]}},
    "H37_pieces_of_no_known_size": {"size": None, "pieces": {"size": 65536, "sha256": [SHA]}},
}


@pytest.mark.parametrize("name", BAD_ARTIFACTS)
def test_a_malformed_artifact_is_refused(name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(with_artifact(**BAD_ARTIFACTS[name]))
    assert "password" not in "".join((str(caught.value), *caught.value.facts))


def test_T18_an_at_sign_that_names_no_user_is_accepted() -> None:
    for url in (
        "https://host/a@b/c.tar.gz",
        "https://host/a?b=c@d",
        "pkg:pypi/p@1?file_name=p.whl",
    ):
        (variant,) = parse(with_artifact(url=url)).platforms["linux-amd64"].variants
        assert variant.artifacts[0].url == url


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xa0\x80", b'{"a": "\xc3"}', b"\x00"])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        manifest.parse_release(VerifiedBytes(data))


# --- properties ---------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def understood_or_refused(data: bytes) -> None:
    try:
        release = manifest.parse_release(VerifiedBytes(data))
    except ManifestError:
        return
    for platform in release.platforms.values():
        assert platform.variant(platform.default)


@given(requires=JSON)
def test_any_requirement_is_understood_or_named(requires: Any) -> None:
    made = document()
    variants = made["platforms"]["linux-amd64"]["variants"]
    variants["newer"] = {**variants["cpu"], "requires": requires}
    try:
        release = parse(made)
    except ManifestError:
        return  # JSON that the strict reader refuses, such as a float
    newer = release.platforms["linux-amd64"].variants[1]
    known = (
        isinstance(requires, dict) and requires.keys() <= Requirements.__dataclass_fields__.keys()
    )
    assert newer.requires.unknown or known


@given(st.binary())
def test_any_bytes_give_a_release_or_a_manifest_error(data: bytes) -> None:
    understood_or_refused(data)


@given(JSON)
def test_any_json_gives_a_release_or_a_manifest_error(value: Any) -> None:
    understood_or_refused(json.dumps(value).encode())


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document."""
    if not isinstance(value, dict | list):
        return [at]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [at, *(path for key, each in inner for path in places(each, (*at, key)))]


def replaced(value: Any, at: tuple[Any, ...], by: Any) -> Any:
    if not at:
        return by
    changed = value.copy()
    changed[at[0]] = replaced(value[at[0]], at[1:], by)
    return changed


WHOLE = document(
    requires={"cuda": {"toolkit": "13.4", "sass": ["8.6"], "ptx": ["7.5"]}, "npu": 1},
    arguments=["--device"],
)


@given(at=st.sampled_from(places(WHOLE)), by=JSON)
@settings(max_examples=300)
def test_any_value_in_any_place_gives_a_release_or_a_manifest_error(
    at: tuple[Any, ...], by: Any
) -> None:
    understood_or_refused(json.dumps(replaced(WHOLE, at, by)).encode())


# --- entries ------------------------------------------------------------------------------


def entry(custom: Any) -> manifest.ReleaseEntry:
    return manifest.parse_entry(Target("releases/b2.json", 1, SHA, custom))


GOOD_ENTRY = {
    "release": "b2",
    "sequence": 2,
    "publisher": "p",
    "published": "2026-10-05",
    "channels": ["stable"],
}


def test_an_entry_is_parsed() -> None:
    found = entry({**GOOD_ENTRY, "later": "ignored"})
    assert (found.release, found.sequence, found.channels) == ("b2", 2, ("stable",))
    assert found.version is None


@pytest.mark.parametrize(
    "change",
    [
        {"release": "../b2"},
        {"sequence": "2"},
        {"sequence": True},
        {"sequence": -1},
        {"channels": "stable"},
        {"channels": [1]},
        {"published": None},
        {"version": 2},
    ],
    ids=str,
)
def test_a_malformed_entry_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        entry(GOOD_ENTRY | change)


@given(JSON)
def test_any_entry_is_parsed_or_refused(custom: Any) -> None:
    with pytest.raises(ManifestError):
        entry(custom)
