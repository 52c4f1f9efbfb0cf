"""Bundles: what is in them, what an install from one verifies, and what is refused."""

import dataclasses
import json
import random
import shutil
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path

import pytest
from support.folder_shop import NOW, FolderShop, Notes
from support.release_server import NAME
from support.sessions import changed
from support.sweeps import stride

from tsuku_llm.catalog.repositories import repository
from tsuku_llm.fetch.places.bundle_file import BundleDescription, opened_bundle
from tsuku_llm.ground.errors import (
    BadBundle,
    DigestMismatch,
    DownloadError,
    MetadataError,
    Revoked,
    SelectionError,
    StaleMetadata,
    TrustError,
    TsukuError,
    UsageError,
    WrongBundle,
)
from tsuku_llm.steps.install.bundle_install import install_bundle
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.session import Session
from tsuku_llm.store.store import Store
from tsuku_operator.bundle.bundle import BundleReport, create_bundle, show_bundle
from tsuku_operator.bundle.bundle_choice import BundleWish
from tsuku_operator.bundle.bundle_writer import written_bundle
from tsuku_operator.mirror.mirror import check_mirror, mirror
from tsuku_operator.mirror.mirror_choice import Narrowing

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
BUILDS_ONLY = BundleWish(program=False)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    """A shop that no test changes."""
    shop = FolderShop.offering(tmp_path_factory.mktemp("shops") / "shop", "b1")
    variants = {
        name: shop.variant(shop.stand_in(f"b2-{name}"), backend=name.partition("-")[0])
        for name in ("cpu", "vulkan", "cuda-12.8")
    }
    shop.publish("b2", variants)
    return shop


@pytest.fixture(scope="module")
def made(shop: FolderShop, tmp_path_factory: pytest.TempPathFactory) -> BundleReport:
    """A bundle of the CPU's build, which each test may copy."""
    folder = tmp_path_factory.mktemp("bundles")
    session = shop.session(folder / "operator")
    return create_bundle(session, folder / "one.bundle", wish(backends=("cpu",)))


def wish(**changes: object) -> BundleWish:
    return dataclasses.replace(BUILDS_ONLY, **changes)  # type: ignore[arg-type]


@pytest.fixture
def operator(shop: FolderShop, tmp_path: Path) -> Session:
    return shop.session(tmp_path / "operator")


@pytest.fixture
def user(shop: FolderShop, tmp_path: Path) -> Session:
    """A user who knows the repository, and reaches nothing."""
    return changed(shop.session(tmp_path / "user"), mirror=("https://closed.invalid/",))


def versions(session: Session) -> list[str]:
    return [each.id for each in Store(session.paths.data).installed()]


def names(report: BundleReport) -> list[tuple[str, str]]:
    return [(each.release, each.variant) for each in report.description.builds]


# --- made ----------------------------------------------------------------------------------


def test_a_bundle_of_a_machine_has_the_builds_that_fit_it(
    operator: Session, tmp_path: Path
) -> None:
    machine = wish(machines=(SNAPSHOTS / "two-h200.json",))
    report = create_bundle(operator, tmp_path / "x", machine)
    assert report.outcome == "created"
    assert names(report) == [("b2", "cpu"), ("b2", "cuda-12.8"), ("b2", "vulkan")]
    assert report.sha256 == sha256((tmp_path / "x").read_bytes()).hexdigest()
    assert show_bundle(tmp_path / "x").description == report.description
    narrow = dataclasses.replace(machine, backends=("cuda",))
    assert names(create_bundle(operator, tmp_path / "y", narrow)) == [("b2", "cuda-12.8")]


def test_machines_share_what_they_need(operator: Session, tmp_path: Path) -> None:
    snapshots = ("two-h200", "debian-12-vm-no-gpu", "rtx-3090-ubuntu-22.04")
    machines = tuple(SNAPSHOTS / f"{name}.json" for name in snapshots)
    report = create_bundle(operator, tmp_path / "x", wish(machines=machines))
    assert len(report.description.builds) == 3
    with zipfile.ZipFile(tmp_path / "x") as archive:
        inside = [name for name in archive.namelist() if name.startswith("sha256/")]
    assert sorted(inside) == sorted({f"sha256/{each}" for each in report.description.artifacts})


