"""One tree of two signed archives: install, verify, update, rollback, and what is refused."""

import json
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.builds import VERSION_STEPS, Packed, pack_tar, stand_in
from support.folder_shop import NOW, FolderShop
from support.sessions import changed

from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.cli.terminal.progress_bar import SparseStatus
from tsuku_llm.ground.errors import CannotCombine, SelectionError, UnknownRequest
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.steps.choosing.revocation import SignedStatus
from tsuku_llm.steps.choosing.which import requested_version
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.install.maintenance import prune, rollback
from tsuku_llm.steps.install.update import UpToDate, check_update, update
from tsuku_llm.steps.install.verify import verify
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.report.bench import bench
from tsuku_llm.steps.report.doctor import examine
from tsuku_llm.steps.report.explain import explain
from tsuku_llm.steps.servers.unattended import UpdateOutcome, unattended_update
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import RECEIPT
from tsuku_operator.bundle.bundle_choice import BundleWish, bundle_contents
from tsuku_operator.mirror.mirror_choice import Narrowing, contents_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
DEVICES = (
    # As the loader does: without the plugin there is no such device.
    "map libggml-cuda.so",
    "map libggml-vulkan.so",
    "out Available devices:",
    "out   CUDA0: NVIDIA GeForce RTX 4060 Laptop GPU (7939 MiB, 7800 MiB free)",
    "out   Vulkan0: NVIDIA GeForce RTX 4060 Laptop GPU (8188 MiB, 8000 MiB free)",
    "out   Vulkan1: AMD Radeon RX 6700 XT (RADV NAVI22) (12288 MiB, 12000 MiB free)",
)
ONE_MAKER = DEVICES[:4]
BOTH = ("cuda", "vulkan")


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop(tmp_path / "shop")


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path) -> Session:
    """A user of a machine with a card of NVIDIA and one of AMD."""
    host = ReplayHost.load(two_makers(tmp_path))
    return shop.session(tmp_path / "home", host=host, refresh="always")


def two_makers(folder: Path) -> Path:
    """The hybrid laptop, with a card of AMD in the place of the integrated GPU."""
    recording = json.loads((SNAPSHOTS / "hybrid-intel-and-nvidia.json").read_text())
    for line in recording["answers"]["vulkan"]["lines"]:
        if line.get("vendor") == 0x8086:
            line |= {"name": "AMD Radeon RX 6700 XT (RADV NAVI22)", "type": 2, "vendor": 0x1002}
    machine = folder / "two-makers.json"
    machine.write_text(json.dumps(recording))
    return machine


def build(
    shop: FolderShop,
    tag: str,
    backend: str,
    devices: tuple[str, ...] = DEVICES,
    serve: tuple[str, ...] = ("listen",),
    **more: str,
) -> Packed:
    """Pack a build whose libraries were compiled for it alone; ``more`` are files of any text."""
    name = f"{tag}-{backend}"
    made = stand_in(
        shop.root.parent / "builds" / name, devices=devices, version=VERSION_STEPS, serve=serve
    )
    files = {
        f"libggml-{backend}.so": f"the plugin of {name}",
        "libggml-cpu-haswell.so": f"compiled for {name}",
        "libllama.so": f"compiled for {name}",
        "LICENSE": "MIT",
        **more,
    }
    for path, text in files.items():
        (made.tree / path).write_text(text)
    return pack_tar(made.tree, shop.root / "archives" / f"{name}.tar.gz", root=name)


def publish(
    shop: FolderShop, tag: str, *builds: tuple[str, Packed], listed: bool = True, **fields: Any
) -> None:
    variants = {backend: shop.variant(packed, backend=backend) for backend, packed in builds}
    for (_, packed), variant in zip(builds, variants.values(), strict=True):
        if listed:
            variant["artifacts"][0] |= contents_of_archive(packed)
    shop.publish(tag, variants, **fields)


