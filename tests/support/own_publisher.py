"""A publisher of builds of one's own, who uses the real release tool and a folder as web server."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.program import Result, environment
from support.release_data import keys_of, release_tool, signers_file
from support.release_server import User
from support.repository import release_document
from support.schemas import check_output

from ci.schemas import PUBLISHER
from tsuku_publish.cli.main import run

SIGNERS = ("anna", "ben", "host")
ROLE = """
[roles.{name}]
version = 1
issued = 2026-11-20
days = {days}
signers = {signers}
threshold = {threshold}
"""


def write_plan(data: Path, channels: Mapping[str, Iterable[str]]) -> None:
    """Write a plan: two people sign, one host is online; only release files are next to it."""
    keys = "\n".join(f'{name} = "{key}"' for name, key in keys_of(*SIGNERS).items())
    roles = [
        ROLE.format(name=name, days=36500, signers=["anna", "ben"], threshold=2)
        for name in ("root", "targets")
    ] + [
        ROLE.format(name=name, days=36500, signers=["host"], threshold=1)
        for name in ("snapshot", "timestamp")
    ]
    lists = "\n".join(f"{name} = {list(tags)}" for name, tags in channels.items())
    text = f"[channels]\n{lists}\n[keys]\n{keys}\n{''.join(roles)}\n[warn]\n"
    (data / "repository.toml").write_text(text, "utf-8")


@dataclass(frozen=True)
class OwnPublisher:
    """A folder of data, a signed repository and the place where users look."""

    home: Path
    shop: FolderShop
    name: str

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def signed(self) -> Path:
        return self.home / "signed"

    @property
    def served(self) -> Path:
        return self.home / "served"

    def release(self, tag: str, archive: str) -> None:
        """Write the release file of one CPU build; the same archive is the same build."""
        folder = self.data / "releases"
        folder.mkdir(parents=True, exist_ok=True)
        packed = self.shop.packed(archive)
        platform = {
            "default": "cpu",
            "preference": {"portable": ["cpu"], "native": ["cpu"]},
            "variants": {"cpu": self.shop.variant(packed)},
        }
        document = release_document(tag, publisher=self.name, platforms={"linux-amd64": platform})
        (folder / f"{tag}.json").write_text(json.dumps(document), "utf-8")

    def channels(self, **channels: Iterable[str]) -> None:
        """Say what is in which channel; versions and days stay as they are."""
        path = self.data / "repository.toml"
        if not path.exists():
            write_plan(self.data, channels)
            return
        rest = path.read_text("utf-8").partition("[keys]")[2]
        lists = "\n".join(f"{name} = {list(tags)}" for name, tags in channels.items())
        path.write_text(f"[channels]\n{lists}\n[keys]{rest}", "utf-8")

    def tool(
        self, command: str, *words: str | Path, signers: tuple[str, ...] = SIGNERS
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the release tool's commands over this publisher's data."""
        environ = signers_file(self.home / "signers.json", *signers)
        places = {"sign": ("--into", self.signed), "rotate": ("--into", self.signed)}
        return release_tool(
            command, *words, "--data", self.data, *places.get(command, ()), **environ
        )

    def publish(self, *words: str) -> None:
        """Sign the next state, and put it where users look."""
        higher = ("--raise",) if self.signed.exists() else ()
        done = self.tool("sign", *higher, *words)
        assert done.returncode == 0, done.stderr
        done = release_tool("publish", "--from", self.signed, self.served)
        assert done.returncode == 0, done.stderr

    def revoke(self, tag: str, reason: str = "it leaks memory", day: str = "2026-11-22") -> None:
        """Record a revocation with the real command."""
        done = self.tool("revoke", tag, "--reason", reason, "--on", day)
        assert done.returncode == 0, done.stderr

    def unrevoked(self) -> None:
        """Forget it in the data, as a publisher does who restores an older copy of them."""
        (self.data / "revoked.json").unlink()

    def adopt(self, user: User) -> User:
        """Let a user add this repository with the real command."""
        root = self.signed / "metadata" / "1.root.json"
        words = ("repository", "add", self.name, f"{self.served.as_uri()}/", "--root", str(root))
        done = user.run(*words)
        assert done.code == 0, done.stderr
        return user

    def forget_client(self, user: User, *names: str) -> None:
        """Lose parts of what a user keeps of this repository."""
        for name in names:
            path = user.data / "metadata" / self.name / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def own_user(home: Path, shop: FolderShop, **extra: str) -> User:
    """Return a user without a repository, who takes archives from the shop's folder."""
    return User(home, environment(home, TSUKU_LLM_MIRROR=shop.mirror, **extra))


def typed_publisher(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Return what runs ``tsuku-publish`` in this process and checks its JSON by the schemas."""

    def start(*arguments: str | Path) -> Result:
        words = tuple(map(str, arguments))
        done = Result(run(words), *capfd.readouterr())
        check_output(words, done.stdout, PUBLISHER)
        return done

    return start
