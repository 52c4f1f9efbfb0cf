"""Copies of a repository: what is in them, when clients see it, and what a check finds."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from support.downloads import Clock
from support.folder_shop import FolderShop, Notes
from support.http_faults import FaultServer, answer
from support.package_index import PackageIndex
from support.release_server import NAME
from support.repository import RepositorySimulator, release_document
from support.sessions import changed

from tsuku_llm.catalog.repositories import OFFICIAL_URL, Repository
from tsuku_llm.fetch.places.bundle_file import opened_bundle
from tsuku_llm.fetch.places.small_files import local_chunks
from tsuku_llm.ground.errors import (
    CorruptStore,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    MetadataError,
    TsukuError,
    UnknownRequest,
    UsageError,
)
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.metadata.places import download_from
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.session import Session, repository_of
from tsuku_operator.mirror.mirror import MirrorReport, check_mirror, mirror
from tsuku_operator.mirror.mirror_choice import Narrowing
from tsuku_publish.repository.wheel import make_wheel

ALL = Narrowing()
SNAPSHOTS = Path(__file__).parents[1] / "snapshots"


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1", "b2")


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path) -> Session:
    """The operator of the mirror, who reaches the publisher."""
    return shop.session(tmp_path / "operator")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def inside(folder: Path) -> dict[str, bytes]:
    """The files of a folder with their contents."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def names(report: MirrorReport) -> list[str]:
    return sorted(each.name for each in report.fetched)


def closed_off(shop: FolderShop, home: Path, mirror: Path, **changes: object) -> Session:
    """A user who knows the mirror only: the publisher is gone from that network."""
    session = shop.session(home, mirror=(mirror.as_uri(),), **changes)
    settings = session.paths.data / "metadata" / NAME / "repository.json"
    settings.write_text(json.dumps({"format": 1, "url": f"{mirror.as_uri()}/"}))
    return session


def test_a_mirror_has_all_that_an_install_needs(
    shop: FolderShop, session: Session, folder: Path, tmp_path: Path
) -> None:
    report = mirror(session, folder, ALL)
    assert (report.outcome, names(report)) == ("updated", ["b1-cpu.tar.gz", "b2-cpu.tar.gz"])
    assert report.releases == ("b2", "b1")
    files = inside(folder)
    archives = {
        sha256(path.read_bytes()).hexdigest(): path for path in (shop.root / "archives").iterdir()
    }
    assert {name for name in files if name.startswith("sha256/")} == {
        f"sha256/{digest}" for digest in archives
    }
    published = inside(shop.root / "repository")
    copied = {name for name in files if name.startswith(("metadata/", "targets/"))}
    assert {name: files[name] for name in copied} == {name: published[name] for name in copied}
    shutil.rmtree(shop.root)
    user = closed_off(shop, tmp_path / "user", folder)
    assert refresh(user).repository.name == NAME
    done = install(user)
    assert done.installed is not None
    assert done.installed.receipt.release == "b2"


def test_a_mirror_is_made_from_a_mirror(
    shop: FolderShop, session: Session, folder: Path, tmp_path: Path
) -> None:
    mirror(session, folder, ALL)
    inner = closed_off(shop, tmp_path / "inner", folder)
    mirror(inner, tmp_path / "second", ALL)
    assert inside(tmp_path / "second") == inside(folder)


def test_a_second_run_changes_nothing(session: Session, folder: Path) -> None:
    mirror(session, folder, ALL)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*")}
    report = mirror(session, folder, ALL)
    assert (report.outcome, report.fetched) == ("unchanged", ())
    assert before == {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in before}


def test_what_a_killed_run_was_writing_goes_with_the_next_one(
    session: Session, folder: Path
) -> None:
    mirror(session, folder, Narrowing())
    before = inside(folder)
    for name in ("mirror.json", "metadata/7.targets.json", "targets/releases/b1.json"):
        at = folder / name
        at.with_name(f".{at.name}.0123456789abcdef.tmp").write_bytes(b"{")
    foreign = folder / "metadata/.notes.tmp"
    foreign.write_bytes(b"of the operator")
    mirror(session, folder, Narrowing())
    assert inside(folder) == before | {"metadata/.notes.tmp": b"of the operator"}


