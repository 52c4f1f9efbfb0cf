"""A team whose people and machine sign different channels, and a user of their repository."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tomlkit
from support.own_publisher import ROLE
from support.release_data import release_tool, signers_file
from support.repository import FrozenCopy, cpu_platform, release_document, signer
from tuf.api.metadata import Metadata, MetaFile, TargetFile  # type: ignore[attr-defined]

from tsuku_llm.catalog import loading, refreshing
from tsuku_llm.catalog.repositories import Repository, add_repository
from tsuku_llm.ground.errors import HttpStatusError
from tsuku_publish.release_files.plan import load_plan, save_channel
from tsuku_publish.signing import ceremony

PEOPLE = ("anna", "ben")
MACHINE = ("machine", "host")
URL = "https://own.example/"


def release(tag: str, **fields: Any) -> dict[str, Any]:
    """A release file with one archive that no other release has."""
    platform = cpu_platform()
    platform["variants"]["cpu"]["artifacts"][0]["sha256"] = f"{int(tag[1:]):064x}"
    return release_document(tag, platforms={"linux-amd64": platform}, **fields)


@dataclass(frozen=True)
class Team:
    """Two people and a machine, with one folder of data; users know the first root."""

    home: Path

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def signed(self) -> Path:
        return self.data / "signed"

    def add(self, channel: str, *tags: str) -> None:
        """Put releases at the head of a channel, and write their files."""
        (self.data / "releases").mkdir(parents=True, exist_ok=True)
        for tag in tags:
            path = self.data / "releases" / f"{tag}.json"
            path.write_text(json.dumps(release(tag)))
        others = [tag for tag in load_plan(self.data).channels[channel] if tag not in tags]
        save_channel(self.data, channel, (*tags, *others))

    def edit(self, change: Callable[[Any], object]) -> None:
        path = self.data / "repository.toml"
        document = tomlkit.parse(path.read_text())
        change(document)
        path.write_text(tomlkit.dumps(document))

    def tried(self, *words: str | Path, signers: Iterable[str] = ()) -> tuple[int, str, str]:
        environ = signers_file(self.home / "signers.json", *(signers or (*PEOPLE, *MACHINE)))
        environ["XDG_STATE_HOME"] = str(self.home / "state")
        done = release_tool(*words, "--data", self.data, **environ)
        return done.returncode, done.stdout, done.stderr

    def run(self, *words: str | Path, signers: Iterable[str] = ()) -> str:
        code, out, err = self.tried(*words, signers=signers)
        assert code == 0, err
        return out

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.signed.rglob("*") if path.is_file())
        return {path.relative_to(self.signed).as_posix(): path.read_bytes() for path in found}

    def versions(self) -> dict[str, int]:
        return ceremony.published_versions(self.signed)

    def delegate(self, channel: str = "nightly", signers: tuple[str, ...] = MACHINE[:1]) -> None:
        """Say in the plan that a channel has signers of its own."""
        path = self.data / "repository.toml"
        table = ROLE.format(name=channel, days=30, signers=[*signers], threshold=1)
        head, mark, rest = path.read_text().partition("\n[warn]")
        path.write_text(head + table + mark + rest)


class Signing(Protocol):
    """Somebody with a signed repository."""

    def files(self) -> dict[str, bytes]: ...


class Client:
    """A user of a team's repository: what the package embeds, and what refreshes brought."""

    def __init__(self, home: Path, team: Signing, *, embedded: bool = False) -> None:
        self.home = home
        files = team.files()
        root = files["metadata/1.root.json"]
        copy = FrozenCopy(files) if embedded else None
        self.repository = Repository("own", URL, root, copy)
        if not embedded:
            self.repository = add_repository(home, "own", URL, root)

    def refresh(self, files: dict[str, bytes]) -> None:
        def download(name: str, limit: int) -> bytes:
            data = files.get(name)
            if data is None:
                raise HttpStatusError(f"{name}: 404", status=404)
            assert len(data) <= limit
            return data

        refreshing.refresh(self.repository, self.home, download)

    @property
    def catalog(self) -> loading.Catalog:
        return loading.load(self.repository, self.home)

    @property
    def channels(self) -> dict[str, list[str]]:
        catalog = self.catalog
        return {name: [e.release for e in catalog.releases(name)] for name in catalog.channels}


def stolen(
    files: dict[str, bytes],
    *entries: tuple[str, list[str], str | None],
    keys: tuple[str, str] = MACHINE,
    jump: int = 1,
) -> dict[str, bytes]:
    """What a thief of the machine's and the host's keys serves: any release under any name.

    The thief's versions are ``jump`` ahead of the published ones.
    """
    files = {**files}
    nightly, old = _newest(files, "nightly")
    for tag, channels, number in entries:
        data = json.dumps(release(tag, publisher="thief", version=number)).encode()
        file = TargetFile.from_data(f"releases/{tag}.json", data, ["sha256"])
        custom = {"release": tag, "sequence": 99999, "publisher": "thief"}
        custom |= {"published": "2026-11-22", "channels": channels}
        file.unrecognized_fields["custom"] = custom | ({"version": number} if number else {})
        nightly.signed.targets[file.path] = file
        files[f"targets/{file.get_prefixed_paths()[0]}"] = data
    nightly.signed.version = old + jump
    nightly.sign(signer(keys[0]))
    files[f"metadata/{old + jump}.nightly.json"] = nightly.to_bytes()
    about = MetaFile.from_data(old + jump, nightly.to_bytes(), ["sha256"])
    snapshot, old = _newest(files, "snapshot")
    snapshot.signed.meta["nightly.json"] = about
    snapshot.signed.version = old + jump
    snapshot.sign(signer(keys[1]))
    files[f"metadata/{old + jump}.snapshot.json"] = snapshot.to_bytes()
    timestamp: Metadata[Any] = Metadata.from_bytes(files["metadata/timestamp.json"])
    timestamp.signed.version += jump
    about = MetaFile.from_data(old + jump, snapshot.to_bytes(), ["sha256"])
    timestamp.signed.snapshot_meta = about
    timestamp.sign(signer(keys[1]))
    return {**files, "metadata/timestamp.json": timestamp.to_bytes()}


def _newest(files: dict[str, bytes], role: str) -> tuple[Metadata[Any], int]:
    name = re.compile(rf"metadata/(\d+)\.{role}\.json")
    version = max(int(found[1]) for found in map(name.fullmatch, files) if found)
    return Metadata.from_bytes(files[f"metadata/{version}.{role}.json"]), version


def channels_of(team: Team) -> dict[str, list[str]]:
    """What a client with the signed repository in its package offers."""
    return Client(team.home / "nobody", team, embedded=True).channels
