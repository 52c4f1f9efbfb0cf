"""What the file system refuses, as errors of ours."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from tsuku_llm.errors import NoSpace, NotWritable, StoreError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextlib.contextmanager
def disk_errors(doing: str, folder: Path) -> Iterator[None]:
    """Turn an ``OSError`` into ``NoSpace``, ``NotWritable`` or ``StoreError``.

    ``doing`` completes "while ..."; ``folder`` is where it happened.
    """
    try:
        yield
    except OSError as error:
        raise _disk_error(error, doing, folder) from error


def _disk_error(error: OSError, doing: str, folder: Path) -> StoreError:
    facts = (f"{error.strerror or error}, while {doing}", f"folder: {folder}")
    if error.errno in _FULL:
        return NoSpace(
            "there is no space left on the disk",
            facts=facts,
            hint="free some space, or set TSUKU_HOME to a folder on a larger disk",
        )
    if error.errno in _FORBIDDEN:
        return NotWritable(
            f"the system does not allow {doing}",
            facts=facts,
            hint="make that folder yours and writable, or set TSUKU_HOME to one that is",
        )
    return StoreError(
        "a file could not be read or written",
        facts=facts,
        hint="check the disk, then run the command again",
    )
