"""The wheel of a signed repository: its bytes, its files, and the command that writes it."""

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from support.own_publisher import write_plan
from support.package_index import PLACE, PROJECT, PackageIndex
from support.program import PUBLISHER, Result, environment, run_program
from support.release_data import release_tool
from support.repository import FrozenCopy, RepositorySimulator, release_document

from tsuku_publish.errors import PublishError
from tsuku_publish.repository.checking import first_root, late_roles, verify
from tsuku_publish.repository.copies import EMBEDDED, RepositoryFolder, WheelCopy, copy_at
from tsuku_publish.repository.wheel import current_files, make_wheel, write_wheel


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b1"))
    return simulator


def own_data(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    write_plan(data, {"stable": []})
    return data


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_a_wheel_has_the_present_state_and_every_root(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A served folder also has the files of earlier states."""
    simulator.rotate("targets")
    simulator.publish(release_document("b2"))
    simulator.write(tmp_path / "served")
    path = write_wheel(tmp_path / "served", "Our.Metadata", tmp_path / "dist")
    name, version, _, tags = parse_wheel_filename(path.name)
    assert (name, str(version)) == ("our-metadata", str(simulator.timestamp.version))
    assert {str(tag) for tag in tags} == {"py3-none-any"}
    found = {
        each.removeprefix("our_metadata/"): data
        for each, data in members(path).items()
        if each.startswith("our_metadata/")
    }
    assert found == current_files(RepositoryFolder(tmp_path / "served"))
    assert {each for each in found if "root" in each} == {
        "metadata/1.root.json",
        "metadata/2.root.json",
    }
    assert sum("targets.json" in each for each in found) == 1
    assert len([each for each in found if each.startswith("targets/")]) == 2
    # It is whole: a client needs nothing else.
    assert current_files(FrozenCopy(found)) == found


def test_a_wheel_has_the_files_of_delegated_roles(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.delegate("nightly", "releases/n*.json")
    simulator.add(release_document("n5"), channels=["nightly"], role="nightly")
    simulator.bump()
    simulator.write(tmp_path / "served")
    path = write_wheel(tmp_path / "served", "ours", tmp_path / "dist")
    version = simulator.delegated["nightly"].version
    assert f"ours/metadata/{version}.nightly.json" in members(path)


def test_the_same_state_gives_the_same_bytes(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.write(tmp_path / "served")
    first = write_wheel(tmp_path / "served", "ours", tmp_path / "first")
    files = sorted((tmp_path / "served").rglob("*.json"), reverse=True)
    for file in files:
        file.touch()
    again = write_wheel(tmp_path / "served", "ours", tmp_path / "again")
    assert first.read_bytes() == again.read_bytes()
    assert write_wheel(tmp_path / "served", "ours", tmp_path / "first") == first


def test_the_record_has_every_file(simulator: RepositorySimulator, tmp_path: Path) -> None:
    simulator.write(tmp_path / "served")
    found = members(write_wheel(tmp_path / "served", "ours", tmp_path / "dist"))
    (record,) = (name for name in found if name.endswith("/RECORD"))
    lines = [line.split(",") for line in found.pop(record).decode().splitlines()]
    assert lines.pop() == [record, "", ""]
    assert {name: (digest, int(size)) for name, digest, size in lines} == {
        name: (
            "sha256="
            + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(),
            len(data),
        )
        for name, data in found.items()
    }


@pytest.mark.parametrize("name", ["", "-r", "two words", "a/b", "../up", "x==1", "x" * 101])
def test_a_name_that_pip_would_not_accept_is_refused(
    simulator: RepositorySimulator, tmp_path: Path, name: str
) -> None:
    simulator.write(tmp_path / "served")
    with pytest.raises(PublishError, match="name of a package"):
        write_wheel(tmp_path / "served", name, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_other_content_under_the_same_version_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.write(tmp_path / "served")
    path = write_wheel(tmp_path / "served", "ours", tmp_path / "dist")
    before = path.read_bytes()
    fork = RepositorySimulator()
    fork.publish(release_document("b2"))
    fork.write(tmp_path / "fork")
    with pytest.raises(PublishError, match="other content exists under the same version"):
        write_wheel(tmp_path / "fork", "ours", tmp_path / "dist")
    assert path.read_bytes() == before


def test_a_repository_that_clients_would_refuse_becomes_no_wheel(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.flip("metadata/timestamp.json", 800)
    simulator.write(tmp_path / "served")
    with pytest.raises(PublishError):
        write_wheel(tmp_path / "served", "ours", tmp_path / "dist")


def test_check_reads_the_wheel_and_counts_its_timestamp(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """It is published as often as a web server's; the program's own wheel is older."""
    simulator.write(tmp_path / "served")
    wheel = write_wheel(tmp_path / "served", "ours", tmp_path / "dist")
    copy = copy_at(str(wheel))
    repository = verify(copy, first_root(copy))
    warn, now = {"timestamp": 7}, simulator.timestamp.expires
    assert late_roles(copy, repository, warn, now) == ["timestamp (0 days left)"]
    assert not late_roles(
        WheelCopy(str(wheel), wheel.read_bytes(), EMBEDDED), repository, warn, now
    )
    wheel.write_bytes(b"")
    with pytest.raises(PublishError, match="is no wheel"):
        copy_at(str(wheel))


def test_check_reads_the_newest_wheel_of_a_package_index(
    simulator: RepositorySimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = PackageIndex(tmp_path / "index")
    for name, value in index.environ.items():
        monkeypatch.setenv(name, value)
    simulator.write(tmp_path / "signed")
    own = ("--data", str(own_data(tmp_path)))
    done = release_tool("check", str(tmp_path / "signed"), "--published", PLACE, *own)
    assert done.returncode == 1
    assert f"pip could not fetch {PROJECT}" in done.stderr
    index.upload(simulator.files, version=1)
    done = release_tool("check", str(tmp_path / "signed"), "--published", PLACE, *own)
    assert done.returncode == 0, done.stderr
    assert "timestamp 2 embedded, 2 published" in done.stdout
    simulator.publish(release_document("b2"))
    index.upload(simulator.files, version=2)
    done = release_tool("check", PLACE, *own)
    assert (done.returncode, "targets   version 3" in done.stdout) == (0, True), done.stderr
    done = release_tool("check", "pkg:pypi/--index-url=https://host.test/", *own)
    assert "names no package: write pkg:pypi/NAME" in done.stderr


def test_a_file_of_a_wheel_has_a_limit(simulator: RepositorySimulator, tmp_path: Path) -> None:
    files = {**simulator.files, "metadata/1.root.json": bytes(50_000_000)}
    path = tmp_path / "ours-1-py3-none-any.whl"
    path.write_bytes(make_wheel(files, "ours", 1))
    with pytest.raises(PublishError, match=r"1\.root\.json in .* has more than 5,000,000 bytes"):
        first_root(copy_at(str(path)))


def publish(tmp_path: Path, *words: str) -> Result:
    command = ("publish", "served", "--from", "signed", *words)
    env = environment(tmp_path / "home")
    return run_program(*command, env=env, cwd=tmp_path, command=PUBLISHER)


def test_publish_writes_the_wheel_of_what_is_served(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.write(tmp_path / "signed")
    half = publish(tmp_path, "--wheel", "dist")
    assert (half.code, "--package NAME" in half.stderr) == (2, True)
    assert not (tmp_path / "served").exists()
    done = publish(tmp_path, "--wheel", "dist", "--package", "ours", "--json")
    path = f"dist/ours-{simulator.timestamp.version}-py3-none-any.whl"
    assert (done.code, done.document["data"]["wheel"]) == (0, path), done.stderr
    expected = write_wheel(tmp_path / "signed", "ours", tmp_path / "expected")
    assert (tmp_path / path).read_bytes() == expected.read_bytes()
    assert publish(tmp_path, "--json").document["data"]["wheel"] is None
