"""The address of a server: where it listens, and the URLs by which it is used. Pure.

The arguments and variables say where it is told to listen. Its log adds the port that it took.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.launch.plan.wishes import flagged, spelled, wishes_in

DEFAULT_PORT = 8080

_HOST, _PORT, _PREFIX = "--host", "--port", "--api-prefix"
_KEY_FILE, _CERT_FILE = "--ssl-key-file", "--ssl-cert-file"
_VALUED = {
    _HOST: "LLAMA_ARG_HOST",
    _PORT: "LLAMA_ARG_PORT",
    _PREFIX: "LLAMA_ARG_API_PREFIX",
    _KEY_FILE: "LLAMA_ARG_SSL_KEY_FILE",
    _CERT_FILE: "LLAMA_ARG_SSL_CERT_FILE",
}
"""The server's options about its address, each with its variable; the next word is the value."""

_PAGE, _NO_PAGE = ("--ui", "--webui"), ("--no-ui", "--no-webui")
"""The switches of the web page: ``ui`` is the name since spring 2026."""

# One field of a row of CSV: quoted, or plain.
_FIELD = re.compile(r'"((?:[^"]|"")*)"|[^,]+')

_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""A host's name or IPv4 address; also the zone of an IPv6 address."""

_PORT_NUMBER = re.compile(r"0*[0-9]{1,5}", re.ASCII)
LAST_PORT = 65535
_NOT_IN_PATHS = re.compile(rb"[^A-Za-z0-9/_.~-]")
"""The bytes that are escaped in a URL's path."""
_SHOWN = 60
"""Characters of a wrong value that an error repeats."""


