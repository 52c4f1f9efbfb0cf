"""Where a server listens, its URLs, and the addresses that it would misread."""

import re
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.launch.plan.addresses import (
    ServerAddress,
    ServerUrls,
    address_of,
    expected_addresses,
    is_everywhere,
    require_address,
    urls_of,
    wants_page,
)

TLS = "--ssl-key-file k --ssl-cert-file c"


@pytest.mark.parametrize(
    ("words", "env", "address"),
    [
        ("", {}, ServerAddress("127.0.0.1", 8080)),
        ("--port 9 --host ::1", {}, ServerAddress("::1", 9)),
        ("--port 9 --port 10", {}, ServerAddress("127.0.0.1", 10)),
        ("", {"LLAMA_ARG_PORT": "9", "LLAMA_ARG_HOST": "h"}, ServerAddress("h", 9)),
        ("--port 10", {"LLAMA_ARG_PORT": "9"}, ServerAddress("127.0.0.1", 10)),
        ("--port x", {}, ServerAddress("127.0.0.1", 8080)),
        ("--port", {}, ServerAddress("127.0.0.1", 8080)),
        ("--port 00080", {}, ServerAddress("127.0.0.1", 80)),
        ("--host --port 9", {}, ServerAddress("--port", 8080)),
        ("--api-prefix /v", {}, ServerAddress(prefix="/v")),
        ("--api_prefix /v", {}, ServerAddress(prefix="/v")),
        ("", {"LLAMA_ARG_API_PREFIX": "/a b"}, ServerAddress(prefix="/a%20b")),
        (TLS, {}, ServerAddress(tls=True)),
        ("--ssl_cert_file c.pem", {}, ServerAddress()),
        ("", {"LLAMA_ARG_SSL_KEY_FILE": "k", "LLAMA_ARG_SSL_CERT_FILE": ""}, ServerAddress()),
        ("--ssl-key-file k", {"LLAMA_ARG_SSL_CERT_FILE": "c"}, ServerAddress(tls=True)),
        ("--host /run/a.sock", {}, ServerAddress("/run/a.sock", 8080)),
        ("--host a.sock,b.sock", {}, ServerAddress("a.sock", others=("b.sock",))),
        ("--host 127.0.0.1,::1 --port 9", {}, ServerAddress(port=9, others=("::1",))),
        ("--host ::1,a.sock", {}, ServerAddress("::1", others=("a.sock",))),
        ("--host ,::1,", {}, ServerAddress("::1")),
        ('--host "a,b.sock",c.sock', {}, ServerAddress("a,b.sock", others=("c.sock",))),
        ("", {"LLAMA_ARG_HOST": "::1, h"}, ServerAddress("::1", others=("h",))),
        # What is open to other machines is told.
        ("--host 127.0.0.1,0.0.0.0", {}, ServerAddress("0.0.0.0", others=("127.0.0.1",))),  # noqa: S104
    ],
)
def test_the_address_comes_from_arguments_and_variables(
    words: str, env: dict[str, str], address: ServerAddress
) -> None:
    assert address_of(words.split(), env) == address
    assert address.is_unix == address.host.endswith(".sock")


@pytest.mark.parametrize(
    ("address", "base"),
    [
        (ServerAddress(), "http://127.0.0.1:8080/v1"),
        (ServerAddress("localhost", 9), "http://localhost:9/v1"),
        (ServerAddress("::1", 9), "http://[::1]:9/v1"),
        (ServerAddress("fe80::1%eth0", 9), "http://[fe80::1%25eth0]:9/v1"),
        (ServerAddress("0.0.0.0", 9), "http://127.0.0.1:9/v1"),  # noqa: S104
        (ServerAddress("0", 9), "http://127.0.0.1:9/v1"),
        (ServerAddress("::", 9), "http://[::1]:9/v1"),
        (ServerAddress("0:0::0", 9), "http://[::1]:9/v1"),
        (ServerAddress(prefix="/a%20b"), "http://127.0.0.1:8080/a%20b/v1"),
        (ServerAddress(tls=True), "https://127.0.0.1:8080/v1"),
    ],
)
def test_the_urls_are_for_a_client_of_this_machine(address: ServerAddress, base: str) -> None:
    root = base.removesuffix("v1")
    assert urls_of(address, page=True) == ServerUrls(root, base)
    assert urls_of(address, page=False) == ServerUrls(None, base)


def test_a_unix_socket_has_no_url_but_a_way_for_curl() -> None:
    address = ServerAddress("/run/my models/a.sock", prefix="/v", tls=True)
    command = "curl --unix-socket '/run/my models/a.sock' https://localhost/v/v1/models"
    assert urls_of(address, page=True) == ServerUrls(curl=command)


def test_a_port_that_is_not_known_yet_gives_no_url() -> None:
    assert urls_of(ServerAddress(port=0), page=True) == ServerUrls()


