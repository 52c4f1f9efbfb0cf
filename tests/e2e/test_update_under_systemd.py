"""An unattended update by its own units, under a real systemd: the service is not restarted."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.convergence import SelfUpdating, self_updating
from support.user_systemd import UNITS, can_run, run_in_systemd

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not can_run(), reason="no systemd can be run here"
)

SCRIPT = """\
import json, subprocess

def systemctl(*words):
    return subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True)

def show(unit, name):
    return systemctl("show", "--value", "-p", name, unit).stdout.strip()

found = {"start": systemctl("start", "tsuku-llm").returncode, "pid": show("tsuku-llm", "MainPID")}
found["timer"] = systemctl("start", "tsuku-llm-update.timer").returncode
found["next"] = show("tsuku-llm-update.timer", "NextElapseUSecRealtime")
systemctl("start", "tsuku-llm-update.service")
found["code"] = show("tsuku-llm-update.service", "ExecMainStatus")
found["same"] = show("tsuku-llm", "MainPID") == found["pid"]
found["restarts"] = show("tsuku-llm", "NRestarts")
found["state"] = show("tsuku-llm", "ActiveState")
print(json.dumps(found))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SelfUpdating]:
    with self_updating(tmp_path) as machine:
        machine.publish("b1")
        machine.run("install")
        units = ("--output", str(machine.home / UNITS))
        machine.model.write_bytes(b"GGUF" + bytes(60))
        model = ("-m", str(machine.model))
        machine.run("service", "systemd", *units, *model, "--", "--port", "0")
        machine.run("update", "--systemd-unit", *units, "--window", "02:00-05:00")
        yield machine


def night(machine: SelfUpdating) -> Any:
    """Start the service, and then the update as the timer does."""
    done = run_in_systemd([sys.executable, "-c", SCRIPT], machine.home, machine.user.env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("serve", "code", "active"),
    [(("listen",), "0", "b2"), (("err the flux is open", "exit 42"), "9", "b1")],
    ids=["good", "bad"],
)
def test_the_service_gets_the_new_build_and_goes_back_without_a_restart(
    serve: tuple[str, ...], code: str, active: str, machine: SelfUpdating
) -> None:
    machine.publish("b2", serve)
    found = night(machine)
    assert (found["start"], found["timer"]) == (0, 0)
    assert found["next"]
    assert (found["code"], machine.active()) == (code, active)
    # The same supervisor, which systemd has watched all the time.
    assert (found["same"], found["restarts"], found["state"]) == (True, "0", "active")
