"""Rows H of the fault table against a raw-socket server: what HTTP can do to a download."""

import gzip
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.downloads import BODY, QUICK, Clock, artifact_at
from support.http_faults import Behaviour, Exchange, FaultServer, answer, good, head, raw

from tsuku_llm.fetch import Limits, fetch, get
from tsuku_llm.ground.errors import (
    BodyError,
    DigestMismatch,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    NoSpace,
    TsukuError,
)

HALF = len(BODY) // 2
WHOLE = head("200 OK", Content_Length=len(BODY)) + BODY
PAGE = b"<!DOCTYPE html>\n<html><head><title>Hotel  Wi-Fi\x1b[31m</title></head></html>"
FLIPPED = BODY[:HALF] + bytes([BODY[HALF] ^ 1]) + BODY[HALF + 1 :]


def cut_by_reset(exchange: Exchange) -> None:
    exchange.send(WHOLE[:HALF])
    exchange.reset()


def hang(exchange: Exchange) -> None:
    exchange.hang()


def hang_in_body(exchange: Exchange) -> None:
    exchange.send(WHOLE[:HALF])
    exchange.hang()


def endless_body(exchange: Exchange) -> None:
    exchange.send(head("200 OK", Transfer_Encoding="chunked"))
    while True:
        exchange.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def endless_headers(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        exchange.send(b"X-Filler: " + b"x" * 1000 + b"\r\n")


def endless_continue(exchange: Exchange) -> None:
    while True:
        exchange.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


def drip_headers(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\n")
    while not exchange.server.closing.wait(0.05):
        exchange.send(b"X-Filler: x\r\n")


def ranged(status: str = "206 Partial Content", **headers: object) -> Behaviour:
    """Answer a request to resume with the rest of the file under these headers."""

    def behave(exchange: Exchange) -> None:
        start = int(exchange.request.headers["range"].removeprefix("bytes=").rstrip("-"))
        rest = BODY[start:]
        fields = {
            "Content_Length": len(rest),
            "Content_Range": f"bytes {start}-{len(BODY) - 1}/{len(BODY)}",
        }
        exchange.send(head(status, **{**fields, **headers}) + rest)

    return behave


@dataclass(frozen=True, kw_only=True)
class Case:
    """Behaviours of the server in turn, and what comes of it.

    ``error`` None: the download ends well. ``requests`` is how many it takes.
    """

    serves: list[Behaviour]
    error: type[TsukuError] | None = None
    requests: int | None = None
    says: str = ""
    without_size: bool = False
    limits: Limits | None = None


CUT = good(BODY, cut=HALF)
GOOD = good(BODY)

CASES = {
    "H01_truncated": Case(serves=[CUT, GOOD], requests=2),
    "H01_truncated_always_nothing": Case(
        serves=[raw(head("200 OK", Content_Length=len(BODY)))], error=BodyError, requests=4
    ),
    "H02_short_length": Case(
        serves=[raw(head("200 OK", Content_Length=HALF) + BODY)], error=BodyError, requests=1
    ),
    "H02_short_length_no_size": Case(
        serves=[raw(head("200 OK", Content_Length=HALF) + BODY)],
        error=DigestMismatch, without_size=True,
    ),
    "H02_long_length": Case(
        serves=[raw(head("200 OK", Content_Length=len(BODY) + 1) + BODY)],
        error=BodyError, requests=1,
    ),
    "H03_no_length_closed_early": Case(
        serves=[raw(head("200 OK"), BODY[:HALF]), GOOD], requests=2
    ),
    "H03_no_length_whole": Case(serves=[raw(head("200 OK"), BODY)], requests=1),
    "H03_no_length_no_size": Case(
        serves=[raw(head("200 OK"), BODY[:HALF])], error=DigestMismatch, without_size=True
    ),
    "H04_chunked_cut": Case(
        serves=[
            raw(head("200 OK", Transfer_Encoding="chunked"), b"%x\r\n" % HALF, BODY[:HALF]),
            GOOD,
        ],
        requests=2,
    ),
    "H04_chunked_whole": Case(
        serves=[
            raw(
                head("200 OK", Transfer_Encoding="chunked"),
                b"%x\r\n" % len(BODY), BODY, b"\r\n0\r\n\r\n",
            )
        ],
        requests=1,
    ),
    "H04_chunk_size_garbage": Case(
        serves=[raw(head("200 OK", Transfer_Encoding="chunked"), b"-5\r\n" + BODY)],
        error=BodyError,
    ),
    "H05_two_lengths": Case(
        serves=[raw(f"HTTP/1.1 200 OK\r\nContent-Length: {len(BODY)}\r\nContent-Length: 5\r\n\r\n"
                    .encode() + BODY)],
        error=BodyError,
    ),
    "H06_length_and_chunked": Case(
        serves=[
            raw(
                head("200 OK", Content_Length=len(BODY), Transfer_Encoding="chunked"),
                b"%x\r\n" % len(BODY), BODY, b"\r\n0\r\n\r\n",
            )
        ],
        error=BodyError, says="two different lengths",
    ),
    "H07_negative_length": Case(
        serves=[raw(head("200 OK", Content_Length=-5) + BODY)], error=BodyError
    ),
    "H07_length_no_number": Case(
        serves=[raw(head("200 OK", Content_Length="many") + BODY)], error=BodyError
    ),
    "H08_bit_flip": Case(serves=[answer("200 OK", FLIPPED)], error=DigestMismatch, requests=1),
    "H08_bit_flip_no_size": Case(
        serves=[answer("200 OK", FLIPPED)], error=DigestMismatch, requests=1, without_size=True
    ),
    "H09_captive_portal": Case(
        serves=[answer("200 OK", PAGE, Content_Type="text/html")],
        error=BodyError, requests=1, says="web page",
    ),
    "H09_captive_portal_no_size": Case(
        serves=[answer("200 OK", b"\xef\xbb\xbf \r\n" + PAGE)],
        error=BodyError, requests=1, says="web page", without_size=True,
    ),
    "H09_captive_portal_511": Case(
        serves=[answer("511 Network Authentication Required", PAGE)],
        error=HttpStatusError, requests=1, says="511",
    ),
    "H10_no_content": Case(
        serves=[raw(head("204 No Content"))], error=HttpStatusError, requests=1
    ),
    "H10_reset_content": Case(
        serves=[answer("205 Reset Content")], error=HttpStatusError, requests=1
    ),
    "H11_reset_in_body": Case(serves=[cut_by_reset, GOOD], requests=2),
    "H12_closed_before_status": Case(serves=[raw(), GOOD], requests=2),
    "H12_always_closed": Case(serves=[raw()], error=BodyError, requests=4),
    "H13_garbage": Case(serves=[raw(b"\x00\xff garbage\r\n\r\n")], error=BodyError),
    "H13_http_0_9": Case(serves=[raw(BODY)], error=BodyError),
    "H13_another_protocol": Case(serves=[raw(WHOLE.replace(b"HTTP", b"ICAP", 1))], error=BodyError),
    "H14_thousand_continues": Case(
        serves=[raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, WHOLE)], requests=1
    ),
    "H14_endless_continues": Case(serves=[endless_continue], error=DownloadError),
    "H15_range_ignored": Case(serves=[CUT, raw(WHOLE)], requests=2),
    "H16_206_to_a_plain_get": Case(
        serves=[
            answer("206 Partial Content", BODY, Content_Range=f"bytes 0-{len(BODY) - 1}/*")
        ],
        error=HttpStatusError, requests=1,
    ),
    "H17_wrong_start": Case(
        serves=[CUT, ranged(Content_Range=f"bytes 7-{len(BODY) - 1}/{len(BODY)}"), GOOD],
        requests=3,
    ),
    "H17_wrong_total": Case(
        serves=[CUT, ranged(Content_Range=f"bytes {HALF}-{len(BODY) - 1}/{len(BODY) + 1}"), GOOD],
        requests=3,
    ),
    "H17_wrong_end": Case(
        serves=[CUT, ranged(Content_Range=f"bytes {HALF}-{len(BODY) - 2}/{len(BODY)}"), GOOD],
        requests=3,
    ),
    "H17_unknown_total": Case(
        serves=[CUT, ranged(Content_Range=f"bytes {HALF}-{len(BODY) - 1}/*")], requests=2
    ),
    "H17_no_content_range": Case(serves=[CUT, ranged(Content_Range=""), GOOD], requests=3),
    "H17_malformed": Case(serves=[CUT, ranged(Content_Range="bytes 1-x/y"), GOOD], requests=3),
    "H18_multipart": Case(
        serves=[
            CUT,
            answer(
                "206 Partial Content",
                b"--x\r\nContent-Range: bytes 0-9/200000\r\n\r\n0123456789\r\n--x--",
                Content_Type="multipart/byteranges; boundary=x",
            ),
            GOOD,
        ],
        requests=3,
    ),
    "H19_not_satisfiable": Case(
        serves=[CUT, answer("416 Range Not Satisfiable", Content_Range=f"bytes */{HALF}"), GOOD],
        requests=3,
    ),
    "H20_etag_changed": Case(serves=[good(BODY, cut=HALF, etag='"old"'), GOOD], requests=2),
    "H20_etag_changed_if_range_ignored": Case(
        serves=[good(BODY, cut=HALF, etag='"old"'), ranged(ETag='"new"'), GOOD], requests=3
    ),
    "H20_weak_etag_is_no_validator": Case(
        serves=[good(BODY, cut=HALF, etag='W/"weak"'), ranged()], requests=2
    ),
    "H22_encoded": Case(
        serves=[answer("200 OK", gzip.compress(BODY), Content_Encoding="gzip")],
        error=BodyError, requests=1,
    ),
    "H22_labelled_only": Case(
        serves=[answer("200 OK", BODY, Content_Encoding="x-gzip")], requests=1
    ),
    "H22_encoded_no_size": Case(
        serves=[answer("200 OK", gzip.compress(BODY), Content_Encoding="gzip")],
        error=DigestMismatch, requests=1, without_size=True,
    ),
    "H23_encoding_bomb": Case(
        serves=[answer("200 OK", gzip.compress(bytes(1 << 26)), Content_Encoding="gzip")],
        error=BodyError, requests=1,
    ),
    "H24_redirect_loop": Case(
        serves=[answer("302 Found", Location="/again")], error=HttpStatusError, requests=6
    ),
    "H24_five_redirects": Case(
        serves=[answer("307 Temporary Redirect", Location="/x")] * 5 + [GOOD], requests=6
    ),
    "H26_to_file": Case(
        serves=[answer("302 Found", Location="file:///etc/passwd")],
        error=HttpStatusError, requests=1,
    ),
    "H26_to_ftp": Case(
        serves=[answer("302 Found", Location="ftp://localhost/x")],
        error=HttpStatusError, requests=1,
    ),
    "H26_no_location": Case(serves=[answer("302 Found")], error=HttpStatusError, requests=1),
    "H26_malformed": Case(
        serves=[answer("302 Found", Location="http://[::1")], error=TsukuError, requests=1
    ),
    "H26_malformed_international_name": Case(
        serves=[answer("302 Found", Location="https://xn--/")], error=BodyError, requests=1
    ),
    "H26_bad_port": Case(
        serves=[answer("302 Found", Location="http://localhost:99999999/")],
        error=TsukuError, requests=2,
    ),
    "H26_escape_sequence": Case(
        serves=[answer("302 Found", Location="ftp://evil/\x9b31m")],
        error=HttpStatusError, requests=1,
    ),
    "H07_length_of_5000_digits": Case(
        serves=[raw(head("200 OK", Content_Length="9" * 5000) + BODY)], error=BodyError
    ),
    "H28_wait_until_never": Case(
        serves=[
            answer(
                "503 No",
                Date="Fri, 20 Nov 2026 17:00:00 GMT",
                Retry_After="Fri, 20 Nov 2026 17:00:09 +9999999999999",
            ),
            GOOD,
        ],
        requests=2,
    ),
    "H26_not_modified": Case(
        serves=[raw(head("304 Not Modified"))], error=HttpStatusError, requests=1
    ),
    "H28_wait_seconds": Case(
        serves=[answer("429 Too Many Requests", Retry_After=7), GOOD], requests=2
    ),
    "H28_wait_until": Case(
        serves=[
            answer(
                "429 Too Many Requests",
                Date="Fri, 20 Nov 2026 17:00:00 GMT",
                Retry_After="Fri, 20 Nov 2026 17:00:09 GMT",
            ),
            GOOD,
        ],
        requests=2,
    ),
    "H28_wait_a_day": Case(
        serves=[answer("429 Too Many Requests", Retry_After=86400)],
        error=HttpStatusError, requests=1, says="429",
    ),
    "H28_wait_an_hour": Case(
        serves=[answer("429 Too Many Requests", Retry_After=3600)],
        error=HttpStatusError, requests=1, says="429",
    ),
    "S09_wait_of_ten_digits": Case(
        serves=[answer("429 Too Many Requests", Retry_After=10**9)],
        error=HttpStatusError, requests=1, says="429",
    ),
    "S09_wait_of_5000_digits": Case(
        serves=[answer("503 Service Unavailable", Retry_After="9" * 5000)],
        error=HttpStatusError, requests=1, says="503",
    ),
    "S09_wait_until_the_year_9999_by_our_clock": Case(
        serves=[answer("429 No", Retry_After="Fri, 31 Dec 9999 23:59:59 GMT")],
        error=HttpStatusError, requests=1,
    ),
    "S09_wait_until_the_year_20000": Case(
        serves=[answer("429 No", Retry_After="Fri, 31 Dec 20000 23:59:59 GMT")],
        error=HttpStatusError, requests=1,
    ),
    "S09_wait_until_a_zone_that_is_none": Case(
        serves=[answer("429 No", Retry_After="Fri, 20 Nov 2026 17:00:09 -9999999999999")],
        error=HttpStatusError, requests=1,
    ),
    "S11_encoded_is_named": Case(
        serves=[answer("200 OK", gzip.compress(BODY), Content_Encoding="gzip")],
        error=BodyError, requests=1, says="encoded as 'gzip'",
    ),
    "S11_encoded_and_longer_than_allowed": Case(
        serves=[
            raw(head("200 OK", Content_Encoding="br"), BODY + b"x"),
        ],
        error=BodyError, requests=1, says="encoded as 'br'",
    ),
    "H28_wait_nonsense": Case(
        serves=[answer("429 Too Many Requests", Retry_After="soon"), GOOD], requests=2
    ),
    "H29_503": Case(serves=[answer("503 Service Unavailable")], error=HttpStatusError, requests=4),
    "H29_502_then_good": Case(
        serves=[answer("502 Bad Gateway"), answer("504 Gateway Timeout"), GOOD], requests=3
    ),
    "H29_403_at_once": Case(serves=[answer("403 Forbidden")], error=HttpStatusError, requests=1),
    "H29_404_at_once": Case(serves=[answer("404 Not Found")], error=HttpStatusError, requests=1),
    "H31_never_answers": Case(serves=[hang], error=HostUnreachable, requests=4, limits=QUICK),
    "H31_stops_in_body": Case(serves=[hang_in_body, GOOD], requests=2, limits=QUICK),
    "H32_endless_body": Case(serves=[endless_body], error=BodyError, requests=1),
    "H32_endless_headers": Case(serves=[endless_headers], error=BodyError),
    "H32_dripping_headers": Case(serves=[drip_headers], error=HostUnreachable, limits=QUICK),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_fault_of_http_is_survived_or_named(case: str, tmp_path: Path) -> None:
    wanted = CASES[case]
    clock = Clock()
    with (
        FaultServer(wanted.serves) as server,
        clock.network(limits=wanted.limits) as network,
    ):
        artifact = artifact_at(
            f"{server.url}/build.tar.gz", size=None if wanted.without_size else -1
        )
        caught = error_of(lambda: fetch(artifact, tmp_path, network))
        assert wanted.requests in (None, len(server.requests))
    done = tmp_path / artifact.sha256
    if wanted.error is None:
        assert caught is None
        assert done.read_bytes() == BODY
        assert [path.name for path in tmp_path.iterdir()] == [artifact.sha256]
    else:
        assert isinstance(caught, wanted.error)
        assert caught.exit_code == (5 if wanted.error is DigestMismatch else 4)
        assert wanted.says in caught.message
        assert caught.hint
        assert all(text.isprintable() for text in (caught.message, *caught.facts, caught.hint))
        assert not done.exists()


def error_of(work: Callable[[], object]) -> TsukuError | None:
    try:
        work()
    except TsukuError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("serves", "without_size"),
    [
        (answer("200 OK", gzip.compress(BODY), Content_Encoding="gzip"), True),
        (raw(head("200 OK", Content_Encoding="gzip"), gzip.compress(BODY)[:HALF]), False),
    ],
    ids=["wrong_digest", "shorter"],
)
def test_S11_each_error_names_the_encoding(
    serves: Behaviour, tmp_path: Path, without_size: bool
) -> None:
    with FaultServer([serves]) as server, Clock().network() as network:
        artifact = artifact_at(f"{server.url}/x", size=None if without_size else -1)
        error = error_of(lambda: fetch(artifact, tmp_path, network))
    assert error is not None
    assert "it came encoded as 'gzip', which was not requested" in error.facts


def test_S30_a_file_of_unknown_size_needs_room_for_its_content_length(tmp_path: Path) -> None:
    """No disk has that much; its bytes are not even begun to be written."""
    limits = Limits(largest=1 << 60)
    serves = raw(head("200 OK", Content_Length=1 << 59) + BODY)
    with FaultServer([serves]) as server, Clock().network(limits=limits) as network:
        error = error_of(
            lambda: fetch(artifact_at(f"{server.url}/x", size=None), tmp_path, network)
        )
        assert len(server.requests) == 1
    assert isinstance(error, NoSpace)
    assert list(tmp_path.iterdir()) == []


def test_S30_the_cap_is_near_the_largest_known_artifact() -> None:
    manifests = Path(__file__).parents[2] / "manifests" / "targets"
    sizes = [
        int(size)
        for path in manifests.rglob("*.json")
        for size in re.findall(
            r'"url": "[^"]*",\s*"sha256": "\w*",\s*"size": (\d+)', path.read_text()
        )
    ]
    assert 2 * max(sizes) < Limits().largest < 5 * max(sizes)


def test_the_page_of_a_captive_portal_is_named(tmp_path: Path) -> None:
    with FaultServer([answer("200 OK", PAGE)]) as server, Clock().network() as network:
        error = error_of(lambda: fetch(artifact_at(f"{server.url}/x"), tmp_path, network))
    assert error is not None
    assert any("Hotel Wi-Fi" in fact for fact in error.facts)


@pytest.mark.parametrize(
    ("serves", "slept"),
    [
        ([answer("429 Too Many Requests", Retry_After=7)] * 2 + [GOOD], [7.0, 7.0]),
        ([answer("503 Service Unavailable")] * 3 + [GOOD], [0.5, 1.0, 2.0]),
        ([answer("503 Service Unavailable", Retry_After=0), GOOD], [0.5]),
    ],
    ids=["H28_retry_after", "H29_back_off", "H28_retry_after_zero"],
)
def test_the_pauses_between_retries(
    serves: list[Behaviour], slept: list[float], tmp_path: Path
) -> None:
    clock = Clock()
    with FaultServer(serves) as server, clock.network() as network:
        fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
    assert clock.slept == slept


def test_H30_a_dripping_download_is_ended(tmp_path: Path) -> None:
    def drip(exchange: Exchange) -> None:
        exchange.send(head("200 OK", Content_Length=len(BODY)))
        for byte in BODY:
            exchange.send(bytes([byte]))
            if exchange.server.closing.wait(0.001):
                return

    clock = Clock(step=1.0)
    with FaultServer([drip]) as server, clock.network(limits=Limits(connect=1e9)) as network:
        error = error_of(lambda: fetch(artifact_at(f"{server.url}/x"), tmp_path, network))
    assert isinstance(error, BodyError)
    assert "too slowly" in error.message


def test_H30_a_download_has_a_total_deadline(tmp_path: Path) -> None:
    def steady(exchange: Exchange) -> None:
        exchange.send(head("200 OK", Content_Length=len(BODY)))
        for start in range(0, len(BODY), 1000):
            exchange.send(BODY[start : start + 1000])
            if exchange.server.closing.wait(0.001):
                return

    clock = Clock(step=10.0)
    limits = Limits(total=300.0, slowest=1, connect=1e9, answer=1e9, silence=1e9)
    with FaultServer([steady]) as server, clock.network(limits=limits) as network:
        error = error_of(lambda: fetch(artifact_at(f"{server.url}/x"), tmp_path, network))
    assert isinstance(error, DownloadError)
    assert len(server.requests) == 1


def test_M23_metadata_has_a_total_deadline() -> None:
    clock = Clock()
    limits = Limits(metadata=0.5, silence=5.0, answer=5.0)
    began = time.monotonic()

    def drip(exchange: Exchange) -> None:
        exchange.send(head("200 OK", Content_Length=100))
        while not exchange.server.closing.wait(0.05):
            exchange.send(b"{")

    with FaultServer([drip]) as server, clock.network(limits=limits) as network:
        error = error_of(lambda: get(f"{server.url}/timestamp.json", 1000, network))
    assert isinstance(error, HostUnreachable)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "serves",
    [
        raw(head("200 OK", Content_Length=101) + bytes(101)),
        raw(
            head("200 OK", Transfer_Encoding="chunked") + b"65\r\n" + bytes(101) + b"\r\n0\r\n\r\n"
        ),
        endless_body,
    ],
    ids=["M22_length", "M22_chunked", "M22_endless"],
)
def test_metadata_is_capped(serves: Behaviour) -> None:
    with FaultServer([serves]) as server, Clock().network() as network:
        error = error_of(lambda: get(f"{server.url}/root.json", 100, network))
        assert isinstance(error, BodyError)
        assert len(server.requests) == 1


