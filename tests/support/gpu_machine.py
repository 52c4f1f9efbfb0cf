"""A machine with an NVIDIA card, as a program sees it: device nodes, and a stub of the library.

A mount namespace gives /dev other contents for one program and its children; no file of this
machine changes.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.stub_drivers import StubDrivers
from support.tools import require_tool

_SCRIPT = """\
set -e
cd /
mount -t tmpfs tmpfs "$0"
for name in null zero full random urandom tty; do
    touch "$0/$name" && mount --bind "/dev/$name" "$0/$name"
done
ln -s /proc/self/fd "$0/fd"
mkdir "$0/shm" && mount -t tmpfs tmpfs "$0/shm"
touch "$0/nvidiactl" "$0/nvidia0"
mount --move "$0" /dev
exec "$@"
"""

OPENED = "open /dev/nvidia0"
"""The step of a stand-in that opens the card."""


@functools.cache
def can_mount() -> bool:
    line = [*unshare(), "sh", "-c", "mount -t tmpfs tmpfs /dev"]
    return subprocess.run(line, check=False, capture_output=True).returncode == 0


def unshare() -> list[str]:
    return [require_tool("unshare"), "--mount", "--map-root-user"]


class GpuMachine:
    """The machine; ``folder`` is the tests' own, where the library is built."""

    def __init__(self, folder: Path) -> None:
        if sys.platform != "linux" or not can_mount():
            pytest.skip("no mount namespaces here")
        self._devices = folder / "dev"
        self._devices.mkdir()
        self._library = StubDrivers(folder / "drivers").library("nvml").parent

    def run(
        self, line: Sequence[str], *, env: Mapping[str, str], **settings: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a program there; ``settings`` are the stub's, such as ``nvml_used``."""
        variables = {
            **env,
            "LD_LIBRARY_PATH": str(self._library),
            "STUB_nvml_server": "llama-server",
            **{f"STUB_{name}": str(value) for name, value in settings.items()},
        }
        words = [*unshare(), "sh", "-c", _SCRIPT, str(self._devices), *line]
        return subprocess.run(
            words, env=variables, capture_output=True, text=True, check=False, cwd=os.sep
        )
