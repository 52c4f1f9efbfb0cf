"""``serve --backend``: what is installed is used, what is missing is offered on a terminal."""

import json
import sys
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.program import run_on_terminal
from support.release_server import User

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

ANSWER = ("--", "--list-devices")
"""A question that the server answers, so that the start ends."""


@pytest.fixture
def owner(tmp_path: Path) -> User:
    """A user who installed one of two builds for the processor."""
    shop = FolderShop(tmp_path / "shop")
    names = ("cpu", "cpu-tuned")
    shop.publish("b1", {name: shop.variant(shop.packed(name)) for name in names})
    user = shop.user(tmp_path / "home")
    done = user.run("install", "--backend", "cpu")
    assert done.code == 0, done.stderr
    return user


def variants(user: User) -> list[str]:
    return ["cpu-tuned" if "cpu-tuned" in name else "cpu" for name in user.versions()]


def test_a_yes_installs_it_for_this_and_later_starts(owner: User) -> None:
    line = ("serve", "--backend", "CPU-tuned", *ANSWER)
    code, said = run_on_terminal(b"y\n", *line, env=owner.env)
    assert "Install cpu-tuned (a download of 0.0 MB)? [y/N]" in said
    assert code == 0, said
    assert variants(owner) == ["cpu", "cpu-tuned"]
    again = owner.run(*line)
    assert again.code == 0, again.stderr
    assert "selected=cpu-tuned" in again.stderr
    plain = owner.run("serve", *ANSWER)
    assert "selected=cpu\n" in plain.stderr, "the active version stays"
    planned = owner.run("serve", "--backend", "cpu-tuned", "--dry-run", "--json")
    assert "cpu-tuned" in planned.document["data"]["id"]


def test_a_background_start_asks_before_it_leaves_the_terminal(owner: User) -> None:
    line = ("serve", "--backend", "cpu-tuned", "--detach", "--", "--port", "0")
    code, said = run_on_terminal(b"y\n", *line, env=owner.env)
    try:
        assert code == 0, said
        assert said.count("[y/N]") == 1
        (status,) = owner.run("status", "--json").document["data"]["servers"]
        assert "cpu-tuned" in json.dumps(status)
    finally:
        owner.run("stop")


@pytest.mark.parametrize("way", ["--exec", "--detach", "--notify"])
def test_without_a_terminal_it_is_an_error_with_the_command(owner: User, way: str) -> None:
    done = owner.run("serve", "--backend", "cpu-tuned", way, *ANSWER)
    assert done.code == 7
    assert done.stderr.splitlines()[-2:] == [
        "error[not-installed]: the backend cpu-tuned is requested, and cpu is installed",
        "hint: run: tsuku-llm install --backend cpu-tuned",
    ]
    assert variants(owner) == ["cpu"]


def test_a_request_that_nothing_meets_is_refused_with_the_reasons(owner: User) -> None:
    done = owner.run("serve", "--backend", "nvidia", "--exec", *ANSWER)
    assert done.code == 7
    assert "  b1 has no build for nvidia on linux-amd64\n" in done.stderr
    assert "[y/N]" not in done.stderr
    # To install what is active already would change nothing.
    assert "install --backend cpu" not in done.stderr
    assert done.stderr.endswith("hint: use cpu, which is installed: leave out --backend\n")


def test_a_unit_keeps_the_backend(owner: User) -> None:
    done = owner.run("service", "systemd", "--backend", "cpu-tuned", "--json", *ANSWER)
    assert done.code == 0, done.stderr
    assert "--backend cpu-tuned" in json.dumps(done.document["data"]["unit"])
