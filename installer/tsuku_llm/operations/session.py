"""The session: the machine, the folders, the settings and the user, for every operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.errors import UsageError

if TYPE_CHECKING:  # a start does without most of what they import
    from tsuku_llm.catalog.repositories import Repository
    from tsuku_llm.fetch import Progress
    from tsuku_llm.host import Host
    from tsuku_llm.store.locks import Holder
    from tsuku_llm.store.reader import StoreReader
    from tsuku_llm.store.store import Store

DEFAULT_CHANNEL = "stable"
INDEX_CHANNEL = "index"


def _no_answer(_question: str) -> bool:
    """Answer no; the default without a user to ask."""
    return False


class Session(NamedTuple):
    """One run of the program.

    ``data`` and ``state`` are the folders for installs and for running servers; ``now`` is in UTC.
    ``note`` prints one line for people at once. ``ask`` puts a question to the user, and returns
    False if the user cannot answer.

    ``channel`` is None if the user named none: then ``install`` may use the package index instead.
    ``repository`` is None for the official one, or for the one that the active version came from.
    ``prefer`` is a policy of the manifest or the user's order of backends. ``backend_chosen`` is
    true if the user named the backend for this run. ``fallback`` is ``off``, ``ask`` or ``auto``.

    ``lock_timeout`` and ``idle_timeout`` are in seconds: a ``lock_timeout`` of None is the store's
    default, an ``idle_timeout`` of 0 means never. ``tsuku_home`` is the folder that the user named
    as tsuku's, None if none is named.

    ``refresh`` says when an install asks for newer metadata: ``auto``, ``always`` or ``never``.
    ``require_fresh`` makes metadata that is not fresh an error. ``offline`` keeps an install from
    asking any host. ``allow_revoked`` permits a revoked release.
    """

    data: Path
    state: Path
    environ: Mapping[str, str]
    host: Host
    now: datetime
    note: Callable[[str], None]
    progress: Progress
    backend: str = "auto"
    prefer: str | tuple[str, ...] = "portable"
    channel: str | None = None
    repository: str | None = None
    repository_url: str | None = None
    mirrors: tuple[str, ...] = ()
    idle_timeout: int = 0
    lock_timeout: float | None = None
    tsuku_home: Path | None = None
    backend_chosen: bool = False
    refresh: str = "never"
    require_fresh: bool = False
    offline: bool = False
    allow_revoked: bool = False
    update_check: bool = False
    ask: Callable[[str], bool] = _no_answer
    fallback: str = "ask"

    @property
    def shelf(self) -> StoreReader:
        """The installed versions, to be read and used."""
        from tsuku_llm.store.reader import StoreReader  # noqa: PLC0415 - ``probe`` does without

        return StoreReader(self.data)

    @property
    def store(self) -> Store:
        """The installed versions, to be changed; a wait for another process is printed."""
        from tsuku_llm.store.store import Store  # noqa: PLC0415 - a start does without

        return Store(self.data, lock_timeout=self.lock_timeout, on_wait=self._waiting)

    def _waiting(self, holder: Holder | None) -> None:
        if holder:
            self.note(f"waiting for another tsuku-llm ({holder}), which works on the same")
        else:
            self.note("waiting for a lock that another process holds")


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


def repository_of(session: Session) -> Repository:
    """Return the session's repository, or the official one. Raises ``UnknownRequest``."""
    from tsuku_llm.catalog import repositories  # noqa: PLC0415 - a start does without

    name = session.repository or repositories.OFFICIAL
    url = session.repository_url if name == repositories.OFFICIAL else None
    return repositories.repository(session.data, name, url)
