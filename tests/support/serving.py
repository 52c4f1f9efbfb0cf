"""``serve`` of a user, in the background of a test."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from support.program import COMMAND
from support.release_server import User


@contextmanager
def serving(user: User, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """``serve`` of a user, and the port that its server listens on."""
    line = [*COMMAND, "serve", "--", *arguments, "--port", "0"]
    with subprocess.Popen(line, env=dict(user.env), stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child, _port(child)
        finally:
            child.terminate()


def _port(child: subprocess.Popen[str]) -> int:
    assert child.stderr
    for line in child.stderr:
        found = re.search(r"listening on http://[\d.]+:(\d+)", line)
        if found:
            return int(found[1])
    raise AssertionError("it ended before it listened")
