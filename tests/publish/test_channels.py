"""Channels with signers of their own: what a machine signs alone, and what it cannot."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from support.own_publisher import ROLE, write_plan
from support.release_data import copied_data, keys_of, release_tool, signers_file
from support.repository import FrozenCopy, cpu_platform, release_document, signer
from tuf.api.metadata import Metadata, MetaFile, TargetFile

from tsuku_llm import trust
from tsuku_llm.catalog import loading, refreshing
from tsuku_llm.catalog.repositories import Repository, add_repository
from tsuku_llm.errors import HttpStatusError
from tsuku_publish import ceremony, checking, copies, folder
from tsuku_publish.errors import PublishError
from tsuku_publish.plan import add_to_channel, load_plan

PEOPLE = ("anna", "ben")
MACHINE = ("machine", "host")
URL = "https://own.example/"


def release(tag: str, **fields: object) -> dict[str, object]:
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
        add_to_channel(self.data, channel, tags)

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


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """A repository that people sign alone, as all were before."""
    made = Team(tmp_path)
    made.data.mkdir()
    write_plan(made.data, {"stable": [], "nightly": []})
    made.edit(lambda document: document["keys"].update(keys_of("machine", "machine-2", "chris")))
    made.add("stable", "b1")
    made.add("nightly", "b2")
    made.run("sign")
    return made


@pytest.fixture
def delegated(team: Team) -> Team:
    """The same after people signed once that the machine signs nightly."""
    team.delegate()
    team.run("sign", "--raise", "--issued", "2026-11-21")
    return team


class Client:
    """A user of a team's repository: what the package embeds, and what refreshes brought."""

    def __init__(self, home: Path, team: Team, *, embedded: bool = False) -> None:
        self.home = home
        files = team.files()
        root = files["metadata/1.root.json"]
        copy = FrozenCopy(files) if embedded else None
        self.repository = Repository("own", URL, root, copy)
        if not embedded:
            self.repository = add_repository(home, "own", URL, root)

    def refresh(self, files: dict[str, bytes]) -> None:
        def download(url: str, limit: int) -> bytes:
            data = files.get(url.removeprefix(URL))
            if data is None:
                raise HttpStatusError(f"{url}: 404", status=404)
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


def channels_of(team: Team) -> dict[str, list[str]]:
    """What a client with the signed repository in its package offers."""
    return Client(team.home / "nobody", team, embedded=True).channels


# --- the way there ------------------------------------------------------------------------


