"""Several connections per artifact: what they share, and what one of them can do to the rest."""

import dataclasses
import hashlib
import json
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.downloads import BODY, QUICK, Clock, Seen, artifact_at
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

from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch import Limits, delivered, fetch
from tsuku_llm.fetch.artifacts.partial import opened_part
from tsuku_llm.ground.errors import (
    BodyError,
    DigestMismatch,
    HttpStatusError,
    Interrupted,
    TsukuError,
)

WIDE = Limits(parallel_threshold=1, segment=(10_000, 20_000), progress_bytes=5_000)
"""Several connections for two hundred kilobytes."""

GOOD = good(BODY)
OTHER = BODY[::-1]
FORBIDDEN = answer("403 Forbidden")


def ranges(server: FaultServer) -> list[str | None]:
    return [request.headers.get("range") for request in server.requests]


def at(place: int, other: Behaviour, *, usual: Behaviour = GOOD, times: int = 1) -> Behaviour:
    """Answer requests whose range has this byte differently, so many times."""
    lock = threading.Lock()
    left = [times]

    def behave(exchange: Exchange) -> None:
        start, end = asked_range(exchange.request, len(BODY))
        with lock:
            struck = "range" in exchange.request.headers and start <= place < end and left[0] > 0
            left[0] -= struck
        (other if struck else usual)(exchange)

    return behave


def counting(usual: Behaviour = GOOD, *, refuse_above: int = 99, status: str = "") -> Behaviour:
    """Count the connections at one time, in ``most``; refuse those above a number.

    A connection counts until its answer begins; the next one can open after that.
    """
    lock = threading.Lock()

    def behave(exchange: Exchange) -> None:
        with lock:
            behave.now += 1
            behave.most = max(behave.most, behave.now)
            refused = behave.now > refuse_above
        if not refused:
            exchange.server.closing.wait(0.01)
        with lock:
            behave.now -= 1
        if refused:
            exchange.send(head(status, Content_Length=0))
        else:
            usual(exchange)

    behave.now = behave.most = 0
    return behave


def claiming(**headers: object) -> Behaviour:
    """The right bytes under other headers."""

    def behave(exchange: Exchange) -> None:
        start, end = asked_range(exchange.request, len(BODY))
        fields = {
            "Content_Length": end - start,
            "Content_Range": f"bytes {start}-{end - 1}/{len(BODY)}",
        }
        exchange.send(head("206 Partial Content", **{**fields, **headers}) + BODY[start:end])

    return behave


def not_alone(exchange: Exchange) -> None:
    """The second answer begins when a third one is asked for."""
    server = exchange.server
    while len(server.requests) == 2 and not server.closing.wait(0.001):
        """Until there is another connection."""
    GOOD(exchange)


def test_several_connections_download_every_byte_once(tmp_path: Path) -> None:
    seen, clock = Seen(), Clock()
    with FaultServer([not_alone]) as server, clock.network(limits=WIDE) as network:
        artifact = artifact_at(f"{server.url}/x")
        assert fetch(artifact, tmp_path, network, seen).read_bytes() == BODY
        assert ranges(server)[0] == "bytes=0-19999"
        assert "if-range" not in server.requests[0].headers
        assert all("if-range" in request.headers for request in server.requests[1:])
    assert clock.slept == []
    assert seen.received == len(BODY)
    assert [name for name, _ in seen.calls].count("begin") == 1
    assert seen.calls[-1] == ("end", None)
    assert [path.name for path in tmp_path.iterdir()] == [artifact.sha256]


def test_a_small_artifact_takes_one_connection(tmp_path: Path) -> None:
    limits = dataclasses.replace(WIDE, parallel_threshold=len(BODY) + 1)
    with FaultServer([GOOD]) as server, Clock().network(limits=limits) as network:
        fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
        assert ranges(server) == [None]


def test_an_artifact_of_unknown_size_takes_one_connection(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as server, Clock().network(limits=WIDE) as network:
        fetch(artifact_at(f"{server.url}/x", size=None), tmp_path, network)
        assert ranges(server) == [None]


def test_a_server_that_ignores_ranges_is_asked_once(tmp_path: Path) -> None:
    with FaultServer([answer("200 OK", BODY)]) as server, Clock().network(limits=WIDE) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "odd",
    [
        answer("200 OK", BODY),
        answer("200 OK", OTHER),
        answer("416 Range Not Satisfiable"),
        claiming(Content_Range=f"bytes 7-9/{len(BODY)}"),
        claiming(Content_Range=""),
        claiming(Content_Range=f"bytes 100000-119999/{len(BODY) + 1}"),
        claiming(Content_Length=5),
        claiming(ETag='"another"'),
        answer("206 Partial Content", b"--x", Content_Type="multipart/byteranges; boundary=x"),
    ],
    ids=[
        "H15_ignored_once", "H20_replaced", "H19_not_satisfiable", "H17_wrong_start",
        "H17_no_content_range", "H17_wrong_total", "H02_short_length", "H20_etag_changed",
        "H18_multipart",
    ],
)  # fmt: skip
def test_a_wrong_range_leads_back_to_one_connection(tmp_path: Path, odd: Behaviour) -> None:
    serve = at(105_000, odd, times=99)
    with FaultServer([serve]) as server, Clock().network(limits=WIDE) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        # A range that was asked for before the other connections ended may be seen later.
        assert ranges(server).count(None) == 1


