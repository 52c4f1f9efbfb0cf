"""``ci/at``: the calendar of another day, for a tree of processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.the_day import shifting
from support.tools import require_tool

ROOT = Path(__file__).parents[2]
DAY = 86_400
FAR = 4_500
"""Days: after 2038-01-19, where 32 bits end."""

SEEN = """
import ctypes, json, os, subprocess, sys, tempfile, threading, time
from pathlib import Path

file = Path(tempfile.mkdtemp(), "file")
file.touch()
made = file.stat().st_mtime
os.utime(file, (5, 5))
entry = next(os.scandir(file.parent))
aged = [file.stat().st_mtime, os.lstat(file).st_mtime, entry.stat().st_mtime]
os.utime(file)
renewed = file.stat()
before = time.monotonic()
waited = threading.Condition()
with waited:
    waited.wait(0.01)
threading.Semaphore(0).acquire(timeout=0.01)
second = ctypes.c_long * 2
lock = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.time.restype = ctypes.c_long
libc.sem_init(lock, 0, 0)
libc.sem_timedwait(lock, ctypes.byref(second(int(time.time()), 0)))
clocks = [time.time(), time.clock_gettime(time.CLOCK_REALTIME), float(libc.time(None))]
clocks += [float(subprocess.check_output(["date", "+%s"]))]
print(json.dumps({
    "clocks": clocks, "files": [made, renewed.st_mtime, renewed.st_ctime], "aged": aged,
    "monotonic": before, "took": time.monotonic() - before,
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("days")


@pytest.mark.skipif(sys.platform != "linux", reason="ci/at is for Linux")
@pytest.mark.parametrize("days", [0, 1, 30, 60, 400, -1, -300, -330, FAR])
def test_clocks_and_files_have_the_other_day_and_waits_do_not(folder: Path, days: int) -> None:
    library = shifting(days * DAY, folder)
    done = subprocess.run(
        [sys.executable, "-c", SEEN],
        env={"PATH": os.environ["PATH"], "LD_PRELOAD": library},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout)
    there = time.time() + days * DAY
    for each in (*seen["clocks"], *seen["files"]):
        assert abs(each - there) < DAY / 2, seen
    assert seen["aged"] == [5, 5, 5]
    assert abs(seen["monotonic"] - time.monotonic()) < DAY / 2
    assert seen["took"] < DAY / 2, "no wait becomes one of days"


@pytest.mark.parametrize("words", [(), ("400",), ("tomorrow",), ("--help",)])
def test_a_day_that_is_none_is_answered_with_the_usage(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [require_tool("bash"), ROOT / "ci" / "at", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "ci/at +400" in done.stderr
