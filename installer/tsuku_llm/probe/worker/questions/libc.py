"""The system's C and C++ libraries, and the symbol versions that they define."""

from __future__ import annotations

import mmap
import os

from .. import elf, search
from ..protocol import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BANNER = b"GNU C Library "


def ask(channel: Channel, root: str) -> None:
    """Ask which dynamic linkers exist, and which versions libc and libstdc++ define."""
    loaders = search.LOADERS.get(search.MACHINE, ())
    loaders = tuple(each for each in loaders if os.path.exists(root + each))
    for loader in loaders:
        real = os.path.realpath(root + loader).removeprefix(root)
        channel.answer("loader", path=loader, banner=_musl_banner(root + loader), real=real)
    for name in ("libc.so.6", "libstdc++.so.6"):
        channel.answer(name, **_library(root, name, loaders))


def _library(root: str, name: str, loaders: tuple[str, ...]) -> dict[str, Any]:
    found = search.find(root, name)
    if found is None:
        # The loader may know more places than we do; it knows nothing of another root.
        error = search.said_by(loaders[0], "--list", name) if loaders and not root else None
        return {"path": None, "error": error}
    path, data = found
    with data:
        return {"path": path, "versions": _versions(data), "banner": _banner(name, data)}


def _versions(data: mmap.mmap) -> list[str]:
    try:
        return elf.version_definitions(data)
    except ValueError:
        return []


def _banner(name: str, data: mmap.mmap) -> str | None:
    start = data.find(BANNER) if name == "libc.so.6" else -1
    if start < 0:
        return None
    return data[start : start + 200].partition(b"\n")[0].decode("ascii", "replace")


def _musl_banner(loader: str) -> str | None:
    """Return what musl's linker prints when it runs without a program: its version."""
    return (search.said_by(loader) or "")[:200] or None if "musl" in loader else None