class ServerAddress(NamedTuple):
    """The address of a server: a ``host`` ending in ``.sock`` is a Unix socket.

    ``port`` 0 is not known yet: the server chooses one. ``prefix`` comes before every path, as it
    stands in a URL. ``tls``: it is asked through TLS. ``others`` are further hosts at which it
    listens, with the same port.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    prefix: str = ""
    tls: bool = False
    others: tuple[str, ...] = ()

    @property
    def sockets(self) -> tuple[str, ...]:
        """The paths of its Unix sockets."""
        return tuple(host for host in (self.host, *self.others) if host.endswith(".sock"))

    @property
    def is_unix(self) -> bool:
        """True if the address is a socket in the file system."""
        return self.host.endswith(".sock")

    @property
    def reachable_host(self) -> str:
        """The host for a client on this machine: a server on every interface is on loopback."""
        return _LOOPBACK.get(_family_of_wildcard(self.host) or 0, self.host)

    def at(self, sockets: Sequence[tuple[str, int]]) -> ServerAddress:
        """Return the address of a server that listens at these sockets, whatever it was told.

        ``sockets`` are hosts with ports, and paths with 0. The address it was told counts among
        several; without any socket it is all that is known.
        """
        paths = [host for host, port in sockets if not port]
        ports = [port for _, port in sockets if port]
        if (self.is_unix and paths) or not ports:
            if not paths:
                return self
            # A path is told as it was bound; the plan of the start has made it absolute.
            first = self.host if self.host in paths else paths[0]
            rest = [host for host, _ in sockets if host != first]
            return self._replace(host=first, others=tuple(rest))
        port = self.port if self.port in ports else ports[0]
        hosts = [host for host, each in sockets if each == port]
        # A name is an address to the system; the user knows it by the name.
        if not (is_literal(self.host) or self.is_unix or any(map(is_everywhere, hosts))):
            hosts = [self.host, *hosts[1:]]
        hosts.sort(key=lambda host: (not is_everywhere(host), host != self.host))
        return self._replace(host=hosts[0], port=port, others=(*hosts[1:], *paths))


class Listeners(NamedTuple):
    """The sockets at which processes listen: those of a server, and all TCP ports of the system.

    ``own`` are hosts with their ports; the path of a Unix socket has port 0. ``ports`` tells
    whether a port that is not the server's is another program's.
    """

    own: tuple[tuple[str, int], ...]
    ports: frozenset[int]


class ServerUrls(NamedTuple):
    """The URLs of a server, each None where there is none.

    ``page_url`` is its web page, ``base_url`` the base URL of its OpenAI API. A server at a Unix
    socket has neither: ``curl`` is the command that asks it for its models.
    """

    page_url: str | None = None
    base_url: str | None = None
    curl: str | None = None


_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


def address_of(arguments: Sequence[str], env: Mapping[str, str]) -> ServerAddress:
    """Return the address for these arguments and variables; an argument overrides a variable."""

    def chosen(option: str) -> str | None:
        return _given(option, arguments, env)[1]

    # One that is open to other machines first: it decides what the user is told.
    first, *others = sorted(
        hosts_in(chosen(_HOST) or "") or ["127.0.0.1"], key=lambda each: not is_everywhere(each)
    )
    port = chosen(_PORT) or ""
    prefix = (chosen(_PREFIX) or "").encode("utf-8", "surrogateescape")
    return ServerAddress(
        host=first,
        port=int(port) if _PORT_NUMBER.fullmatch(port) else DEFAULT_PORT,
        prefix=_NOT_IN_PATHS.sub(lambda found: b"%%%02X" % ord(found[0]), prefix).decode("ascii"),
        # With only one of the two files the server does without TLS.
        tls=bool(chosen(_KEY_FILE) and chosen(_CERT_FILE)),
        others=tuple(others),
    )


def hosts_in(value: str) -> list[str]:
    """Return the hosts in a value of ``--host``: separated by commas, quoted as in CSV."""
    # As in ``common_params_parse`` of upstream's common/arg.cpp, since summer 2026.
    return [host for field in csv_fields(value) if (host := field.strip())]


def csv_fields(value: str) -> Iterator[str]:
    """Yield the fields of a line of CSV without their quotes, as llama.cpp reads it."""
    for field in _FIELD.finditer(value):
        yield field[0] if field[1] is None else field[1].replace('""', '"')


def csv_line(fields: Iterable[str]) -> str:
    """Write fields as a line of CSV; one is quoted only where it would be read differently."""
    return ",".join(
        '"' + field.replace('"', '""') + '"' if re.search('[,"]', field) else field
        for field in fields
    )


def require_address(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise UsageError for an address that is wrong, or that the server would misread.

    It takes a port modulo 65536, ``80a`` as 80, and the last one of two.
    """
    for word in arguments:
        option, equals, value = spelled(word).partition("=")
        if equals and option in _VALUED:
            raise UsageError(
                f"the server does not read {option}=VALUE", hint=f"write: {option} {value}"
            )
    ports = [value for option, value in _options(arguments) if option == _PORT]
    if len(ports) > 1:
        told = " and ".join(_shown(each) for each in ports[:2])
        raise UsageError(f"{_PORT} is given {len(ports)} times: {told}", hint="give it once")
    source, port = _given(_PORT, arguments, env)
    if port is not None and not (_PORT_NUMBER.fullmatch(port) and int(port) <= LAST_PORT):
        raise UsageError(
            f"{source} {_shown(port)} is not a port",
            hint=f"give a whole number from 0 to {LAST_PORT}; 0 lets the system choose a free one",
        )
    source, host = _given(_HOST, arguments, env)
    hosts = hosts_in(host or "")
    if host is not None and not (hosts and all(map(_is_host, hosts))):
        raise UsageError(
            f"{source} {_shown(host)} is not an address or a name of this machine",
            hint=f"give the address alone, such as 127.0.0.1 or ::1, and the port with {_PORT}",
        )
    if port is not None and int(port) == 0 and sum(not h.endswith(".sock") for h in hosts) > 1:
        raise UsageError(
            "the server cannot choose a port for several addresses",
            hint=f"give one {_HOST}, or a {_PORT}",
        )
    source, prefix = _given(_PREFIX, arguments, env)
    if prefix and not prefix.startswith("/"):
        raise UsageError(
            f"{source} {_shown(prefix)} does not begin with /", hint=f"write: /{prefix[:_SHOWN]}"
        )
    key, cert = _given(_KEY_FILE, arguments, env), _given(_CERT_FILE, arguments, env)
    for (source, one), (_, other), missing in ((key, cert, _CERT_FILE), (cert, key, _KEY_FILE)):
        if one and not other:
            # A real b10434 then listened without TLS and said nothing.
            raise UsageError(
                f"{source} without {missing}: the server would not encrypt anything",
                hint=f"give {missing} as well, or leave out both",
            )


