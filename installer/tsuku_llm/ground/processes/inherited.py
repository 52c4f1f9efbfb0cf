"""What a child process inherits: its environment, and the limit of its core dumps.

A start that becomes the server needs this without the modules that start a process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tsuku_llm.ground.errors import StoreError, UnsafeLocation
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.ground.processes.search_paths import drop_relative

if sys.platform != "win32":
    import pwd
    import resource

_HOMES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
_NO_HOME = "/nonexistent"


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables (ours for None) for a child, without what leads into the caller's folder.

    Search paths lose their relative and empty entries. A home folder in which another user can
    write is replaced by that of the account.
    """
    found = dict(os.environ if given is None else given)
    drop_relative(found)
    if sys.platform == "win32":
        return found
    for name in _HOMES:
        if (folder := found.get(name)) and not is_private(folder):
            del found[name]
            if name == "HOME":
                found[name] = _home_of_account()
    return found


def is_private(folder: str | Path) -> bool:
    """Tell whether no other user can put a file into an existing folder, or replace it.

    A folder that does not exist counts as private.
    """
    try:
        check_path(Path(folder), sticky=False)
    except UnsafeLocation:
        return False
    except StoreError:  # it cannot be looked at, so nothing is loaded from it
        return True
    return True


@contextmanager
def no_core_dumps() -> Iterator[None]:
    """Let the processes that start in the block make no core dumps.

    A core of a server is as large as its model, and may hold prompts. Only the soft limit is 0:
    the user can raise it for a process that runs (``prlimit --core=unlimited --pid PID``).
    """
    if sys.platform == "win32":
        yield
        return
    # Around the start and not in the child: code between fork and exec is not safe with threads.
    # For this moment the limit is ours as well, also in other threads, which does no harm.
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)


def _home_of_account() -> str:
    """Return the home folder of this user's account; one that does not exist if it is unsafe."""
    if sys.platform != "win32":
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return _NO_HOME
        if os.path.isabs(home) and is_private(home):
            return home
    return _NO_HOME
