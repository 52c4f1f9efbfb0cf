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
        last = os.path.abspath(last)
    return (sys.executable, *before, last)


def with_server_words(argv: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a ``serve`` with ``words`` for the server in place of our ``-m``."""
    at = argv.index("--") if "--" in argv else len(argv)
    own: list[str] = []
    before = iter(argv[:at])
    for word in before:
        if word in ("-m", "--model"):
            next(before, None)
        # click takes "-mNAME" and "--model=NAME", too.
        elif not word.startswith("--model=") and (word[:2] != "-m" or word.startswith("--")):
            own.append(word)
    return (*own, "--", *words, *argv[at + 1 :])


def serve_again(
    argv: Sequence[str],
    *,
    without: Sequence[str],
    without_values: Sequence[str] = (),
    options: Sequence[str],
) -> list[str]:
    """Return the words of a ``serve`` given ``argv``, with ``options`` in place of some of them.

    ``without_values`` are options that go together with their values.
    """
    at = argv.index("--") if "--" in argv else len(argv)
    own: list[str] = []
    # Only ours: the same argument after "--" belongs to the server.
    words = iter(argv[:at])
    for word in words:
        option, equals, _ = word.partition("=")
        if option in without_values:
            # "--scope=user" has its value in it, that of "--scope user" is the next word.
            if not equals:
                next(words, None)
        elif word not in (*without, "--json"):
            own.append(word)
    return ["serve", *own, *options, *argv[at:]]
