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
LONGEST_ERROR = 1000


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
        error = error_of(loader, root + found[0]) if found else None
        channel.answer("library", name=name, path=found[0] if found else None, error=error)


def _loaded(name: str) -> dict[str, Any]:
    try:
        # Without a mode of its own, Python leaves out the folders of PATH, which a server searches.
        ctypes.CDLL(name, winmode=0)
    except OSError as error:
        return {"path": None, "error": str(error)}
    return {"path": name, "error": None}


def error_of(loader: str, path: str) -> str | None:
    """Return what the loader says of a library that cannot be loaded; None if it can be."""
    if sys.platform == "win32":
        return None
    reading, writing = os.pipe()
    quiet = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    aside = (os.POSIX_SPAWN_DUP2, writing, 2)
    try:
        command = [loader, "--list", path]
        child = os.posix_spawn(loader, command, os.environ, file_actions=[quiet, aside])
    except OSError:  # it cannot be asked, so nothing is known against the library
        os.close(reading)
        return None
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read(LONGEST_ERROR)
    _, status = os.waitpid(child, 0)
    return said.decode("utf-8", "replace") or f"status {status}" if status else None
