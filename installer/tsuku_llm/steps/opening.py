"""The opening of a session: settings, folders that are safe, this machine or a recorded one.

The command line and the library open their sessions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.catalog.revocations import believed_folders
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import load
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.machine.local_host import LocalHost
from tsuku_llm.steps.session import Machine, Session, User

if TYPE_CHECKING:
    from tsuku_llm.machine.host import Host
    from tsuku_llm.machine.snapshot import ReplayHost

FAKE_HARDWARE = "TSUKU_LLM_FAKE_HARDWARE"
"""The variable that names a file of ``probe --record``, which replaces this machine."""

STRICT = "TSUKU_LLM_STRICT"
"""The variable that forbids what is for tests only, if it is set to anything but 0."""


@contextmanager
def opened_session(  # noqa: PLR0913 - each is an option
    user: User,
    environ: Mapping[str, str],
    chosen: Mapping[str, str | None],
    *,
    looking: bool = False,
    probes: bool = False,
    simulated: Host | None = None,
    offline: bool = False,
    agreed: bool = False,
    allow_revoked: bool = False,
    tolerant: bool = False,
    quiet: bool = False,
) -> Iterator[Session]:
    """Open a session; ``chosen`` has the settings of this call, by their names in ``[llm]``.

    A wrong setting is an error. With ``tolerant`` it counts as not set, with a warning: for a
    caller that helps to mend it, or that a user needs nevertheless. With ``quiet`` the caller has
    said what is wrong.

    A caller that asks the drivers sets ``probes``: they are asked at once, and answer while the
    caller imports what it needs. One that changes nothing and runs nothing that is installed sets
    ``looking``. Any other one is refused if another user could replace what it writes, runs or
    obeys. ``simulated`` is a recorded machine in place of this one.

    Raises ``UnsafeLocation`` for that, and ``ConfigError`` for settings that are wrong.
    """
    paths = Paths.from_environ(environ)
    if not looking:
        # Before the config file is read: with another user's folders nothing below can be trusted.
        metadata = paths.data / "metadata"
        for folder in (paths.data, paths.state, metadata, *believed_folders(paths.data)):
            check_path(folder)
    flags = {f"llm.{key}": value for key, value in chosen.items()}
    configuration = load(paths, environ, flags, looking=looking)
    if not tolerant:
        configuration.require()
    settings = configuration.settings
    for warning in () if quiet else configuration.told:
        user.note(f"warning: {warning}")
    # Where nobody answers, "ask" means "off".
    if settings.fallback == "ask" and not user.can_ask:
        settings = settings._replace(fallback="off")

    def tell_slow(question: str, limit: float) -> None:
        user.note(
            f"waiting for a slow driver ({question}): it may take {limit:g} s (llm.probe_timeout)"
        )

    with ExitStack() as stack:
        host: Host
        if simulated:
            host = simulated
        elif probes:
            from tsuku_llm.steps.prefetch import PrefetchedHost  # noqa: PLC0415 - few probe

            host = PrefetchedHost(settings.probe_timeout, tell_slow)
            # End the child that asks, also if the command failed before it used the answers.
            stack.callback(host.close)
        else:
            host = LocalHost(tell=tell_slow)
        yield Session(
            paths,
            settings,
            Machine(host, clock.now(), environ),
            user,
            offline=offline,
            agreed=agreed,
            allow_revoked=allow_revoked,
        )


def simulated_host(environ: Mapping[str, str]) -> ReplayHost | None:
    """Return the recorded machine that replaces this one for a test; None without.

    Raises ``UsageError`` if that is forbidden, and ``SnapshotError`` if it cannot be read.
    """
    file = environ.get(FAKE_HARDWARE)
    if not file:
        return None
    # A service can set this, so that a forgotten variable of a test never decides what it runs.
    if environ.get(STRICT, "0") not in ("", "0"):
        raise UsageError(
            f"{FAKE_HARDWARE} is set, and {STRICT} forbids simulated hardware",
            facts=(f"{FAKE_HARDWARE}={file}",),
            hint=f"unset {FAKE_HARDWARE}",
        )
    from tsuku_llm.machine.snapshot import ReplayHost  # noqa: PLC0415 - only with --hardware

    return ReplayHost.load(Path(file))
