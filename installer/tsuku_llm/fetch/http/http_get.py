"""GET requests: checked redirects, ranges, checks that refuse wrong answers, and retries.

RFC 9110 describes redirects (15.4), ranges (14) and Retry-After (10.2.3).
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import MAXYEAR
from functools import partial
from typing import TypeVar

import httpx

from tsuku_llm.fetch.http.limits import Transient
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.registry_login import LARGEST_TOKEN, refused
from tsuku_llm.fetch.http.urls import host_of, shown
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import (
    UNAUTHORIZED,
    BodyError,
    DownloadError,
    HttpStatusError,
    ProxyError,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.safe_text import Secret

MAX_REDIRECTS = 5
_MALFORMED = (httpx.InvalidURL, ValueError)  # ValueError: a host that IDNA refuses
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes after which a retry may help."""

NO_HINT = "try again later"
"""The hint for a status that says nothing of what would help."""

_HINTS = {
    UNAUTHORIZED: "the server wants credentials: put them into its URL",
    403: "the network or the server forbids it, or the server itself may not read the file: "
    "try another network",
    404: f"the file is no longer there: run {TSUKU} update",
    410: f"the file is no longer there: run {TSUKU} update",
    429: "too many downloads from this address: try again later",
    451: "it is blocked at your location: try another network",
    511: "this network wants you to log in first: open a web page in a browser",
}


@contextlib.contextmanager
def answered(  # noqa: PLR0913 - all of it describes one request
    network: Network,
    url: str,
    headers: Mapping[str, str],
    deadline: float,
    check: Callable[[], None] | None = None,
    *,
    method: str = "GET",
    body: Callable[[], Iterator[bytes]] | None = None,
    access: Secret | None = None,
) -> Iterator[httpx.Response]:
    """Send a GET request, follow at most five redirects, and yield the unread answer.

    A registry that wants a login gets one, and the request is sent once more. Redirects of another
    ``method`` than GET and HEAD are not followed. ``body`` makes the chunks of a request's body;
    its length is in the headers. ``access`` is the value of ``Authorization``, which only its own
    host gets. ``headers`` go to every host of the redirects, so they must not hold a secret.

    ``check`` is called from time to time during waits. It raises when the answer is not
    needed any more. The default is the network's ``check``.

    Raises ``HttpStatusError`` for a redirect to another scheme, from https to http, without
    a target, or in a circle; ``DownloadError`` when offline; the errors of the transport.
    """
    network.require_online(url)
    current = _parsed(url)
    registry = next((api for api in network.registries if url.startswith(api)), None)
    follows = _REDIRECTS if method in ("GET", "HEAD") else frozenset[int]()
    redirects, status, tried = 0, 0, False
    # Not httpx's own redirects: those would also go from https to http.
    while redirects <= MAX_REDIRECTS:
        # A registry sends many of its readers elsewhere. Its token is for itself only, and no other
        # host may ask for a login.
        at_registry = registry if _same_origin(current, _parsed(url)) else None
        used = network.logins.header(at_registry) if at_registry else access
        sent = used.for_url(str(current)) if used else None
        request = network.client.build_request(
            method,
            current,
            headers={**headers, **({"Authorization": sent} if sent else {})},
            content=body() if body else None,
        )
        request.extensions |= {"deadline": deadline, "check": check or network.check}
        try:
            response = network.client.send(request, stream=True, follow_redirects=False)
        except (httpx.HTTPError, *_MALFORMED) as error:
            raise BodyError(
                f"{request.url.host} gave an answer that cannot be understood",
                facts=(f"url: {shown(str(request.url))}", f"reason: {str(error)[:200]}"),
                hint="the server is misconfigured: try later",
            ) from error
        # Closed also if the caller stops in the middle of the body: the connection is then not
        # used again, as the rest of the body is still to come on it.
        with contextlib.closing(response):
            if at_registry and response.status_code == UNAUTHORIZED:
                challenge = response.headers.get("www-authenticate", "")
                response.close()
                ask = partial(_token_answer, network, deadline)
                if tried or not network.logins.log_in(at_registry, challenge, used, ask):
                    raise refused(url, at_registry, network.environ)
                tried = True
                continue
            if response.status_code not in follows:
                yield response
                return
            status = response.status_code
            current = _redirected(current, response)
            redirects += 1
    raise HttpStatusError(
        f"{host_of(url)} redirects too many times",
        status=status,
        facts=(f"url: {shown(url)}", f"last: {shown(str(current))}"),
        hint="the server is misconfigured: try later",
    )


