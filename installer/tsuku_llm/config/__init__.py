"""Settings from flags, environment and file, each with its source; and where things lie.

The file is ``config.toml``; with ``TSUKU_HOME`` set it is tsuku's own, of which only the
table ``[llm]`` is ours. ``editing`` changes it; it is apart because ``serve`` never does.
tomli, tomlkit and platformdirs are imported where they are needed: often none of them is.
"""

from tsuku_llm.config.keys import (
    BACKENDS,
    FALLBACKS,
    KEYS,
    POLICIES,
    REFRESHES,
    Key,
    Value,
    key_named,
    redacted,
    text_of,
)
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import Setting, Settings, load

__all__ = [
    "BACKENDS",
    "FALLBACKS",
    "KEYS",
    "POLICIES",
    "REFRESHES",
    "Key",
    "Paths",
    "Setting",
    "Settings",
    "Value",
    "key_named",
    "load",
    "redacted",
    "text_of",
]
