"""The command line of ``ci/fleet``: show a fleet, in namespaces that end with it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from support.user_systemd import can_run, own_cgroups

from ci.fleetlab.acts import show_all
from ci.fleetlab.fleet import ROOT
from ci.fleetlab.network import HOME

_INSIDE = "--inside"
# If this process is killed, setpriv lets the kernel kill unshare, and that one its namespaces.
_SPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork")
_SPACES += ("--kill-child", "--mount-proc")
_LIMIT = 3600.0
"""Seconds for all acts; they take a quarter of an hour on a machine with much other work."""

_NOT_RUN = 77
"""The exit code for a machine that does not allow it, as Automake's tests have it."""


def main() -> int:
    """Run the show in namespaces of its own; return 1 if something was not shown."""
    parser = argparse.ArgumentParser(prog="ci/fleet", description="Show a fleet on this machine.")
    parser.add_argument(_INSIDE, type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--cgroups", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            # An exception, so clean-up runs.
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    if options.inside:
        program = Path(sysconfig.get_path("scripts")) / "tsuku-llm"
        return show_all(options.inside, options.cgroups, program)
    if reason := _not_allowed():
        sys.stderr.write(f"the fleet is not run: {reason}\n")
        return _NOT_RUN
    with (
        tempfile.TemporaryDirectory(prefix="fleet-") as folder,
        own_cgroups(Path(folder).name) as cgroups,
    ):
        again = [sys.executable, "-m", "ci.fleetlab", _INSIDE, folder, "--cgroups"]
        child = subprocess.Popen([*_SPACES, *again, *map(str, cgroups)])
        try:
            return child.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"the fleet is not shown: no end after {_LIMIT:.0f} s\n")
            return 1
        finally:
            # With it the kernel ends everything in its namespaces.
            child.kill()
            child.wait()


def _not_allowed() -> str:
    """Return why this machine cannot run the fleet, and what to do; empty if it can."""
    if sys.platform != "linux" or os.geteuid():
        return "it needs root on Linux, as sshd and systemd have users of their own; try: sudo"
    hidden = [path for path in (str(ROOT), sys.prefix) if path.startswith(("/tmp/", f"{HOME}/"))]  # noqa: S108
    if hidden:
        return f"{hidden[0]} is hidden on the hosts, which have a /tmp and a {HOME} of their own"
    if not can_run():
        return (
            "no namespaces or cgroups can be made here; in a container: docker run --privileged, "
            "or podman run --privileged as root"
        )
    return ""


if __name__ == "__main__":
    sys.exit(main())