def _is_host(host: str) -> bool:
    """Tell whether a value is a Unix socket, a name, or an address alone."""
    if host.endswith(".sock"):
        return True
    if ":" not in host:
        return _NAME.fullmatch(host) is not None

    address, percent, zone = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not percent or _NAME.fullmatch(zone) is not None


def wants_page(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Tell whether the server is told to have its web page; it has one unless told otherwise."""
    words = [name for name, _ in _options(arguments)]
    return all(
        flagged(words, env, variable, on=_PAGE, off=_NO_PAGE, default=True)
        for variable in ("LLAMA_ARG_UI", "LLAMA_ARG_WEBUI")
    )


def urls_of(address: ServerAddress, *, page: bool) -> ServerUrls:
    """Return the URLs of a server that listens; ``page`` tells whether it has a web page.

    Every URL is for a client on this machine.
    """
    scheme = "https" if address.tls else "http"
    if address.is_unix:
        url = shlex.quote(f"{scheme}://localhost{address.prefix}/v1/models")
        return ServerUrls(curl=f"curl --unix-socket {shlex.quote(address.host)} {url}")
    if not address.port:
        return ServerUrls()
    host = address.reachable_host
    # The zone of a link-local address is separated by "%25" in a URL (RFC 6874).
    host = f"[{host.replace('%', '%25')}]" if ":" in host else host
    root = f"{scheme}://{host}:{address.port}{address.prefix}"
    return ServerUrls(page_url=f"{root}/" if page else None, base_url=f"{root}/v1")


def told_addresses(
    urls: ServerUrls, host: str, *, has_key: bool | None
) -> tuple[tuple[str, str], ...]:
    """Return what each address of a server is for, and the address, for people.

    ``has_key`` tells whether its API wants a key, None if that is not known.
    """
    facts = {"web page": urls.page_url, "OpenAI API": urls.base_url or urls.curl}
    if is_everywhere(host):
        # In January 2026, 175,000 Ollama servers could be used by anybody (SentinelLABS, Censys).
        free = ", and wants no key: --api-key-file FILE sets one" if has_key is False else ""
        facts["open to"] = (
            f"other machines, too: the server listens on every interface ({host}){free}"
        )
    return tuple((what, text) for what, text in facts.items() if text)


def expected_addresses(
    arguments: Sequence[str], env: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the addresses of a server that is still to start; none if it chooses its port."""
    address = address_of(arguments, env)
    urls = urls_of(address, page=wants_page(arguments, env))
    has_key = wishes_in(arguments, env).wants_key
    return told_addresses(urls, address.host, has_key=has_key) if any(urls) else ()


def is_literal(host: str) -> bool:
    """Tell whether a host is an IP address, in one of the forms that the system reads."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return is_everywhere(host)
    return True


def is_everywhere(host: str) -> bool:
    """Tell whether a server with this host listens on every interface of the machine."""
    return _family_of_wildcard(host) is not None


def _family_of_wildcard(host: str) -> int | None:
    """Return 4 or 6 for an address that means every interface, else None.

    The system reads short forms, too: ``0``, ``0.0`` and ``0:0::0``.
    """
    if re.fullmatch(r"(0|0x0+|0+)(\.(0|0x0+|0+)){0,3}", host, re.IGNORECASE | re.ASCII):
        return 4
    return 6 if host.count(":") > 1 and not host.strip("0:") else None


def _given(option: str, arguments: Sequence[str], env: Mapping[str, str]) -> tuple[str, str | None]:
    """Return what counts, an option or its variable, and its value."""
    # As llama-server reads them: the last one counts.
    if values := [value for name, value in _options(arguments) if name == option]:
        return option, values[-1]
    return _VALUED[option], env.get(_VALUED[option])


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word with the value of an option of ours, "" for any other and for a last word."""
    words = iter(arguments)
    for word in words:
        name = spelled(word)
        yield name, next(words, "") if name in _VALUED else ""


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")