def test_H11_only_the_missing_bytes_of_a_dead_connection_are_downloaded_again(
    tmp_path: Path,
) -> None:
    def die(exchange: Exchange) -> None:
        start, end = asked_range(exchange.request, len(BODY))
        fields = {
            "Content_Length": end - start,
            "Content_Range": f"bytes {start}-{end - 1}/{len(BODY)}",
        }
        exchange.send(head("206 Partial Content", **fields) + BODY[start : start + 100])
        exchange.reset()

    with FaultServer([at(105_000, die)]) as server, Clock().network(limits=WIDE) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        assert None not in ranges(server)


def test_H01_a_download_succeeds_though_every_connection_breaks(tmp_path: Path) -> None:
    """Each brings six kilobytes, more than does not count as nothing."""

    def a_bit(exchange: Exchange) -> None:
        start, _ = asked_range(exchange.request, len(BODY))
        good(BODY, cut=start + 6_000)(exchange)

    with FaultServer([a_bit]) as server, Clock().network(limits=WIDE) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY


def test_H31_a_silent_connection_does_not_stop_the_others(tmp_path: Path) -> None:
    silent = at(105_000, lambda exchange: exchange.hang())
    limits = dataclasses.replace(WIDE, silence=QUICK.silence, answer=QUICK.answer)
    with FaultServer([silent]) as server, Clock().network(limits=limits) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        assert None not in ranges(server)


@pytest.mark.parametrize(
    "status", ["429 Too Many Requests", "503 Service Unavailable", "403 Forbidden"]
)
def test_H28_one_connection_is_enough_if_the_server_allows_no_more(
    tmp_path: Path, status: str
) -> None:
    serve = counting(refuse_above=1, status=status)
    clock = Clock()
    with FaultServer([serve]) as server, clock.network(limits=WIDE) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        assert None not in ranges(server)


def test_H28_a_server_that_refuses_all_connections_for_a_while_is_tried_later(
    tmp_path: Path,
) -> None:
    """As a limit per address does: it counts connections that were refused, for a while."""
    clock, usual = Clock(), good(BODY, etag='"1"')

    def serve(exchange: Exchange) -> None:
        server = exchange.server
        if len(server.requests) > 1:
            (usual if clock.slept else FORBIDDEN)(exchange)
            return
        start, end = asked_range(exchange.request, len(BODY))
        fields = {
            "Content_Range": f"bytes {start}-{end - 1}/{len(BODY)}",
            "ETag": '"1"',
            "Connection": "close",
        }
        exchange.send(head("206 Partial Content", Content_Length=end - start, **fields))
        while len(server.requests) == 1 and not server.closing.wait(0.001):
            """Until there is a second connection."""
        exchange.send(BODY[start:end])

    with FaultServer([serve]) as server, clock.network(limits=WIDE) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        assert None not in ranges(server)
    assert len(clock.slept) == 1


def test_H28_a_retry_after_of_the_server_is_respected(tmp_path: Path) -> None:
    busy = answer("429 Too Many Requests", Retry_After=7)
    clock = Clock()
    with FaultServer([busy, GOOD]) as server, clock.network(limits=WIDE) as network:
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
    assert clock.slept == [7.0]


@pytest.mark.parametrize(
    ("always", "error"),
    [
        (answer("404 Not Found"), HttpStatusError),
        (answer("503 Service Unavailable"), HttpStatusError),
        (answer("200 OK", b"<html><title>Log in"), BodyError),
        (answer("200 OK", BODY + b"x"), BodyError),
        (answer("200 OK", OTHER), DigestMismatch),
        (good(OTHER), DigestMismatch),
        (lambda exchange: exchange.reset(), TsukuError),
    ],
    ids=["H29_404", "H29_503", "H09_page", "H02_longer", "H08_other", "H08_ranges", "H11_reset"],
)
def test_errors_are_the_same_as_over_one_connection(
    tmp_path: Path, always: Behaviour, error: type[TsukuError]
) -> None:
    with FaultServer([always]) as server:
        caught = []
        for limits in (Limits(), WIDE):
            with Clock().network(limits=limits) as network, pytest.raises(error) as info:
                fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
            caught.append((info.value.message, info.value.exit_code))
    assert caught[0] == caught[1]
    assert not list(tmp_path.iterdir())


