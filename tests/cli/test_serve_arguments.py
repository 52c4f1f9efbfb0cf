"""What follows ``--`` reaches the server as it is, with and without options of ours."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.program import COMMAND, Result, environment
from support.stored import FILES, install

from tsuku_llm.cli.commands.serve import serve_command
from tsuku_llm.cli.program import wants_json
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.store.store import Store

PLAIN = (["serve"], ["serve", "--exec"])
SAYS_ITS_WORDS = b'#!/bin/sh\nfor word; do printf "[%s]" "$word"; done\necho "in $PWD"\nexit 7\n'

ARGUMENTS = [
    [],
    ["--"],
    ["--", "-m", "a b.gguf", "--port", "0"],
    ["--", "--json", "--help", "--exec"],
    ["--", "--", "serve", "--"],
    ["--", "", " ", "\udcff"],
]


@settings(deadline=None)
@given(own=st.sampled_from(PLAIN), arguments=st.lists(st.text()))
def test_what_follows_the_two_dashes_is_the_server_s(own: list[str], arguments: list[str]) -> None:
    argv = [*own, "--", *arguments]
    assert not wants_json(argv)
    with serve_command.make_context("serve", argv[1:]) as context:
        found = dict(context.params)
    usual = Serving(replace="--exec" in own)
    assert found.pop("arguments") == tuple(arguments)
    assert [found.pop(name) for name in ("name", "replace", "start_timeout")] == [
        usual.name,
        usual.replace,
        usual.start_timeout,
    ]
    assert not any(found.values())


@pytest.mark.skipif(sys.platform == "win32", reason="the server is a shell script")
@pytest.mark.parametrize("own", PLAIN, ids=" ".join)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda words: ascii(" ".join(words)))
def test_it_starts_what_an_option_more_starts(
    own: list[str], arguments: list[str], tmp_path: Path
) -> None:
    install(Store(tmp_path / "llm"), files=FILES | {"llama-server": SAYS_ITS_WORDS})
    parsed = [*own, "--name", "default", *arguments]
    plain, same = (
        subprocess.run(
            [*COMMAND, *words],
            env=environment(tmp_path),
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        for words in ([*own, *arguments], parsed)
    )
    assert (plain.returncode, plain.stdout) == (same.returncode, same.stdout)
    assert plain.stderr == same.stderr
    assert plain.returncode == 7
    assert plain.stdout.endswith(f"in {tmp_path}\n".encode())
    # Only with --exec: else the server says where it is. Port 0 and --help have no address.
    is_told = "--exec" in own and not {"0", "--help"} & {*arguments}
    assert (b"web page, once the server is ready: http" in plain.stderr) == is_told


@pytest.mark.skipif(sys.platform == "win32", reason="the server is a shell script")
@pytest.mark.parametrize("own", PLAIN, ids=" ".join)
def test_a_plain_start_has_the_usual_errors(own: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *own], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    assert done.stderr.startswith("error[not-installed]: nothing is installed yet\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--output", "units"), "tsuku-llm service systemd has it"),
        (("--open", "--notify"), "--open and --notify cannot be combined"),
        (("--exec", "--detach"), "--exec and --detach cannot be combined"),
        (("--exec", "--json"), "--exec and --json cannot be combined"),
        (("--require-gpu", "2"), "hint: such as 0.9, or 0 to allow every share"),
        (("--name", "a b"), "'a b' cannot be a server's name"),
        (("--name", "a/b", "--detach"), "'a/b' cannot be a server's name"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    program: Callable[..., Result], words: tuple[str, ...], told: str
) -> None:
    done = program("serve", *words)
    assert (done.code, told in done.stderr) == (2, True)
