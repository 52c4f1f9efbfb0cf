"""A host that plays upstream: its API, its releases over three months, and their archives.

The clock is the test's: a release is listed from its time on. Builds are numbered as upstream's
were between dated tags. Faults are what upstream really did, or could do: releases that are still
being uploaded, assets that never come, bytes that change, releases that disappear.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.certificates import Authority
from support.sigstore_instance import Build, SigstoreInstance, attesting_workflow
from support.upstream_builds import Name, compiled, day, names_at, packed

REPOSITORY = "/repos/ggml-org/llama.cpp"
_DOWNLOADS = "/ggml-org/llama.cpp/releases/download/"
_KNOWN = (
    (10320, day(8, 9)), (10356, day(8, 11)), (10621, day(8, 25)), (10767, day(9, 3)),
    (11146, day(9, 23)), (11429, day(10, 5)), (11541, day(10, 10)), (12300, day(11, 14)),
    (14104, day(11, 14) + timedelta(days=82)),
)  # fmt: skip
"""Dated tags; after the last one that was seen it goes on at the pace of October, 22 a day."""
STABLE = {
    "v0.3.0": (10621, day(8, 25)), "v0.4.0": (10870, day(9, 9)), "v0.5.0": (11146, day(9, 23)),
    "v0.6.0": (11429, day(10, 5)), "v0.7.0": (11740, day(10, 20)), "v0.8.0": (12016, day(11, 2)),
}  # fmt: skip
"""Stable versions: the build that their text names, and the day; 0.4.0 and 0.7.0 are guesses."""

_ASKED = (("per_page", "30"), ("page", "1"))


def time_of(number: int) -> datetime:
    """When a build was published."""
    for (low, since), (high, until) in itertools.pairwise(_KNOWN):
        if low <= number <= high:
            return since + (until - since) * ((number - low) / (high - low))
    raise AssertionError(f"b{number} is outside the simulated time")


@dataclass
class Upstream:
    """What upstream has published by ``now``, and what went wrong; all may be changed at will.

    One of ``every`` builds is there: all of upstream's 18 a day, or fewer. ``uploading`` says until
    when a release's last two assets are on their way, ``missing`` which assets never come (by a
    part of their name), ``replaced`` which bytes an asset has now, ``withdrawn`` which releases are
    gone. ``attested`` says for a release "no", "late" (six hours), "partly",
    "forged", "elsewhere" (by a workflow of another repository), "main" (on a branch of another
    name) or "builds" (without what is ``added``).
    ``unreachable`` are assets that answer 404, ``refused`` releases that are not in the list, with
    their answer: "403", "502" or "secondary". ``delay`` is the Retry-After of the next answer,
    ``instead`` the body of every one. ``named`` has another build for a stable
    version. ``spoiled`` are fields of an asset that are wrong. ``tokens`` are who asked. With
    ``secondary`` it says that requests came too fast, and no time. ``added`` are names of more
    assets, which are texts. ``extra`` are more releases, with their times. ``marked`` are
    other fields of a release, such as "prerelease".
    """

    now: datetime
    folder: Path
    every: int = 1
    limit: int = 60
    uploading: dict[str, datetime] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    replaced: dict[tuple[str, str], bytes] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    attested: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    left: int = 0
    delay: int = 0
    instead: bytes | None = None
    named: dict[str, str] = field(default_factory=dict)
    spoiled: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    secondary: bool = False
    added: list[str] = field(default_factory=list)
    extra: dict[str, datetime] = field(default_factory=dict)
    marked: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sigstore = SigstoreInstance()
        self.authority = Authority(self.folder / "authority")
        self.trusted_root = self.folder / "trusted_root.json"
        self.trusted_root.write_bytes(self.sigstore.trusted_root())
        self.left = self.limit
        self._bundles: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, dict[str, None]] = {}
        self._assets: dict[str, list[dict[str, Any]]] = {}

    # --- what it publishes ----------------------------------------------------------------

    def __enter__(self) -> Upstream:
        compiled()  # here, in the test's thread: it ends the test where there is no compiler
        upstream = self

        class Handler(_Handler):
            host = upstream

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = self.authority.issue().server_context()
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"https://localhost:{self._server.server_address[1]}"

    @property
    def api(self) -> str:
        return self.url + REPOSITORY

    @property
    def environ(self) -> dict[str, str]:
        """The environment of those who ask this host."""
        return {"SSL_CERT_FILE": str(self.authority.path)}

    def pass_time(self, **time: float) -> None:
        """Move the clock; the hour's requests are there again."""
        self.now += timedelta(**time)
        self.left = self.limit

    def tags(self) -> list[str]:
        """Every build that is published by now, newest first; those of stable versions always."""
        last = _KNOWN[-1][0]
        named = {number for number, when in STABLE.values() if when <= self.now}
        numbers = {*range(_KNOWN[0][0], last, self.every), *named}
        return [
            f"b{number}"
            for number in sorted(numbers, reverse=True)
            if time_of(number) <= self.now and f"b{number}" not in self.withdrawn
        ]

    def releases(self, most: int, page: int = 1) -> list[dict[str, Any]]:
        """A page of the releases, newest first, as the API lists them."""
        found = [(time_of(int(tag[1:])), tag) for tag in self.tags()[: most * page]]
        found += [(when, tag) for tag, when in self.extra.items()]
        found += [(when, name) for name, (_, when) in STABLE.items() if when <= self.now]
        asked = sorted(found, reverse=True)[most * (page - 1) : most * page]
        return [self.release(tag) for _, tag in asked if tag not in self.refused]

    def release(self, tag: str) -> dict[str, Any]:
        """One release, as the API describes it."""
        return {**self._release(tag), **self.marked.get(tag, {})}

    def _release(self, tag: str) -> dict[str, Any]:
        if tag in STABLE:
            number, when = STABLE[tag]
            build = self.named.get(tag, f"b{number}")
            # As scripts/make-release-desc.sh and make-release.yml of upstream write them.
            text = (
                "## Overview\n\nNew version has been released.\n\n## Assets\n\n"
                f"**Nightly build:** [{build}](https://example.org/releases/tag/{build})\n\n"
                "## Changelog since v0.2.0\n\n1a2b3c4 server : fix a crash since b10610\n"
            )
            naming = {
                "name": "nightly-tag.txt",
                "state": "uploaded",
                "size": len(build) + 1,
                "digest": f"sha256:{_sha256(f'{build}{chr(10)}'.encode())}",
                "browser_download_url": f"{self.url}/download/{tag}/nightly-tag.txt",
            }
            return _document(tag, when, [naming], text)
        if tag in self.extra:
            return _document(tag, self.extra[tag], [], "")
        return _document(tag, time_of(int(tag[1:])), self._listed(tag), "server: a change (#1)")

    def archive(self, tag: str, name: str) -> bytes | None:
        """The bytes of an asset."""
        if (tag, name) in self.replaced:
            return self.replaced[tag, name]
        if name in self.added:
            return name.encode()
        found = [each for each in self._names(tag) if self._name(each, tag) == name]
        return packed(found[0], tag) if found else None

    def attestation(self, sha256: str) -> list[dict[str, Any]]:
        """The bundles that name a file: each has all assets of one release."""
        found = (self._bundle(tag, sha256) for tag in [*self._owners.get(sha256, ())][-3:])
        return [bundle for bundle in found if bundle]

    def _bundle(self, tag: str, sha256: str) -> dict[str, Any] | None:
        state = self.attested.get(tag, "")
        late = self.now < time_of(int(tag[1:])) + timedelta(hours=6)
        if state == "no" or (state == "late" and late):
            return None
        listed = self._listed(tag)
        if any(each["state"] != "uploaded" for each in listed):
            return None
        digests = {each["name"]: each["digest"][7:] for each in listed}
        if state == "builds":
            digests = {name: each for name, each in digests.items() if name not in self.added}
        if state == "partly":
            digests.pop(next(iter(digests)))
        if sha256 not in digests.values():
            return None
        if tag not in self._bundles:
            instance = SigstoreInstance() if state == "forged" else self.sigstore
            commit = hashlib.sha1(tag.encode(), usedforsecurity=False).hexdigest()
            build = Build(commit=commit, workflow=attesting_workflow(tag))
            if state == "elsewhere":
                build = replace(build, repository="https://github.com/ggml-org/workflows")
            if state == "main":
                build = replace(build, ref="refs/heads/main")
            self._bundles[tag] = instance.attest(digests, build)
        return self._bundles[tag]

    def _names(self, tag: str) -> list[Name]:
        missing = self.missing.get(tag, ())
        names = names_at(time_of(int(tag[1:])))
        return [each for each in names if not any(part in each.pattern for part in missing)]

    def _name(self, name: Name, tag: str) -> str:
        """An asset's name, after what this test renames in all builds."""
        text = name.of(tag)
        for old, new in self.renamed.items():
            text = text.replace(old, new)
        return text

    def _listed(self, tag: str) -> list[dict[str, Any]]:
        known = self._assets.get(tag)
        if known is None:
            known = [self._asset(tag, self._name(each, tag)) for each in self._names(tag)]
            self._assets[tag] = known
        for name in {name for of, name in self.replaced if of == tag}:
            known = [self._asset(tag, name) if each["name"] == name else each for each in known]
        known = [*known, *(self._asset(tag, name) for name in self.added)]
        known = [{**each, **self.spoiled.get((tag, each["name"]), {})} for each in known]
        if self.uploading.get(tag, self.now) <= self.now:
            return known
        waiting = [{**each, "state": "starter", "digest": None} for each in known[-2:]]
        return [*known[:-2], *waiting]

    def _asset(self, tag: str, name: str) -> dict[str, Any]:
        data = self.archive(tag, name)
        assert data is not None
        digest = _sha256(data)
        self._owners.setdefault(digest, {})[tag] = None
        return {
            "name": name,
            "state": "uploaded",
            "size": len(data),
            "digest": f"sha256:{digest}",
            "browser_download_url": f"{self.url}{_DOWNLOADS}{tag}/{name}",
        }


