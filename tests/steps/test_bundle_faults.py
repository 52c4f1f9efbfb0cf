"""A bundle that is being made or read when the process is killed, or when the disk is full.

In the suite a sample of the points is taken; ``ci/faults C15 C16 C17`` takes all 200.
"""

import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest
from support.folder_shop import FolderShop
from support.interruptions import child, counting, mount, own_mounts, points

from tsuku_llm.ground.errors import NoSpace
from tsuku_llm.steps.install.bundle_install import install_bundle
from tsuku_llm.steps.session import Session
from tsuku_llm.store.store import Store
from tsuku_operator.bundle.bundle import create_bundle
from tsuku_operator.bundle.bundle_choice import BundleWish

BUILDS = BundleWish(("linux-amd64",), program=False)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    """An archive whose size is not signed: so no run can know early that the disk is too small."""
    shop = FolderShop(tmp_path_factory.mktemp("shops") / "shop")
    variant = shop.variant(shop.stand_in("b1-cpu", padding=300_000))
    for artifact in variant["artifacts"]:
        artifact.pop("size")
        artifact.pop("pieces", None)
    shop.publish("b1", {"cpu": variant})
    return shop


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path) -> Session:
    return shop.session(tmp_path / "operator")


def test_C15_a_bundle_whose_maker_is_killed_ends_identical(
    session: Session, tmp_path: Path
) -> None:
    file, place = tmp_path / "whole", tmp_path / "place"
    counted = counting(None)
    sys.setprofile(counted)
    try:
        create_bundle(session, file, BUILDS)
    finally:
        sys.setprofile(None)
    expected = file.read_bytes()
    data = shutil.copytree(session.paths.data, tmp_path / "data")
    for point in points(counted.total()):  # type: ignore[attr-defined]
        place.mkdir()

        def killed(point: int = point) -> None:
            sys.setprofile(counting(point))
            create_bundle(session, place / "x", BUILDS)

        assert child(killed) in (-signal.SIGKILL, 0), f"point {point}"
        # The name appears with the whole file only.
        assert not (place / "x").exists() or (place / "x").read_bytes() == expected
        create_bundle(session, place / "x", BUILDS, force=True)
        assert [each.name for each in place.iterdir()] == ["x"], f"point {point}"
        assert (place / "x").read_bytes() == expected, f"point {point}"
        shutil.rmtree(place)
        shutil.rmtree(session.paths.data)
        shutil.copytree(data, session.paths.data)


def test_C16_a_bundle_on_a_full_disk_leaves_no_half(session: Session, tmp_path: Path) -> None:
    """A memory disk of a random size, and then the same disk with more room."""
    place = tmp_path / "disk"
    place.mkdir()
    create_bundle(session, tmp_path / "whole", BUILDS)
    expected = (tmp_path / "whole").read_bytes()

    def trial(room: int) -> None:
        own_mounts()
        mount("-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place))
        try:
            create_bundle(session, place / "x", BUILDS)
        except NoSpace:
            assert not list(place.iterdir())
        else:
            assert room + 4096 > len(expected)  # a page of that disk
        mount("-o", f"remount,size={16 * len(expected)}", str(place))
        create_bundle(session, place / "x", BUILDS, force=True)
        assert (place / "x").read_bytes() == expected

    for room in points(len(expected) + (64 << 10)):
        assert child(lambda room=room: trial(max(room, 4096))) == 0, f"room for {room} bytes"  # type: ignore[misc]


def started_in(folder: Path) -> list[psutil.Process]:
    """The processes whose program is in a folder."""
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if str(folder) in " ".join(each.info["cmdline"] or ())[:4096]]


def test_C17_an_install_from_a_bundle_that_is_killed_is_taken_up(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    file = tmp_path / "whole"
    create_bundle(session, file, BUILDS)
    user = shop.session(tmp_path / "user")
    data = shutil.copytree(user.paths.data, tmp_path / "data")
    counted = counting(None)
    sys.setprofile(counted)
    try:
        install_bundle(user, file)
    finally:
        sys.setprofile(None)
    for point in points(counted.total()):  # type: ignore[attr-defined]
        shutil.rmtree(user.paths.data)
        shutil.copytree(data, user.paths.data)

        def killed(point: int = point) -> None:
            sys.setprofile(counting(point))
            install_bundle(user, file)

        assert child(killed) in (-signal.SIGKILL, 0), f"point {point}"
        # The gate's server ends with the program that tried it.
        _, alive = psutil.wait_procs(started_in(user.paths.data), timeout=30)
        assert not alive, f"point {point}"
        store = Store(user.paths.data)
        for each in store.installed():
            store.check(each)
        assert install_bundle(user, file).installed is not None, f"point {point}"
        assert not list((user.paths.data / "staging").glob("*")), f"point {point}"
