"""The documented configuration of nginx as a cache in front of a mirror, run as it is."""

import os
import random
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from support.certificates import Authority
from support.downloads import Clock, artifact_at
from support.nginx import Nginx, running, serving

from tsuku_llm.fetch import Limits, Network, fetch, get
from tsuku_llm.ground.errors import HttpStatusError

DOCUMENT = Path(__file__).parents[2] / "docs" / "mirrors.md"
SLICE = 4 << 20
BODY = random.Random(5).randbytes(5 * SLICE + 12345)  # noqa: S311 - any bytes
NAME = f"sha256/{sha256(BODY).hexdigest()}"
PARALLEL = Limits(parallel_threshold=1 << 20, segment=(1 << 20, 3 << 20))

_AROUND = """\
daemon off;
{user}pid {state}/nginx.pid;
error_log {state}/error.log info;
events {{ worker_connections 1000; }}
http {{
    access_log off;
    client_body_temp_path {state}/body;
    proxy_temp_path {state}/proxy;
    fastcgi_temp_path {state}/fastcgi;
    uwsgi_temp_path {state}/uwsgi;
    scgi_temp_path {state}/scgi;
{documented}
}}
"""


@dataclass(frozen=True)
class Cached:
    """A central mirror, and the ``url`` of the cache in front of it."""

    central: Nginx
    url: str
    authority: Path

    def network(self, limits: Limits) -> Network:
        environ = {"SSL_CERT_FILE": str(self.authority), "NO_PROXY": "*"}
        return Clock().network(environ, mirrors=(self.url,), limits=limits)


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Cached]:
    root = tmp_path / "www"
    for name, data in {NAME: BODY, "metadata/timestamp.json": b"{}"}.items():
        path = root / "llm" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    found = re.search(r"```nginx\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert found
    state = tmp_path / "cache"
    state.mkdir()
    authority = Authority(state / "ca")
    certificate = authority.issue("localhost")
    with (
        serving(root, tmp_path / "nginx") as central,
        socket.create_server(("127.0.0.1", 0), backlog=128) as sock,
    ):
        port = sock.getsockname()[1]
        text = found[1]
        for old, new in {
            "/var/cache/nginx/llm": str(state / "store"),
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "server_name mirror.example": "server_name localhost",
            "/etc/nginx/mirror.example.crt": str(certificate.chain),
            "/etc/nginx/mirror.example.key": str(certificate.key),
            "/etc/ssl/certs/ca-certificates.crt": str(central.authority),
            "https://central.example": central.url,
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        config = state / "nginx.conf"
        user = "user root;\n" if os.geteuid() == 0 else ""
        config.write_text(_AROUND.format(user=user, state=state, documented=text))
        with running(config, [sock]):
            yield Cached(central, f"https://localhost:{port}/llm/", authority.path)


@pytest.mark.parametrize("limits", [PARALLEL, Limits(connections=1)], ids=["ranges", "one_get"])
def test_each_byte_comes_from_the_central_mirror_once(
    cached: Cached, tmp_path: Path, limits: Limits
) -> None:
    artifact = artifact_at("https://127.0.0.1:1/x", BODY)
    for number in range(3):
        with cached.network(limits) as network:
            done = fetch(artifact, tmp_path / str(number), network)
        assert done.read_bytes() == BODY
    asked = [line for line in cached.central.requests() if line.path == f"/llm/{NAME}"]
    assert {line.status for line in asked} == {206}
    assert len({line.range for line in asked}) == len(asked) == -(-len(BODY) // SLICE)
    assert sum(line.sent for line in asked) == len(BODY)


def test_a_download_without_ranges_is_one_request(cached: Cached, tmp_path: Path) -> None:
    artifact = artifact_at("https://127.0.0.1:1/x", BODY)
    environ = {"SSL_CERT_FILE": str(cached.central.authority), "NO_PROXY": "*"}
    mirrors = (f"{cached.central.url}/llm/",)
    one = Limits(connections=1, parallel_threshold=1)
    with Clock().network(environ, mirrors=mirrors, limits=one) as network:
        fetch(artifact, tmp_path / "p", network)
    (line,) = cached.central.requests()
    assert (line.status, line.range) == (200, "")


def test_a_timestamp_is_asked_for_once_a_minute(cached: Cached) -> None:
    url = f"{cached.url}metadata/timestamp.json"
    with cached.network(Limits()) as network:
        assert get(url, 100, network) == b"{}"
        assert get(url, 100, network) == b"{}"
        asked = [line.path for line in cached.central.requests()]
        assert asked == ["/llm/metadata/timestamp.json"]


def test_a_root_that_is_not_there_yet_is_not_found(cached: Cached) -> None:
    with cached.network(Limits()) as network, pytest.raises(HttpStatusError) as caught:
        get(f"{cached.url}metadata/2.root.json", 100, network)
    assert caught.value.status == 404
