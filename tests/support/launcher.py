"""A program that launches a build and ends as ``tsuku-llm`` would: one error line, exit code.

    launcher.py supervise|replace|gate TREE SERVER BACKEND [ARGS...]

The tests run it as a child, since a launcher takes over signals, streams and the process.
"""

import os
import sys
from pathlib import Path

from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.launch.plan.planning import Build, plan_server
from tsuku_llm.launch.run.gate import gate
from tsuku_llm.launch.run.replace_process import replace_process
from tsuku_llm.launch.run.supervise import supervise


def main(action: str, tree: str, server: str, backend: str, *arguments: str) -> int:
    build = Build(Path(tree), server, backend)
    plan = plan_server(build, arguments, cwd=Path.cwd(), environ=os.environ)
    try:
        if action == "gate":
            gate(build, os.environ)
            return 0
        return replace_process(plan) if action == "replace" else supervise(plan)[0]
    except TsukuError as error:
        sys.stderr.write(f"error[{error.slug}]: {error.message}\nhint: {error.hint}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
