"""Where clients look for metadata: several places, and what the failure of one leads to."""

import io
import json
import socket
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.http_faults import Exchange, FaultServer, answer
from support.package_index import PLACE, PROJECT, PackageIndex
from support.release_server import NAME
from support.repository import FrozenCopy, RepositorySimulator, release_document
from support.sessions import changed

from tsuku_llm import fetch
from tsuku_llm.catalog import metadata_status
from tsuku_llm.catalog.repositories import repository as known_repository
from tsuku_llm.fetch.places import pip_index
from tsuku_llm.ground.errors import (
    BodyError,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    MetadataError,
    PackageIndexError,
    StaleMetadata,
)
from tsuku_llm.steps.metadata import refresh as operations_refresh
from tsuku_llm.steps.metadata import repository as operations
from tsuku_llm.steps.metadata.places import download_from
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.session import Session
from tsuku_publish.repository.wheel import make_wheel

NOTHING_LISTENS = "https://127.0.0.1:1/"


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1")


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path) -> Session:
    """A user who has metadata with b1; the publisher has signed b2 since."""
    session = shop.session(tmp_path / "home")
    shop.simulator.publish(release_document("b2"))
    return session


@pytest.fixture
def index(tmp_path: Path) -> PackageIndex:
    return PackageIndex(tmp_path / "index")


def at(session: Session, *places: str) -> Session:
    """The session, whose repository is published at these places."""
    file = metadata_status.folder_of(session.paths.data, NAME) / "repository.json"
    url, *others = places
    file.write_text(json.dumps({"format": 1, "url": url, "others": others}))
    return session


def told(session: Session) -> str:
    return "\n".join(session.user.note)  # type: ignore[arg-type]  # Notes are a list


def releases(session: Session, *places: str) -> list[str]:
    return [entry.release for entry in refresh(at(session, *places)).entries]


def folder(simulator: RepositorySimulator | FrozenCopy, path: Path) -> str:
    """The files of a repository in a folder, as its URL."""
    for name, data in simulator.files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return f"{path.as_uri()}/"


# --- one of several ------------------------------------------------------------------------------


def unreachable(_: FolderShop, __: Path) -> str:
    return NOTHING_LISTENS


def empty(_: FolderShop, path: Path) -> str:
    return f"{path.as_uri()}/"


def rubbish(shop: FolderShop, path: Path) -> str:
    return folder(FrozenCopy(dict.fromkeys(shop.simulator.files, b"<html>")), path)


def foreign(_: FolderShop, path: Path) -> str:
    stranger = RepositorySimulator(name="stranger")
    stranger.publish(release_document("b9"))
    return folder(stranger, path)


def half(shop: FolderShop, path: Path) -> str:
    """A copy that was interrupted: the release file is missing."""
    files = {name: data for name, data in shop.simulator.files.items() if "b2.json" not in name}
    return folder(FrozenCopy(files), path)


def stale(shop: FolderShop, path: Path) -> str:
    expired = shop.simulator.fork()
    expired.timestamp.expires = datetime(2026, 11, 1, tzinfo=timezone.utc)
    expired.sign_timestamp()
    return folder(expired, path)


@pytest.mark.parametrize("failing", [unreachable, empty, rubbish, foreign, half, stale])
def test_a_place_that_fails_does_not_stop_the_next(
    shop: FolderShop, session: Session, tmp_path: Path, failing: Callable[[FolderShop, Path], str]
) -> None:
    bad = failing(shop, tmp_path / "bad")
    good = folder(shop.simulator, tmp_path / "good")
    assert releases(session, bad, good) == ["b2", "b1"]
    assert f"{bad} was passed over: " in told(session)
    assert good not in told(session)
    assert "llm.mirror" not in told(session)


