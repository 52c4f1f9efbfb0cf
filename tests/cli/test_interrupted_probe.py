"""A signal while the drivers are asked leaves no child process and no folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import gone, only_child
from support.program import environment
from support.stub_drivers import StubDrivers


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("command", ["probe", "explain"])
def test_a_signal_while_a_driver_hangs_leaves_nothing(
    stubs: StubDrivers, tmp_path: Path, command: str, number: int, code: int
) -> None:
    scratch, calls = tmp_path / "scratch", tmp_path / "calls"
    scratch.mkdir()
    os.mkfifo(calls)
    environ = {
        **environment(tmp_path / "home"),
        # A signal in the middle of an import leaves the module's file to the collector.
        "PYTHONWARNINGS": "error,ignore::ResourceWarning",
        "LD_LIBRARY_PATH": f"{stubs.library('cuda').parent}:{stubs.none_installed()}",
        "TMPDIR": str(scratch),
        "STUB_calls": str(calls),
        "STUB_cuInit": "hang",
    }
    line = [sys.executable, "-m", "tsuku_llm", command]
    with subprocess.Popen(line, env=environ, stderr=subprocess.PIPE, text=True) as program:
        # The stub opens the pipe for each call, and hangs in this one.
        while "cuInit" not in calls.read_text(encoding="utf-8"):
            pass
        child = only_child(program.pid)
        assert [*scratch.iterdir()]
        program.send_signal(number)
        _, said = program.communicate()
    assert said == "error[interrupted]: stopped on request\n"
    # Ctrl-C within an ``eval`` of an import: then ``python -m`` ends by the signal itself.
    assert program.returncode in ((code, -number) if number == signal.SIGINT else (code,))
    assert gone(child)
    assert not [*scratch.iterdir()]
