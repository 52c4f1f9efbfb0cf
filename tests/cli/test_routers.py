"""The servers of a router for its models: shown by ``status``, and ended by ``stop``.

The stand-in starts them as upstream's router does (server_models::load in tools/server/
server-models.cpp of b11434): the model's name is ``--alias``, the router's port in the environment,
and a pipe to the router tells them of its end.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import gone, stopped
from support.program import environment, run_program
from support.servers import install_stand_in
from support.waiting import family

from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
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
        record = self.data("serve", "--detach", "--name", name, "--", "--port", "0", *words)
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


def test_stop_ends_one_that_hangs(routers: Routers) -> None:
    routers.start("big")
    hanging = routers.models("big")["tiny"]
    os.kill(hanging, signal.SIGSTOP)
    assert stopped(hanging)
    stop(routers.state, "big", grace=0.1)
    assert Process.of(hanging) is None
    assert Instances(routers.state).all() == ()


def test_one_that_outlives_its_router_is_named_and_ended(routers: Routers) -> None:
    """Its supervisor and its router are killed; what hangs does not see that."""
    lost, other = routers.start("lost"), routers.start("other")
    hanging = routers.models("lost")["tiny"]
    others = routers.models("other")
    routers.lose(lost, hanging)
    assert routers.models("lost")["tiny"] == hanging
    assert f"process {hanging}; end it: tsuku-llm stop --name lost" in routers.said("status")
    assert stop(routers.state, "lost", grace=0.1).outcome == "left"
    assert Process.of(hanging) is None
    # Another router of the same build keeps what it has.
    assert routers.models("other") == others
    assert other["state"] == "running"
