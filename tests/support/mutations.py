"""Mutations of JSON files, for fuzzing: of their structure, of their text, of their bytes.

A ``Change`` is drawn by hypothesis and applied to any document, so that examples shrink and
are replayed. What Python's ``json`` would not write (a key twice, a number of 400 digits,
100,000 open brackets) is put in as a mark that ``text_of`` writes out.
"""

import copy
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
"""More on demand, by another seed each time; without that, always the same ones."""

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

RAW = "@raw:"
AGAIN = "@again:"
"""Before a value or a key: write it out as it is."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 5, 2**31, 2**53, 2**53 + 1, -(2**63), 1.0, 2.5),
    *(float("nan"), float("inf"), "", "1", "x", "é", "\ud800", "\x00", "a" * 300, "2026-11-20"),
    *("2026-11-20T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-13-01T"),
    *("root", "targets", "ed25519", "ecdsa", "1.0.31", "2.0.0", "0" * 64, "F" * 64, "0" * 128),
    *([], {}, [[]], {"": {}}, [None], ["x", "x"], {"sha256": "0" * 64}, {"sha512": "0" * 128}),
    *(f"{RAW}1e400", f"{RAW}-0", f"{RAW}1E2", f"{RAW}{10**20}", f"{RAW}{'9' * 400}"),
    *(f"{RAW}{'[' * depth}{']' * depth}" for depth in (25, 40, 480, 1200, 5000, 100_000)),
    *("..", "../x", "/x", "a/b", "a\\b", "C:x", "nul", "a\nb", "releases/b2.json", "~" * 2000),
    *(
        "https://[",
        "https://h:99999/x",
        "https://u:p@h/x",
        "https://h",
        "https:///x",
        "https://h/%",
    ),
    *(
        "https://h/?q#f",
        "https://xn--/x",
        "https://a..b/x",
        "https://h:/x",
        "https://-/.",
        "http://h/",
    ),
    *("pkg:pypi/x", "pkg:pypi/a@1?file_name=a-1-py3-none-any.whl", "pkg:pypi/@?file_name=-.whl"),
    *("0.0", "1.2.3.4", "999999999.0", "8.6a", "12.0a", "gfx90a", "b2", "cpu", "cuda", "native"),
)
KEYS = (
    *("", "x", "_type", "signed", "keyid", "sig", "version", "sha256", "targets.json", "\ud800"),
    *("a\x00b", "a" * 300, "d/" * 120 + "x", "a//b", "a/./b", "C:x", "nul", "a b?c#d", "releases/"),
)


@dataclass(frozen=True)
class Change:
    """One change at a place, which is counted over the whole document."""

    what: str
    place: int
    other: int
    value: int


CHANGES = st.lists(
    st.builds(
        Change,
        st.sampled_from(["drop", "put", "put", "again", "rename", "swap", "copy", "wrap", "add"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
        st.integers(0, len(VALUES) - 1),
    ),
    min_size=1,
    max_size=3,
)

Edit = tuple[int, int, bytes]
EDITS = st.lists(
    st.tuples(
        st.integers(0, 1 << 20),
        st.sampled_from([0, 1, 1, 2, 8, 1 << 20]),
        st.binary(max_size=4)
        | st.sampled_from([b"", b'"', b"{", b"\xef\xbb\xbf", b"\xed\xa0\x80"]),
    ),
    min_size=1,
    max_size=3,
)
"""Where, how many bytes go, and what comes instead; a megabyte cuts the rest off."""


def edited(data: bytes, edits: list[Edit]) -> bytes:
    """Other bytes."""
    for at, length, new in edits:
        place = at % (len(data) + 1)
        data = data[:place] + new + data[place + length :]
    return data


def changed(document: Any, changes: list[Change]) -> None:
    """Change a document of JSON's types in place."""
    for change in changes:
        places = [*_places(document)]
        if places:
            _change(change, places)


def text_of(document: Any) -> bytes:
    """The file of a document, its marks written out."""
    text = json.dumps(document)
    text = re.sub(f'"{RAW}([^"]*)"', r"\1", text)
    return text.replace(f'"{AGAIN}', '"').encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _change(change: Change, places: list[tuple[Any, Any]]) -> None:
    holder, key = places[change.place % len(places)]
    source, name = places[change.other % len(places)]
    value = copy.deepcopy(VALUES[change.value])
    match change.what:
        case "drop":
            del holder[key]
        case "put":
            holder[key] = value
        case "swap":
            holder[key], source[name] = source[name], holder[key]
        case "copy":
            holder[key] = copy.deepcopy(source[name])
        case "wrap":
            holder[key] = [holder[key]]
        case "again" | "rename" | "add" if isinstance(holder, list):
            # A copy: if one object is at two places, a swap can put it into itself.
            holder.insert(key, value if change.what == "add" else copy.deepcopy(holder[key]))
        case "again":
            holder[f"{AGAIN}{key}"] = value
        case "rename":
            holder[KEYS[change.value % len(KEYS)]] = holder.pop(key)
        case "add":
            holder[KEYS[change.value % len(KEYS)]] = value
