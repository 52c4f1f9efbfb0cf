"""Where the config file, the installs and the running servers lie."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.errors import ConfigError


class Paths(NamedTuple):
    """``config_file``, and the folders ``data`` (installs) and ``state`` (running servers).

    ``home`` is ``TSUKU_HOME``, None where it is not set. Where that is somebody else's (an
    install of root's for everybody), each user's ``state`` lies where the system wants it.
    """

    config_file: Path
    data: Path
    state: Path
    home: Path | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Paths:
        """Everything under ``TSUKU_HOME`` where it is set, else where the system wants it.

        Raises ``ConfigError`` when ``TSUKU_HOME`` is empty or relative, or the system
        names no absolute folder (no home folder).
        """
        home = environ.get("TSUKU_HOME")
        if home is None:
            return cls._of_the_system()
        folder = _absolute("TSUKU_HOME", home)
        # Not tools/tsuku-llm: tsuku takes that for its earlier addon and deletes it whole.
        data = folder / "llm"
        state = data / "state" if _may_be_ours(folder) else cls._of_the_system().state
        return cls(folder / "config.toml", data, state, folder)

    @classmethod
    def _of_the_system(cls) -> Paths:
        from platformdirs import PlatformDirs  # noqa: PLC0415

        places = PlatformDirs("tsuku-llm", appauthor=False)
        return cls(
            _absolute("the config folder", places.user_config_dir) / "config.toml",
            _absolute("the data folder", places.user_data_dir),
            _absolute("the state folder", places.user_state_dir),
        )


def _may_be_ours(folder: Path) -> bool:
    """Whether this user keeps state in a home: not in one that somebody else made for all."""
    if sys.platform == "win32":
        return True
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return True


def _absolute(what: str, text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ConfigError(
            f"{what} is {text!r}, which is no absolute path",
            hint="set TSUKU_HOME to an absolute path, or unset it and have a home folder",
        )
    return path