def test_H38_wrong_bytes_at_one_place_cost_one_more_try(tmp_path: Path) -> None:
    tag = f'"{hashlib.sha256(BODY).hexdigest()[:16]}"'
    with (
        FaultServer([at(105_000, good(OTHER, etag=tag), times=99)]) as server,
        Clock().network(limits=WIDE) as network,
    ):
        assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        assert ranges(server)[-1] is None
        assert ranges(server).count(None) == 1


def until(place: int) -> Behaviour:
    """Ranges up to a byte of the file; behind it, nothing any more."""

    def behave(exchange: Exchange) -> None:
        _, end = asked_range(exchange.request, len(BODY))
        (GOOD if end <= place else FORBIDDEN)(exchange)

    return behave


def test_the_next_mirror_is_asked_only_for_the_missing_bytes(tmp_path: Path) -> None:
    with FaultServer([until(120_000)]) as breaking, FaultServer([good(BODY, etag='"m"')]) as whole:
        artifact = artifact_at(f"{whole.url}/x")
        with Clock().network(mirrors=(breaking.url, ORIGIN), limits=WIDE) as network:
            assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert "if-range" not in whole.requests[0].headers
        assert whole.requests[0].headers["range"].startswith("bytes=")
        asked = places_asked(whole.requests, len(BODY))
    assert len(BODY) - 120_000 <= len(asked) <= len(BODY) - 80_000


