"""A reader's guard for files from people or other programs: their faults become one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ci.release.errors import ReleaseError

_MALFORMED = (
    ArithmeticError,
    AttributeError,
    IndexError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.ValidationError,
)
"""The errors that reading a value of an unexpected shape raises."""


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """Raise ``ReleaseError`` for a file that cannot be read, and for data of another shape.

    Use it only around the few lines that read or walk through such data: there these errors can
    have no other cause.
    """
    try:
        yield
    except OSError as error:
        raise ReleaseError(f"{what} cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise ReleaseError(f"{what} cannot be understood: it has no {error}") from error
    except _MALFORMED as error:
        fact = " ".join(str(error).split())[:300]
        raise ReleaseError(f"{what} cannot be understood: {fact}") from error
