"""Shared libraries that builds need and do not bring, as a prebuilt program would find them.

On Linux the system's own loader is asked: it finds what a library needs in turn, and runs none of
its code. This interpreter may have libraries of its own (conda, Nix), which no server ever sees.
"""

from __future__ import annotations

import ctypes
import os
import sys

from .. import search
from ..protocol import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINUX = (
    *("libssl.so.3", "libcrypto.so.3", "libgomp.so.1"),
    *("libamdhip64.so.7", "libhipblas.so.3", "librocblas.so.5"),
    *("libsycl.so.9", "libmkl_sycl_blas.so.6"),
)
WINDOWS = ("hipblas.dll",)
"""What upstream's builds need. A release that needs others has the client ask for them as well."""


def ask(channel: Channel, root: str, *names: str) -> None:
    """Ask for each of these libraries; without names for those that upstream's builds need."""
    if sys.platform == "win32":
        for name in names or WINDOWS:
            channel.before(f"open {name}")
            channel.answer("library", name=name, **_loaded(name))
        return
    loaders = [root + path for path in search.LOADERS.get(search.MACHINE, ())]
    loader = next(filter(os.path.exists, loaders), None)
    # Without the C library in a usual folder (NixOS), the others are elsewhere, too.
    if loader is None or not ("musl" in loader or search.find(root, "libc.so.6")):
        return
    for name in names or LINUX:
        channel.before(f"open {name}")
        found = search.find(root, name)
        error = search.said_by(loader, "--list", root + found[0]) if found else None
        channel.answer("library", name=name, path=found[0] if found else None, error=error)


def _loaded(name: str) -> dict[str, Any]:
    try:
        # Without a mode of its own, Python leaves out the folders of PATH, which a server searches.
        ctypes.CDLL(name, winmode=0)
    except OSError as error:
        return {"path": None, "error": str(error)}
    return {"path": name, "error": None}