def test_metadata_of_the_maximum_size_is_accepted() -> None:
    with FaultServer([answer("200 OK", b"x" * 100)]) as server, Clock().network() as network:
        assert get(f"{server.url}/root.json", 100, network) == b"x" * 100


@pytest.mark.parametrize("status", [403, 404])
def test_missing_metadata_is_named(status: int) -> None:
    with FaultServer([answer(f"{status} No")]) as server, Clock().network() as network:
        error = error_of(lambda: get(f"{server.url}/2.root.json", 100, network))
    assert isinstance(error, HttpStatusError)
    assert error.status == status


def test_encoded_metadata_or_a_page_is_refused() -> None:
    serves = [
        answer("200 OK", gzip.compress(b"{}"), Content_Encoding="gzip"),
        answer("200 OK", PAGE),
    ]
    with FaultServer(serves) as server, Clock().network() as network:
        for _ in range(2):
            error = error_of(lambda: get(f"{server.url}/root.json", 1000, network))
            assert isinstance(error, BodyError)


def test_metadata_survives_a_broken_connection() -> None:
    serves = [raw(head("200 OK", Content_Length=2) + b"{"), answer("200 OK", b"{}")]
    with FaultServer(serves) as server, Clock().network() as network:
        assert get(f"{server.url}/root.json", 1000, network) == b"{}"


def test_a_partial_file_is_named_by_the_digest(tmp_path: Path) -> None:
    with FaultServer([GOOD]) as server, Clock().network() as network:
        done = fetch(artifact_at(f"{server.url}/x"), tmp_path, network)
    assert hashlib.sha256(done.read_bytes()).hexdigest() == done.name
