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
            yield child, told_port(child)
        finally:
            child.terminate()


def told_port(server: subprocess.Popen[str]) -> int:
    """The port that a server says on stderr it listens on; waits for the line."""
    assert server.stderr
    for line in server.stderr:
        found = re.search(r"listening on http://[\d.]+:(\d+)", line)
        if found:
            return int(found[1])
    raise AssertionError("it ended before it listened")
