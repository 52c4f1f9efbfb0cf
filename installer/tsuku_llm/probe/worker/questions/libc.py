"""The system's C and C++ libraries, and the symbol versions that they define."""

from __future__ import annotations

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
        # musl's linker tells its version when it runs without a program.
        said = search.said_by(root + loader) if "musl" in loader else None
        channel.answer("loader", path=loader, banner=(said or "")[:200] or None, real=real)
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
        try:
            versions = elf.version_definitions(data)
        except ValueError:
            versions = []
        start = data.find(BANNER) if name == "libc.so.6" else -1
        line = data[start : start + 200].partition(b"\n")[0] if start >= 0 else None
    banner = None if line is None else line.decode("ascii", "replace")
    return {"path": path, "versions": versions, "banner": banner}
