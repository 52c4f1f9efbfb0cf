"""``tsuku-publish pack``: a build becomes archives of a release file."""

import gzip
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.program import Result
from support.repository import release_document
from support.schemas import check_output

from ci.schemas import PUBLISHER
from tsuku_llm.catalog.manifest import require_release
from tsuku_llm.ground.errors import ManifestError
from tsuku_publish.cli.main import run

Program = Callable[..., Result]
URL = "https://host.test/archives"


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str]) -> Program:
    """Run the publisher's command line in this process, as the client's is run here."""

    def start(*arguments: str) -> Result:
        done = Result(run(arguments), *capfd.readouterr())
        check_output(arguments, done.stdout, PUBLISHER)
        return done

    return start


@pytest.fixture
def build(tmp_path: Path) -> Path:
    tree = tmp_path / "build"
    tree.mkdir()
    (tree / "llama-server").write_bytes(b"a server")
    (tree / "llama-server").chmod(0o755)
    (tree / "libllama.so.0").write_bytes(b"a library")
    (tree / "libllama.so").symlink_to("libllama.so.0")
    return tree


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release file of one variant, still without archives."""
    document = release_document("b1")
    del document["platforms"]["linux-amd64"]["variants"]["cpu"]["artifacts"]
    path = tmp_path / "b1.json"
    path.write_text(json.dumps(document), "utf-8")
    return path


def words(build: Path, release: Path, *more: str) -> tuple[str, ...]:
    into = release.parent / "archives"
    chosen = ("--variant", "cpu", "--into", str(into), "--url", URL)
    return ("pack", str(build), str(release), *chosen, *more)


def artifacts(release: Path, platform: str = "linux-amd64") -> list[dict[str, Any]]:
    document = json.loads(release.read_text("utf-8"))
    return document["platforms"][platform]["variants"]["cpu"]["artifacts"]


def test_a_build_is_packed_and_entered(program: Program, build: Path, release: Path) -> None:
    done = program(*words(build, release))
    assert done.code == 0, done.stderr
    (entry,) = artifacts(release)
    archive = release.parent / "archives" / entry["url"].rpartition("/")[2]
    assert entry["url"] == f"{URL}/{archive.name}"
    assert entry["size"] == archive.stat().st_size
    assert [file["path"] for file in entry["files"]] == ["libllama.so.0", "llama-server"]
    assert [file.get("executable") for file in entry["files"]] == [None, True]
    assert entry["links"] == [{"path": "libllama.so", "target": "libllama.so.0"}]
    assert len(entry["pieces"]["sha256"]) == 1
    assert archive.name in done.stdout
    assert "cpu for linux-amd64 consists of 1 archive; sign it" in done.stdout


def test_the_json_says_what_was_written(
    as_json: Callable[..., Any], build: Path, release: Path
) -> None:
    first, again = (as_json(*words(build, release))["data"] for _ in range(2))
    (entry,) = artifacts(release)
    assert (first["platform"], first["variant"]) == ("linux-amd64", "cpu")
    assert first["release_file"] == str(release)
    (archive,) = first["archives"]
    assert archive == {
        "file": str(release.parent / "archives" / entry["url"].rpartition("/")[2]),
        "url": entry["url"],
        "sha256": entry["sha256"],
        "size": entry["size"],
        "format": "tar.gz",
        "written": True,
    }
    assert again["archives"] == [{**archive, "written": False}]


def tarball(build: Path, path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(build, "llama-b1")


def zip_file(build: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        for name in ("libllama.so.0", "llama-server"):
            packed.write(build / name, name)


@pytest.mark.parametrize(("name", "pack"), [("b1.tar.gz", tarball), ("b1.zip", zip_file)])
def test_an_upstream_archive_is_packed_like_its_folder(
    program: Program, build: Path, release: Path, name: str, pack: Callable[[Path, Path], None]
) -> None:
    """A tarball has a top folder and links, a zip file neither."""
    pack(build, release.parent / name)
    assert program(*words(release.parent / name, release)).code == 0
    from_archive = artifacts(release)
    if pack is zip_file:
        (build / "libllama.so").unlink()
    assert program(*words(build, release)).code == 0
    assert artifacts(release) == from_archive
    assert not list((release.parent / "archives").glob(".*")), "what was unpacked is gone"


def test_a_variant_of_several_platforms_needs_the_platform(
    program: Program, build: Path, release: Path
) -> None:
    document = json.loads(release.read_text("utf-8"))
    document["platforms"]["linux-arm64"] = {
        **document["platforms"]["linux-amd64"],
        "variants": {"cpu": {**release_document()["platforms"]["linux-amd64"]["variants"]["cpu"]}},
    }
    release.write_text(json.dumps(document), "utf-8")
    refused = program(*words(build, release))
    assert refused.code == 2
    assert "platform: linux-arm64" in refused.stderr
    assert program(*words(build, release, "--platform", "linux-amd64")).code == 0
    assert "host.test" in artifacts(release)[0]["url"]
    assert "host.test" not in artifacts(release, "linux-arm64")[0]["url"]


# --- several variants ---------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["no_key", "empty_list"])
def test_variants_are_packed_one_after_the_other(
    program: Program,
    as_json: Callable[..., Any],
    build: Path,
    release: Path,
    missing: str,
) -> None:
    document = json.loads(release.read_text("utf-8"))
    amd64 = document["platforms"]["linux-amd64"]
    if missing == "empty_list":
        amd64["variants"]["cpu"]["artifacts"] = []
    amd64["variants"]["avx512"] = {**amd64["variants"]["cpu"], "requires": {"x86_64_level": 4}}
    document["platforms"]["linux-arm64"] = {**amd64, "variants": {"cpu": amd64["variants"]["cpu"]}}
    release.write_text(json.dumps(document), "utf-8")

    first = program(*words(build, release, "--platform", "linux-amd64"))
    assert first.code == 0, first.stderr
    assert "still to pack: avx512 for linux-amd64, cpu for linux-arm64" in first.stdout
    assert len(artifacts(release)) == 1
    assert not artifacts_of(release, "linux-amd64", "avx512"), "nothing is made up"
    with pytest.raises(ManifestError):
        require_release(json.loads(release.read_text("utf-8")))

    (build / "llama-server").write_bytes(b"another server")
    second = as_json(*words(build, release, "--variant", "avx512"))["data"]
    assert second["not_packed"] == ["cpu for linux-arm64"]
    third = program(*words(build, release, "--platform", "linux-arm64"))
    assert "consists of 1 archive; sign it" in third.stdout
    require_release(json.loads(release.read_text("utf-8")))
    assert artifacts(release) != artifacts_of(release, "linux-amd64", "avx512")


def test_another_variant_that_clients_would_not_understand_is_an_error_at_once(
    program: Program, build: Path, release: Path
) -> None:
    document = json.loads(release.read_text("utf-8"))
    variants = document["platforms"]["linux-amd64"]["variants"]
    variants["later"] = {**variants["cpu"], "requires": {"glib": "2.34"}}
    release.write_text(json.dumps(document), "utf-8")
    refused = program(*words(build, release))
    assert refused.code == 2
    assert "variant later for linux-amd64 has unknown words: glib" in refused.stderr


def artifacts_of(release: Path, platform: str, variant: str) -> Any:
    document = json.loads(release.read_text("utf-8"))
    return document["platforms"][platform]["variants"][variant].get("artifacts")


# --- wrong use ----------------------------------------------------------------------------------


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Path], None]:
    def edit(_: Path, release: Path) -> None:
        document = json.loads(release.read_text("utf-8"))
        change(document)
        release.write_text(json.dumps(document), "utf-8")

    return edit


def cpu(document: dict[str, Any]) -> dict[str, Any]:
    return document["platforms"]["linux-amd64"]["variants"]["cpu"]


def text(content: bytes) -> Callable[[Path, Path], None]:
    return lambda _, release: release.write_bytes(content)


WRONG: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no_build": (lambda build, _: shutil.rmtree(build), "there is no file or folder"),
    "a_file": (
        lambda build, _: (shutil.rmtree(build), build.write_bytes(b"a file")),
        "is not a build",
    ),
    "no_server": (lambda build, _: (build / "llama-server").unlink(), "has no llama-server"),
    "outside": (
        lambda build, _: (build / "libx.so").symlink_to("../libx.so"),
        "no client would install it",
    ),
    "no_release": (lambda _, release: release.unlink(), "is no release file"),
    "not_json": (text(b"{"), "is no release file"),
    "not_utf8": (text(b"\xff"), "is no release file"),
    "a_list": (text(b"[]"), "is no release file"),
    "twice": (text(b'{"a": 1, "a": 2}'), "is no release file"),
    "deep": (text(b"[" * 100_000), "is no release file"),
    "no_platforms": (edited(lambda document: document.pop("platforms")), "is no release file"),
    "no_object": (edited(lambda d: d["platforms"].update({"linux-amd64": 1})), "no release file"),
    "variant_no_object": (
        edited(lambda d: d["platforms"]["linux-amd64"]["variants"].update(cpu=[])),
        "is no release file",
    ),
    "no_variant": (
        edited(lambda d: d["platforms"]["linux-amd64"]["variants"].clear()),
        "has no variants cpu",
    ),
    "variants_a_list": (
        edited(lambda d: d["platforms"].update({"linux-arm64": {"variants": ["x"]}})),
        "would not understand",
    ),
    "server_no_text": (edited(lambda d: cpu(d).update(server=["x"])), "names no server"),
    "incomplete": (edited(lambda document: document.pop("publisher")), "would not understand"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_clear_error_and_enters_nothing(
    program: Program, build: Path, release: Path, name: str
) -> None:
    spoil, message = WRONG[name]
    spoil(build, release)
    before = release.read_bytes() if release.exists() else None
    refused = program(*words(build, release))
    assert refused.code == 2, refused.stderr
    assert message in refused.stderr
    assert "hint: " in refused.stderr
    assert refused.stdout == ""
    assert (release.read_bytes() if release.exists() else None) == before


def test_a_plain_http_url_is_refused_before_anything_is_written(
    program: Program, build: Path, release: Path
) -> None:
    refused = program(*words(build, release, "--url", "http://host.test/"))
    assert (refused.code, "https URL" in refused.stderr) == (2, True)
    assert not (release.parent / "archives").exists()


def test_T18_a_password_in_the_url_of_the_archives_is_refused_and_not_shown(
    program: Program, build: Path, release: Path
) -> None:
    refused = program(*words(build, release, "--url", "https://anna:hunter2@host.test/"))
    assert (refused.code, "without a user and password" in refused.stderr) == (2, True)
    assert "hunter2" not in refused.stderr
    assert not (release.parent / "archives").exists()


def test_a_damaged_archive_is_the_same_error_as_in_an_install(
    program: Program, build: Path, release: Path
) -> None:
    broken = release.parent / "b1.tar.gz"
    tarball(build, broken)
    broken.write_bytes(broken.read_bytes()[:-20])
    assert program(*words(broken, release)).code == 5
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../evil"))
    broken.write_bytes(gzip.compress(evil.getvalue()))
    refused = program(*words(broken, release))
    assert (refused.code, "unsafe-archive" in refused.stderr) == (5, True)
    assert not list((release.parent / "archives").glob(".*"))


def test_a_file_in_the_place_of_the_folder_is_a_wrong_word(
    program: Program, build: Path, release: Path
) -> None:
    (release.parent / "archives").write_bytes(b"a file")
    done = program(*words(build, release))
    assert (done.code, "archives is a file" in done.stderr) == (2, True)
    assert (release.parent / "archives").read_bytes() == b"a file"


def test_the_release_file_in_the_documents_can_be_packed(
    program: Program, build: Path, release: Path
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "releases.md").read_text("utf-8")
    release.write_text(text.partition("```json\n")[2].partition("```")[0], "utf-8")
    done = program(*words(build, release, "--variant", "cuda-13.0"))
    assert done.code == 0, done.stderr
