"""Wrong bytes, and then a network that fails: the exit code of the first is never lost."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.downloads import BODY, Clock, artifact_at, pieces_of
from support.http_faults import Behaviour, Exchange, FaultServer, answer, good, head, raw

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch import Limits, delivered, fetch
from tsuku_llm.ground.errors import DigestMismatch, DownloadError, HostUnreachable, TsukuError

HALF = len(BODY) // 2
PIECE = 10_000
BAD = bytes(len(BODY))
ONE = Limits()
WIDE = Limits(parallel_threshold=1, segment=(10_000, 20_000), progress_bytes=5_000)
CLOSED = "http://127.0.0.1:1"
"""Where no server listens."""

FORBIDDEN = answer("403 Forbidden")
RESET = raw()


def ranges_then(later: Behaviour) -> Behaviour:
    """Give wrong bytes to every range request, and ``later`` to all others."""

    def behave(exchange: Exchange) -> None:
        ranged = "range" in exchange.request.headers
        (good(BAD, etag='"x"') if ranged else later)(exchange)

    return behave


def caught(artifact: Artifact, folder: Path, limits: Limits, *mirrors: str) -> TsukuError:
    with (
        Clock().network(limits=limits, mirrors=mirrors) as network,
        pytest.raises((DownloadError, DigestMismatch)) as found,
    ):
        fetch(artifact, folder, network)
    return found.value


@pytest.mark.parametrize("later", [RESET, FORBIDDEN], ids=["broken", "403"])
def test_S15_wrong_ranges_and_a_restart_that_fails(tmp_path: Path, later: Behaviour) -> None:
    with FaultServer([ranges_then(later)]) as server:
        error = caught(artifact_at(f"{server.url}/x"), tmp_path, WIDE)
    assert isinstance(error, DigestMismatch)
    assert error.exit_code == 5
    assert any(fact.startswith(f"from {server_url(error)}") for fact in error.facts), "both"


def server_url(error: TsukuError) -> str:
    return next(fact for fact in error.facts if fact.startswith("url: ")).removeprefix("url: ")


def test_S15_a_resume_that_does_not_match_and_a_restart_that_fails(tmp_path: Path) -> None:
    cut = raw(head("200 OK", Content_Length=len(BODY), ETag='"x"') + BAD[:HALF])
    serves = [cut, good(BAD, etag='"x"'), FORBIDDEN]
    with FaultServer(serves) as server:
        error = caught(artifact_at(f"{server.url}/x"), tmp_path, ONE)
        assert len(server.requests) == 3
    assert isinstance(error, DigestMismatch)
    assert "answered 403" in repr(error.facts)


@pytest.mark.parametrize("limits", [ONE, WIDE], ids=["one_connection", "several"])
@pytest.mark.parametrize("later", [RESET, FORBIDDEN], ids=["broken", "403"])
def test_S15_a_wrong_piece_and_then_no_more_answers(
    tmp_path: Path, limits: Limits, later: Behaviour
) -> None:
    """The piece that is asked for again never comes."""
    limits = dataclasses.replace(limits, connections=2)
    piece = answer(
        "206 Partial Content",
        BAD[:20_000],
        Content_Range=f"bytes 0-19999/{len(BODY)}",
    )
    first = (
        piece
        if limits.parallel_threshold == 1
        else raw(head("200 OK", Content_Length=len(BODY)) + BAD)
    )
    with FaultServer([first, later]) as server:
        artifact = artifact_at(f"{server.url}/x", pieces=pieces_of(BODY, PIECE))
        error = caught(artifact, tmp_path, limits)
    assert isinstance(error, DigestMismatch)
    assert "a piece" in error.message
    assert any("from http" in fact for fact in error.facts)


def test_S15_a_wrong_piece_left_by_an_earlier_run_is_not_a_mismatch(tmp_path: Path) -> None:
    """A loss of power leaves zeros: what is offline then is the network, nothing worse."""
    artifact = artifact_at(f"{CLOSED}/x", pieces=pieces_of(BODY, PIECE))
    (tmp_path / f"{artifact.sha256}.part").write_bytes(bytes(HALF))
    assert isinstance(caught(artifact, tmp_path, WIDE), HostUnreachable)


@pytest.mark.parametrize("wrong_first", [True, False])
def test_S15_wrong_bytes_of_one_source_are_reported(tmp_path: Path, wrong_first: bool) -> None:
    """Wherever it stands in their order; the others become facts of the one error."""
    with FaultServer([answer("200 OK", BAD)]) as lying:
        places = [lying.url, CLOSED]
        mirror, own = places if wrong_first else reversed(places)
        error = caught(artifact_at(f"{own}/x"), tmp_path, ONE, mirror, ORIGIN)
    assert isinstance(error, DigestMismatch)
    assert "127.0.0.1:1 cannot be reached" in repr(error.facts)


@pytest.fixture
def slow() -> Iterator[FaultServer]:
    with FaultServer([lambda exchange: exchange.hang()]) as server:
        yield server


def test_S15_another_failed_artifact_does_not_hide_wrong_bytes(
    tmp_path: Path, slow: FaultServer
) -> None:
    """One has seen wrong bytes and waits for its next source, when the other fails."""

    def fails_later(exchange: Exchange) -> None:
        while not slow.requests and not exchange.server.closing.wait(0.01):
            pass  # until the first artifact waits for its own source
        FORBIDDEN(exchange)

    def mirror(exchange: Exchange) -> None:
        lies = exchange.request.path == f"/sha256/{one.sha256}"
        (answer("200 OK", BAD) if lies else fails_later)(exchange)

    with FaultServer([mirror]) as both, FaultServer([FORBIDDEN]) as refusing:
        one = artifact_at(f"{slow.url}/one")
        two = artifact_at(f"{refusing.url}/two", BODY[::-1])
        with Clock().network(mirrors=(both.url, ORIGIN)) as network:
            delivery = delivered([one, two], tmp_path, network)
            streams = delivery.__enter__()
            with pytest.raises(DownloadError) as first:
                streams[1].wait()
            with pytest.raises(DigestMismatch) as found:
                delivery.__exit__(type(first.value), first.value, None)
    assert any("answered 403" in fact for fact in found.value.facts)
