"""The command line: words in, words out."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsuku_llm.operations.prefetch import PrefetchedHost

PROBING = frozenset({"backends", "doctor", "explain", "install", "probe"})
"""The commands that ask the drivers."""


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code. This is the console's entry point."""
    gc.set_threshold(200_000)  # imports make no garbage: collect less often
    try:
        code = 0 if sys.argv[1:] == ["--version"] and _told_version() else _run()
    except KeyboardInterrupt:
        code = 130
    gc.freeze()  # else the interpreter collects everything at exit
    sys.exit(code)


def _told_version() -> bool:
    """Print the version with almost nothing imported; return False to leave a failure to ``_run``.

    Scripts ask for the version often.
    """
    from tsuku_llm import __version__  # noqa: PLC0415

    try:
        sys.stdout.write(f"tsuku-llm {__version__}\n")
        sys.stdout.flush()
    except (OSError, AttributeError):  # a full disk, a broken pipe, or closed before the start
        return False
    return True


def _run() -> int:
    # First: the drivers answer in a child process while the imports below run.
    host = _asked_ahead(sys.argv[1:])
    try:
        from tsuku_llm.cli.entry import run  # noqa: PLC0415

        return run(sys.argv[1:], host)
    finally:
        if host:
            # End that child, also if the command failed before it used the answers.
            host.close()


def _asked_ahead(argv: list[str]) -> PrefetchedHost | None:
    """Return this machine with its drivers already asked, if the command will need that."""
    # With a recorded machine the real one is never asked.
    if not wants_drivers(argv) or os.environ.get("TSUKU_LLM_FAKE_HARDWARE"):
        return None
    from tsuku_llm.operations.prefetch import PrefetchedHost  # noqa: PLC0415

    return PrefetchedHost()


def own_words(argv: Sequence[str]) -> list[str]:
    """Return the arguments for us: those after ``--`` are for the program that we start."""
    return list(argv[: argv.index("--")] if "--" in argv else argv)


def wants_drivers(argv: list[str]) -> bool:
    """Return whether these arguments lead to a probe, as far as can be told without parsing them.

    A wrong guess costs time only: the command then asks, or the answers are dropped.
    """
    command = next((word for word in argv if not word.startswith("-")), None)
    # These options print something else, or read a recorded machine.
    elsewhere = ("-h", "--help", "--version", "--hardware")
    return command in PROBING and not any(word.partition("=")[0] in elsewhere for word in argv)
