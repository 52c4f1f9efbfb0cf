"""The whole program on a machine whose clock was set back."""

import json
from typing import Any, Protocol

import pytest
from support.program import Result, run_program
from support.release_server import User
from support.the_day import day, system_on

AGO = day("2020-01-01T12:00:00Z")


class Then(Protocol):
    """Runs the program in 2020, for a user."""

    def __call__(self, user: User, *arguments: str) -> Result: ...


@pytest.fixture(scope="module")
def then(tmp_path_factory: pytest.TempPathFactory) -> Then:
    """The whole process has that day, also its TLS; what counts seconds goes on as it does."""
    ago = system_on(AGO, tmp_path_factory.mktemp("day"))

    def run(user: User, *arguments: str) -> Result:
        return run_program(*arguments, env={**user.env, **ago})

    return run


def error_of(result: Result) -> tuple[int, Any]:
    return result.code, json.loads(result.stdout)["error"]


@pytest.mark.parametrize(
    "words", [("update",), ("update", "--check"), ("repository", "refresh", "test")]
)
def test_M20_the_clock_is_blamed_and_not_the_certificate(
    installed: User, words: tuple[str, ...], then: Then
) -> None:
    """A certificate that is not valid yet is the first thing that such a machine meets."""
    code, error = error_of(then(installed, *words, "--json"))
    assert (code, error["code"]) == (5, "clock-behind"), error
    assert "clock says 2020-01-01" in error["message"]
    assert "set this machine's clock" in error["hint"]
    assert installed.run("update").code == 0, "without the fault the same command succeeds"


def test_M20_the_installed_version_starts_and_the_clock_is_named(
    installed: User, then: Then
) -> None:
    started = then(installed, "serve", "--", "--list-devices")
    assert started.code == 0, started.stderr
    assert "clock says 2020-01-01" in started.stderr
    strict = User(installed.home, {**installed.env, "TSUKU_LLM_REFRESH": "required"})
    code, error = error_of(then(strict, "serve", "--json", "--", "--list-devices"))
    assert (code, error["code"]) == (5, "clock-behind")
    code, error = error_of(then(strict, "install", "--json"))
    assert (code, error["code"]) == (5, "clock-behind")
