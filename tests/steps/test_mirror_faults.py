"""A mirror run that is killed, or whose disk is full, at random points; the next one ends the same.

In the suite a sample of the points is taken; ``ci/faults C13 C14`` takes all 200.
"""

import hashlib
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.interruptions import child, counting, mount, own_mounts, points

from tsuku_llm.ground.errors import NoSpace
from tsuku_llm.steps.session import Session
from tsuku_operator.mirror.mirror import check_mirror, mirror
from tsuku_operator.mirror.mirror_choice import Narrowing


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    """Archives whose sizes are not signed: so no run can know early that the disk is too small."""
    shop = FolderShop(tmp_path_factory.mktemp("shops") / "shop")
    for tag in ("b1", "b2"):
        variant = shop.variant(shop.stand_in(f"{tag}-cpu", padding=300_000))
        for artifact in variant["artifacts"]:
            artifact.pop("size")
            artifact.pop("pieces", None)
        shop.publish(tag, {"cpu": variant})
    return shop


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path) -> Session:
    return shop.session(tmp_path / "operator")


def inside(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def sound(folder: Path) -> None:
    """What must hold at any moment: only right archives, and all that the metadata needs."""
    archives = folder / "sha256"
    for path in archives.iterdir() if archives.is_dir() else ():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    if (folder / "metadata/timestamp.json").exists():
        assert len(list(archives.iterdir())) == 2
        assert len(list(folder.glob("targets/releases/*.json"))) == 2


def test_C13_a_run_killed_at_random_points_ends_identical(session: Session, tmp_path: Path) -> None:
    folder, whole = tmp_path / "mirror", tmp_path / "whole"
    counted = counting(None)
    sys.setprofile(counted)
    try:
        mirror(session, whole, Narrowing())
    finally:
        sys.setprofile(None)
    expected = inside(whole)
    data = shutil.copytree(session.paths.data, tmp_path / "data")
    for point in points(counted.total()):  # type: ignore[attr-defined]

        def killed(point: int = point) -> None:
            sys.setprofile(counting(point))
            mirror(session, folder, Narrowing())

        assert child(killed) in (-signal.SIGKILL, 0), f"point {point}"
        sound(folder)
        mirror(session, folder, Narrowing())
        assert inside(folder) == expected, f"point {point}"
        shutil.rmtree(folder)
        shutil.rmtree(session.paths.data)
        shutil.copytree(data, session.paths.data)


def test_C14_a_run_on_a_full_disk_at_random_points_ends_identical(
    session: Session, tmp_path: Path
) -> None:
    """A memory disk of a random size, and then the same disk with more room."""
    place, whole = tmp_path / "disk", tmp_path / "whole"
    place.mkdir()
    mirror(session, whole, Narrowing())
    expected = inside(whole)
    largest = sum(map(len, expected.values())) + (64 << 10)

    def trial(room: int) -> None:
        own_mounts()
        mount("-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place))
        folder = place / "mirror"
        full = False
        try:
            mirror(session, folder, Narrowing())
        except NoSpace:
            full = True
        sound(folder)
        mount("-o", f"remount,size={16 * largest}", str(place))
        mirror(session, folder, Narrowing())
        assert inside(folder) == expected
        assert check_mirror(session, folder).differences == ()
        assert full or room > largest // 2

    for room in points(largest):
        assert child(lambda room=room: trial(max(room, 4096))) == 0, f"room for {room} bytes"  # type: ignore[misc]
