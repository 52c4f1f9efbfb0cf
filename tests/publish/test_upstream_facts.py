"""From the hosting service's answer to recorded facts and release files."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.builds import Packed, compile_library, compile_stand_in, pack_tar
from support.fatbins import ONE_DEVICE, PTX, SASS, container, entry, library
from support.release_data import (
    DATA,
    answer,
    answer_for,
    answer_of,
    asset,
    copied_data,
    forget_releases,
    release_tool,
)

from tsuku_publish.errors import PublishError
from tsuku_publish.release_files import plan, releases
from tsuku_publish.release_files.refresh import Refresh
from tsuku_publish.upstream.facts import Facts

TAG = "b99001"
DIGEST = "5e" * 32
PLAN = plan.load_plan(DATA)
FACTS = Facts(DATA / "facts").releases()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return copied_data(tmp_path / "data")


def refresh(data: Path, tag: str, given: bytes | None) -> list[str]:
    said: list[str] = []
    Refresh(data, {}, said.append).record(tag, given, None)
    return said


def excuse(data: Path, tag: str, *what: str) -> None:
    facts = Facts(data / "facts")
    for each in what:
        facts.excuse(tag, each, getattr(FACTS.get(tag), each, "Not the subject here."))
    facts.save()


def only(tag: str, data: Path) -> Any:
    """The release file of one recorded release."""
    excuse(data, tag, "unattested")
    (made,) = releases.release_files(replace(PLAN, channels={"nightly": (tag,)}), data)
    return json.loads(made.data)


# --- the answer ---------------------------------------------------------------------------


def naming(tag: str) -> str:
    """The text of a stable version, as scripts/make-release-desc.sh of upstream writes it."""
    return f"## Assets\n\n**Nightly build:** [{tag}](https://example.org/releases/tag/{tag})\n"


def test_the_same_facts_give_the_same_release_files(data: Path) -> None:
    """Byte for byte the files in manifests/, and the signed entries."""
    before = releases.release_files(PLAN, data)
    forget_releases(data)
    for release in FACTS.values():
        refresh(data, release.tag, answer_of(release))
        excuse(data, release.tag, "unattested", "unmeasured")
    for version, tag in (("v0.5.0", "b11146"), ("v0.6.0", "b11429")):
        given = answer(version, [], body=naming(tag))
        assert refresh(data, version, given) == [f"{version} is {tag}"]
    assert releases.release_files(PLAN, data) == before


def test_the_command_takes_a_stored_answer(data: Path, tmp_path: Path) -> None:
    stored = tmp_path / "answer.json"
    stored.write_bytes(answer_of(FACTS["b11429"]))
    before = (data / "facts" / "upstream-releases.json").read_text()
    done = release_tool("refresh", "b11429", "--answer", stored, "--data", data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "b11429: 23 assets, published 2026-10-05\n"
    after = (data / "facts" / "upstream-releases.json").read_text()
    assert json.loads(after) == json.loads(before)


def test_unknown_facts_are_added_and_known_ones_stay(data: Path) -> None:
    release = FACTS["b11429"]
    assert any(each.size is None for each in release.assets)
    sized = tuple(replace(each, size=each.size or 4711) for each in release.assets)
    refresh(data, "b11429", answer_of(replace(release, assets=sized, published="2027-01-01")))
    after = Facts(data / "facts").releases()["b11429"]
    assert after == replace(release, assets=sized)


def changed_digest(assets: list[dict[str, Any]]) -> None:
    assets[3]["digest"] = f"sha256:{DIGEST}"


def changed_url(assets: list[dict[str, Any]]) -> None:
    assets[3]["browser_download_url"] += "?other"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed_digest, f"has sha256 {DIGEST} now"),
        (changed_url, "has url https"),
        (lambda assets: assets.pop(), "llama-b11429-bin-win-vulkan-x64.zip is recorded and not"),
    ],
    ids=["digest", "url", "gone"],
)
def test_a_later_change_by_upstream_stops_the_tool(
    data: Path, change: Callable[[list[dict[str, Any]]], None], said: str
) -> None:
    document = json.loads(answer_of(FACTS["b11429"]))
    change(document["assets"])
    before = (data / "facts" / "upstream-releases.json").read_bytes()
    with pytest.raises(PublishError, match=said):
        refresh(data, "b11429", json.dumps(document).encode())
    assert (data / "facts" / "upstream-releases.json").read_bytes() == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "no JSON"),
        (b"[]", "no release"),
        (b'{"message": "API rate limit exceeded"}', "no release"),
        (answer("b2", []), "the answer is for b2"),
        (answer(TAG, [], draft=True), "not published yet"),
        (answer(TAG, [], published_at=None), "not published yet"),
        (answer(TAG, [{"name": "llama"}]), "an asset has no 'browser_download_url'"),
        (answer(TAG, ["llama"]), "an asset has no"),
        (answer(TAG, [asset(TAG, "a", "xyz", 1)]), "no SHA-256 for a"),
        (answer(TAG, [asset(TAG, "a", DIGEST, 1) | {"digest": None}]), "no SHA-256 for a"),
        (answer(TAG, [asset(TAG, "a", DIGEST, -1)]), "no size that can be true"),
        (answer(TAG, [asset(TAG, "a", DIGEST, 1) | {"size": "1"}]), "no size that can be true"),
        (answer(TAG, [asset(TAG, "a", DIGEST, 1) | {"state": "starter"}]), "not uploaded yet"),
        (answer(TAG, [asset(TAG, "llama-b99001-new.zip", DIGEST, 1)]), "no rule knows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_that_cannot_be_used_is_one_line_and_changes_nothing(
    data: Path, tmp_path: Path, given: bytes, said: str
) -> None:
    before = (data / "facts" / "upstream-releases.json").read_bytes()
    stored = tmp_path / "answer.json"
    stored.write_bytes(given)
    done = release_tool("refresh", TAG, "--answer", stored, "--data", data)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error[publish]: b99001")
    assert said in done.stderr
    assert (data / "facts" / "upstream-releases.json").read_bytes() == before


@pytest.mark.parametrize("body", ["", "crashes since b11429", "b11429", None])
def test_a_stable_version_has_to_name_one_build(data: Path, body: str | None) -> None:
    with pytest.raises(PublishError, match="one build is expected"):
        refresh(data, "v0.7.0", answer("v0.7.0", [], body=body))


def test_a_stable_version_does_not_move(data: Path) -> None:
    with pytest.raises(PublishError, match="b11429 is recorded"):
        refresh(data, "v0.6.0", answer("v0.6.0", [], body=naming("b11541")))


# --- the archives -------------------------------------------------------------------------

CPU = f"llama-{TAG}-bin-ubuntu-x64.tar.gz"
CUDA = f"llama-{TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz"
COMPANION = f"cudart-llama-{TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Packed]:
    """A CPU build, a CUDA build and its companion, compiled and packed as upstream does."""
    folder = tmp_path_factory.mktemp("upstream")
    cpu, cuda, companion = (folder / name for name in ("cpu", "cuda", "companion"))
    for build in (cpu, cuda):
        build.mkdir()
        compile_stand_in(build / "llama-server")
        compile_library(build / "libllama.so.0.1.0", "int one(void) { return 1; }")
        (build / "libllama.so.0.1.0").chmod(0o644)
        shutil.copy2(build / "libllama.so.0.1.0", build / "libllama.so.0")
        (build / "LICENSE").write_text("MIT")
    code = container(entry(SASS, 86), entry(SASS, 120, ONE_DEVICE), entry(PTX, 80))
    companion.mkdir()
    runtime = compile_library(companion / "libcudart.so.13", "int cuda(void) { return 2; }")
    library(cuda / "libggml-cuda.so", code, f"-Wl,--no-as-needed,{runtime}")
    library(companion / "libcublas.so.13", container(entry(SASS, 75)))
    out = folder / "archives"
    out.mkdir()
    root = f"llama-{TAG}"
    stem = COMPANION.removesuffix(".tar.gz")
    packed = [
        pack_tar(cpu, out / CPU, root=root),
        pack_tar(cuda, out / CUDA, root=root),
        pack_tar(companion, out / COMPANION, root=stem),
    ]
    return {each.path.name: each for each in packed}


def recorded(data: Path, archives: Mapping[str, Packed], tmp_path: Path) -> str:
    """Refresh from a stored answer and a folder of archives; gives what the tool said."""
    stored = tmp_path / "answer.json"
    stored.write_bytes(answer_for(TAG, archives.values()))
    folder = next(iter(archives.values())).path.parent
    done = release_tool(
        "refresh", TAG, "--answer", stored, "--download", "--from", folder, "--data", data
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_archives_are_listed_and_measured(
    data: Path, archives: Mapping[str, Packed], tmp_path: Path
) -> None:
    said = recorded(data, archives, tmp_path)
    assert "libggml-cuda.so: sass 8.6 12.0a; ptx 8.0" in said
    variants = only(TAG, data)["platforms"]["linux-amd64"]["variants"]
    cuda = variants["cuda-13.4"]
    assert cuda["requires"]["cuda"] == {"toolkit": "13.4", "sass": ["8.6", "12.0a"], "ptx": ["8.0"]}
    assert cuda["requires"]["glibc"] == variants["cpu"]["requires"]["glibc"]
    assert cuda["requires"]["glibc"].startswith("2.")
    (listed,) = variants["cpu"]["artifacts"]
    assert listed["size"] == archives[CPU].size
    assert [file["path"] for file in listed["files"]] == [
        "LICENSE", "libllama.so.0.1.0", "llama-server",
    ]  # fmt: skip
    assert [file.get("executable", False) for file in listed["files"]] == [True, False, True]
    assert listed["links"] == [{"path": "libllama.so.0", "target": "libllama.so.0.1.0"}]
    assert listed["pieces"] == {"size": 4 << 20, "sha256": [archives[CPU].sha256]}


def test_reading_twice_records_the_same(
    data: Path, archives: Mapping[str, Packed], tmp_path: Path
) -> None:
    recorded(data, archives, tmp_path)
    before = {path: path.read_bytes() for path in data.rglob("*.json")}
    recorded(data, archives, tmp_path)
    assert {path: path.read_bytes() for path in data.rglob("*.json")} == before
    assert {each.sha256 for each in archives.values()} <= {path.stem for path in before}


def test_an_archive_with_another_digest_stops_the_tool(
    data: Path, archives: Mapping[str, Packed], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for packed in archives.values():
        shutil.copy2(packed.path, tmp_path / "folder")
    with (tmp_path / "folder" / CUDA).open("ab") as file:
        file.write(b"more")
    refresh(data, TAG, answer_for(TAG, archives.values()))
    with pytest.raises(PublishError, match=f"{CUDA} is another file"):
        Refresh(data, {}, lambda _: None).read_archives(TAG, tmp_path / "folder")
    (tmp_path / "folder" / CUDA).unlink()
    with pytest.raises(PublishError, match=f"has no {CUDA}"):
        Refresh(data, {}, lambda _: None).read_archives(TAG, tmp_path / "folder")


def test_an_archive_of_another_size_stops_the_tool(
    data: Path, archives: Mapping[str, Packed]
) -> None:
    packed = replace(archives[CPU], size=archives[CPU].size + 1)
    refresh(data, TAG, answer_for(TAG, [packed]))
    with pytest.raises(PublishError, match=f"{CPU} has {packed.size - 1} bytes, and {packed.size}"):
        Refresh(data, {}, lambda _: None).read_archives(TAG, packed.path.parent)


def test_R08_a_release_whose_archives_were_not_read_is_not_signed(
    data: Path, archives: Mapping[str, Packed], tmp_path: Path
) -> None:
    refresh(data, TAG, answer_for(TAG, archives.values()))
    with pytest.raises(PublishError, match=f"no files are listed for .*{CUDA}.*refresh {TAG}"):
        only(TAG, data)
    recorded(data, archives, tmp_path)
    (data / "facts" / "archives" / f"{archives[COMPANION].sha256}.json").unlink()
    with pytest.raises(PublishError, match=f"no files are listed for {COMPANION};"):
        only(TAG, data)
    recorded(data, archives, tmp_path)
    assert only(TAG, data)["release"] == TAG


def test_R08_a_release_is_signed_without_reading_if_the_facts_say_why(
    data: Path, archives: Mapping[str, Packed], tmp_path: Path
) -> None:
    stored = tmp_path / "answer.json"
    stored.write_bytes(answer_for(TAG, archives.values()))
    arguments = ("--answer", stored, "--data", data, "--unmeasured", "Nobody could download them.")
    done = release_tool("refresh", TAG, *arguments)
    assert done.returncode == 0, done.stderr
    document = only(TAG, data)
    assert "files" not in json.dumps(document)
    assert document["unmeasured"] == "Nobody could download them."
    recorded(data, archives, tmp_path)
    assert Facts(data / "facts").releases()[TAG].unmeasured is None
    assert "unmeasured" not in only(TAG, data)


def test_an_archive_that_the_program_would_refuse_stops_the_tool(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "llama-server").write_bytes(b"\x7fELF, and then no more")
    folder.mkdir()
    elsewhere = pack_tar(tmp_path / "build", folder / CPU, root="another-root")
    refresh(data, TAG, answer_for(TAG, [elsewhere]))
    with pytest.raises(PublishError, match="outside the archive's top folder"):
        Refresh(data, {}, lambda _: None).read_archives(TAG, folder)


def test_a_damaged_program_in_an_archive_stops_the_tool(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "llama-server").write_bytes(b"\x7fELF, and then no more")
    packed = pack_tar(tmp_path / "build", folder / CPU, root=f"llama-{TAG}")
    refresh(data, TAG, answer_for(TAG, [packed]))
    with pytest.raises(PublishError, match="llama-server: it is a damaged ELF file"):
        Refresh(data, {}, lambda _: None).read_archives(TAG, folder)
