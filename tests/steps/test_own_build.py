"""An unsigned build: how it is installed, marked, and left alone."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS, pack_tar, stand_in
from support.folder_shop import FolderShop
from support.sessions import changed

from tsuku_llm.ground.errors import (
    Declined,
    GateFailed,
    NotInstalled,
    StoreError,
    UnknownRequest,
    UnsafeArchive,
    UnsafeLocation,
    UsageError,
)
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.steps.choosing.which import requested_version, which
from tsuku_llm.steps.install.install import InstallReport, install
from tsuku_llm.steps.install.maintenance import rollback, uninstall
from tsuku_llm.steps.install.own_build import OwnBuildReport, install_own
from tsuku_llm.steps.install.update import UpToDate, check_update, update
from tsuku_llm.steps.install.verify import verify
from tsuku_llm.steps.install.versions import inventory
from tsuku_llm.steps.servers.unattended import unattended_update
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.receipt import Receipt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

WITHOUT_GPU = Path(__file__).parents[1] / "snapshots" / "debian-12-vm-no-gpu.json"


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1")


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path) -> Session:
    """A user who has said yes to an unsigned build."""
    host = ReplayHost.load(WITHOUT_GPU)
    return shop.session(tmp_path / "home", host=host, refresh="always", agreed=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return own(tmp_path / "own")


def own(folder: Path, plugin: str = "", devices: tuple[str, ...] = NO_DEVICE_STEPS) -> Path:
    stand_in(folder, devices=devices)
    if plugin:
        (folder / f"libggml-{plugin}.so").write_text(f"the plugin for {plugin}")
    (folder / "libllama.so.0").write_text("a library")
    (folder / "libllama.so").symlink_to("libllama.so.0")
    return folder


def installed(session: Session, path: Path, **changes: bool) -> Receipt:
    report = install_own(session, path, **changes)
    assert report.installed
    assert report.installed.receipt == report.receipt
    return report.receipt


def test_a_folder_is_copied_checked_and_marked(session: Session, folder: Path) -> None:
    receipt = installed(session, folder)
    assert (receipt.variant, receipt.backend, receipt.version) == ("own-cpu", "cpu", "b10434")
    assert (receipt.unsigned, receipt.repository, receipt.channel) == (str(folder), "", "")
    assert {each.path for each in receipt.files} == {
        "llama-server",
        "stand-in.txt",
        "libllama.so.0",
    }
    assert [each.path for each in receipt.links] == ["libllama.so"]
    assert which(session).unsigned == str(folder)
    found = inventory(session)
    assert found.versions[0].told.lines == (f"unsigned: installed from {folder}",)
    assert not found.foreign
    # The copy is the build now.
    shutil.rmtree(folder)
    assert not session.reader.verify(found.versions[0].build)
    assert receipt.line.endswith("unsigned")


def test_an_archive_of_the_same_files_is_the_same_version(
    session: Session, folder: Path, tmp_path: Path
) -> None:
    packed = pack_tar(folder, tmp_path / "own.tar.gz", root="build")
    first = installed(session, packed.path)
    assert first.artifacts[0].sha256 == packed.sha256
    assert install_own(session, packed.path).outcome == "unchanged"
    assert install_own(session, packed.path, force=True).outcome == "installed"


@pytest.mark.parametrize(
    ("plugin", "devices", "backend"),
    [("vulkan", VULKAN_STEPS, "vulkan"), ("", VULKAN_STEPS, "vulkan"), ("cpu", (), "cpu")],
    ids=["plugin", "static", "CPU"],
)
def test_the_backend_is_that_of_the_plugin_or_of_the_devices(
    session: Session, tmp_path: Path, plugin: str, devices: tuple[str, ...], backend: str
) -> None:
    build = own(tmp_path / "own", plugin, devices or NO_DEVICE_STEPS)
    assert installed(session, build).backend == backend


def test_a_build_with_two_plugins_is_used_with_the_devices_of_this_machine(
    session: Session, tmp_path: Path
) -> None:
    build = own(tmp_path / "own", "cuda", VULKAN_STEPS)
    (build / "libggml-vulkan.so").write_text("another plugin")
    assert installed(session, build).backend == "vulkan"
    steps = (*VULKAN_STEPS, "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")
    build = own(tmp_path / "both", "cuda", steps)
    (build / "libggml-vulkan.so").write_text("another plugin")
    assert installed(session, build).backend == "cuda+vulkan"


def test_a_build_that_does_not_run_is_not_installed(session: Session, tmp_path: Path) -> None:
    build = own(tmp_path / "own", "vulkan")
    with pytest.raises(GateFailed):
        install_own(session, build)
    assert not session.reader.installed()
    assert not list(session.paths.data.glob("staging/*"))
    flagged = changed(session, backend="cpu", flags=frozenset({"backend"}))
    assert installed(flagged, build).backend == "cpu"
    for word in ("nonsense", "nvidia", "gpu", "vulkan+cpu", "vulkan+vulkan", "cuda-12.8"):
        with pytest.raises(UnknownRequest, match="is not what a build computes with") as unknown:
            install_own(changed(flagged, backend=word), build)
        assert unknown.value.hint.startswith("name one of these with --backend: cpu, cuda")


def test_a_refused_build_says_what_to_do_for_a_build_of_ones_own(
    session: Session, tmp_path: Path
) -> None:
    build = own(tmp_path / "own", "vulkan")
    with pytest.raises(GateFailed) as caught:
        install_own(session, build)
    # A setting would not count here.
    assert caught.value.hint.endswith(f"tsuku-llm install --from {build} --backend cpu")
    (build / "llama-server").write_bytes(b"for another machine")
    with pytest.raises(GateFailed) as caught:
        install_own(changed(session, backend="cpu", flags=frozenset({"backend"})), build)
    again = f"tsuku-llm install --force --from {build} --backend cpu"
    assert caught.value.hint == f"make a build for this machine, then {again}"


def test_the_backend_auto_is_that_of_the_build(session: Session, folder: Path) -> None:
    flagged = changed(session, backend="auto", flags=frozenset({"backend"}))
    assert installed(flagged, folder).backend == "cpu"


def test_it_is_asked_about_first(session: Session, folder: Path) -> None:
    session = changed(session, agreed=False)
    with pytest.raises(UsageError, match="needs a yes") as caught:
        install_own(session, folder)
    assert "--yes" in caught.value.hint
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(Declined):
        install_own(changed(session, ask=no, can_ask=True), folder)
    assert "is not signed" in asked[0]
    assert not session.reader.installed()
    # A plan runs nothing, and needs no yes.
    report = install_own(session, folder, dry_run=True)
    assert (report.outcome, report.installed) == ("planned", None)
    assert not session.reader.installed()


def test_what_no_client_would_install_is_refused(session: Session, tmp_path: Path) -> None:
    def broken(name: str) -> Path:
        return own(tmp_path / name)

    outside, absolute, dangling, pipe, none, two = map(broken, "abcdef")
    (outside / "libx.so").symlink_to("../../etc/passwd")
    (absolute / "libx.so").symlink_to("/etc/passwd")
    (dangling / "libx.so").symlink_to("liby.so")
    os.mkfifo(pipe / "fifo")
    (none / "llama-server").unlink()
    (two / "x").mkdir()
    shutil.copy2(two / "llama-server", two / "x" / "llama-server")
    for folder in (outside, absolute, dangling, pipe, two):
        with pytest.raises(UnsafeArchive) as caught:
            install_own(session, folder)
        assert "build/bin" in caught.value.hint
    junk = tmp_path / "own.tar.gz"
    junk.write_bytes(b"no archive")
    with pytest.raises(UnsafeArchive):
        install_own(session, junk)
    with pytest.raises(UsageError, match="there is no file or folder"):
        install_own(session, tmp_path / "missing")
    for path in (tmp_path / "a" / "stand-in.txt", none):
        with pytest.raises(UsageError, match="is not a build"):
            install_own(session, path)
    assert not session.reader.installed()
    assert not list(session.paths.data.glob("staging/*"))
    assert not inventory(session).foreign


def test_a_build_that_others_could_change_is_refused(session: Session, folder: Path) -> None:
    (folder / "libllama.so.0").chmod(0o666)
    with pytest.raises(UnsafeLocation):
        install_own(session, folder)


def test_a_link_to_a_build_is_followed(session: Session, folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "newest"
    link.symlink_to(folder)
    assert installed(session, link).unsigned == str(link)
    (folder / "libllama.so.0").chmod(0o666)
    with pytest.raises(UnsafeLocation):
        install_own(session, link)


def test_a_file_that_vanishes_is_named(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.walk

    def lagging(top: Path, **options: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        """List a file that is no longer there when it is opened."""
        for place, folders, files in walk(top, **options):
            yield place, folders, [*files, "gone.so"]

    monkeypatch.setattr(os, "walk", lagging)
    with pytest.raises(StoreError, match="a file of the build cannot be read") as caught:
        install_own(session, folder)
    assert caught.value.facts == (f"No such file or directory: {folder / 'gone.so'}",)


def test_the_store_is_no_build_of_ones_own(session: Session, folder: Path) -> None:
    receipt = installed(session, folder)
    data = session.paths.data
    for path in (data, data.parent, data / "versions" / receipt.id / "tree"):
        with pytest.raises(UsageError, match="is not a build of your own"):
            install_own(session, path)


def test_the_ending_of_an_archive_may_have_capitals(
    session: Session, folder: Path, tmp_path: Path
) -> None:
    packed = pack_tar(folder, tmp_path / "OWN.TAR.GZ", root="build")
    assert installed(session, packed.path).backend == "cpu"


def test_no_advice_on_owners_is_given_for_a_folder_that_is_no_build(
    session: Session, tmp_path: Path
) -> None:
    """Such as /etc, where it would do harm."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "passwd").write_text("text")
    (other / "passwd").chmod(0o666)
    with pytest.raises(UsageError, match="is not a build") as error:
        install_own(session, other)
    assert error.value.facts == ("there is no llama-server in it",)


