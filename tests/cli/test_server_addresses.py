"""The addresses of servers as ``serve``, ``status`` and ``open`` tell them; each one is tried."""

import http.client
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support import python_server, schemas
from support.certificates import Authority
from support.program import COMMAND, Result, environment, run_program
from support.stored import install

from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a script")


class Home:
    """A user's home whose build is the server in Python; ``folder`` is where commands are run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        script = Path(python_server.__file__).read_bytes()
        files = {"llama-server": f"#!{sys.executable}\n".encode() + script}
        install(Store(path / "llm"), files=files, links={})

    def run(self, *arguments: str, **variables: str) -> Result:
        return run_program(*arguments, env=environment(self.path, **variables), cwd=self.path)

    def start(self, *arguments: str, **variables: str) -> Any:
        """Start it in the background; return what the start said, which ``status`` repeats."""
        done = self.run("serve", "--detach", "--json", "--", *arguments, **variables)
        assert done.code == 0, done.stderr
        (told,) = self.run("status", "--json").document["data"]["servers"]
        assert told == done.document["data"]
        return told

    def facts(self) -> dict[str, str]:
        """The facts of the one server, as ``status`` shows them to people."""
        lines = [line[2:] for line in self.run("status").stdout.splitlines() if line[:2] == "  "]
        return {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    home = Home(folder)
    yield home
    home.run("stop", "--all")


def fetched(url: str, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    """What a browser on this machine would get."""
    parts = urlsplit(url)
    assert parts.hostname
    if context:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname, parts.port, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
    connection.request("GET", parts.path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def require_both(server: dict[str, Any], context: ssl.SSLContext | None = None) -> None:
    """Fetch the page and ask the API for its models, at the URLs that were told."""
    assert fetched(server["page_url"], context) == (200, b"<title>page</title>")
    assert fetched(f"{server['base_url']}/models", context) == (200, b'{"data":[]}')
    assert server["curl"] is None


def require_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


def test_the_port_that_the_system_chose_is_told(home: Home) -> None:
    server = home.start("--port", "0")
    require_both(server)
    assert server["page_url"] == f"http://127.0.0.1:{server['port']}/"
    facts = home.facts()
    assert (facts["web page"], facts["OpenAI API"]) == (server["page_url"], server["base_url"])
    assert "open to" not in facts


def test_a_server_with_a_silent_log_is_found_at_the_port_that_the_system_chose(home: Home) -> None:
    require_both(home.start("--port", "0", "--log-disable"))


@pytest.mark.parametrize("host", ["0.0.0.0", "0"])  # noqa: S104 - what it is about
def test_a_server_on_every_interface_is_told_as_loopback_and_open(home: Home, host: str) -> None:
    server = home.start("--host", host, "--port", "0")
    require_both(server)
    assert urlsplit(server["page_url"]).hostname == "127.0.0.1"
    # As the server's own socket says: "0" is the same address.
    assert server["host"] == "0.0.0.0"  # noqa: S104 - as above
    assert home.facts()["open to"] == (
        "other machines, too: the server listens on every interface (0.0.0.0), and wants no key: "
        "--api-key-file FILE sets one"
    )


def test_ipv6_addresses_are_in_brackets(home: Home) -> None:
    require_ipv6()
    for host in ("::1", "::"):
        server = home.start("--host", host, "--port", "0")
        require_both(server)
        assert server["base_url"] == f"http://[::1]:{server['port']}/v1"
        home.run("stop")


def test_a_name_stays_a_name(home: Home) -> None:
    server = home.start(LLAMA_ARG_HOST="localhost", LLAMA_ARG_PORT="0")
    require_both(server)
    assert urlsplit(server["page_url"]).hostname == "localhost"


def test_a_prefix_is_part_of_the_urls(home: Home) -> None:
    server = home.start("--port", "0", "--api-prefix", "/my models")
    require_both(server)
    assert urlsplit(server["page_url"]).path == "/my%20models/"


def test_tls_makes_https_and_needs_both_files(home: Home, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate = authority.issue()
    trusting = ssl.create_default_context(cafile=authority.path)
    cert = ("--ssl-cert-file", str(certificate.chain))
    refused = home.run("serve", "-m", "m.gguf", "--", "--port", "0", *cert)
    assert refused.code == 2
    assert "the server would not encrypt anything" in refused.stderr
    key = {"LLAMA_ARG_SSL_KEY_FILE": str(certificate.key)}
    server = home.start("--host", "localhost", "--port", "0", *cert, **key)
    assert server["page_url"].startswith("https://localhost:")
    require_both(server, trusting)


def test_a_file_of_keys_without_a_key_is_refused(home: Home, tmp_path: Path) -> None:
    """A real b11434 served everybody on 0.0.0.0, with the warning "no API key is set"."""
    keys = tmp_path / "keys"
    keys.write_text("\n# of the team\n\r\n")
    refused = home.run("serve", "--", "--port", "0", "--api-key-file", str(keys))
    assert refused.code == 2
    assert f"{keys} has no key: the server would answer everybody" in refused.stderr
    keys.write_text("# of the team\na-key\n")
    assert home.start("--port", "0", "--api-key-file", str(keys))["report"]["has_key"] is True


def test_a_server_with_a_prefix_and_a_key_is_ready(home: Home) -> None:
    """A real b11434 served, answered 401 for ``/llm/health``, and was told to load for good."""
    words = ("--port", "0", "--api-prefix", "/llm", "--api-key", "a-key", "--log-disable")
    server = home.start(*words)
    assert server["base_url"].endswith("/llm/v1")
    assert fetched(server["base_url"] + "/models")[0] == 401


def test_a_unix_socket_is_told_as_a_curl_command(home: Home, short_folder: Path) -> None:
    path = short_folder / "my models.sock"
    server = home.start("--host", str(path), "--api-prefix", "/v")
    assert (server["page_url"], server["base_url"], server["port"]) == (None, None, None)
    assert server["curl"] == f"curl --unix-socket '{path}' http://localhost/v/v1/models"
    assert home.facts()["OpenAI API"] == server["curl"]
    assert "web page" not in home.facts()
    refused = home.run("open")
    assert (refused.code, f"it listens at {path}" in refused.stderr) == (7, True)


@pytest.mark.parametrize("words", [("--detach",), (), ("--exec",), ("--dry-run",)])
def test_a_socket_with_too_long_a_path_is_refused_before_the_start(
    home: Home, words: tuple[str, ...]
) -> None:
    refused = home.run("serve", *words, "--", "--host", f"{'long/' * 20}s.sock")
    assert refused.code == 2, refused.stderr
    assert "the path of the socket is too long" in refused.stderr
    assert "the system takes 107" in refused.stderr


@pytest.mark.parametrize(
    ("words", "variables"),
    [(("--no-ui",), {}), ((), {"LLAMA_ARG_UI": "0"})],
    ids=["argument", "variable"],
)
def test_a_page_that_is_off_has_no_url(
    home: Home, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    server = home.start("--port", "0", *words, **variables)
    assert server["page_url"] is None
    assert fetched(f"{server['base_url']}/models")[0] == 200
    assert "web page" not in home.facts()
    assert "has no web page" in home.run("open").stderr


def test_a_build_that_does_not_know_the_switch_keeps_its_page(home: Home) -> None:
    """This server reads LLAMA_ARG_UI only, as b10434 does; an older one reads the other name."""
    require_both(home.start("--port", "0", LLAMA_ARG_WEBUI="0"))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("serve", "--port 70000"),
        ("serve --detach", "--port 80a"),
        ("serve --exec", "--port 1 --port 2"),
        ("serve --dry-run", "--host [::1]"),
        ("service systemd", "--api-prefix v"),
    ],
)
def test_a_wrong_address_is_refused_in_every_way_to_serve(home: Home, way: str, words: str) -> None:
    done = home.run(*way.split(), "--", *words.split())
    assert done.code == 2
    assert done.stderr.startswith("error[bad-usage]: --")
    assert not (home.path / "llm" / "state" / "servers").exists()


def test_serve_in_the_foreground_tells_its_urls(home: Home) -> None:
    with subprocess.Popen(
        [*COMMAND, "serve", "--json", "--", "--port", "0"],
        env=environment(home.path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stderr
        told: dict[str, str] = {}
        while "OpenAI API" not in told:
            name, _, text = serving.stderr.readline().strip().partition(": ")
            told[name] = text
        assert fetched(told["web page"])[0] == 200
        serving.terminate()
        output = serving.communicate()[0]
    start = schemas.read(output)["data"]["start"]
    assert (start["page_url"], start["base_url"]) == (told["web page"], told["OpenAI API"])


class Browser:
    """A program that notes what it is given to open; ``BROWSER`` names it."""

    def __init__(self, folder: Path) -> None:
        self.opened = folder / "opened"
        program = folder / "browser"
        program.write_text(f'#!/bin/sh\necho "$1" >> {self.opened}\n')
        program.chmod(0o755)
        self.variables = {"BROWSER": f"{program} %s"}

    @property
    def urls(self) -> list[str]:
        return self.opened.read_text().splitlines() if self.opened.exists() else []


def test_the_page_is_opened_once_the_server_is_ready_and_later(home: Home, tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    words = ("serve", "--detach", "--open", "--json", "--", "--port", "0")
    done = home.run(*words, **browser.variables)
    url = done.document["data"]["page_url"]
    assert (done.code, browser.urls) == (0, [url])
    again = home.run("open", **browser.variables)
    assert (again.code, again.stdout) == (0, f"opening {url}\n")
    assert browser.urls == [url, url]
    assert home.run("open", "--json", **browser.variables).document["data"] == {
        "name": "default",
        "page_url": url,
    }


def test_serve_in_the_foreground_opens_the_page(home: Home, tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    with subprocess.Popen(
        [*COMMAND, "serve", "--open", "--", "--port", "0"],
        env=environment(home.path, **browser.variables, TERM="xterm"),
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stderr
        lines = iter(serving.stderr.readline, "")
        url = next(line for line in lines if line.startswith("web page: ")).split()[-1]
        # The browser is a process of its own: end the server only when it has the page.
        while not browser.urls:
            assert serving.poll() is None
        serving.terminate()
        serving.communicate()
    assert browser.urls == [url]


def test_without_a_display_the_server_goes_on_and_the_url_is_told(home: Home) -> None:
    # With TERM a browser for terminals may be there: it must not be opened in the background.
    variables = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"), "") | {"TERM": "xterm"}
    done = home.run("serve", "--detach", "--open", "--", "--port", "0", **variables)
    (server,) = home.run("status", "--json").document["data"]["servers"]
    assert (done.code, server["state"]) == (0, "running")
    assert "no browser can be opened: this session has no display" in done.stderr
    assert f"open {server['page_url']} yourself" in done.stderr
    refused = home.run("open", **variables)
    assert (refused.code, server["page_url"] in refused.stderr) == (7, True)


def test_a_server_that_is_gone_or_never_was_has_no_page(home: Home) -> None:
    home.start("--port", "0")
    home.run("stop")
    refused = home.run("open")
    assert (refused.code, "there is no server called default" in refused.stderr) == (7, True)


def test_exec_tells_where_the_server_will_be(home: Home) -> None:
    """Nothing can follow the server then, so its arguments are all that is known."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = ("--host", "0.0.0.0", "--port", port, "--api-prefix", "/v")  # noqa: S104 - the case
    with subprocess.Popen(
        [*COMMAND, "serve", "--exec", "--", *words],
        env=environment(home.path),
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stderr
        told: dict[str, str] = {}
        while "open to" not in told:
            name, _, text = (
                serving.stderr.readline().strip().partition(", once the server is ready: ")
            )
            told[name] = text
        assert told["web page"] == f"http://127.0.0.1:{port}/v/"
        assert told["OpenAI API"] == f"{told['web page']}v1"
        serving.terminate()


@pytest.mark.parametrize("flags", [(), ("--on-demand",)])
def test_a_unit_tells_where_its_server_will_be(home: Home, flags: tuple[str, ...]) -> None:
    line = ("service", "systemd", *flags, "--", "--port", "8123")
    told = ["web page: http://127.0.0.1:8123/", "OpenAI API: http://127.0.0.1:8123/v1"]
    printed = home.run(*line)
    assert printed.stderr.splitlines() == (told if flags else [])
    written = home.run(*line[:2], "--output", str(home.path / "units"), *line[2:])
    assert written.stdout.splitlines()[-3:-1] == told


@pytest.mark.parametrize("way", ["--exec", "--notify"])
def test_open_is_refused_where_no_user_waits(home: Home, way: str) -> None:
    done = home.run("serve", way, "--open")
    assert done.code == 2
    assert f"--open and {way} cannot be combined" in done.stderr
