"""Certificates, proxies, redirects between schemes and addresses that do not answer."""

import contextlib
import os
import select
import socket
import ssl
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.certificates import Authority
from support.deaf import deaf
from support.downloads import BODY, Clock, artifact_at
from support.http_faults import Behaviour, Exchange, FaultServer, answer, good, head
from support.socks import GREETED, socks_server
from support.tools import require_tool

from tsuku_llm.fetch import Limits, fetch, get
from tsuku_llm.fetch.http.tls import client_context
from tsuku_llm.ground.errors import (
    HostUnreachable,
    HttpStatusError,
    ProxyError,
    TlsError,
    TsukuError,
)

GOOD = good(BODY)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def at_localhost(server: FaultServer) -> str:
    return server.url.replace("127.0.0.1", "localhost")


def test_H34_a_custom_ca_is_trusted(authority: Authority, tmp_path: Path) -> None:
    context = authority.issue().server_context()
    with (
        FaultServer([GOOD], context) as server,
        Clock().network({"SSL_CERT_FILE": str(authority.path)}) as network,
    ):
        artifact = artifact_at(f"{at_localhost(server)}/x")
        assert fetch(artifact, tmp_path, network).read_bytes() == BODY


@pytest.mark.parametrize("form", ["{}", "/does/not/exist:{}", "{}:/does/not/exist"])
def test_H34_a_folder_of_certificates_is_trusted(
    authority: Authority, tmp_path: Path, form: str
) -> None:
    name = ssl_hash(authority.path)
    (tmp_path / f"{name}.0").write_bytes(authority.path.read_bytes())
    context = authority.issue().server_context()
    with (
        FaultServer([answer("200 OK", b"{}")], context) as server,
        Clock().network({"SSL_CERT_DIR": form.format(tmp_path)}) as network,
    ):
        assert get(f"{at_localhost(server)}/x", 10, network) == b"{}"


def ssl_hash(path: Path) -> str:
    command = [require_tool("openssl"), "x509", "-hash", "-noout", "-in", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("issue", "reason"),
    [
        ({"until": -DAY / 24}, "expired"),
        ({"since": DAY}, "not yet valid"),
        ({"host": "other.test"}, "mismatch"),
        ({"self_signed": True}, "self"),
    ],
    ids=["expired", "not_yet_valid", "wrong_host", "self_signed"],
)
def test_H34_a_certificate_is_refused_with_its_reason(
    authority: Authority, tmp_path: Path, issue: dict[str, object], reason: str
) -> None:
    context = authority.issue(**issue).server_context()
    with (
        FaultServer([GOOD], context) as server,
        Clock().network({"SSL_CERT_FILE": str(authority.path)}) as network,
    ):
        with pytest.raises(TlsError) as caught:
            fetch(artifact_at(f"{at_localhost(server)}/x"), tmp_path, network)
        assert not server.requests
    assert reason in caught.value.facts[0]
    assert "localhost" in caught.value.message
    assert caught.value.hint


def test_H34_an_unknown_ca_is_refused(authority: Authority, tmp_path: Path) -> None:
    context = authority.issue().server_context()
    with (
        FaultServer([GOOD], context) as server,
        Clock().network() as network,
        pytest.raises(TlsError) as caught,
    ):
        fetch(artifact_at(f"{at_localhost(server)}/x"), tmp_path, network)
    assert "SSL_CERT_FILE" in caught.value.hint


@pytest.mark.parametrize(
    "environ",
    [
        {"SSL_CERT_FILE": "/does/not/exist.pem"},
        {"SSL_CERT_DIR": "/does/not/exist"},
        {"SSL_CERT_DIR": "/does/not/exist:/nor/does/this"},
        {"SSL_CERT_FILE": os.devnull},
        {"SSL_CERT_FILE": __file__},
    ],
    ids=["missing_file", "missing_folder", "missing_folders", "empty", "no_certificate"],
)
def test_H34_a_missing_certificate_file_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    with Clock().network(environ) as network, pytest.raises(TlsError) as caught:
        fetch(artifact_at("https://127.0.0.1:1/x"), tmp_path, network)
    assert next(iter(environ)) in caught.value.message + caught.value.facts[0]


def test_plain_http_from_an_https_port_is_named(tmp_path: Path) -> None:
    with (
        FaultServer([answer("400 Bad Request")]) as server,
        Clock().network() as network,
        pytest.raises(TlsError),
    ):
        fetch(artifact_at(server.url.replace("http", "https") + "/x"), tmp_path, network)


def test_H25_a_redirect_from_https_to_http_is_refused(authority: Authority, tmp_path: Path) -> None:
    context = authority.issue().server_context()
    with FaultServer([GOOD]) as plain:
        moved = answer("301 Moved Permanently", Location=f"{plain.url}/x")
        with (
            FaultServer([moved], context) as server,
            Clock().network({"SSL_CERT_FILE": str(authority.path)}) as network,
            pytest.raises(HttpStatusError) as caught,
        ):
            fetch(artifact_at(f"{at_localhost(server)}/x"), tmp_path, network)
        assert not plain.requests
    assert caught.value.status == 301


