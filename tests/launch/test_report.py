"""The report of a start: what is written is read again, and nothing else is."""

import json
from contextlib import suppress
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.ground import records
from tsuku_llm.launch.plan.report import (
    READ_REPORT,
    FallenBack,
    GpuHolder,
    Placement,
    Sign,
    StartReport,
    Trouble,
    Verdict,
)
from tsuku_llm.launch.run.supervise import StopHandle

TEXTS = st.text(max_size=12)
COUNTS = st.integers(0, 1 << 50)
KINDS: dict[object, st.SearchStrategy[object]] = {
    str: TEXTS,
    int: COUNTS,
    bool: st.booleans(),
    bool | None: st.none() | st.booleans(),
    str | None: st.none() | TEXTS,
    int | None: st.none() | COUNTS,
    tuple[str, ...]: st.tuples(TEXTS, TEXTS) | st.just(()),
    Verdict: st.sampled_from(Verdict),
    tuple[Sign, ...]: st.lists(
        st.builds(Sign, TEXTS, st.sampled_from(Verdict), TEXTS), max_size=2
    ).map(tuple),
    Trouble | None: st.none() | st.builds(Trouble, TEXTS, TEXTS, TEXTS),
    tuple[GpuHolder, ...]: st.lists(st.builds(GpuHolder, COUNTS, TEXTS, COUNTS), max_size=2).map(
        tuple
    ),
    Placement | None: st.none()
    | st.builds(
        Placement,
        st.tuples(TEXTS, TEXTS),
        st.none() | TEXTS,
        TEXTS,
        st.tuples(COUNTS, COUNTS),
        st.tuples(TEXTS),
    ),
    tuple[FallenBack, ...]: st.lists(st.builds(FallenBack, TEXTS, TEXTS), max_size=2).map(tuple),
}
TIMES = st.datetimes().map(lambda time: f"{time.replace(microsecond=0).isoformat()}Z")
URLS = st.sampled_from([None, "http://127.0.0.1:8080/", "https://[::1]:1/v1"])
OF_FIELDS = {"started_at": TIMES, "page_url": URLS, "base_url": URLS}
FIELDS: dict[str, st.SearchStrategy[object]] = {
    name: KINDS[kind] for name, kind in get_type_hints(StartReport).items()
}
FIELDS |= OF_FIELDS
REPORTS = st.fixed_dictionaries(FIELDS).map(lambda values: StartReport(**values))  # type: ignore[arg-type]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


def read(data: bytes) -> StartReport:
    return records.parse(data, READ_REPORT)


@given(REPORTS)
def test_a_written_report_is_read_back(report: StartReport) -> None:
    assert read(records.encode(report.document())) == report


@given(REPORTS, st.sampled_from(sorted(FIELDS)), JUNK)
def test_a_report_with_a_junk_field_is_refused_or_valid(
    report: StartReport, name: str, junk: object
) -> None:
    document = json.loads(records.encode(report.document())) | {name: junk}
    with suppress(ValueError):
        found = read(json.dumps(document).encode())
        assert json.loads(records.encode(found.document()))[name] == junk


def test_a_report_of_an_earlier_version_is_read() -> None:
    document = json.loads(records.encode(REPORT.document()))
    for name in ("model_bytes", "gpu_bytes", "gpu_names", "trouble", "holders", "restarts"):
        del document[name]
    assert read(json.dumps(document).encode()) == REPORT


REPORT = StartReport(
    *("default", "b1", "b1-vulkan-0", "auto", ("vulkan",), "vulkan"),
    *(1, 2, "127.0.0.1", 8080, "2026-11-21T12:00:00Z"),
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        (
            {"gpu_bytes": 3_600_000_000, "model_bytes": 7_400_000_000, "gpu_names": ("Vulkan0",)},
            "48 % of 7.4 GB on Vulkan0",
        ),
        (
            {"gpu_bytes": 99_999, "model_bytes": 100_000_000, "gpu_names": ("CUDA0", "CUDA1")},
            "1 % of 100 MB on CUDA0, CUDA1",
        ),
        ({"gpu_bytes": 999, "model_bytes": 1000}, "99 % of 0 MB on the GPU"),
        ({"gpu_bytes": 7, "model_bytes": 7, "layers_total": 3}, "100 % of 0 MB on the GPU"),
        ({"layers_offloaded": 10, "layers_total": 33}, "30 % of 33 layers on the GPU"),
        ({"layers_offloaded": 0, "layers_total": 33}, "0 % of 33 layers on the GPU"),
        ({"gpu_bytes": 5}, ""),
        ({"layers_offloaded": 5}, ""),
    ],
)
def test_the_share_is_told_in_words(changes: dict[str, object], told: str) -> None:
    assert REPORT._replace(**changes).told_share == told  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b"[" * 100_000])
def test_anything_but_a_report_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(data)


def test_a_server_is_stopped_once_also_where_the_server_comes_later() -> None:
    pulled: list[str] = []
    stop_handle = StopHandle()
    assert stop_handle.reason is None
    stop_handle.end("idle")
    stop_handle.attach(lambda: pulled.append("server"))
    stop_handle.end("another reason")
    assert (stop_handle.reason, pulled) == ("idle", ["server"])
