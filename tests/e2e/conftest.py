from collections.abc import Iterator
from pathlib import Path

import pytest
from support.release_server import SLOW, ReleaseServer, User, release_server


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ReleaseServer]:
    with release_server(tmp_path / "shop", SLOW) as server:
        yield server


@pytest.fixture
def user(shop: ReleaseServer, tmp_path: Path) -> User:
    """A user of a shop whose release b1 has a CPU build of two archives."""
    build = shop.stand_in("b1-cpu")
    companion = shop.companion("b1-runtime")
    shop.publish("b1", {"cpu": shop.variant(build, companion)})
    return shop.user(tmp_path / "home")


@pytest.fixture
def installed(user: User) -> User:
    done = user.run("install")
    assert done.code == 0, done.stderr
    return user
