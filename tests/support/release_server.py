"""A publisher as users meet it: nginx over TLS with a signed repository and real archives."""

import contextlib
import os
import random
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.builds import NO_DEVICE_STEPS, Packed, pack_tar, stand_in
from support.nginx import Logged, Nginx, serving
from support.program import Result, environment, run_program
from support.repository import RepositorySimulator, release_document

NAME = "test"
SLOW = "location /slow/ { limit_rate 200k; limit_rate_after 0; }"


@dataclass(frozen=True)
class User:
    """A user with a home, who trusts the server's certificate authority."""

    home: Path
    env: Mapping[str, str]

    def run(self, *arguments: str, **extra: str) -> Result:
        return run_program(*arguments, env={**self.env, **extra})

    @property
    def data(self) -> Path:
        return self.home / "llm"

    def versions(self) -> list[str]:
        folder = self.data / "versions"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def leftovers(self) -> list[str]:
        """What an install that ended well or badly must not leave."""
        return [path.name for path in (self.data / "staging").glob("*")]


class ReleaseServer:
    """``archives/`` and ``repository/`` below the root of an nginx."""

    def __init__(self, nginx: Nginx) -> None:
        self.nginx = nginx
        self.simulator = RepositorySimulator(f"{nginx.url}/repository/", name=NAME)
        (nginx.root / "archives").mkdir()
        (nginx.root / "slow").symlink_to("archives")

    def stand_in(self, name: str, *, padding: int = 0, **steps: Any) -> Packed:
        """Pack a stand-in for the server; the steps are those of ``builds.stand_in``.

        ``padding`` bytes that do not compress make the archive larger.
        """
        steps = {"devices": NO_DEVICE_STEPS, **steps}
        build = stand_in(self.nginx.root.parent / "builds" / name, **steps)
        (build.tree / "padding").write_bytes(random.Random(name).randbytes(padding))  # noqa: S311
        archive = self.nginx.root / "archives" / f"{name}.tar.gz"
        return pack_tar(build.tree, archive, root=name, level=0 if padding > 1 << 20 else 1)

    def companion(self, name: str) -> Packed:
        """Pack a separate library, like the CUDA runtime that belongs to a build."""
        folder = self.nginx.root.parent / "builds" / name
        folder.mkdir(parents=True)
        (folder / "libruntime.so.1").write_text(f"the runtime of {name}", encoding="utf-8")
        return pack_tar(folder, self.nginx.root / "archives" / f"{name}.tar.gz", root=name)

    def url(self, packed: Packed, folder: str = "archives") -> str:
        return f"{self.nginx.url}/{folder}/{packed.path.name}"

    def variant(
        self, *packed: Packed, backend: str = "cpu", folder: str = "archives", **fields: Any
    ) -> dict[str, Any]:
        return {
            "backend": backend,
            "server": "llama-server",
            "requires": {},
            "artifacts": [each.artifact(self.url(each, folder)) for each in packed],
            **fields,
        }

    def publish(
        self, tag: str, variants: Mapping[str, Any], *, channels: Iterable[str] = ("stable",)
    ) -> None:
        """Sign a release of these variants and put it where users look."""
        platform = {
            "default": next(iter(variants)),
            "preference": {
                "portable": ["vulkan", "cuda", "cpu"],
                "native": ["cuda", "vulkan", "cpu"],
            },
            "variants": dict(variants),
        }
        document = release_document(tag, platforms={"linux-amd64": platform})
        self.simulator.publish(document, channels=channels)
        self.write()

    def write(self) -> None:
        self.simulator.write(self.nginx.root / "repository")

    def downloads(self) -> list[Logged]:
        """The requests for archives so far."""
        return [
            line for line in self.nginx.requests() if line.path.startswith(("/archives/", "/slow/"))
        ]

    def user(self, home: Path) -> User:
        """Return a user who added this publisher's repository and takes builds from it."""
        env = environment(home, SSL_CERT_FILE=str(self.nginx.authority), NO_PROXY="*")
        user = User(home, env)
        root = home.parent / f"{home.name}-root.json"
        root.write_bytes(self.simulator.pinned_root)
        added = user.run("repository", "add", NAME, self.simulator.url, "--root", str(root))
        assert added.code == 0, added.stderr
        chosen = user.run("config", "set", "llm.repository", NAME)
        assert chosen.code == 0, chosen.stderr
        return user


@contextlib.contextmanager
def release_server(
    folder: Path, extra: str = "", sockets: Sequence[socket.socket] = ()
) -> Iterator[ReleaseServer]:
    root = folder / "www"
    root.mkdir(parents=True)
    with serving(root, folder / "nginx", extra, sockets) as nginx:
        yield ReleaseServer(nginx)


def is_root() -> bool:
    return os.name == "posix" and os.geteuid() == 0
