"""The whole program on a machine whose clock was set back, by faketime."""

import json
import subprocess
from typing import Any

import pytest
from support import calendar
from support.program import COMMAND, Result
from support.release_server import User
from support.tools import require_tool

AGO = "2020-01-01 12:00:00"


def then(user: User, *arguments: str) -> Result:
    """Run it in 2020; what counts seconds goes on as it does."""
    line = [require_tool("faketime"), AGO, *COMMAND, *arguments]
    env = {**user.env, **calendar.on(None), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=600)
    return Result(done.returncode, done.stdout, done.stderr)


def error_of(result: Result) -> tuple[int, Any]:
    return result.code, json.loads(result.stdout)["error"]


@pytest.mark.parametrize(
    "words", [("update",), ("update", "--check"), ("repository", "refresh", "test")]
)
def test_M20_the_clock_is_blamed_and_not_the_certificate(
    installed: User, words: tuple[str, ...]
) -> None:
    """A certificate that is not valid yet is the first thing that such a machine meets."""
    code, error = error_of(then(installed, *words, "--json"))
    assert (code, error["code"]) == (5, "clock-behind"), error
    assert "clock says 2020-01-01" in error["message"]
    assert "set this machine's clock" in error["hint"]
    assert installed.run("update").code == 0, "without the fault the same command succeeds"


def test_M20_the_installed_version_starts_and_the_clock_is_named(
    installed: User,
) -> None:
    started = then(installed, "serve", "--", "--list-devices")
    assert started.code == 0, started.stderr
    assert "clock says 2020-01-01" in started.stderr
    code, error = error_of(
        then(installed, "serve", "--require-fresh", "--json", "--", "--list-devices")
    )
    assert (code, error["code"]) == (5, "clock-behind")
    code, error = error_of(then(installed, "install", "--require-fresh", "--json"))
    assert (code, error["code"]) == (5, "clock-behind")
