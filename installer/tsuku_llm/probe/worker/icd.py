"""The files that announce Vulkan drivers to the loader, on Linux.

Search order: the loader's own description, "Loader and Driver Interface".
"""

# ruff: noqa: PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FILE_LIMIT = 65536

OPENED_LATER = {"libGLX_nvidia.so.0": ("libEGL.so.1",)}
"""Libraries that a driver's library opens only when it initialises, and needs.

NVIDIA's library loads without GLVND's libEGL, but then finds no device (measured, driver
580.159.04).
"""


def drivers(root: str, *, load: bool, before: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield each driver's file and library, and, if ``load``, why the library does not load.

    ``before`` announces each load: a driver's library may crash or hang.
    """
    for path in _files(root):
        library = _library(root + path)
        error = None
        if load and library:
            before(f"open {library}")
            error = _why_not(library, *OPENED_LATER.get(os.path.basename(library), ()))
        yield {"file": path, "library": library, "error": error}


def _files(root: str) -> Iterator[str]:
    # These variables replace the whole search; the second is the older name.
    forced = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    if forced:
        yield from (path for path in forced.split(":") if path)
        return
    seen = set()
    for folder in _folders():
        if folder in seen:
            continue
        seen.add(folder)
        try:
            names = sorted(os.listdir(root + folder))
        except OSError:
            continue
        yield from (f"{folder}/{name}" for name in names if name.endswith(".json"))


def _folders() -> Iterator[str]:
    home = os.environ.get("HOME", "")
    groups = (
        os.environ.get("XDG_CONFIG_HOME") or (home and f"{home}/.config"),
        os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg",
        "/etc",
        os.environ.get("XDG_DATA_HOME") or (home and f"{home}/.local/share"),
        os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share",
    )
    for group in groups:
        for folder in group.split(":"):
            if folder:
                yield f"{folder.rstrip('/')}/vulkan/icd.d"


def _library(path: str) -> str | None:
    """Return the library that a driver's file names, for dlopen; None for 32-bit drivers."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(FILE_LIMIT)
    except OSError:
        return None
    name = _field(text, "library_path")
    if name is None or _field(text, "library_arch") == "32":
        return None
    # A relative path counts from the file's own folder; a plain name is searched by dlopen.
    if "/" in name and not name.startswith("/"):
        return os.path.normpath(os.path.join(os.path.dirname(path), name))
    return name


def _field(text: str, name: str) -> str | None:
    """Return a text field of the file without a JSON parser.

    These files are flat, and their texts are paths and numbers.
    """
    between, quote, rest = text.partition(f'"{name}"')[2].partition('"')
    if between.strip() != ":" or not quote:
        return None
    return rest.partition('"')[0].replace("\\/", "/")


def _why_not(*libraries: str) -> str | None:
    """Return the first error among these libraries."""
    try:
        for library in libraries:
            ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None
