"""Repositories as tuf-on-ci makes them: a channel is a delegated role with a folder of its name."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.folder_shop import FolderShop, Notes
from support.repository import RepositorySimulator, other_signer, release_document
from tuf.api.metadata import TargetFile  # type: ignore[attr-defined]  # its own re-export

from tsuku_llm.catalog import loading, refreshing
from tsuku_llm.catalog.copies import FolderCopy
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.ground.errors import MetadataError, UnknownRequest
from tsuku_llm.steps.install.install import install


class TufOnCi(RepositorySimulator):
    """A repository of tuf-on-ci's shape.

    All keys are ECDSA on P-256, one online key signs snapshot and timestamp, files are named by
    version only, no target has ``custom``, and there are fields of tuf-on-ci.
    """

    def __init__(self, url: str = "https://releases.example/llm/", *, name: str = "ci") -> None:
        super().__init__(url, name=name)
        keys = [other_signer("p256", number) for number in range(12)]
        self.signers = {"root": keys[:3], "targets": keys[3:6]}
        self.signers |= {"snapshot": [keys[6]], "timestamp": [keys[6]]}
        self._spare = keys[7:]
        self.adopt_signers()
        for signed in (self.root, self.targets, self.snapshot, self.timestamp):
            self._as_there(signed)
        for role in ("snapshot", "timestamp"):
            self.root.roles[role].unrecognized_fields |= {
                "x-tuf-on-ci-expiry-period": 365,
                "x-tuf-on-ci-signing-period": 60,
            }
        for key in self.root.keys.values():
            key.unrecognized_fields["x-tuf-on-ci-keyowner"] = "@maintainer"
        key = self.root.keys[keys[6].public_key.keyid]
        key.unrecognized_fields = {"x-tuf-on-ci-online-uri": "gcpkms:projects/p/keys/k"}
        self.sign_root()
        self.channel("stable", threshold=2)
        self.channel("nightly")
        self.bump()

    def _as_there(self, signed: Any) -> None:
        signed.unrecognized_fields = {
            "x-tuf-on-ci-expiry-period": 365,
            "x-tuf-on-ci-signing-period": 60,
        }

    def channel(self, role: str, threshold: int = 1) -> None:
        """Delegate a role's own folder to it."""
        signers = [self._spare.pop() for _ in range(threshold)]
        self.delegate(role, f"{role}/*", threshold=threshold, signers=signers)
        self._as_there(self.delegated[role])
        delegations = self.targets.delegations
        assert delegations is not None
        for key in delegations.keys.values():
            key.unrecognized_fields["x-tuf-on-ci-keyowner"] = "@maintainer"

    def put(self, role: str, path: str, content: Any) -> None:
        """Let a role sign a file, as tuf-on-ci does for each file of its targets folder."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        file = TargetFile.from_data(path, data, ["sha256"])
        self.targets_of(role).targets[path] = file
        self.files[f"targets/{file.get_prefixed_paths()[0]}"] = data

    def offer(self, role: str, tag: str, **fields: Any) -> None:
        """Put a release file into the role's own folder."""
        self.put(role, f"{role}/{tag}.json", release_document(tag, **fields))

    def sign_snapshot(self, signers: Any = None) -> None:
        for file in self.snapshot.meta.values():
            file.hashes = file.length = None
        super().sign_snapshot(signers)

    def sign_timestamp(self, signers: Any = None) -> None:
        self.timestamp.snapshot_meta.hashes = self.timestamp.snapshot_meta.length = None
        super().sign_timestamp(signers)


@pytest.fixture
def simulator() -> TufOnCi:
    simulator = TufOnCi()
    simulator.offer("stable", "b100", version="0.6.0")
    simulator.offer("nightly", "b101")
    simulator.bump()
    return simulator


def refresh(simulator: TufOnCi, data: Path) -> Catalog:
    """The catalog after a refresh."""
    return refreshing.refresh(simulator.repository(), data, simulator.download)


def by_channel(catalog: Catalog) -> dict[str, list[str]]:
    return {
        channel: [entry.release for entry in catalog.releases(channel)]
        for channel in catalog.channels
    }