@pytest.mark.parametrize(
    ("host", "everywhere"),
    [
        ("0.0.0.0", True),  # noqa: S104
        ("0", True),
        ("0x0.00", True),
        ("::", True),
        ("0::", True),
        ("0000:0::0", True),
        ("127.0.0.1", False),
        ("10.0.0.0", False),
        ("::1", False),
        ("00.example", False),
        ("/run/0.sock", False),
        ("0.0.0.0.0", False),
    ],
)
def test_a_server_on_every_interface_is_known_by_each_spelling(host: str, everywhere: bool) -> None:
    assert is_everywhere(host) is everywhere


@pytest.mark.parametrize(
    ("words", "env", "page"),
    [
        ("", {}, True),
        ("--no-webui", {}, False),
        ("--no_ui", {}, False),
        ("--no-ui --ui", {}, True),
        ("--host --no-ui", {}, True),
        ("", {"LLAMA_ARG_UI": "0"}, False),
        ("", {"LLAMA_ARG_UI": "1"}, True),
        ("", {"LLAMA_ARG_WEBUI": "off"}, False),
        ("", {"LLAMA_ARG_NO_UI": "0"}, False),
        ("", {"LLAMA_ARG_NO_WEBUI": ""}, False),
        ("--webui", {"LLAMA_ARG_NO_UI": "1"}, True),
    ],
)
def test_the_page_is_there_unless_it_is_turned_off(
    words: str, env: dict[str, str], page: bool
) -> None:
    assert wants_page(words.split(), env) is page


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["--port", "70000"], {}, "--port '70000' is not a port"),
        (["--port", "65536"], {}, "--port '65536' is not a port"),
        (["--port", "80a"], {}, "--port '80a' is not a port"),
        (["--port", "-1"], {}, "--port '-1' is not a port"),
        (["--port", " 80"], {}, "--port ' 80' is not a port"),
        (["--port", "٨٠"], {}, "--port '٨٠' is not a port"),
        (["--port", "9" * 5000], {}, f"--port '{'9' * 60}…' is not a port"),
        (["--port"], {}, "--port '' is not a port"),
        (["--port", "1", "-c", "9", "--port", "2"], {}, "--port is given 2 times: '1' and '2'"),
        (["--port=80"], {}, "the server does not read --port=VALUE"),
        (["--api_prefix=/v"], {}, "the server does not read --api-prefix=VALUE"),
        (["--ssl-cert-file", "c"], {}, "--ssl-cert-file without --ssl-key-file"),
        (["--ssl_key_file", "k"], {}, "--ssl-key-file without --ssl-cert-file"),
        ([], {"LLAMA_ARG_SSL_KEY_FILE": "k"}, "LLAMA_ARG_SSL_KEY_FILE without --ssl-cert-file"),
        ([], {"LLAMA_ARG_PORT": "80a"}, "LLAMA_ARG_PORT '80a' is not a port"),
        ([], {"LLAMA_ARG_PORT": ""}, "LLAMA_ARG_PORT '' is not a port"),
        (["--host", "[::1]"], {}, "--host '[::1]' is not an address or a name of this machine"),
        (["--host", "h:80"], {}, "--host 'h:80' is not an address or a name of this machine"),
        (["--host", ""], {}, "--host '' is not an address or a name of this machine"),
        ([], {"LLAMA_ARG_HOST": "http://h"}, "LLAMA_ARG_HOST 'http://h' is not an address"),
        (["--host", ","], {}, "--host ',' is not an address or a name of this machine"),
        (["--host", "::1,h:80"], {}, "--host '::1,h:80' is not an address"),
        (["--host", "::1,h", "--port", "0"], {}, "cannot choose a port for several addresses"),
        (["--api-prefix", "v"], {}, "--api-prefix 'v' does not begin with /"),
    ],
)
def test_an_address_that_the_server_would_misread_is_refused(
    words: list[str], env: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        require_address(words, env)
    assert refused.value.exit_code == 2
    assert refused.value.hint


@pytest.mark.parametrize("host", ["::1", "fe80::1%eth0", "my-pc.lan", "0", "a b/[x].sock"])
def test_an_address_that_the_server_reads_is_taken(host: str) -> None:
    require_address(["--host", host, "--port", "65535"], {"LLAMA_ARG_PORT": "99999"})
    require_address([], {"LLAMA_ARG_HOST": host, "LLAMA_ARG_PORT": "0", "LLAMA_ARG_API_PREFIX": ""})
    require_address(["--host", f"{host},b.sock"], {"LLAMA_ARG_PORT": "9"})


OPTIONS = "--port --host --api-prefix --api_prefix --ssl-key-file --ssl-cert-file --no-ui --webui"
VALUES = "0 80 65536 :: ::1 [::1] 0.0.0.0 /v v x.sock localhost"
VARIABLES = "PORT HOST API_PREFIX SSL_KEY_FILE SSL_CERT_FILE UI NO_WEBUI"
WORDS = st.one_of(st.sampled_from([*OPTIONS.split(), *VALUES.split()]), st.text(max_size=8))
ENVIRON = st.dictionaries(
    st.sampled_from([f"LLAMA_ARG_{name}" for name in VARIABLES.split()]), WORDS
)


@given(st.lists(WORDS, max_size=8), ENVIRON)
@example([], {"LLAMA_ARG_HOST": "#"})
@example([], {"LLAMA_ARG_HOST": ":::"})
@example([], {"LLAMA_ARG_HOST": "fe80::1%#"})
def test_any_words_give_an_address_and_true_urls_or_one_refusal(
    words: list[str], env: dict[str, str]
) -> None:
    address = address_of(words, env)
    page = wants_page(words, env)
    try:
        require_address(words, env)
    except UsageError:
        return
    # What is not refused can be reached at its URLs.
    assert 0 <= address.port <= 65535
    urls = urls_of(address, page=page)
    if address.is_unix:
        assert (urls.page_url, urls.base_url) == (None, None)
        assert urls.curl
        return
    assert urls.curl is None
    if not address.port:
        assert urls == ServerUrls()
        return
    assert urls.base_url
    parts = urlsplit(urls.base_url)
    assert parts.port == address.port
    assert parts.scheme == ("https" if address.tls else "http")
    assert parts.path.endswith("/v1")
    assert (urls.page_url is not None) is page
    assert parts.hostname
    assert not is_everywhere(parts.hostname)


@given(st.lists(st.sampled_from(["--port", "--host", "8", "h", "-c"]), max_size=7))
def test_the_last_value_counts_and_a_value_is_no_option(words: list[str]) -> None:
    """A second reading, word by word, as upstream's parser does it."""
    port, host, rest = "8080", "127.0.0.1", list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--port", "--host"):
            value = rest.pop(0) if rest else ""
            if word == "--port":
                port = value
            else:
                host = value
    expected = int(port) if port.isdecimal() else 8080
    assert address_of(words, {})[:2] == (host or "127.0.0.1", expected)


def test_the_addresses_of_a_server_that_is_still_to_start() -> None:
    assert expected_addresses((), {}) == (
        ("web page", "http://127.0.0.1:8080/"),
        ("OpenAI API", "http://127.0.0.1:8080/v1"),
    )
    words, others = expected_addresses(("--no-ui", "--host", "::"), {"LLAMA_ARG_PORT": "9"})
    assert words == ("OpenAI API", "http://[::1]:9/v1")
    assert others[0] == "open to"
    assert others[1].endswith("(::), and wants no key: --api-key-file FILE sets one")
    for words, env in (
        (("--api-key", "k"), {}),
        (("--api-key-file", "f"), {}),
        ((), {"LLAMA_API_KEY": "k"}),
    ):
        assert dict(expected_addresses(("--host", "::", *words), env))["open to"].endswith("(::)")
    assert expected_addresses(("--host", "::", "--port", "0"), {}) == ()


@pytest.mark.parametrize(
    ("words", "sockets", "address"),
    [
        # Upstream's default port may change (llama.cpp#26508), or come from its config.ini.
        ("", [("127.0.0.1", 9931)], ServerAddress(port=9931)),
        ("--port 9", [("127.0.0.1", 9)], ServerAddress(port=9)),
        ("--port 0", [("127.0.0.1", 4711)], ServerAddress(port=4711)),
        ("--port 9", [], ServerAddress(port=9)),
        # What is open to other machines comes first, whatever the arguments say.
        ("--port 9", [("0.0.0.0", 9)], ServerAddress("0.0.0.0", 9)),  # noqa: S104
        ("--host h --port 9", [("10.0.0.1", 9)], ServerAddress("h", 9)),
        ("--host h --port 9", [("0.0.0.0", 9)], ServerAddress("0.0.0.0", 9)),  # noqa: S104
        (
            "--host 127.0.0.1,::1 --port 9",  # llama.cpp#28690
            [("127.0.0.1", 9), ("::1", 9)],
            ServerAddress("127.0.0.1", 9, others=("::1",)),
        ),
        (
            "--host /a.sock,/b.sock",
            [("/a.sock", 0), ("/b.sock", 0)],
            ServerAddress("/a.sock", 8080, others=("/b.sock",)),
        ),
        ("", [("/a.sock", 0)], ServerAddress("/a.sock", 8080)),
        ("--host /a.sock", [("127.0.0.1", 9)], ServerAddress("127.0.0.1", 9)),
        # One of several is the one it was told to use.
        ("--port 9", [("127.0.0.1", 5), ("127.0.0.1", 9)], ServerAddress(port=9)),
    ],
)
def test_the_sockets_of_the_process_count_before_the_arguments(
    words: str, sockets: list[tuple[str, int]], address: ServerAddress
) -> None:
    assert address_of(words.split(), {}).at(sockets) == address
