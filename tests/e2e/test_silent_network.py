"""The whole program behind a firewall that swallows every packet (row S05).

A network namespace has one way out, a cable whose other end does not answer. Nothing leaves
this machine.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tools import require_tool

SILENT = """
set -e
ip link set lo up
ip link add out type veth peer name swallowed
ip address add 192.0.2.1/24 dev out
ip link set out up
ip link set swallowed up
ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev out
ip route add default via 192.0.2.2
mount --bind "$HOSTS" /etc/hosts
exec "$@"
"""
HOSTS = ("github.com", "releases.tsuku.dev")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="network namespaces need root on Linux"
    ),
]


def lines_of(tmp_path: Path, addresses: int, *words: str, until: str) -> dict[str, float]:
    """What a command says, each line with its second, until a line has ``until`` in it."""
    for tool in ("ip", "unshare", "mount"):
        require_tool(tool)
    hosts = tmp_path / "hosts"
    named = [f"198.51.100.{number} {host}" for number in range(1, addresses + 1) for host in HOSTS]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *named, ""]))
    command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", SILENT, "sh"]
    environ = {**os.environ, "TSUKU_HOME": str(tmp_path / "home"), "HOSTS": str(hosts)}
    if subprocess.run([*command, "true"], env=environ, capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    said: dict[str, float] = {}
    began = time.monotonic()
    with subprocess.Popen(
        [*command, sys.executable, "-m", "tsuku_llm", *words],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as program:  # fmt: skip
        assert program.stdout
        for line in program.stdout:
            said[line.rstrip()] = time.monotonic() - began
            if until in line:
                program.terminate()
    return said


@pytest.mark.parametrize("addresses", [1, 8])
def test_S05_an_install_falls_back_within_forty_seconds(tmp_path: Path, addresses: int) -> None:
    said = lines_of(tmp_path, addresses, "install", until="falling back to channel index")
    fallback = next(line for line in said if "falling back to channel index" in line)
    assert said[fallback] < 40
    assert any(line.startswith("connecting to github.com (") for line in said)


@pytest.mark.parametrize("addresses", [2, 8, 16])
def test_S05_a_refresh_ends_within_its_thirty_seconds(tmp_path: Path, addresses: int) -> None:
    said = lines_of(tmp_path, addresses, "repository", "refresh", until="hint:")
    refused = next(line for line in said if line.startswith("error[host-unreachable]"))
    assert said[refused] < 35  # the interpreter and the lock take their time on a busy machine
    assert any(f"({addresses} addresses, none answers)" in line for line in said)