def test_the_folder_is_the_channel_and_the_file_says_the_rest(
    simulator: TufOnCi, tmp_path: Path
) -> None:
    found = refresh(simulator, tmp_path)
    assert by_channel(found) == {"stable": ["b100"], "nightly": ["b101"]}
    entry = found.entry("v0.6.0")
    assert (entry.release, entry.sequence, entry.publisher) == ("b100", 100, "simulator")
    assert found.read(entry).release == "b100"
    assert found.freshness.signed is None
    assert not found.notes
    # The same from the disk alone.
    again = loading.load(simulator.repository(), tmp_path)
    assert by_channel(again) == by_channel(found)


def test_a_build_is_installed_from_such_a_repository(tmp_path: Path) -> None:
    shop = FolderShop(tmp_path / "shop")
    shop.simulator = TufOnCi(shop.simulator.url)
    variant = shop.variant(shop.stand_in("b100-cpu"))
    platform = {"default": "cpu", "preference": {}, "variants": {"cpu": variant}}
    shop.simulator.offer("stable", "b100", platforms={"linux-amd64": platform})
    shop.simulator.bump()
    shop.write()
    session = shop.session(tmp_path / "home")
    report = install(session)
    assert report.choice.release.release == "b100"
    assert report.installed
    assert isinstance(session.user.note, Notes)
    assert not [note for note in session.user.note if "skipped" in note]


def test_a_new_release_needs_only_the_signers_of_its_role(
    simulator: TufOnCi, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    simulator.offer("nightly", "b102")
    for name in ("nightly",):
        simulator.delegated[name].version += 1
        simulator.sign_delegated(name)
    simulator.snapshot.version += 1
    simulator.sign_snapshot()
    simulator.timestamp.version += 1
    simulator.sign_timestamp()
    simulator.requests.clear()
    assert by_channel(refresh(simulator, tmp_path))["nightly"] == ["b102", "b101"]
    files = [name for name in simulator.requests if name.startswith("targets/")]
    assert len(files) == 1, "what is here already is not fetched again"


@pytest.mark.parametrize("path", ["stable/b200.json", "releases/b200.json", "b200.json"])
def test_a_role_offers_nothing_outside_its_folder(
    simulator: TufOnCi, tmp_path: Path, path: str
) -> None:
    simulator.put("nightly", path, release_document("b200"))
    simulator.bump()
    assert by_channel(refresh(simulator, tmp_path)) == {"stable": ["b100"], "nightly": ["b101"]}


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_role_that_is_delegated_another_folder_offers_nothing_there(
    simulator: TufOnCi, tmp_path: Path, *, first: bool
) -> None:
    """The publisher's mistake: only the folder of the role's own name is a channel."""
    simulator.channel("beta")
    delegations = simulator.targets.delegations
    assert delegations is not None
    assert delegations.roles is not None
    delegations.roles["beta"].paths = ["stable/*", "beta/*"]
    simulator.put("beta", "stable/b200.json", release_document("b200"))
    simulator.offer("beta", "b201")
    if first:
        # By TUF's rules its file then counts, and not that of the role with this name.
        delegations.roles = {"beta": delegations.roles.pop("beta"), **delegations.roles}
        simulator.offer("stable", "b200", publisher="stable's")
    simulator.bump()
    assert by_channel(refresh(simulator, tmp_path)) == {
        "stable": ["b100"],
        "nightly": ["b101"],
        "beta": ["b201"],
    }


@pytest.mark.parametrize("fields", [{"revoked": True}, {"publisher": "another"}], ids=str)
def test_a_role_cannot_take_the_name_of_anothers_release(
    simulator: TufOnCi, tmp_path: Path, fields: dict[str, Any]
) -> None:
    simulator.offer("nightly", "b100", **fields)
    simulator.offer("nightly", "b300", version="0.6.0")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert by_channel(found) == {"stable": ["b100"], "nightly": ["b101"]}
    assert found.entry("0.6.0").publisher == "simulator"
    assert found.revocation(found.entry("b100")) is None


def test_the_same_file_in_two_folders_is_one_release_in_both_channels(
    simulator: TufOnCi, tmp_path: Path
) -> None:
    """A promotion is a copy of the file."""
    simulator.offer("stable", "b101")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert by_channel(found) == {"stable": ["b101", "b100"], "nightly": ["b101"]}
    assert [entry.release for entry in found.entries] == ["b101", "b100"]


def test_a_revocation_is_in_the_release_file(simulator: TufOnCi, tmp_path: Path) -> None:
    simulator.offer("stable", "b100", version="0.6.0", revoked=True)
    simulator.bump()
    found = refresh(simulator, tmp_path)
    revoked = found.revocation(found.entry("b100"))
    assert revoked is not None
    assert found.revocation(found.entry("b101")) is None


def test_a_file_of_a_newer_format_is_skipped_and_its_revocation_counts(
    simulator: TufOnCi, tmp_path: Path
) -> None:
    simulator.offer("stable", "b102", format=2, published=None, revoked=True)
    simulator.bump()
    found = refresh(simulator, tmp_path)
    told: list[str] = []
    readable = [entry.release for entry, _ in found.readable(found.releases("stable"), told.append)]
    assert readable == ["b100"]
    assert told[0].startswith("b102 is skipped: ")
    assert found.revocation(found.entry("b102")) is not None


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("stable/notes.json", {"what": "changed"}),
        ("stable/b0x1.json", release_document("b0x1")),
        ("stable/b102.json", b"\xff\xfe{"),
        ("stable/b102.json", b'{"release": "b102", "release": "b103"}'),
    ],
    ids=["name", "number", "junk", "twice"],
)
def test_what_is_no_release_file_is_left_out_with_a_note(
    simulator: TufOnCi, tmp_path: Path, path: str, content: Any
) -> None:
    simulator.put("stable", path, content)
    simulator.put("stable", "stable/README.txt", b"not a release")
    simulator.put("stable", "stable/llama.tar.gz", b"an archive")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert by_channel(found) == {"stable": ["b100"], "nightly": ["b101"]}
    (note,) = found.notes
    assert note.startswith(f"'{path}' is skipped: ")


