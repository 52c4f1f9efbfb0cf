"""Mutated and invented archives: only our errors, nothing outside, one reading of what is in."""

import gzip
import io
import os
import tarfile
import tempfile
import zipfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.archives import Tar, Zip, artifact_for, gnu_long, pax, tar, tar_gz, zipped
from support.inflaters import inflater  # noqa: F401 - runs each test with both libraries

from tsuku_llm.archive.unpack import unpack
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.tree_entry import FileEntry

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
"""More on demand: half a million take about ten minutes."""

fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PLAIN_TAR = tar(
    [
        Tar(name="d/", kind=b"5"),
        Tar(name="d/server", data=b"elf" * 50, mode=0o755),
        pax({"path": "d/long", "size": "3"}),
        Tar(name="x", data=b"abc"),
        gnu_long("d/longer"),
        Tar(name="y", data=b"abc"),
        Tar(name="d/l", kind=b"2", target="server"),
    ]
)
PLAIN_ZIP = zipped(
    [
        Zip(name="server", data=b"elf" * 50),
        Zip(name="d/", method=0),
        Zip(name="d/stored", data=b"abc", method=0),
        Zip(name="d/described", data=b"abc" * 9, descriptor=True),
        Zip(name="d/wide", data=b"abc", zip64=True),
    ],
    comment=b"comment",
)

Change = tuple[int, int, bytes]
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 5000), st.integers(0, 8), st.binary(max_size=8) | st.just(b"../../evil")
    ),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, changes: list[Change]) -> bytes:
    for at, length, new in changes:
        place = at % len(data) if data else 0
        data = data[:place] + new + data[place + length :]
    return data


def unpacked(data: bytes, kind: str) -> dict[str, bytes] | None:
    """What an archive gives; None when it is refused. Looks at what lies around."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "evil").write_bytes(b"untouched")
        into = folder / "a/b"
        try:
            done = unpack(io.BytesIO(data), artifact_for(data, kind), into)
        except TsukuError:
            done = None
        assert sorted(path.name for path in folder.iterdir()) in (["a", "evil"], ["evil"])
        assert (folder / "evil").read_bytes() == b"untouched"
        assert [path.name for path in (folder / "a").glob("*")] in (["b"], [])
        assert all(path.resolve().is_relative_to(into) for path in into.rglob("*"))
        if done is None:
            return None
        files = [item.path for item in done if isinstance(item, FileEntry)]
        return {path: (into / path).read_bytes() for path in files}


@fuzz
@given(CHANGES)
def test_A23_a_mutated_tar(changes: list[Change]) -> None:
    unpacked(gzip.compress(mutated(PLAIN_TAR, changes), compresslevel=1, mtime=0), "tar.gz")


@fuzz
@given(CHANGES)
def test_A23_a_mutated_gzip(changes: list[Change]) -> None:
    unpacked(mutated(gzip.compress(PLAIN_TAR, mtime=0), changes), "tar.gz")


@fuzz
@given(CHANGES)
def test_A24_a_mutated_zip_is_refused_or_read_as_others_read_it(changes: list[Change]) -> None:
    data = mutated(PLAIN_ZIP, changes)
    found = unpacked(data, "zip")
    if found is None:
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        others = {
            info.filename.removeprefix("./"): archive.read(info)
            for info in archive.infolist()
            if not info.is_dir()
        }
    assert found == others


PARTS = st.sampled_from(
    ["a", "b", "A", "..", ".", "", "l", "é", "e\u0301", "NUL", "c:d", "e\\f", "x" * 120]
)
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
MEMBERS = st.lists(
    st.builds(
        Tar,
        name=PATHS,
        kind=st.sampled_from([b"0", b"0", b"0", b"2", b"2", b"5", b"1", b"L", b"x"]),
        target=PATHS,
        data=st.sampled_from([b"", b"evil", b"20 path=../../evil\n"]),
    ),
    max_size=6,
)


@fuzz
@given(MEMBERS)
def test_A25_an_invented_tar_is_refused_or_read_as_others_read_it(members: list[Tar]) -> None:
    data = tar_gz(members)
    found = unpacked(data, "tar.gz")
    if found is None:
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        others = {
            info.name.removeprefix("./"): archive.extractfile(info).read()
            for info in archive
            if info.isreg()
        }
    assert found == others