def test_only_what_is_new_is_fetched(shop: FolderShop, session: Session, folder: Path) -> None:
    mirror(session, folder, ALL)
    old = inside(folder)
    shop.publish("b3", {"cpu": shop.variant(shop.stand_in("b3-cpu"))})
    report = mirror(session, folder, ALL)
    assert names(report) == ["b3-cpu.tar.gz"]
    changing = {"metadata/timestamp.json", "mirror.json"}
    new = inside(folder)
    assert {name for name, data in old.items() if new[name] != data} == changing


def test_a_dry_run_writes_nothing(session: Session, folder: Path) -> None:
    report = mirror(session, folder, ALL, dry_run=True)
    assert report.outcome == "planned"
    assert len(report.fetched) == 2
    assert report.size == report.fetched_size > 0
    assert not folder.exists()


# --- narrowed ------------------------------------------------------------------------------


@pytest.fixture
def wide(tmp_path: Path) -> FolderShop:
    """A shop with two channels, two platforms and several backends."""
    shop = FolderShop(tmp_path / "wide")
    packed = {name: shop.stand_in(name) for name in ("cpu", "vulkan", "mac", "nightly")}
    platform = {
        "default": "cpu",
        "preference": {"portable": ["vulkan", "cpu"], "native": ["vulkan", "cpu"]},
        "variants": {
            "vulkan": shop.variant(packed["vulkan"], backend="vulkan", requires={"vulkan": "1.2"}),
            "cpu": shop.variant(packed["cpu"]),
        },
    }
    shop.publish("b1", {"cpu": shop.variant(packed["cpu"])})
    mac = {**platform, "variants": {"cpu": shop.variant(packed["mac"])}}
    document = release_document("b2", platforms={"linux-amd64": platform, "darwin-arm64": mac})
    shop.simulator.publish(document, channels=["stable"])
    shop.publish("b3", {"cpu": shop.variant(packed["nightly"])}, channels=["nightly"])
    return shop


@pytest.mark.parametrize(
    ("narrow", "wanted"),
    [
        (Narrowing(), {"cpu", "vulkan", "mac", "nightly"}),
        (Narrowing(platforms=("darwin-arm64",)), {"mac"}),
        (Narrowing(channels=("nightly",)), {"nightly"}),
        (Narrowing(backends=("vulkan",)), {"vulkan"}),
        (Narrowing(backends=("gpu",)), {"vulkan"}),
        (Narrowing(backends=("cpu",), channels=("stable",)), {"cpu", "mac"}),
        (Narrowing(releases=("b3", "b1")), {"cpu", "nightly"}),
        (Narrowing(machines=(SNAPSHOTS / "macos-15-m1.json",)), {"mac"}),
        (
            Narrowing(machines=(SNAPSHOTS / "debian-12-vm-no-gpu.json",), channels=("stable",)),
            {"cpu"},
        ),
        (
            Narrowing(machines=(SNAPSHOTS / "h200-working-vulkan.json",)),
            {"cpu", "vulkan", "nightly"},
        ),
    ],
    ids=lambda value: ",".join(sorted(value)) if isinstance(value, set) else "part",
)
def test_a_mirror_may_be_a_part(
    wide: FolderShop, tmp_path: Path, narrow: Narrowing, wanted: set[str]
) -> None:
    report = mirror(wide.session(tmp_path / "home"), tmp_path / "m", narrow)
    assert {name.removesuffix(".tar.gz") for name in names(report)} == wanted
    assert check_mirror(wide.session(tmp_path / "home"), tmp_path / "m").differences == ()


