"""Mirrors and bundles where the host of the metadata gives no answer: the known one is copied."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.deaf import mute
from support.folder_shop import FolderShop
from support.registry import Registry, registry
from support.release_server import NAME
from support.sessions import changed

from tsuku_llm.catalog.metadata_status import folder_of
from tsuku_llm.ground.errors import HostUnreachable, HttpStatusError, MetadataError, StaleMetadata
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.metadata.refresh import asked_catalog
from tsuku_llm.steps.session import Session
from tsuku_operator.bundle.bundle import create_bundle
from tsuku_operator.bundle.bundle_choice import BundleWish
from tsuku_operator.mirror.mirror import PATIENCE, catalog_to_copy, check_mirror, mirror
from tsuku_operator.mirror.mirror_choice import Narrowing
from tsuku_operator.mirror.registry_mirror import push_mirror

ALL = Narrowing()
NO_ANSWER = "newer metadata of test could not be fetched"
AGE = "using the metadata signed on 2026-11-20 (1 day ago)"


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1", "b2")


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registries") / "open") as server:
        yield server


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path, open_registry: Registry) -> Session:
    """An operator who knows the metadata of that day, and trusts the registry."""
    session = shop.session(tmp_path / "operator")
    environ = {
        **session.machine.environ,
        "SSL_CERT_FILE": str(open_registry.authority),
        "NO_PROXY": "*",
        "HOME": str(tmp_path / "operator"),
    }
    return session._replace(machine=session.machine._replace(environ=environ))


@pytest.fixture(params=["mirror", "registry", "bundle"])
def copying(
    request: pytest.FixtureRequest, tmp_path: Path, open_registry: Registry
) -> Callable[[Session], str]:
    """A command that copies a repository for other machines; it returns its outcome."""
    ways: dict[str, Callable[[Session], str]] = {
        "mirror": lambda session: mirror(session, tmp_path / "copy", ALL).outcome,
        "registry": lambda session: (
            push_mirror(session, open_registry.place(f"{tmp_path.name}/mirror"), ALL).outcome
        ),
        "bundle": lambda session: (
            create_bundle(
                session, tmp_path / "one.bundle", BundleWish(program=False), force=True
            ).outcome
        ),
    }
    return ways[request.param]


def moved(session: Session, url: str) -> Session:
    """The session, after its repository's address was changed."""
    file = folder_of(session.paths.data, NAME) / "repository.json"
    file.write_text(f'{{"format": 1, "url": "{url}"}}')
    return session


def refusing() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"https://127.0.0.1:{port}/"


def notes(session: Session) -> list[str]:
    told: list[str] = session.user.note  # type: ignore[assignment]
    return [line for line in told if "metadata" in line]


def test_a_copy_is_made_of_the_known_metadata_as_an_install_is(
    session: Session, copying: Callable[[Session], str]
) -> None:
    """A network of which only the archives' hosts, or only pip, can be reached."""
    moved(session, refusing())
    assert copying(session) in {"updated", "created"}
    (told,) = notes(session)
    assert NO_ANSWER in told
    assert AGE in told
    # The one note, word for word, that an install prints there.
    del session.user.note[:]  # type: ignore[attr-defined]
    assert install(changed(session, refresh="always")).installed
    assert notes(session) == [told]


def test_a_host_that_never_answers_is_left_in_time(session: Session) -> None:
    with ExitStack() as stack:
        moved(session, f"https://{mute(stack)}/")
        began = time.monotonic()
        assert catalog_to_copy(session, patience=0.2).entries
        assert time.monotonic() - began < PATIENCE / 2
    assert NO_ANSWER in notes(session)[0]


def test_a_copy_asks_each_time(
    shop: FolderShop, session: Session, copying: Callable[[Session], str]
) -> None:
    """An install would ask tomorrow, or never: what is copied is used for long."""
    asked_catalog(changed(session, refresh="always"))
    shop.publish("b3", {"cpu": shop.variant(shop.stand_in("b3-cpu"))})
    assert copying(changed(session, refresh="never")) in {"updated", "created"}
    newest = asked_catalog(session, ask=False).entries[0]
    assert newest.release == "b3"


def test_required_answers_stay_required(
    session: Session, copying: Callable[[Session], str]
) -> None:
    moved(session, refusing())
    with pytest.raises(StaleMetadata, match="fresh metadata of test is required"):
        copying(changed(session, require_fresh=True))


def test_a_mirror_is_not_taken_back_to_what_is_known_here(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    """Another machine has brought it further than this one knows."""
    folder = tmp_path / "copy"
    behind = shop.session(tmp_path / "behind")
    shop.simulator.bump()
    shop.write()
    mirror(session, folder, ALL)
    with pytest.raises(MetadataError, match="newer metadata than is known on this machine"):
        mirror(moved(behind, refusing()), folder, ALL)
    assert NO_ANSWER in notes(behind)[0]
    assert check_mirror(session, folder).differences == ()


def test_without_any_metadata_there_is_nothing_to_copy(
    shop: FolderShop, session: Session, copying: Callable[[Session], str]
) -> None:
    for name in ("current", "refreshed.json"):
        (folder_of(session.paths.data, NAME) / name).unlink(missing_ok=True)
    (shop.root / "repository").rename(shop.root / "elsewhere")
    with pytest.raises(HttpStatusError):
        copying(session)


def test_a_bundle_that_cannot_fetch_its_archives_names_the_package_index(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    """Where only pip works: an install takes those builds by itself."""
    shop.publish("b9", {"cpu": shop.variant(shop.stand_in("b9-cpu"))}, channels=["index"])
    asked_catalog(changed(session, refresh="always"))
    away = changed(session, mirror=(refusing(),))
    for channel, told in ((None, True), ("stable", False)):
        with pytest.raises(HostUnreachable) as refused:
            create_bundle(
                changed(away, channel=channel), tmp_path / "a.bundle", BundleWish(program=False)
            )
        assert ("--channel index" in refused.value.hint) is told