def _token_answer(
    network: Network, deadline: float, url: str, access: Secret | None, form: bytes
) -> bytes:
    """Ask a registry's token server: the ``Ask`` of a login."""
    method, body, headers = "GET", None, dict[str, str]()
    if form:
        method, body = "POST", lambda: iter((form,))
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        headers["Content-Length"] = str(len(form))
    with answered(
        network, url, headers, deadline, method=method, body=body, access=access
    ) as response:
        check_status(response, url, (200,))
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > LARGEST_TOKEN:
                raise BodyError(f"{host_of(url)} sends too much", facts=(f"url: {shown(url)}",))
    return bytes(data)


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
        host = parsed.host
    except _MALFORMED as error:
        raise DownloadError("a URL cannot be understood", facts=(f"url: {shown(url)}",)) from error
    if parsed.scheme not in ("http", "https") or not host:
        raise DownloadError("a URL cannot be fetched", facts=(f"url: {shown(url)}",))
    return parsed


def _redirected(current: httpx.URL, response: httpx.Response) -> httpx.URL:
    """Resolve a redirect's target; send the URL's user and password only to the same host."""
    location = response.headers.get("location", "")
    try:
        target = current.join(location) if location else httpx.URL("")
        host = target.host
    except _MALFORMED:
        target, host = httpx.URL(""), ""
    # Never down from https to http. Also refuses file:, ftp: and everything else.
    secure = target.scheme == "https" or current.scheme == target.scheme == "http"
    if not (host and secure):
        raise HttpStatusError(
            f"{current.host} redirects to something that is not followed",
            status=response.status_code,
            facts=(f"url: {shown(str(current))}", f"to: {shown(location) or '(nothing)'}"),
            hint="only https is followed from https: the server or the network is misconfigured",
        )
    same = _same_origin(target, current)
    return target.copy_with(userinfo=current.userinfo if same else b"")


def _same_origin(one: httpx.URL, other: httpx.URL) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def check_status(response: httpx.Response, url: str, allowed: tuple[int, ...]) -> None:
    """Raise for a status that is not allowed: ``Transient`` if a retry may help."""
    status = response.status_code
    if status in allowed:
        return
    reason = " ".join(response.reason_phrase.split())  # the server chose it: keep it on one line
    facts = (f"status: {status} {reason}".rstrip(), f"url: {shown(url)}")
    if status == 407:
        raise ProxyError("the proxy wants credentials", facts=facts, hint="set them in HTTPS_PROXY")
    hint = _HINTS.get(status, NO_HINT)
    if status == UNAUTHORIZED and _parsed(url).userinfo:
        hint = "the server refuses the user or the password in its URL: correct them"
    error = HttpStatusError(
        f"{host_of(url)} answered {status}", status=status, facts=facts, hint=hint
    )
    if status in _TEMPORARY:
        raise Transient(error, wait=retry_after(response.headers))
    raise error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how many seconds a server asks to wait (RFC 9110, 10.2.3); None if it does not ask.

    A number can have any size, and a date after the year 9999 is infinitely far. A date is
    counted from the server's own ``Date``, because clocks differ, or from this machine's
    clock if the answer lacks a ``Date``.
    """
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]+", value):
        return float(value)
    until = _moment(value)
    if until is None:
        return None
    now = _moment(headers.get("date", ""))
    return max(0.0, until - (clock.now().timestamp() if now is None else now))


def _moment(value: str) -> float | None:
    """Convert an HTTP date to seconds since 1970; None for anything else.

    A date after the year 9999 is infinite.
    """
    try:
        fields = email.utils.parsedate_tz(value)
        if fields is None:
            return None
        if fields[0] > MAXYEAR:  # mktime_tz would overflow
            return math.inf
        return float(email.utils.mktime_tz((*fields[:9], fields[9] or 0)))
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def check_framing(response: httpx.Response, url: str) -> int | None:
    """Return the Content-Length, or None; refuse one together with Transfer-Encoding.

    RFC 9112, 6.3: such an answer can be an attempt at request smuggling.
    """
    length = response.headers.get("content-length")
    if length is not None and "transfer-encoding" in response.headers:
        raise BodyError(
            f"{host_of(url)} gives two different lengths in one answer",
            facts=(f"url: {shown(url)}",),
            hint="the server or a proxy is misconfigured: try later",
        )
    # A repeated length ("5, 5") is valid if all numbers are equal, which h11 has checked.
    return int(length.partition(",")[0]) if length is not None else None


_PAGE = re.compile(rb"\s*(<!doctype\s+html|<html|<head|<body|<\?xml|<!--)", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]{0,200}>([^<]{1,200})", re.IGNORECASE)


def check_no_page(start: bytes, url: str) -> None:
    """Refuse a body that begins like a web page: a login or block page of the network."""
    if not _PAGE.match(start.removeprefix(b"\xef\xbb\xbf")):  # without the UTF-8 byte order mark
        return
    title = _TITLE.search(start)
    facts = [f"url: {shown(url)}"]
    if title:
        text = title[1].decode("utf-8", "replace")
        facts.append(f"its title: {' '.join(text.split())!r}")
    raise BodyError(
        f"{host_of(url)} sent a web page instead of the file",
        facts=tuple(facts),
        hint="this network may want you to log in (open a page in a browser), or blocks the host",
    )


_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15}|\*)")


def range_headers(start: int, end: int | None, validator: str | None) -> dict[str, str]:
    """Build the headers that request bytes of a file; ``end`` None means up to its end.

    The whole file needs no headers. Without a validator of this server the range is requested
    all the same: the digest decides in the end, and wrong bytes cost one restart.
    """
    if not start and end is None:
        return {}
    headers = {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
    if validator:
        headers["If-Range"] = validator
    return headers


def validator_of(headers: Mapping[str, str]) -> str | None:
    """Get a strong validator of an answer: its ETag unless that is weak, else Last-Modified."""
    etag = headers.get("etag", "")
    # A weak ETag begins with W/; RFC 9110, 13.1.5 forbids it in If-Range.
    return (etag if etag.startswith('"') else headers.get("last-modified")) or None


def size_of_whole(headers: Mapping[str, str]) -> int | None:
    """Return the size of a file of which a 206 answer has the first bytes; None for any other."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if found is None or found[1] != "0" or found[3] == "*":
        return None
    return int(found[3])