@pytest.mark.parametrize(
    ("narrow", "said"),
    [
        (Narrowing(platforms=("linux-amd46",)), "did you mean linux-amd64"),
        (Narrowing(channels=("nightli",)), "did you mean nightly"),
        (Narrowing(backends=("vulcan",)), "did you mean vulkan"),
        (Narrowing(releases=("b9",)), "--release"),
        (Narrowing(platforms=("darwin-arm64",), channels=("nightly",)), "darwin-arm64"),
        (Narrowing(platforms=("darwin-arm64",), backends=("vulkan",)), "leave out one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "part",
)
def test_a_part_that_does_not_exist_is_refused(
    wide: FolderShop, tmp_path: Path, narrow: Narrowing, said: str
) -> None:
    with pytest.raises(UnknownRequest) as caught:
        mirror(wide.session(tmp_path / "home"), tmp_path / "m", narrow)
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert not (tmp_path / "m").exists()


def test_a_build_that_the_mirror_lacks_is_not_fetched_elsewhere(
    shop: FolderShop, session: Session, folder: Path, tmp_path: Path
) -> None:
    mirror(session, folder, Narrowing(releases=("b1",)))
    user = closed_off(shop, tmp_path / "user", folder)
    with pytest.raises(HttpStatusError, match=r"no mirror has b2-cpu\.tar\.gz") as caught:
        install(user)
    # It was told as "config check", which is no command.
    assert "config set llm.mirror URL,origin" in caught.value.hint
    also = changed(user, mirror=(folder.as_uri(), shop.mirror))
    assert install(also).outcome == "installed"


# --- what fails ----------------------------------------------------------------------------


def test_nothing_is_published_before_all_archives_are_there(
    shop: FolderShop, session: Session, folder: Path
) -> None:
    mirror(session, folder, ALL)
    before = inside(folder)
    for name in ("b3-cpu", "b4-cpu"):
        shop.publish(name[:2], {"cpu": shop.variant(shop.stand_in(name))})
    gone = shop.root / "archives" / "b4-cpu.tar.gz"
    gone.rename(shop.root / "elsewhere")
    with pytest.raises(DownloadError) as caught:
        mirror(session, folder, ALL)
    assert caught.value.message == "1 of 2 archives could not be fetched"
    assert "b4-cpu.tar.gz" in caught.value.facts[0]
    after = inside(folder)
    assert {name for name in after if name not in before} == {
        f"sha256/{shop.stand_in('b3-cpu').sha256}"
    }
    assert {name: after[name] for name in before} == before
    (shop.root / "elsewhere").rename(gone)
    assert names(mirror(session, folder, ALL)) == ["b4-cpu.tar.gz"]


def test_wrong_bytes_never_get_a_final_name(
    shop: FolderShop, session: Session, folder: Path
) -> None:
    archive = shop.root / "archives" / "b2-cpu.tar.gz"
    archive.write_bytes(bytes(archive.stat().st_size))
    with pytest.raises(TsukuError) as caught:
        mirror(session, folder, ALL)
    assert caught.value.exit_code == 5
    assert len(list((folder / "sha256").iterdir())) == 1
    assert not (folder / "metadata").exists()


def test_a_folder_that_is_something_else_is_refused(session: Session, folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="not empty"):
            mirror(session, folder, ALL, dry_run=dry_run)
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_a_mirror_is_not_made_of_itself(session: Session, folder: Path) -> None:
    mirror(session, folder, ALL)
    itself = changed(session, mirror=("https://a.invalid/", f"{folder.as_uri()}/"))
    with pytest.raises(UsageError, match="takes its files from") as caught:
        mirror(itself, folder, ALL)
    assert f"TSUKU_LLM_MIRROR=origin tsuku-llm mirror {folder}" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"[]", b"\xff", b'{"format": 2}', b"[" * 99_999),
        b'{"format": 1, "root": "x", "artifacts": [], "metadata": [], "before": []}',
        b'{"format": 1, "root": "' + b"0" * 64 + b'", "artifacts": ["../../etc"]}',
    ],
    ids=range(8),
)
def test_a_damaged_record_stops_everything(session: Session, folder: Path, content: bytes) -> None:
    mirror(session, folder, ALL)
    (folder / "mirror.json").write_bytes(content)
    before = inside(folder)
    for act in (
        lambda: mirror(session, folder, ALL, prune=True),
        lambda: check_mirror(session, folder),
    ):
        with pytest.raises(CorruptStore, match=r"mirror\.json is not readable"):
            act()
    assert inside(folder) == before


def test_one_folder_is_for_one_repository(session: Session, folder: Path, tmp_path: Path) -> None:
    mirror(session, folder, ALL)
    other = FolderShop(tmp_path / "other")
    other.simulator = RepositorySimulator(other.simulator.url, name="other")
    other.publish("b1", {"cpu": other.variant(other.stand_in("x"))})
    stranger = other.session(tmp_path / "stranger")
    with pytest.raises(UsageError, match="another repository"):
        mirror(stranger, folder, ALL)
    with pytest.raises(CorruptStore, match="no mirror of"):
        check_mirror(stranger, folder)


def test_a_mirror_does_not_go_back(
    shop: FolderShop, session: Session, folder: Path, tmp_path: Path
) -> None:
    older = shutil.copytree(shop.root / "repository", tmp_path / "older")
    shop.simulator.bump()
    shop.write()
    mirror(session, folder, ALL)
    shutil.rmtree(shop.root / "repository")
    older.rename(shop.root / "repository")
    behind = shop.session(tmp_path / "behind")
    with pytest.raises(MetadataError, match="newer metadata"):
        mirror(behind, folder, ALL)
    assert check_mirror(session, folder).differences == ()


