"""A publisher without a network: a signed repository and archives in a folder of the disk."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from support.builds import Packed
from support.program import environment
from support.release_server import NAME, ReleaseServer, User
from support.sessions import changed, make_session

from tsuku_llm.catalog.repositories import repositories as configured_repositories
from tsuku_llm.machine.local_host import LocalHost
from tsuku_llm.steps.metadata import repository as repositories
from tsuku_llm.steps.session import Machine, Session

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
"""A day and a half after the simulator signed."""


@dataclass(frozen=True)
class Site:
    """A folder in the place of a web server."""

    root: Path

    @property
    def url(self) -> str:
        return self.root.as_uri()


class FolderShop(ReleaseServer):
    """As a release server, for users who have it mounted; nothing is asked of a network."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        super().__init__(Site(root))  # type: ignore[arg-type]
        self.root = root
        self._packed: dict[str, Packed] = {}

    @classmethod
    def offering(cls, root: Path, *tags: str) -> FolderShop:
        """Return a shop in ``root`` whose releases each have a CPU build."""
        shop = cls(root)
        for tag in tags:
            shop.publish(tag, {"cpu": shop.variant(shop.stand_in(f"{tag}-cpu"))})
        return shop

    def url(self, packed: Packed, folder: str = "archives") -> str:
        """Where it would be without the mirror."""
        return f"https://{folder}.invalid/{packed.path.name}"

    def packed(self, name: str) -> Packed:
        """The archive of a stand-in, made when it is first asked for."""
        if name not in self._packed:
            self._packed[name] = self.stand_in(name)
        return self._packed[name]

    @property
    def mirror(self) -> str:
        return (self.root / "archives").as_uri()

    def user(self, home: Path) -> User:
        """Return a user who added the repository and takes archives from the folder."""
        env = environment(home, TSUKU_LLM_MIRROR=self.mirror, TSUKU_LLM_REPOSITORY=NAME)
        self.session(home)
        return User(home, env)

    def session(self, home: Path, **changes: object) -> Session:
        """The session of such a user, on a fixed day; its ``note`` is ``Notes``."""
        data = home / "llm"
        machine = Machine(LocalHost(), NOW, environment(home))
        usual = {"note": Notes(), "repository": NAME, "mirror": (self.mirror,)}
        session = make_session(data, machine, **{**usual, **changes})
        if NAME not in [each.name for each in configured_repositories(data)]:
            root = home.parent / f"{home.name}-root.json"
            root.write_bytes(self.simulator.pinned_root)
            repositories.add(changed(session, now=NOW), NAME, self.simulator.url, root)
        return session


class Notes(list[str]):
    """What people were told."""

    def __call__(self, text: str) -> None:
        self.append(text)
