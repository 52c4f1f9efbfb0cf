"""Progress: a line for each archive on a terminal, else a few; never in the way of the answer."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest
from jsonschema import Draft202012Validator
from support.program import environment
from support.tools import open_terminal

from ci.schemas import FOLDER, closed
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.progress_bar import (
    Bars,
    Job,
    JsonLines,
    Lines,
    ProgressEvent,
    SparseStatus,
    Status,
    amount,
    layout,
)

SHOW = """
import sys
from tsuku_llm.cli.terminal.console import Console

console = Console(json="--json" in sys.argv)
console.progress.begin("build.tar.gz", 3_000_000)
console.progress.advance(1_500_000)
console.progress.stage("build.tar.gz", "unpacking")
console.note("a note \\x1b[31m in between")
console.progress.advance(1_500_000)
console.progress.end()
console.progress.finish()
console.note("the end")
"""


REAL = "llama-b11429-bin-ubuntu-cuda-13.4-x64.tar.gz"
RUNTIME = "cudart-llama-bin-ubuntu-cuda-13.4-x64.tar.gz"
WHEEL = "llama_cpp_server_cu124-0.3.9-py3-none-manylinux_2_28_x86_64.whl"


def job(name: str, total: int | None, done: int, speed: int = 12_500_000, stage: str = "") -> Job:
    """An archive that has arrived at this speed for two seconds."""
    made = Job(name, total, done)
    made.samples += [(0.0, done - 2 * speed), (2.0, done)]
    made.stage, made.arriving = stage, not stage
    return made


def test_a_wide_terminal_has_everything() -> None:
    [line] = layout([job(REAL, 593_000_000, 255_000_000)], 199)
    assert line.startswith(f"{REAL} ████")
    assert line.endswith("░ " + "  255/593 MB 12.5 MB/s  0:27")


def test_eighty_columns_have_everything_and_the_telling_parts_of_the_name() -> None:
    [line] = layout([job(REAL, 593_000_000, 255_000_000)], 79)
    assert line.split() == [
        "llama-b11429-bin-ubuntu-cuda-13.4-x64",
        "█████░░░░░░░",
        *("255/593", "MB", "12.5", "MB/s", "0:27"),
    ]


def test_forty_columns_keep_name_amount_and_time() -> None:
    lines = layout([job(REAL, 593_000_000, 255_000_000), job(RUNTIME, 391_000_000, 0)], 39)
    assert lines == [
        "llama-…cuda-13.4-x64   255/593 MB  0:27",
        "cudart…cuda-13.4-x64  0.00/391 MB  0:31",
    ]


def test_a_size_that_is_not_known_has_no_end() -> None:
    [line] = layout([job(WHEEL, None, 12_300_000)], 79)
    assert "12.3/? MB 12.5 MB/s" in line
    assert "█" not in line
    assert layout([job(WHEEL, None, 12_300_000)], 39) == ["llama_…r_cu124-0.3.9    12.3/? MB"]


def test_what_is_done_after_the_download_is_in_the_same_line() -> None:
    jobs = [job(REAL, 593_000_000, 593_000_000, stage="unpacking"), Job("there.zip", None)]
    jobs[1].stage, jobs[1].arriving = "checking", False
    assert layout(jobs, 39) == [
        "llama-…cuda-13.4-x64 593 MB unpacking",
        "there.zip            checking",
    ]


@pytest.mark.parametrize("width", range(1, 120))
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    for each in (
        job(REAL, 10**12, 10**9),
        job(WHEEL, None, 5),
        job("a", 0, 0),
        job("b" * 300, 1, 1),
    ):
        assert all(len(line) <= width for line in layout([each], width))
        assert all(len(line) <= width for line in layout([each], width, plain=True))


def test_a_stream_without_blocks_gets_ascii() -> None:
    [line] = layout([job(REAL, 593_000_000, 255_000_000)], 99, plain=True)
    assert line.isascii()
    assert "####" in line


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [
        (0, 31_636_673, "0.00/31.6 MB"),
        (999_499_999, 999_499_999, "999 MB"),
        (10**6, 999_500_000, "0.00/1.00 GB"),
        (5, 900, "5/900 B"),
        (0, 0, "0 B"),
    ],
)
def test_an_amount_has_the_unit_of_the_whole(done: int, total: int, shown: str) -> None:
    assert amount(done, total) == shown


def test_what_an_earlier_run_left_does_not_count_as_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    now = 100.0
    bars = Bars(lambda: now)
    bars.begin("a.zip", 1_000_000_000, 800_000_000)
    bars.advance(1_000_000)
    now += 1
    written = ""
    while "MB/s" not in written:
        written += capsys.readouterr().err
    bars.close()
    assert "0.80/1.00 GB  1.0 MB/s  3:19" in written


def test_a_log_gets_the_begin_some_steps_and_the_end() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    lines.begin("a.tar.gz", 40_000_000, 4_000_000)
    lines.stage("a.tar.gz", "unpacking")
    for _ in range(9):
        lines.advance(4_000_000)
    lines.end()
    lines.stage("a.tar.gz", "checking")
    lines.begin("b.whl", None)
    lines.advance(250_000_000)
    lines.end()
    assert said == [
        "downloading a.tar.gz (40.0 MB, 4.0 MB of it are here already)",
        "downloading a.tar.gz: 25 %",
        "downloading a.tar.gz: 50 %",
        "downloading a.tar.gz: 75 %",
        "downloaded a.tar.gz",
        "unpacking a.tar.gz",
        "checking a.tar.gz",
        "downloading b.whl (size unknown)",
        "downloading b.whl: 250 MB",
    ]


def test_an_archive_that_did_not_arrive_is_not_called_downloaded_or_unpacked() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    # What unpacks waits for the first byte.
    lines.stage("small.zip", "unpacking")
    lines.begin("small.zip", 1000)
    lines.advance(999)
    lines.end()
    lines.finish()
    assert said == ["downloading small.zip (1.0 kB)"]


def test_without_a_terminal_there_are_lines() -> None:
    assert isinstance(Console(json=True).progress, JsonLines)
    assert isinstance(Console().progress, Lines)


def test_parallel_downloads_have_a_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "50")
    bars = Bars()
    ready, go_on = threading.Barrier(9), threading.Event()

    def fetch(number: int) -> None:
        bars.begin(f"{number}.zip", None if number == 3 else 1000)
        bars.advance(400)
        bars.begin(f"{number}.zip", 1000)
        for _ in range(10):
            bars.advance(100)
        ready.wait()
        go_on.wait()
        bars.end()
        bars.end()

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(fetch, number) for number in range(8)]
        ready.wait()
        capsys.readouterr()
        bars.note("a note")
        drawn = capsys.readouterr().err
        go_on.set()
        for each in jobs:
            each.result()
    assert drawn.startswith("\r\x1b[Ja note\n")
    assert all(f"{number}.zip" in drawn for number in range(8))
    bars.close()
    bars.close()
    capsys.readouterr()
    bars.begin("late.zip", 1000)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ends", ["end", "close"])
def test_the_thread_that_draws_ends_with_the_last_archive(ends: str) -> None:
    before = threading.active_count()
    bars = Bars()
    bars.begin("build.tar.gz", 1000)
    assert threading.active_count() == before + 1
    bars.begin("build.tar.gz", 1000)
    assert threading.active_count() == before + 1
    getattr(bars, ends)()
    assert threading.active_count() == before
    # What comes after the download starts none.
    bars.stage("build.tar.gz", "unpacking")
    assert threading.active_count() == before
    bars.close()


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
    assert "3.00 MB unpacking" in written
    assert "a note \\x1b[31m in between" in written
    assert written.endswith("\r\x1b[J\rthe end\r\n")


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_a_dumb_terminal_and_json_get_lines(tmp_path: Path) -> None:
    for written in (on_terminal(tmp_path, TERM="dumb"), on_terminal(tmp_path, "--json")):
        assert written.splitlines() == [
            "downloading build.tar.gz (3.0 MB)",
            "a note \\x1b[31m in between",
            "downloaded build.tar.gz",
            "unpacking build.tar.gz",
            "the end",
        ]


def test_a_program_gets_a_line_of_json_at_most_each_second() -> None:
    clock = iter((0.0, 0.5, 1.0, 1.0, 1.5, 1.9, 2.0, 2.0, 2.1, 2.2, 3.0, 3.5))
    said: list[ProgressEvent] = []
    events = JsonLines(said.append, lambda: next(clock))
    events.stage("metadata of official", "refreshing")
    events.begin("a.tar.gz", 100, 7)
    events.stage("a.tar.gz", "unpacking")  # it waits for the bytes
    for _ in range(5):
        events.advance(10)
    events.begin("a.tar.gz", 100)  # once more, from the begin
    events.advance(100)
    events.end()
    events.stage("a.tar.gz", "checking")
    events.finish()
    events.begin("b.whl", None)
    events.advance(5)
    events.end()
    assert [tuple(each) for each in said] == [
        ("refreshing", "metadata of official", 0, None, "B"),
        ("downloading", "a.tar.gz", 7, 100, "B"),
        ("downloading", "a.tar.gz", 27, 100, "B"),
        ("downloading", "a.tar.gz", 57, 100, "B"),
        ("downloading", "a.tar.gz", 0, 100, "B"),
        ("downloaded", "a.tar.gz", 100, 100, "B"),
        ("unpacking", "a.tar.gz", 100, 100, "B"),
        ("checking", "a.tar.gz", 100, 100, "B"),
        ("downloading", "b.whl", 0, None, "B"),
        ("downloaded", "b.whl", 5, None, "B"),
    ]


def test_a_download_that_breaks_off_is_not_told_as_downloaded() -> None:
    said: list[ProgressEvent] = []
    events = JsonLines(said.append, lambda: 0.0)
    events.begin("a.tar.gz", 100)
    events.advance(10)
    events.end()
    assert [each.event for each in said] == ["downloading"]


def test_with_json_in_a_pipe_each_line_of_progress_is_as_its_schema_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW, "--json"], capture_output=True, text=True, check=True
    )
    schema = json.loads((FOLDER / "progress-line.json").read_text("utf-8"))
    lines = done.stderr.splitlines()
    events = [json.loads(line) for line in lines if line.startswith('{"event": ')]
    for each in events:
        Draft202012Validator(closed(schema)).validate(each)
    assert [each["event"] for each in events] == ["downloading", "downloaded", "unpacking"]
    assert [line for line in lines if not line.startswith("{")] == [
        "a note \\x1b[31m in between",
        "the end",
    ]


def test_a_long_wait_is_a_line_in_a_log_at_the_next_pause_with_the_newest_text() -> None:
    said: Queue[str] = Queue()
    status = SparseStatus(said.put, (0.0, 0.0))
    status.show("the server starts")
    assert [said.get(), said.get()] == ["the server starts"] * 2
    status.show("it loads")
    status.close()
    assert said.empty()
    status.show("another one")
    assert said.get() == "another one"
    status.close()


def test_a_short_wait_is_no_line_in_a_log() -> None:
    said: Queue[str] = Queue()
    status = SparseStatus(said.put, (3600.0,))
    status.show("short")
    status.close()
    assert said.empty()


def test_a_long_wait_is_one_line_on_a_terminal_that_is_replaced_and_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    status = Status()
    status.show("loading \x1b[31m for 1 s")
    status.show("short")
    status.close()
    assert capsys.readouterr().err == "\r\x1b[Kloading \\x\r\x1b[Kshort\r\x1b[K"
