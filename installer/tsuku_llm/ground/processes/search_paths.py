"""Search paths without relative entries: no program is found in the caller's folder."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in typing, which takes time to import, also for --version
if TYPE_CHECKING:
    from collections.abc import MutableMapping

_SEARCH_PATHS = frozenset({
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "GGML_BACKEND_PATH"),
    *("DYLD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "DYLD_FRAMEWORK_PATH"),
    *("DYLD_FALLBACK_LIBRARY_PATH", "DYLD_FALLBACK_FRAMEWORK_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "ANSIBLE_COLLECTIONS_PATH", "PERL5LIB"),
    *("PERLLIB", "RUBYLIB", "NODE_PATH", "XDG_DATA_DIRS", "XDG_CONFIG_DIRS"),
})  # fmt: skip
"""Variables whose entries name folders or files with code; an empty one is the caller's folder."""


def drop_relative(environ: MutableMapping[str, str]) -> None:
    """Drop the relative and the empty entries of all search paths in these variables."""
    for name in _SEARCH_PATHS & environ.keys():
        # The loader also splits these two at spaces. A plain name is one of the system's libraries.
        loaded = name in ("LD_PRELOAD", "LD_AUDIT")
        value = environ[name].replace(" ", os.pathsep) if loaded else environ[name]
        kept = os.pathsep.join(
            each
            for each in value.split(os.pathsep)
            if os.path.isabs(each) or (loaded and each and os.sep not in each)
        )
        if kept and kept == environ[name]:
            continue
        if kept:
            environ[name] = kept
        else:
            # An empty variable would mean the caller's folder again.
            del environ[name]
