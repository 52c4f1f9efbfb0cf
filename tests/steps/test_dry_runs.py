"""A dry run ends as the run would: the same error and exit code, for every command that has one.

Each case is run both ways, from the same state. What only a network or the server itself can tell
is no part of a dry run: it uses no network and starts no server.
"""

import shutil
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from support.folder_shop import FolderShop, Notes
from support.repository import release_document
from support.servers import Starter, install_stand_in
from support.sessions import changed

from tsuku_llm.cli.render import doctor
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.launch.run.supervise import StopHandle
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.install.own_build import install_own
from tsuku_llm.steps.install.versions import inventory
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.report.doctor import examine
from tsuku_llm.steps.report.explain import explain
from tsuku_llm.steps.serve.serve import serve
from tsuku_llm.steps.serve.tools import planned, planned_tool, run_tool
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.session import Session
from tsuku_operator.bundle.bundle import create_bundle
from tsuku_operator.bundle.bundle_choice import BundleWish
from tsuku_operator.mirror.mirror import mirror
from tsuku_operator.mirror.mirror_choice import Narrowing
from tsuku_operator.mirror.registry_mirror import push_mirror

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

DONE = (0, "")
NO_CARD = ("out Available devices:",)


class End(NamedTuple):
    """How an operation ended: the exit code and the slug of its error."""

    code: int
    slug: str


def end_of(operation: Callable[[], object]) -> End:
    try:
        operation()
    except TsukuError as error:
        return End(error.exit_code, error.slug)
    return End(*DONE)


# --- serve, run ------------------------------------------------------------------------------


def nothing(_: Path) -> None:
    pass


def one_file(data: Path, name: str) -> Path:
    (file,) = data.glob(f"versions/*/tree/{name}")
    file.parent.chmod(0o755)
    file.chmod(0o755)
    return file


def changed_server(data: Path) -> None:
    one_file(data, "llama-server").write_bytes(b"#!/bin/sh\nexit 0\n")


def missing_server(data: Path) -> None:
    one_file(data, "llama-server").unlink()


def nothing_installed(data: Path) -> None:
    shutil.rmtree(data)


def writable_by_others(data: Path) -> None:
    data.chmod(0o777)


# What is done to the store, the settings of the session, how the server is to run, and the end.
Case = tuple[Callable[[Path], None], dict[str, object], Serving, End]

SERVE: dict[str, Case] = {
    "intact": (nothing, {}, Serving(), End(*DONE)),
    "changed": (changed_server, {}, Serving(), End(5, "tampered-install")),
    "missing": (missing_server, {}, Serving(), End(5, "tampered-install")),
    "not-installed": (nothing_installed, {}, Serving(), End(7, "not-installed")),
    "backend-not-installed": (nothing, {"backend": "rocm"}, Serving(), End(7, "not-installed")),
    "no-such-backend": (nothing, {"backend": "cudda"}, Serving(), End(3, "unknown-request")),
    "folder-of-others": (writable_by_others, {}, Serving(), End(6, "unsafe-location")),
    "fresh-metadata": (nothing, {"require_fresh": True}, Serving(), End(*DONE)),
}


@pytest.mark.parametrize("name", SERVE)
def test_N04_a_dry_run_of_serve_ends_as_serve(tmp_path: Path, name: str) -> None:
    prepare, settings, how, expected = SERVE[name]
    data = tmp_path / "llm"
    install_stand_in(data)
    prepare(data)
    starter = Starter(data)
    session = changed(starter.session(), **settings)
    starter.session = lambda: session  # type: ignore[method-assign]
    assert end_of(lambda: planned(session, ("--port", "0"), how)) == expected
    assert end_of(starter.start) == expected


# Its list of devices, the arguments, the flags, and the end.
DEVICES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, bool], End]] = {
    "gpu-is-gone": (NO_CARD, (), {}, End(*DONE)),
    "gpu-is-gone-and-required": (NO_CARD, (), {"require_gpu": True}, End(8, "silent-cpu")),
    "gpu-is-not-used": (
        (*NO_CARD, "out   Vulkan0: card (9000 MiB, 9000 MiB free)"),
        ("--device", "none"),
        {"require_gpu": True},
        End(8, "not-on-gpu"),
    ),
}


@pytest.mark.parametrize("name", DEVICES)
def test_N04_a_dry_run_of_serve_keeps_the_promise_of_a_gpu(tmp_path: Path, name: str) -> None:
    devices, arguments, flags, expected = DEVICES[name]
    data = tmp_path / "llm"
    install_stand_in(data, devices=devices)
    starter = Starter(data)
    words = ("--port", "0", *arguments)
    assert end_of(lambda: planned(starter.session(), words, Serving(**flags))) == expected
    assert end_of(lambda: starter.start(*arguments, **flags)) == expected


