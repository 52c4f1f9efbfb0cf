"""A systemd of the test's own: a user's manager in new namespaces, which ends with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from support.tools import require_tool
from support.waiting import PROMPTLY

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


def verify_all(units: Mapping[str, str], folder: Path, scope: str = "--user") -> str:
    """What systemd has to say against units that lie side by side."""
    folder = folder / "units"
    runtime = folder / "runtime"
    runtime.mkdir(parents=True, exist_ok=True)
    for name, text in units.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [require_tool("systemd-analyze"), "verify", scope, "--man=no"]
        + [str(folder / name) for name in units],
        # The colon adds systemd's own folders, with its targets.
        env={
            **os.environ,
            "SYSTEMD_UNIT_PATH": f"{folder}:",
            "XDG_RUNTIME_DIR": str(runtime),
            "HOME": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return "\n".join(
        line for line in done.stderr.splitlines() if any(name in line for name in units)
    )


def run_in_systemd(
    words: Sequence[str], home: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program beside a manager that has the units of this home."""
    with own_cgroups(str(os.getpid())) as folders:
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
def own_cgroups(unique: str) -> Iterator[list[Path]]:
    """A new cgroup in each hierarchy that a manager uses, and none of them afterwards."""
    folders = []
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, kinds, path = line.split(":", 2)
        # Version 1 has a folder for each kind, version 2 is alone or beside them. A new cpuset
        # takes no process.
        name = kinds.removeprefix("name=") or "unified"
        root = _CGROUPS / name if (_CGROUPS / name).is_dir() else _CGROUPS
        if name != "cpuset" and (root / "cgroup.procs").exists():
            folders.append(root / path.strip("/") / f"tsuku-test-{unique}")
    with suppress(OSError):
        for folder in folders:
            folder.mkdir()
    try:
        yield folders
    finally:
        for folder in folders:
            # The deepest first: a folder that has another one cannot be removed.
            for each in sorted((*folder.rglob("*/"), folder), reverse=True):
                _remove(each)


def _remove(cgroup: Path) -> None:
    """Remove a cgroup once the kernel has ended its processes, which may take a moment."""
    deadline = time.monotonic() + PROMPTLY
    while cgroup.exists() and time.monotonic() < deadline:
        with suppress(OSError):
            cgroup.rmdir()
            return
        time.sleep(0.01)


@cache
def can_run() -> bool:
    """True if this machine allows it: not without root, and not in every container."""
    if not (os.path.exists(MANAGER) and shutil.which("unshare")):  # noqa: PTH110
        return False
    return run_in_systemd(["true"], Path("/"), os.environ).returncode == 0
