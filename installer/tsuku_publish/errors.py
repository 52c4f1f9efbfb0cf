"""The errors of the publisher's commands, and the guard for files that people or programs wrote."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.foreign import read_foreign

LARGEST_FILE = 64 << 20
"""Bytes of one file of the data that are read; a release file of upstream has some 4 MB."""


class PublishError(TsukuError):
    """Data or signatures that give no repository, or a repository with a fault; one line says it.

    Messages of other libraries may have several lines: they become one.
    """

    slug = "publish"
    exit_code = 1

    def __init__(self, message: str, *, facts: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(" ".join(message.split()), facts=facts, hint=hint)


class MissingTools(PublishError):
    """A build whose tools are not on this machine, or are too old."""

    slug = "missing-tools"


class BuildFailed(PublishError):
    """A program that a build needs failed; the facts have its last lines and the log's place."""

    slug = "build-failed"


def other_content(where: str) -> PublishError:
    """Return the error for a version that would be signed or served with a second content."""
    hint = (
        "rotate changes the signers, and makes the next root"
        if where.endswith(".root.json")
        else "fetch the published repository if another person signed it too; your changes get "
        "the next version with sign --raise"
    )
    return PublishError(f"other content exists under the same version: {where}", hint=hint)


def in_one_line(error: TsukuError) -> str:
    """Return the message and the facts of an error, for the message of another one."""
    return "; ".join((error.message, *error.facts))


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


def content_of(path: Path) -> bytes | None:
    """Return the bytes of a file of the data, None if it does not exist.

    A pipe, a device, a file of the kernel and a giant are refused. Raises ``PublishError``.
    """
    # A link that leads nowhere is a lost file, not an absent one.
    if not os.path.lexists(path):
        return None
    with reading(path):
        return read_foreign(path, LARGEST_FILE)


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """Raise ``PublishError`` for a file that cannot be read, and for data of another shape.

    Use it only around the few lines that read or walk through such data: there these errors can
    have no other cause.
    """
    try:
        yield
    except FileNotFoundError as error:
        # All files that are read here are in the folder of the data.
        fact = f"{error.strerror}; --data FOLDER names the folder of the data"
        raise PublishError(f"{what} cannot be read: {fact}") from error
    except OSError as error:
        raise PublishError(f"{what} cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise PublishError(f"{what} cannot be understood: it has no {error}") from error
    except _MALFORMED as error:
        fact = " ".join(str(error).split())[:300]
        raise PublishError(f"{what} cannot be understood: {fact}") from error
