"""A failure that may be gone at the next attempt."""

from __future__ import annotations

from tsuku_llm.errors import DownloadError


class Transient(Exception):
    """``error`` is raised in the end if further attempts do not help.

    ``wait`` is how many seconds the server asked for, None if it did not; ``tries`` is a
    limit of its own, for failures that are not worth many.
    """

    def __init__(
        self, error: DownloadError, *, wait: float | None = None, tries: int | None = None
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait = wait
        self.tries = tries