def contents_of_archive(packed: Packed) -> dict[str, Any]:
    files, links = [], []
    with tarfile.open(packed.path) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if member.issym():
                links.append({"path": path, "target": member.linkname})
            elif content := tar.extractfile(member):
                data = content.read()
                entry = {"path": path, "size": len(data), "sha256": sha256(data).hexdigest()}
                files.append({**entry, **({"executable": True} if member.mode & 0o100 else {})})
    return {"files": files, **({"links": links} if links else {})}


def publish_both(shop: FolderShop, tag: str, *, listed: bool = True) -> None:
    builds = [(name, build(shop, tag, name)) for name in ("cuda", "vulkan")]
    publish(shop, tag, *builds, listed=listed)


def installed(session: Session, **changes: Any) -> Installed:
    report = install(changed(session, **changes))
    assert report.installed
    return report.installed


def text(version: Installed, path: str) -> str:
    return (version.tree / path).read_text()


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "unlisted"])
def test_two_archives_make_one_tree_with_the_makers_own_files(
    shop: FolderShop, session: Session, listed: bool
) -> None:
    publish_both(shop, "b1", listed=listed)
    version = installed(session, combine=True)
    receipt = version.receipt
    assert (receipt.variant, receipt.backend) == ("cuda+vulkan", "cuda+vulkan")
    assert text(version, "libggml-cuda.so") == "the plugin of b1-cuda"
    assert text(version, "libggml-vulkan.so") == "the plugin of b1-vulkan"
    assert text(version, "libllama.so") == "compiled for b1-cuda"
    assert text(version, "libggml-cpu-haswell.so") == "compiled for b1-cuda"
    assert [part.variant for part in receipt.parts] == ["cuda", "vulkan"]
    assert [each.url.rpartition("/")[2] for each in receipt.artifacts] == [
        "b1-cuda.tar.gz",
        "b1-vulkan.tar.gz",
    ]
    assert {each.path for each in receipt.files} == {
        path.name for path in version.tree.iterdir() if path.is_file()
    }
    (check,) = verify(session)
    assert not check.differences
    assert (check.not_signed is None) is listed
    assert install(changed(session, combine=True)).outcome == "unchanged"
    assert not list((session.paths.data / "staging").iterdir())


def test_what_was_added_is_compared_with_what_was_signed(
    shop: FolderShop, session: Session
) -> None:
    publish_both(shop, "b1")
    version = installed(session, backend="vulkan+cuda")
    (version.tree / "libggml-vulkan.so").write_text("another")
    (check,) = verify(session)
    assert any("libggml-vulkan.so" in each for each in check.differences)
    assert "--backend cuda+vulkan" in check.repair


def test_a_receipt_that_names_other_builds_is_found(shop: FolderShop, session: Session) -> None:
    """Revocations of one of the two builds are found by the receipt's digests."""
    publish_both(shop, "b1")
    version = installed(session, backend="cuda+vulkan")
    receipt, place = version.receipt, version.path / RECEIPT
    cuda, vulkan = receipt.parts
    place.chmod(0o644)
    for parts in ((), (cuda,), (cuda._replace(digests=()), vulkan), (vulkan, cuda)):
        place.write_bytes(receipt._replace(parts=parts).to_json())
        (check,) = verify(session)
        assert check.differences
    place.write_bytes(receipt.to_json())
    (check,) = verify(session)
    assert not check.differences


def test_an_installed_part_is_not_downloaded_again(shop: FolderShop, session: Session) -> None:
    two = [(name, build(shop, "b1", name, DEVICES[2:])) for name in ("cuda", "vulkan")]
    publish(shop, "b1", *two)
    installed(session, backend="vulkan")
    (shop.root / "archives" / "b1-vulkan.tar.gz").unlink()
    version = installed(session, backend="cuda+vulkan")
    linked = version.tree / "libggml-vulkan.so"
    assert linked.stat().st_nlink == 2
    assert not (version.tree / "libggml-vulkan.so").is_symlink()


