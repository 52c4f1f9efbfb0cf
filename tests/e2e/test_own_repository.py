"""A repository of one's own, with the commands of docs/releases.md: from a folder to a server."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, stand_in
from support.own_publisher import SIGNERS, write_plan
from support.program import PUBLISHER, environment, run_program
from support.release_data import release_tool, signers_file
from support.release_server import ReleaseServer, User
from support.repository import release_document


def publisher(data: Path, *words: str | Path, **environ: str) -> None:
    """Type a command in the publisher's folder: ``tsuku-publish`` finds its data there."""
    env = environment(data.parent / "publisher", **environ)
    done = run_program(*map(str, words), env=env, cwd=data, command=PUBLISHER)
    assert done.code == 0, done.stderr


@pytest.fixture
def data(tmp_path: Path, shop: ReleaseServer) -> Path:
    """The publisher's folder: a plan, and the release file of one packed build."""
    data = tmp_path / "data"
    (data / "releases").mkdir(parents=True)
    write_plan(data, {"stable": ["b1"]})
    release = data / "releases" / "b1.json"
    document = release_document("b1", publisher="a company")
    release.write_text(json.dumps(document), "utf-8")
    tree = stand_in(tmp_path / "build", devices=NO_DEVICE_STEPS).tree
    into, url = str(shop.nginx.root / "archives"), f"{shop.nginx.url}/archives/"
    publisher(data, "pack", tree, release, "--variant", "cpu", "--into", into, "--url", url)
    return data


def files_of(folder: Path) -> Mapping[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_packed_build_is_signed_published_and_installed(
    tmp_path: Path, shop: ReleaseServer, data: Path
) -> None:
    environ = signers_file(tmp_path / "signers.json", *SIGNERS)
    publisher(data, "sign", "--yes", **environ)
    signed = files_of(data / "signed")
    publisher(data, "sign", "--yes", **environ)
    assert files_of(data / "signed") == signed, "a second run gives the same bytes"
    publisher(data, "publish", shop.nginx.root / "repository")
    publisher(data, "check", "--on", "2026-11-22")
    user = User(
        tmp_path / "home",
        environment(tmp_path / "home", SSL_CERT_FILE=str(shop.nginx.authority), NO_PROXY="*"),
    )
    root = str(data / "signed" / "metadata" / "1.root.json")
    added = user.run(
        "repository", "add", "company", f"{shop.nginx.url}/repository/", "--root", root
    )
    assert added.code == 0, added.stderr
    done = user.run("install", "--repository", "company")
    assert done.code == 0, done.stderr
    assert user.run("verify").code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be understood"),
        (json.dumps(release_document("b2")), "is about b2"),
        (json.dumps({**release_document("b1"), "publisher": 1}), "$.publisher"),
    ],
    ids=["torn", "another_release", "not_understood"],
)
def test_a_release_file_that_clients_would_refuse_is_not_signed(
    tmp_path: Path, data: Path, content: str, message: str
) -> None:
    (data / "releases" / "b1.json").write_text(content, "utf-8")
    environ = signers_file(tmp_path / "signers.json", *SIGNERS)
    done = release_tool("sign", "--data", data, "--into", tmp_path / "signed", **environ)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "signed").exists()
