"""The units under a real systemd, with a stand-in server.

The manager runs in namespaces of the test's own, where a machine allows that (root, no nested
container without mounts). ``test_unit`` has what needs no manager.
"""

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.builds import stand_in
from support.program import environment, run_program
from support.stored import install
from support.user_systemd import UNITS, can_run, run_in_systemd

from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not can_run(), reason="no systemd can be run here"
)

TOOLS = """\
import json, os, signal, subprocess, sys, urllib.request

def systemctl(*words):
    return subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True)

def show(unit, name):
    return systemctl("show", "--value", "-p", name, unit).stdout.strip()

def until(unit, name, *values):
    while show(unit, name) not in values:
        pass

def ask(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return answer.status

def server_of(unit):
    main = show(unit, "MainPID")
    with open(f"/proc/{main}/task/{main}/children") as file:
        return int(file.read().split()[0])

found = {}
"""


class Machine:
    """A user with a build, whose systemd has the units of ``serve`` with some options."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(mode=0o755)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def install(self, serve: Sequence[str]) -> None:
        build = stand_in(self.folder / "build", backend="cpu", serve=serve)
        files = {path.name: path.read_bytes() for path in build.tree.iterdir()}
        install(Store(self.home / "llm"), "b100", files=files, links={})

    def units(self, *options: str) -> Path:
        folder = self.home / UNITS
        words = ("systemd", "--output", str(folder), *options)
        done = run_program(
            *("service", *words, "--", "--port", str(self.port)),
            env=environment(self.home),
            cwd=self.folder,
        )
        assert done.code == 0, done.stderr
        return folder

    def run(self, script: str) -> Any:
        """What a script has found beside the manager."""
        words = [sys.executable, "-c", f"{TOOLS}{script}\nprint(json.dumps(found))", str(self.port)]
        done = run_in_systemd(words, self.home, environment(self.home))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_unit_is_started_once_the_server_answers_and_stops_in_order(machine: Machine) -> None:
    machine.install(("loading 3", "listen"))
    machine.units()
    found = machine.run("""
found["start"] = systemctl("start", "tsuku-llm").returncode
found["answer"] = ask(sys.argv[1])
found["status"] = show("tsuku-llm", "StatusText")
found["stop"] = systemctl("stop", "tsuku-llm").returncode
found["result"] = show("tsuku-llm", "Result"), show("tsuku-llm", "ExecMainStatus")
""")
    assert (found["start"], found["answer"], found["stop"]) == (0, 200, 0)
    assert found["status"].startswith(
        f"cpu (on cpu); at http://127.0.0.1:{machine.port}/; requested=auto"
    )
    assert found["result"] == ["success", "0"]


def test_a_start_that_fails_is_explained_by_systemctl_and_not_tried_again(machine: Machine) -> None:
    failed = "err gguf_init_from_file: failed to open GGUF file '/no.gguf' (No such file)"
    machine.install((failed, "exit 1"))
    machine.units()
    found = machine.run("""
found["start"] = systemctl("start", "tsuku-llm").returncode
for name in ("StatusText", "ExecMainStatus", "NRestarts", "ActiveState"):
    found[name] = show("tsuku-llm", name)
""")
    assert found["start"] != 0
    assert "/no.gguf does not exist" in found["StatusText"]
    assert (found["ExecMainStatus"], found["NRestarts"]) == ("7", "0")
    assert found["ActiveState"] == "failed"


def test_a_server_that_hangs_is_started_again_by_the_watchdog(machine: Machine) -> None:
    machine.install(("listen",))
    unit = machine.units() / "tsuku-llm.service"
    text = unit.read_text()
    unit.write_text(text.replace("WatchdogSec=60", "WatchdogSec=2").replace("tSec=5", "tSec=0"))
    found = machine.run("""
systemctl("start", "tsuku-llm")
first = server_of("tsuku-llm")
os.kill(first, signal.SIGSTOP)
until("tsuku-llm", "NRestarts", "1")
until("tsuku-llm", "ActiveState", "active")
found["answer"] = ask(sys.argv[1])
found["left"] = os.path.exists(f"/proc/{first}")
""")
    assert found == {"answer": 200, "left": False}


def test_a_server_on_demand_is_started_by_a_connection_and_ends_when_idle(machine: Machine) -> None:
    machine.install(("loading 3", "listen"))
    machine.units("--on-demand", "--idle-timeout", "1s")
    found = machine.run("""
found["start"] = systemctl("start", "tsuku-llm.socket").returncode
found["before"] = show("tsuku-llm", "ActiveState")
for turn in "first", "second":
    # Nothing listens but systemd: the connection waits until the server has loaded.
    found[turn] = ask(sys.argv[1]), show("tsuku-llm.proxy", "ActiveState")
    server = server_of("tsuku-llm")
    until("tsuku-llm", "ActiveState", "inactive", "failed")
    found[f"after {turn}"] = show("tsuku-llm", "ActiveState"), os.path.exists(f"/proc/{server}")
    until("tsuku-llm.socket", "SubState", "listening")
found["proxy"] = show("tsuku-llm.proxy", "Result")
""")
    assert found == {
        "start": 0,
        "before": "inactive",
        "first": [200, "active"],
        "after first": ["inactive", False],
        "second": [200, "active"],
        "after second": ["inactive", False],
        "proxy": "success",
    }


def test_a_server_on_demand_that_cannot_start_is_not_tried_for_ever(machine: Machine) -> None:
    """Here the connection that waits would start it again and again."""
    failed = "err gguf_init_from_file: failed to open GGUF file '/no.gguf' (No such file)"
    machine.install((failed, "exit 1"))
    machine.units("--on-demand", "--idle-timeout", "60s")
    found = machine.run("""
systemctl("start", "tsuku-llm.socket")
try:
    ask(sys.argv[1])
except OSError:
    found["refused"] = True
until("tsuku-llm.socket", "ActiveState", "failed")
found["status"] = show("tsuku-llm", "StatusText")
found["server"] = show("tsuku-llm", "ActiveState")
""")
    assert found.pop("refused")
    assert "/no.gguf does not exist" in found["status"]
    assert found["server"] == "failed"