def test_a_platform_gets_the_newest_release(operator: Session, tmp_path: Path) -> None:
    every = create_bundle(operator, tmp_path / "x", wish(platforms=("linux-amd64",)))
    assert {release for release, _ in names(every)} == {"b2"}
    old = create_bundle(operator, tmp_path / "y", wish(platforms=("linux-amd64",), release="b1"))
    assert names(old) == [("b1", "cpu")]


@pytest.mark.parametrize(
    "wanted",
    [
        {"platforms": ("linux-amd65",)},
        {"platforms": ("linux-amd64",), "backends": ("vulcan",)},
        {"platforms": ("linux-amd64",), "release": "b3"},
        {"machines": (SNAPSHOTS / "debian-12-vm-no-gpu.json",), "backends": ("cuda",)},
        {"machines": (SNAPSHOTS / "macos-26-m4.json",)},
    ],
    ids=str,
)
def test_what_does_not_exist_is_refused_before_a_byte_is_written(
    operator: Session, tmp_path: Path, wanted: dict[str, object]
) -> None:
    with pytest.raises(SelectionError):
        create_bundle(operator, tmp_path / "x", wish(**wanted))
    assert not [each for each in tmp_path.iterdir() if "x" in each.name]


def test_the_same_inputs_give_the_same_bytes(
    shop: FolderShop, made: BundleReport, tmp_path: Path
) -> None:
    other = shop.session(tmp_path / "another")
    again = create_bundle(other, tmp_path / "elsewhere.bin", wish(backends=("cpu",)))
    assert again.path.read_bytes() == made.path.read_bytes()