@pytest.mark.parametrize("prepare", [changed_server, nothing_installed, writable_by_others])
def test_N04_a_dry_run_of_a_tool_ends_as_the_run(
    tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    data = tmp_path / "llm"
    install_stand_in(data)
    prepare(data)
    session = Starter(data).session()
    # First, as a run that goes on would become the tool.
    plan = end_of(lambda: planned_tool(session, "llama-server", ()))
    assert plan.code != 0
    assert end_of(lambda: run_tool(session, "llama-server", ())) == plan


def test_N04_a_dry_run_of_a_tool_needs_a_safe_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_stand_in(tmp_path / "llm")
    session = Starter(tmp_path / "llm").session()
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "libggml-evil.so").write_bytes(b"")
    monkeypatch.chdir(planted)
    # First, as a run that goes on would become the tool.
    plan = end_of(lambda: planned_tool(session, "llama-server", ()))
    assert plan.code != 0
    assert end_of(lambda: run_tool(session, "llama-server", ())) == plan


# --- what the metadata says ------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1", "b2")


def late(session: Session) -> Session:
    """The same session on the day after the metadata's last."""
    expires = load_catalog(session).freshness.expires
    return changed(session, now=expires + timedelta(days=1), note=Notes())


def revoke(shop: FolderShop, session: Session, *tags: str) -> None:
    """Sign that releases are revoked, and let the user hear of it."""
    shop.simulator.publish(*(release_document(tag, revoked=True) for tag in tags))
    shop.write()
    refresh(session)


def told(session: Session) -> str:
    return "\n".join(session.user.note)  # type: ignore[call-overload, no-any-return]


def serves(session: Session) -> None:
    """Serve until the server is ready."""
    stop_handle = StopHandle()
    sink = partial(_stop_once_ready, stop_handle)
    serve(session, ("--port", "0"), Serving(sink=sink, stop_handle=stop_handle))


def _stop_once_ready(stop_handle: StopHandle, report: StartReport) -> None:
    if report.ready:
        stop_handle.end("it was judged")


