"""The making of a session from flags, environment and config file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.steps.session import FAKE_HARDWARE, Session, User, opened_session, simulated_host


@contextmanager
def open_session(  # noqa: PLR0913 - each is an option
    console: Console,
    *,
    looking: bool = False,
    probes: bool = False,
    allow_revoked: bool = False,
    offline: bool = False,
    agreed: bool = False,
    tolerant: bool = False,
    quiet: bool = False,
    **flags: str | None,
) -> Iterator[Session]:
    """Open the session of this run; ``flags`` have the names of the settings in ``[llm]``.

    The other arguments are those of ``opened_session``, which has the errors as well.
    """
    simulated = simulated_host(os.environ)
    if simulated:
        console.simulated = simulated.name
        console.note(f"the hardware is simulated: {FAKE_HARDWARE}={os.environ[FAKE_HARDWARE]}")
    # The end removes the progress from the screen, also after an error.
    with (
        closing(console.progress),
        opened_session(
            User(console.note, console.progress, console.ask, can_ask=console.can_ask),
            os.environ,
            flags,
            looking=looking,
            probes=probes,
            simulated=simulated,
            tolerant=tolerant,
            quiet=quiet,
        ) as session,
    ):
        yield session._replace(offline=offline, agreed=agreed, allow_revoked=allow_revoked)
