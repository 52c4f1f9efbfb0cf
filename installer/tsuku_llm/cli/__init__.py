"""The command line: words in, words out."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsuku_llm.operations.ahead import AskedHost

PROBING = frozenset({"backends", "doctor", "explain", "install", "probe"})
"""The commands that ask the drivers."""


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code; the console's entry."""
    gc.set_threshold(200_000)  # what is imported is no garbage: look for it less often
    try:
        code = 0 if sys.argv[1:] == ["--version"] and _told_version() else _run()
    except KeyboardInterrupt:
        code = 130
    gc.freeze()  # else the interpreter searches all that was loaded for cycles on its way out
    sys.exit(code)


def _told_version() -> bool:
    """Answer what scripts ask often with nothing loaded; False leaves a failure to ``_run``."""
    from tsuku_llm import __version__  # noqa: PLC0415

    try:
        sys.stdout.write(f"tsuku-llm {__version__}\n")
        sys.stdout.flush()
    except (OSError, AttributeError):  # full, broken, or closed before the start
        return False
    return True


def _run() -> int:
    host = _asked_ahead(sys.argv[1:])
    try:
        from tsuku_llm.cli.entry import run  # noqa: PLC0415

        return run(sys.argv[1:], host)
    finally:
        if host:
            host.close()


def _asked_ahead(argv: list[str]) -> AskedHost | None:
    """This machine, already asked, where the command will want to know what it has."""
    if not wants_drivers(argv) or os.environ.get("TSUKU_LLM_FAKE_HARDWARE"):
        return None
    from tsuku_llm.operations.ahead import AskedHost  # noqa: PLC0415

    return AskedHost()


def own_words(argv: Sequence[str]) -> list[str]:
    """The arguments that are for us: what stands after ``--`` is for who is started."""
    return list(argv[: argv.index("--")] if "--" in argv else argv)


def wants_drivers(argv: list[str]) -> bool:
    """Whether these arguments lead to a probe, as far as can be told without parsing them."""
    command = next((word for word in argv if not word.startswith("-")), None)
    elsewhere = ("-h", "--help", "--version", "--hardware")
    return command in PROBING and not any(word.partition("=")[0] in elsewhere for word in argv)
