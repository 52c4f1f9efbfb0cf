"""Any part left behind, any sequence of servers: the signed bytes, or an error of ours."""

import json
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.downloads import Clock, artifact_at, pieces_of
from support.http_faults import (
    Behaviour,
    Exchange,
    FaultServer,
    answer,
    asked_range,
    good,
    head,
    raw,
)

from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch import Limits, fetch
from tsuku_llm.ground.errors import TsukuError

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
"""More on demand: fifty thousand take about ten minutes."""

BODY = bytes(range(256)) * 12
OTHER = BODY[::-1]


def partial(start: int, end: int, total: str, body: bytes) -> Behaviour:
    """A 206 that claims what it likes."""
    fields = {"Content_Range": f"bytes {start}-{end}/{total}", "Content_Length": len(body)}
    return raw(head("206 Partial Content", **fields) + body)


def unvalidated(exchange: Exchange) -> None:
    """Range without ETag, as object stores behind some proxies do it."""
    start, end = asked_range(exchange.request, len(BODY))
    rest = BODY[start:end]
    ranged = bool(rest) and "range" in exchange.request.headers
    fields: dict[str, object] = {"Content_Length": len(rest)}
    if ranged:
        fields["Content_Range"] = f"bytes {start}-{end - 1}/{len(BODY)}"
    exchange.send(head("206 Partial Content" if ranged else "200 OK", **fields) + rest)


PLACES = st.integers(0, len(BODY))
SERVERS = st.one_of(
    st.just(good(BODY)),
    st.just(unvalidated),
    st.builds(lambda cut: good(BODY, cut=cut), PLACES),
    st.builds(
        lambda cut, tag: good(BODY, cut=cut, etag=tag), PLACES, st.sampled_from(['"a"', "W/x"])
    ),
    st.builds(lambda cut: good(OTHER, cut=cut), PLACES),
    st.builds(lambda body: answer("200 OK", body), st.sampled_from([BODY, OTHER, b"", b"<html>"])),
    st.builds(answer, st.sampled_from(["416 No", "503 No", "404 No", "302 Found", "204 No"])),
    st.builds(
        partial, PLACES, PLACES, st.sampled_from(["*", "3072", "9"]), st.sampled_from([BODY, b"x"])
    ),
    st.builds(raw, st.binary(max_size=40)),
    st.builds(lambda data: raw(head("200 OK") + data), st.sampled_from([BODY, BODY[:9], BODY * 2])),
)
LEFT = st.one_of(
    st.just(b""),
    PLACES.map(lambda length: BODY[:length]),
    PLACES.map(lambda length: OTHER[:length]),
    st.just(BODY * 2),
)
GAPS = st.lists(st.tuples(PLACES, PLACES), max_size=4)
NOTES = st.one_of(
    st.sampled_from([None, b"{}", b'{"url": "x", "validator": "y"}', b"\xff"]),
    GAPS.map(lambda gaps: json.dumps({"gaps": gaps}).encode()),
)
WIDE = Limits(
    parallel_threshold=1,
    connections=4,
    segment=(200, 900),
    progress_bytes=100,
)
WAYS = st.sampled_from(["one", "one, no size", "one, pieces", "several", "several, pieces"])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SERVERS, min_size=1, max_size=6), LEFT, NOTES, WAYS, st.booleans())
def test_C12_any_partial_file_and_any_servers_give_the_signed_bytes_or_an_error(
    servers: list[Behaviour],
    left: bytes,
    note: bytes | None,
    way: str,
    mirrored: bool,
) -> None:
    with tempfile.TemporaryDirectory() as name, FaultServer([*servers]) as server:
        folder = Path(name)
        limits = WIDE if "several" in way else Limits()
        artifact = artifact_at(
            f"{server.url}/x",
            BODY,
            size=None if "no size" in way else -1,
            pieces=pieces_of(BODY, 500) if "pieces" in way else None,
        )
        done = folder / artifact.sha256
        if left:
            (folder / f"{artifact.sha256}.part").write_bytes(left)
        if note is not None:
            (folder / f"{artifact.sha256}.part.json").write_bytes(note)
        mirrors = (f"{server.url}/mirror", ORIGIN) if mirrored else ()
        with Clock().network(mirrors=mirrors, limits=limits) as network:
            try:
                assert fetch(artifact, folder, network) == done
            except TsukuError:
                assert not done.exists()
        assert len(server.requests) <= (200 if "several" in way else 40)
        server.behaviours[:] = [good(BODY)]
        with Clock().network(limits=limits) as network:
            assert fetch(artifact, folder, network).read_bytes() == BODY
        assert [path.name for path in folder.iterdir()] == [artifact.sha256]
