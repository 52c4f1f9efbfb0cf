"""A program that launches a build and ends as ``tsuku-llm`` would: one error line, exit code.

    launcher.py supervise|replace|gate TREE SERVER BACKEND [ARGS...]

The tests run it as a child, since a launcher takes over signals, streams and the process.
"""

import os
import sys
from pathlib import Path

from tsuku_llm import launch
from tsuku_llm.errors import TsukuError


def main(action: str, tree: str, server: str, backend: str, *arguments: str) -> int:
    build = launch.Build(Path(tree), server, backend)
    plan = launch.plan(build, arguments, cwd=Path.cwd(), environ=os.environ)
    try:
        if action == "gate":
            launch.gate(build, os.environ)
            return 0
        return launch.replace(plan) if action == "replace" else launch.supervise(plan)
    except TsukuError as error:
        sys.stderr.write(f"error[{error.slug}]: {error.message}\nhint: {error.hint}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
