"""The folders of the drivers' caches: made for a start, limited, looked at and removed.

They hold code that the GPU runs. So they are this user's own, and no other user may write above
them. Every program of a build that uses them holds them, so that no other process removes them
meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import NotInstalled, StoreError, TsukuError
from tsuku_llm.ground.files import make_folder, write_new
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.launch.plan.driver_caches import (
    LIMIT,
    TABLE,
    DriverCache,
    cache_variables,
    caches_of,
    switched_off,
    users_place,
)
from tsuku_llm.store.in_use import IN_USE, holding, try_exclusive

if TYPE_CHECKING:
    from tsuku_llm.config.paths import Paths

FOLDER = "drivers"
"""The folder below the user's caches; in it each driver has one."""

WARM = "warm.json"
"""The note there about what was compiled; ``steps.drivers.warming`` has its content."""

NO_FOLDER = "the system names no folder for caches: set HOME, or XDG_CACHE_HOME"


class BuildCaches(NamedTuple):
    """The caches of one start. ``environ`` is the user's, with the variables of the drivers.

    ``held`` is the descriptor that keeps the caches, for the program to inherit; None without.
    ``root`` is the folder of all drivers, None if they were given none.
    """

    environ: Mapping[str, str]
    root: Path | None = None
    held: int | None = None


def root_of(paths: Paths) -> Path | None:
    """Return the folder in which each driver has its own; None if the system names none."""
    return paths.cache / FOLDER if paths.cache else None


