"""The answers of upstream's hosting service about releases; users' machines never ask it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tsuku_llm.fetch import Network
from tsuku_llm.fetch.http.http_get import answered, check_no_page, check_status, retry
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.upstream.facts import Asset, UpstreamRelease

VARIABLE = "GITHUB_TOKEN"
"""A token raises the limit of requests; the service is public without one, too."""

PER_PAGE = 30
"""Releases in one page of the list: more than a day of upstream's builds."""
_LARGEST = 8 << 20
"""Bytes of an answer at most; a release with forty assets has about 70 KB."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})T\d{2}:\d{2}:\d{2}Z")
_BUILD = re.compile(r"b[0-9]{4,9}")
_NAMED = re.compile(r"^\*\*Nightly build:\*\* \[([^\]\s]+)\]\(", re.MULTILINE)
"""The line of upstream's ``scripts/make-release-desc.sh``. The text goes on with a change log."""
_NAMING = "nightly-tag.txt"
"""The asset with the same tag and a line feed, as ``make-release.yml`` writes it."""


class RateLimited(PublishError):
    """The service refuses more requests for some time."""


class IncompleteRelease(PublishError):
    """A release that upstream is still uploading, or has not published yet."""


class NoSuchRelease(PublishError):
    """The service answers that it has none of this name: it was deleted, or the answer is wrong."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The newest releases as the service lists them; ``etag`` names this state of the list.

    ``releases`` is None if the state is the one that the caller has.
    """

    releases: tuple[Mapping[str, Any], ...] | None
    etag: str


class HostingService:
    """The API of one repository at ``base``, asked over ``network``.

    It stops before the limit of requests: after an answer that says "none left", it asks nothing.
    """

    def __init__(self, base: str, environ: Mapping[str, str], network: Network) -> None:
        parts = urlsplit(base.rstrip("/"))
        self._host = parts.netloc
        # As the URL's password, the token goes to this host alone, and no message shows it.
        token = environ.get(VARIABLE, "")
        login = f"x-access-token:{token}@" if token else ""
        self._base = urlunsplit(parts._replace(netloc=login + parts.netloc))
        self._network = network
        self._closed_until: datetime | None = None

    def listing(self, etag: str) -> Listing:
        """Return the newest releases, newest first. Raises ``PublishError``.

        With the ``etag`` of an earlier listing, an unchanged list costs nothing of the limit.
        """
        headers = {"If-None-Match": etag} if etag else {}
        answer = self._ask(f"/releases?per_page={PER_PAGE}", headers)
        if answer.status == HTTPStatus.NOT_MODIFIED:
            return Listing(None, etag)
        found = _releases(answer.found("the list of releases"))
        return Listing(found, answer.headers.get("etag", ""))

    def page(self, number: int) -> tuple[Mapping[str, Any], ...]:
        """Return a later page of the releases; page 1 is ``listing``. Raises ``PublishError``."""
        answer = self._ask(f"/releases?per_page={PER_PAGE}&page={number}")
        return _releases(answer.found("the list of releases"))

    def release(self, tag: str) -> bytes:
        """Return the service's answer for a tag. Raises ``PublishError``."""
        return self._ask(f"/releases/tags/{tag}").found(tag)

    def attestations(self, sha256: str) -> bytes | None:
        """Return the answer for the attestations of a file; None if there are none.

        Raises ``PublishError``.
        """
        answer = self._ask(f"/attestations/sha256:{sha256}")
        return None if answer.status == HTTPStatus.NOT_FOUND else answer.body

    def _ask(self, path: str, headers: Mapping[str, str] | None = None) -> "_Answer":
        if self._closed_until and clock.now() < self._closed_until:
            raise self._limited(self._closed_until)
        answer = self._once(path, headers or {})
        wait = answer.wait
        if wait is not None and wait <= self._network.limits.max_retry_after:
            self._network.pause(wait)
            answer = self._once(path, headers or {})
        if answer.limited:
            # Of the secondary limits some say no time: the service asks for a minute then.
            now = clock.now()
            self._closed_until = answer.until(now) or now + _MINUTE
            raise self._limited(self._closed_until)
        if answer.status in _REFUSED:
            raise PublishError(f"{self._host} answered {answer.status} to a request for {path}")
        if answer.remaining == 0:
            self._closed_until = answer.until(clock.now())
        return answer

    def _once(self, path: str, headers: Mapping[str, str]) -> "_Answer":
        network, url = self._network, self._base + path
        deadline = network.clock() + network.limits.metadata

        def once() -> _Answer:
            with answered(network, url, {"Accept": _JSON, **headers}, deadline) as response:
                check_status(response, url, _ALLOWED)
                body = b""
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > _LARGEST:
                        raise PublishError(f"an answer of {urlsplit(url).hostname} is too long")
                check_no_page(body[:4096], url)
                return _Answer(response.status_code, dict(response.headers), body)

        try:
            with network.used():
                return retry(once, network, deadline)
        except TsukuError as error:
            raise PublishError(in_one_line(error), hint=error.hint) from error

    def _limited(self, until: datetime) -> RateLimited:
        return RateLimited(
            f"{self._host} answers no more requests until {until:%Y-%m-%d %H:%M} UTC",
            hint=f"run it again after that; a token in {VARIABLE} allows more requests",
        )


