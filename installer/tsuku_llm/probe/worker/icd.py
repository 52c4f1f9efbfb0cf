"""The files that announce Vulkan drivers to the loader, on Linux.

Search order: the loader's own description, "Loader and Driver Interface".
"""

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

    ``before`` announces each load: a driver's library may crash or hang. ``variable`` is the
    variable because of which the loader passes the file over, or which names a missing file, or,
    with the file "", none at all.
    """
    for path, named_by in _files(root):
        fact: dict[str, Any] = {"file": path, "library": _library(root + path), "error": None}
        filtered_by = _filter(os.path.basename(path))
        if named_by and not (path and os.path.exists(root + path)):
            fact |= {"variable": named_by, "missing": True}
        elif filtered_by:
            # The loader does not load it, so neither do we: this may be why the user left it out.
            fact |= {"variable": filtered_by}
        elif load and fact["library"]:
            library = fact["library"]
            before(f"open {library}")
            fact["error"] = _why_not(library, *OPENED_LATER.get(os.path.basename(library), ()))
        yield fact


def _files(root: str) -> Iterator[tuple[str, str | None]]:
    """Yield each file in the loader's order, with the variable that names it."""
    # The first two replace the whole search; the second is the older name. The third adds to it.
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
        named = os.environ.get(variable)
        for path in (named or "").split(":"):
            # Each is a file, or a folder of files.
            inside = _manifests(root, path) if path and os.path.isdir(root + path) else (path,)
            yield from ((each, variable) for each in inside if each)
        if named is not None and variable != "VK_ADD_DRIVER_FILES":
            if not named.strip(":"):
                yield "", variable  # set and empty: the loader looks nowhere
            return
    seen = set()
    for folder in _folders():
        if folder not in seen:
            seen.add(folder)
            yield from ((each, None) for each in _manifests(root, folder))


def _manifests(root: str, folder: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(root + folder))
    except OSError:
        return
    yield from (f"{folder.rstrip('/')}/{name}" for name in names if name.endswith(".json"))


def _filter(name: str) -> str | None:
    """Return the variable that makes the loader (since 1.3.234) leave a file out."""
    select = os.environ.get("VK_LOADER_DRIVERS_SELECT")
    if select and not _matches(name, select):
        return "VK_LOADER_DRIVERS_SELECT"
    disable = os.environ.get("VK_LOADER_DRIVERS_DISABLE")
    return "VK_LOADER_DRIVERS_DISABLE" if disable and _matches(name, disable) else None


def _matches(name: str, globs: str) -> bool:
    """Compare a file's name with a list of patterns, which know ``*`` only at their ends."""
    name = name.lower()
    for glob in globs.lower().split(","):
        text = glob.strip("*")
        if glob == "~all~" or (glob and not text):
            return True
        found = {
            (True, True): text in name,
            (True, False): name.endswith(text),
            (False, True): name.startswith(text),
            (False, False): name == text,
        }
        if text and found[glob.startswith("*"), glob.endswith("*")]:
            return True
    return False


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