def test_a_place_with_an_older_state_does_not_stop_the_next(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    old = folder(shop.simulator.freeze(), tmp_path / "old")
    shop.simulator.publish(release_document("b3"))
    newest = folder(shop.simulator, tmp_path / "newest")
    assert releases(session, newest) == ["b3", "b2", "b1"]
    assert releases(session, old, newest) == ["b3", "b2", "b1"]
    assert f"warning: {old} was passed over: this metadata is older" in told(session)
    with pytest.raises(MetadataError, match="older than what this machine has"):
        releases(session, old)


def test_places_after_a_valid_answer_need_not_answer(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    good = folder(shop.simulator, tmp_path / "good")
    assert releases(session, good, NOTHING_LISTENS) == ["b2", "b1"]
    assert not told(session)


def as_it_is(shop: FolderShop, path: Path, _: PackageIndex) -> str:
    return folder(shop.simulator, path)


def as_a_package(shop: FolderShop, _: Path, index: PackageIndex) -> str:
    index.upload(shop.simulator.files, 12)
    return PLACE


def rotated(shop: FolderShop, path: Path, _: PackageIndex) -> str:
    """After a rotation of the online keys the versions may be lower than at the frozen place."""
    shop.simulator.rotate("timestamp", "snapshot")
    shop.simulator.timestamp.version = 1
    shop.simulator.sign()
    return folder(shop.simulator, path)


def behind_a_dead_one(shop: FolderShop, path: Path, _: PackageIndex) -> str:
    return f"{NOTHING_LISTENS} {folder(shop.simulator, path)}"


def behind_rubbish(shop: FolderShop, path: Path, _: PackageIndex) -> str:
    return f"{rubbish(shop, path / 'rubbish')} {folder(shop.simulator, path / 'newer')}"


def behind_a_liar(shop: FolderShop, path: Path, _: PackageIndex) -> str:
    """One says that it has the newest of all, under keys of its own."""
    stranger = RepositorySimulator(name="stranger")
    for number in range(20):
        stranger.publish(release_document(f"b9{number}"))
    return f"{folder(stranger, path / 'liar')} {folder(shop.simulator, path / 'newer')}"


def before_a_frozen_one(shop: FolderShop, path: Path, _: PackageIndex) -> str:
    newer = folder(shop.simulator, path / "newer")
    return f"{newer} {folder(shop.simulator.freeze(), path / 'same')}"


def the_newest_of_three(shop: FolderShop, path: Path, _: PackageIndex) -> str:
    middle = folder(shop.simulator, path / "middle")
    shop.simulator.publish(release_document("b4"))
    return f"{middle} {folder(shop.simulator, path / 'newest')}"


NEWER = [
    *(as_it_is, rotated, behind_a_dead_one, behind_rubbish, behind_a_liar, before_a_frozen_one),
    *(the_newest_of_three,),
]


@pytest.mark.parametrize("place", [*NEWER, as_a_package])
def test_N05_a_frozen_place_hides_nothing_of_a_newer_one(
    shop: FolderShop,
    session: Session,
    tmp_path: Path,
    index: PackageIndex,
    place: Callable[[FolderShop, Path, PackageIndex], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A revocation at any place counts, though the first one is valid and not expired."""
    frozen = folder(shop.simulator.freeze(), tmp_path / "frozen")
    shop.simulator.publish(release_document("b3"))
    shop.simulator.targets.unrecognized_fields["revoked"] = [
        {"release": "b1", "date": "2026-11-20"}
    ]
    shop.simulator.bump()
    newer = place(shop, tmp_path / "newer", index)
    session = changed(session, environ=index.environ)
    # A busy machine may take longer to start pip.
    monkeypatch.setattr(operations_refresh, "_GLANCE", 120.0)
    found = refresh(at(session, frozen, *newer.split(" ")))
    assert "b3" in [entry.release for entry in found.entries]
    assert [each.release for each in found.revoked] == ["b1"]
    assert f"warning: {frozen} has older metadata than " in told(session)
    again = [entry.release for entry in refresh(session).entries]
    assert again == [entry.release for entry in found.entries]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a host that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/"


def test_a_place_that_never_answers_leaves_time_for_the_others(
    shop: FolderShop, session: Session, tmp_path: Path, silent: str
) -> None:
    good = folder(shop.simulator, tmp_path / "good")
    found = refresh(at(session, silent, good), patience=0.2)
    assert [entry.release for entry in found.entries] == ["b2", "b1"]
    assert f"{silent} was passed over" in told(session)
    with pytest.raises(HostUnreachable) as caught:
        refresh(at(session, silent, f"{silent}again/", f"{silent}more/"), patience=3.0)
    # The others were really asked: without time for them they would not even be connected to. Each
    # has a second, so that a busy machine does not use up what belongs to the next one.
    assert "did not send all metadata in time" not in "\n".join(caught.value.facts)


def test_all_failing_places_are_in_one_error(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    gone = (tmp_path / "gone").as_uri()
    with pytest.raises(HostUnreachable) as caught:
        refresh(at(session, NOTHING_LISTENS, f"{gone}/"))
    error = caught.value
    assert error.message == f"none of the 2 places of {NAME} gave valid metadata"
    assert [fact.partition(": ")[0] for fact in error.facts] == [NOTHING_LISTENS, f"{gone}/"]
    assert "there is no file timestamp.json" in error.facts[1]
    assert error.hint.startswith("try again later, or from another network; ")
    assert not told(session), "the error says it all"
    with pytest.raises(MetadataError) as refused:
        refresh(at(session, NOTHING_LISTENS, rubbish(shop, tmp_path / "rubbish")))
    assert refused.value.exit_code == 5, "a refused answer outranks a failed download"
    assert refused.value.facts[0].startswith(NOTHING_LISTENS)


@pytest.mark.parametrize("count", [1, 2])
def test_no_hint_about_metadata_names_what_serves_archives(
    session: Session, tmp_path: Path, count: int
) -> None:
    """A mirror of archives is never asked for metadata: such a hint leads round in circles."""
    places = [NOTHING_LISTENS, f"{tmp_path.as_uri()}/nowhere/"][:count]
    official = changed(session, repository=None, repository_url=tuple(places))
    mirrored = changed(official, mirror=("https://mirror.invalid/",))
    for asked in (at(session, *places), official, mirrored):
        with pytest.raises(DownloadError) as caught:
            refresh(asked)
        assert "llm.mirror" not in "\n".join((caught.value.hint, *caught.value.facts))


def test_expired_metadata_names_the_usual_cause(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    with pytest.raises(StaleMetadata) as caught:
        refresh(at(session, stale(shop, tmp_path / "stale")))
    assert caught.value.hint.startswith(
        "most often its publisher has stopped signing since 2026-11-20: ask them"
    )
    assert "clock" in caught.value.hint
    assert "withholds" in caught.value.hint


def test_several_places_are_added_and_kept(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    root = tmp_path / "root.json"
    root.write_bytes(shop.simulator.pinned_root)
    good = folder(shop.simulator, tmp_path / "good")
    added = operations.add(session, "two", NOTHING_LISTENS, root, others=[good, good])
    assert (added.added.url, *added.added.others) == (NOTHING_LISTENS, good)
    assert known_repository(session.paths.data, "two").places == (NOTHING_LISTENS, good)
    assert f"{NOTHING_LISTENS} was passed over" in told(session)
    asked = changed(session, repository="two")
    assert [entry.release for entry in refresh(asked).entries] == ["b2", "b1"]


def test_N05_a_silent_signer_of_one_channel_ends_no_other_channel(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    """A nightly channel without a build for a month, and so without a signature."""
    shop.simulator.delegate("nightly", "releases/n*.json")
    shop.simulator.delegated["nightly"].expires = datetime(2026, 11, 1, tzinfo=timezone.utc)
    shop.simulator.publish(release_document("b3"))
    place = folder(shop.simulator, tmp_path / "late")
    assert releases(session, place) == ["b3", "b2", "b1"]
    assert "the channel 'nightly' expired on 2026-11-01" in told(session)
    with pytest.raises(StaleMetadata, match="has expired") as caught:
        refresh(at(changed(session, channel="nightly"), place))
    assert any("nightly" in fact for fact in caught.value.facts)
    assert [entry.release for entry in refresh(at(session, place)).entries] == ["b3", "b2", "b1"]


def test_P1_a_mirror_without_the_role_of_one_channel_ends_no_other_channel(
    shop: FolderShop, session: Session, tmp_path: Path
) -> None:
    shop.simulator.delegate("nightly", "releases/n*.json")
    shop.simulator.publish(release_document("b3"))
    files = {n: data for n, data in shop.simulator.files.items() if "nightly.json" not in n}
    place = folder(FrozenCopy(files), tmp_path / "half")
    with pytest.raises(HttpStatusError):
        refresh(at(changed(session, channel="nightly"), place))
    assert releases(session, place) == ["b3", "b2", "b1"]
    assert "warning: the channel 'nightly' lacks builds" in told(session)


# --- a package of the user's package index -------------------------------------------------------


def test_metadata_comes_from_a_package(
    shop: FolderShop, session: Session, index: PackageIndex
) -> None:
    """The newest version counts; pip's own settings say where."""
    index.upload({}, 3)
    index.upload(shop.simulator.files, 12)
    session = changed(session, environ=index.environ | {"PIP_REQUIRE_HASHES": "1"})
    found = refresh(at(session, NOTHING_LISTENS, PLACE))
    assert [entry.release for entry in found.entries] == ["b2", "b1"]
    assert f"{NOTHING_LISTENS} was passed over" in told(session)
    assert not list((session.paths.data / "partials").iterdir())


def test_a_package_answers_as_a_host_does(
    shop: FolderShop, session: Session, index: PackageIndex
) -> None:
    """What is missing has the status 404, and no file is unpacked further than its limit."""
    index.put(bomb(dict(shop.simulator.files)))
    session = at(changed(session, environ=index.environ), PLACE)
    repository = known_repository(session.paths.data, NAME)
    with fetch.Network(index.environ) as network:
        download = download_from(session.store, repository, network, network.clock() + 30)
    root = download("metadata/1.root.json", 10_000)
    assert root == shop.simulator.pinned_root
    with pytest.raises(HttpStatusError) as missing:
        download("metadata/2.root.json", 10_000)
    assert missing.value.status == 404
    with pytest.raises(BodyError, match="more than 100 bytes"):
        download("metadata/1.root.json", 100)
    with pytest.raises(BodyError, match="more than 16,384 bytes"):
        download("metadata/timestamp.json", 16_384)
    index.put(make_wheel({"metadata/1.root.json": bytes(129 << 20)}, PROJECT, 1))
    with fetch.Network(index.environ) as network, pytest.raises(BodyError, match="refused"):
        download_from(session.store, repository, network, network.clock() + 30)


def bomb(files: dict[str, bytes]) -> bytes:
    """A wheel whose timestamp unpacks to much more than a timestamp may have."""
    return make_wheel({**files, "metadata/timestamp.json": bytes(4 << 20)}, PROJECT, 1)


def double(files: dict[str, bytes]) -> bytes:
    """A wheel with two files of one name, of which two programs would read one each."""
    data = io.BytesIO(make_wheel(files, PROJECT, 1))
    with zipfile.ZipFile(data, "a") as wheel, pytest.warns(UserWarning, match="Duplicate"):
        wheel.writestr("our_metadata/metadata/timestamp.json", b"{}")
    return data.getvalue()


def wrong_folder(files: dict[str, bytes]) -> bytes:
    return make_wheel({f"other/{name}": content for name, content in files.items()}, PROJECT, 1)


def code(files: dict[str, bytes]) -> bytes:
    """A wheel of a stranger with the same name, and nothing that was signed."""
    del files
    return make_wheel({"__init__.py": b"raise SystemExit('evil')"}, PROJECT, 1)


@pytest.mark.parametrize("change", [bomb, double, wrong_folder, code])
def test_a_package_that_cannot_be_used_is_passed_over(
    shop: FolderShop,
    session: Session,
    index: PackageIndex,
    tmp_path: Path,
    change: Callable[[dict[str, bytes]], bytes],
) -> None:
    index.put(change(dict(shop.simulator.files)))
    session = changed(session, environ=index.environ)
    good = folder(shop.simulator, tmp_path / "good")
    assert releases(session, PLACE, good) == ["b2", "b1"]
    assert f"{PLACE}/ was passed over" in told(session)


def test_a_package_of_a_stranger_is_refused(session: Session, index: PackageIndex) -> None:
    stranger = RepositorySimulator(name="stranger")
    stranger.publish(release_document("b9"))
    index.upload(stranger.files, 99)
    with pytest.raises(MetadataError):
        refresh(at(changed(session, environ=index.environ), PLACE))
    assert not (session.paths.data / "metadata" / NAME / "copies" / "b9").exists()


def test_a_package_that_is_missing_names_pip_and_the_way_on(
    session: Session, index: PackageIndex
) -> None:
    with pytest.raises(PackageIndexError) as caught:
        refresh(at(changed(session, environ=index.environ), PLACE))
    assert caught.value.message == f"pip could not fetch {PROJECT} from its package index"
    assert "pip config list" in caught.value.hint
    assert caught.value.hint.endswith(f"repository add {NAME} URL --root FILE")


def test_an_endless_package_is_stopped(
    session: Session, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip has no limit of its own; without ours the disk would be full before the deadline."""
    monkeypatch.setattr(pip_index, "LARGEST_PACKAGE", 1 << 20)
    name = "our_metadata-1-py3-none-any.whl"

    def serve(exchange: Exchange) -> None:
        page = f'<a href="/files/{name}">{name}</a>'.encode()
        if exchange.request.path.startswith("/simple/"):
            answer("200 OK", page, Content_Type="text/html")(exchange)
            return
        exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            exchange.send(bytes(1 << 16))

    with FaultServer([serve]) as server:
        environ = index.environ | {"PIP_INDEX_URL": f"{server.url}/simple", "PIP_NO_INDEX": "0"}
        with pytest.raises(BodyError, match="refused") as caught:
            refresh(at(changed(session, environ=environ), PLACE))
    assert caught.value.facts == ("it has more than 1,048,576 bytes",)


def test_a_package_index_that_never_answers_ends_in_time(
    session: Session, index: PackageIndex, silent: str
) -> None:
    environ = index.environ | {"PIP_INDEX_URL": f"{silent}simple", "PIP_NO_INDEX": "0"}
    with pytest.raises(PackageIndexError) as caught:
        refresh(at(changed(session, environ=environ), PLACE), patience=0.3)
    assert "pip did not end in time" in caught.value.facts


LATER = datetime(2040, 1, 1, tzinfo=timezone.utc)
"""After all that the embedded metadata was signed for."""


def mirrored(session: Session, url: str) -> Session:
    """The user of the official repository, behind a mirror."""
    return changed(session, repository=None, mirror=(url,))


@pytest.mark.parametrize(
    ("serves", "user", "says"),
    [
        (answer("401 Unauthorized"), "", "put them into its URL"),
        (answer("401 Unauthorized"), "anna:old@", "refuses the user or the password"),
        (answer("404 Not Found"), "", "operator can repair it with the command that made it"),
        (answer("500 Internal Server Error"), "", "make sure that the mirror works"),
    ],
    ids=["no-login", "old-login", "half-copied", "broken"],
)
def test_the_way_on_is_for_the_one_who_can_go_it(
    session: Session, serves: Callable[[Exchange], None], user: str, says: str
) -> None:
    """A mirror's operator cannot mend a client's certificates, proxy or credentials.

    The note of an install and the error of a refresh said that all the same, with a command that
    would have copied the whole repository.
    """
    with FaultServer([serves]) as server:
        place = server.url.replace("://", f"://{user}") + "/"
        asked = mirrored(session, place)
        with pytest.raises(HttpStatusError) as caught:
            refresh(asked)
        operations_refresh.asked_catalog(changed(asked, refresh="always"))
    for text in (caught.value.hint, told(asked)):
        assert says in text
        assert ("operator" in text) == ("operator" in says)
    assert "old@" not in told(asked)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"HTTPS_PROXY": "http://127.0.0.1:1"}, "check HTTPS_PROXY"),
        ({"SSL_CERT_FILE": "/nonexistent/ca.pem"}, "SSL_CERT_FILE"),
    ],
)
def test_a_wrong_proxy_or_certificate_is_not_the_mirrors(
    session: Session, variables: dict[str, str], says: str
) -> None:
    asked = mirrored(session, "https://127.0.0.1:2/")
    environ = {**session.machine.environ, **variables}
    asked = changed(asked, environ=environ, refresh="always", now=LATER)
    with pytest.raises(DownloadError) as caught:
        refresh(asked)
    operations_refresh.asked_catalog(asked)
    for text in (caught.value.hint, told(asked)):
        assert says in text
        assert "operator" not in text
        assert "publisher" not in text


def test_an_old_mirror_is_named_before_the_publisher(
    shop: FolderShop, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a mirror that nobody brings up to date, the publisher was said to have stopped."""
    # No test can sign for the official repository.
    monkeypatch.setattr(operations_refresh, "OFFICIAL", NAME)
    place = stale(shop, tmp_path / "stale")
    with pytest.raises(StaleMetadata) as caught:
        refresh(changed(at(session, place), mirror=(place,)))
    assert caught.value.hint.startswith("most often the mirror is not kept up to date")
    assert "clock" in caught.value.hint