def test_a_redirect_from_http_to_https_is_followed(authority: Authority, tmp_path: Path) -> None:
    context = authority.issue().server_context()
    with FaultServer([GOOD], context) as server:
        moved = answer("301 Moved Permanently", Location=f"{at_localhost(server)}/x")
        with (
            FaultServer([moved]) as plain,
            Clock().network({"SSL_CERT_FILE": str(authority.path)}) as network,
        ):
            assert fetch(artifact_at(f"{plain.url}/x"), tmp_path, network).read_bytes() == BODY


def as_proxy(exchange: Exchange) -> None:
    """A proxy that answers by itself."""
    GOOD(exchange)


@pytest.mark.parametrize("form", ["http://{}", "{}", "http://user:SECRET@{}"])
@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_H33_a_download_through_a_proxy(tmp_path: Path, form: str, name: str) -> None:
    with FaultServer([as_proxy]) as proxy:
        environ = {name: form.format(f"127.0.0.1:{proxy.port}")}
        with Clock().network(environ) as network:
            fetch(artifact_at("http://releases.test/x"), tmp_path, network)
        assert proxy.requests[0].line == "GET http://releases.test/x HTTP/1.1"
        assert ("proxy-authorization" in proxy.requests[0].headers) == ("SECRET" in form)


def as_tunnel(port: int) -> Behaviour:
    """A proxy that connects every request to one port of this machine."""

    def behave(exchange: Exchange) -> None:
        exchange.send(head("200 Connection established"))
        client = exchange.connection
        with socket.create_connection(("127.0.0.1", port)) as upstream:
            while not exchange.server.closing.is_set():
                ready, _, _ = select.select([client, upstream], [], [], 0.05)
                for source, target in ((client, upstream), (upstream, client)):
                    if source in ready:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        target.sendall(data)

    return behave


def test_H33_https_through_a_proxy(tmp_path: Path, authority: Authority) -> None:
    context = authority.issue().server_context()
    body = bytes(range(256)) * 4096
    with (
        FaultServer([good(body)], context) as server,
        FaultServer([as_tunnel(server.port)]) as proxy,
    ):
        environ = {"SSL_CERT_FILE": str(authority.path), "HTTPS_PROXY": at_localhost(proxy)}
        with Clock().network(environ) as network:
            path = fetch(artifact_at(f"{at_localhost(server)}/x", body), tmp_path, network)
        assert path.read_bytes() == body
        assert proxy.requests[0].line.startswith("CONNECT ")


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("[::1]", "http://localhost:{port}/x", False),
        ("[::1],localhost", "http://localhost:{port}/x", True),
        ("127.0.0.0/8", "http://127.0.0.1:{port}/x", True),
        ("localhost:1", "http://localhost:{port}/x", False),
        ("localhost:{port}", "http://localhost:{port}/x", True),
        ("*", "http://localhost:{port}/x", True),
        (" , ,::::,[,http://,.", "http://localhost:{port}/x", False),
        ("host", "http://localhost:{port}/x", False),
        ("LOCALHOST", "http://localhost:{port}/x", True),
        ("releases.test localhost\t::1", "http://localhost:{port}/x", True),
    ],
)
def test_H33_no_proxy_is_respected(tmp_path: Path, no_proxy: str, url: str, direct: bool) -> None:
    with FaultServer([GOOD]) as server, FaultServer([as_proxy]) as proxy:
        environ = {"HTTP_PROXY": proxy.url, "NO_PROXY": no_proxy.format(port=server.port)}
        with Clock().network(environ) as network:
            fetch(artifact_at(url.format(port=server.port)), tmp_path, network)
        assert (len(server.requests), len(proxy.requests)) == ((1, 0) if direct else (0, 1))


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("https_proxy", "ftp://127.0.0.1:1", "HTTPS_PROXY"),
        ("HTTPS_PROXY", "https://127.0.0.1:1", "http://host:port"),
        ("HTTPS_PROXY", "http://", "HTTPS_PROXY"),
        ("HTTPS_PROXY", "http://[::1", "HTTPS_PROXY"),
        ("HTTPS_PROXY", "http://x:99999", "HTTPS_PROXY"),
        ("HTTPS_PROXY", "http://user:SECRET@127.0.0.1:1", "127.0.0.1:1"),
    ],
    ids=["scheme", "tls", "no_host", "bracket", "port", "nobody_listens"],
)
def test_H33_an_unusable_proxy_is_named(
    tmp_path: Path, variable: str, value: str, says: str
) -> None:
    with Clock().network({variable: value}) as network, pytest.raises(ProxyError) as caught:
        fetch(artifact_at("https://releases.test/x"), tmp_path, network)
    text = repr((caught.value.message, caught.value.facts, caught.value.hint))
    assert says in text
    assert "SECRET" not in text


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_H33_a_download_through_a_socks_proxy(tmp_path: Path, scheme: str) -> None:
    with FaultServer([GOOD]) as server, socks_server() as proxy:
        url = at_localhost(server)
        with Clock().network({"ALL_PROXY": f"{scheme}://{proxy.address}"}) as network:
            assert fetch(artifact_at(f"{url}/x"), tmp_path, network).read_bytes() == BODY
        assert set(proxy.asked) == {("localhost", server.port)}, "it is the proxy that resolves"