@functools.lru_cache(maxsize=64)
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _document(
    tag: str, when: datetime, assets: Iterable[Mapping[str, Any]], body: str
) -> dict[str, Any]:
    stamp = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "tag_name": tag,
        "name": tag,
        "draft": False,
        "prerelease": False,
        "created_at": stamp,
        "published_at": stamp,
        "assets": list(assets),
        "body": body,
    }


class _Handler(BaseHTTPRequestHandler):
    """Answers as the hosting service does, with its headers and its limit of requests."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True  # else the second packet of an answer waits 40 ms
    host: Upstream

    def do_GET(self) -> None:
        path, host = urlsplit(self.path).path, self.host
        host.requests.append(self.path)
        if path.startswith(_DOWNLOADS):
            tag, _, name = path.removeprefix(_DOWNLOADS).partition("/")
            data = None if name in host.unreachable else host.archive(tag, name)
            self._send(200 if data else 404, data or b"")
            return
        if refusal := self._refusal(path):
            self._send(*refusal)
            return
        login = self.headers.get("Authorization", "").removeprefix("Basic ")
        host.tokens += [base64.b64decode(login).decode()] if login else []
        if host.instead is not None:
            self._send(200, host.instead)
            return
        found = self._found(path.removeprefix(REPOSITORY))
        if found is None:
            host.left -= 1
            self._send(404, b'{"message": "Not Found"}')
            return
        body = json.dumps(found).encode()
        etag = f'W/"{hashlib.sha256(body).hexdigest()}"'
        if self.headers.get("If-None-Match") == etag:
            self._send(304, b"", {"ETag": etag})  # costs nothing of the limit
            return
        host.left -= 1
        self._send(200, body, {"ETag": etag})

    def _refusal(self, path: str) -> tuple[int, bytes, dict[str, str]] | None:
        host = self.host
        if host.delay:
            seconds, host.delay = host.delay, 0
            return 429, b"{}", {"Retry-After": str(seconds)}
        refused = host.refused.get(path.rpartition("/")[2])
        if refused == "502":
            return 502, b"Bad Gateway", {}
        if refused == "403":
            return 403, b'{"message": "access blocked"}', {}
        if refused or host.secondary or host.left <= 0:
            kind = b"a secondary" if host.secondary or refused else b"API"
            return 403, b'{"message": "You have exceeded %b rate limit"}' % kind, {}
        return None

    def _found(self, path: str) -> Any:
        host = self.host
        if path == "/releases":
            asked = parse_qs(urlsplit(self.path).query)
            most, page = (asked.get(name, [each])[0] for name, each in _ASKED)
            return host.releases(int(most), int(page))
        tag = path.removeprefix("/releases/tags/")
        if tag != path:
            there = tag in host.tags() or tag in host.extra
            there = there or (tag in STABLE and STABLE[tag][1] <= host.now)
            return host.release(tag) if there else None
        digest = re.fullmatch(r"/attestations/sha256:([0-9a-f]{64})", path)
        bundles = host.attestation(digest[1]) if digest else []
        return {"attestations": [{"bundle": each} for each in bundles]} if bundles else None

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        reset = int((self.host.now + timedelta(hours=1)).timestamp())
        limits = {"X-RateLimit-Limit": self.host.limit, "X-RateLimit-Remaining": self.host.left}
        every = {**limits, "X-RateLimit-Reset": reset, **(headers or {})}
        for name, value in every.items():
            self.send_header(name, str(value))
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 304:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
