"""From flags, environment and file to the session that every operation is given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from tsuku_llm.cli.console import Console
from tsuku_llm.config import Paths, Settings, load
from tsuku_llm.host import LocalHost
from tsuku_llm.operations.session import Session


@contextmanager
def open_session(console: Console, **flags: str | None) -> Iterator[Session]:
    """The session of this run; ``flags`` are named like the words of ``[llm]``.

    Raises ``ConfigError`` for settings that cannot be understood.
    """
    paths = Paths.from_environ(os.environ)
    chosen = {f"llm.{word}": value for word, value in flags.items()}
    settings = load(paths, os.environ, chosen)
    for warning in settings.warnings:
        console.note(f"warning: {warning}")
    try:
        yield _session(console, paths, settings)
    finally:
        console.progress.close()


def _session(console: Console, paths: Paths, settings: Settings) -> Session:
    channel, repository = settings.setting("llm.channel"), settings.setting("llm.repository")
    return Session(
        data=paths.data,
        state=paths.state,
        environ=os.environ,
        host=LocalHost(),
        now=datetime.now(timezone.utc),
        note=console.note,
        progress=console.progress,
        backend=settings.backend,
        prefer=settings.prefer,
        channel=settings.channel if channel.chosen else None,
        repository=settings.repository if repository.chosen else None,
        repository_url=settings.repository_url,
        mirrors=settings.mirrors,
    )
