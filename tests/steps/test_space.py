"""What an install takes on the disk, in figures."""

import os
from pathlib import Path

import pytest

from tsuku_llm import fetch
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.tree_entry import FileEntry
from tsuku_llm.steps.install.downloads import space_of


def artifact(size: int | None, *files: int) -> Artifact:
    listed = tuple(
        FileEntry(path=f"f{number}", size=count, sha256="0" * 64)
        for number, count in enumerate(files)
    )
    return Artifact(
        url="https://a.example/x", sha256="0" * 64, size=size, format="zip", files=listed or None
    )


def test_figures_are_exact_if_the_manifest_has_them() -> None:
    build, companion = artifact(30_000_000, 70_000_000, 5_000_000), artifact(10_000_000, 20_000_000)
    space = space_of((build, companion), (12_000_000, 0))
    assert space.needed == 28_000_000 + 95_000_000
    assert space.facts == (
        "download: 28.0 MB (the archives: 40.0 MB)",
        "unpacking: 95.0 MB",
        "installing: nothing more, as what was unpacked is renamed",
    )


def test_complete_downloads_are_not_counted_again() -> None:
    assert space_of((artifact(30, 70),), (30,)).needed == 70
    assert space_of((artifact(30, 70),), (99,)).needed == 70


def test_without_a_list_the_files_are_no_smaller_than_their_archive() -> None:
    space = space_of((artifact(30_000_000), artifact(10_000_000, 20_000_000)), (0, 0))
    assert space.needed == 40_000_000 + 50_000_000
    assert space.facts[1] == "unpacking: at least 50.0 MB, the exact size is unknown"


def test_unknown_sizes_are_shown_as_unknown() -> None:
    space = space_of((artifact(None),), (0,))
    assert space.needed == 0
    assert space.facts[:2] == ("download: unknown (the archives: unknown)", "unpacking: unknown")
    space = space_of((artifact(None), artifact(1_000_000, 2_000_000)), (0, 0))
    assert space.needed == 3_000_000
    assert space.facts[0].startswith("download: at least 1.0 MB, the exact size is unknown")


def test_the_partial_file_of_an_earlier_run_counts(tmp_path: Path) -> None:
    wanted = artifact(10)
    assert fetch.present(wanted, tmp_path) == fetch.present(wanted, tmp_path / "missing") == 0
    (tmp_path / f"{wanted.sha256}.part").write_bytes(b"half")
    assert fetch.present(wanted, tmp_path) == 4
    (tmp_path / wanted.sha256).write_bytes(b"whole file")
    assert fetch.present(wanted, tmp_path) == 10


@pytest.mark.skipif(os.name != "posix", reason="holes in files of POSIX")
def test_holes_and_special_files_take_no_space(tmp_path: Path) -> None:
    wanted = artifact(1 << 30)
    part = tmp_path / f"{wanted.sha256}.part"
    with part.open("wb") as file:
        file.truncate(1 << 30)
    if part.stat().st_blocks:
        pytest.skip("no holes on this file system")
    assert fetch.present(wanted, tmp_path) == 0
    part.unlink()
    part.mkdir()
    assert fetch.present(wanted, tmp_path) == 0
