"""From flags, environment and file to the session that every operation is given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.cli.console import Console
from tsuku_llm.config import Paths, Settings, load
from tsuku_llm.errors import UsageError
from tsuku_llm.local import LocalHost
from tsuku_llm.operations.session import Session
from tsuku_llm.ownership import check_path

if TYPE_CHECKING:
    from tsuku_llm.host import Host

FAKE_HARDWARE = "TSUKU_LLM_FAKE_HARDWARE"
"""A file of ``probe --record`` that stands for this machine wherever hardware counts."""

STRICT = "TSUKU_LLM_STRICT"
"""Set to anything but 0, it refuses what is for tests only."""


@contextmanager
def open_session(
    console: Console,
    *,
    looking: bool = False,
    allow_revoked: bool = False,
    offline: bool = False,
    **flags: str | None,
) -> Iterator[Session]:
    """The session of this run; ``flags`` are named like the words of ``[llm]``.

    A command that changes nothing and runs nothing that is installed says that it is only
    ``looking``. Any other is refused where another user could replace what it writes, runs or
    obeys. Raises ``UnsafeLocation`` for that, ``ConfigError`` for settings that cannot be
    understood, ``UsageError`` or ``SnapshotError`` for a simulated machine that is not allowed
    or cannot be read.
    """
    paths = Paths.from_environ(os.environ)
    if not looking:
        for folder in (paths.data, paths.state):
            check_path(folder)
    chosen = {f"llm.{word}": value for word, value in flags.items()}
    settings = load(paths, os.environ, chosen, looking=looking)
    for warning in settings.warnings:
        console.note(f"warning: {warning}")
    try:
        session = _session(console, paths, settings, allow_revoked=allow_revoked)
        yield session._replace(offline=offline)
    finally:
        console.progress.close()


def _session(console: Console, paths: Paths, settings: Settings, *, allow_revoked: bool) -> Session:
    channel, repository = settings.setting("llm.channel"), settings.setting("llm.repository")
    return Session(
        data=paths.data,
        state=paths.state,
        environ=os.environ,
        host=_host(console),
        now=datetime.now(timezone.utc),
        note=console.note,
        progress=console.progress,
        backend=settings.backend,
        prefer=settings.prefer,
        channel=settings.channel if channel.chosen else None,
        repository=settings.repository if repository.chosen else None,
        repository_url=settings.repository_url,
        mirrors=settings.mirrors,
        idle_timeout=settings.idle_timeout,
        lock_timeout=settings.lock_timeout,
        tsuku_home=paths.home,
        backend_chosen=settings.setting("llm.backend").chosen,
        refresh=settings.refresh,
        require_fresh=settings.require_fresh,
        allow_revoked=allow_revoked,
        update_check=settings.update_check,
        ask=console.ask,
        fallback=_fallback(console, settings),
    )


def _fallback(console: Console, settings: Settings) -> str:
    """Where nobody can be asked, nothing is done that would have to be."""
    return "off" if settings.fallback == "ask" and not console.can_ask else settings.fallback


def _host(console: Console) -> Host:
    """This machine, or the recorded one that a test wants; then everybody is told."""
    file = os.environ.get(FAKE_HARDWARE)
    if not file:
        return console.host or LocalHost()
    if os.environ.get(STRICT, "0") not in ("", "0"):
        raise UsageError(
            f"{FAKE_HARDWARE} is set, and {STRICT} forbids simulated hardware",
            facts=(f"{FAKE_HARDWARE}={file}",),
            hint=f"unset {FAKE_HARDWARE}",
        )
    from tsuku_llm.snapshot import ReplayHost  # noqa: PLC0415

    host = ReplayHost.load(Path(file))
    console.simulated = host.name
    console.note(f"the hardware is simulated: {FAKE_HARDWARE}={file}")
    return host
