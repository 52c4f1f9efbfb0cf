"""The fault laboratory holds the program at its calls, and never waits for ever."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.forked import Program
from support.waiting import Standstill, seen

from ci.faultlab.suite import ROOT
from ci.faultlab.trials import Trial, run_trial
from ci.faultlab.turns import build_turns, taking_turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ptrace is Linux's")

WRITERS = """
import os, subprocess, sys, threading
folder, threads, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()

def write(name):
    descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT)
    for number in range(times):
        os.pwrite(descriptor, b"x", number)

workers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
child = "import os, sys; [os.pwrite(int(sys.argv[1]), b'x', n) for n in range(int(sys.argv[2]))]"
descriptor = os.open(f"{folder}/child", os.O_WRONLY | os.O_CREAT)
command = [sys.executable, "-S", "-c", child, str(descriptor), str(times)]
subprocess.run(command, pass_fds=[descriptor], check=True)
for worker in workers:
    worker.join()
"""
THREADS, TIMES = 4, 50
PLUGINS = ("-p", "xdist", "-p", "ci.faultlab.recorder")
LIMIT = 600
"""Seconds; only so that a broken test ends."""


@contextmanager
def writers(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Four threads and a child that write to files of their own, once they are told to."""
    command = [sys.executable, "-S", "-c", WRITERS, str(folder), str(THREADS), str(TIMES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def turns(tmp_path: Path) -> Path:
    return build_turns(tmp_path)


def test_every_call_of_threads_and_children_is_stopped_before_it_runs(
    tmp_path: Path, turns: Path
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    told = 0
    with writers(folder) as process, taking_turns(turns, process.pid, folder) as calls:
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.flush()
        for call in calls:
            told += " pwrite64 " in call
            assert sum(path.stat().st_size for path in folder.iterdir()) == told
        assert process.wait(LIMIT) == 0
    assert told == (THREADS + 1) * TIMES


def test_a_process_without_calls_is_reported_and_killed(tmp_path: Path, turns: Path) -> None:
    with writers(tmp_path) as process:  # they never get the sign to begin
        with (
            pytest.raises(Standstill, match=rf"after the beginning: {process.pid} python\S* \w "),
            taking_turns(turns, process.pid, tmp_path, silence=0.1) as calls,
        ):
            next(calls)
        assert process.wait(LIMIT) == -signal.SIGKILL


def test_a_run_that_does_not_end_is_killed_and_fails(tmp_path: Path) -> None:
    program = Program(tmp_path)
    running = program.hold(["list"], os.environ, tmp_path)
    ended = running.end(0.1)
    assert ended.code < 0
    assert f"no end after 0.1 s: {running.pid} " in ended.wrong()[0]
    left = program.hold(["list"], os.environ, tmp_path)
    program.close()
    assert seen(left.pid) == "the process is gone"


def test_an_aborted_trial_fails() -> None:
    def show(*_: object) -> dict[str, object]:
        raise Standstill("it stands still")

    trial = Trial("a trial", frozenset({"C07", "C08"}), show)
    tallies = dict(run_trial(trial, None, ["C07"], 1))
    assert list(tallies) == ["C07"]
    assert tallies["C07"].wrong == ["broken off: it stands still"]


def test_a_hanging_test_fails_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import threading\ndef test_A01(): threading.Event().wait()\ndef test_A02(): pass\n",
        encoding="utf-8",
    )
    report = tmp_path / "report.json"
    env = {"FAULT_ROWS": "A01 A02", "FAULT_REPORT": str(report), "FAULT_LIMIT": "2"}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", *PLUGINS, "test_x.py"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    outcomes = json.loads(report.read_text("utf-8"))
    assert "crashed while running 'test_x.py::test_A01'" in outcomes["test_x.py::test_A01"]
    assert outcomes["test_x.py::test_A02"] == "passed"
    assert 'test_x.py", line 2 in test_A01' in done.stderr
