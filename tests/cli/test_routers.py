"""The servers of a router for its models: shown by ``status``, and ended by ``stop``.

The stand-in starts them as upstream's router does (server_models::load in tools/server/
server-models.cpp of b11434): the model's name is ``--alias``, the port that the router was told is
in the environment (0 for ``--port 0``, the default for a Unix socket), and a pipe to the router
tells them of its end.
"""

import http.client
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.model_shelves import ollama_model
from support.processes import gone, stopped
from support.program import environment, run_program
from support.servers import install_stand_in
from support.tiny_model import write_tiny_model
from support.waiting import PROMPTLY, family

from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.steps.servers import background
from tsuku_llm.steps.servers.background import stop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")


class Routers:
    """A home with a build whose server is a router, and the routers that run there."""

    def __init__(self, home: Path) -> None:
        steps = ("route o/r:Q8_0", "route tiny", "listen")
        install_stand_in(home / "llm", backend="cpu", serve=steps, model=("pipe",))
        self.state = home / "llm" / "state"
        self._env = environment(home)
        self._processes: list[Process] = []

    def data(self, *words: str) -> Any:
        done = run_program(words[0], "--json", *words[1:], env=self._env)
        assert done.code == 0, done.stderr
        return done.document["data"]

    def said(self, *words: str) -> str:
        done = run_program(*words, env=self._env)
        assert done.code == 0, done.stderr
        return done.stdout

    def start(self, name: str, *words: str) -> Any:
        where = () if "--host" in words else ("--port", "0")
        record = self.data("serve", "--detach", "--name", name, "--", *where, *words)
        pids = (record["pid"], record["supervisor"], *self.models(name).values())
        self._processes += filter(None, map(Process.of, pids))
        return record

    def models(self, name: str) -> dict[str, int]:
        loaded = self.data("status")["models"].get(name, ())
        return {each["name"]: each["pid"] for each in loaded}

    def lose(self, record: Any, hanging: int) -> None:
        """Kill a router and its supervisor while one of its servers hangs."""
        os.kill(hanging, signal.SIGSTOP)
        assert stopped(hanging)
        for pid in (record["supervisor"], record["pid"]):
            with suppress(ProcessLookupError):  # the router ends with its supervisor
                os.kill(pid, signal.SIGKILL)
            assert gone(pid)

    def end(self) -> None:
        for process in self._processes:
            process.send(signal.SIGKILL)


@pytest.fixture
def routers(home: Path) -> Iterator[Routers]:
    routers = Routers(home)
    yield routers
    routers.end()


def test_a_coding_tool_gets_a_name_that_the_router_knows(routers: Routers) -> None:
    routers.start("big")
    told = routers.data("launch", "claude", "--name", "big")
    assert told["models"] == ["o/r:Q8_0", "tiny"]
    assert told["settings"].endswith("ANTHROPIC_MODEL=o/r:Q8_0")
    said = routers.said("launch", "claude", "--name", "big")
    assert "# one of its models: o/r:Q8_0, tiny\n" in said


def test_status_lists_the_loaded_models(routers: Routers) -> None:
    record = routers.start("big")
    loaded = routers.data("status")["models"]["big"]
    assert [each.pop("name") for each in loaded] == ["o/r:Q8_0", "tiny"]
    for each in loaded:
        pid, memory = each.pop("pid"), each.pop("memory")
        assert pid in family(record["pid"])[1:]
        assert memory > 0
        assert each == {"gpu_memory": None, "verdict": "on_cpu"}
    text = routers.said("status")
    assert "loaded      o/r:Q8_0: " in text
    assert "of memory, on cpu, process" in text


def test_a_server_with_a_model_has_none_of_these(routers: Routers) -> None:
    """Of such a server not even the processes are listed."""
    routers.start("one", "-m", "/m.gguf")
    assert routers.data("status")["models"] == {}


