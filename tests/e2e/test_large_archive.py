"""A large install: memory, threads and descriptors stay few, and pieces are what is resumed."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.builds import Packed, pack_tar
from support.release_server import ReleaseServer

MEGABYTES = 1 << 20

MEASURED = """\
import atexit, os, re, sys, threading
from tsuku_llm.cli import main

most = {"threads": 0, "descriptors": 0}
done = threading.Event()

def look():
    while not done.wait(0.005):
        most["threads"] = max(most["threads"], threading.active_count() - 1)
        most["descriptors"] = max(most["descriptors"], len(os.listdir("/proc/self/fd")))

def tell():
    with open("/proc/self/status") as status:
        memory = int(re.search("VmHWM:\\\\s*([0-9]+) kB", status.read())[1])
    print(memory, *most.values())

threading.Thread(target=look, daemon=True).start()
atexit.register(tell)
sys.argv[1:] = ["install"]
main()
"""


def packed(shop: ReleaseServer, name: str, size: int) -> Packed:
    folder = shop.nginx.root.parent / "builds" / name
    folder.mkdir(parents=True)
    content = random.Random(name).randbytes(size)  # noqa: S311 - any bytes that do not compress
    (folder / f"lib{name}.bin").write_bytes(content)
    return pack_tar(folder, shop.nginx.root / "archives" / f"{name}.tar.gz", root=name)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.parametrize("pieces", [True, False], ids=["pieces", "no_pieces"])
def test_a_large_install_takes_little(shop: ReleaseServer, tmp_path: Path, pieces: bool) -> None:
    build = shop.stand_in("build", padding=72 * MEGABYTES)
    variant = shop.variant(build, packed(shop, "runtime", 40 * MEGABYTES))
    if not pieces:
        for artifact in variant["artifacts"]:
            del artifact["pieces"]
    shop.publish("b1", {"cpu": variant})
    user = shop.user(tmp_path / "home")
    child = subprocess.run(
        [sys.executable, "-c", MEASURED],
        env=dict(user.env),
        capture_output=True,
        check=True,
        text=True,
    )
    kilobytes, threads, descriptors = map(int, child.stdout.splitlines()[-1].split())
    assert kilobytes < 80_000
    assert threads <= 12
    assert descriptors < 40
    lines = shop.downloads()
    assert len({line.connection for line in lines}) > 2
    assert {line.status for line in lines} == {206}
    assert len(user.versions()) == 1
    assert user.leftovers() == []
