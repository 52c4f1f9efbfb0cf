"""The standard streams, such as they are: closed, full, of a narrow encoding, or a broken pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from typing import TextIO

from tsuku_llm.errors import StoreError

STDOUT = 1
STDERR = 2


def printable(text: str) -> str:
    """A text that no terminal obeys: what is not printable is escaped as Python would.

    Names of devices, files and servers are foreign, and may hold escape sequences, line
    ends or marks that turn the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def say(stream: TextIO | None, text: str, *, exact: bool = False) -> None:
    """Write a text at once; a reader who went away is no error.

    ``exact`` gives the bytes of a path back as the file system has them; otherwise what
    the stream's encoding lacks is escaped. Raises ``StoreError`` when the text cannot be
    written (a full disk).
    """
    if stream is None:  # its descriptor was closed before the program started
        return
    try:
        if isinstance(stream, TextIOWrapper):  # this flushes what is left of an earlier write
            stream.reconfigure(errors="surrogateescape" if exact else "backslashreplace")
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise StoreError("the output cannot be written", facts=(str(error),)) from error


def pass_on(stream: TextIO | None, data: bytes) -> None:
    """Write another program's output as it is. Raises ``StoreError`` as ``say`` does."""
    say(stream, data.decode("utf-8", "surrogateescape"), exact=True)


def note(stream: TextIO | None, text: str) -> None:
    """Write one line to people at once; where nobody can read it, nothing is lost."""
    with suppress(StoreError):
        say(stream, printable(text) + "\n")


def _silence(stream: TextIO) -> None:
    """Let the interpreter's own flush at exit find nothing to complain about."""
    with suppress(OSError, ValueError):
        _discard(stream.fileno())


@contextmanager
def reserved_stdout() -> Iterator[TextIO | None]:
    """Keep stdout for one document: everything else that is written to it goes to stderr.

    It works on the descriptor too, so that children (a server, pip) cannot spoil the document.
    """
    try:
        kept = os.dup(STDOUT)
    except OSError:  # closed
        yield None
        return
    try:
        _point_to_stderr(STDOUT)
        with (
            redirect_stdout(sys.stderr),
            open(kept, "w", encoding="ascii", closefd=False) as document,
        ):
            yield document
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)


def _point_to_stderr(descriptor: int) -> None:
    try:
        os.dup2(STDERR, descriptor)
    except OSError:  # closed
        _discard(descriptor)


def _discard(descriptor: int) -> None:
    opened = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(opened, descriptor)
    finally:
        os.close(opened)
