"""Servers in the background with the real server and a tiny model."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import REAL_SERVER, compile_library, real_build
from support.processes import gone
from support.program import COMMAND, Result, environment, run_program
from support.stored import install
from support.tiny_model import write_tiny_model

from tsuku_llm.instances.folder import Instances
from tsuku_llm.store.store import Store

pytestmark = [
    pytest.mark.index,
    pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's"),
]


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.servers = path / "llm" / "state" / "servers"

    def run(self, *arguments: str) -> Result:
        return run_program(*arguments, env=environment(self.path), cwd=self.path)

    def start(self, *options: str, port: int = 0) -> Any:
        """Start a server with the model, whose path is relative to the user's folder."""
        words = ("-m", "tiny.gguf", "--port", str(port))
        done = self.run("serve", "--detach", *options, "--json", "--", *words)
        assert done.code == 0, done.stderr + done.stdout
        return done.document["data"]

    def status(self) -> dict[str, Any]:
        told = self.run("status", "--json").document["data"]["servers"]
        return {each["name"]: each for each in told}

    def files(self) -> list[str]:
        return sorted(path.name for path in self.servers.iterdir())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("real")
    binaries = (real_build(folder / "unpacked") / REAL_SERVER).parent
    files = {path.name: path.read_bytes() for path in binaries.iterdir()}
    home = Home(folder / "home")
    home.path.mkdir(mode=0o755)
    store = Store(home.path / "llm")
    install(store, "b10434", files=files, links={}, arguments=("--device", "none"))
    write_tiny_model(home.path / "tiny.gguf")
    return home


@pytest.fixture
def home(installed: Home) -> Iterator[Home]:
    yield installed
    installed.run("stop", "--all")
    for record in Instances(installed.path / "llm" / "state").all():
        for process in (record.server, record.supervisor):
            if process:
                process.send(signal.SIGKILL)


def complete(port: int) -> int:
    """How many tokens the server has predicted."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/completion", json.dumps({"prompt": "hi", "n_predict": 4}))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return int(answer["tokens_predicted"])


def test_a_real_server_is_started_queried_stopped_and_started_again(home: Home) -> None:
    for _ in range(2):
        server = home.start()
        assert complete(server["port"]) == 4
        assert home.status() == {"default": server}
        report = server["report"]
        assert (report["backend"], report["verdict"]) == ("cpu", "on_cpu")
        assert report["release"] == "b10434"
        assert (report["requested"], report["selected"]) == ("auto", "cpu")
        assert report["detected"] == ["vulkan", "cpu"]
        assert "model loaded" in home.run("logs").stdout
        assert home.run("stop").code == 0
        assert gone(server["pid"])
        assert gone(server["supervisor"])
        assert home.status() == {}
    assert home.files() == ["claim.lock", "default.log", "default.log.1"]


def test_two_servers_cannot_have_one_port(home: Home) -> None:
    first = home.start()
    second = home.start("--name", "second")
    assert complete(first["port"]) == complete(second["port"]) == 4
    words = ("-m", "tiny.gguf", "--port", str(second["port"]))
    third = home.run("serve", "--detach", "--name", "third", "--", *words)
    assert third.code == 7
    assert f"the server second (process {second['supervisor']}) listens at" in third.stderr
    assert sorted(home.status()) == ["default", "second"]


def test_a_port_in_use_by_another_program_is_named(home: Home) -> None:
    import socket  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        words = ("-m", "tiny.gguf", "--port", str(port))
        done = home.run("serve", "--detach", "--", *words)
    assert done.code == 7
    assert f"nothing can listen on 127.0.0.1 port {port}" in done.stderr
    assert home.status() == {}


def test_a_missing_model_is_exit_code_7(home: Home) -> None:
    done = home.run("serve", "--detach", "--", "-m", "absent.gguf", "--port", "0")
    assert done.code == 7
    assert f"the model {home.path / 'absent.gguf'} does not exist" in done.stderr
    assert home.status() == {}


def test_a_killed_supervisor_leaves_no_server(home: Home) -> None:
    server = home.start()
    os.kill(server["supervisor"], signal.SIGKILL)
    assert gone(server["supervisor"])
    assert gone(server["pid"])
    assert home.status()["default"]["state"] == "lost"
    assert home.run("stop").code == 0
    assert home.status() == {}


def test_an_idle_server_ends_and_a_busy_one_does_not(home: Home) -> None:
    server = home.start("--idle-timeout", "3s")
    until = time.monotonic() + 2 * server["idle_timeout"]
    while time.monotonic() < until:
        assert complete(server["port"]) == 4
    # It follows the log to the server's end; the server may lose its last lines there.
    assert "llama_server: model loaded" in home.run("logs", "--follow").stdout
    assert home.status()["default"]["reason"] == "no request for 3 seconds"
    assert gone(server["pid"])


def test_the_servers_own_metrics_are_added_to_ours(home: Home) -> None:
    words = ("-m", "tiny.gguf", "--port", "0", "--metrics")
    done = home.run("serve", "--detach", "--json", "--", *words)
    port = done.document["data"]["port"]
    complete(port)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    assert b"llamacpp:tokens_predicted_total 4" in connection.getresponse().read()
    connection.close()
    assert 'tsuku_llm_server_up{name="default"} 1.0' in home.run("status", "--prometheus").stdout


def test_the_real_server_is_measured(home: Home) -> None:
    """The model's context is small, so both the prompt and the answer are shorter."""
    choice = home.run("explain", "--release", "b10434", "--json").document["data"]
    if choice["selected"] is None:
        pytest.skip("this processor lacks what the manifest says that the real build needs")
    done = home.run("bench", "-m", "tiny.gguf", "--rounds", "2", "--json")
    assert done.code == 0, done.stderr
    (result,) = done.document["data"]["results"]
    assert (result["variant"], result["release"], len(result["speeds"])) == ("cpu", "b10434", 2)
    for speed in result["speeds"]:
        assert (speed["prompt_tokens"], speed["generated_tokens"]) == (184, 64)
        assert speed["prompt"] > speed["generation"] > 1
    assert result["generation"] == sum(speed["generation"] for speed in result["speeds"]) / 2


