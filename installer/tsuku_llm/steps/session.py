"""The session: the folders, the settings, the machine and the user, for every operation.

The command line and the library open their sessions here: settings, folders that are safe, and this
machine or a recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tsuku_llm.catalog.revocations import believed_folders
from tsuku_llm.config.keys import ORIGIN, key_named
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import load
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import TsukuError, UnknownRequest, UsageError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.machine.local_host import LocalHost
from tsuku_llm.store.reader import StoreReader

if TYPE_CHECKING:  # a start does without most of what they import
    from tsuku_llm.catalog.repositories import Repository
    from tsuku_llm.config.settings import Settings
    from tsuku_llm.fetch import Network, Progress
    from tsuku_llm.machine.host import Host
    from tsuku_llm.machine.snapshot import ReplayHost
    from tsuku_llm.store.locks import Holder
    from tsuku_llm.store.store import Store

DEFAULT_CHANNEL = "stable"
INDEX_CHANNEL = "index"

FAKE_HARDWARE = "TSUKU_LLM_FAKE_HARDWARE"
"""The variable that names a file of ``probe --record``, which replaces this machine."""

STRICT = "TSUKU_LLM_STRICT"
"""The variable that forbids what is for tests only, if it is set to anything but 0."""


class Machine(NamedTuple):
    """This machine: ``host`` answers questions about it, ``now`` is in UTC."""

    host: Host
    now: datetime
    environ: Mapping[str, str]


class User(NamedTuple):
    """The user's console: ``note`` prints one line at once, ``progress`` shows downloads.

    ``ask`` puts a question to the user, and returns False if the user cannot answer. ``can_ask``
    says whether anybody can.
    """

    note: Callable[[str], None]
    progress: Progress
    ask: Callable[[str], bool]
    can_ask: bool = False


class Session(NamedTuple):
    """One run of the program.

    ``offline`` keeps an install from asking any host. ``allow_revoked`` permits a revoked release.
    ``agreed`` says that the user wants what is downloaded: with ``--yes``, or with an answer.
    ``held`` are the digests of the archives that can be had, None if that may be any.
    """

    paths: Paths
    settings: Settings
    machine: Machine
    user: User
    offline: bool = False
    allow_revoked: bool = False
    agreed: bool = False
    held: frozenset[str] | None = None

    def with_settings(self, **changes: Any) -> Session:
        """Return this session with other values for some settings."""
        return self._replace(settings=self.settings._replace(**changes))

    @property
    def reader(self) -> StoreReader:
        """The installed versions, to be read and used."""
        return StoreReader(self.paths.data, note=self.user.note)

    @property
    def store(self) -> Store:
        """The installed versions, to be changed; a wait for another process is printed."""
        from tsuku_llm.store.store import Store

        timeout = self.settings.lock_timeout
        note = self.user.note
        return Store(self.paths.data, lock_timeout=timeout, on_wait=self.waiting, note=note)

    def waiting(self, holder: Holder | None) -> None:
        """Say for which process this one waits."""
        if holder:
            self.user.note(f"waiting for another tsuku-llm ({holder}), which works on the same")
        else:
            self.user.note("waiting for a lock that another process holds")


@contextmanager
def opened_session(  # noqa: PLR0913 - each is an option
    user: User,
    environ: Mapping[str, str],
    chosen: Mapping[str, str | None],
    *,
    looking: bool = False,
    probes: bool = False,
    simulated: Host | None = None,
    tolerant: bool = False,
    quiet: bool = False,
) -> Iterator[Session]:
    """Open a session; ``chosen`` has the settings of this call, by their names in ``[llm]``.

    What the user permits for this call, the caller adds to the session.

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
            from tsuku_llm.steps.prefetch import PrefetchedHost

            host = PrefetchedHost(settings.probe_timeout, tell_slow)
            # End the child that asks, also if the command failed before it used the answers.
            stack.callback(host.close)
        else:
            host = LocalHost(tell=tell_slow)
        yield Session(paths, settings, Machine(host, clock.now(), environ), user)


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
    from tsuku_llm.machine.snapshot import ReplayHost

    return ReplayHost.load(Path(file))


def way_to_undo(
    settings: Settings, environ: Mapping[str, str], name: str, command: str = ""
) -> str | None:
    """Return how to end a setting: ``config unset``, another ``command`` of ours, or the shell's.

    None if a flag of this command made it: there is nothing to end.
    """
    key = key_named(name)
    if key.key in settings.flags:
        return None
    # The environment comes before the file, so a change of the file would not help.
    if environ.get(key.variable):
        return f"unset {key.variable}"
    return f"{TSUKU} config {command or f'unset {name}'}"


def note_place(settings: Settings, key: str, error: TsukuError) -> None:
    """Add to an error about a name where the setting was set, unless it is a flag's."""
    place = settings.places.get(key)
    if place and key not in settings.flags:
        error.facts = (f"llm.{key} was set by: {place}", *error.facts)


def working_folder() -> Path:
    """Return the user's current folder. Raises ``UsageError`` if it was removed meanwhile."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(
            "the current folder cannot be used",
            facts=(str(error),),
            hint="change to another folder",
        ) from error


def network_for(session: Session) -> Network:
    """Make the network of a run that downloads archives."""
    from tsuku_llm.fetch import Network

    return Network(
        session.machine.environ,
        mirrors=session.settings.mirror,
        offline=session.offline,
        on_wait=session.user.note,
    )


def repository_of(data: Path, settings: Settings) -> Repository:
    """Return the repository of the settings, or the official one. Raises ``UnknownRequest``.

    Of the places of the official one, the most specific setting decides: ``llm.repository_url``, or
    else ``llm.mirror``, which has the archives too.
    """
    from tsuku_llm.catalog import repositories

    name = settings.repository or repositories.OFFICIAL
    places: tuple[str, ...] = ()
    if name == repositories.OFFICIAL:
        mirrored = (repositories.OFFICIAL_URL if m == ORIGIN else m for m in settings.mirror)
        places = settings.repository_url or tuple(mirrored)
    try:
        return repositories.repository(data, name, places)
    except UnknownRequest as error:
        note_place(settings, "repository", error)
        raise
