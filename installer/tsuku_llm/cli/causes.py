"""What ``--verbose`` adds to an error: its causes, and where this program has its files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from tsuku_llm._version import __version__
from tsuku_llm.config.paths import Paths
from tsuku_llm.ground.errors import ConfigError, TsukuError, UsageError
from tsuku_llm.ground.own_name import PROGRAM
from tsuku_llm.ground.safe_text import shortened
from tsuku_llm.launch.plan.secret_arguments import without_secrets

_LONGEST = 1000
"""The most characters of a line."""


def background(error: TsukuError) -> tuple[str, ...]:
    """Return the facts for somebody who looks for the reason of an error.

    They are the exceptions that led to it, with their URLs and paths, without a traceback.
    """
    # What is typed wrong has no cause but the words.
    if isinstance(error, UsageError) and not isinstance(error, ConfigError):
        return ()
    told = {error.message, *error.facts}
    lines = [line for line in _causes(error) if line not in told]
    places = [f"program: {PROGRAM} {__version__}"]
    try:
        paths = Paths.from_environ(os.environ)
        places += [f"config file: {paths.config_file}", f"data: {paths.data}"]
        places += [f"state and logs: {paths.state}"]
    except TsukuError:  # the folders are what is wrong
        pass
    return tuple(
        shortened(without_secrets(line, sys.argv, os.environ), _LONGEST)
        for line in (*dict.fromkeys(lines), *places)
    )


def _causes(error: TsukuError) -> Iterator[str]:
    """Yield what led to an error, the nearest first: each with the URL or path that it names."""
    seen = {id(error)}
    cause = _before(error)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = cause.message if isinstance(cause, TsukuError) else str(cause)
        # A retry raises the same error again.
        if text != error.args[0]:
            yield f"cause: {type(cause).__name__}: {text}".rstrip(": ")
        if isinstance(cause, TsukuError):
            yield from cause.facts
        if isinstance(cause, OSError):
            for path in (cause.filename, cause.filename2):
                if path is not None:
                    yield f"path: {os.fsdecode(path) if isinstance(path, bytes) else path}"
        if url := getattr(cause, "url", ""):
            yield f"url: {url}"
        cause = _before(cause)


def _before(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
