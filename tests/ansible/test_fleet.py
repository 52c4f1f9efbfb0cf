"""``fleet`` over real runs of Ansible: several hosts, each with a home, on this machine."""

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.ansible_modules import require_ansible
from support.convergence import SelfUpdating, self_updating
from support.program import COMMAND
from support.tools import require_tool

from tsuku_llm.cli.terminal.answer import plain
from tsuku_operator.cli.commands.fleet import lines
from tsuku_operator.fleet.fleet import judged

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
    require_tool("ssh")  # by which one of them cannot be reached
    good = dict.fromkeys(fleet.homes, "would change")
    bad = {"bare": "failed", "silent": "unreachable"}
    code, hosts, error = fleet.run("plan")
    assert (code, error["code"], states(hosts)) == (10, "fleet-failed", {**good, **bad})
    assert len(error["facts"]) == len(bad)
    _, _, error = fleet.run("plan", "--limit", "bare")
    assert error["message"] == "the host failed or was not reached"
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
    # From a folder, the name says which one: the tests' environment has a copy of it, or uses it.
    named = r"'[^' ]+\[fleet\]( @ file:[^' ]+)?'"
    assert re.search(rf"hint: install the extra: \S+ -m pip install {named}\n", done.stderr)


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


# --- N07, N08: names of hosts, odd answers, two at once ---------------------------------------


def test_N07_a_comma_makes_a_list_of_hosts(fleet: Fleet) -> None:
    require_tool("ssh")
    """Ansible's own rule; nothing listens at these ports."""
    for given, hosts in {
        "127.0.0.1:1,127.0.0.2:1": ["127.0.0.1", "127.0.0.2"],
        "127.0.0.3:1,": ["127.0.0.3"],
        " 127.0.0.1:1 , [::1]:1 ,": ["127.0.0.1", "::1"],
    }.items():
        done = fleet.user.run("fleet", "status", "--json", "-i", given)
        assert done.code == 10, done.stderr
        found = {each["host"]: each["state"] for each in done.document["data"]["hosts"]}
        assert found == dict.fromkeys(hosts, "unreachable"), given


@pytest.mark.parametrize(
    "given",
    [
        "-oProxyCommand=touch pwned,b",
        "a,-oProxyCommand=touch pwned",
        "a ansible_connection=local,b",
        "a,b\n[all:vars]\nansible_connection=local",
        "a,$(touch pwned)",
        "a,{{ lookup('pipe', 'touch pwned') }}",
        "a;b,c",
        "a,\x1b[2J",
    ],
)
def test_N07_a_list_of_hosts_has_names_of_hosts(given: str, fleet: Fleet) -> None:
    done = fleet.user.run("fleet", "status", "-i", given)
    assert (done.code, "is not the name of a host" in done.stderr) == (2, True), done.stderr
    assert "\x1b" not in done.stderr


