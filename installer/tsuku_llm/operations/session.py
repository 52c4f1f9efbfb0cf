"""What every operation is given: the machine, the folders, the wishes, and somebody to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.errors import UsageError

if TYPE_CHECKING:  # a start does without most of what they import
    from tsuku_llm.fetch import Progress
    from tsuku_llm.host import Host
    from tsuku_llm.store import Holder, Shelf, Store

DEFAULT_CHANNEL = "stable"
INDEX_CHANNEL = "index"


def _no_answer(_question: str) -> bool:
    """Nobody is there to be asked."""
    return False


class Session(NamedTuple):
    """One run of the program.

    ``data`` and ``state`` are the folders of design's "state on disk"; ``now`` is in UTC;
    ``note`` tells people one line at once. ``channel`` is None where the user named none:
    then ``install`` may fall to the package index. ``repository`` is None for the official
    one, or for the one that the active version came from. ``prefer`` is a policy of the manifest
    or the user's own order of backends. ``lock_timeout`` and ``idle_timeout`` are in
    seconds: a ``lock_timeout`` of None is the store's own, an ``idle_timeout`` of 0 none.
    ``tsuku_home`` is the folder that the user named as tsuku's, None where none is named.
    ``backend_chosen`` tells whether the user named the backend for this run; ``refresh``
    is ``auto``, ``always`` or ``never``: when newer metadata is asked for before an install;
    ``require_fresh`` makes metadata that is not fresh an error; ``offline`` keeps an install
    from asking any host. ``allow_revoked`` makes a revoked release no error. ``ask``
    puts a question to the user, and is False where nobody can answer; ``fallback`` is ``off``,
    ``ask`` or ``auto``.
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
    def shelf(self) -> Shelf:
        """What is installed, to be read and used."""
        from tsuku_llm.store import Shelf  # noqa: PLC0415 - ``probe`` does without

        return Shelf(self.data)

    @property
    def store(self) -> Store:
        """What is installed, to be changed; people are told whom a command waits for."""
        from tsuku_llm.store import Store  # noqa: PLC0415 - a start does without

        return Store(self.data, lock_timeout=self.lock_timeout, on_wait=self._waiting)

    def _waiting(self, holder: Holder | None) -> None:
        if holder:
            self.note(f"waiting for another tsuku-llm ({holder}), which is at work on the same")
        else:
            self.note("waiting for a lock that another process holds")


def working_folder() -> Path:
    """The folder that the user is in. Raises ``UsageError`` where it was removed meanwhile."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(
            "the folder that you are in cannot be used",
            facts=(str(error),),
            hint="change to another folder",
        ) from error