def test_a_channel_moves_to_its_own_role_and_nothing_else_changes(team: Team) -> None:
    before = channels_of(team)
    team.delegate()
    team.run("sign", "--raise")
    assert channels_of(team) == before == {"stable": ["b1"], "nightly": ["b2"]}
    files = team.files()
    targets = json.loads(files["metadata/2.targets.json"])["signed"]
    nightly = json.loads(files["metadata/2.nightly.json"])["signed"]
    assert [*targets["targets"]] == ["releases/b1.json"]
    assert [*nightly["targets"]] == ["releases/b2.json"]
    (role,) = targets["delegations"]["roles"]
    assert (role["name"], role["paths"], role["threshold"]) == ("nightly", ["releases/*"], 1)


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "refreshed"])
def test_a_user_from_before_the_delegation_goes_on_to_update(
    team: Team, tmp_path: Path, embedded: bool
) -> None:
    user = Client(tmp_path / "user", team, embedded=embedded)
    if not embedded:
        user.refresh(team.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b2"]}
    team.delegate()
    team.run("sign", "--raise")
    user.refresh(team.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b2"]}
    team.add("nightly", "b3")
    team.run("sign", "--channel", "nightly", signers=MACHINE)
    user.refresh(team.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b3", "b2"]}


def test_a_copy_of_the_projects_own_data_can_move(tmp_path: Path) -> None:
    data = copied_data(tmp_path / "data", "machine")
    environ = signers_file(tmp_path / "signers.json", *load_plan(data).keys)
    into = ("--data", data, "--into", tmp_path / "manifests")
    assert release_tool("sign", *into, **environ).returncode == 0
    first = copies.RepositoryFolder(tmp_path / "manifests")
    before = checking.verify(first, checking.first_root(first))
    path = data / "repository.toml"
    table = ROLE.format(name="nightly", days=30, signers=["machine"], threshold=1)
    path.write_text(path.read_text().replace("# `check` fails", f"{table}\n# `check` fails"))
    done = release_tool("sign", "--raise", *into, **environ)
    assert done.returncode == 0, done.stderr
    after = checking.verify(first, checking.first_root(first))
    assert {p: t.sha256 for p, t in after.targets.items()} == {
        p: t.sha256 for p, t in before.targets.items()
    }
    assert {p for p, t in after.targets.items() if t.role == "nightly"} == {
        "releases/b11541.json",
        "releases/b11347.json",
    }
    assert not trust.setbacks(before.versions, after.versions)
    alone = signers_file(tmp_path / "alone.json", "machine", "online-1")
    done = release_tool("sign", "--channel", "nightly", *into, **alone)
    assert done.returncode == 0, done.stderr


# --- what the machine does alone -----------------------------------------------------------


def test_the_machine_signs_its_channel_and_no_other_role(delegated: Team) -> None:
    before, versions = delegated.files(), delegated.versions()
    delegated.add("nightly", "b3")
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    raised = {name: versions[name] + 1 for name in ("nightly", "snapshot", "timestamp")}
    assert delegated.versions() == {**versions, **raised}
    after = delegated.files()
    for name in ("1.root", "2.targets"):
        assert after[f"metadata/{name}.json"] == before[f"metadata/{name}.json"]
    assert channels_of(delegated) == {"stable": ["b1"], "nightly": ["b3", "b2"]}


def test_the_same_data_give_the_same_bytes(delegated: Team) -> None:
    delegated.add("nightly", "b3")
    now = ("--issued", "2026-11-22T06:00:00Z")
    delegated.run("sign", "--channel", "nightly", *now, signers=MACHINE)
    before = delegated.files()
    delegated.run("sign")
    assert delegated.files() == before
    shutil.rmtree(delegated.signed)
    delegated.run("sign")
    assert delegated.files() == before


def test_since_is_stated_once_for_each_digest(delegated: Team) -> None:
    def since(version: int) -> dict[str, str]:
        targets = json.loads(delegated.files()[f"metadata/{version}.nightly.json"])["signed"]
        return {
            each["custom"]["release"]: each["custom"]["since"]
            for each in targets["targets"].values()
        }

    assert since(2) == {"b2": "2026-11-21T00:00:00Z"}
    delegated.add("nightly", "b3")
    delegated.run("sign", "--channel", "nightly", "--issued", "2026-11-22T06:30:00Z")
    delegated.run("sign", "--channel", "nightly", "--issued", "2026-11-23T12:00:00Z")
    assert since(4) == {"b2": "2026-11-21T00:00:00Z", "b3": "2026-11-22T06:30:00Z"}
    path = delegated.data / "releases" / "b3.json"
    path.write_text(json.dumps(release("b3", publisher="another")))
    delegated.run("sign", "--channel", "nightly", "--issued", "2026-11-24T12:00:00Z")
    assert since(5) == {"b2": "2026-11-21T00:00:00Z", "b3": "2026-11-24T12:00:00Z"}


def test_the_weekly_job_carries_every_role(delegated: Team) -> None:
    versions = delegated.versions()
    # Nothing that is prepared and not signed counts, in any channel.
    delegated.edit(lambda document: document["channels"].update(nightly=["b9"], stable=["b8"]))
    delegated.run("resign", signers=("host",))
    raised = {name: versions[name] + 1 for name in ("snapshot", "timestamp")}
    assert delegated.versions() == {**versions, **raised}
    assert channels_of(delegated) == {"stable": ["b1"], "nightly": ["b2"]}


def test_people_sign_while_the_channel_stays_as_it_is(delegated: Team) -> None:
    delegated.add("nightly", "b3")
    delegated.add("stable", "b4")
    nightly = delegated.files()["metadata/2.nightly.json"]
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    assert delegated.files()["metadata/2.nightly.json"] == nightly
    assert channels_of(delegated) == {"stable": ["b4", "b1"], "nightly": ["b2"]}


def test_a_stranger_s_key_signs_no_channel(delegated: Team) -> None:
    before = delegated.files()
    for signers, told in (
        (("anna", "ben", "host"), "nightly: 0 of 1 signatures"),
        (("machine",), "the online signer is not at hand: host"),
    ):
        code, _, err = delegated.tried("sign", "--channel", "nightly", signers=signers)
        assert (code, told in err) == (1, True), err
    assert delegated.files() == before


def test_a_channel_that_people_have_not_delegated_is_not_signed(team: Team) -> None:
    code, _, err = team.tried("sign", "--channel", "nightly", signers=MACHINE)
    assert (code, "nightly has no signers of its own" in err) == (1, True), err
    team.delegate()
    code, _, err = team.tried("sign", "--channel", "nightly", signers=MACHINE)
    assert (code, "the signers of targets run sign first" in err) == (1, True), err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weekly": {}}, "[channels] has no weekly"),
        ({"nightly": {"paths": ["releases/x/*"]}}, "not below releases/"),
        ({"nightly": {"paths": ["*"]}}, "not below releases/"),
        ({"targets": {"paths": ["releases/*"]}}, "only a channel's role has"),
    ],
)
def test_a_plan_that_delegates_wrongly_is_refused(
    delegated: Team, change: dict[str, dict[str, object]], told: str
) -> None:
    def edit(document: Any) -> None:
        for name, fields in change.items():
            table = dict(document["roles"].get(name) or document["roles"]["nightly"])
            document["roles"][name] = {**table, **fields}

    delegated.edit(edit)
    code, _, err = delegated.tried("sign")
    assert (code, told in err) == (1, True), err


# --- what a thief of the machine's key cannot do -------------------------------------------


def stolen(team: Team, *entries: tuple[str, list[str], str | None]) -> dict[str, bytes]:
    """What a thief of the machine's and the host's keys serves: any release under any name."""
    files = team.files()
    version = team.versions()["nightly"]
    nightly: Metadata = Metadata.from_bytes(files[f"metadata/{version}.nightly.json"])
    for tag, channels, number in entries:
        data = json.dumps(release(tag, publisher="thief", version=number)).encode()
        file = TargetFile.from_data(f"releases/{tag}.json", data, ["sha256"])
        custom = {"release": tag, "sequence": 99, "publisher": "thief", "published": "2026-11-22"}
        custom |= {"channels": channels} | ({"version": number} if number else {})
        file.unrecognized_fields["custom"] = custom
        nightly.signed.targets[file.path] = file
        files[f"targets/{file.get_prefixed_paths()[0]}"] = data
    nightly.signed.version = version + 1
    nightly.sign(signer("machine"))
    files[f"metadata/{version + 1}.nightly.json"] = nightly.to_bytes()
    old = team.versions()["snapshot"]
    snapshot: Metadata = Metadata.from_bytes(files[f"metadata/{old}.snapshot.json"])
    about = MetaFile.from_data(version + 1, nightly.to_bytes(), ["sha256"])
    snapshot.signed.meta["nightly.json"] = about
    snapshot.signed.version = old + 1
    snapshot.sign(signer("host"))
    files[f"metadata/{old + 1}.snapshot.json"] = snapshot.to_bytes()
    timestamp: Metadata = Metadata.from_bytes(files["metadata/timestamp.json"])
    timestamp.signed.version += 1
    timestamp.signed.snapshot_meta = MetaFile.from_data(old + 1, snapshot.to_bytes(), ["sha256"])
    timestamp.sign(signer("host"))
    return {**files, "metadata/timestamp.json": timestamp.to_bytes()}


def test_a_thief_of_the_machine_s_key_reaches_no_user_of_stable(
    delegated: Team, tmp_path: Path
) -> None:
    delegated.edit(lambda document: document["channels"]["stable"].insert(0, "b5"))
    path = delegated.data / "releases" / "b5.json"
    path.write_text(json.dumps(release("b5", version="0.5.0")))
    delegated.run("sign", "--raise")
    user = Client(tmp_path / "user", delegated)
    honest = delegated.files()
    user.refresh(honest)
    files = stolen(
        delegated,
        ("b1", ["nightly"], None),
        ("b7", ["stable"], None),
        ("b8", ["nightly", "stable"], None),
        ("b9", ["nightly"], "0.5.0"),
        ("b10", ["nightly"], None),
    )
    user.refresh(files)
    assert user.channels == {"stable": ["b5", "b1"], "nightly": ["b10", "b2"]}
    catalog = user.catalog
    for name in ("b1", "b5", "0.5.0"):
        assert catalog.read(catalog.entry(name)).publisher == "simulator"


# --- other signers for a channel -----------------------------------------------------------


def test_a_lost_machine_is_replaced_by_people_without_a_new_root(
    delegated: Team, tmp_path: Path
) -> None:
    user = Client(tmp_path / "user", delegated)
    user.refresh(delegated.files())
    delegated.run("rotate", "nightly=machine-2", signers=(*PEOPLE, "machine-2", "host"))
    assert delegated.versions()["root"] == 1
    user.refresh(delegated.files())
    delegated.add("nightly", "b3")
    code, _, err = delegated.tried("sign", "--channel", "nightly", signers=MACHINE)
    assert (code, "nightly: 0 of 1" in err) == (1, True)
    delegated.run("sign", "--channel", "nightly", signers=("machine-2", "host"))
    user.refresh(delegated.files())
    assert user.channels["nightly"] == ["b3", "b2"]


def test_a_channel_that_people_sign_again_stays_known_to_old_clients(
    delegated: Team, tmp_path: Path
) -> None:
    user = Client(tmp_path / "user", delegated)
    user.refresh(delegated.files())
    delegated.edit(lambda document: document["roles"].pop("nightly"))
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    user.refresh(delegated.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b2"]}


# --- published and checked ----------------------------------------------------------------


def test_the_old_state_is_not_published_over_a_newer_channel(delegated: Team) -> None:
    served = delegated.home / "served"
    old = delegated.home / "old"
    shutil.copytree(delegated.signed, old)
    delegated.run("publish", served)
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    delegated.run("publish", served)
    code, _, err = delegated.tried("publish", served, "--from", old)
    assert (code, "newer versions of" in err, "nightly" in err) == (1, True, True), err


def test_a_channel_begins_and_ends_where_it_is_served(team: Team) -> None:
    served = team.home / "served"
    team.run("publish", served)
    team.delegate()
    team.run("sign", "--raise")
    team.run("publish", served)
    team.edit(lambda document: document["roles"].pop("nightly"))
    team.run("sign", "--raise")
    team.run("publish", served)


def test_check_tells_of_a_channel_that_must_be_signed(delegated: Team) -> None:
    served = delegated.home / "served"
    delegated.run("publish", served)
    said = delegated.run("check", "--published", served, "--on", "2026-12-10")
    assert "nightly   version 2, 11 days left (2026-12-21)" in said
    assert "nightly   2 embedded, 2 published" in said
    code, _, err = delegated.tried("check", "--on", "2026-12-15")
    assert (code, "sign again: nightly (6 days left)" in err) == (1, True), err
    delegated.run("sign", "--channel", "nightly", "--issued", "2026-12-14", signers=MACHINE)
    assert "nightly   version 3, 29 days left" in delegated.run("check", "--on", "2026-12-15")


def test_people_revoke_a_release_of_a_channel(delegated: Team, tmp_path: Path) -> None:
    user = Client(tmp_path / "user", delegated)
    delegated.add("nightly", "b3")
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    user.refresh(delegated.files())
    delegated.run("revoke", "b3", "--reason", "it leaks", "--on", "2026-11-23")
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    user.refresh(delegated.files())
    found = user.catalog.revocation(user.catalog.entry("b3"))
    assert found is not None
    assert found.reason == "it leaks"
    # The machine says it in the release file, and may drop the release; the list stays.
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    delegated.edit(lambda document: document["channels"].update(nightly=["b2"]))
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    user.refresh(delegated.files())
    assert [each.release for each in user.catalog.revoked] == ["b3"]


# --- nobody signs at the same time ---------------------------------------------------------


def test_a_command_waits_for_another_one_on_the_same_data(delegated: Team) -> None:
    with (
        folder.locked(delegated.data),
        pytest.raises(PublishError, match="another tsuku-publish"),
        folder.locked(delegated.data, wait=0),
    ):
        pass
    delegated.run("resign", signers=("host",))


def test_what_a_dead_command_held_is_free(delegated: Team) -> None:
    (delegated.data / folder.LOCK).write_text(str(os.getpid()))
    delegated.run("resign", signers=("host",))