@pytest.mark.parametrize(
    ("greeting", "reply", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", "Malformed"),
        (b"", b"", "Malformed"),
        (b"\x05", b"", "Malformed"),
        (b"\x00\x5b", b"", "Malformed"),
        (b"\x05\xff", b"", "NO ACCEPTABLE METHODS"),
        (GREETED, b"\x05\x05\x00\x01" + bytes(6), "Connection refused"),
        (GREETED, b"\x05\x00\x00\x09" + bytes(6), "Malformed"),
        (GREETED, b"\x05\x00\x00\x01", "Malformed"),
        (GREETED, b"", "Malformed"),
    ],
    ids=["http", "closes", "short", "socks4", "credentials", "refuses", "type", "cut", "no_reply"],
)
def test_H33_a_socks_proxy_that_refuses_or_is_not_one_is_named(
    tmp_path: Path, greeting: bytes, reply: bytes, says: str
) -> None:
    with socks_server(greeting, reply) as proxy:
        user = "" if greeting == GREETED else "user:SECRET@"
        environ = {"ALL_PROXY": f"socks5://{user}{proxy.address}"}
        with Clock().network(environ) as network, pytest.raises(ProxyError) as caught:
            fetch(artifact_at("https://releases.test/x"), tmp_path, network)
    assert proxy.address in caught.value.facts[0]
    assert says in caught.value.facts[1]
    assert "SECRET" not in repr(caught.value.facts)


def test_H33_a_missing_package_for_socks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    environ = {"ALL_PROXY": "socks5://127.0.0.1:1"}
    with Clock().network(environ) as network, pytest.raises(ProxyError) as caught:
        fetch(artifact_at("https://releases.test/x"), tmp_path, network)
    assert "tsuku-llm[socks]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("serves", "error"),
    [
        (answer("403 Forbidden"), ProxyError),
        (answer("407 Proxy Authentication Required"), ProxyError),
        (lambda exchange: exchange.reset(), TsukuError),
    ],
    ids=["refuses", "wants_credentials", "reset"],
)
def test_H33_a_proxy_that_refuses_is_named(
    tmp_path: Path, serves: object, error: type[TsukuError]
) -> None:
    with FaultServer([serves]) as proxy, Clock().network({"HTTPS_PROXY": proxy.url}) as network:
        with pytest.raises(error) as caught:
            fetch(artifact_at("https://releases.test/x"), tmp_path, network)
        assert proxy.requests[0].line == "CONNECT releases.test:443 HTTP/1.1"
    assert caught.value.exit_code == 4


def test_the_httpoxy_variable_is_ignored(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as server, FaultServer([as_proxy]) as proxy:
        environ = {"HTTP_PROXY": proxy.url, "REQUEST_METHOD": "GET"}
        with Clock().network(environ) as network:
            fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
        assert not proxy.requests


def test_H35_an_unknown_host_name_is_named(tmp_path: Path) -> None:
    with Clock().network() as network, pytest.raises(HostUnreachable) as caught:
        fetch(artifact_at("https://no-such-host.invalid/x"), tmp_path, network)
    assert "no-such-host.invalid" in caught.value.message


@pytest.mark.parametrize("name", ["x" * 70 + ".test", "ex ample.test", "..", "a..b"])
def test_H35_a_malformed_host_name_is_named(tmp_path: Path, name: str) -> None:
    with Clock().network() as network, pytest.raises(TsukuError) as caught:
        fetch(artifact_at(f"http://{name}/x"), tmp_path, network)
    assert caught.value.exit_code == 4


def test_H35_the_next_address_is_tried(tmp_path: Path) -> None:
    """``localhost`` is ::1 first on most systems; here only 127.0.0.1 listens, or the reverse."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    with FaultServer([GOOD]) as server, Clock().network() as network:
        fetch(artifact_at(f"{at_localhost(server)}/x"), tmp_path, network)


def test_H35_an_address_that_does_not_answer_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver gives an address that never answers first (a full backlog), then a good one."""
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *args: object, **rest: object) -> list[object]:
        if host != "releases.test":
            return real(host, port, *args, **rest)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.2", "127.0.0.1")
        ]

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(FaultServer([GOOD]))
        deaf(stack, "127.0.0.2", server.port)
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        network = stack.enter_context(
            Clock().network(limits=Limits(connect=3.0, answer=2.0, tries=1))
        )
        fetch(artifact_at(f"http://releases.test:{server.port}/x"), tmp_path, network)
        assert len(server.requests) == 1


def test_the_users_library_verifies_host_names(authority: Authority) -> None:
    """A guard: what ``client_context`` gives checks chains and names."""
    for environ in ({}, {"SSL_CERT_FILE": str(authority.path)}):
        context = client_context(environ)
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname
