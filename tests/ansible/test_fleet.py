"""``fleet`` over real runs of Ansible: several hosts, each with a home, on this machine."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.ansible_modules import require_ansible
from support.convergence import SelfUpdating, self_updating

from tsuku_llm.operations.fleet import judged

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

UNREACHABLE = "ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=1 ansible_user=nobody"


class Fleet:
    """Hosts with homes of their own, one without the program, and one that does not answer."""

    def __init__(self, machine: SelfUpdating, folder: Path) -> None:
        self.machine = machine
        self.user = machine.user
        self.inventory = folder / "hosts"
        self.homes = {name: folder / name for name in ("one", "two", "three")}
        for home in self.homes.values():
            home.mkdir(mode=0o755)
            machine.shop.user(home)
        self.write(bare="tsuku_llm_executable=/nowhere/tsuku-llm", silent=UNREACHABLE)

    def write(self, **more: str) -> None:
        """Write the inventory, with more hosts."""
        hosts = {name: f"tsuku_llm_home={home}" for name, home in self.homes.items()}
        rows = "".join(f"{name} {words}\n" for name, words in {**hosts, **more}.items())
        local = "ansible_connection=local\nansible_python_interpreter=" + sys.executable
        self.inventory.write_text(f"{rows}\n[all:vars]\n{local}\n", encoding="utf-8")

    def run(self, action: str, *words: str) -> tuple[int, dict[str, dict[str, Any]], Any]:
        """Run ``fleet`` as JSON; return its exit code, each host and the error."""
        done = self.user.run("fleet", action, "--json", "-i", str(self.inventory), *words)
        document = done.document
        assert document["exit_code"] == done.code
        hosts = {each["host"]: each for each in document["data"].get("hosts", ())}
        return done.code, hosts, document["error"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    require_ansible()
    folder = tmp_path_factory.mktemp("fleet")
    with self_updating(folder) as machine:
        machine.publish("b1")
        yield Fleet(machine, folder)


def states(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: str(each["state"]) for name, each in hosts.items()}


def test_hosts_that_fail_are_named_and_the_others_go_on(fleet: Fleet) -> None:
    good = dict.fromkeys(fleet.homes, "would change")
    bad = {"bare": "failed", "silent": "unreachable"}
    code, hosts, error = fleet.run("plan")
    assert (code, error["code"], states(hosts)) == (10, "fleet-failed", {**good, **bad})
    assert len(error["facts"]) == len(bad)
    assert not [name for name, home in fleet.homes.items() if (home / "llm/active.json").exists()]
    code, hosts, error = fleet.run("apply")
    assert (code, states(hosts)) == (10, {**dict.fromkeys(good, "changed"), **bad})
    assert (hosts["one"]["release"], hosts["one"]["variant"]) == ("b1", "cpu")
    assert hosts["one"]["device"] == "NVIDIA H200"
    assert hosts["bare"]["code"] == "no-tool"
    assert "tsuku.llm.tool" in hosts["bare"]["reason"]
    assert "port 1" in hosts["silent"]["reason"]


def test_a_bad_release_stops_at_the_first_host(fleet: Fleet) -> None:
    fleet.write()
    code, hosts, _ = fleet.run("apply")
    assert (code, set(states(hosts).values())) in ((0, {"unchanged"}), (0, {"changed"}))
    fleet.machine.publish("b2", version=("err no flux", "exit 42"))
    code, hosts, error = fleet.run("apply", "--update")
    assert states(hosts) == {"one": "went back", "two": "not reached", "three": "not reached"}
    assert (code, error["code"], len(error["facts"])) == (10, "fleet-failed", 3)
    fleet.machine.publish("b3")
    code, hosts, _ = fleet.run("apply", "--update")
    assert (code, set(states(hosts).values())) == (0, {"changed"})
    table = fleet.user.run("fleet", "status", "-i", str(fleet.inventory))
    assert table.code == 0, table.stderr
    head, *rows = table.stdout.splitlines()
    assert head.split() == ["host", "GPU", "variant", "release", "state", "reason"]
    for row, name in zip(rows, sorted(fleet.homes), strict=True):
        assert row.split() == [name, "NVIDIA", "H200", "cpu", "b3", "active"]


def test_an_inventory_that_is_none_is_one_clear_error(fleet: Fleet, tmp_path: Path) -> None:
    missing = fleet.user.run("fleet", "status", "-i", "/nowhere/hosts")
    assert (missing.code, missing.stdout) == (2, "")
    assert "there is no inventory /nowhere/hosts" in missing.stderr
    (tmp_path / "hosts").write_text("[all]\n", encoding="utf-8")
    empty = fleet.user.run("fleet", "status", "-i", str(tmp_path / "hosts"))
    assert empty.code in (2, 10)
    assert "error[" in empty.stderr
    assert "Traceback" not in empty.stderr
    assert "\\n" not in empty.stderr


def test_without_the_extra_the_hint_names_it(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "ansible_runner.py").write_text("raise ImportError('no module')", encoding="utf-8")
    done = fleet.user.run("fleet", "status", "-i", "a,", PYTHONPATH=str(tmp_path))
    assert done.code == 2
    assert re.search(r"hint: install the extra: \S+ -m pip install \S+\[fleet\]'", done.stderr)


def event(kind: str, host: str, module: str = "variant", **res: Any) -> dict[str, Any]:
    named = f"tsuku.llm.{module}"
    return {"event": f"runner_on_{kind}", "host": host, "task_action": named, "res": res}


BUILD = {"variant": "vulkan", "release": "b1"}


def test_a_batch_goes_back_together() -> None:
    rolled_back = {"code": "update-rolled-back"}
    events = [
        *(event("ok", name, "variant_info", active=BUILD) for name in ("a", "b", "c")),
        event("failed", "a", msg="the server\nended", error=rolled_back, build=BUILD),
        event("ok", "b", changed=True, build={**BUILD, "release": "b2"}),
        event("ok", "b", changed=True, build=BUILD),
        *(event("failed", name, "fail", msg="went back") for name in ("a", "b")),
    ]
    a, b, c = judged("apply", json.loads(json.dumps(events)))
    assert (a.state, a.reason, a.code) == ("went back", "the server ended", "update-rolled-back")
    assert (b.state, b.release, b.reason, b.code) == ("went back", "b1", "went back", None)
    assert (c.state, c.release) == ("not reached", "b1")