def test_a_file_about_another_release_is_refused(simulator: TufOnCi, tmp_path: Path) -> None:
    simulator.put("stable", "stable/b102.json", release_document("b99"))
    simulator.bump()
    found = refresh(simulator, tmp_path)
    told: list[str] = []
    assert [e.release for e, _ in found.readable(found.entries, told.append)] == ["b101", "b100"]
    assert "the file of b102 describes b99" in told[0]


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_damaged_file_on_the_disk_stops_no_other_release(
    simulator: TufOnCi, tmp_path: Path, damage: str
) -> None:
    found = refresh(simulator, tmp_path)
    assert isinstance(found.copy, FolderCopy)
    file = found.copy.folder / found.trusted.targets["stable/b100.json"].name
    file.unlink() if damage == "missing" else file.write_bytes(b"{}")
    left = loading.load(simulator.repository(), tmp_path)
    assert by_channel(left) == {"nightly": ["b101"]}
    (note,) = left.notes
    assert note.startswith("'stable/b100.json' is skipped: ")
    assert by_channel(refresh(simulator, tmp_path))["stable"] == ["b100"], "a refresh mends it"


def test_signatures_below_the_threshold_of_a_role_are_refused(
    simulator: TufOnCi, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    simulator.offer("stable", "b102")
    simulator.bump()
    simulator.delegates["stable"] = simulator.delegates["stable"][:1]
    simulator.bump()
    with pytest.raises(MetadataError, match="stable") as caught:
        refresh(simulator, tmp_path)
    assert "1 valid signatures, 2 are needed" in str(caught.value.facts)
    with pytest.raises(UnknownRequest):
        loading.load(simulator.repository(), tmp_path).entry("b102")


def test_a_role_may_delegate_a_part_of_its_folder(simulator: TufOnCi, tmp_path: Path) -> None:
    """The channel is that of the first role on the way."""
    simulator.delegate("robot", "nightly/b2*.json", by="nightly")
    simulator.put("robot", "nightly/b205.json", release_document("b205"))
    simulator.put("robot", "nightly/b305.json", release_document("b305"))
    simulator.put("robot", "robot/b206.json", release_document("b206"))
    simulator.bump()
    assert by_channel(refresh(simulator, tmp_path)) == {
        "stable": ["b100"],
        "nightly": ["b205", "b101"],
    }
