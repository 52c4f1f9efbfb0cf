"""The client that the TUF conformance suite drives, for machines without the suite."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import RepositorySimulator, release_document

CLIENT = Path(__file__).parents[2] / "ci" / "conformance" / "client"
TARGET = "releases/b2.json"


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b2"))
    return simulator


@pytest.fixture
def folder(tmp_path: Path, simulator: RepositorySimulator) -> Path:
    """Where the client was initialised, beside the published repository."""
    for name in ("published", "trusted", "targets"):
        (tmp_path / name).mkdir()
    (tmp_path / "initial.json").write_bytes(simulator.pinned_root)
    simulator.write(tmp_path / "published")
    assert client(tmp_path, "init", str(tmp_path / "initial.json")) == 0
    return tmp_path


def client(folder: Path, *command: str) -> int:
    base = (folder / "published").as_uri()
    line = [
        *(sys.executable, str(CLIENT), "--metadata-dir", str(folder / "trusted")),
        *("--metadata-url", f"{base}/metadata/", "--target-base-url", f"{base}/targets/"),
        *("--target-dir", str(folder / "targets")),
    ]
    done = subprocess.run([*line, *command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode


def trusted(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in (folder / "trusted").glob("*.json")}


def test_a_refresh_shows_what_is_trusted(folder: Path, simulator: RepositorySimulator) -> None:
    assert trusted(folder) == {"root": simulator.pinned_root}
    assert client(folder, "refresh") == 0
    assert trusted(folder) == {
        "root": simulator.pinned_root,
        "timestamp": simulator.files["metadata/timestamp.json"],
        "snapshot": simulator.files["metadata/2.snapshot.json"],
        "targets": simulator.files["metadata/2.targets.json"],
    }


def test_a_target_is_given_once_it_is_verified(
    folder: Path, simulator: RepositorySimulator
) -> None:
    assert client(folder, "--target-name", TARGET, "download") == 0
    (found,) = (folder / "targets").iterdir()
    (name,) = [name for name in simulator.files if name.startswith("targets/")]
    assert found.read_bytes() == simulator.files[name]


def test_what_nobody_signed_is_refused(folder: Path, simulator: RepositorySimulator) -> None:
    assert client(folder, "--target-name", "releases/b3.json", "download") == 1
    assert client(folder, "refresh") == 0
    before = trusted(folder)
    simulator.bump()
    simulator.sign_timestamp([])
    simulator.write(folder / "published")
    assert client(folder, "refresh") == 1
    assert trusted(folder) == before