def test_stop_ends_them_all(routers: Routers) -> None:
    record = routers.start("big")
    models = routers.models("big")
    assert routers.data("stop", "big") == {"stopped": [{"name": "big", "outcome": "stopped"}]}
    assert all(map(gone, (record["pid"], record["supervisor"], *models.values())))


def test_stop_ends_one_that_hangs(routers: Routers, monkeypatch: pytest.MonkeyPatch) -> None:
    routers.start("big")
    hanging = routers.models("big")["tiny"]
    os.kill(hanging, signal.SIGSTOP)
    assert stopped(hanging)
    monkeypatch.setattr(background, "GRACE", 0.1)
    stop(routers.state, "big")
    assert Process.of(hanging) is None
    assert Instances(routers.state).all() == ()


@pytest.mark.parametrize("where", [(), ("--host", "SOCKET")], ids=["port-0", "unix-socket"])
def test_one_that_outlives_its_router_is_named_and_ended(
    where: Sequence[str],
    routers: Routers,
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its supervisor and its router are killed; what hangs does not see that."""

    def start(name: str) -> Any:
        path = str(short_folder / f"{name}.sock")
        return routers.start(name, *(path if word == "SOCKET" else word for word in where))

    lost, second, other = map(start, ("lost", "second", "other"))
    hanging, also = (routers.models(name)["tiny"] for name in ("lost", "second"))
    others = routers.models("other")
    routers.lose(lost, hanging)
    routers.lose(second, also)
    # Both routers are gone and were told the same port: each has its own all the same.
    assert routers.models("lost")["tiny"] == hanging
    assert routers.models("second")["tiny"] == also
    assert f"process {hanging}; end it: tsuku-llm stop --name lost" in routers.said("status")
    monkeypatch.setattr(background, "GRACE", 0.1)
    assert stop(routers.state, "lost").outcome == "left"
    assert Process.of(hanging) is None
    assert routers.models("second")["tiny"] == also
    # Another router of the same build keeps what it has.
    assert routers.models("other") == others
    assert other["state"] == "running"


# --- a real router --------------------------------------------------------------------------


def asked(port: int, path: str, model: str) -> Any:
    """What a server answers to two words for one of its models."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROMPTLY)
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "two words"}]}
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    assert response.status == 200, text
    return json.loads(text)


@pytest.mark.index
def test_a_real_router_serves_every_model_by_its_name(home: Path, tmp_path: Path) -> None:
    """Two clients name different models at once, and a name that upstream would change."""
    (tmp_path / "own").mkdir()
    for name in ("one", "two words"):
        write_tiny_model(tmp_path / "own" / f"{name}.gguf")
    third = ollama_model(tmp_path / "user" / ".ollama" / "models", "three:7b-q4_0")
    write_tiny_model(third)
    others = dict.fromkeys(("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"), "")
    env = environment(
        home,
        TSUKU_LLM_CHANNEL="index",
        TSUKU_LLM_BACKEND="cpu",
        TSUKU_LLM_MODEL_PATH=str(tmp_path / "own"),
        HOME=str(tmp_path / "user"),
        **others,
    )

    def data(*words: str) -> Any:
        done = run_program(words[0], "--json", *words[1:], env=env)
        assert done.code == 0, done.stderr
        return done.document["data"]

    data("install")
    record = data("serve", "--detach", "--", "--port", "0", "-c", "128")
    try:
        port = record["port"]
        with ThreadPoolExecutor() as threads:
            one = threads.submit(asked, port, "/v1/chat/completions", "one")
            two = threads.submit(asked, port, "/v1/messages", "two words")
            assert one.result()["model"] == "one"
            assert two.result()["model"] == "two words"
        assert asked(port, "/v1/chat/completions", "three:7b-q4_0")["choices"]
        loaded = {each["name"]: each["pid"] for each in data("status")["models"]["default"]}
        assert [*loaded] == ["one", "three@7b-q4_0", "two words"]
    finally:
        assert data("stop")["stopped"][0]["outcome"] == "stopped"
    assert all(map(gone, loaded.values()))