def test_of_a_second_build_in_pieces_only_what_the_tree_needs_is_fetched(
    shop: FolderShop, session: Session
) -> None:
    """As ``tsuku-publish add`` packs builds: each large file has an archive of its own."""
    cuda = build(shop, "b1", "cuda", DEVICES[2:])
    rest = build(shop, "b1", "vulkan", DEVICES[2:])
    for name in ("plugin", "tool"):
        (shop.root.parent / name).mkdir()
    tree = shop.root.parent / "builds" / "b1-vulkan"
    (tree / "libggml-vulkan.so").rename(shop.root.parent / "plugin" / "libggml-vulkan.so")
    (shop.root.parent / "tool" / "another-tool").write_text("text")
    archives = shop.root / "archives"
    rest = pack_tar(tree, archives / "rest.tar.gz", root="rest")
    pieces = [
        pack_tar(shop.root.parent / name, archives / f"{name}.tar.gz", root=name)
        for name in ("plugin", "tool")
    ]
    vulkan = shop.variant(rest, *pieces, backend="vulkan")
    variants = {"cuda": shop.variant(cuda, backend="cuda"), "vulkan": vulkan}
    artifacts = [each for variant in variants.values() for each in variant["artifacts"]]
    for packed, artifact in zip((cuda, rest, *pieces), artifacts, strict=True):
        artifact.update(contents_of_archive(packed))
    shop.publish("b1", variants)
    # The plugin comes from the installed build, the tool from its archive, the rest is not needed.
    plugin = installed(session, backend="vulkan").tree / "libggml-vulkan.so"
    (archives / "rest.tar.gz").unlink()
    (archives / "plugin.tar.gz").unlink()
    version = installed(session, backend="cuda+vulkan")
    assert plugin.stat().st_nlink == 2
    assert text(version, "libggml-vulkan.so") == "the plugin of b1-vulkan"
    assert text(version, "libllama.so") == "compiled for b1-cuda"
    assert text(version, "another-tool") == "text"
    (check,) = [each for each in verify(session) if each.id == version.id]
    assert not check.differences


def test_updates_rollback_and_prune_are_those_of_any_version(
    shop: FolderShop, session: Session
) -> None:
    publish_both(shop, "b1")
    first = installed(session, backend="cuda+vulkan")
    publish_both(shop, "b2")
    # What was requested then counts, not what the settings say now.
    update(session)
    active = session.reader.active()
    assert active
    assert (active.receipt.release, active.receipt.variant) == ("b2", "cuda+vulkan")
    assert rollback(session).id == first.id
    for word in ("cuda+vulkan", "vk+cuda", "gpu", "auto"):
        assert requested_version(changed(session, backend=word)).id == first.id
    assert first.id not in prune(session.store, session.paths).pruned.removed


def test_an_update_that_combines_no_longer_says_why(shop: FolderShop, session: Session) -> None:
    publish_both(shop, "b1")
    installed(session, combine=True)
    publish_both(shop, "b2")
    assert (check_update(session).replaced or "").startswith("llm.prefer is not combined")
    publish(shop, "b3", ("cuda", build(shop, "b3", "cuda")))
    assert check_update(session).replaced == "b3 has no such variant"
    assert check_update(changed(session, combine=True)).replaced == "b3 has no such variant"


def test_a_newer_release_without_one_of_the_builds_is_passed_over(
    shop: FolderShop, session: Session
) -> None:
    publish_both(shop, "b1")
    publish(shop, "b2", ("cuda", build(shop, "b2", "cuda", ONE_MAKER)))
    assert installed(session, backend="cuda+vulkan").receipt.release == "b1"
    with pytest.raises(UnknownRequest, match="no vulkan build to combine"):
        install(changed(session, backend="cuda+vulkan"), release="b2")


