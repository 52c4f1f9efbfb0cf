"""A large install: memory, threads and descriptors stay few, and pieces are what is resumed."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, Packed, pack_tar, pack_zip, stand_in
from support.release_server import ReleaseServer, User, release_server

MEGABYTES = 1 << 20
ON_LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
EVEN = "location /even/ { limit_rate 4m; limit_rate_after 0; }"
"""Eight connections of one archive bring 32 MB in a second."""

MEASURED = """\
import atexit, os, re, sys, threading
os.cpu_count = lambda: 64
from tsuku_llm.cli.main import main

most = {"threads": 0, "descriptors": 0, "kinds": 0}
done = threading.Event()

def look():
    while not done.wait(0.005):
        # Without this thread, and without the one that looks up a name for a moment.
        names = [each.name for each in threading.enumerate()]
        lasting = sum(name != "tsuku-llm lookup" for name in names) - 1
        most["threads"] = max(most["threads"], lasting)
        kinds = {re.sub("[-_0-9]+$", "", each.name) for each in threading.enumerate()}
        most["kinds"] = max(most["kinds"], len(kinds & {"fetch", "tsuku-llm connection", "unpack"}))
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
    archive = shop.nginx.root / "archives" / f"{name}.tar.gz"
    return pack_tar(folder, archive, root=name, level=0)


def measured(user: User) -> tuple[int, int, int, int]:
    """Install on a machine of 64 cores: kilobytes, threads, descriptors, kinds at one time."""
    child = subprocess.run(
        [sys.executable, "-c", MEASURED],
        env=dict(user.env),
        capture_output=True,
        check=True,
        text=True,
    )
    kilobytes, threads, descriptors, kinds = map(int, child.stdout.splitlines()[-1].split())
    return kilobytes, threads, descriptors, kinds


@ON_LINUX
@pytest.mark.parametrize("pieces", [True, False], ids=["pieces", "no_pieces"])
def test_a_large_install_takes_little_memory_and_few_threads(
    shop: ReleaseServer, tmp_path: Path, pieces: bool
) -> None:
    build = shop.stand_in("build", padding=72 * MEGABYTES)
    variant = shop.variant(build, packed(shop, "runtime", 40 * MEGABYTES))
    if not pieces:
        for artifact in variant["artifacts"]:
            del artifact["pieces"]
    shop.publish("b1", {"cpu": variant})
    user = shop.user(tmp_path / "home")
    kilobytes, threads, descriptors, _ = measured(user)
    assert kilobytes < 80_000
    assert threads <= 12
    assert descriptors < 40
    lines = shop.downloads()
    assert len({line.connection for line in lines}) > 2
    assert {line.status for line in lines} == {206}
    assert len(user.versions()) == 1
    assert user.leftovers() == []


def zipped(shop: ReleaseServer, name: str, files: int, size: int) -> Packed:
    """A build in so many files of so many bytes, which do not compress."""
    tree = stand_in(shop.nginx.root.parent / "builds" / name, devices=NO_DEVICE_STEPS).tree
    bytes_of = random.Random(name).randbytes  # noqa: S311
    for number in range(files):
        (tree / f"{name}-{number}.bin").write_bytes(bytes_of(size))
    return pack_zip(tree, shop.nginx.root / "archives" / f"{name}.zip", level=0)


@ON_LINUX
def test_a_zip_is_unpacked_during_the_download_of_another(tmp_path: Path) -> None:
    with release_server(tmp_path / "shop", EVEN) as shop:
        (shop.nginx.root / "even").symlink_to("archives")
        small, large = zipped(shop, "small", 2000, 3000), zipped(shop, "large", 1, 80 * MEGABYTES)
        shop.publish("b1", {"cpu": shop.variant(small, large, folder="even")})
        kilobytes, threads, _, kinds = measured(shop.user(tmp_path / "home"))
    assert kinds == 3, "nothing was unpacked while connections were open"
    assert threads <= 12
    assert kilobytes < 80_000