def test_a_file_is_replaced_only_by_force(operator: Session, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        create_bundle(operator, tmp_path / "x", BUILDS_ONLY)
    assert (tmp_path / "x").read_text() == "mine"
    create_bundle(operator, tmp_path / "x", BUILDS_ONLY, force=True)
    show_bundle(tmp_path / "x")
    for bad in (tmp_path, tmp_path / "missing" / "x"):
        with pytest.raises(UsageError):
            create_bundle(operator, bad, BUILDS_ONLY, force=True)


def test_a_dry_run_writes_nothing(operator: Session, tmp_path: Path) -> None:
    report = create_bundle(operator, tmp_path / "x", wish(backends=("cpu",)), dry_run=True)
    assert (report.outcome, report.sha256, names(report)) == ("planned", None, [("b2", "cpu")])
    assert report.size > 0
    assert not (tmp_path / "x").exists()


def test_a_failed_download_leaves_no_file(shop: FolderShop, tmp_path: Path) -> None:
    session = changed(shop.session(tmp_path / "operator"), mirror=((tmp_path / "no").as_uri(),))
    with pytest.raises(TsukuError):
        create_bundle(session, tmp_path / "x", wish(backends=("cpu",)))
    assert not [each for each in tmp_path.iterdir() if "x" in each.name]


def test_the_next_run_removes_what_a_killed_one_left(operator: Session, tmp_path: Path) -> None:
    (tmp_path / f".x.{'0' * 16}.tmp").write_bytes(b"half")
    (tmp_path / ".xy.tmp").write_bytes(b"not ours")
    create_bundle(operator, tmp_path / "x", BUILDS_ONLY)
    assert sorted(each.name for each in tmp_path.glob(".x*")) == [".xy.tmp"]


def test_the_parts_list_names_every_archive(made: BundleReport) -> None:
    with zipfile.ZipFile(made.path) as archive:
        bill = json.loads(archive.read("sbom.cdx.json"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    digests = {each["hashes"][0]["content"] for each in bill["components"]}
    assert digests == made.description.artifacts
    (root,) = [each for each in bill["dependencies"] if each["ref"] == "bundle"]
    assert sorted(root["dependsOn"]) == sorted(each["bom-ref"] for each in bill["components"])


# --- a mirror in one file --------------------------------------------------------------------


def test_a_bundle_is_a_mirror(shop: FolderShop, made: BundleReport, tmp_path: Path) -> None:
    session = changed(shop.session(tmp_path / "user"), mirror=(made.path.as_uri(),))
    settings = session.paths.data / "metadata" / NAME / "repository.json"
    settings.write_text(json.dumps({"format": 1, "url": f"{made.path.as_uri()}/"}))
    copied = mirror(session, tmp_path / "mirror", Narrowing(backends=("cpu",), releases=("b2",)))
    assert {each.sha256 for each in copied.archives} == made.description.artifacts
    with zipfile.ZipFile(made.path) as archive:
        archive.extractall(tmp_path / "unpacked")
    checked = check_mirror(session, tmp_path / "unpacked")
    assert not checked.differences
    assert sorted(checked.swept.foreign) == ["bundle.json", "sbom.cdx.json", "start.py"]


# --- installed from --------------------------------------------------------------------------


def test_an_install_from_a_bundle_asks_nobody(user: Session, made: BundleReport) -> None:
    report = install_bundle(user, made.path)
    assert report.installed is not None
    assert report.installed.receipt.release == "b2"
    assert install_bundle(user, made.path).outcome == "unchanged"


def test_only_builds_of_the_bundle_are_chosen(
    operator: Session, user: Session, tmp_path: Path
) -> None:
    create_bundle(operator, tmp_path / "old", wish(platforms=("linux-amd64",), release="b1"))
    report = install_bundle(user, tmp_path / "old")
    assert report.installed is not None
    assert report.installed.receipt.release == "b1"
    create_bundle(operator, tmp_path / "gpu", wish(platforms=("linux-amd64",), backends=("cuda",)))
    with pytest.raises(WrongBundle, match="no build that fits this machine"):
        install_bundle(user, tmp_path / "gpu")
    with pytest.raises(WrongBundle):
        install_bundle(user, tmp_path / "gpu", release="b1")


def test_a_channel_of_ones_own_is_found(tmp_path: Path) -> None:
    shop = FolderShop(tmp_path / "shop")
    shop.publish("b5", {"cpu": shop.variant(shop.stand_in("b5"))}, channels=("canary",))
    operator = changed(shop.session(tmp_path / "operator"), channel="canary")
    create_bundle(operator, tmp_path / "x", BUILDS_ONLY)
    report = install_bundle(shop.session(tmp_path / "user"), tmp_path / "x")
    assert (report.choice.release.release, report.choice.channel) == ("b5", "canary")


def test_a_repository_is_added_only_by_its_fingerprint(
    shop: FolderShop, made: BundleReport, tmp_path: Path
) -> None:
    user = stranger(shop, tmp_path)
    with pytest.raises(MetadataError, match="does not know the repository") as error:
        install_bundle(user, made.path)
    assert made.description.fingerprint in error.value.facts[0]
    with pytest.raises(MetadataError, match="another root of trust"):
        install_bundle(user, made.path, fingerprint="0" * 64)
    assert not (user.paths.data / "metadata").exists()
    spelled = ":".join(made.description.fingerprint.upper()[i : i + 2] for i in range(0, 64, 2))
    report = install_bundle(user, made.path, fingerprint=spelled)
    assert report.choice.catalog.repository.name == NAME


def test_a_repository_that_is_not_the_bundles_is_refused(user: Session, made: BundleReport) -> None:
    with pytest.raises(UsageError, match="not of the repository official"):
        install_bundle(changed(user, repository="official"), made.path)


# --- refused ---------------------------------------------------------------------------------


def rewritten(report: BundleReport, to: Path, changes: dict[str, bytes | None]) -> Path:
    """A copy of a bundle with other members, which is whole: its maker is the attacker."""
    with zipfile.ZipFile(report.path) as archive, written_bundle(to) as bundle:
        for name in archive.namelist():
            data = changes.get(name, archive.read(name))
            if data is not None:
                bundle.add(name, data)
        bundle.finish()
    show_bundle(to)
    return to


def test_another_archive_is_refused(user: Session, made: BundleReport, tmp_path: Path) -> None:
    (digest,) = made.description.artifacts
    bad = rewritten(made, tmp_path / "bad", {f"sha256/{digest}": b"something else"})
    with pytest.raises(DigestMismatch):
        install_bundle(user, bad)
    assert not versions(user)


def test_metadata_of_other_keys_is_refused(
    user: Session, made: BundleReport, tmp_path: Path
) -> None:
    other = FolderShop.offering(tmp_path / "other", "b9")
    folder = tmp_path / "other" / "repository"
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.json")}
    changes = {name: path.read_bytes() for name, path in files.items()}
    del other
    with pytest.raises(MetadataError):
        install_bundle(user, rewritten(made, tmp_path / "bad", dict(changes)))
    assert not versions(user)


@pytest.mark.parametrize("part", ["metadata/timestamp.json", "targets/", "metadata/1.root.json"])
def test_a_missing_part_is_refused(
    shop: FolderShop, made: BundleReport, tmp_path: Path, part: str
) -> None:
    with zipfile.ZipFile(made.path) as archive:
        gone = dict.fromkeys(name for name in archive.namelist() if name.startswith(part))
    bad = rewritten(made, tmp_path / "bad", dict(gone))
    user = stranger(shop, tmp_path)
    with pytest.raises((TrustError, DownloadError)):
        install_bundle(user, bad, fingerprint=made.description.fingerprint)
    assert not versions(user)
    # The repository is not kept either.
    assert not list(user.paths.data.glob("metadata/*/repository.json"))


UNSIGNED = {
    "another_host": ["https://thief.example/llm/"],
    "another_before_the_right_one": ["https://thief.example/", "https://right.example/"],
    "a_package": ["pkg:pypi/thief/"],
    "a_registry": ["oci://thief.example/llm/"],
    "a_folder": ["file:///tmp/thief/"],
    "none": [],
    "very_many": [f"https://thief.example/{number}/" for number in range(5000)],
}
NO_PLACE = {
    "a_password": ["https://u:p@thief.example/"],
    "a_query": ["https://thief.example/?x"],
    "a_script": ["javascript:alert(1)"],
    "no_text": [""],
    "control_characters": ["https://thief.example/\x1b[2J"],
}


def telling(made: BundleReport, to: Path, places: list[str]) -> Path:
    """The bundle, but with other places, which no signature covers."""
    with zipfile.ZipFile(made.path) as archive:
        about = json.loads(archive.read("bundle.json"))
    return rewritten(made, to, {"bundle.json": json.dumps({**about, "places": places}).encode()})


@pytest.mark.parametrize("agrees", [False, True])
@pytest.mark.parametrize("kind", UNSIGNED)
def test_N05_places_of_a_bundle_are_asked_only_after_a_yes(
    kind: str, agrees: bool, shop: FolderShop, made: BundleReport, tmp_path: Path
) -> None:
    bundle = telling(made, tmp_path / "other", UNSIGNED[kind])
    asked: list[str] = []
    notes = Notes()
    # ``--yes`` is about downloads: it says nothing of a host that the user has not seen.
    user = changed(
        stranger(shop, tmp_path),
        note=notes,
        agreed=True,
        ask=lambda question: bool(asked.append(question)) or agrees,
    )
    report = install_bundle(user, bundle, fingerprint=made.description.fingerprint)
    places = repository(user.paths.data, NAME).places
    assert report.choice.catalog.repository.places == places
    assert len(asked) == bool(UNSIGNED[kind])
    if agrees and UNSIGNED[kind]:
        assert places == tuple(UNSIGNED[kind][: len(places)])
        assert all(place in asked[0] for place in places)
        assert len(places) <= 8
        return
    assert places == (f"{bundle.as_uri()}/",)
    told = next(line for line in notes if "not signed" in line)
    assert all(place in told for place in UNSIGNED[kind][:1])
    # What the bundle has can still be verified again; no host is asked for more.
    assert refresh(changed(user, repository=NAME)).repository.name == NAME


@pytest.mark.parametrize("kind", NO_PLACE)
def test_N05_a_bundle_with_places_that_are_none_is_refused(
    kind: str, shop: FolderShop, made: BundleReport, tmp_path: Path
) -> None:
    bundle = telling(made, tmp_path / "other", NO_PLACE[kind])
    user = stranger(shop, tmp_path)
    with pytest.raises(BadBundle) as error:
        install_bundle(user, bundle, fingerprint=made.description.fingerprint)
    assert "\x1b" not in str(error.value)
    assert not list(user.paths.data.glob("metadata/*/repository.json"))


def test_N05_a_known_repository_keeps_its_places(
    user: Session, made: BundleReport, tmp_path: Path
) -> None:
    before = repository(user.paths.data, NAME).places
    install_bundle(user, telling(made, tmp_path / "other", ["https://thief.example/"]))
    assert repository(user.paths.data, NAME).places == before


def stranger(shop: FolderShop, tmp_path: Path) -> Session:
    """A user who knows the official repository only."""
    user = changed(shop.session(tmp_path / "user"), repository=None)
    shutil.rmtree(user.paths.data / "metadata")
    return user


def test_expired_metadata_is_accepted_only_aloud(
    tmp_path: Path, at: Callable[[datetime], None]
) -> None:
    at(NOW)
    shop = FolderShop(tmp_path / "shop")
    shop.simulator.expire("timestamp", datetime(2026, 12, 1, tzinfo=timezone.utc))
    shop.publish("b1", {"cpu": shop.variant(shop.stand_in("b1"))})
    create_bundle(shop.session(tmp_path / "operator"), tmp_path / "x", BUILDS_ONLY)
    user = shop.session(tmp_path / "user")
    later = user.machine.now + timedelta(days=90)
    user = changed(user, now=later, note=Notes())
    with pytest.raises(StaleMetadata) as error:
        install_bundle(user, tmp_path / "x")
    assert error.value.message == "the signed metadata of the bundle has expired"
    assert "--allow-expired" in error.value.hint
    assert not versions(user)
    report = install_bundle(user, tmp_path / "x", expired_too=True)
    assert report.installed is not None
    told = user.user.note
    assert isinstance(told, Notes)
    assert any("--allow-expired accepts it" in each for each in told)


def test_a_bundle_never_leads_back(tmp_path: Path) -> None:
    shop = FolderShop.offering(tmp_path / "shop", "b1")
    create_bundle(shop.session(tmp_path / "operator"), tmp_path / "old", BUILDS_ONLY)
    shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2"))})
    create_bundle(shop.session(tmp_path / "operator"), tmp_path / "new", BUILDS_ONLY)
    user = shop.session(tmp_path / "user")
    install_bundle(user, tmp_path / "new")
    for expired_too in (False, True):
        with pytest.raises(MetadataError, match="older"):
            install_bundle(user, tmp_path / "old", expired_too=expired_too)
    active = Store(user.paths.data).active()
    assert active is not None
    assert active.receipt.release == "b2"


def test_a_release_that_was_revoked_since_is_refused(tmp_path: Path) -> None:
    shop = FolderShop.offering(tmp_path / "shop", "b1")
    operator = shop.session(tmp_path / "operator")
    create_bundle(operator, tmp_path / "old", BUILDS_ONLY)
    shop.simulator.targets.unrecognized_fields["revoked"] = [
        {"release": "b1", "date": "2026-11-20", "reason": "it crashes"}
    ]
    shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2"))})
    user = shop.session(tmp_path / "user")
    with pytest.raises(Revoked):
        create_bundle(operator, tmp_path / "x", wish(platforms=("linux-amd64",), release="b1"))
    # It learns of the revocation from a bundle of another release.
    create_bundle(operator, tmp_path / "new", BUILDS_ONLY)
    install_bundle(user, tmp_path / "new")
    with pytest.raises(MetadataError):
        install_bundle(user, tmp_path / "old")


@pytest.mark.parametrize("length", [0, 1, 500, 3000, -1, -1000])
def test_a_file_that_is_cut_off_is_refused(
    user: Session, made: BundleReport, tmp_path: Path, length: int
) -> None:
    (tmp_path / "x").write_bytes(made.path.read_bytes()[:length])
    with pytest.raises(BadBundle):
        install_bundle(user, tmp_path / "x")
    with pytest.raises(BadBundle):
        show_bundle(tmp_path / "x")


def test_what_is_no_bundle_is_refused(user: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("bundle.json", "{}")
    (tmp_path / "text").write_text("size=10\nsha256=x\n")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("zip", "text"):
        with pytest.raises(BadBundle):
            install_bundle(user, tmp_path / name)
    for name in ("missing", "endless", "."):
        with pytest.raises(UsageError):
            install_bundle(user, tmp_path / name)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "wheels/..", "x\\y", "a//b", "a\nb"])
def test_a_member_outside_is_refused(tmp_path: Path, name: str) -> None:
    with written_bundle(tmp_path / "x") as bundle:
        bundle.add(name, b"")
        bundle.finish()
    with pytest.raises(BadBundle, match="no bundle"):
        show_bundle(tmp_path / "x")


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    with written_bundle(tmp_path / "x") as bundle:
        bundle._zip.compression = zipfile.ZIP_DEFLATED
        info = zipfile.ZipInfo("bundle.json")
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o100644 << 16
        bundle._zip.writestr(info, bytes(50 << 20))
        bundle.finish()
    with pytest.raises(BadBundle, match="no bundle"):
        show_bundle(tmp_path / "x")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"format": 2}', b"\xff", b'{"format": 1, "fingerprint": 5}', b"[" * 9000],
)
def test_a_description_that_cannot_be_read_is_refused(
    user: Session, tmp_path: Path, content: bytes
) -> None:
    with written_bundle(tmp_path / "x") as bundle:
        bundle.add("bundle.json", content)
        bundle.finish()
    with pytest.raises(BadBundle):
        install_bundle(user, tmp_path / "x")


