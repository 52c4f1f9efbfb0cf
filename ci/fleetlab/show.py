"""A run of the show: what is asked of the machines, and what is claimed about the answers."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ci.fleetlab.company import Company
from ci.fleetlab.fleet import HOSTS, Fleet
from ci.fleetlab.plays import Play, Table, fleet_table, play
from ci.fleetlab.timers import METRICS

SOUND = tuple(each.name for each in HOSTS)

_FETCH = """\
import sys, time, urllib.request
for _ in range(300):
    try:
        text = urllib.request.urlopen(sys.argv[1], timeout=60).read().decode()
    except OSError:
        text = ""
    if "tsuku_llm_server_info" in text:
        break
    time.sleep(1)
print(text)
"""


class NotShownError(Exception):
    """The error for a claim that does not hold here."""


class Show:
    """It says what was seen, and when."""

    def __init__(self, fleet: Fleet, company: Company) -> None:
        self.fleet = fleet
        self.company = company
        self.shown = 0
        """How many claims were seen to hold."""

        self.printed = ""
        """What the control node's last command printed, for a claim that does not hold."""

        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line at once, with the seconds since all machines ran."""
        sys.stdout.write(f"{time.monotonic() - self._began:5.0f} s  {text}\n")
        sys.stdout.flush()

    def require(self, what: str, seen: object, wanted: object) -> None:
        """Say that something is so; raise ``NotShownError`` if it is not."""
        if seen != wanted:
            raise NotShownError(f"this is not so: {what}\n  seen:   {seen}\n  wanted: {wanted}")
        self.shown += 1
        self.say(f"so it is: {what}")

    def play(self, name: str, hosts: str = "llm") -> Play:
        """Run a playbook, for all hosts if none is named."""
        ended = play(self.fleet, name, hosts)
        self.printed = ended.text
        if not ended.hosts:
            raise NotShownError(f"{name} came to no host")
        return ended

    def table(self, *words: str) -> Table:
        """Run ``tsuku-llm fleet`` for all hosts."""
        ended = fleet_table(self.fleet, *words)
        self.printed = ended.text
        return ended

    def of_all(self, ask: Callable[[str], Any], names: Sequence[str] = SOUND) -> dict[str, Any]:
        """Ask several hosts at once."""
        with ThreadPoolExecutor(len(names)) as pool:
            return dict(zip(names, pool.map(ask, names), strict=True))

    def program(self, host: str) -> str:
        """Return the version of the program on a host; "" if it is not installed."""
        return self.fleet.ssh(host, "tsuku-llm", "--version").stdout.strip()

    def exported(self, host: str) -> tuple[str, float]:
        """Return what a host's node exporter tells over HTTP: the release, and whether it is up."""
        address = f"{self.fleet.hosts[host].addresses['admin']}:9100"
        folder = METRICS.rpartition("/")[0]
        runs = ("systemd-run", "--user", "--quiet", "prometheus-node-exporter")
        only = ("--collector.disable-defaults", "--collector.textfile")
        where = (f"--collector.textfile.directory={folder}", f"--web.listen-address={address}")
        self.fleet.ssh(host, *runs, *only, *where)
        # The timer of the role has written, or does so within its interval of a minute.
        told = self.fleet.on_control("/usr/bin/python3", "-c", _FETCH, f"http://{address}/metrics")
        samples = {
            sample.name: sample
            for family in text_string_to_metric_families(told.stdout)
            for sample in family.samples
        }
        info, up = samples.get("tsuku_llm_server_info"), samples.get("tsuku_llm_server_up")
        return (info.labels["release"] if info else told.stderr, up.value if up else 0.0)

    def active(self, host: str) -> str:
        """Return the version that is active on a host, such as ``b1-cpu``."""
        versions = self._told(host, "list")["versions"]
        return next((each["id"].rpartition("-")[0] for each in versions if each["active"]), "")

    def serves(self, host: str) -> str:
        """Return the release that a host's server runs."""
        (server,) = self._told(host, "status")["servers"]
        return str(server["report"]["release"]) if server["state"] == "running" else "down"

    def _told(self, host: str, *words: str) -> Any:
        done = self.fleet.ssh(host, "tsuku-llm", *words, "--json")
        return json.loads(done.stdout)["data"]

    def reaches(self, host: str, address: str) -> bool:
        """Tell whether a host gets a connection to the web server at an address."""
        code = f"import socket; socket.create_connection(({address!r}, 80), 10)"
        return self.fleet.ssh(host, "/usr/bin/python3", "-c", code).returncode == 0

    def state(self, host: str) -> dict[str, str]:
        """Return what a play may change on a host, to compare it with a later state.

        These are the files that are installed, set and unit, and the process that serves. What is
        remembered of the metadata is left out: each look renews it.
        """
        home = self.fleet.hosts[host].home
        found = {}
        for folder in (".config", ".local/share/tsuku-llm/versions"):
            for path in (home / folder).rglob("*"):
                if path.is_file():
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    found[str(path.relative_to(home))] = f"{path.stat().st_mode:o} {digest}"
        words = ("systemctl", "--user", "show", "-P", "MainPID", "tsuku-llm.service")
        found["process"] = self.fleet.ssh(host, *words).stdout.strip()
        return found
