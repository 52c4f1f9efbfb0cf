"""``list``, ``which`` and ``serve`` on a home where something is installed."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.program import COMMAND, environment, run_program
from support.stored import FILES, install

from tsuku_llm.steps.drivers.state_notes import FailureNote, StateNotes
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the server is a shell script")


def put(
    home: Path, script: str = "echo server $*; echo listening on :1 >&2", release: str = "b100"
) -> Installed:
    server = f"#!/bin/sh\n{script}\n".encode()
    store = Store(home / "llm")
    return install(store, release, files={**FILES, "llama-server": server})


def test_the_active_version_is_marked_with_a_star(home: Path) -> None:
    old, new = put(home), put(home, release="b101")
    result = run_program("list", env=environment(home))
    assert (result.code, result.stderr) == (0, "")
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["b100", "(0.1.0)"],
        ["*", "b101"],
    ]
    versions = run_program("list", "--json", env=environment(home)).document["data"]["versions"]
    assert [(v["id"], v["active"], v["tree"]) for v in versions] == [
        (old.id, False, str(old.tree)),
        (new.id, True, str(new.tree)),
    ]
    assert versions[0]["variant"] == versions[0]["backend"] == "cpu"


def test_which_prints_only_the_path(home: Path) -> None:
    installed = put(home)
    server = installed.tree / "llama-server"
    assert run_program("which", env=environment(home)).stdout == f"{server}\n"
    told = run_program("which", "--json", env=environment(home)).document
    assert told["data"] == {"path": str(server), "unsigned": None}


@pytest.mark.parametrize("words", [("which",), ("serve", "--", "-m", "x")], ids=" ".join)
def test_nothing_installed_is_exit_code_7(words: tuple[str, ...], home: Path) -> None:
    result = run_program(*words, env=environment(home))
    assert (result.code, result.stdout) == (7, "")
    assert result.stderr.splitlines()[0].startswith("error[not-installed]: ")
    assert result.stderr.splitlines()[-1] == "hint: run: tsuku-llm install"


def test_a_backend_that_is_not_installed_is_never_served(home: Path) -> None:
    put(home)
    result = run_program("serve", env=environment(home, TSUKU_LLM_BACKEND="vulkan"))
    assert result.code == 7
    assert "vulkan is requested" in result.stderr


@pytest.mark.parametrize("extra", [(), ("--exec",)], ids=["watched", "exec"])
def test_the_server_gets_its_arguments_and_keeps_its_streams(
    extra: tuple[str, ...], home: Path
) -> None:
    put(home, "echo server $*; echo listening on :1 >&2")
    result = run_program("serve", *extra, "--", "--port", "1", "--json", env=environment(home))
    assert result.code == 0
    assert result.stdout == "server --port 1 --json\n"
    assert result.stderr.splitlines() == [
        "b100: no channel of repository official offers it any more; to update: tsuku-llm update",
        "requested=auto detected=[vulkan,cpu] selected=cpu",
        # The server itself says when it is ready: with --exec nothing watches it.
        *(
            (
                "web page, once the server is ready: http://127.0.0.1:1/",
                "OpenAI API, once the server is ready: http://127.0.0.1:1/v1",
            )
            if extra
            else ()
        ),
        "listening on :1",
    ]


def test_with_json_the_servers_output_goes_to_stderr(home: Path) -> None:
    put(home)
    result = run_program("serve", "--json", "--", "--port", "1", env=environment(home))
    assert result.code == 0
    assert result.document["data"]["server_exit_code"] == 0
    assert "server --port 1" in result.stderr


def test_exec_prints_no_document(home: Path) -> None:
    result = run_program("serve", "--json", "--exec", env=environment(home))
    assert (result.code, result.document["error"]["code"]) == (2, "bad-usage")


def test_a_changed_tree_is_not_served(home: Path) -> None:
    installed = put(home)
    server = installed.tree / "llama-server"
    server.write_bytes(server.read_bytes() + b"x")
    result = run_program("serve", env=environment(home))
    assert (result.code, result.stdout) == (5, "")
    assert "\nerror[tampered-install]: " in f"\n{result.stderr}"
    receipt = installed.receipt
    which = f"--release {receipt.release} --backend cpu --repository official"
    assert f"install it again: tsuku-llm install --force {which}" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_us(number: signal.Signals, home: Path) -> None:
    put(home, "trap 'echo bye; exit 9' TERM INT; echo ready; while :; do sleep 0.05; done")
    with subprocess.Popen(
        [*COMMAND, "serve"],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        out, err = child.communicate(timeout=600)
    assert out == "bye\n"
    assert child.returncode == 9
    assert "Traceback" not in err


def test_S16_the_programs_own_files_are_not_foreign(home: Path) -> None:
    put(home)
    env = environment(home)
    memory = StateNotes(home / "llm" / "state", ("driver",))
    memory.keep_failure(FailureNote("a", "it crashed", "b", "2026-11-22T12:00:00Z"))
    memory.keep_devices("a", (), {})
    keys = ("--api-key", "secret")
    assert run_program("serve", "--", "--port", "1", env=env).code == 0
    assert run_program("service", "systemd", "--", *keys, env=env).code == 0
    kept = {path.name for path in (home / "llm" / "state").iterdir()}
    assert kept >= {"credentials", "drivers.json"}
    assert run_program("list", "--json", env=env).document["data"]["foreign"] == []
