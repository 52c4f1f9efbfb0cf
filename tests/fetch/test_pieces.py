"""Pieces with digests of their own: used as they come, fetched again alone, exact at a resume."""

import contextlib
import dataclasses
import errno
import hashlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.downloads import BODY, Clock, artifact_at, pieces_of
from support.http_faults import (
    Behaviour,
    Exchange,
    FaultServer,
    answer,
    asked_range,
    good,
    head,
    places_asked,
)

from tsuku_llm.catalog.manifest import Artifact, Measured
from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch import Silent, VerifiedStream, delivered, fetch
from tsuku_llm.fetch.artifacts.download import download
from tsuku_llm.fetch.artifacts.partial import PieceVerifier, WrongPiece
from tsuku_llm.fetch.http.limits import Limits
from tsuku_llm.ground.errors import (
    BodyError,
    DigestMismatch,
    HttpStatusError,
    Interrupted,
    StoreError,
)

PIECE = 10_000
PIECES = pieces_of(BODY, PIECE)
ONE = Limits()
WIDE = Limits(parallel_threshold=1, segment=(12_000, 24_000), progress_bytes=5_000)
BOTH = pytest.mark.parametrize("limits", [ONE, WIDE], ids=["one_connection", "several"])

GOOD = good(BODY)
BAD_AT = 105_000
"""In the eleventh piece."""

BAD_PIECE = (100_000, 110_000)
BAD = BODY[:BAD_AT] + bytes([BODY[BAD_AT] ^ 1]) + BODY[BAD_AT + 1 :]


def wanted(url: str) -> Artifact:
    return artifact_at(f"{url}/x", pieces=PIECES)


def lying(again: int, piece: tuple[int, int] = BAD_PIECE) -> Behaviour:
    """Who asks for the bad place gets it, but for who asks from its piece on, ``again`` apart."""
    left = [again]

    def behave(exchange: Exchange) -> None:
        start, end = asked_range(exchange.request, len(BODY))
        corrects = start == piece[0] and end in (piece[1], len(BODY))
        if not start <= BAD_AT < end or (corrects and not left[0]):
            GOOD(exchange)
            return
        left[0] -= corrects
        fields: dict[str, object] = {"Content_Length": end - start, "Connection": "close"}
        if "range" in exchange.request.headers:
            fields["Content_Range"] = f"bytes {start}-{end - 1}/{len(BODY)}"
        ranged = "range" in exchange.request.headers
        exchange.send(head("206 Partial Content" if ranged else "200 OK", **fields))
        exchange.send(BAD[start:end])

    return behave


def asked(server: FaultServer) -> list[tuple[int, int]]:
    return [asked_range(request, len(BODY)) for request in server.requests]


@BOTH
def test_H36_only_a_wrong_piece_is_downloaded_again(tmp_path: Path, limits: Limits) -> None:
    clock = Clock()
    with FaultServer([lying(0)]) as server, clock.network(limits=limits) as network:
        assert fetch(wanted(server.url), tmp_path, network).read_bytes() == BODY
        if limits is WIDE:
            # Once more if the plan of several connections has a range with just these ends.
            assert asked(server).count(BAD_PIECE) in (1, 2)
        else:
            assert asked(server) == [(0, len(BODY)), (100_000, len(BODY))]
    assert clock.slept == []


@BOTH
def test_H38_a_server_may_give_wrong_bytes_to_some_connections(
    tmp_path: Path, limits: Limits
) -> None:
    """Without pieces this costs the whole again; with them a piece, twice."""
    with FaultServer([lying(1)]) as server, Clock().network(limits=limits) as network:
        assert fetch(wanted(server.url), tmp_path, network).read_bytes() == BODY
        if limits is WIDE:
            # Once more if the plan of several connections has a range with just these ends.
            assert asked(server).count(BAD_PIECE) in (2, 3)
        else:
            assert asked(server) == [(0, len(BODY)), *[(100_000, len(BODY))] * 2]


@BOTH
def test_H36_a_source_that_keeps_lying_is_given_up(tmp_path: Path, limits: Limits) -> None:
    with (
        FaultServer([lying(99)]) as server,
        Clock().network(limits=limits) as network,
        pytest.raises(DigestMismatch) as caught,
    ):
        fetch(wanted(server.url), tmp_path, network)
    assert caught.value.exit_code == 5
    assert "bytes: 100000 to 109999" in caught.value.facts
    assert not (tmp_path / wanted("").sha256).exists()


@BOTH
def test_H36_a_wrong_piece_is_downloaded_from_the_next_mirror(
    tmp_path: Path, limits: Limits
) -> None:
    with FaultServer([lying(99)]) as liar, FaultServer([GOOD]) as origin:
        with Clock().network(mirrors=(liar.url, ORIGIN), limits=limits) as network:
            assert fetch(wanted(origin.url), tmp_path, network).read_bytes() == BODY
        assert min(places_asked(origin.requests, len(BODY))) == 100_000


