"""What the rows share: folders, builds, near and distant servers, and users with a home.

Each is made when a row first asks for it, and removed with the lab.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType

from support.program import environment
from support.release_server import NAME, ReleaseServer, User, release_server

from ci.bench import payload
from ci.bench.link import link
from ci.bench.pairs import WrongResult
from ci.bench.payload import Packed
from tsuku_llm.store.store import Store

PROGRAM = str(Path(sys.executable).with_name("tsuku-llm"))
INTERPRETER = (sys.executable, "-I", "-c", "pass")

PACKAGES = {
    "aria2c": "aria2",
    "curl": "curl",
    "gcc": "gcc",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "tar": "tar",
    "unzip": "unzip",
    "vulkaninfo": "vulkan-tools",
}
"""Debian's package of each tool that a row needs."""

BUILD = 736_000_000
"""Bytes of a CUDA build with its libraries, unpacked."""

NEAR = (0.0005, 100e6)
FAR = (0.05, 125e6)
"""Round trip in seconds and bytes per second of the two lines."""

INSTALLED = "b100"

# ``limit_rate`` counts per connection; without ranges nginx sends the whole file on one.
_SERVED = """
    access_log off;
    location /capped/ { alias %(archives)s/; limit_rate 20m; }
    location /whole/ { alias %(archives)s/; max_ranges 0; }
"""


class Missing(Exception):
    """The error for a tool or a right that a row needs and that is missing."""


class Lab:
    """The shared equipment of the rows; a context manager that removes it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._users: dict[str, User] = {}
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory("-bench")))

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def require(self, *tools: str) -> None:
        """Raise ``Missing`` with the name of the Debian package."""
        for tool in tools:
            if not shutil.which(tool):
                raise Missing(f"{tool} is not installed (package {PACKAGES[tool]})")

    def fresh(self, name: str) -> Path:
        """Return an empty folder; a folder of that name is removed first."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    @cached_property
    def home(self) -> Mapping[str, str]:
        """The environment of a user who has installed nothing."""
        return environment(self.fresh("empty-home"))

    @cached_property
    def build(self) -> Path:
        """The tree of a large build."""
        self.require("gcc")
        return payload.write_build(self.folder / "build", BUILD)

    @cached_property
    def tarball(self) -> Packed:
        """The same build as a tarball, about half as large."""
        return payload.pack(self.build, self.folder / "build.tar.gz")

    @cached_property
    def zipfile(self) -> Packed:
        """The same build as a zip file."""
        return payload.pack(self.build, self.folder / "build.zip")

    @cached_property
    def near(self) -> ReleaseServer:
        """A server at 100 MB/s."""
        return self.server("near", *NEAR)

    @cached_property
    def far(self) -> ReleaseServer:
        """A server 50 ms away at 1 Gbit/s."""
        return self.server("far", *FAR)

    @cached_property
    def loopback(self) -> ReleaseServer:
        """A server on this machine, without a limit."""
        return self.shop("loopback")

    def shop(self, name: str) -> ReleaseServer:
        """Start another server on this machine."""
        self.require("nginx")
        return self._stack.enter_context(release_server(self.folder / "servers" / name))

    def server(self, name: str, round_trip: float, rate: float) -> ReleaseServer:
        """Start a release server behind its own simulated line.

        ``/capped/`` gives at most 20 MB/s per connection; ``/whole/`` supports no ranges. Raises
        ``Missing`` without root on Linux.
        """
        self.require("nginx")
        if os.geteuid() != 0 or sys.platform != "linux":
            raise Missing("a network of one's own needs root on Linux")
        sockets = self._stack.enter_context(link(round_trip=round_trip, rate=rate, sockets=2))
        folder = self.folder / "servers" / name
        extra = _SERVED % {"archives": folder / "www" / "archives"}
        return self._stack.enter_context(release_server(folder, extra, sockets))

    @cached_property
    def installed(self) -> User:
        """A user who has installed the large build, as release ``INSTALLED``."""
        publish(self.near, INSTALLED, self.tarball)
        user = self.user(self.near, "owner")
        install(user, INSTALLED)
        return user

    def user(self, shop: ReleaseServer, name: str) -> User:
        """Return a user of this server who knows everything that it has published."""
        if name not in self._users:
            self._users[name] = shop.user(self.fresh(f"users/{name}") / "home")
        user = self._users[name]
        _done(user, "repository", "refresh", NAME)
        return user


def offer(shop: ReleaseServer, packed: Packed) -> None:
    """Put an archive into the server's folder of archives."""
    path = shop.nginx.root / "archives" / packed.path.name
    if not path.exists():
        # A hard link: archives have hundreds of megabytes.
        os.link(packed.path, path)


def publish(
    shop: ReleaseServer,
    tag: str,
    *packed: Packed,
    folder: str = "archives",
    pieces: bool = True,
) -> None:
    """Sign a release with one variant, which has these archives."""
    for each in packed:
        offer(shop, each)
    at = f"{shop.nginx.url}/{folder}"
    entries = [each.artifact(f"{at}/{each.path.name}", pieces=pieces) for each in packed]
    publish_entries(shop, tag, entries)


def publish_entries(
    shop: ReleaseServer, tag: str, artifacts: Sequence[Mapping[str, object]]
) -> None:
    """Sign a release with one variant, which has the archives of these entries."""
    variant = {"backend": "cpu", "server": "llama-server", "requires": {}, "artifacts": artifacts}
    shop.publish(tag, {"cpu": variant})


def install(user: User, tag: str) -> None:
    """Install a release; raise ``WrongResult`` if that fails."""
    _done(user, "install", "--release", tag)


def _done(user: User, *arguments: str) -> None:
    done = user.run(*arguments)
    if done.code:
        raise WrongResult(f"{' '.join(arguments)} ended with {done.code}:\n{done.stderr}")


def forget(user: User) -> None:
    """Remove everything that the user has installed and downloaded."""
    # Metadata and settings stay: an install does not include adding the repository.
    for name in ("versions", "staging", "partials", "locks"):
        shutil.rmtree(user.data / name, ignore_errors=True)
    (user.data / "active.json").unlink(missing_ok=True)


def check_installed(user: User, packed: Packed) -> None:
    """Raise ``WrongResult`` unless the active version holds exactly the archive's files."""
    active = Store(user.data).active()
    if active is None or payload.digests(active.tree) != packed.contents:
        raise WrongResult(f"{packed.path.name} is not what was installed")


def check_tree(tree: Path, packed: Packed) -> None:
    """Raise ``WrongResult`` unless a tree has exactly the archive's files."""
    if payload.digests(tree) != packed.contents:
        raise WrongResult(f"{packed.path.name} is not what was unpacked")


def check_file(path: Path, packed: Packed) -> None:
    """Raise ``WrongResult`` unless the file equals the archive byte by byte."""
    if subprocess.run(["cmp", "--quiet", path, packed.path], check=False).returncode:
        raise WrongResult(f"{packed.path.name} is not what was downloaded")
