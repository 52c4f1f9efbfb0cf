"""No release file is made without a proof of who built its archives, or a word that says so."""

import base64
import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.release_data import (
    DATA,
    answer_of,
    copied_data,
    forget_releases,
    release_process,
    release_tool,
)
from support.sigstore_instance import BEFORE, NOW, Build, SigstoreInstance

from tsuku_publish.errors import PublishError
from tsuku_publish.release_files import plan, releases
from tsuku_publish.release_files.documents import json_bytes
from tsuku_publish.release_files.refresh import Refresh
from tsuku_publish.upstream import attestations
from tsuku_publish.upstream.classify import load_rules
from tsuku_publish.upstream.facts import Facts, UpstreamRelease

TAG = "b11347"
PLAN = replace(plan.load_plan(DATA), channels={"nightly": (TAG,)})
RELEASE: UpstreamRelease = Facts(DATA / "facts").releases()[TAG]
FILES = {asset.name: asset.sha256 for asset in RELEASE.assets}
SIGSTORE = SigstoreInstance()
STRANGER = SigstoreInstance()

Bundle = dict[str, Any]
Identity = tuple[str, str]
MASTER = "refs/heads/master"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Facts of one release, of which nothing is excused."""
    data = copied_data(tmp_path / "data")
    forget_releases(data)
    Refresh(data, {}, lambda _: None).record(TAG, answer_of(RELEASE), "not the subject here")
    return data


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "trusted_root.json"
    path.write_bytes(SIGSTORE.trusted_root())
    return path


def lines(bundles: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(bundle).encode() + b"\n" for bundle in bundles)


def prove(data: Path, root: Path, *bundles: Bundle) -> None:
    """Attest, and make the release file: what ``sign`` does before it signs."""
    attestations.prove(data, load_rules(data), {}, TAG, [lines(bundles)], root)
    releases.release_files(PLAN, data, root)


def refused(data: Path, root: Path, said: str, *bundles: Bundle) -> None:
    """Nothing is recorded of these bundles; stored by hand, they are refused too."""
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    with pytest.raises(PublishError, match=said):
        attestations.prove(data, load_rules(data), {}, TAG, [lines(bundles)], root)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    attestations.store(data, TAG, bundles)
    with pytest.raises(PublishError, match=said if bundles else "no attestation is recorded"):
        releases.release_files(PLAN, data, root)


# --- what is accepted ---------------------------------------------------------------------


def test_upstreams_own_build_is_accepted(data: Path, root: Path) -> None:
    prove(data, root, SIGSTORE.attest(FILES))
    (made,) = releases.release_files(PLAN, data, root)
    assert b"unattested" not in made.data


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        # ``on`` of release.yml: a push to master, or a person.
        ("b11347", {(BEFORE, MASTER)}),
        # Between the last source of the one and the first of the other.
        ("b11360", {(BEFORE, MASTER), (NOW, MASTER)}),
        # A project verifies b11424 with this workflow and ref; a run of `workflow_run` has no tag.
        ("b11424", {(NOW, MASTER)}),
        ("b12429", {(NOW, MASTER)}),
    ],
)
def test_who_attests_is_what_upstreams_source_says(tag: str, expected: set[Identity]) -> None:
    assert {*attestations.identities(tag, load_rules(DATA))} == expected


def test_a_build_is_not_accepted_from_the_workflow_of_later_ones(data: Path, root: Path) -> None:
    refused(
        data, root, "got https://.*release-publish.yml", SIGSTORE.attest(FILES, Build(workflow=NOW))
    )


def test_each_archive_may_have_its_own_bundle(data: Path, root: Path) -> None:
    bundles = [SIGSTORE.attest({name: digest}) for name, digest in FILES.items()]
    foreign = SIGSTORE.attest({"llama.h": "00" * 32})
    prove(data, root, foreign, *bundles)
    kept = (data / "facts" / "attestations" / f"{TAG}.jsonl").read_text().splitlines()
    assert all("llama.h" not in base64.b64decode(_payload(line)).decode() for line in kept)


def _payload(line: str) -> str:
    return str(json.loads(line)["dsseEnvelope"]["payload"])


def test_further_attestations_change_nothing(data: Path, root: Path) -> None:
    prove(
        data,
        root,
        SIGSTORE.attest(FILES, predicate="https://in-toto.io/attestation/release/v0.1"),
        STRANGER.attest(FILES),
        SIGSTORE.attest(FILES),
    )


def test_every_form_of_bundles_is_read() -> None:
    bundle = SIGSTORE.attest(FILES)
    served = {"attestations": [{"bundle": bundle, "repository_id": 1}]}
    for given in (json.dumps(bundle, indent=1), json.dumps(served), lines([bundle]).decode()):
        assert attestations.bundles_in(given.encode()) == [bundle]
    assert attestations.bundles_in(lines([bundle, bundle])) == [bundle, bundle]
    for junk in (b"{", b"[1]", b'{"attestations": [{}]}', b'{"attestations": 1}', b"7"):
        with pytest.raises(PublishError, match="no file of attestation bundles"):
            attestations.bundles_in(junk)


def test_the_commands_of_the_documents_work(data: Path, root: Path, tmp_path: Path) -> None:
    stored = tmp_path / "bundles.jsonl"
    stored.write_bytes(lines([SIGSTORE.attest(FILES)]))
    options = ("--trusted-root", root, "--data", data)
    done = release_tool("attest", TAG, "--bundle", stored, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{TAG}: 31 archives come from ggml-org/llama.cpp\n"
    done = release_process("attest", TAG, "--bundle", stored, "--data", data)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is not proven: a bundle is not valid" in done.stderr


def test_an_excuse_is_written_into_the_release_file(data: Path, root: Path) -> None:
    prove(data, root, SIGSTORE.attest(FILES))
    done = release_tool("attest", TAG, "--unattested", "Made before they were.", "--data", data)
    assert done.returncode == 0, done.stderr
    (made,) = releases.release_files(PLAN, data)
    document = json.loads(made.data)
    assert document["unattested"] == "Made before they were."
    assert json_bytes(document) == made.data
    assert not (data / "facts" / "attestations" / f"{TAG}.jsonl").exists()
    prove(data, root, SIGSTORE.attest(FILES))
    (made,) = releases.release_files(PLAN, data, root)
    assert b"unattested" not in made.data


# --- what is not --------------------------------------------------------------------------


def test_R01_attestation_missing(data: Path, root: Path) -> None:
    refused(data, root, "no attestation names it with its digest")
    with pytest.raises(PublishError, match=f"no attestation is recorded; run: attest {TAG}"):
        releases.release_files(PLAN, data, root)


def test_R01_attestation_of_one_archive_missing(data: Path, root: Path) -> None:
    name = f"llama-{TAG}-bin-win-vulkan-x64.zip"
    few = {each: digest for each, digest in FILES.items() if each != name}
    refused(data, root, f"the origin of {name} is not proven: no", SIGSTORE.attest(few))


@pytest.mark.parametrize(
    "repository",
    ["https://github.com/somebody/llama.cpp", "https://github.com/ggml-org/llama.cpp-fork"],
)
def test_R02_another_repository_or_a_fork(data: Path, root: Path, repository: str) -> None:
    bundle = SIGSTORE.attest(FILES, Build(repository=repository))
    refused(data, root, f"OIDCSourceRepositoryURI does not match .got {repository}", bundle)


def test_R02_a_fork_that_calls_upstreams_workflow(data: Path, root: Path) -> None:
    class Borrowed(Build):
        def claims(self) -> dict[int, str]:
            return super().claims() | {12: "https://github.com/somebody/llama.cpp"}

    refused(data, root, "OIDCSourceRepositoryURI", SIGSTORE.attest(FILES, Borrowed()))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (Build(workflow=".github/workflows/test.yml"), "test.yml@refs/heads/master"),
        (Build(ref="refs/heads/experiment"), "got refs/heads/experiment"),
        # A person can start release.yml on a branch or a tag, which name any commit.
        (Build(ref=f"refs/heads/{TAG}"), f"got refs/heads/{TAG}"),
        (Build(ref=f"refs/tags/{TAG}"), f"got refs/tags/{TAG}"),
        (Build(ref="refs/pull/7/merge"), "got refs/pull/7/merge"),
        (Build(issuer="https://gitlab.com"), "got https://gitlab.com"),
    ],
    ids=["workflow", "branch", "branch of the tag's name", "tag", "pull", "issuer"],
)
def test_R03_another_workflow_or_ref(data: Path, root: Path, build: Build, said: str) -> None:
    refused(data, root, said, SIGSTORE.attest(FILES, build))


def test_R03_a_ref_that_its_workflow_contradicts(data: Path, root: Path) -> None:
    class Mixed(Build):
        def claims(self) -> dict[int, str]:
            return super().claims() | {14: f"refs/tags/{TAG}"}

    refused(data, root, "does not match", SIGSTORE.attest(FILES, Mixed()))


def test_R04_a_self_hosted_runner(data: Path, root: Path) -> None:
    bundle = SIGSTORE.attest(FILES, Build(runner="self-hosted"))
    refused(data, root, "OIDCRunnerEnvironment does not match .got self-hosted", bundle)


def test_R05_the_digest_is_not_among_the_subjects(data: Path, root: Path) -> None:
    name = f"llama-{TAG}-bin-ubuntu-x64.tar.gz"
    other = FILES | {name: "00" * 32}
    refused(data, root, f"the origin of {name} is not proven: no", SIGSTORE.attest(other))


def test_R05_a_digest_under_another_name(data: Path, root: Path) -> None:
    """An older build, truly attested, under the name of this one."""
    older = {name.replace(TAG, "b11118"): digest for name, digest in FILES.items()}
    refused(data, root, "no attestation names it", SIGSTORE.attest(older))


def changed_payload(bundle: Bundle) -> None:
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    envelope["payload"] = base64.b64encode(payload.replace(b"tests", b"TESTS")).decode()


def changed_signature(bundle: Bundle) -> None:
    signature = bytearray(base64.b64decode(bundle["dsseEnvelope"]["signatures"][0]["sig"]))
    signature[-1] ^= 1
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(signature).decode()


def changed_time(bundle: Bundle) -> None:
    bundle["verificationMaterial"]["tlogEntries"][0]["integratedTime"] = "1800000000"


def changed_root(bundle: Bundle) -> None:
    proof = bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"]
    proof["rootHash"] = base64.b64encode(bytes(32)).decode()


def no_entry(bundle: Bundle) -> None:
    bundle["verificationMaterial"]["tlogEntries"] = []


def other_certificate(bundle: Bundle) -> None:
    other = SIGSTORE.attest(FILES)["verificationMaterial"]
    bundle["verificationMaterial"]["certificate"] = other["certificate"]


def other_envelope(bundle: Bundle) -> None:
    bundle["dsseEnvelope"] = SIGSTORE.attest(FILES)["dsseEnvelope"]


def no_envelope(bundle: Bundle) -> None:
    del bundle["dsseEnvelope"]


def junk(bundle: Bundle) -> None:
    bundle["verificationMaterial"] = {"certificate": {"rawBytes": "AAAA"}}


@pytest.mark.parametrize(
    "tamper",
    [
        changed_payload,
        changed_signature,
        changed_time,
        changed_root,
        no_entry,
        other_certificate,
        other_envelope,
        no_envelope,
        junk,
    ],
    ids=lambda tamper: tamper.__name__,
)
def test_R06_a_tampered_bundle(data: Path, root: Path, tamper: Callable[[Bundle], None]) -> None:
    bundle = SIGSTORE.attest(FILES)
    prove(data, root, copy.deepcopy(bundle))
    tamper(bundle)
    refused(data, root, "a bundle is not valid", bundle)


def test_R06_a_bundle_that_another_authority_signed(data: Path, root: Path) -> None:
    refused(data, root, "a bundle is not valid", STRANGER.attest(FILES))


def test_R06_an_untrusted_log(data: Path, root: Path) -> None:
    """The certificate is genuine, the log that says when it was used is not."""
    mixed = replace(SIGSTORE, entries=STRANGER.entries)
    refused(data, root, "a bundle is not valid", mixed.attest(FILES))


def test_R06_a_certificate_that_was_never_logged(data: Path, root: Path) -> None:
    mixed = replace(SIGSTORE, certificates=STRANGER.certificates)
    refused(data, root, "a bundle is not valid: failed to verify SCT", mixed.attest(FILES))


@pytest.mark.parametrize(
    "predicate",
    [
        "https://slsa.dev/provenance/v0.2",
        "https://slsa.dev/provenance/v1.1",
        "https://spdx.dev/Document/v2.3",
        "https://in-toto.io/attestation/release/v0.1",
    ],
)
def test_R07_another_predicate(data: Path, root: Path, predicate: str) -> None:
    refused(
        data, root, f"its predicate is {predicate}", SIGSTORE.attest(FILES, predicate=predicate)
    )


def test_R07_another_kind_of_statement(data: Path, root: Path) -> None:
    bundle = SIGSTORE.attest(FILES, statement="https://in-toto.io/Statement/v0.1")
    refused(data, root, "no in-toto statement", bundle)


def test_archives_of_two_commits_are_no_release(data: Path, root: Path) -> None:
    names = sorted(FILES)
    halves = [{name: FILES[name] for name in half} for half in (names[:9], names[9:])]
    bundles = [
        SIGSTORE.attest(half, Build(commit=commit * 20))
        for half, commit in zip(halves, ("1a", "2b"), strict=True)
    ]
    refused(data, root, "was built from 2 commits", *bundles)


def test_a_trusted_root_of_another_kind_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "root.json"
    for text in ("", "{}", '{"mediaType": "text/plain"}'):
        path.write_text(text)
        with pytest.raises(PublishError, match="no trusted root"):
            attestations.load_root(path)


def test_the_public_trusted_root_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert attestations.load_root(None).get_fulcio_certs()
