"""A systemd of the test's own: a user's manager in new namespaces, which ends with them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

MANAGER = "/usr/lib/systemd/systemd"
UNITS = Path(".config/systemd/user")
"""Where a user's units lie, below the home."""

_CGROUPS = Path("/sys/fs/cgroup")

# First into cgroups of our own: the manager makes its below ours. The first process of the PID
# namespace is the last one to end: then the kernel ends the manager and all its services.
_ENTER = """\
for folder in $CGROUPS; do
    echo $$ > "$folder/cgroup.procs" || exit 98
done
exec unshare --pid --mount --fork --kill-child --mount-proc sh -c "$BOOT" sh "$@"
"""

# The manager wants a system that was started by systemd. /run is another one in our namespace.
_BOOT = f"""\
mount -t tmpfs none /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
{MANAGER} --user --unit=basic.target &
until systemctl --user is-active --quiet basic.target; do
    kill -0 $! || exit 99
done
exec "$@"
"""


def run_in_systemd(
    words: Sequence[str], home: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program beside a manager that has the units of this home."""
    with _own_cgroups() as folders:
        return subprocess.run(
            ["sh", "-c", _ENTER, "sh", *words],
            env={
                **env,
                "HOME": str(home),
                "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}",
                "CGROUPS": " ".join(map(str, folders)),
                "BOOT": _BOOT,
            },
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def _own_cgroups() -> Iterator[list[Path]]:
    """A new cgroup in each hierarchy that the manager uses, and none of them afterwards."""
    folders = []
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, kinds, path = line.split(":", 2)
        # Version 1 has a folder for each kind, version 2 is alone or beside them. A new cpuset
        # takes no process.
        name = kinds.removeprefix("name=") or "unified"
        root = _CGROUPS / name if (_CGROUPS / name).is_dir() else _CGROUPS
        if name != "cpuset" and (root / "cgroup.procs").exists():
            folders.append(root / path.strip("/") / f"tsuku-test-{os.getpid()}")
    with suppress(OSError):
        for folder in folders:
            folder.mkdir()
    try:
        yield folders
    finally:
        for folder in folders:
            # The deepest first: a folder that has another one cannot be removed.
            for each in sorted((*folder.rglob("*/"), folder), reverse=True):
                with suppress(OSError):
                    each.rmdir()


@cache
def can_run() -> bool:
    """True if this machine allows it: not without root, and not in every container."""
    if not (os.path.exists(MANAGER) and shutil.which("unshare")):  # noqa: PTH110
        return False
    return run_in_systemd(["true"], Path("/"), os.environ).returncode == 0