def is_range(
    headers: Mapping[str, str], start: int, end: int | None, size: int | None, validator: str | None
) -> bool:
    """Return whether a 206 answer has exactly these bytes of that version of the file.

    ``end`` and ``size`` are None if they are not known. The answer does not fit if it has
    several ranges, another range, another size of the file, or another validator.
    """
    # Several ranges come as multipart/byteranges, without this header.
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if found is None:
        return False
    first, last, total = found.groups()
    behind = int(last) + 1  # a range names its last byte, our end is one further
    return (
        int(first) == start
        and end in (None, behind)
        and (total == "*" or int(total) == (size or behind))
        # An answer may leave out its validator; if it has one, it must be the same.
        and validator in (None, validator_of(headers) or validator)
    )


_BASE = 0.5
"""Seconds of the first back-off; each further one is twice as long."""

_LONGEST = 20.0
"""Seconds of the longest back-off, before the jitter."""

_YEAR = 365 * 86400

_T = TypeVar("_T")


def retry(
    attempt: Callable[[], _T],
    network: Network,
    deadline: float,
    received: Callable[[], int] = int,
) -> _T:
    """Call ``attempt`` until it succeeds, or raise the error of its last failure.

    ``received`` gives the number of bytes that are there so far; an attempt that brought enough
    of them resets the count. We obey the server's Retry-After up to ``Limits.max_retry_after``. If
    it is longer, we give up the source: a user does not wait for hours at a prompt.
    """
    limits = network.limits
    failed = 0
    while True:
        before = received()
        try:
            return attempt()
        except Transient as failure:
            # A connection that breaks every few megabytes still gets the file, so it may go on.
            failed = 1 if received() - before >= limits.progress_bytes else failed + 1
            wait = failure.wait or 0.0
            if wait > limits.max_retry_after:
                asked = f"{wait:.0f} seconds" if wait < _YEAR else "more than a year"
                failure.error.facts += (f"it asks to wait {asked}",)
                raise failure.error from failure
            if failed >= min(limits.tries, failure.tries or limits.tries):
                raise failure.error from failure
            # The jitter keeps many clients of a restarted server from returning all at once.
            backoff = min(_LONGEST, _BASE * 2.0 ** (failed - 1)) * network.timing.jitter()
            pause = max(backoff, wait)
            # Do not sleep towards a deadline that leaves no time for the attempt.
            if network.clock() + pause > deadline:
                raise failure.error from failure
        network.pause(pause)  # raises Interrupted if another thread stops the network