def test_a_tool_of_the_real_build_runs(home: Home) -> None:
    done = home.run("run", "llama-server", "--", "--version")
    assert done.code == 0
    assert "version: " in done.stdout + done.stderr
    done = home.run("run", "llama-quantize")
    assert "tool: llama-server" in done.stderr


WITNESS = """
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) {{ fclose(fopen("{witness}", "w")); }}
"""


def test_N01_a_planted_plugin_is_not_loaded(home: Home, tmp_path: Path) -> None:
    """ggml looks for plugins in the working folder and beside the server."""
    witness, folder = tmp_path / "loaded", tmp_path / "folder"
    folder.mkdir(mode=0o755)
    plugin = compile_library(folder / "libggml-cpu-evil.so", WITNESS.format(witness=witness))
    (version,) = Store(home.path / "llm").installed()
    server = version.tree / "llama-server"
    subprocess.run([server, "--list-devices"], cwd=folder, check=True, capture_output=True)
    assert witness.exists(), "the attack itself does not work"
    witness.unlink()
    for place in (folder, version.tree):
        if place == version.tree:
            place.chmod(0o755)
            plugin.rename(place / plugin.name)
        for words in (
            ("serve", "--exec", "--", "--list-devices"),
            ("serve", "--", "--list-devices"),
        ):
            done = run_program(*words, env=environment(home.path), cwd=folder)
            assert done.code == 0, done.stderr
            assert "libggml-cpu-evil.so" in done.stderr or place == version.tree
            assert not witness.exists(), (place, words)
    (kept,) = (home.path / "llm/set-aside").rglob(plugin.name)
    assert kept.exists()


def test_a_question_is_answered_by_a_real_server_which_ends(home: Home) -> None:
    done = subprocess.run(
        [*COMMAND, "chat", "--json", "-m", "tiny.gguf"],
        env=environment(home.path),
        cwd=home.path,
        input=b"hi",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert data["server"] == "chat"
    assert re.fullmatch("[a-z]+", data["answer"])
    assert home.status() == {}
    # One that runs answers too, and goes on.
    server = home.start("--name", "big")
    done = subprocess.run(
        [*COMMAND, "chat", "-m", "tiny.gguf"],
        env=environment(home.path),
        cwd=home.path,
        input=b"hi",
        capture_output=True,
        check=False,
    )
    assert re.fullmatch(rb"[a-z]+\n", done.stdout), done.stderr
    assert home.status() == {"big": server}
