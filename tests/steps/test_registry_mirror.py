"""Mirrors in a real OCI registry: pushed, fetched from, and refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.program import environment
from support.registry import Registry, docker_config, registry
from support.release_server import NAME
from support.repository import RepositorySimulator
from support.sessions import changed

from tsuku_llm.ground.errors import (
    BodyError,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    MetadataError,
    TlsError,
    UsageError,
)
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.session import Machine, Session
from tsuku_operator.mirror.mirror import mirror
from tsuku_operator.mirror.mirror_choice import Narrowing
from tsuku_operator.mirror.registry_mirror import push_mirror

ALL = Narrowing()


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registries") / "open") as server:
        yield server


@pytest.fixture(scope="module")
def basic_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registries") / "basic", "basic") as server:
        yield server


@pytest.fixture(scope="module")
def token_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registries") / "token", "token") as server:
        yield server


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1", "b2")


def at(session: Session, server: Registry, home: Path, **more: str) -> Session:
    """The session with that authority, and its own home for credentials."""
    trusts = {"SSL_CERT_FILE": str(server.authority), "NO_PROXY": "*", "HOME": str(home)}
    environ = {**environment(home), **trusts, **more}
    return changed(session, machine=Machine(session.machine.host, session.machine.now, environ))


@pytest.fixture
def operator(shop: FolderShop, tmp_path: Path) -> Callable[..., Session]:
    home = tmp_path / "operator"
    return lambda server, **more: at(shop.session(home), server, home, **more)


@pytest.fixture
def client(shop: FolderShop, tmp_path: Path) -> Callable[..., Session]:
    """A user who knows the registry only."""

    def make(server: Registry, place: str, **more: str) -> Session:
        home = tmp_path / "client"
        session = shop.session(home, mirror=(place,))
        settings = session.paths.data / "metadata" / NAME / "repository.json"
        settings.write_text(json.dumps({"format": 1, "url": f"{place}/"}))
        return at(session, server, home, **more)

    return make


def test_what_is_pushed_can_be_installed(
    shop: FolderShop,
    open_registry: Registry,
    operator: Callable[..., Session],
    client: Callable[..., Session],
) -> None:
    place = open_registry.place("first/mirror")
    report = push_mirror(operator(open_registry), place, ALL)
    assert (report.outcome, len(report.fetched)) == ("updated", 2)
    assert {each.sha256 for each in report.archives} <= open_registry.blobs()
    shutil.rmtree(shop.root)
    user = client(open_registry, place)
    assert refresh(user).repository.name == NAME
    before = len(open_registry.requests())
    assert install(user).outcome == "installed"
    asked = open_registry.requests()[before:]
    digest = next(each.sha256 for each in report.archives if each.name.startswith("b2"))
    assert asked == [("GET", f"/v2/first/mirror/blobs/sha256:{digest}", 200)]


def test_only_what_is_new_is_pushed_and_the_tag_moves_last(
    shop: FolderShop, open_registry: Registry, operator: Callable[..., Session]
) -> None:
    place = open_registry.place("second/mirror:stable")
    push_mirror(operator(open_registry), place, ALL)
    before = len(open_registry.requests())
    assert push_mirror(operator(open_registry), place, ALL).outcome == "unchanged"
    asked = open_registry.requests()[before:]
    assert {method for method, _, _ in asked} == {"GET", "HEAD"}
    shop.publish("b3", {"cpu": shop.variant(shop.stand_in("b3-cpu"))})
    before = len(open_registry.requests())
    report = push_mirror(operator(open_registry), place, ALL)
    assert [each.name for each in report.fetched] == ["b3-cpu.tar.gz"]
    written = [
        (method, path) for method, path, _ in open_registry.requests()[before:] if method == "PUT"
    ]
    # The archive, and the four files of the new metadata: release, targets, snapshot, timestamp.
    assert len(written) == 6
    assert written[-1] == ("PUT", "/v2/second/mirror/manifests/stable")
    assert f"sha256:{report.fetched[0].sha256}" in written[0][1].replace("%3A", ":")


def test_a_registry_and_a_folder_have_the_same_files(
    shop: FolderShop,
    open_registry: Registry,
    operator: Callable[..., Session],
    client: Callable[..., Session],
    tmp_path: Path,
) -> None:
    place = open_registry.place("third/mirror")
    push_mirror(operator(open_registry), place, ALL)
    mirror(operator(open_registry), tmp_path / "one", ALL)
    shutil.rmtree(shop.root)
    mirror(client(open_registry, place), tmp_path / "two", ALL)
    one, two = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two


@pytest.mark.parametrize("access", ["basic", "token"])
def test_credentials_of_docker_are_used(
    request: pytest.FixtureRequest,
    operator: Callable[..., Session],
    client: Callable[..., Session],
    tmp_path: Path,
    access: str,
) -> None:
    server: Registry = request.getfixturevalue(f"{access}_registry")
    place = server.place("closed/mirror")
    with pytest.raises(HttpStatusError) as caught:
        push_mirror(operator(server), place, ALL)
    assert caught.value.status == 401
    assert "log in first" in caught.value.hint
    wrong = docker_config(tmp_path / "wrong", server.host, "another")
    with pytest.raises(HttpStatusError) as caught:
        push_mirror(operator(server, **wrong), place, ALL)
    assert "were refused" in caught.value.hint
    assert "another" not in f"{caught.value.message} {caught.value.facts}"
    right = docker_config(tmp_path / "right", server.host)
    assert push_mirror(operator(server, **right), place, ALL).outcome == "updated"
    user = client(server, place, **right)
    assert refresh(user).repository.name == NAME
    assert install(user).outcome == "installed"


def test_a_token_is_asked_for_once_and_for_reading_only(
    token_registry: Registry,
    operator: Callable[..., Session],
    client: Callable[..., Session],
    tmp_path: Path,
) -> None:
    place = token_registry.place("public/mirror")
    right = docker_config(tmp_path / "right", token_registry.host)
    push_mirror(operator(token_registry, **right), place, ALL)
    # Without credentials: the token server lets everybody read.
    user = client(token_registry, place)
    refresh(user)
    token_registry.tokens.clear()
    assert install(user).outcome == "installed"
    assert token_registry.tokens == ["repository:public/mirror:pull"]


def test_an_identity_token_and_a_helper(
    token_registry: Registry, operator: Callable[..., Session], tmp_path: Path
) -> None:
    folder = tmp_path / "docker"
    host = token_registry.host
    identity = {host: {"identitytoken": "identity"}}
    named = docker_config(folder, host, auths=identity)
    place = token_registry.place("identity/mirror")
    assert push_mirror(operator(token_registry, **named), place, ALL).outcome == "updated"
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    helper.write_text(
        '#!/bin/sh\nread host\n[ "$1 $host" = "get ' + host + '" ] || exit 1\n'
        'echo \'{"ServerURL": "x", "Username": "operator", "Secret": "pass:word"}\'\n'
    )
    helper.chmod(0o755)
    named = docker_config(folder, host, auths={}, credHelpers={host: "tests"})
    place = token_registry.place("helper/mirror")
    path = {"PATH": f"{helper.parent}:/usr/bin:/bin"}
    assert push_mirror(operator(token_registry, **named, **path), place, ALL).fetched
    helper.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(DownloadError, match="docker-credential-tests gave no credentials"):
        push_mirror(operator(token_registry, **named, **path), place, ALL)


def test_an_authority_that_is_not_trusted(
    open_registry: Registry, operator: Callable[..., Session]
) -> None:
    session = operator(open_registry)
    environ = {**session.machine.environ}
    del environ["SSL_CERT_FILE"]
    stranger = changed(session, environ=environ)
    with pytest.raises(TlsError):
        push_mirror(stranger, open_registry.place("tls/mirror"), ALL)


def test_a_tag_of_another_repository_is_not_moved(
    open_registry: Registry, operator: Callable[..., Session], tmp_path: Path
) -> None:
    place = open_registry.place("taken/mirror")
    push_mirror(operator(open_registry), place, ALL)
    other = FolderShop(tmp_path / "other")
    other.simulator = RepositorySimulator(other.simulator.url, name="other")
    other.publish("b1", {"cpu": other.variant(other.stand_in("x"))})
    home = tmp_path / "stranger"
    with pytest.raises(UsageError, match="another repository"):
        push_mirror(at(other.session(home), open_registry, home), place, ALL)


def test_a_mirror_in_a_registry_does_not_go_back(
    shop: FolderShop, open_registry: Registry, operator: Callable[..., Session], tmp_path: Path
) -> None:
    place = open_registry.place("ahead/mirror")
    older = shutil.copytree(shop.root / "repository", tmp_path / "older")
    shop.simulator.bump()
    shop.write()
    push_mirror(operator(open_registry), place, ALL)
    shutil.rmtree(shop.root / "repository")
    older.rename(shop.root / "repository")
    home = tmp_path / "behind"
    with pytest.raises(MetadataError, match="newer metadata"):
        push_mirror(at(shop.session(home), open_registry, home), place, ALL)


def test_a_blob_that_is_gone_is_an_error_that_says_so(
    open_registry: Registry,
    operator: Callable[..., Session],
    client: Callable[..., Session],
) -> None:
    place = open_registry.place("narrow/mirror")
    push_mirror(operator(open_registry), place, Narrowing(releases=("b1",)))
    user = client(open_registry, place)
    refresh(user)
    with pytest.raises(HttpStatusError, match=r"no mirror has b2-cpu\.tar\.gz"):
        install(user)
    with pytest.raises(HttpStatusError, match="there is no mirror at"):
        refresh(client(open_registry, open_registry.place("nothing/here")))


def test_a_registry_that_cannot_be_reached_is_no_reason_to_read_from_a_mirror(
    operator: Callable[..., Session], open_registry: Registry
) -> None:
    with pytest.raises(HostUnreachable) as caught:
        push_mirror(operator(open_registry), "oci://127.0.0.1:1/tsuku/mirror", ALL)
    assert "--to" in caught.value.hint
    assert "llm.mirror" not in caught.value.hint


def test_a_blob_that_the_registry_has_lost_is_not_told_as_pushed(
    operator: Callable[..., Session], tmp_path: Path
) -> None:
    """docker-registry keeps an empty file of a blob, as a full disk leaves it, and answers 201."""
    with registry(tmp_path / "damaged") as server:
        push_mirror(operator(server), server.place(), Narrowing(releases=("b1",)))
        largest = max(server.root.rglob("data"), key=lambda path: path.stat().st_size)
        largest.write_bytes(b"")
        with pytest.raises(BodyError, match="has another file by its name") as caught:
            push_mirror(operator(server), server.place(), Narrowing(releases=("b1",)))
    assert caught.value.facts == (f"digest: sha256:{largest.parent.name}",)


def test_a_refused_push_says_what_the_registry_says(
    operator: Callable[..., Session], tmp_path: Path
) -> None:
    """A registry without its storage: the specification of OCI has errors in the answer's body.

    "try again later, or set llm.mirror" was the hint, also for a registry that is full.
    """
    with registry(tmp_path / "broken") as server:
        name = server.root / "docker/registry/v2/repositories/llm/mirror"
        name.mkdir(parents=True)
        (name / "_uploads").write_text("a file in the place of the folder for uploads")
        with pytest.raises(HttpStatusError) as caught:
            push_mirror(operator(server), server.place(), ALL)
    assert any(fact.startswith("it said: UNKNOWN") for fact in caught.value.facts)
    assert "ask the registry's operator" in caught.value.hint
    assert "llm.mirror" not in caught.value.hint
