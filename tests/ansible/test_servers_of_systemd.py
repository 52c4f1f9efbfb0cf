"""The module ``server`` with services, under a real systemd of the test's own."""

import json
import socket
import sys
from pathlib import Path

import pytest
from support.ansible_modules import require_ansible
from support.convergence import self_updating
from support.user_systemd import can_run, run_in_systemd

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not can_run(), reason="no systemd can be run here"
)

PROGRAM = """\
import json, os, subprocess, sys
sys.path[:0] = {path!r}
from support.ansible_modules import Host

host = Host(dict(os.environ))
wanted = {{"supervisor": "systemd", "model": {model!r}, "args": ["--port", "{port}"]}}
found = {{}}

def asked(unit):
    words = ["systemctl", "--user", "show", "--value", "-p", "ActiveState,UnitFileState", unit]
    return subprocess.run(words, capture_output=True, text=True).stdout.split()

found["started"] = host.changes("server", **wanted)
found["on"] = asked("tsuku-llm.service")
more = {{**wanted, "args": [*wanted["args"], "-c", "512"]}}
found["changed"] = host.changes("server", **more)
found["stopped"] = host.changes("server", **{{**more, "state": "stopped"}})
found["off"] = asked("tsuku-llm.service")
found["demand"] = host.changes("server", **{{**more, "on_demand": True}})
found["socket"] = asked("tsuku-llm.socket")
found["absent"] = host.changes("server", **{{**more, "state": "absent"}})
found["left"] = os.listdir(os.path.expanduser("~/.config/systemd/user"))
print(json.dumps(found))
"""


def test_a_service_is_written_enabled_changed_and_removed(tmp_path: Path) -> None:
    require_ansible()
    with self_updating(tmp_path) as machine:
        machine.publish("b1")
        machine.run("repository", "refresh", "test")
        machine.run("install")
        machine.model.write_bytes(b"GGUF" + bytes(60))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        path = [str(Path(__file__).parents[at]) for at in (1, 2)]
        path.append(str(Path(__file__).parents[2] / "installer"))
        program = PROGRAM.format(path=path, model=str(machine.model), port=port)
        words = [sys.executable, "-c", program]
        done = run_in_systemd(words, machine.home, machine.user.env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["on"] == ["active", "enabled"]
    assert found["started"]["server"]["state"] == "running"
    (shown,) = found["changed"]["diff"]
    assert "512" in shown["after"]
    assert "512" not in shown["before"]
    assert found["changed"]["server"]["pid"] != found["started"]["server"]["pid"]
    assert found["off"] == ["inactive", "disabled"]
    assert found["socket"] == ["active", "enabled"]
    assert len(found["demand"]["units"]) == 3
    assert found["left"] == []