_MINUTE = timedelta(minutes=1)
_JSON = "application/vnd.github+json"
_REFUSED = (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
_ALLOWED = (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED, HTTPStatus.NOT_FOUND, *_REFUSED)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def remaining(self) -> int | None:
        left = self.headers.get("x-ratelimit-remaining", "")
        return int(left) if left.isdecimal() else None

    @property
    def wait(self) -> float | None:
        """The seconds of a refusal's Retry-After; None if it does not say them."""
        after = self.headers.get("retry-after", "")
        return float(after) if self.status in _REFUSED and after.isdecimal() else None

    @property
    def limited(self) -> bool:
        """Whether a limit is the reason: of an hour, or of requests that come too fast."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS or self.wait is not None:
            return True
        if self.status != HTTPStatus.FORBIDDEN:
            return False
        return self.remaining == 0 or b"rate limit" in self.body.lower()

    def until(self, now: datetime) -> datetime | None:
        """Return when the service answers again, if it says so."""
        try:
            if self.wait is not None:
                return datetime.fromtimestamp(now.timestamp() + self.wait, timezone.utc)
            if self.remaining:
                return None  # a secondary limit: the reset is the other limit's
            return datetime.fromtimestamp(int(self.headers["x-ratelimit-reset"]), timezone.utc)
        except (KeyError, ValueError, OverflowError, OSError):
            return None

    def found(self, what: str) -> bytes:
        """Return the body. Raises ``NoSuchRelease`` if the service does not have it."""
        if self.status == HTTPStatus.NOT_FOUND:
            raise NoSuchRelease(f"{what}: the service does not have it")
        return self.body


# --- what an answer says ------------------------------------------------------------------------


def parse_release(data: bytes, tag: str) -> UpstreamRelease:
    """Read the answer for a tag. Raises ``PublishError``, ``IncompleteRelease`` if it may change.

    Every asset needs the digest that the service computed when it was uploaded. A size that the
    service does not give stays unknown.
    """
    raw = _release(data, tag)
    published = _DATE.fullmatch(str(raw.get("published_at")))
    if raw.get("draft") or not published:
        raise IncompleteRelease(f"{tag} is not published yet")
    assets = tuple(_asset(each, tag) for each in raw["assets"])
    return UpstreamRelease(tag=tag, version=None, published=published[1], assets=assets)


def parse_again(data: bytes, tag: str, recorded: Iterable[Asset]) -> tuple[UpstreamRelease, str]:
    """Read the answer for a recorded release; return it, and what of it could not be read.

    A file that cannot be read counts as recorded, so that one that is being uploaded hides no
    change of another. Raises ``PublishError``, ``NoSuchRelease`` if it is a draft again.
    """
    raw = _release(data, tag)
    if raw.get("draft"):
        raise NoSuchRelease(f"{tag} is a draft again")
    known = {each.name: each for each in recorded}
    assets, unread = list[Asset](), ""
    for each in raw["assets"]:
        try:
            assets.append(_asset(each, tag))
        except PublishError as error:
            unread = error.message
            name = each.get("name") if isinstance(each, dict) else None
            assets += [known[name]] if name in known else []
    published = str(raw.get("published_at"))[:10]
    return UpstreamRelease(tag, None, published, tuple(assets)), unread


def _releases(data: bytes) -> tuple[Mapping[str, Any], ...]:
    raw = _json(data, "the list of releases")
    if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
        raise PublishError("the service's answer is no list of releases")
    return tuple(raw)


def named_tag(data: bytes, version: str) -> str:
    """Return the build that upstream made of a stable version's commit.

    Upstream names it in the text, and in a file, whose digest must be that of the tag. Raises
    ``PublishError``; also for a build of a release branch ("release-0.9-b12640-1a2b3c4"), which is
    another one than the main branch's of that number, and for a pre-release.
    """
    raw = _release(data, version)
    if raw.get("prerelease"):
        raise PublishError(f"{version} is marked as a pre-release")
    tags: set[str] = set(_NAMED.findall(str(raw.get("body"))))
    if len(tags) != 1:
        found = ", ".join(sorted(tags)) or "no build"
        raise PublishError(f"{version}: its text names {found}, and one build is expected")
    tag = tags.pop()
    if not _BUILD.fullmatch(tag):
        raise PublishError(f"{version} is {tag}, which is no build of the main branch")
    naming = [
        _asset(each, version)
        for each in raw["assets"]
        if isinstance(each, dict) and each.get("name") == _NAMING
    ]
    if any(each.sha256 != sha256(f"{tag}\n".encode()).hexdigest() for each in naming):
        raise PublishError(f"{version}: its text names {tag}, and its {_NAMING} another build")
    return tag


def _release(data: bytes, tag: str) -> Mapping[str, Any]:
    raw = _json(data, tag)
    if not isinstance(raw, dict) or not isinstance(raw.get("assets"), list):
        raise PublishError(f"{tag}: the service's answer is no release")
    if raw.get("tag_name") != tag:
        raise PublishError(f"{tag} was asked for, and the answer is for {raw.get('tag_name')}")
    return raw


def _json(data: bytes, what: str) -> Any:
    try:
        return parse_json(data)
    except (ValueError, RecursionError) as error:
        raise PublishError(f"{what}: the service's answer is no JSON: {error}") from error


def _asset(raw: Any, tag: str) -> Asset:
    try:
        name, url, state = raw["name"], raw["browser_download_url"], raw["state"]
        digest, size = _DIGEST.fullmatch(str(raw["digest"])), raw["size"]
    except (KeyError, TypeError) as error:
        raise PublishError(f"{tag}: an asset has no {error}") from error
    # An asset is listed while it is still being uploaded.
    if state != "uploaded":
        raise IncompleteRelease(f"{tag}: {name} is not uploaded yet")
    if not digest:
        raise PublishError(f"{tag}: the service gives no SHA-256 for {name}")
    if size is not None and (type(size) is not int or size <= 0):
        raise PublishError(f"{tag}: {name} has no size that can be true: {size}")
    return Asset(name, url, digest[1], size)
