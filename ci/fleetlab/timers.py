"""What a host's own timer does: its next elapse is moved to now, and its service is waited for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from ci.fleetlab.fleet import Fleet
from ci.fleetlab.network import HOME

METRICS = f"{HOME}/metrics/tsuku-llm.prom"

# The unit's own calendar, window and delay are replaced; what it starts is not. The service is
# "oneshot": it is inactive again, or failed, when the update has ended.
_NIGHT = """\
set -e
mkdir -p ~/.config/systemd/user/tsuku-llm-update.timer.d
cat > ~/.config/systemd/user/tsuku-llm-update.timer.d/now.conf <<END
[Timer]
OnCalendar=
OnActiveSec=0
RandomizedDelaySec=0
AccuracySec=1us
END
show() { systemctl --user show -P "$1" tsuku-llm-update.service; }
systemctl --user daemon-reload
before=$(show InactiveEnterTimestampMonotonic)
systemctl --user restart tsuku-llm-update.timer
until [ "$(show InactiveEnterTimestampMonotonic)" != "$before" ] && [ "$(show MainPID)" = 0 ]; do
    sleep 0.2
done
show ExecMainStatus
"""


class Night(NamedTuple):
    """How the timer's update of a host ended: its exit code, and what its metrics say."""

    code: int
    marked: tuple[str, ...]


def night(fleet: Fleet) -> dict[str, Night]:
    """Let the timers of all hosts elapse at the same time."""
    with ThreadPoolExecutor(len(fleet.hosts)) as pool:
        ended = pool.map(lambda host: _one(fleet, host), fleet.hosts)
        return dict(zip(fleet.hosts, ended, strict=True))


def _one(fleet: Fleet, host: str) -> Night:
    done = fleet.ssh(host, "sh", "-c", _NIGHT)
    if done.returncode:
        raise RuntimeError(f"{host} has no timer that can be started: {done.stderr}")
    text = (fleet.hosts[host].home / METRICS.removeprefix(f"{HOME}/")).read_text("utf-8")
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    (code,) = (each.value for each in samples if each.name == "tsuku_llm_update_exit_code")
    marked = [
        each.labels["release"] for each in samples if each.name == "tsuku_llm_update_rolled_back"
    ]
    if int(code) != int(done.stdout):
        raise RuntimeError(f"{host}: the metrics say {code}, systemd says {done.stdout}")
    return Night(int(code), tuple(marked))
