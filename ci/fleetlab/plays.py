"""Plays: what the control node does to the hosts with Ansible, and how each host ended."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from ci.fleetlab.fleet import COMPANY, FRAIL, HOSTS, ROOT, Fleet
from ci.fleetlab.network import HOME, MIRROR, OUTSIDE
from ci.fleetlab.timers import METRICS

BARE = tuple(each.name for each in (*HOSTS, *FRAIL) if each.program)
"""The hosts that have no program at first."""

_PLAYBOOKS = Path(__file__).parent

_RECAP = re.compile(r"(?m)^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)")
_FATAL = re.compile(r"(?m)^fatal: \[([^\]]+)\]: (?:FAILED|UNREACHABLE)! => (\{.*\})$")


class Ended(NamedTuple):
    """How a play ended on a host; ``reason`` is empty if it went well."""

    changed: int
    reason: str


class Play(NamedTuple):
    """A play that has ended: its exit code, how each host that it reached ended, its output."""

    code: int
    hosts: dict[str, Ended]
    text: str

    @property
    def failed(self) -> dict[str, str]:
        """The reasons of the hosts that failed."""
        return {name: each.reason for name, each in self.hosts.items() if each.reason}


class Row(NamedTuple):
    """A host in the table of ``tsuku-llm fleet``."""

    state: str
    release: str | None
    reason: str


class Table(NamedTuple):
    """A table of ``tsuku-llm fleet``: the exit code, each host's row, the whole output."""

    code: int
    hosts: dict[str, Row]
    text: str


def play(fleet: Fleet, name: str, hosts: str = "llm") -> Play:
    """Run a playbook of the lab on the control node, for a pattern of the inventory."""
    _prepare(fleet)
    env = {
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "installer"),
        "ANSIBLE_FORKS": str(len(fleet.hosts)),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "ANSIBLE_TIMEOUT": "60",
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = fleet.on_control(program, "-i", "inventory.json", "--limit", hosts, name, **env)
    return Play(done.returncode, outcomes(done.stdout), done.stdout + done.stderr)


def outcomes(text: str) -> dict[str, Ended]:
    """Read from the output of a playbook how each host ended."""
    reasons = {host: json.loads(result)["msg"] for host, result in _FATAL.findall(text)}
    return {
        host: Ended(int(changed), reasons.get(host, "failed") if int(lost) + int(failed) else "")
        for host, changed, lost, failed in _RECAP.findall(text)
    }


def fleet_table(fleet: Fleet, *words: str) -> Table:
    """Run ``tsuku-llm fleet`` on the control node; return its table."""
    _prepare(fleet)
    where = ("-i", "inventory.json", "--limit", "llm")
    done = fleet.on_control("tsuku-llm", "fleet", *words, *where, "--json")
    document = json.loads(done.stdout)
    rows = (document["data"] or {}).get("hosts", ())
    states = {row["host"]: Row(row["state"], row["release"], row["reason"] or "") for row in rows}
    return Table(done.returncode, states, done.stdout + done.stderr)


def _prepare(fleet: Fleet) -> None:
    """Put the inventory and the playbooks on the control node."""
    inventory = {
        "all": {
            "vars": {
                "ansible_python_interpreter": "/usr/bin/python3",
                "outside_url": f"https://{OUTSIDE}/{COMPANY}/",
                "mirror_url": f"https://{MIRROR}/llm/",
                "home": HOME,
                "metrics": METRICS,
                # The wheels are those of the lab's own environment, so they need its Python.
                "python": os.path.realpath(sys.executable),
            },
            "hosts": {"mirror": {}},
            "children": {
                "llm": {
                    "hosts": {
                        each.name: {"ring": each.ring, "program": each.program}
                        for each in (*HOSTS, *FRAIL)
                    }
                },
                "bare": {"hosts": {name: {} for name in BARE}},
            },
        }
    }
    (fleet.control.home / "inventory.json").write_text(json.dumps(inventory), "utf-8")
    for path in _PLAYBOOKS.glob("*.yml"):
        (fleet.control.home / path.name).write_bytes(path.read_bytes())
