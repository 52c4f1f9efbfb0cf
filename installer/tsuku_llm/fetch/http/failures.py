"""A failure that a retry may overcome."""

from __future__ import annotations

from tsuku_llm.ground.errors import DownloadError


class Transient(Exception):
    """A failure after which a retry may help; ``error`` is raised if no retry does.

    ``wait`` is how many seconds the server asked to wait, or None. ``tries`` is a lower
    limit of attempts for failures that rarely go away. ``url`` is what was asked for.
    """

    def __init__(
        self,
        error: DownloadError,
        *,
        wait: float | None = None,
        tries: int | None = None,
        url: str = "",
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait = wait
        self.tries = tries
        self.url = url
