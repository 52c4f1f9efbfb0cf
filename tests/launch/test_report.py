"""The report of a start: what is written is read again, and nothing else is."""

import json
from contextlib import suppress
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.errors import CorruptStore
from tsuku_llm.launch.report import FallenBack, Sign, StartReport, Verdict
from tsuku_llm.launch.supervise import StopHandle

TEXTS = st.text(max_size=12)
COUNTS = st.integers(0, 1 << 50)
KINDS: dict[object, st.SearchStrategy[object]] = {
    str: TEXTS,
    int: COUNTS,
    bool: st.booleans(),
    str | None: st.none() | TEXTS,
    int | None: st.none() | COUNTS,
    tuple[str, ...]: st.tuples(TEXTS, TEXTS) | st.just(()),
    Verdict: st.sampled_from(Verdict),
    tuple[Sign, ...]: st.lists(
        st.builds(Sign, TEXTS, st.sampled_from(Verdict), TEXTS), max_size=2
    ).map(tuple),
    tuple[FallenBack, ...]: st.lists(st.builds(FallenBack, TEXTS, TEXTS), max_size=2).map(tuple),
}
FIELDS = {name: KINDS[kind] for name, kind in get_type_hints(StartReport).items()}
REPORTS = st.fixed_dictionaries(FIELDS).map(lambda values: StartReport(**values))  # type: ignore[arg-type]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


@given(REPORTS)
def test_what_is_written_is_read_again(report: StartReport) -> None:
    assert StartReport.from_json(report.to_json()) == report


@given(REPORTS, st.sampled_from(sorted(FIELDS)), JUNK)
def test_a_report_with_a_field_of_junk_is_refused_or_right(
    report: StartReport, name: str, junk: object
) -> None:
    document = json.loads(report.to_json()) | {name: junk}
    with suppress(CorruptStore):
        read = StartReport.from_json(json.dumps(document).encode())
        assert json.loads(read.to_json())[name] == junk


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b"[" * 100_000])
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptStore):
        StartReport.from_json(data)


def test_a_server_is_stopped_once_also_where_the_server_comes_later() -> None:
    pulled: list[str] = []
    stop_handle = StopHandle()
    assert stop_handle.reason is None
    stop_handle.end("idle")
    stop_handle.attach(lambda: pulled.append("server"))
    stop_handle.end("another reason")
    assert (stop_handle.reason, pulled) == ("idle", ["server"])
