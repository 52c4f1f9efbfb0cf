"""Files that people edit or other programs wrote: what is wrong with them is one line."""

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
"""What reading a value of another shape than the expected one raises."""


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """Raise ``ReleaseError`` for what cannot be read, and for data of another shape.

    For the few lines that read or walk through such data: there these errors are about the
    data, and nothing else.
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
