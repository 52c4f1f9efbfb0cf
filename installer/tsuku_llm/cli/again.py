"""This program once more, in another process: the words that start it as it was started."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def this_program() -> tuple[str, ...]:
    """The interpreter, its own options, and what it ran: a module, or a script's absolute path.

    With the same words modules are looked for where they were found this time.
    """
    own = len(sys.orig_argv) - len(sys.argv) + 1
    *before, last = sys.orig_argv[1:own]
    if before[-1:] != ["-m"]:
        last = os.path.abspath(last)  # noqa: PTH100 - a script may be a link
    return (sys.executable, *before, last)


def serve_again(words: Sequence[str], *, instead_of: str, options: Sequence[str]) -> list[str]:
    """The line of a ``serve`` that was given ``words``, with ``options`` for one of them."""
    at = words.index("--") if "--" in words else len(words)
    own = [word for word in words[:at] if word not in (instead_of, "--json")]
    return [*this_program(), "serve", *own, *options, *words[at:]]
