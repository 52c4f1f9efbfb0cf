"""The command line that starts this program again, in another process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def this_program() -> tuple[str, ...]:
    """Return the interpreter, its options, and what it runs: a module, or a script's absolute path.

    So the new process finds its modules in the same places as this one.
    """
    # sys.orig_argv also has the interpreter and its options; sys.argv begins with the script.
    own = len(sys.orig_argv) - len(sys.argv) + 1
    *before, last = sys.orig_argv[1:own]
    if before[-1:] != ["-m"]:
        last = os.path.abspath(last)  # noqa: PTH100 - a script may be a link
    return (sys.executable, *before, last)


def serve_again(words: Sequence[str], *, instead_of: str, options: Sequence[str]) -> list[str]:
    """Return the line of a ``serve`` given ``words``, with ``options`` in place of one of them."""
    at = words.index("--") if "--" in words else len(words)
    # Only our words: the same word after "--" belongs to the server.
    own = [word for word in words[:at] if word not in (instead_of, "--json")]
    return [*this_program(), "serve", *own, *options, *words[at:]]