def test_N04_a_dry_run_of_serve_knows_a_revoked_release(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    install(session)
    revoke(shop, session, "b2")
    expected = End(5, "revoked")
    for operation in (
        lambda: planned(session, (), Serving()),
        lambda: serves(session),
        lambda: planned_tool(session, "llama-server", ()),
        lambda: run_tool(session, "llama-server", ()),
    ):
        assert end_of(operation) == expected
    allowed = changed(session, allow_revoked=True)
    assert end_of(lambda: planned(allowed, (), Serving())) == DONE
    assert end_of(lambda: serves(allowed)) == DONE


def test_N04_a_dry_run_of_serve_knows_expired_metadata(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    install(session)
    warned = late(session)
    assert end_of(lambda: planned(warned, (), Serving())) == DONE
    assert "expired on" in told(warned)
    strict = changed(warned, require_fresh=True)
    expected = End(5, "stale-metadata")
    assert end_of(lambda: planned(strict, (), Serving())) == expected
    assert end_of(lambda: serves(strict)) == expected


def test_N04_expired_metadata_is_told_wherever_releases_are(
    shop: FolderShop, tmp_path: Path
) -> None:
    session = shop.session(tmp_path / "home")
    assert explain(session).stale is None
    installed = install(session).installed
    assert installed is not None
    assert inventory(session).versions[0].told.stale is None
    warned = late(session)
    stale = explain(warned).stale
    assert stale is not None
    assert "expired on" in stale
    assert inventory(warned).versions[0].told.stale == stale
    examination = examine(warned)
    assert examination.installed[installed.id].stale == stale
    # Once, for all releases of the repository.
    assert doctor.lines(examination).count(stale) == 1


# --- install ---------------------------------------------------------------------------------

# What happened before, the settings, the named release, and the end.
INSTALL: dict[str, tuple[str, dict[str, object], str | None, End]] = {
    "fits": ("", {}, None, End(*DONE)),
    "installed-already": ("install", {}, None, End(*DONE)),
    "no-such-release": ("", {}, "b9", End(3, "unknown-request")),
    "no-such-channel": ("", {"channel": "weekly"}, None, End(3, "unknown-request")),
    "no-such-backend": ("", {"backend": "cudda"}, None, End(3, "unknown-request")),
    "backend-without-a-build": ("", {"backend": "cuda"}, None, End(3, "no-variant")),
    "revoked-by-name": ("revoke", {}, "b2", End(5, "revoked")),
    "the-older-one-instead": ("revoke", {}, None, End(*DONE)),
    "all-revoked": ("revoke-all", {}, None, End(5, "revoked")),
    "expired-and-required-fresh": ("late", {"require_fresh": True}, None, End(5, "stale-metadata")),
    "expired": ("late", {}, None, End(*DONE)),
    "clock-set-back": ("early", {"require_fresh": True}, None, End(5, "clock-behind")),
    "too-large": ("", {"max_download": 1}, None, End(4, "too-large")),
    "too-young": ("", {"min_age": 10_000}, None, End(3, "no-variant")),
}


@pytest.mark.parametrize("name", INSTALL)
def test_N04_a_dry_run_of_install_ends_as_the_install(
    shop: FolderShop, tmp_path: Path, name: str
) -> None:
    before, settings, release, expected = INSTALL[name]
    session = shop.session(tmp_path / "home")
    if before == "install":
        install(session)
    elif before.startswith("revoke"):
        revoke(shop, session, *(("b1", "b2") if before == "revoke-all" else ("b2",)))
    elif before == "late":
        session = late(session)
    elif before == "early":
        session = changed(session, now=datetime(2020, 1, 1, tzinfo=timezone.utc))
    # Both only read the disk: what a host would say is no part of a dry run.
    session = changed(session, **settings, offline="require_fresh" not in settings)
    assert end_of(lambda: install(session, release=release, dry_run=True)) == expected
    assert end_of(lambda: install(session, release=release)) == expected


OWN = {
    "nothing-there": lambda folder: folder / "missing",
    "no-build": lambda folder: folder,
    "a-text-file": lambda folder: folder / "x.txt",
    "an-archive-of-nothing": lambda folder: folder / "x.tar.gz",
}


@pytest.mark.parametrize("name", OWN)
def test_N04_a_dry_run_of_an_own_build_ends_as_its_install(
    shop: FolderShop, tmp_path: Path, name: str
) -> None:
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "x.tar.gz").write_bytes(b"")
    session = changed(shop.session(tmp_path / "home"), agreed=True)
    path = OWN[name](tmp_path)
    expected = end_of(lambda: install_own(session, path))
    assert expected.code != 0
    assert end_of(lambda: install_own(session, path, dry_run=True)) == expected


# --- for other machines ----------------------------------------------------------------------


def is_a_file(place: Path) -> None:
    place.write_text("x")


def has_other_files(place: Path) -> None:
    place.mkdir()
    (place / "diary.txt").write_text("x")


def is_missing(_: Path) -> None:
    pass


def folder_is_missing(place: Path) -> None:
    shutil.rmtree(place.parent)


ANY, NO_PLATFORM, NO_RELEASE = {}, {"platforms": ("plan9-mips",)}, {"releases": ("b9",)}


@pytest.mark.parametrize("prepare", [is_a_file, has_other_files, is_missing])
@pytest.mark.parametrize("narrow", [ANY, NO_PLATFORM, NO_RELEASE], ids=str)
def test_N04_a_dry_run_of_mirror_ends_as_the_mirror(
    shop: FolderShop, tmp_path: Path, prepare: Callable[[Path], None], narrow: dict[str, object]
) -> None:
    session, place = shop.session(tmp_path / "home"), tmp_path / "place" / "mirror"
    place.parent.mkdir()
    prepare(place)
    plan = end_of(lambda: mirror(session, place, Narrowing(**narrow), dry_run=True))  # type: ignore[arg-type]
    assert end_of(lambda: mirror(session, place, Narrowing(**narrow))) == plan  # type: ignore[arg-type]


def test_N04_a_dry_run_of_mirror_refuses_its_own_source(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    place = tmp_path / "mirror"
    mirror(session, place, Narrowing())
    source = changed(session, mirror=(place.as_uri(),))
    expected = end_of(lambda: mirror(source, place, Narrowing()))
    assert expected == End(2, "bad-usage")
    assert end_of(lambda: mirror(source, place, Narrowing(), dry_run=True)) == expected


def test_N04_a_dry_run_of_push_refuses_a_wrong_address(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    for url in ("oci://", "https://127.0.0.1/x", "oci://127.0.0.1:1/UPPER"):
        expected = end_of(lambda url=url: push_mirror(session, url, Narrowing()))
        assert expected.code == 2
        dry = end_of(lambda url=url: push_mirror(session, url, Narrowing(), dry_run=True))
        assert dry == expected


@pytest.mark.parametrize("prepare", [is_a_file, has_other_files, is_missing, folder_is_missing])
@pytest.mark.parametrize("program", [False, True])
def test_N04_a_dry_run_of_a_bundle_ends_as_its_making(
    shop: FolderShop, tmp_path: Path, prepare: Callable[[Path], None], *, program: bool
) -> None:
    session, place = shop.session(tmp_path / "home"), tmp_path / "place" / "bundle.sh"
    place.parent.mkdir()
    prepare(place)
    # A wheel that is none: the program cannot be put into the bundle.
    wheel = tmp_path / "tsuku_llm-1.0-py3-none-any.whl"
    wheel.write_bytes(b"no wheel")
    wish = BundleWish(program=program, wheel=wheel if program else None)
    plan = end_of(lambda: create_bundle(session, place, wish, dry_run=True))
    assert end_of(lambda: create_bundle(session, place, wish)) == plan
