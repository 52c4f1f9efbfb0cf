"""A systemd of the test's own: a user's manager in new namespaces, which ends with them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

MANAGER = "/usr/lib/systemd/systemd"
UNITS = Path(".config/systemd/user")
"""Where a user's units lie, below the home."""

# The manager wants a system that was started by systemd. /run is another one in our namespace.
_BOOT = """\
mount -t tmpfs none /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
NOTIFY_SOCKET= {manager} --user --unit=basic.target &
until systemctl --user is-active --quiet basic.target; do
    kill -0 $! || exit 99
done
exec "$@"
"""


def _line(words: Sequence[str]) -> list[str]:
    # The last process of the PID namespace to be its first: when it ends, the kernel kills the
    # manager and all its services.
    unshared = ["unshare", "--pid", "--mount", "--cgroup", "--fork", "--mount-proc"]
    script = _BOOT.format(manager=MANAGER)
    return [*unshared, "sh", "-c", script, "sh", *words]


def run_in_systemd(
    words: Sequence[str], home: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program beside a manager that has the units of this home."""
    return subprocess.run(
        _line(words),
        env={**env, "HOME": str(home), "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"},
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def can_run() -> bool:
    """True if this machine allows it: not without root, and not in every container."""
    if not (os.path.exists(MANAGER) and shutil.which("unshare")):  # noqa: PTH110
        return False
    return run_in_systemd(["true"], Path("/"), os.environ).returncode == 0
