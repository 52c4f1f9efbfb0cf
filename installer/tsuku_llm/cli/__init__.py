"""The command line: words in, words out."""

import sys


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code; the console's entry."""
    try:
        code = _version() if sys.argv[1:] == ["--version"] else _run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _version() -> int:
    """Answer what scripts ask often without loading anything for it."""
    from tsuku_llm import __version__  # noqa: PLC0415
    from tsuku_llm.cli import streams  # noqa: PLC0415
    from tsuku_llm.errors import StoreError  # noqa: PLC0415

    try:
        streams.say(sys.stdout, f"tsuku-llm {__version__}\n")
    except StoreError as error:
        streams.note(sys.stderr, f"error[{error.slug}]: {error.message}")
        return error.exit_code
    return 0


def _run() -> int:
    from tsuku_llm.cli.entry import run  # noqa: PLC0415

    return run(sys.argv[1:])