@pytest.mark.parametrize(
    "limits",
    [ONE, WIDE, dataclasses.replace(WIDE, connections=1)],
    ids=["one_connection", "several", "one_of_several"],
)
def test_C12_pieces_on_the_disk_are_verified_at_a_resume(tmp_path: Path, limits: Limits) -> None:
    with FaultServer([GOOD]) as server, Clock().network(limits=limits) as network:
        artifact = wanted(server.url)
        (tmp_path / f"{artifact.sha256}.part").write_bytes(BAD[:150_000])
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        ranges = asked(server)
        if limits is ONE:
            assert ranges == [(100_000, len(BODY))]
            return
        assert ranges.count(BAD_PIECE) == 1
        missing = {*range(*BAD_PIECE), *range(150_000, len(BODY))}
        assert places_asked(server.requests, len(BODY)) == missing
        if limits.connections == 1:
            assert sum(end - start for start, end in ranges) == len(missing)


@BOTH
@pytest.mark.parametrize(
    "again",
    [answer("200 OK", BODY), answer("200 OK", BODY[::-1]), answer("416 No"), good(BODY[::-1])],
    ids=["H15_ignored", "H15_ignored_and_lies", "H19_416", "H20_replaced"],
)
def test_verified_pieces_are_never_discarded(
    tmp_path: Path, limits: Limits, again: Behaviour
) -> None:
    """A reader may use them: no server can change those bytes later."""
    stream = VerifiedStream(len(BODY))
    cut = good(BODY, cut=105_000)
    servers = [cut, again] if limits is ONE else [good(BODY, cut=5_000), again]
    with FaultServer(servers) as server:
        mirrors = (server.url, ORIGIN)
        with FaultServer([GOOD]) as origin:
            artifact = wanted(origin.url)
            with Clock().network(mirrors=mirrors, limits=limits) as network:
                kept = Kept(stream)
                kept.start()
                download(artifact, tmp_path, network, Silent(), stream, limits.connections)
                kept.join(30)
    stream.close()
    assert kept.data == BODY


class Kept(threading.Thread):
    """A reader that takes verified bytes at once."""

    def __init__(self, stream: VerifiedStream) -> None:
        super().__init__()
        self._stream = stream
        self.data = b""

    def run(self) -> None:
        with self._stream.file() as file:
            while chunk := file.read(1000):
                self.data += chunk


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def held_back(gate: threading.Event, place: int) -> Behaviour:
    """Nothing from ``place`` on before the gate is opened."""

    def behave(exchange: Exchange) -> None:
        start, end = asked_range(exchange.request, len(BODY))
        fields: dict[str, object] = {"Content_Length": end - start, "Connection": "close"}
        ranged = "range" in exchange.request.headers
        if ranged:
            fields["Content_Range"] = f"bytes {start}-{end - 1}/{len(BODY)}"
        exchange.send(head("206 Partial Content" if ranged else "200 OK", **fields))
        exchange.send(BODY[start : max(start, min(end, place))])
        if end > place:
            while not (gate.wait(0.05) or exchange.server.closing.is_set()):
                pass
            exchange.send(BODY[max(start, place) : end])

    return behave


@BOTH
def test_verified_pieces_are_read_during_the_download(
    tmp_path: Path, limits: Limits, gate: threading.Event
) -> None:
    with (
        FaultServer([held_back(gate, 25_000)]) as server,
        Clock().network(limits=limits) as network,
        delivered([wanted(server.url)], tmp_path, network) as (stream,),
        stream.file() as file,
    ):
        assert file.read(20_000) == BODY[:20_000]
        assert stream.read_at(15_000, 10_000) == BODY[15_000:20_000]
        gate.set()
        assert file.read() == BODY[20_000:]
    assert stream.size() == len(BODY)


def test_without_pieces_nothing_is_read_before_the_whole_is_verified(tmp_path: Path) -> None:
    stream = VerifiedStream(len(BODY))
    kept = Kept(stream)
    seen = []

    def look(exchange: Exchange) -> None:
        good(BODY, cut=100_000)(exchange)
        seen.append(len(kept.data))
        exchange.send(BODY[100_000:])

    with FaultServer([look]) as server, Clock().network() as network:
        kept.start()
        artifact = artifact_at(f"{server.url}/x")
        download(artifact, tmp_path, network, Silent(), stream, 1)
        kept.join(30)
    stream.close()
    assert seen == [0]
    assert kept.data == BODY


def test_a_complete_partial_file_is_read_without_a_request(tmp_path: Path) -> None:
    artifact = wanted("http://127.0.0.1:1")
    (tmp_path / artifact.sha256).write_bytes(BODY)
    with (
        Clock().network() as network,
        delivered([artifact], tmp_path, network) as (stream,),
        stream.file() as file,
    ):
        assert file.seek(-10, os.SEEK_END) == len(BODY) - 10
        assert file.read() == BODY[-10:]
        file.seek(0)
        file.seek(5, os.SEEK_CUR)
        assert file.read(5) == BODY[5:10]


