"""A machine whose drivers and devices change between two starts, as the program sees it.

Folders of the test stand for the bus, the device files and the driver's files in /proc, in a mount
namespace of each run. The driver libraries are the stubs, which the real dynamic linker finds by
a cache that the real ldconfig wrote. No file of this machine changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.gpu_machine import can_mount, unshare
from support.program import COMMAND, Result
from support.release_server import User
from support.stub_drivers import LIBRARIES, StubDrivers
from support.tools import require_tool

_SCRIPT = """\
set -e
cd /
for place in sys/bus/pci proc/driver etc/ld.so.cache usr/share/vulkan/icd.d; do
    if [ -e "/$place" ] && [ -e "$0/$place" ]; then mount --bind "$0/$place" "/$place"; fi
done
cp -a "$0/dev/." "$0/mounted"
mkdir "$0/mounted/shm" && mount -t tmpfs tmpfs "$0/mounted/shm"
ln -s /proc/self/fd "$0/mounted/fd"
for name in null zero full random urandom tty; do
    touch "$0/mounted/$name" && mount --bind "/dev/$name" "$0/mounted/$name"
done
mount --rbind "$0/mounted" /dev
exec "$@"
"""

MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)
_DEVICES, _DRIVER = "sys/bus/pci/devices", "sys/bus/pci/drivers/nvidia"
H200 = "0x2335"


class ChangingMachine:
    """The machine; its methods are what happens to it.

    ``settings`` are those of the stub drivers (c/stub.h): no start can see that one of them has
    changed, only what the drivers then answer. ``env`` are further variables of the program.
    """

    def __init__(self, folder: Path, user: User, stubs: StubDrivers) -> None:
        if sys.platform != "linux" or not can_mount():
            pytest.skip("no mount namespaces here")
        self._root = folder / "machine"
        self._user = user
        self._stubs = stubs
        self._libraries = folder / "libraries"
        self.settings: dict[str, object] = {}
        self.env: dict[str, str] = {}
        for name in ("dev", "mounted", "etc", "proc/driver", "usr/share/vulkan/icd.d"):
            (self._root / name).mkdir(parents=True)
        for name in (_DEVICES, _DRIVER):
            (self._root / name).mkdir(parents=True)
        self._libraries.mkdir()
        # This machine's own drivers say nothing: Mesa's take long to load.
        none, absent = self._stubs.none_installed(), folder / "absent"
        absent.mkdir()
        for api in ("vulkan", "hip", "level_zero", "opencl"):
            (absent / LIBRARIES[api]).symlink_to(none / LIBRARIES[api])
        self._searched = [absent]
        self._cache()

    # --- what happens --------------------------------------------------------------------------

    def library(self, *apis: str) -> None:
        """A package installs driver libraries, and ldconfig writes the loader's cache."""
        for api in apis:
            shutil.copy2(self._stubs.library(api), self._libraries)
        self._cache()

    def upgrade(self) -> None:
        """A package replaces the libraries by files of the same name."""
        for path in sorted(self._libraries.iterdir()):
            shutil.copy2(path, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        self._cache()

    def search(self, api: str) -> None:
        """A library that comes before this machine's own, as its loader has one already."""
        self._searched.insert(0, self._stubs.library(api).parent)

    def module(self, version: str = "580.159.04") -> None:
        """NVIDIA's kernel module is loaded, in another version if there is one."""
        self._write("proc/driver/nvidia/version", MODULE.format(version))

    def card(self, slot: str = "0000:01:00.0", *, device: str = H200) -> None:
        """A card on the bus, which no kernel module serves yet."""
        for name, text in {"class": "0x030200", "vendor": "0x10de", "device": device}.items():
            self._write(f"{_DEVICES}/{slot}/{name}", f"{text}\n")

    def bound(self, slot: str = "0000:01:00.0") -> None:
        """NVIDIA's kernel module serves the card."""
        (self._root / _DEVICES / slot / "driver").symlink_to("/sys/bus/pci/drivers/nvidia")
        (self._root / _DRIVER / slot).mkdir()

    def no_card(self, slot: str = "0000:01:00.0") -> None:
        """The card is taken out of the machine."""
        shutil.rmtree(self._root / _DEVICES / slot)
        (self._root / _DRIVER / slot).rmdir()

    def nodes(self, *names: str) -> None:
        """Device files; of these only their names and whether they open count."""
        for name in names:
            self._write(f"dev/{name}", "")

    def no_nodes(self, *names: str) -> None:
        """Remove what ``nodes`` or ``closed`` has made."""
        for name in names:
            path = self._root / "dev" / name
            path.rmdir() if path.is_dir() else path.unlink()

    def closed(self, name: str) -> None:
        """A device file that cannot be opened for writing, also not by root: a folder."""
        (self._root / "dev" / name).mkdir(parents=True)

    def capability(self, name: str) -> None:
        """A right of MIG, which the kernel module makes with an instance."""
        self._write(f"proc/driver/nvidia/capabilities/{name}", "")

    def icd(self, name: str) -> None:
        """A package installs the file that makes a Vulkan driver known."""
        self._write(f"usr/share/vulkan/icd.d/{name}.json", "{}")

    def whole(self) -> None:
        """A driver that works, from the card to the library."""
        self.library("cuda", "nvml")
        self.module()
        self.card()
        self.bound()
        self.nodes("nvidiactl", "nvidia0", "nvidia-uvm")

    # --- what the program says -----------------------------------------------------------------

    def run(self, *arguments: str, **extra: str) -> Result:
        """Run the program there."""
        stubs = {f"STUB_{name}": str(value) for name, value in self.settings.items()}
        path = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, self._searched))}
        shutil.rmtree(self._root / "mounted")
        (self._root / "mounted").mkdir()
        script = ("sh", "-c", _SCRIPT, str(self._root))
        done = subprocess.run(
            [*unshare(), *script, *COMMAND, *arguments],
            env={**self._user.env, **path, **stubs, **self.env, **extra},
            capture_output=True,
            text=True,
            check=False,
            cwd=os.sep,
        )
        assert done.returncode == 0, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    def _write(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _cache(self) -> None:
        cache = self._root / "etc/ld.so.cache"
        line = [require_tool("ldconfig"), "-X", "-C", str(cache), str(self._libraries)]
        subprocess.run(line, check=True, capture_output=True)