def test_the_connections_are_shared_by_the_artifacts_of_an_install(tmp_path: Path) -> None:
    third = OTHER[: len(OTHER) // 3]
    large, small = counting(), counting(good(third))

    def serve(exchange: Exchange) -> None:
        (large if exchange.request.path == "/large" else small)(exchange)

    with FaultServer([serve]) as server, Clock().network(limits=WIDE) as network:
        both = [artifact_at(f"{server.url}/large"), artifact_at(f"{server.url}/small", third)]
        with delivered(both, tmp_path, network) as streams:
            contents = [stream.file().read() for stream in streams]
    assert contents == [BODY, third]
    assert 1 < large.most <= 6
    assert small.most <= 2


class PullThePlug(Seen):
    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def advance(self, size: int) -> None:
        super().advance(size)
        if self.received >= self._at:
            raise KeyboardInterrupt


def stuck(exchange: Exchange) -> None:
    """Ranges that end before three quarters; of others, nothing is heard."""
    _, end = asked_range(exchange.request, len(BODY))
    if end <= len(BODY) * 3 // 4:
        GOOD(exchange)
    else:
        exchange.hang()


def interrupted(folder: Path, server: FaultServer) -> str:
    """Break off a download when more than half is there; the name of its part."""
    server.behaviours[:] = [stuck]
    artifact = artifact_at(f"{server.url}/x")
    limits = dataclasses.replace(WIDE, silence=1000.0, answer=1000.0)
    with pytest.raises(KeyboardInterrupt), Clock().network(limits=limits) as network:
        fetch(artifact, folder, network, PullThePlug(len(BODY) // 2))
    server.behaviours[:] = [GOOD]
    server.requests.clear()
    return f"{artifact.sha256}.part"


def test_C12_a_resume_asks_only_for_the_gaps(tmp_path: Path) -> None:
    with FaultServer([]) as server:
        name = interrupted(tmp_path, server)
        note = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
        missing = sum(end - start for start, end in note["gaps"])
        assert 0 < missing <= len(BODY) // 2
        seen = Seen()
        with Clock().network(limits=WIDE) as network:
            done = fetch(artifact_at(f"{server.url}/x"), tmp_path, network, seen)
        assert done.read_bytes() == BODY
        for request in server.requests:
            first, last = asked_range(request, len(BODY))
            assert any(start <= first and last <= end for start, end in note["gaps"])
        assert {request.headers.get("if-range") for request in server.requests} == {
            note["validator"]
        }
    assert seen.calls[1] == ("advance", len(BODY) - missing)
    assert seen.received == len(BODY)


def test_C12_a_shorter_note_replaces_a_longer_one(tmp_path: Path) -> None:
    artifact = artifact_at("http://127.0.0.1:1/x")
    with opened_part(tmp_path, artifact) as part:
        part.write_at(BODY, 0)
        for gaps in ([(at, at + 1) for at in range(0, 2000, 2)], [(7, 8)]):
            part.save(gaps)
            assert part.noted_gaps() == gaps


@pytest.mark.parametrize(
    "gaps",
    [[], [[0, 10]], [[5, 5]], [[-5, 9**99]], "x", [[1]], [["a", "b"]], [[1.5, 2]], {"a": 1}, None],
)
def test_C10_wrong_gaps_cost_one_restart_at_most(tmp_path: Path, gaps: object) -> None:
    with FaultServer([]) as server:
        name = interrupted(tmp_path, server)
        (tmp_path / f"{name}.json").write_text(json.dumps({"gaps": gaps}), encoding="utf-8")
        with Clock().network(limits=WIDE) as network:
            done = fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
        assert done.read_bytes() == BODY
        assert [path.name for path in tmp_path.iterdir()] == [done.name]


def test_C12_one_connection_resumes_from_the_first_gap(
    tmp_path: Path,
) -> None:
    with FaultServer([]) as server:
        name = interrupted(tmp_path, server)
        first = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))["gaps"][0][0]
        with Clock().network() as network:
            done = fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
        assert done.read_bytes() == BODY
        assert ranges(server) == [f"bytes={first}-"]


def test_a_file_mirror_is_read_from_the_start(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "x").write_bytes(BODY)
    with FaultServer([until(120_000)]) as server:
        artifact = artifact_at("http://127.0.0.1:1/x")
        mirrors = (server.url, mirror.as_uri())
        with Clock().network(mirrors=mirrors, limits=WIDE) as network:
            assert fetch(artifact, tmp_path / "p", network).read_bytes() == BODY


def test_closing_the_network_stops_the_connections(tmp_path: Path) -> None:
    sending = threading.Event()
    caught: list[TsukuError] = []

    def slow(exchange: Exchange) -> None:
        good(BODY, cut=100)(exchange)
        sending.set()
        exchange.hang()

    with FaultServer([slow]) as server:
        limits = dataclasses.replace(WIDE, silence=1000.0)
        with Clock().network(limits=limits) as network:

            def work() -> None:
                try:
                    fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
                except TsukuError as error:
                    caught.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            assert sending.wait(30)
        thread.join(30)
    assert [type(error) for error in caught] == [Interrupted]
    assert not [thread for thread in threading.enumerate() if "connection" in thread.name]


def test_H30_connections_that_drip_are_broken_off(tmp_path: Path) -> None:
    def drip(exchange: Exchange) -> None:
        good(BODY, cut=asked_range(exchange.request, len(BODY))[0] + 1)(exchange)
        while not exchange.server.closing.wait(0.001):
            exchange.send(b"x")

    clock = Clock(step=1.0)
    limits = Limits(connect=1e9, parallel_threshold=1, segment=(10_000, 20_000))
    with (
        FaultServer([drip]) as server,
        clock.network(limits=limits) as network,
        pytest.raises(BodyError) as caught,
    ):
        fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
    assert "too slowly" in caught.value.message


def test_H30_several_connections_have_a_total_deadline(tmp_path: Path) -> None:
    clock = Clock(step=10.0)
    limits = dataclasses.replace(WIDE, total=300.0, slowest=0, connect=1e9, answer=1e9, silence=1e9)
    with (
        FaultServer([lambda exchange: exchange.hang()]) as server,
        clock.network(limits=limits) as network,
        pytest.raises(BodyError) as caught,
    ):
        fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
    assert "took too long" in caught.value.message


def test_a_redirect_is_followed_once(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as target:
        moved = answer("302 Found", Location=f"{target.url}/there")
        with FaultServer([moved]) as server, Clock().network(limits=WIDE) as network:
            fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
            assert len(server.requests) == 1


def test_H29_a_redirect_whose_target_expires_is_asked_for_again(tmp_path: Path) -> None:
    def expiring(exchange: Exchange) -> None:
        """The first address serves the first five requests."""
        expired = exchange.request.path == "/1" and len(exchange.server.requests) > 5
        (FORBIDDEN if expired else GOOD)(exchange)

    def moved(exchange: Exchange) -> None:
        location = f"{target.url}/{len(exchange.server.requests)}"
        exchange.send(head("302 Found", Location=location, Content_Length=0))

    target = FaultServer([expiring])
    with target, FaultServer([moved]) as server:
        with Clock().network(limits=WIDE) as network:
            assert fetch(artifact_at(f"{server.url}/x"), tmp_path, network).read_bytes() == BODY
        assert len(server.requests) > 1


DISK_FULL = """\
import dataclasses, resource, sys
from pathlib import Path
from support.downloads import Clock, artifact_at
from fetch.test_parallel import WIDE
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.fetch import fetch
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with Clock().network(limits=WIDE) as network:
        fetch(artifact_at(sys.argv[1]), Path(sys.argv[2]), network)
except StoreError as error:
    print(error.message)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="POSIX")
def test_C05_a_full_disk_ends_all_connections(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as server:
        child = subprocess.run(
            [sys.executable, "-c", DISK_FULL, f"{server.url}/x", str(tmp_path)],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            check=True,
            text=True,
        )
        # A limit on the size of files ends the writes as a full disk does.
        assert "no file of this process may become larger" in child.stdout
        with Clock().network(limits=WIDE) as network:
            done = fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
        assert done.read_bytes() == BODY
