"""What an install may take of a machine, however large the archive is."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from support.program import COMMAND
from support.release_server import ReleaseServer

from ci.bench.pairs import Watch

MEMORY = 80_000_000
THREADS = 12
DESCRIPTORS = 64
PADDING = 120 << 20
"""Bytes that do not pack: more than the memory that is allowed."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_threads_and_descriptors_are_bounded(shop: ReleaseServer, tmp_path: Path) -> None:
    """With pieces; ``test_large_archive.py`` also measures an install without them."""
    build = shop.stand_in("large", padding=PADDING)
    variant = shop.variant(build)
    variant["artifacts"][0]["pieces"] = pieces_of(build.path)
    shop.publish("b1", {"cpu": variant})
    user = shop.user(tmp_path / "home")
    env = {name: value for name, value in user.env.items() if not name.startswith("COV")}
    child = subprocess.Popen([*COMMAND, "install"], env=env, stdout=subprocess.DEVNULL)
    watch = Watch(child.pid)
    assert child.wait() == 0
    watch.join()
    assert 0 < watch.memory <= MEMORY
    assert 1 < watch.threads <= THREADS
    assert 0 < watch.descriptors <= DESCRIPTORS


def pieces_of(archive: Path, size: int = 4 << 20) -> dict[str, object]:
    data = archive.read_bytes()
    digests = [sha256(data[at : at + size]).hexdigest() for at in range(0, len(data), size)]
    return {"size": size, "sha256": digests}
