"""Progress: a bar on a terminal, else a line per archive; never in the way of the answer."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.program import environment
from support.tools import open_terminal

from tsuku_llm.cli.console import Console
from tsuku_llm.cli.progress_bar import Bar, Lines, SparseStatus, Status

SHOW = """
import sys
from tsuku_llm.cli.console import Console

console = Console(json="--json" in sys.argv)
console.progress.begin("build.tar.gz", 3_000_000)
console.progress.advance(1_500_000)
console.note("a note \\x1b[31m in between")
console.progress.advance(1_500_000)
console.progress.end()
console.note("rich" if "rich" in sys.modules else "plain")
"""


def test_lines_say_only_what_is_downloaded() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    lines.begin("a.tar.gz", 31_636_673)
    lines.advance(5)
    lines.end()
    lines.begin("b.zip", None)
    lines.close()
    assert said == ["fetching a.tar.gz (31.6 MB)", "fetching b.zip (?)"]


def test_without_a_terminal_there_are_lines() -> None:
    assert isinstance(Console(json=True).progress, Lines)
    assert isinstance(Console().progress, Lines)


def test_parallel_downloads_share_one_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()

    def fetch(number: int) -> None:
        bar.begin(f"{number}.zip", None if number == 3 else 1000)
        bar.advance(400)
        bar.begin(f"{number}.zip", 1000)
        for _ in range(10):
            bar.advance(100)
        bar.end()
        bar.end()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fetch, range(8)))
    bar.close()
    bar.close()
    assert "Traceback" not in capsys.readouterr().err


def test_a_bar_starts_no_thread() -> None:
    before = threading.active_count()
    bar = Bar()
    bar.begin("build.tar.gz", 1000)
    bar.advance(1000)
    assert threading.active_count() == before
    bar.end()


def on_terminal(home: Path, *arguments: str, **extra: str) -> str:
    """Return what the script writes to its terminal."""
    ours, theirs = open_terminal()
    with subprocess.Popen(
        [sys.executable, "-c", SHOW, *arguments],
        env=environment(home, **{"TERM": "xterm", "COLUMNS": "80", **extra}),
        stderr=theirs,
        stdout=subprocess.DEVNULL,
    ) as child:
        os.close(theirs)
        written = b""
        while chunk := _read(ours):
            written += chunk
        os.close(ours)
    assert child.returncode == 0
    return written.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux: the other end is closed
        return b""


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_a_terminal_gets_a_bar_and_whole_notes(tmp_path: Path) -> None:
    written = on_terminal(tmp_path)
    assert "build.tar.gz" in written
    assert "3.0" in written
    assert "a note \\x1b[31m in between" in written
    assert written.rstrip().endswith("rich")


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_a_dumb_terminal_and_json_get_lines(tmp_path: Path) -> None:
    for written in (on_terminal(tmp_path, TERM="dumb"), on_terminal(tmp_path, "--json")):
        assert written.splitlines() == [
            "fetching build.tar.gz (3.0 MB)",
            "a note \\x1b[31m in between",
            "plain",
        ]


def test_a_long_wait_is_a_line_each_time_that_it_has_doubled() -> None:
    now = 1000.0
    said: list[str] = []
    status = SparseStatus(said.append, lambda: now)
    for second in range(100):
        now = 1000.0 + second
        status.show(f"{second} s")
    status.close()
    assert said == ["10 s", "20 s", "40 s", "80 s"]


def test_a_long_wait_is_one_line_on_a_terminal_that_is_replaced_and_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    status = Status()
    status.show("loading \x1b[31m for 1 s")
    status.show("short")
    status.close()
    assert capsys.readouterr().err == "\r\x1b[Kloading \\x\r\x1b[Kshort\r\x1b[K"
