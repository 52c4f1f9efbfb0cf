"""The fleet of ``ci/fleet``: what a person expects of each host is what the program selects."""

import json

import pytest

from ci.fleetlab.company import offered, release
from ci.fleetlab.fleet import FRAIL, HOSTS, SNAPSHOTS, Expected
from ci.fleetlab.plays import outcomes
from tsuku_llm.catalog.manifest import parse_release
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.trust import VerifiedBytes


@pytest.mark.parametrize("host", [*HOSTS, *FRAIL], ids=lambda host: host.name)
def test_the_right_variant_of_each_host_is_selected(host: Expected) -> None:
    hardware = probe(ReplayHost.load(SNAPSHOTS / f"{host.machine}.json"))
    document = VerifiedBytes(json.dumps(release("b1", offered())).encode())
    selection = select(parse_release(document), hardware, Request())
    assert selection.selected.variant.name == host.variant


def test_the_fleet_has_five_hosts_that_differ_and_each_ring() -> None:
    assert len({host.machine for host in HOSTS}) == len(HOSTS) >= 5
    assert {host.variant for host in HOSTS} == set(offered())
    assert {host.ring for host in HOSTS} == {"canary", "early", "all"}


OUTPUT = """\
TASK [Install the build that fits] *********
changed: [smith]
fatal: [duo]: FAILED! => {"changed": false, "exit_code": 4, "msg": "[host-unreachable] no"}
fatal: [arc]: UNREACHABLE! => {"changed": false, "msg": "No route to host", "unreachable": true}

PLAY RECAP *********************************
arc        : ok=0    changed=0    unreachable=1    failed=0    skipped=0    rescued=0    ignored=0
duo        : ok=3    changed=2    unreachable=0    failed=1    skipped=0    rescued=0    ignored=0
smith      : ok=4    changed=3    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
"""


def test_what_ansible_prints_is_read() -> None:
    assert outcomes(OUTPUT) == {
        "arc": (0, "No route to host"),
        "duo": (2, "[host-unreachable] no"),
        "smith": (3, ""),
    }
