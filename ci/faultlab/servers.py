"""Rows H: the whole program against servers that answer as no server should.

The behaviours are those of the tests. Each case runs with the limits that users have, so a server
that never answers takes minutes here.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support import downloads
from support.builds import Packed
from support.certificates import Authority
from support.http_faults import Behaviour, Exchange, FaultServer, answer, good, head

from ci.faultlab.bench import Bench, Home, side_by_side
from ci.faultlab.crowds import serving
from ci.faultlab.offers import offer
from ci.faultlab.verdict import Tally
from tsuku_llm.catalog.manifest import Measured
from tsuku_llm.ground.errors import DownloadError, TsukuError

_AT_ONCE = 8
"""Installs at the same time: most of them wait."""

_SLOW = ("H30_drip", "H31_", "H32_dripping")
_DEADLINE = 400.0
"""Seconds; the longest case gives up after four answers that took a minute each."""

_SECRET = "kept-for-me"  # noqa: S105  # no real secret
_NOBODY = "127.0.0.1:9"

_PIECE = 1 << 16
"""Bytes: the smallest pieces that a release file may have."""


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A server's behaviour, and how the install ends.

    ``requests`` is None for any number. ``left`` is what an earlier run left of the download.
    ``host`` replaces the server's address; a mirror then has to help in the second run.
    """

    code: int
    serves: list[Behaviour] = field(default_factory=list)
    requests: int | None = None
    sized: bool = True
    pieces: bool = False
    left: bytes = b""
    host: str = ""