# --- check and prune -----------------------------------------------------------------------


def archive_of(folder: Path) -> Path:
    return min((folder / "sha256").iterdir())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


@pytest.mark.parametrize("damage", [cut, flip, link, Path.unlink], ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    "find",
    [
        archive_of,
        lambda folder: folder / "metadata/timestamp.json",
        lambda folder: next(folder.glob("metadata/*.targets.json")),
        lambda folder: next(folder.glob("targets/releases/*.json")),
    ],
    ids=["archive", "timestamp", "targets", "release"],
)
def test_a_check_finds_damage_and_the_next_run_repairs_it(
    session: Session,
    folder: Path,
    damage: Callable[[Path], None],
    find: Callable[[Path], Path],
) -> None:
    mirror(session, folder, ALL)
    whole = inside(folder)
    damaged = find(folder)
    damage(damaged)
    found = check_mirror(session, folder)
    assert found.differences
    # As the hint says: what is named is removed first.
    if damage is not Path.unlink:
        damaged.unlink()
    for path in folder.rglob("elsewhere"):
        path.unlink()
    mirror(session, folder, ALL)
    assert inside(folder) == whole
    assert check_mirror(session, folder).differences == ()


def test_expired_metadata_is_a_difference(session: Session, folder: Path) -> None:
    mirror(session, folder, ALL)
    later = session.machine.now + timedelta(days=100_000)
    (difference,) = check_mirror(changed(session, now=later), folder).differences
    assert "expired" in difference


def test_a_prune_removes_only_what_the_program_made(
    shop: FolderShop, session: Session, folder: Path
) -> None:
    mirror(session, folder, ALL)
    first = inside(folder)
    strange = ["index.html", "sha256/README", "metadata/notes.txt", "sha256/" + "0" * 63, "own/x"]
    for name in strange:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    left = ["partials/" + "1" * 64 + ".part", "metadata/.timestamp.json.0123456789abcdef.tmp"]
    for name in left:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("ours")
    (folder / "sha256" / ("2" * 64)).symlink_to("README")
    shop.publish("b3", {"cpu": shop.variant(shop.stand_in("b3-cpu"))})
    report = mirror(session, folder, Narrowing(releases=("b3",)), prune=True)
    assert report.swept is not None
    archives = {name for name in first if name.startswith("sha256/")}
    assert set(report.swept.unused) >= archives
    assert {*report.swept.foreign} == {
        *("index.html", "sha256/README", "metadata/notes.txt", "sha256/" + "0" * 63, "own/"),
        "sha256/" + "2" * 64,
    }
    after = inside(folder)
    assert all(after[name] == b"mine" for name in strange)
    # The publication before stays: a client may be reading it.
    assert {name for name in first if name not in after} == archives
    shop.simulator.bump()
    shop.write()
    mirror(session, folder, Narrowing(releases=("b3",)), prune=True)
    assert not list(folder.glob("metadata/2.snapshot.json"))
    assert check_mirror(session, folder).differences == ()


def test_a_prune_follows_no_link(session: Session, folder: Path, tmp_path: Path) -> None:
    mirror(session, folder, ALL)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("3" * 64)).write_text("mine")
    (folder / "partials").rmdir()
    (folder / "partials").symlink_to(outside)
    report = mirror(session, folder, ALL, prune=True)
    assert report.swept is not None
    assert "partials" in report.swept.foreign
    assert (outside / ("3" * 64)).exists()


def test_a_revoked_release_is_left_out(shop: FolderShop, session: Session, folder: Path) -> None:
    shop.simulator.targets.unrecognized_fields["revoked"] = [
        {"release": "b2", "date": "2026-11-20", "reason": "it leaks"}
    ]
    shop.simulator.bump()
    shop.write()
    notes = Notes()
    report = mirror(changed(session, note=notes), folder, ALL)
    assert report.releases == ("b1",)
    assert any("b2 was revoked" in note for note in notes)