def publish_conflict(shop: FolderShop, tag: str, *, listed: bool = True) -> None:
    """Publish two builds with another project's library in two versions."""
    two = [
        (name, build(shop, tag, name, DEVICES[2:], **{"libssl.so.3": name}))
        for name in ("cuda", "vulkan")
    ]
    publish(shop, tag, *two, listed=listed)


def test_signed_lists_that_cannot_be_combined_are_a_reason_before_any_download(
    shop: FolderShop, session: Session
) -> None:
    publish_conflict(shop, "b1")
    refresh(session)
    asked = changed(session, backend="cuda+vulkan")
    for dry_run in (True, False):
        with pytest.raises(SelectionError, match="no variant fits") as caught:
            install(asked, dry_run=dry_run)
        assert any("libssl.so.3" in each for each in caught.value.facts)
        assert caught.value.hint == "tsuku-llm install --backend vulkan"
    assert not list(session.paths.data.glob("partials/*"))
    (why,) = [each.reason for each in explain(asked).selection.rejected if each.variant.parts]
    assert why.slug == CannotCombine.slug
    # What an install would refuse is not offered.
    assert explain(session).selection.combined is None
    version = installed(changed(session, combine=True))
    assert version.receipt.variant == "vulkan"
    assert "libssl.so.3" in version.receipt.reasons["cuda+vulkan"]


def test_without_signed_lists_the_archives_tell_that_they_cannot_be_combined(
    shop: FolderShop, session: Session
) -> None:
    publish_conflict(shop, "b1", listed=False)
    with pytest.raises(CannotCombine) as caught:
        install(changed(session, backend="cuda+vulkan"))
    assert any("libssl.so.3" in each for each in caught.value.facts)
    assert "tsuku-llm install --backend cuda; or: " in caught.value.hint
    notes: list[str] = []
    version = installed(changed(session, combine=True, note=notes.append))
    assert version.receipt.variant == "vulkan"
    assert any("libssl.so.3" in note for note in notes)