def attack(bench: Bench, ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Show every case of these rows; with sampling, only those that are not slow."""
    tallies = {row: Tally("installs") for row in ids}
    packed = bench.shop.stand_in("from-faulty-servers", padding=190_000)
    cases = {
        name: case
        for name, case in _cases(packed.path.read_bytes()).items()
        if name[:3] in ids and not (one_in > 1 and name.startswith(_SLOW))
    }
    authority = Authority(bench.folder / "authority")
    trusted = bench.folder / "trusted.pem"
    trusted.write_bytes(bench.shop.nginx.authority.read_bytes() + authority.path.read_bytes())
    context = authority.issue().server_context()
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(FaultServer([*case.serves], context=context))
            for name, case in cases.items()
        }
        tags = offer(bench, {name: _artifact(packed, servers[name], cases[name]) for name in cases})
        attack = _Attack(bench, packed, cases, servers, tags, trusted, _customer(bench, tags))
        # The slow cases start first, so that they wait while the quick ones run.
        for name, wrong in side_by_side(attack, sorted(cases, key=_slow_first), _AT_ONCE):
            tallies[name[:3]].add(wrong, where=name)
    for name, wrong in _settings(bench):
        if name[:3] in ids:
            tallies[name[:3]].add(wrong, where=name)
    return {row: tally for row, tally in tallies.items() if tally.count}


def _slow_first(name: str) -> bool:
    return not name.startswith(_SLOW)


def _customer(bench: Bench, tags: Mapping[str, str]) -> Home:
    """Make a home with an installed version that knows of all the offers."""
    (base,) = bench.new_tags(1)
    bench.publish(base)
    home = bench.customer(f"knows-{len(tags)}-offers")
    home.must("install", "--release", base)
    return home


@dataclass(frozen=True)
class _Attack:
    """One install from one server, in a new home where the old version serves."""

    bench: Bench
    packed: Packed
    cases: Mapping[str, _Case]
    servers: Mapping[str, FaultServer]
    tags: Mapping[str, str]
    trusted: Path
    template: Home

    def __call__(self, name: str) -> list[str]:
        with self.bench.copy(self.template) as home:
            old = home.state()
            with serving(home) as answers:
                wrong = [*self._install(name, home, old)]
                return wrong + ([] if answers() else ["the old version does not serve any more"])

    def _install(self, name: str, home: Home, old: str | None) -> Iterator[str]:
        case, server, tag = self.cases[name], self.servers[name], self.tags[name]
        argv, env = ("install", "--release", tag), {"SSL_CERT_FILE": str(self.trusted)}
        if case.left:
            (home.store.partials / f"{self.packed.sha256}.part").write_bytes(case.left)
        began = time.monotonic()
        ended = home.run(*argv, **env)
        if time.monotonic() - began > _DEADLINE:
            yield f"took {time.monotonic() - began:.0f} s"
        yield from ended.wrong()
        if ended.code != case.code:
            yield f"ended with {ended.code}: {ended.stderr!r}"
        if case.requests not in (None, len(server.requests)):
            yield f"{len(server.requests)} requests"
        yield from home.wrong({tag if case.code == 0 else old})
        yield from home.runs()
        # Then the same command against an honest server has to succeed and leave no files behind.
        server.behaviours[:] = [good(self.packed.path.read_bytes())]
        if case.host:
            env["TSUKU_LLM_MIRROR"] = f"{self.bench.shop.nginx.url}/archives"
        again = home.run(*argv, **env)
        if again.code:
            yield f"then ended with {again.code}: {again.stderr!r}"
        yield from home.wrong({tag})
        yield from home.leftovers()


def _cases(body: bytes) -> dict[str, _Case]:
    """Return the behaviours of the tests, for a body that can be installed."""
    downloads.BODY = body  # before the import below, which builds the behaviours from it
    tests = importlib.import_module("fetch.test_http_faults")
    cases = {
        name: _Case(
            serves=case.serves,
            code=_code_of(case.error),
            requests=case.requests,
            sized=not case.without_size,
        )
        for name, case in tests.CASES.items()
    }
    lying = importlib.import_module("fetch.test_pieces").lying
    piece = (_PIECE, 2 * _PIECE)  # the range about which the server lies
    plain = answer("302 Found", Location="http://localhost:9/build.tar.gz")
    cases["H26_bad_port"] = replace(cases["H26_bad_port"], requests=1)  # http after https
    return cases | {
        "H21_longer": _Case(code=0, serves=[good(body)], requests=1, left=body + b"x"),
        "H21_other_content": _Case(code=0, serves=[good(body)], requests=1, left=body[::-1]),
        "H21_other_half": _Case(code=0, serves=[good(body)], requests=2, left=body[:9:-1]),
        "H25_to_http": _Case(code=4, serves=[plain], requests=1),
        "H30_drip": _Case(code=4, serves=[_drip(body)]),
        "H36_once": _Case(code=0, serves=[lying(0, piece)], requests=2, pieces=True),
        "H36_always": _Case(code=5, serves=[lying(99, piece)], requests=3, pieces=True),
        "H38_bad_bad_good": _Case(code=0, serves=[lying(1, piece)], requests=3, pieces=True),
        "H35_no_such_name": _Case(code=4, host="https://nowhere.invalid"),
        "H35_refused": _Case(code=4, host=f"https://{_NOBODY}"),
        "H35_no_route": _Case(code=4, host="https://[100::1]"),
    }


def _code_of(error: type[TsukuError] | None) -> int:
    """Return the exit code of a test's error; if a test allows several, that of a download."""
    if error is None:
        return 0
    return DownloadError.exit_code if error is TsukuError else error.exit_code


def _drip(body: bytes) -> Behaviour:
    """Send ten bytes per second."""

    def behave(exchange: Exchange) -> None:
        exchange.send(head("200 OK", Content_Length=len(body)))
        for start in range(0, len(body), 10):
            exchange.send(body[start : start + 10])
            if exchange.server.closing.wait(1.0):
                return

    return behave


def _artifact(packed: Packed, server: FaultServer, case: _Case) -> dict[str, Any]:
    """Return the signed entry: digest and size of the whole, unless the case is about others."""
    with packed.path.open("rb") as file:
        pieces = Measured.of(file, _PIECE).pieces if case.pieces else None
    offered = replace(packed, pieces=pieces)
    entry = offered.artifact(f"{case.host or server.url}/{packed.path.name}")
    return entry if case.sized else {key: entry[key] for key in entry if key != "size"}


def _settings(bench: Bench) -> Iterator[tuple[str, list[str]]]:
    """Yield H27 and H33 to H35: settings in the environment, and hosts that do not exist."""
    (tag,) = bench.new_tags(1)
    bench.publish(tag)
    template = bench.customer(f"settings-{tag}")
    for name, (env, code) in _environments(bench).items():
        with bench.copy(template) as home:
            ended = home.run("install", "--channel", "stable", **env)
            wrong = [*ended.wrong(), *home.wrong({None if code else tag})]
            if ended.code != code:
                wrong.append(f"ended with {ended.code}: {ended.stderr!r}")
            if _SECRET in ended.stdout + ended.stderr:
                wrong.append(f"a secret is shown: {ended.stderr!r}")
            if code:
                home.must("install")
                wrong += [*home.wrong({tag}), *home.runs(), *home.leftovers()]
            yield name, wrong


def _environments(bench: Bench) -> dict[str, tuple[dict[str, str], int]]:
    """Return settings of a network, and the exit code of an install with them."""
    port = bench.shop.nginx.url.rpartition(":")[2]
    mirror = f"https://me:{_SECRET}@localhost:{port}/nowhere?token={_SECRET}"
    empty = bench.folder / "empty.pem"
    empty.write_bytes(b"")
    everything = {"NO_PROXY": ""}
    return {
        "H27_secrets_of_a_mirror": ({"TSUKU_LLM_MIRROR": f"{mirror},origin"}, 0),
        "H27_secrets_of_a_proxy": (
            {**everything, "HTTPS_PROXY": f"http://me:{_SECRET}@{_NOBODY}"},
            4,
        ),
        "H33_nobody_listens": ({**everything, "HTTPS_PROXY": f"http://{_NOBODY}"}, 4),
        "H33_no_scheme": ({**everything, "ALL_PROXY": _NOBODY}, 4),
        "H33_socks": ({**everything, "ALL_PROXY": f"socks5://{_NOBODY}"}, 4),
        "H33_no_proxy": ({"NO_PROXY": "[::1],localhost", "HTTPS_PROXY": f"http://{_NOBODY}"}, 0),
        "H34_no_such_file": ({"SSL_CERT_FILE": str(bench.folder / "nothing.pem")}, 4),
        "H34_empty_file": ({"SSL_CERT_FILE": str(empty)}, 4),
        "H34_unknown_authority": ({"SSL_CERT_FILE": ""}, 4),
    }