def test_an_unknown_size_is_awaited(tmp_path: Path) -> None:
    with (
        FaultServer([GOOD]) as server,
        Clock().network() as network,
        delivered([artifact_at(f"{server.url}/x", size=None)], tmp_path, network) as (stream,),
    ):
        assert stream.size() == len(BODY)


def test_a_failed_download_fails_the_readers_of_all(tmp_path: Path, gate: threading.Event) -> None:
    with (
        FaultServer([held_back(gate, 0)]) as slow,
        FaultServer([answer("404 Not Found")]) as empty,
        Clock().network() as network,
        pytest.raises(HttpStatusError),
        delivered(
            [wanted(slow.url), artifact_at(f"{empty.url}/y", BODY[::-1])], tmp_path, network
        ) as (first, _),
    ):
        first.read_at(0, 1)


def test_a_failure_of_the_reader_ends_the_downloads(tmp_path: Path, gate: threading.Event) -> None:
    with (
        FaultServer([held_back(gate, 20_000)]) as server,
        Clock().network() as network,
        pytest.raises(BodyError),
        delivered([wanted(server.url)], tmp_path, network) as (stream,),
    ):
        damaged_at(stream)
    with pytest.raises(Interrupted):
        stream.read_at(0, 1)


def damaged_at(stream: VerifiedStream) -> None:
    stream.read_at(0, 1)
    raise BodyError("the archive is damaged")


def test_right_pieces_with_a_wrong_whole_are_refused(tmp_path: Path) -> None:
    """A manifest whose digests contradict one another: the whole's counts, too."""
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = dataclasses.replace(wanted(server.url), sha256="ab" * 32)
        with (
            pytest.raises(DigestMismatch),
            delivered([artifact], tmp_path, network) as (stream,),
            stream.file() as file,
        ):
            file.read()


def update(prefix: PieceVerifier, body: bytes, step: int) -> None:
    for start in range(0, len(body), step):
        prefix.update(body[start : start + step])


@given(st.binary(max_size=900), st.integers(1, 70), st.integers(0, 999), st.integers(1, 200))
def test_verification_stops_at_the_first_wrong_piece(
    body: bytes, size: int, place: int, step: int
) -> None:
    prefix = PieceVerifier(artifact_at("http://x/x", body, pieces=pieces_of(body, size)))
    place = min(place, len(body))
    damaged = bytearray(body)
    if place < len(body):
        damaged[place] ^= 1
    end = place - place % size
    if place < len(body):
        with pytest.raises(WrongPiece) as caught:
            update(prefix, bytes(damaged), step)
        assert (caught.value.start, caught.value.end) == (end, min(end + size, len(body)))
        assert prefix.size == prefix.verified == end
    update(prefix, body[prefix.size :], step)
    assert prefix.matches()
    assert prefix.verified == len(body)


def test_a_file_is_measured_in_pieces() -> None:
    measured = Measured.of(io.BytesIO(b"x" * 10), 4)
    assert (measured.size, measured.sha256) == (10, hashlib.sha256(b"x" * 10).hexdigest())
    pieces = measured.pieces
    assert pieces.size == 4
    assert len(pieces.sha256) == 3
    assert pieces.sha256[0] == pieces.sha256[1] != pieces.sha256[2]
    assert Measured.of(io.BytesIO(b"")).pieces.sha256 == ()


@pytest.mark.skipif(sys.platform != "linux", reason="how the test looks")
def test_C05_a_failed_close_does_not_leave_readers_waiting(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(BODY)
    stream = VerifiedStream(len(BODY))
    stream.opened(path)
    numbers = (int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    (descriptor,) = (number for number in numbers if leads_to(number, path))
    os.close(descriptor)
    stream.close()
    stream.grow(1)
    with pytest.raises(Interrupted):
        stream.read_at(0, 1)


def leads_to(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/fd/{descriptor}").readlink() == path
    return False


def test_a_disk_that_fails_at_the_end_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is asked of the disk, which fails with EIO there as anywhere."""
    (tmp_path / "file").write_bytes(BODY)
    stream = VerifiedStream(None)
    stream.opened(tmp_path / "file")

    def fails(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fails)
        with pytest.raises(StoreError) as refused:
            stream.complete()
    assert "reading a download" in str(refused.value.facts)
    stream.close()


@BOTH
def test_S11_a_wrong_piece_names_the_encoding(tmp_path: Path, limits: Limits) -> None:
    """nginx behind a gateway that asks for gzip: the pieces of an archive are not as signed."""
    with (
        FaultServer([answer("200 OK", BAD, Content_Encoding="gzip")]) as server,
        Clock().network(limits=limits) as network,
        pytest.raises(DigestMismatch, match="a piece of a download") as caught,
    ):
        fetch(wanted(server.url), tmp_path, network)
    assert "it came encoded as 'gzip', which was not requested" in caught.value.facts
