"""The entry point of the command ``tsuku-publish``, and of ``python -m tsuku_publish``."""

import os
import sys

from tsuku_llm.cli.main import run_process


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code."""
    run_process(_run)


def _run() -> int:
    # Only now: Ctrl-C during these imports, which take a second, is no traceback.
    from tsuku_publish.cli.main import run  # noqa: PLC0415

    code = run(sys.argv[1:])
    if "lief" in sys.modules:
        # Its bindings print a page about their own leaks when the interpreter ends after an error.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    main()
