"""A start without options needs no parser, and is what click would have made of it."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.program import COMMAND, environment
from support.stored import FILES, install

from tsuku_llm.cli.commands.serve import command
from tsuku_llm.cli.entry import serves_plainly
from tsuku_llm.operations.serve import Serving
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
def test_click_parses_a_plain_start_the_same_way(own: list[str], arguments: list[str]) -> None:
    words = [*own, "--", *arguments]
    assert serves_plainly(words)
    with command.make_context("serve", words[1:]) as context:
        found = dict(context.params)
    usual = Serving(replace="--exec" in own)
    assert found.pop("arguments") == tuple(arguments)
    assert [found.pop(name) for name in ("name", "replace", "require_gpu", "verify")] == [
        usual.name,
        usual.replace,
        usual.require_gpu,
        usual.verify,
    ]
    assert not any(found.values())


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "-m", "x"],
        ["serve", "--exec", "--exec"],
        ["serve", "--require-gpu"],
        ["serve", "--json"],
        ["--json", "serve"],
        ["serve", "serve"],
        ["--exec", "serve"],
        ["list"],
        ["--", "serve"],
        [],
    ],
    ids=" ".join,
)
def test_any_other_start_is_parsed_by_click(words: list[str]) -> None:
    assert not serves_plainly(words)


@pytest.mark.skipif(sys.platform == "win32", reason="the server is a shell script")
@pytest.mark.parametrize("own", PLAIN, ids=" ".join)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda words: ascii(" ".join(words)))
def test_a_plain_start_runs_the_same_as_a_parsed_one(
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
    assert plain.stdout.endswith(b"/tree\n")


@pytest.mark.skipif(sys.platform == "win32", reason="the server is a shell script")
@pytest.mark.parametrize("own", PLAIN, ids=" ".join)
def test_a_plain_start_has_the_usual_errors(own: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *own], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    assert done.stderr.startswith("error[not-installed]: nothing is installed yet\n")
