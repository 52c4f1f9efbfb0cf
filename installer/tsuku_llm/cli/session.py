"""The making of a session from flags, environment and config file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.cli.console import Console
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import ALL, load
from tsuku_llm.errors import UsageError
from tsuku_llm.local_host import LocalHost
from tsuku_llm.operations.session import Machine, Session, User
from tsuku_llm.ownership import check_path
from tsuku_llm.revocations import believed_folders

if TYPE_CHECKING:
    from tsuku_llm.host import Host

FAKE_HARDWARE = "TSUKU_LLM_FAKE_HARDWARE"
"""The variable that names a file of ``probe --record``, which replaces this machine."""

STRICT = "TSUKU_LLM_STRICT"
"""The variable that forbids what is for tests only, if it is set to anything but 0."""


@contextmanager
def open_session(  # noqa: PLR0913
    console: Console,
    *,
    looking: bool = False,
    probes: bool = False,
    allow_revoked: bool = False,
    offline: bool = False,
    needs: Collection[str] = ALL,
    tolerant: bool = False,
    quiet: bool = False,
    **flags: str | None,
) -> Iterator[Session]:
    """Open the session of this run; ``flags`` have the names of the settings in ``[llm]``.

    ``needs`` are the settings that the command uses in any case: it stops if one of them is wrong.
    Another one that is wrong gives a warning; an operation that uses it stops by itself
    (``Settings.require``). With ``tolerant`` nothing stops: wrong settings count as not set.
    With ``quiet`` the caller has said what is wrong.

    A command that asks the drivers sets ``probes``: they are asked at once, and answer while the
    command imports what it needs. A command that changes nothing and runs nothing that is installed
    sets ``looking``. Any other command is refused if another user could replace what it writes,
    runs or obeys. Raises ``UnsafeLocation`` for that, ``ConfigError`` for settings that are wrong,
    and ``UsageError`` or ``SnapshotError`` for a simulated machine that is forbidden or
    unreadable.
    """
    paths = Paths.from_environ(os.environ)
    if not looking:
        # Before the config file is read: with another user's folders nothing below can be trusted.
        metadata = paths.data / "metadata"
        for folder in (paths.data, paths.state, metadata, *believed_folders(paths.data)):
            check_path(folder)
    chosen = {f"llm.{key}": value for key, value in flags.items()}
    configuration = load(paths, os.environ, chosen, looking=looking)
    settings = configuration.settings
    if not tolerant:
        settings.require(needs)
    for warning in () if quiet else configuration.told:
        console.note(f"warning: {warning}")
    if tolerant:
        settings = settings._replace(problems={})
    # Without a terminal, "ask" means "off".
    if settings.fallback == "ask" and not console.can_ask:
        settings = settings._replace(fallback="off")
    # The end removes the progress from the screen, also after an error.
    with (
        closing(console.progress),
        _host(console, settings.probe_timeout, probes=probes) as host,
    ):
        yield Session(
            paths,
            settings,
            Machine(host, datetime.now(timezone.utc), os.environ),
            User(console.note, console.progress, console.ask),
            offline=offline,
            allow_revoked=allow_revoked,
        )


@contextmanager
def _host(console: Console, limit: int, *, probes: bool) -> Iterator[Host]:
    """Give the recorded machine of a test, or this one; ``probes`` asks its drivers at once.

    A driver may take ``limit`` seconds to answer.
    """

    def tell_slow(question: str, limit: float) -> None:
        console.note(
            f"waiting for a slow driver ({question}): it may take {limit:g} s (llm.probe_timeout)"
        )

    if simulated := _simulated(console):
        yield simulated
    elif probes:
        from tsuku_llm.operations.prefetch import PrefetchedHost  # noqa: PLC0415 - few probe

        host = PrefetchedHost(limit, tell_slow)
        try:
            yield host
        finally:
            # End the child that asks, also if the command failed before it used the answers.
            host.close()
    else:
        yield LocalHost(tell=tell_slow)


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
