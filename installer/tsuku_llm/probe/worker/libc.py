"""The system's C and C++ libraries: which symbol versions they define."""

# The child does without pathlib, which costs as much to import as a driver to load.
# ruff: noqa: PTH110

from __future__ import annotations

import mmap
import os
import re
from typing import Any

from . import elf, search
from .channel import Channel

BANNER = re.compile(rb"GNU C Library [^\n\0]{0,200}")
LOADERS: dict[str, tuple[str, ...]] = {
    "x86_64": ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"),
    "aarch64": ("/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"),
}


def ask(channel: Channel, root: str) -> None:
    """Ask which dynamic linkers there are, and what libc and libstdc++ define."""
    for loader in LOADERS.get(search.MACHINE, ()):
        if os.path.exists(root + loader):
            channel.answer("loader", path=loader, banner=_musl_banner(root + loader))
    for name in ("libc.so.6", "libstdc++.so.6"):
        channel.answer(name, **_library(root, name))


def _library(root: str, name: str) -> dict[str, Any]:
    found = search.find(root, name)
    if found is None:
        return {"path": None}
    path, data = found
    with data:
        return {"path": path, "versions": _versions(data), "banner": _banner(name, data)}


def _versions(data: mmap.mmap) -> list[str]:
    try:
        return elf.version_definitions(data)
    except ValueError:
        return []


def _banner(name: str, data: mmap.mmap) -> str | None:
    match = BANNER.search(data) if name == "libc.so.6" else None
    return match[0].decode("ascii", "replace") if match else None


def _musl_banner(loader: str) -> str | None:
    """What musl's linker prints when it is run without a program: its version."""
    if "musl" not in loader:
        return None
    import subprocess  # noqa: PLC0415 - only here, and it is slow to import

    try:
        shown = subprocess.run([loader], capture_output=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stderr[:200].decode("ascii", "replace")
