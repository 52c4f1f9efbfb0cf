import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tsuku_llm.instances.log import older_log, open_log, read_log, rotate_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def writer(log: Path) -> Iterator[int]:
    descriptor = open_log(log)
    yield descriptor
    os.close(descriptor)


def test_a_log_stays_within_twice_its_limit_and_keeps_its_end(log: Path, writer: int) -> None:
    for number in range(1000):
        os.write(writer, b"line %03d\n" % number)
        rotate_log(log, (writer,), limit=900)
    assert log.stat().st_size <= 900
    assert older_log(log).stat().st_size <= 909
    said = b"".join(read_log(log)).splitlines()
    assert said == [b"line %03d" % number for number in range(1000 - len(said), 1000)]
    assert len(said) >= 100


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_only_the_user_can_read_a_log(log: Path, writer: int) -> None:
    os.write(writer, b"secret")
    assert rotate_log(log, (writer,), limit=1)
    assert [path.stat().st_mode & 0o777 for path in (log, older_log(log))] == [0o600, 0o600]


def test_a_log_that_is_not_full_is_not_rotated(log: Path, writer: int) -> None:
    os.write(writer, b"12345")
    assert not rotate_log(log, (writer,), limit=6)
    assert rotate_log(log, (writer,), limit=5)


def test_a_log_that_cannot_be_rotated_is_continued(log: Path, writer: int) -> None:
    os.write(writer, b"first ")
    older_log(log).mkdir()
    (older_log(log) / "in the way").touch()
    assert not rotate_log(log, (writer,), limit=1)
    os.write(writer, b"second")
    assert log.read_bytes() == b"first second"


def test_following_a_log_misses_nothing_at_a_rotation(log: Path, writer: int) -> None:
    steps = iter(range(20))
    over = False

    def is_over() -> bool:
        """Write more between two looks, as a server does."""
        nonlocal over
        if not over:
            number = next(steps, None)
            over = number is None
            os.write(writer, b"%s " % (b"end" if number is None else b"%02d" % number))
            rotate_log(log, (writer,), limit=7)
        return over

    os.write(writer, b"begin ")
    said = b"".join(read_log(log, is_over))
    assert said.split() == [b"begin", *(b"%02d" % number for number in range(20)), b"end"]
