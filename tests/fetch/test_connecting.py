"""Connecting: names, addresses, proxies and handshakes that do not answer (RFC 8305)."""

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpcore
import pytest
from support.certificates import Authority
from support.deaf import deaf, mute
from support.downloads import BODY, QUICK, Clock, artifact_at
from support.http_faults import Exchange, FaultServer, answer, good, head, raw

from tsuku_llm.fetch import Limits, Network, Timing, fetch, get
from tsuku_llm.fetch.http.connections import ExchangeDeadline, Stream
from tsuku_llm.fetch.http.race import STAGGER, Schedule, SocketAddress, in_turns, race
from tsuku_llm.ground.errors import DownloadError, HostUnreachable, ProxyError

V4, V6 = socket.AF_INET, socket.AF_INET6
HOST = "releases.test"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the full backlog is Linux's")


def of(family: socket.AddressFamily, *names: str) -> list[SocketAddress]:
    return [SocketAddress(family, (name, 443)) for name in names]


def test_S05_families_alternate_and_each_keeps_its_order() -> None:
    found = [*of(V6, "a", "b", "c"), *of(V4, "d", "d", "e")]
    names = [address.place[0] for address in in_turns(found, None)]
    assert names == ["a", "d", "b", "e", "c"]
    names = [address.place[0] for address in in_turns(found, V4)]
    assert names == ["d", "a", "e", "b", "c"]
    assert in_turns([], V4) == []


def test_S05_an_address_is_tried_every_250_ms() -> None:
    schedule = Schedule(of(V4, "a", "b", "c"), 100.0)
    assert schedule.next(100.0) == SocketAddress(V4, ("a", 443))
    assert schedule.next(100.0) is None
    assert schedule.seconds(100.1) == pytest.approx(STAGGER - 0.1)
    assert schedule.next(100.25) == SocketAddress(V4, ("b", 443))
    schedule.failed(100.3)  # the next one need not wait
    assert schedule.seconds(100.3) == 0
    assert schedule.next(100.3) == SocketAddress(V4, ("c", 443))
    assert schedule.next(200.0) is None
    assert schedule.seconds(200.0) == float("inf")


def test_S05_sixteen_addresses_are_all_tried_within_four_seconds() -> None:
    schedule = Schedule(of(V4, *map(str, range(16))), 0.0)
    tried = [schedule.next(number * STAGGER) for number in range(16)]
    assert None not in tried
    assert 15 * STAGGER < 4


def test_S05_the_first_that_answers_wins_and_the_others_are_closed() -> None:
    clock = Clock(step=STAGGER)
    with contextlib.ExitStack() as stack:
        ports = [deaf(stack, "127.0.0.1") for _ in range(3)]
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        places = [("127.0.0.1", port) for port in ports] + [server.getsockname()]
        won = race([SocketAddress(V4, place) for place in places], clock.now, lambda: 0.5)
        stack.enter_context(won)
        assert won.getpeername() == server.getsockname()
    # An attempt that was left open is a ResourceWarning, which is an error here.


