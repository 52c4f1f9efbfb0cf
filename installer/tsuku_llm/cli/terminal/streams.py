"""Writing to stdout and stderr even if they are closed, full, broken or not UTF-8."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from typing import TextIO

from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.safe_text import printable

STDOUT = 1
STDERR = 2


def say(stream: TextIO | None, text: str, *, exact: bool = False) -> None:
    """Write a text at once; a reader that has closed the pipe is not an error.

    ``exact`` writes the bytes of a path as the file system has them. Otherwise characters that the
    stream's encoding lacks are escaped. Raises ``StoreError`` if the text cannot be written (full
    disk).
    """
    if stream is None:  # the descriptor was closed before the program started
        return
    try:
        if isinstance(stream, TextIOWrapper):  # also flushes an earlier write
            stream.reconfigure(errors="surrogateescape" if exact else "backslashreplace")
        stream.write(text)
        stream.flush()
    # The reader (head, a pager) has enough; the command still does its work.
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise StoreError("the output cannot be written", facts=(str(error),)) from error


def pass_on(stream: TextIO | None, data: bytes) -> None:
    """Write another program's output: unchanged but for what would command a terminal.

    Raises ``StoreError`` as ``say`` does.
    """
    # surrogateescape both ways: bytes that are not UTF-8 come out as they went in.
    text = data.decode("utf-8", "surrogateescape")
    # A server prints names of models, which come from elsewhere. Colours are harmless.
    if is_terminal(stream):
        text = re.sub(rf"(?:{_HARMLESS})|(.)", _shown, text, flags=re.DOTALL)
    say(stream, text, exact=True)


_HARMLESS = r"\r?\n|\t|\x1b\[[0-9;]*m|[ -~]+"


def _shown(found: re.Match[str]) -> str:
    # Bytes that are no text are shown as such by the terminal.
    is_byte = found[1] is not None and "\udc80" <= found[1] <= "\udcff"
    return found[0] if found[1] is None or is_byte else printable(found[1])


def note(stream: TextIO | None, text: str) -> None:
    """Write one line for people at once; ignore a stream that cannot be written to."""
    control(stream, printable(text) + "\n")


def control(stream: TextIO | None, text: str) -> None:
    """Write a text with control characters of our own; ignore a stream that cannot be written."""
    with suppress(StoreError):
        say(stream, text)


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_size(stream: TextIO | None) -> tuple[int, int]:
    """Return the columns and lines of the stream's terminal, as they are now.

    Without a terminal, or if it does not know its size: ``COLUMNS`` and ``LINES``, or 80 and 24.
    """
    # Not shutil's function: it believes COLUMNS first, which does not follow a new size.
    columns = lines = 0
    with suppress(OSError, ValueError):  # no terminal, no descriptor
        columns, lines = os.get_terminal_size(stream.fileno()) if stream else (0, 0)
    return columns or _variable("COLUMNS", 80), lines or _variable("LINES", 24)


def _variable(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) or default if text.isdecimal() and text.isascii() else default


def can_write(stream: TextIO | None, text: str) -> bool:
    """Tell whether the stream's encoding has these characters."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _silence(stream: TextIO) -> None:
    """Redirect the stream to nothing, so that the interpreter's flush at exit raises no error."""
    # The stream may be one without a descriptor, as in a test.
    with suppress(OSError, ValueError):
        _discard(stream.fileno())


@contextmanager
def reserved_stdout() -> Iterator[TextIO | None]:
    """Keep stdout for one document: everything else that is written to it goes to stderr.

    This redirects the descriptor, too, so that child processes (a server, pip) cannot write into
    the document.
    """
    try:
        # The copy is not inherited by child processes: only we can write to the real stdout.
        kept = os.dup(STDOUT)
    except OSError:  # closed
        yield None
        return
    try:
        try:
            os.dup2(STDERR, STDOUT)
        except OSError:  # closed
            _discard(STDOUT)
        # redirect_stdout is for Python code, the descriptor below it for child processes.
        with (
            redirect_stdout(sys.stderr),
            open(kept, "w", encoding="ascii", closefd=False) as document,
        ):
            yield document
    finally:
        # Restore it, so that what runs after us in this process (a test) has its stdout.
        os.dup2(kept, STDOUT)
        os.close(kept)


def _discard(descriptor: int) -> None:
    opened = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(opened, descriptor)
    finally:
        os.close(opened)