def test_verify_compares_with_what_was_installed(session: Session, folder: Path) -> None:
    receipt = installed(session, folder)
    (check,) = verify(session)
    assert not check.differences
    assert check.not_signed == f"it is an unsigned build, installed from {folder}"
    tree = session.paths.data / "versions" / receipt.id / "tree"
    (tree / "libllama.so.0").write_text("another")
    (check,) = verify(session)
    assert any("libllama.so.0" in each for each in check.differences)
    assert check.repair == f"tsuku-llm install --force --from {folder} --backend cpu"
    # What is gone cannot be installed again.
    shutil.rmtree(folder)
    (check,) = verify(session)
    assert check.repair == f"tsuku-llm uninstall {receipt.id}"


def test_a_repair_gives_the_same_build_again(session: Session, tmp_path: Path) -> None:
    build = own(tmp_path / "own", "vulkan", VULKAN_STEPS)
    on_cpu = changed(session, backend="cpu", flags=frozenset({"backend"}))
    receipt = installed(on_cpu, build)
    assert receipt.reinstall == f"tsuku-llm install --force --from {build} --backend cpu"
    (session.paths.data / "versions" / receipt.id / "receipt.json").write_text("{")
    (error,) = inventory(session).damaged.values()
    assert error.hint.startswith("tsuku-llm install --force --from PATH --backend cpu, with")