def would_give(backend: str, paths: Paths, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a build as a start would make it; make no folder."""
    root = root_of(paths)
    given = cache_variables(backend, environ, root) if root else {}
    # A question to a build gets no other folders than a start: the GPU runs what is in them.
    if root is None or not given or _unsafe(root) or _unwritable(root, ""):
        return environ
    return {**environ, **given}


@contextmanager
def build_caches(
    backend: str, paths: Paths, environ: Mapping[str, str], note: Callable[[str], None]
) -> Iterator[BuildCaches]:
    """Give the drivers of a build their folders, and hold them for the block.

    A folder that cannot be used is no error: then the drivers do what they do without us, and the
    user is told.
    """
    plain = BuildCaches(environ)
    root = root_of(paths)
    given = cache_variables(backend, environ, root) if root else {}
    if root is None or not given:
        if root is None and caches_of(backend):
            note(f"the drivers keep no compiled code: {NO_FOLDER}")
        yield plain
        return
    with ExitStack() as stack:
        try:
            check_path(root)
            make_folder(root, private=True)
            if not (root / IN_USE).exists():
                # Another start may make it at this moment: that file is as good as ours.
                what = "making the folder of the drivers' caches"
                with disk_errors(what, root), suppress(FileExistsError):
                    write_new(root / IN_USE, b"")
            _trim(root)
            # From here on ``prune --caches`` leaves the folders alone: make them now, not before.
            held = stack.enter_context(holding(root))
            for cache in caches_of(backend):
                # NVIDIA's driver keeps nothing in a folder that does not exist.
                if cache.places[0] in given:
                    make_folder(root / cache.name, private=True)
            caches = BuildCaches({**environ, **given}, root, held)
        except NotInstalled:
            # ``prune --caches`` removes them now. The drivers compile for this start alone.
            caches = plain
        except TsukuError as error:
            note(f"the drivers keep no compiled code: {error.told}; {error.hint}")
            caches = plain
        yield caches


def _trim(root: Path) -> None:
    """Empty the caches of drivers that have no limit, if they are too large and not in use."""
    names = [cache.name for cache in TABLE if not cache.trims]
    large = [name for name in names if size_below(root / name)[0] > LIMIT]
    if not large:
        return
    # Nobody holds them while we remove: a start that comes now does without.
    with try_exclusive(root) as alone:
        if alone:
            for name in large:
                _remove(root, name)


def size_below(folder: Path) -> tuple[int, int]:
    """Return the bytes and the number of the files below a folder, as far as it can be read."""
    size = count = 0
    for where, _, names in os.walk(folder):
        for name in names:
            # Another process, such as a driver, may remove files meanwhile.
            with suppress(OSError):
                size += os.lstat(os.path.join(where, name)).st_size
                count += 1
    return size, count


def _remove(root: Path, name: str) -> None:
    with disk_errors("removing the drivers' caches", root), opened(root) as folder:
        if folder is None:
            return
        if folder.is_folder(name):
            folder.remove_tree(name)
        elif folder.is_file(name):
            folder.unlink(name)


class DroppedCaches(NamedTuple):
    """The result of removing the caches: the bytes of what was there, and whether it is in use."""

    size: int = 0
    in_use: bool = False


def drop_caches(paths: Paths, *, dry_run: bool = False) -> DroppedCaches:
    """Remove what the drivers keep in our folders, unless a server uses it. Raises StoreError.

    ``dry_run`` removes nothing.
    """
    root = root_of(paths)
    if root is None or not root.is_dir():
        return DroppedCaches()
    check_path(root)
    # The notes too: what was compiled is gone.
    names = (*(cache.name for cache in TABLE), WARM)
    size = sum(size_below(root / name)[0] for name in names)
    with try_exclusive(root) as alone:
        if not alone:
            return DroppedCaches(size, in_use=True)
        for name in names if not dry_run else ():
            _remove(root, name)
    return DroppedCaches(size)


class CacheState(NamedTuple):
    """The state of one driver's cache, for ``doctor``.

    ``state`` is ``kept`` (there is compiled code), ``empty``, ``off`` (by the user), or
    ``unusable``. ``size`` is in bytes. ``text`` says where it is, or why it does not work.
    """

    name: str
    driver: str
    state: str
    text: str
    size: int = 0
    fix: str = ""


def look_at_caches(
    backend: str, paths: Paths, environ: Mapping[str, str]
) -> tuple[CacheState, ...]:
    """Return the state of each cache of a backend's drivers; change nothing."""
    return tuple(_state(cache, paths, environ) for cache in caches_of(backend))


def _state(cache: DriverCache, paths: Paths, environ: Mapping[str, str]) -> CacheState:
    if off := switched_off(cache, environ):
        return CacheState(cache.name, cache.driver, "off", f"turned off by {off}")
    if place := users_place(cache, environ):
        name, _, value = place.partition("=")
        folder, where = Path(value), place
        # An empty value, or a word such as "off": the driver knows what it means.
        if not folder.is_absolute():
            return CacheState(cache.name, cache.driver, "off", f"as you say: {place}")
        problem = _unwritable(folder, f"let {name} name a folder of your own, or unset it")
        if problem is None and not folder.is_dir():
            problem = "there is no such folder", "make it"
    else:
        root = root_of(paths)
        if root is None:
            return CacheState(cache.name, cache.driver, "unusable", NO_FOLDER)
        folder, where = root / cache.name, str(root)
        # XDG_CACHE_HOME moves nothing that lies below TSUKU_HOME.
        below_home = paths.home and paths.home in root.parents
        variable = "TSUKU_HOME" if below_home else "XDG_CACHE_HOME"
        problem = _unsafe(root) or _unwritable(folder, f"set {variable} to a folder of your own")
    if problem:
        reason, fix = problem
        return CacheState(cache.name, cache.driver, "unusable", f"{where}: {reason}", fix=fix)
    size, count = size_below(folder)
    return CacheState(cache.name, cache.driver, "kept" if count else "empty", where, size)


def _unsafe(root: Path) -> tuple[str, str] | None:
    """Return why a start does not use our folder, with a fix; None if it does."""
    try:
        check_path(root)
    except StoreError as error:
        return error.message, error.hint
    if root.is_symlink():
        return "it is a link, which is not followed", f"make {root.parent} the link"
    return None


def _unwritable(folder: Path, fix: str) -> tuple[str, str] | None:
    """Return why nothing can be kept in a folder, with a fix; None if something can.

    ``fix`` is for a folder that this user may not write to.
    """
    # Our own folder is made at the next start: so the first one above it that exists counts. Not
    # ``Path.exists``, which raises below a folder that this user may not open (Python 3.12).
    found = folder
    while not os.path.exists(found) and found != found.parent:
        found = found.parent
    if not found.is_dir():
        return f"{found} is not a folder", "move it away"
    if not os.access(found, os.W_OK | os.X_OK):
        return f"this user may not write to {found}", fix
    return None
