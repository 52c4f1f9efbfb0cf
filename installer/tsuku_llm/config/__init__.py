"""Settings from flags, environment and config file, each with its source; and the paths we use.

The config file is ``config.toml``. With ``TSUKU_HOME`` set it is tsuku's file, in which only the
table ``[llm]`` belongs to us. The module ``editing`` changes the file; it is separate because
``serve`` never does. tomli, tomlkit and platformdirs are imported inside functions: many commands
need none of them.
"""

from tsuku_llm.config.keys import (
    FALLBACKS,
    KEYS,
    REFRESHES,
    Key,
    Value,
    key_named,
    text_of,
)
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import Setting, Settings, load

__all__ = [
    "FALLBACKS",
    "KEYS",
    "REFRESHES",
    "Key",
    "Paths",
    "Setting",
    "Settings",
    "Value",
    "key_named",
    "load",
    "text_of",
]