def test_a_newer_release_whose_builds_cannot_be_combined_is_passed_over(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    publish_both(shop, "b1")
    first = installed(session, backend="cuda+vulkan")
    publish_conflict(shop, "b2")
    notes: list[str] = []
    found = update(changed(session, note=notes.append))
    assert isinstance(found, UpToDate)
    assert found.report.installed.id == first.id
    assert any("not b2" in note for note in notes)
    catalog = refresh(session)
    for wish in wishes_for(tmp_path):
        builds = bundle_contents(session, catalog, wish).builds
        assert {each.release.release for each in builds} == {"b1"}


def test_an_unattended_update_marks_a_release_whose_archives_cannot_be_combined(
    shop: FolderShop, session: Session
) -> None:
    publish_both(shop, "b1")
    installed(session, backend="cuda+vulkan")
    publish_conflict(shop, "b2", listed=False)
    report = unattended_update(session)
    assert (report.outcome, report.marked) == (UpdateOutcome.ROLLED_BACK, True)
    assert report.failure
    assert "libssl.so.3" in report.failure.reason
    assert unattended_update(session).outcome is UpdateOutcome.UNCHANGED


def test_a_tree_that_lists_the_devices_of_one_backend_only_is_not_committed(
    shop: FolderShop, session: Session
) -> None:
    two = [("cuda", build(shop, "b1", "cuda", ONE_MAKER)), ("vulkan", build(shop, "b1", "vulkan"))]
    publish(shop, "b1", *two)
    notes: list[str] = []
    with pytest.raises(SelectionError):
        install(changed(session, backend="cuda+vulkan", note=notes.append))
    assert any("vulkan" in note for note in notes)
    assert not session.reader.installed()


def test_a_revocation_of_one_of_the_builds_is_one_of_the_tree(
    shop: FolderShop, session: Session
) -> None:
    publish_both(shop, "b1")
    receipt = installed(session, backend="cuda+vulkan").receipt
    for digest in receipt.digests:
        why = Revocation("other", "b9", "it leaks", "2026-11-22", builds=((digest,),))
        found = SignedStatus((why,), {}, (), NOW).revocation(receipt)
        assert found == why._replace(foreign=True)
    both = Revocation("other", "b9", "", "", builds=(("0" * 64,),))
    assert SignedStatus((both,), {}, (), NOW).revocation(receipt) is None


def test_explain_offers_it_and_a_mirror_has_both_archives(
    shop: FolderShop, session: Session
) -> None:
    publish_both(shop, "b1")
    publish(shop, "b2", ("cpu", build(shop, "b2", "cpu")))
    refresh(session)
    choice = explain(session, release="b1")
    assert choice.selection.combined
    assert choice.selection.combined.variant == "cuda+vulkan"
    assert choice.selection.combined.others == ("AMD Radeon RX 6700 XT (RADV NAVI22)",)
    found = contents_of(session, choice.catalog, Narrowing(backends=("cuda+vulkan",)))
    assert len(found.artifacts) == 2


def test_a_benchmark_measures_the_active_one_and_names_it(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    buffers = "err load_tensors:      Vulkan1 model buffer size =     9.38 MiB"
    serve = ("map libggml-cuda.so", "map libggml-vulkan.so", buffers, "speed 4000 400", "listen")
    publish(shop, "b1", *((name, build(shop, "b1", name, serve=serve)) for name in BOTH))
    installed(session, backend="cuda+vulkan")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF and so on")
    report = bench(session, model, (), rounds=1, status=SparseStatus(session.user.note))
    assert [each.receipt.variant for each in report.results] == ["cuda+vulkan"]
    assert report.backend == "cuda+vulkan"
    assert [each.variant for each in report.skipped] == ["vulkan", "cuda"]


def test_a_mirror_and_a_bundle_take_no_half_of_a_combined_build(
    shop: FolderShop, session: Session
) -> None:
    publish(shop, "b1", ("vulkan", build(shop, "b1", "vulkan")))
    publish_both(shop, "b2")
    publish(shop, "b3", ("cuda", build(shop, "b3", "cuda")))
    catalog = refresh(session)
    found = contents_of(session, catalog, Narrowing(backends=("vulkan+cuda",)))
    assert found.releases == ("b2",)
    with pytest.raises(UnknownRequest, match="no build of this repository"):
        contents_of(session, catalog, Narrowing(backends=("rocm+vulkan",)))
    wish = BundleWish(platforms=("linux-amd64",), backends=("rocm+vulkan",))
    with pytest.raises(UnknownRequest, match="no release has such a build") as caught:
        bundle_contents(session, catalog, wish)
    assert "did you mean" not in caught.value.hint


def test_doctor_examines_the_makers_own_part(shop: FolderShop, session: Session) -> None:
    publish_both(shop, "b1")
    version = installed(session, backend="cuda+vulkan")
    for backend in ("auto", "cuda+vulkan"):
        chain = examine(changed(session, backend=backend)).chain
        assert chain.subject.backend == "cuda"
        assert chain.broken is None
        assert any(version.id in each for link in chain.links for each in link.evidence)


def wishes_for(folder: Path) -> tuple[BundleWish, ...]:
    """A combined build for a recorded machine, and for any machine of a platform."""
    return (
        BundleWish(machines=(two_makers(folder),), backends=("cuda+vulkan",)),
        BundleWish(platforms=("linux-amd64",), backends=("vulkan+cuda",)),
    )


def test_a_bundle_has_both_archives_or_an_older_release(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    publish_both(shop, "b1")
    publish(shop, "b2", ("cuda", build(shop, "b2", "cuda")))
    catalog = refresh(session)
    for wish in wishes_for(tmp_path):
        builds = bundle_contents(session, catalog, wish).builds
        assert {each.release.release for each in builds} == {"b1"}
        archives = {each.url for found in builds for each in found.variant.artifacts}
        assert {url.rpartition("/")[2] for url in archives} == {
            "b1-cuda.tar.gz",
            "b1-vulkan.tar.gz",
        }