def test_updates_leave_it_alone_and_rollback_returns(session: Session, folder: Path) -> None:
    signed = install(session)
    assert isinstance(signed, InstallReport)
    assert signed.installed
    receipt = installed(session, folder)
    notes: list[str] = []
    told = changed(session, note=notes.append, offline=True)
    found = update(told)
    assert isinstance(found, UpToDate)
    assert any("update leaves it alone" in note for note in notes)
    assert not check_update(told).newer
    assert not check_update(changed(told, backend="own-cpu")).newer
    assert unattended_update(told).outcome.value == "unchanged"
    assert session.reader.active() is not None
    assert rollback(session).id == signed.installed.id
    assert rollback(session).id == receipt.id
    # A signed build is what ``install`` takes.
    assert install(session).outcome == "installed"
    assert uninstall(session.store, [receipt.variant]).removed == (receipt.id,)


def test_it_is_never_taken_unless_it_is_named(session: Session, tmp_path: Path) -> None:
    install_own(session, own(tmp_path / "own", "vulkan", VULKAN_STEPS))
    install(session)
    with pytest.raises(NotInstalled):
        requested_version(changed(session, backend="vulkan"))
    found = requested_version(changed(session, backend="own-vulkan"))
    assert found.receipt.unsigned
    assert requested_version(session).receipt.unsigned is None


def test_the_report_of_a_plan_has_what_it_would_install(session: Session, folder: Path) -> None:
    report = install_own(session, folder, dry_run=True)
    assert isinstance(report, OwnBuildReport)
    assert len(report.receipt.files) == 3
