"""The command line: words in, words out."""

import sys


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code; the console's entry.

    ``--version`` alone is answered without loading anything (scripts ask it often).
    """
    try:
        from tsuku_llm.cli import streams  # noqa: PLC0415

        if sys.argv[1:] == ["--version"]:
            from tsuku_llm import __version__  # noqa: PLC0415

            streams.say(sys.stdout, f"tsuku-llm {__version__}\n")
            return
        from tsuku_llm.cli.entry import run  # noqa: PLC0415

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