def test_S05_if_every_address_refuses_the_reason_is_told() -> None:
    closed = [SocketAddress(V4, ("127.0.0.1", 1)), SocketAddress(V6, ("::1", 1, 0, 0))]
    with pytest.raises(OSError, match=r".") as caught:
        race(closed, Clock().now, lambda: 0.5)
    assert caught.value.errno


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str, host: str = HOST) -> list[str]:
    """Let the system's resolver give these addresses for a host; gives who asked."""
    real, asked = socket.getaddrinfo, []

    def resolve(name: str, port: int, *args: object, **rest: object) -> list[object]:
        if name != host:
            return real(name, port, *args, **rest)
        asked.append(name)
        kind = socket.SOCK_STREAM
        return [(V4, kind, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


@pytest.fixture
def silent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URL whose host has so many addresses, none of which answers."""
    addresses = [f"127.0.3.{number + 1}" for number in range(request.param)]
    with contextlib.ExitStack() as stack:
        port = deaf(stack, addresses[0])
        for address in addresses[1:]:
            deaf(stack, address, port)
        resolving(monkeypatch, *addresses)
        yield f"http://{HOST}:{port}"


@pytest.mark.parametrize("silent", [1, 2, 8, 16], indirect=True)
def test_S05_dead_addresses_end_a_metadata_fetch_in_time(silent: str) -> None:
    """The clock moves on with every look at it: its time is what counts here."""
    clock = Clock(step=3.0)
    began = clock.now()
    with clock.network() as network, pytest.raises(HostUnreachable) as caught:
        get(f"{silent}/timestamp.json", 1000, network)
    assert clock.now() - began < 31 + clock.step
    assert "answer" in caught.value.facts[0]


@pytest.mark.parametrize("silent", [1, 2, 16], indirect=True)
def test_S05_a_host_that_never_answered_is_tried_once(silent: str, tmp_path: Path) -> None:
    """A mirror or the package index has its turn within ten seconds, then."""
    clock = Clock(step=3.0)
    with clock.network() as network, pytest.raises(HostUnreachable):
        fetch(artifact_at(f"{silent}/x"), tmp_path, network)
    assert clock.slept == []
    assert Limits().connect <= 10


def test_S05_a_host_that_answered_before_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is out of reach for some seconds in a long download does not end it."""
    clock = Clock(step=1.0)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(FaultServer([good(BODY, cut=len(BODY) // 2), good(BODY)]))
        deaf(stack, "127.0.3.1", server.port)
        answers = iter(["127.0.0.1", "127.0.3.1", "127.0.0.1"])

        def resolve(_name: str, port: int, *_args: object, **_rest: object) -> list[object]:
            return [(V4, socket.SOCK_STREAM, 6, "", (next(answers), port))]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        network = stack.enter_context(clock.network())
        url = f"http://{HOST}:{server.port}/x"
        assert fetch(artifact_at(url), tmp_path, network).read_bytes() == BODY


@pytest.mark.parametrize("silent", [3], indirect=True)
def test_S05_the_user_is_told_what_is_waited_for(silent: str, tmp_path: Path) -> None:
    clock, told = Clock(step=1.0), []
    timing = Timing(clock.now, clock.sleep, lambda: 1.0)
    with (
        Network({}, timing=timing, on_wait=told.append) as network,
        pytest.raises(HostUnreachable) as caught,
    ):
        fetch(artifact_at(f"{silent}/x"), tmp_path, network)
    assert told == [f"connecting to {HOST} (3 addresses, none answers)"]
    assert caught.value.facts == ("reason: none of its 3 addresses answers",)


def test_S05_a_silent_name_server_ends_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup cannot be ended: it is waited for up to the deadline, and not asked twice."""
    released, asked = threading.Event(), []

    def resolve(name: str, *_args: object, **_rest: object) -> list[object]:
        asked.append(name)
        released.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    clock, told = Clock(step=2.0), []
    timing = Timing(clock.now, clock.sleep, lambda: 1.0)
    began = clock.now()
    try:
        with Network({}, timing=timing, on_wait=told.append) as network:
            for url in (f"https://{HOST}/x", f"https://{HOST}/y"):
                with pytest.raises(HostUnreachable) as caught:
                    fetch(artifact_at(url), tmp_path, network)
    finally:
        released.set()
    assert clock.now() - began < 40
    assert "name server" in caught.value.facts[0]
    assert told == [f"looking up {HOST}"]
    assert asked == [HOST]


def test_S05_several_files_share_one_deadline() -> None:
    """What the first file used of it, the next one does not have."""
    clock = Clock()
    with FaultServer([answer("200 OK", b"{}")]) as server, clock.network() as network:
        deadline = clock.now() + 30
        assert get(f"{server.url}/1.json", 10, network, deadline) == b"{}"
        clock.sleep(31)
        with pytest.raises(HostUnreachable) as caught:
            get(f"{server.url}/2.json", 10, network, deadline)
        assert len(server.requests) == 1
    assert "in time" in caught.value.message


def never(exchange: Exchange) -> None:
    exchange.hang()


PROXIES = {
    "http": "HTTPS_PROXY=http://{}",
    "socks5": "ALL_PROXY=socks5://{}",
    "socks5h": "ALL_PROXY=socks5h://user:SECRET@{}",
}
SHORT = Limits(connect=0.5, silence=0.5, answer=2.0)


def through(setting: str, place: str) -> dict[str, str]:
    name, _, value = setting.partition("=")
    return {name: value.format(place)}


@pytest.mark.parametrize("kind", PROXIES)
def test_S12_a_silent_proxy_is_named(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    with contextlib.ExitStack() as stack:
        place = mute(stack)
        network = stack.enter_context(clock.network(through(PROXIES[kind], place), limits=SHORT))
        with pytest.raises(ProxyError) as caught:
            fetch(artifact_at(f"https://{HOST}/x"), tmp_path, network)
    text = repr((caught.value.message, caught.value.facts))
    assert place in text
    assert HOST in text
    assert "SECRET" not in text
    assert clock.slept == [], "it is not asked again: another way may be open"


@pytest.mark.parametrize("kind", ["socks5", "socks5h"])
def test_S12_a_socks_handshake_has_the_timeout_of_a_connection(kind: str, tmp_path: Path) -> None:
    """With the limits that users have, on a clock that runs ahead; httpcore gives it no end."""
    clock = Clock(step=1.0)
    began = clock.now()
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(clock.network(through(PROXIES[kind], mute(stack))))
        with pytest.raises(ProxyError):
            fetch(artifact_at(f"https://{HOST}/x"), tmp_path, network)
    assert clock.now() - began < 40


def test_S12_a_silent_proxy_for_plain_http_is_named(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        place = mute(stack)
        environ = {"HTTP_PROXY": place}
        network = stack.enter_context(Clock().network(environ, limits=QUICK))
        with pytest.raises(ProxyError, match=place):
            fetch(artifact_at(f"http://{HOST}/x"), tmp_path, network)


@pytest.mark.parametrize("serves", [raw(), raw(b"\x00garbage\r\n\r\n")], ids=["closes", "garbage"])
def test_S12_a_proxy_that_closes_the_connection_is_named(serves: Callable, tmp_path: Path) -> None:
    with (
        FaultServer([serves]) as proxy,
        Clock().network({"HTTPS_PROXY": proxy.url}) as network,
        pytest.raises(ProxyError, match=f"127.0.0.1:{proxy.port}"),
    ):
        fetch(artifact_at(f"https://{HOST}/x"), tmp_path, network)


def test_S12_a_silent_host_behind_a_good_proxy_is_blamed_on_the_host(tmp_path: Path) -> None:
    """The proxy let us through; what does not shake hands is behind it."""

    def opened(exchange: Exchange) -> None:
        exchange.send(head("200 Connection established"))
        exchange.hang()

    with (
        FaultServer([opened]) as proxy,
        Clock().network({"HTTPS_PROXY": proxy.url}, limits=SHORT) as network,
        pytest.raises(HostUnreachable, match=HOST) as caught,
    ):
        fetch(artifact_at(f"https://{HOST}/x"), tmp_path, network)
    assert any("through the proxy" in fact for fact in caught.value.facts)


def test_S12_a_proxy_that_answered_before_is_asked_again(tmp_path: Path) -> None:
    """One that falls silent for once in a long download does not end it."""
    half = len(BODY) // 2
    serves = [good(BODY, cut=half), never, good(BODY)]
    with FaultServer(serves) as proxy:
        environ = {"HTTP_PROXY": proxy.url}
        with Clock().network(environ, limits=QUICK) as network:
            fetch(artifact_at(f"http://{HOST}/x"), tmp_path, network)
        assert len(proxy.requests) == 3


def test_S05_a_handshake_counts_against_the_deadline() -> None:
    """A connection attempt may take longer than what is left."""
    limits = Limits(connect=300.0, metadata=0.5)
    with contextlib.ExitStack() as stack:
        place = mute(stack)
        network = stack.enter_context(Network({}, limits=limits))
        with pytest.raises(DownloadError) as caught:
            get(f"https://{place}/timestamp.json", 10, network)
    assert "TLS" in caught.value.facts[0]


def test_S31_no_answer_is_awaited_after_a_failed_write() -> None:
    """httpcore reads on after a write that failed, and would wait out the silence."""
    exchange = ExchangeDeadline(Timing(), Limits(), lambda _text: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.shutdown(socket.SHUT_RD)
        stream = Stream(ours, exchange, to_proxy=False)
        with pytest.raises(httpcore.WriteError):
            stream.write(b"GET / HTTP/1.1\r\n\r\n", 5.0)
        with pytest.raises(httpcore.ReadError):
            stream.read(1, 5.0)


@pytest.mark.parametrize("size", [-1, None], ids=["size", "no_size"])
def test_S31_a_connection_is_not_used_after_a_tls_error(
    size: int | None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A record that does not decrypt, behind good ones: never the end of the file.

    Without a length it would be taken for that, and what came for a file of other content.
    """
    authority = Authority(tmp_path_factory.mktemp("ca"))
    half = len(BODY) // 2

    def spoiled(exchange: Exchange) -> None:
        length = {} if size is None else {"Content_Length": len(BODY)}
        exchange.send(head("200 OK", ETag='"x"', **length) + BODY[:half])
        with socket.socket(fileno=exchange.connection.detach()) as plain:
            plain.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))
            plain.shutdown(socket.SHUT_WR)

    context = authority.issue().server_context()
    with (
        FaultServer([spoiled, good(BODY, etag='"x"')], context) as server,
        Clock().network({"SSL_CERT_FILE": str(authority.path)}) as network,
    ):
        url = server.url.replace("127.0.0.1", "localhost")
        artifact = artifact_at(f"{url}/x", size=size)
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY
        assert len(server.requests) == 2
