"""Files that are inflated, hashed and written at the same time: large ones, and many."""

import gzip
import hashlib
import io
import itertools
import random
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.archives import Tar, Zip, artifact_for, tar, tar_gz, zipped
from support.inflaters import inflater  # noqa: F401 - runs each test with both libraries

from tsuku_llm.archive.formats.member import CHUNK
from tsuku_llm.archive.unpack import unpack
from tsuku_llm.ground.errors import TsukuError, UnsafeArchive

LARGE = random.Random(3).randbytes(9 * CHUNK + 17)  # noqa: S311 - more than may wait to be written
WORDS = bytes(random.Random(5).choices(b"server \n", k=CHUNK // 8)) * 8  # noqa: S311


def digests(data: bytes, kind: str, into: Path) -> dict[str, str]:
    done = unpack(io.BytesIO(data), artifact_for(data, kind), into)
    assert [item.path for item in done] == sorted(item.path for item in done)
    found = {item.path: item.sha256 for item in done}
    for path, digest in found.items():
        assert hashlib.sha256((into / path).read_bytes()).hexdigest() == digest
    return found


def contents() -> dict[str, bytes]:
    small = {f"small-{n}": b"%d" % n for n in range(40)}
    return {"a/large": LARGE, **small, "b/large": LARGE[::-1], "last": b""}


def expected() -> dict[str, str]:
    return {path: hashlib.sha256(data).hexdigest() for path, data in contents().items()}


def test_large_and_small_members_of_a_tar_are_complete(tmp_path: Path) -> None:
    data = tar_gz([Tar(name=path, data=data) for path, data in contents().items()])
    assert digests(data, "tar.gz", tmp_path / "t") == expected()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_a_zip_are_unpacked_in_parallel(tmp_path: Path, method: int) -> None:
    members = [Zip(name=path, data=data, method=method) for path, data in contents().items()]
    assert digests(zipped(members), "zip", tmp_path / "t") == expected()


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_member_may_end_where_a_chunk_ends(
    tmp_path: Path, kind: str, seed: int, size: int
) -> None:
    """All input is used then, while the mark of the stream's end is still held back."""
    content = (random.Random(seed).randbytes(4 + seed * 9) * size)[:size]  # noqa: S311
    packed = zipped([Zip(name="f", data=content)]) if kind == "zip" else tar_gz(
        [Tar(name="f", data=content)]
    )  # fmt: skip
    assert digests(packed, kind, tmp_path / "t") == {"f": hashlib.sha256(content).hexdigest()}


def test_a_folder_in_the_place_of_a_large_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t/f").mkdir(parents=True)
    for kind, data in (
        ("tar.gz", tar_gz([Tar(name="f", data=LARGE), Tar(name="g", data=LARGE)])),
        ("zip", zipped([Zip(name="f", data=LARGE), Zip(name="g", data=LARGE)])),
    ):
        with pytest.raises(UnsafeArchive, match="used by something that is not a file"):
            unpack(io.BytesIO(data), artifact_for(data, kind), tmp_path / "t")


@pytest.mark.parametrize("flaw", ["cut", "checksum"])
def test_A23_damage_in_the_middle_of_a_large_member_is_an_error(tmp_path: Path, flaw: str) -> None:
    whole = tar_gz([Tar(name="f", data=LARGE)])
    data = whole[: len(whole) // 2] if flaw == "cut" else whole[:-8] + b"abcd" + whole[-4:]
    with pytest.raises(UnsafeArchive):
        unpack(io.BytesIO(data), artifact_for(data, "tar.gz"), tmp_path / "t")


def test_A23_one_damaged_member_of_a_zip_stops_the_others(tmp_path: Path) -> None:
    members = [Zip(name=f"f{n}", data=LARGE, central={"crc": 1} if n else {}) for n in range(5)]
    members = [Zip(name=m.name, data=m.data, local=m.central, central=m.central) for m in members]
    data = zipped(members)
    with pytest.raises(UnsafeArchive, match="checksum"):
        unpack(io.BytesIO(data), artifact_for(data, "zip"), tmp_path / "t")


class Interrupting(io.BytesIO):
    """A file in whose middle the user presses Ctrl-C."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > len(self.getvalue()) // 2:
            raise KeyboardInterrupt
        return super().read(size)


def test_no_thread_goes_on_after_an_interrupt(tmp_path: Path) -> None:
    data = tar_gz([Tar(name="f", data=LARGE)])
    with pytest.raises(KeyboardInterrupt):
        unpack(Interrupting(data), artifact_for(data, "tar.gz"), tmp_path / "t")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unpack")]


@pytest.mark.parametrize("parts", [(700, 9000), (512,), (1, 2, 3)])
def test_gzip_members_with_padding_between_them(tmp_path: Path, parts: Sequence[int]) -> None:
    plain = tar([Tar(name="f", data=WORDS)])
    edges = [0, *parts, len(plain)]
    packed = b"".join(
        gzip.compress(plain[start:end]) + bytes(600) for start, end in itertools.pairwise(edges)
    )
    assert digests(packed, "tar.gz", tmp_path / "t") == {"f": hashlib.sha256(WORDS).hexdigest()}
    with pytest.raises(TsukuError):
        unpack(io.BytesIO(packed + b"x"), artifact_for(packed, "tar.gz"), tmp_path / "u")
