"""The making of a session from flags, environment and config file."""

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
from tsuku_llm.revocations import believed_folders

if TYPE_CHECKING:
    from tsuku_llm.host import Host

FAKE_HARDWARE = "TSUKU_LLM_FAKE_HARDWARE"
"""The variable that names a file of ``probe --record``, which replaces this machine."""

STRICT = "TSUKU_LLM_STRICT"
"""The variable that forbids what is for tests only, if it is set to anything but 0."""


@contextmanager
def open_session(
    console: Console,
    *,
    looking: bool = False,
    probes: bool = False,
    allow_revoked: bool = False,
    offline: bool = False,
    **flags: str | None,
) -> Iterator[Session]:
    """Open the session of this run; ``flags`` have the names of the settings in ``[llm]``.

    A command that asks the drivers sets ``probes``: they are asked at once, and answer while the
    command imports what it needs. A command that changes nothing and runs nothing that is installed
    sets ``looking``. Any other command is refused if another user could replace what it writes,
    runs or obeys. Raises ``UnsafeLocation`` for that, ``ConfigError`` for settings that cannot be
    parsed, and ``UsageError`` or ``SnapshotError`` for a simulated machine that is forbidden or
    unreadable.
    """
    paths = Paths.from_environ(os.environ)
    if not looking:
        # Before the config file is read: with another user's folders nothing below can be trusted.
        metadata = paths.data / "metadata"
        for folder in (paths.data, paths.state, metadata, *believed_folders(paths.data)):
            check_path(folder)
    chosen = {f"llm.{key}": value for key, value in flags.items()}
    settings = load(paths, os.environ, chosen, looking=looking)
    for warning in settings.warnings:
        console.note(f"warning: {warning}")
    with _machine(console, probes=probes) as host:
        try:
            session = _session(console, host, paths, settings, allow_revoked=allow_revoked)
            yield session._replace(offline=offline)
        finally:
            # Also after an error: otherwise the bar stays on the screen.
            console.progress.close()


@contextmanager
def _machine(console: Console, *, probes: bool) -> Iterator[Host]:
    """Give the recorded machine of a test, or this one; ``probes`` asks its drivers at once."""
    if simulated := _simulated(console):
        yield simulated
    elif probes:
        from tsuku_llm.operations.ahead import AskedHost  # noqa: PLC0415 - few commands probe

        host = AskedHost()
        try:
            yield host
        finally:
            # End the child that asks, also if the command failed before it used the answers.
            host.close()
    else:
        yield LocalHost()


def _session(
    console: Console, host: Host, paths: Paths, settings: Settings, *, allow_revoked: bool
) -> Session:
    channel, repository = settings.setting("llm.channel"), settings.setting("llm.repository")
    return Session(
        data=paths.data,
        state=paths.state,
        environ=os.environ,
        host=host,
        now=datetime.now(timezone.utc),
        note=console.note,
        progress=console.progress,
        backend=settings.backend,
        prefer=settings.prefer,
        # None tells an operation that the user did not choose: it may then choose itself.
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
    """Return the setting for fallbacks; without a terminal, "ask" means "off"."""
    return "off" if settings.fallback == "ask" and not console.can_ask else settings.fallback


def _simulated(console: Console) -> Host | None:
    """Return the recorded machine for a test, with a note that it is simulated; None without."""
    file = os.environ.get(FAKE_HARDWARE)
    if not file:
        return None
    # A service can set this, so that a forgotten variable of a test never decides what it runs.
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