def test_S43_a_flipped_byte_is_refused_or_harmless(
    shop: FolderShop, made: BundleReport, tmp_path: Path
) -> None:
    """Every change is found by ``show``; an install refuses it, or installs the signed build."""
    good = made.path.read_bytes()
    rng = random.Random(18)  # noqa: S311
    with opened_bundle(made.path) as bundle:
        (entry,) = [each for name, each in bundle._entries.items() if name.startswith("sha256/")]
    # Half of the positions are outside the archive: metadata, description, script, directory.
    count = 240 // stride(20)
    positions = [rng.randrange(len(good)) for _ in range(count)]
    positions += [rng.randrange(entry.data) for _ in range(count)]
    positions += [rng.randrange(entry.data + entry.size, len(good)) for _ in range(8)]
    user = shop.session(tmp_path / "user")
    outcomes = set()
    for number, position in enumerate(positions):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        path = tmp_path / f"{number}.bundle"
        path.write_bytes(bad)
        try:
            install_bundle(user, path, force=True)
            outcomes.add("harmless")
            Store(user.paths.data).check(Store(user.paths.data).installed()[0])
        except (TrustError, UsageError, WrongBundle):
            outcomes.add("refused")
        path.unlink()
    assert outcomes == {"harmless", "refused"}


def test_a_description_of_other_builds_installs_nothing_else(
    user: Session, made: BundleReport, tmp_path: Path
) -> None:
    def other(about: BundleDescription) -> dict[str, object]:
        document = about._asdict()
        document["builds"] = [{**each._asdict(), "release": "b7"} for each in about.builds]
        return document

    document = {"format": 1, **other(made.description)}
    bad = rewritten(made, tmp_path / "bad", {"bundle.json": json.dumps(document).encode()})
    report = install_bundle(user, bad)
    assert report.choice.release.release == "b2"
