"""Resuming, mirrors, progress and what is told, where everybody behaves."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.downloads import BODY, Clock, Seen, artifact_at
from support.http_faults import Exchange, FaultServer, answer, good, head, raw

from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch import Limits, fetch, get
from tsuku_llm.fetch.artifacts.partial import finish
from tsuku_llm.ground.errors import (
    BodyError,
    ConfigError,
    DigestMismatch,
    HostUnreachable,
    HttpStatusError,
    Interrupted,
    StoreError,
    TsukuError,
)

HALF = len(BODY) // 2
GOOD = good(BODY)
CUT = good(BODY, cut=HALF)
CLOSED = "http://127.0.0.1:1"
"""Nobody listens there."""


def stop(exchange: Exchange) -> None:
    """Break off after a half, and then refuse to go on."""
    if "range" in exchange.request.headers:
        exchange.send(head("403 Forbidden", Content_Length=0))
    else:
        CUT(exchange)


def test_one_get_request_for_each_artifact(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/build.tar.gz")
        first = fetch(artifact, tmp_path, network)
        second = fetch(artifact, tmp_path, network)
        assert first == second == tmp_path / artifact.sha256
        assert [request.line for request in server.requests] == ["GET /build.tar.gz HTTP/1.1"]
        assert server.requests[0].headers["accept-encoding"] == "identity"
        assert server.requests[0].headers["user-agent"].startswith("tsuku-llm/")
        assert "range" not in server.requests[0].headers


def test_L06_another_process_may_have_renamed_or_installed_a_download(tmp_path: Path) -> None:
    artifact = artifact_at("https://host.invalid/x")
    done = tmp_path / artifact.sha256
    assert finish(tmp_path, artifact) == done, "it is installed: our reader has it open"
    done.write_bytes(BODY)
    assert finish(tmp_path, artifact) == done
    done.write_bytes(BODY[:-1] + b"x")
    with pytest.raises(StoreError):
        finish(tmp_path, artifact)


def test_a_complete_file_that_was_changed_is_fetched_again(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/x")
        (tmp_path / artifact.sha256).write_bytes(BODY[:-1] + b"x")
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert len(server.requests) == 1


def test_a_second_run_resumes_the_download(tmp_path: Path) -> None:
    with FaultServer([stop, stop, GOOD]) as server:
        artifact = artifact_at(f"{server.url}/x")
        with Clock().network() as network, pytest.raises(HttpStatusError):
            fetch(artifact, tmp_path, network)
        part = tmp_path / f"{artifact.sha256}.part"
        assert part.stat().st_size == HALF
        seen = Seen()
        with Clock().network() as network:
            fetch(artifact, tmp_path, network, seen)
        assert server.requests[-1].headers["range"] == f"bytes={HALF}-"
        assert server.requests[-1].headers["if-range"].startswith('"')
    assert seen.calls[:2] == [("begin", ("x", len(BODY))), ("advance", HALF)]
    assert seen.calls[-1] == ("end", None)
    assert seen.received == len(BODY)
    assert [path.name for path in tmp_path.iterdir()] == [artifact.sha256]


@pytest.mark.parametrize(
    ("left", "requests"),
    [
        (BODY[:HALF], ["bytes=100000-"]),
        (BODY, []),
        (BODY + b"x", [None]),
        (BODY[::-1], [None]),
        (BODY[::-1][:HALF], ["bytes=100000-", None]),
        (b"", [None]),
        (b"\0" * HALF, ["bytes=100000-", None]),
    ],
    ids=[
        "C12_half", "C12_whole_not_renamed", "H21_longer", "H21_other_content", "C12_torn",
        "C12_empty", "C12_zeros",
    ],
)  # fmt: skip
def test_a_partial_file_of_an_earlier_run_is_resumed_or_replaced(
    tmp_path: Path, left: bytes, requests: list[str | None]
) -> None:
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/x")
        (tmp_path / f"{artifact.sha256}.part").write_bytes(left)
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert [request.headers.get("range") for request in server.requests] == requests


def test_C12_a_complete_partial_file_of_unknown_size_is_used(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/x", size=None)
        (tmp_path / f"{artifact.sha256}.part").write_bytes(BODY)
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{",
        b"[]",
        b'{"url": 1}',
        b"\xff" * 9000,
        b"[" * 4096,
        b'{"validator":"x"}',
        b'{"url": "URL", "validator": "a\\r\\nX: y"}',
        '{"url": "URL", "validator": "\u00e9"}'.encode(),
        b'{"url": "URL", "validator": ""}',
    ],
)
def test_C10_a_damaged_note_of_a_partial_file_is_ignored(tmp_path: Path, note: bytes) -> None:
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/x")
        (tmp_path / f"{artifact.sha256}.part").write_bytes(BODY[:HALF])
        (tmp_path / f"{artifact.sha256}.part.json").write_bytes(
            note.replace(b"URL", artifact.url.encode())
        )
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert "if-range" not in server.requests[0].headers
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("tag", "sent"), [('"strong"', '"strong"'), ('W/"weak"', None), ("", None)]
)
def test_H20_only_a_strong_etag_is_sent_in_if_range(
    tmp_path: Path, tag: str, sent: str | None
) -> None:
    servers = [good(BODY, cut=HALF, etag=tag), good(BODY, etag=tag)]
    with FaultServer(servers) as server, Clock().network() as network:
        fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
        assert server.requests[1].headers.get("if-range") == sent


def test_a_long_download_over_a_bad_link_succeeds(tmp_path: Path) -> None:
    """Attempts that bring something do not count: here each brings an eighth, eight times."""
    body = os.urandom(16 << 20)
    step = 2 << 20

    def a_bit(exchange: Exchange) -> None:
        asked = exchange.request.headers.get("range", "bytes=0-")
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        good(body, cut=start + step)(exchange)

    clock = Clock()
    with FaultServer([a_bit]) as server, clock.network() as network:
        done = fetch(artifact_at(f"{server.url}/x", body), tmp_path, network)
        assert len(server.requests) == 8
    assert hashlib.sha256(done.read_bytes()).hexdigest() == done.name


def test_progress_restarts_with_the_download(tmp_path: Path) -> None:
    seen = Seen()
    with FaultServer([CUT, answer("200 OK", BODY)]) as server, Clock().network() as network:
        fetch(artifact_at(f"{server.url}/x"), tmp_path, network, seen)
    assert [name for name, _ in seen.calls].count("begin") == 2
    assert seen.received == len(BODY)


def test_mirrors_are_tried_in_order_and_resumed(tmp_path: Path) -> None:
    with (
        FaultServer([answer("404 Not Found")]) as empty,
        FaultServer([stop]) as breaking,
        FaultServer([GOOD]) as whole,
        FaultServer([GOOD]) as origin,
    ):
        mirrors = (f"{empty.url}/llm/", f"{breaking.url}/a%20b", whole.url, ORIGIN)
        artifact = artifact_at(f"{origin.url}/v1/build%2B1.tar.gz")
        with Clock().network(mirrors=mirrors) as network:
            assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        asked = [request.path for server in (empty, breaking, whole) for request in server.requests]
        assert list(dict.fromkeys(asked)) == [
            f"/llm/sha256/{artifact.sha256}",
            "/llm/build%2B1.tar.gz",
            f"/a%20b/sha256/{artifact.sha256}",
            f"/sha256/{artifact.sha256}",
        ]
        assert whole.requests[0].headers["range"] == f"bytes={HALF}-"
        assert "if-range" not in whole.requests[0].headers
        assert not origin.requests


def test_wrong_bytes_of_a_mirror_are_refused(tmp_path: Path) -> None:
    with FaultServer([answer("200 OK", BODY[::-1])]) as liar, FaultServer([GOOD]) as origin:
        artifact = artifact_at(f"{origin.url}/x")
        with Clock().network(mirrors=(liar.url, ORIGIN)) as network:
            assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert len(liar.requests) == len(origin.requests) == 1


def test_wrong_bytes_of_a_mirror_cost_one_restart(tmp_path: Path) -> None:
    def lie(exchange: Exchange) -> None:
        if "range" in exchange.request.headers:
            exchange.send(head("403 Forbidden", Content_Length=0))
        else:
            good(BODY[::-1], cut=HALF)(exchange)

    with FaultServer([lie]) as liar, FaultServer([GOOD]) as origin:
        artifact = artifact_at(f"{origin.url}/x")
        with Clock().network(mirrors=(liar.url, ORIGIN)) as network:
            assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert [request.headers.get("range") for request in origin.requests] == [
            f"bytes={HALF}-",
            None,
        ]


def test_a_wrong_digest_is_reported_before_other_failures(tmp_path: Path) -> None:
    with FaultServer([answer("200 OK", BODY[::-1])]) as liar:
        artifact = artifact_at(f"{CLOSED}/x")
        with (
            Clock().network(mirrors=(liar.url, ORIGIN)) as network,
            pytest.raises(DigestMismatch) as caught,
        ):
            fetch(artifact, tmp_path, network)
    assert any("cannot be reached" in fact for fact in caught.value.facts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mirror", ["ftp://x/", "x.test/llm", "https://", "http://[::1", ""])
def test_a_mirror_that_is_not_a_url_is_refused(tmp_path: Path, mirror: str) -> None:
    with Clock().network(mirrors=(mirror,)) as network, pytest.raises(ConfigError) as caught:
        fetch(artifact_at(f"{CLOSED}/x"), tmp_path, network)
    assert "llm.mirror" in caught.value.facts[0]


def test_a_hint_does_not_ask_for_a_mirror_that_is_set(tmp_path: Path) -> None:
    hints = []
    for mirrors in ((), (f"{CLOSED}/mirror", ORIGIN)):
        with Clock().network(mirrors=mirrors) as network, pytest.raises(HostUnreachable) as caught:
            fetch(artifact_at(f"{CLOSED}/x"), tmp_path, network)
        hints.append(caught.value.hint)
    without, with_one = hints
    assert "tsuku-llm config set llm.mirror URL" in without
    assert "tsuku-llm config get llm.mirror" in with_one
    assert "set a mirror" not in with_one


def test_a_mirror_may_be_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mirror with spaces+ü"
    folder.mkdir()
    (folder / "build.tar.gz").write_bytes(BODY)
    artifact = artifact_at(f"{CLOSED}/v1/build.tar.gz")
    with Clock().network(mirrors=(folder.as_uri(),)) as network:
        assert fetch(artifact, tmp_path / "p", network).read_bytes() == BODY


def test_a_file_mirror_is_verified_and_need_not_be_complete(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/x").write_bytes(BODY[:-1] + b"x")
    (tmp_path / "empty").mkdir()
    mirrors = (
        (tmp_path / "m").as_uri(),
        (tmp_path / "empty").as_uri(),
        (tmp_path / "no").as_uri(),
        ORIGIN,
    )
    artifact = artifact_at(f"{CLOSED}/x")
    with Clock().network(mirrors=mirrors) as network, pytest.raises(DigestMismatch):
        fetch(artifact, tmp_path / "p", network)
    with Clock().network(mirrors=mirrors[1:]) as network, pytest.raises(HostUnreachable):
        fetch(artifact, tmp_path / "p", network)


def test_an_endless_file_of_a_file_mirror_is_cut_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/x").write_bytes(BODY + b"more")
    artifact = artifact_at(f"{CLOSED}/x")
    with (
        Clock().network(mirrors=((tmp_path / "m").as_uri(), ORIGIN)) as network,
        pytest.raises(HostUnreachable) as caught,
    ):
        fetch(artifact, tmp_path / "p", network)
    assert any("size is not the signed one" in fact for fact in caught.value.facts)


@pytest.mark.parametrize("odd", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_mirror_reads_regular_files_only(
    tmp_path: Path, odd: Callable[[Path], None]
) -> None:
    (tmp_path / "m").mkdir()
    odd(tmp_path / "m/x")
    mirrors = ((tmp_path / "m").as_uri(), ORIGIN)
    with FaultServer([good(BODY)]) as server, Clock().network(mirrors=mirrors) as network:
        done = fetch(artifact_at(f"{server.url}/x"), tmp_path / "p", network)
        assert done.read_bytes() == BODY
    artifact = artifact_at(f"{CLOSED}/x", b"other")
    with Clock().network(mirrors=mirrors) as network, pytest.raises(HostUnreachable) as caught:
        fetch(artifact, tmp_path / "p", network)
    assert any("is not a regular file" in fact for fact in caught.value.facts)


def test_metadata_of_a_file_repository_is_read(tmp_path: Path) -> None:
    (tmp_path / "1.root.json").write_bytes(b"{}")
    with Clock().network() as network:
        assert get((tmp_path / "1.root.json").as_uri(), 2, network) == b"{}"
        with pytest.raises(HttpStatusError) as caught:
            get((tmp_path / "2.root.json").as_uri(), 2, network)
        assert caught.value.status == 404
        with pytest.raises(BodyError):
            get((tmp_path / "1.root.json").as_uri(), 1, network)


@pytest.mark.parametrize("url", ["ftp://x/y", "gopher:x", "/etc/passwd", "http://", "http://[::1"])
def test_unsafe_urls_are_never_requested(url: str) -> None:
    with Clock().network() as network, pytest.raises(TsukuError) as caught:
        get(url, 10, network)
    assert caught.value.exit_code == 4


def test_a_refused_connection_is_an_error(tmp_path: Path) -> None:
    clock = Clock()
    with clock.network() as network, pytest.raises(HostUnreachable) as caught:
        fetch(artifact_at(f"{CLOSED}/x"), tmp_path, network)
    assert "127.0.0.1:1" in caught.value.message
    assert clock.slept == [0.5]
    assert not list(tmp_path.iterdir())


def test_closing_the_network_stops_other_threads(tmp_path: Path) -> None:
    sending = threading.Event()
    caught: list[BaseException] = []

    def slow(exchange: Exchange) -> None:
        exchange.send(head("200 OK", Content_Length=len(BODY)) + BODY[:HALF])
        sending.set()
        exchange.hang()

    with FaultServer([slow]) as server:
        artifact = artifact_at(f"{server.url}/x")
        with Clock().network(limits=Limits(silence=1000.0)) as network:

            def work() -> None:
                try:
                    fetch(artifact, tmp_path, network)
                except TsukuError as error:
                    caught.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            assert sending.wait(30)
        thread.join(30)
        assert len(server.requests) == 1
    assert [type(error) for error in caught] == [Interrupted]
    with pytest.raises(Interrupted):
        fetch(artifact, tmp_path, network)


def test_several_artifacts_are_downloaded_at_once(tmp_path: Path) -> None:
    bodies = [os.urandom(300_000 + index) for index in range(4)]

    def by_path(exchange: Exchange) -> None:
        good(bodies[int(exchange.request.path[1:])])(exchange)

    with FaultServer([by_path]) as server, Clock().network() as network:
        artifacts = [artifact_at(f"{server.url}/{n}", body) for n, body in enumerate(bodies)]
        threads = [
            threading.Thread(target=fetch, args=(artifact, tmp_path, network))
            for artifact in artifacts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(server.requests) == 4
    for artifact, body in zip(artifacts, bodies, strict=True):
        assert (tmp_path / artifact.sha256).read_bytes() == body


@pytest.mark.skipif(os.name != "posix", reason="POSIX")
@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_a_partial_file_that_is_not_a_regular_file_is_replaced(tmp_path: Path, kind: str) -> None:
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/x")
        part = tmp_path / f"{artifact.sha256}.part"
        outside = tmp_path / "outside"
        outside.write_bytes(b"untouched")
        if kind == "link":
            part.symlink_to(outside)
        elif kind == "folder":
            part.mkdir()
        else:
            os.mkfifo(part)
        with pytest.raises(StoreError) as caught:
            fetch(artifact, tmp_path, network)
    assert caught.value.exit_code == 6
    assert outside.read_bytes() == b"untouched"


def test_S16_a_hard_link_to_a_users_file_is_not_written_through(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.odt"
    thesis.write_bytes(b"mine")
    with FaultServer([GOOD]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/x")
        (tmp_path / f"{artifact.sha256}.part").hardlink_to(thesis)
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY
    assert thesis.read_bytes() == b"mine"


def test_a_folder_that_cannot_be_made_is_an_error() -> None:
    with Clock().network() as network, pytest.raises(StoreError):
        fetch(artifact_at(f"{CLOSED}/x"), Path(os.devnull) / "partials", network)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
def test_L08_a_child_process_inherits_no_partial_file(tmp_path: Path) -> None:
    inherited: list[str] = []

    def look(exchange: Exchange) -> None:
        command = ["ls", "-l", "/proc/self/fd/"]
        done = subprocess.run(command, capture_output=True, check=True, close_fds=False, text=True)
        inherited.append(done.stdout)
        GOOD(exchange)

    with FaultServer([look]) as server, Clock().network() as network:
        fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
    assert inherited
    assert ".part" not in inherited[0]


def test_importing_fetch_loads_no_http_library() -> None:
    script = (
        "import sys, tsuku_llm.fetch; "
        "print(sorted({'httpx', 'httpcore', 'truststore', 'pip', 'packageurl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


REDIRECT_QUERY = "token=SECRETQUERY"


def test_H27_credentials_stay_with_their_host(tmp_path: Path) -> None:
    with FaultServer([answer("403 Forbidden")]) as other:
        location = f"{other.url}/file?{REDIRECT_QUERY}"
        moved = [
            answer("302 Found", Location="/moved", Set_Cookie="session=SECRETCOOKIE"),
            answer("302 Found", Location=location.replace("127.0.0.1", "localhost")),
        ]
        with FaultServer(moved) as server:
            url = server.url.replace("//", "//user:SECRETPASSWORD@")
            with (
                Clock().network(mirrors=(url, ORIGIN)) as network,
                pytest.raises(HttpStatusError) as caught,
            ):
                fetch(artifact_at(f"{other.url}/x?{REDIRECT_QUERY}"), tmp_path, network)
            assert [("authorization" in request.headers) for request in server.requests] == [
                True,
                True,
            ]
        for request in other.requests:
            assert not {"authorization", "cookie"} & request.headers.keys()
    text = " ".join((caught.value.message, *caught.value.facts, caught.value.hint))
    assert "SECRET" not in text


def test_H27_the_query_of_a_mirror_is_sent_and_not_shown(tmp_path: Path) -> None:
    with FaultServer([raw()]) as server:
        mirror = f"{server.url}/llm?sig=SECRET"
        with Clock().network(mirrors=(mirror,)) as network, pytest.raises(TsukuError) as caught:
            fetch(artifact_at(f"{CLOSED}/x"), tmp_path, network)
        assert server.requests[0].path == f"/llm/sha256/{artifact_at('').sha256}?sig=SECRET"
    assert "SECRET" not in repr((caught.value.message, caught.value.facts))