# --- what a client asks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({}, (OFFICIAL_URL,)),
        ({"mirror": ("https://m.example/llm",)}, ("https://m.example/llm/",)),
        ({"mirror": ("https://m/", "origin")}, ("https://m/", OFFICIAL_URL)),
        ({"mirror": ("origin",)}, (OFFICIAL_URL,)),
        ({"mirror": ("oci://m/llm:x", "https://m/?sig=1")}, ("oci://m/llm:x/", "https://m/?sig=1")),
        (
            {"mirror": ("https://m/",), "repository_url": ("https://own/",)},
            ("https://own/",),
        ),
    ],
    ids=str,
)
def test_a_mirror_stands_for_the_places_of_the_official_metadata(
    shop: FolderShop, session: Session, settings: dict[str, object], places: tuple[str, ...]
) -> None:
    official = changed(session, **{"repository": None, "mirror": (), **settings})
    assert repository_of(official.paths.data, official.settings).places == places
    # An added repository has an address of its own, which its user gave.
    added = changed(session, mirror=("https://m/",))
    assert repository_of(added.paths.data, added.settings).places == (shop.simulator.url,)


def test_a_mirror_without_metadata_is_named_and_no_other_host_asked(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    closed = changed(session, repository=None, mirror=((tmp_path / "empty").as_uri(),))
    with pytest.raises(HttpStatusError) as caught:
        refresh(closed)
    assert "the mirror's operator can repair it with the command that made it" in caught.value.hint
    assert "unset llm.mirror" in caught.value.hint
    assert "llm.mirror URL" not in caught.value.hint


def test_the_query_of_a_mirror_comes_after_the_name_of_the_file() -> None:
    with FaultServer([answer("200 OK", b"{}")]) as server:
        place = Repository("official", f"{server.url}/llm?sig=TOKEN", b"")
        with Clock().network() as network:
            download = download_from(
                None,  # type: ignore[arg-type]  # only a package needs it
                place,
                network,
                network.clock() + 10,
            )
            assert download("metadata/timestamp.json", 100) == b"{}"
        assert server.requests[0].path == "/llm/metadata/timestamp.json?sig=TOKEN"


def test_behind_a_mirror_the_package_index_does_not_stand_in(
    shop: FolderShop, session: Session
) -> None:
    shop.publish("b9", {"cpu": shop.variant(shop.stand_in("b9-cpu"))}, channels=["index"])
    refresh(session)
    nowhere = "https://127.0.0.1:1/"
    for mirrors, stands_in in (((nowhere,), False), ((nowhere, "origin"), True)):
        notes = Notes()
        with pytest.raises(HostUnreachable):
            install(changed(session, mirror=mirrors, note=notes, agreed=True))
        assert any("falling back" in note for note in notes) is stands_in


def test_packages_of_the_index_are_mirrored_as_files(
    shop: FolderShop, session: Session, folder: Path, tmp_path: Path
) -> None:
    index = PackageIndex(tmp_path / "index")
    wheel = make_wheel({"bin/llama-server": b"\x7fELF"}, "tsuku-test-server", 1)
    (index.folder / "tsuku_test_server-1-py3-none-any.whl").write_bytes(wheel)
    variant = shop.variant()
    variant["artifacts"] = [
        {
            "url": "pkg:pypi/tsuku-test-server@1?file_name=tsuku_test_server-1-py3-none-any.whl",
            "sha256": sha256(wheel).hexdigest(),
            "size": len(wheel),
            "format": "wheel",
            "root": "tsuku_test_server/bin",
        }
    ]
    shop.publish("b9", {"cpu": variant}, channels=["index"])
    machine = session.machine._replace(environ={**session.machine.environ, **index.environ})
    away = changed(session, machine=machine, mirror=())
    report = mirror(away, folder, Narrowing(channels=("index",)))
    (fetched,) = report.fetched
    assert (folder / "sha256" / fetched.sha256).read_bytes() == wheel
    assert not list((folder / "partials").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="the modes of POSIX")
def test_files_copied_without_the_permissions_of_others_say_so(
    session: Session, folder: Path
) -> None:
    """A mirror that root has copied with a umask of 077: "put the file itself there" was said."""
    mirror(session, folder, ALL)
    archive = archive_of(folder)
    archive.chmod(0)
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        with pytest.raises(DownloadError, match="Permission denied") as caught:
            list(local_chunks(archive.as_uri()))
        with pytest.raises(UsageError, match="cannot be opened") as refused, opened_bundle(archive):
            pass
    finally:
        if not user:
            os.seteuid(0)
    for error in (caught.value, refused.value):
        assert "chmod -R a+rX" in error.hint
