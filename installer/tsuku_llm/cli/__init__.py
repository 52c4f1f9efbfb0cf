"""The command line: words in, words out."""

import sys


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code; the console's entry."""
    try:
        code = 0 if sys.argv[1:] == ["--version"] and _told_version() else _run()
    except KeyboardInterrupt:
        code = 130
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
    from tsuku_llm.cli.entry import run  # noqa: PLC0415

    return run(sys.argv[1:])
