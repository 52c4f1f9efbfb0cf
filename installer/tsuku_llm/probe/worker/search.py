"""The search of a prebuilt program's dynamic linker for a library.

It differs from this interpreter's search: Python may bring its own libraries (conda, Nix, musl
builds), which a prebuilt server never sees.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys

from . import elf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.platform == "win32":
    MACHINE = ""
else:
    MACHINE = os.uname().machine
MACHINES = {"x86_64": 62, "aarch64": 183}
LOADERS: dict[str, tuple[str, ...]] = {
    "x86_64": ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"),
    "aarch64": ("/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"),
}
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
HEADER, ENTRY = 48, 24
LONGEST_PATH, LONGEST_ERROR = 4096, 1000
NIX_LD_LIBRARIES = "/run/current-system/sw/share/nix-ld/lib"


def find(root: str, name: str) -> tuple[str, mmap.mmap] | None:
    """Return the path and content of the first file of that name that is for this machine."""
    wanted = MACHINES.get(MACHINE)
    seen = set()
    for path in _candidates(root, name):
        if path in seen:
            continue
        seen.add(path)
        data = _mapped(root + path, wanted)
        if data is not None:
            return path, data
    return None


def said_by(loader: str, *words: str) -> str | None:
    """Return the error that a loader prints, such as of a library that it cannot load (--list).

    None if it ends without one. It runs none of the library's code.
    """
    if sys.platform == "win32":
        return None
    reading, writing = os.pipe()
    quiet = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    aside = (os.POSIX_SPAWN_DUP2, writing, 2)
    try:
        child = os.posix_spawn(loader, [loader, *words], os.environ, file_actions=[quiet, aside])
    except OSError:  # it cannot be asked, so nothing is known
        os.close(reading)
        return None
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read(LONGEST_ERROR)
    _, status = os.waitpid(child, 0)
    return said.decode("utf-8", "replace") or f"status {status}" if status else None


def _candidates(root: str, name: str) -> Iterator[str]:
    # The order of ld.so(8): LD_LIBRARY_PATH, the cache, the default folders.
    named = os.environ.get("LD_LIBRARY_PATH", "")
    # nix-ld, where it is the system's loader, adds to the variable: its src/main.rs.
    if any("nix-ld" in os.path.realpath(root + loader) for loader in LOADERS.get(MACHINE, ())):
        named += ":" + os.environ.get("NIX_LD_LIBRARY_PATH", NIX_LD_LIBRARIES)
    for folder in named.split(":"):
        if folder.startswith("/"):
            yield f"{folder}/{name}"
    yield from _cached(root, name)
    triplet = f"{MACHINE}-linux-gnu"
    for folder in (
        f"/lib/{triplet}",
        f"/usr/lib/{triplet}",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
    ):
        yield f"{folder}/{name}"


def _cached(root: str, name: str) -> Iterator[str]:
    """Yield paths from ``/etc/ld.so.cache``; format: glibc's ``sysdeps/generic/dl-cache.h``."""
    try:
        with open(f"{root}/etc/ld.so.cache", "rb") as file:
            data = file.read(1 << 24)
    except OSError:
        return
    start = data.find(CACHE_MAGIC)
    if start < 0 or len(data) < start + HEADER:
        return
    (count,) = struct.unpack_from("<I", data, start + len(CACHE_MAGIC))
    # A damaged cache may claim more entries than it holds.
    room = (len(data) - start - HEADER) // ENTRY
    wanted = name.encode() + b"\0"
    if wanted not in data:
        return
    for index in range(min(count, room)):
        key, value = struct.unpack_from("<II", data, start + HEADER + index * ENTRY + 4)
        if data.startswith(wanted, start + key):
            path = data[start + value : start + value + LONGEST_PATH].partition(b"\0")[0]
            yield path.decode("utf-8", "surrogateescape")


def _mapped(path: str, wanted: int | None) -> mmap.mmap | None:
    """Return the content of a file for this processor, None for any other file."""
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return data if elf.machine(data) == wanted else None
    except (OSError, ValueError):
        return None
