"""The paths of the config file, the installs, the records of running servers and the caches."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.errors import ConfigError


class Paths(NamedTuple):
    """The paths: ``config_file``, ``data`` (installs), ``state`` (running servers) and ``cache``.

    ``home`` is ``TSUKU_HOME``, None if it is not set. If another user owns ``TSUKU_HOME`` (root
    installed for all users), ``state`` and ``cache`` are the user's folders as the system defines
    them. ``cache`` is None if the system gives no absolute path for it.
    """

    config_file: Path
    data: Path
    state: Path
    home: Path | None = None
    cache: Path | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Paths:
        """Return the paths below ``TSUKU_HOME`` if it is set, else those that the system defines.

        Raises ``ConfigError`` if ``TSUKU_HOME`` is empty or relative, or if the system gives a
        relative path because the user has no home folder.
        """
        home = environ.get("TSUKU_HOME")
        if home is None:
            return cls._of_the_system()
        folder = _absolute("TSUKU_HOME", home)
        # Not tools/tsuku-llm: tsuku takes that folder for its earlier addon and deletes it.
        data = folder / "llm"
        if _may_be_ours(folder):
            return cls(folder / "config.toml", data, data / "state", folder, data / "cache")
        system = cls._of_the_system()
        return cls(folder / "config.toml", data, system.state, folder, system.cache)

    @classmethod
    def _of_the_system(cls) -> Paths:
        from platformdirs import PlatformDirs

        # appauthor=False: the default adds a folder for the author on Windows.
        places = PlatformDirs("tsuku-llm", appauthor=False)
        # No error: everything works without a cache, only slower.
        cache = None
        with suppress(RuntimeError):
            cache = Path(places.user_cache_dir)
        try:
            return cls(
                _absolute("the config folder", places.user_config_dir) / "config.toml",
                _absolute("the data folder", places.user_data_dir),
                _absolute("the state folder", places.user_state_dir),
                cache=cache if cache and cache.is_absolute() else None,
            )
        except RuntimeError as error:
            # A newer platformdirs: neither HOME nor the list of users names a home folder, as in a
            # container that runs as a number.
            raise ConfigError(
                "this user has no home folder", facts=(str(error),), hint=_NAME_A_FOLDER
            ) from error


_NAME_A_FOLDER = "set TSUKU_HOME to an absolute path, or unset it and make sure that HOME is set"


def _may_be_ours(folder: Path) -> bool:
    """Return whether this user may keep state and caches in ``TSUKU_HOME``.

    False if another user owns it. Windows has no owner to compare. A folder that is missing, or
    that cannot be looked at, counts as ours.
    """
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
            f"{what} is {text!r}, which is not an absolute path",
            hint=_NAME_A_FOLDER,
        )
    return path