def test_N07_the_hint_of_an_inventory_quotes_it(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "$(touch pwned) hosts"
    path.write_text("[all]\n", encoding="utf-8")
    done = fleet.user.run("fleet", "status", "-i", str(path))
    assert f"ansible-inventory -i '{path}' --graph" in done.stderr.replace("\n", " ")


FACTS = {"ansible_facts": {"tsuku_llm_gpus": ["NVIDIA H200"]}}
ODD: Mapping[str, tuple[str, str, Any]] = {
    "null": ("ok", "variant_info", None),
    "list": ("ok", "variant_info", [1]),
    "text": ("ok", "variant_info", "active"),
    "number": ("ok", "variant_info", 7),
    "no build": ("ok", "variant_info", {}),
    "a build that is a list": ("ok", "variant_info", {"active": ["vulkan"]}),
    "a build that is a text": ("ok", "variant_info", {"active": "vulkan"}),
    "a variant that is an object": (
        "ok",
        "variant_info",
        {"active": {"variant": {}, "release": "b1"}},
    ),
    "a release that is null": (
        "ok",
        "variant_info",
        {"active": {"variant": "cpu", "release": None}},
    ),
    "no facts": ("ok", "hardware_facts", {}),
    "facts that are null": ("ok", "hardware_facts", {"ansible_facts": None}),
    "GPUs that are null": ("ok", "hardware_facts", {"ansible_facts": {"tsuku_llm_gpus": None}}),
    "GPUs that are numbers": ("ok", "hardware_facts", {"ansible_facts": {"tsuku_llm_gpus": [1]}}),
    "nothing said of a change": ("ok", "variant", {"build": BUILD}),
    "a change that is a text": ("ok", "variant", {"build": BUILD, "changed": "no"}),
    "an error that is a text": ("failed", "variant", {"msg": "x", "error": "bad", "build": 3}),
    "an error's code that is a list": ("failed", "variant", {"msg": ["x"], "error": {"code": [1]}}),
    "a failure that is a list": ("failed", "variant", ["x"]),
    "a failure of nothing": ("failed", "variant", None),
    "no reason": ("unreachable", "variant", [{}]),
    "a reason of a megabyte": ("failed", "variant", {"msg": "x" * 1_000_000}),
    "a build of a megabyte": (
        "failed",
        "variant",
        {"msg": "x", "build": {"variant": "x" * 1_000_000, "release": "\x1b]0;x\x07"}},
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_N07_an_odd_answer_is_a_row_of_its_host_alone(odd: str) -> None:
    kind, module, res = ODD[odd]
    events = [
        event("ok", "a", "hardware_facts", **FACTS),
        {
            "event": f"runner_on_{kind}",
            "host": "b",
            "task_action": f"tsuku.llm.{module}",
            "res": res,
        },
        event("ok", "a", "variant_info", active=BUILD),
        event("ok", "c", "variant_info", active=None),
    ]
    a, b, c = hosts = judged(
        "status" if module != "variant" else "apply", json.loads(json.dumps(events))
    )
    assert (a.device, a.variant, a.release) == ("NVIDIA H200", "vulkan", "b1")
    assert c.host == "c"
    assert b.state in ("failed", "unreachable")
    assert b.reason
    if kind == "ok":
        assert "cannot be understood" in b.reason
    assert all(len(str(each)) < 2000 for each in hosts)
    rows = lines(hosts)
    assert [row.split()[0] for row in rows[1:]] == ["a", "b", "c"]
    assert json.dumps(plain(hosts))


def test_N07_a_host_that_prints_odd_things_does_not_end_the_report(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Real runs: what each odd host says in place of our program."""
    says = {
        "nothing": "",
        "text": "hello",
        "null": "null",
        "listing": "[]",
        "number": "1e999",
        "deep": "[" * 100_000,
        "nodata": '{"format": 1, "status": "ok", "exit_code": 0, "data": null, "error": null}',
        "empty": '{"format": 1, "status": "ok", "exit_code": 0, "data": {}, "error": null}',
        "bytes": "\xff\xfe",
    }
    rows = {}
    for name, text in says.items():
        (tmp_path / f"{name}.txt").write_bytes(text.encode("latin-1"))
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.txt\n", encoding="utf-8")
        tool.chmod(0o755)
        rows[name] = f"tsuku_llm_executable={tool}"
    fleet.write(**rows)
    code, hosts, _ = fleet.run("status")
    fleet.write()
    assert code == 10
    assert {name: hosts[name]["state"] for name in says} == dict.fromkeys(says, "failed")
    assert {hosts[name]["state"] for name in fleet.homes} <= {"active", "empty"}


def test_N08_two_runs_on_one_inventory_come_one_after_the_other(
    fleet: Fleet, tmp_path: Path
) -> None:
    gate, tool = tmp_path / "gate", tmp_path / "tool"
    os.mkfifo(gate)
    # The first one to come waits at the fifo, and then takes it away.
    tool.write_text(
        f"#!/bin/sh\nif mv {gate} {gate}.$$ 2>/dev/null; then cat {gate}.$$ >&2; fi\n"
        'exec tsuku-llm "$@"\n',
        encoding="utf-8",
    )
    tool.chmod(0o755)
    fleet.write(slow=f"tsuku_llm_executable={tool} tsuku_llm_home={fleet.homes['one']}")
    words = (*COMMAND, "fleet", "apply", "-i", str(fleet.inventory), "--limit", "slow")
    first, second = (
        subprocess.Popen(
            words, env=fleet.user.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    )
    with ExitStack() as ending:
        for each in (first, second):
            ending.enter_context(each)
            ending.callback(each.kill)
            assert each.stderr
            assert "simulated" in each.stderr.readline()
        # One of them says that it waits for the other; only then does that one go on.
        ready = select.select([first.stderr, second.stderr], [], [])[0][0]
        said = ready.readline()
        # The holder may not have written its name yet.
        assert said.startswith("waiting for "), said
        (waits,) = _named(tmp_path, "gate.*")
        waits.write_text("go on\n", encoding="utf-8")
        assert [first.wait(), second.wait()] == [0, 0]
        # Others may look meanwhile: a look holds no lock.
    fleet.write()


def _named(folder: Path, pattern: str) -> list[Path]:
    """Wait, by giving way, until there is a file of such a name."""
    while not (found := list(folder.glob(pattern))):
        os.sched_yield()
    return found
