"""A server as a service: what systemd would hear, and what is in the journal (our stderr)."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.processes import stopped
from support.program import COMMAND, environment, run_program
from support.servers import install_stand_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")


class Manager:
    """What systemd hears from one service, at a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.settimeout(120)

    def heard(self) -> dict[str, str]:
        """The next message."""
        lines = self._socket.recv(65536).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def heard_with(self, field: str) -> dict[str, str]:
        """The next message that has this field."""
        while field not in (message := self.heard()):
            pass
        return message

    def judged(self, field: str = "STATUS") -> str:
        """The next status, with ``field`` or later, that says where the server computes."""
        status = self.heard_with(field)["STATUS"]
        return self.judged() if status.startswith("not known yet") else status

    def rest(self) -> list[dict[str, str]]:
        """The messages that have arrived by now."""
        self._socket.setblocking(False)
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self.heard())
        self._socket.settimeout(120)
        return found

    def close(self) -> None:
        self._socket.close()

    @contextmanager
    def service(
        self, serve: Sequence[str], *options: str, backend: str = "cpu", **extra: str
    ) -> Iterator[subprocess.Popen[str]]:
        """A server of this service, whose stand-in does ``serve``."""
        home = self.folder / "home"
        (home / "llm").mkdir(mode=0o755, parents=True)
        home.chmod(0o755)
        install_stand_in(home / "llm", backend=backend, serve=serve)
        env = environment(home, NOTIFY_SOCKET=str(self.folder / "notify"), **extra)
        line = [*COMMAND, "serve", "--notify", *options, "--", "--port", "0"]
        with subprocess.Popen(
            line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            try:
                yield child
            finally:
                child.kill()

    def status(self) -> Any:
        done = run_program("status", "--json", env=environment(self.folder / "home"))
        return done.document["data"]["servers"]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path)
    yield manager
    manager.close()


def test_systemd_hears_when_the_server_is_ready_where_it_computes_and_that_it_ends(
    manager: Manager,
) -> None:
    with manager.service(("err loading now", "listen")) as child:
        status = manager.judged("READY")
        assert status.startswith("cpu (on cpu)")
        assert status.endswith("requested=auto detected=[vulkan,cpu] selected=cpu")
        (server,) = manager.status()
        assert (server["name"], server["state"]) == ("default", "running")
        assert server["supervisor"] == child.pid
        # Also if an older server of this name has left a log here.
        (manager.folder / "home" / "llm" / "state" / "servers" / "default.log").write_text("old")
        logs = run_program("logs", env=environment(manager.folder / "home"))
        assert (logs.code, logs.stdout) == (7, "")
        assert "journalctl --user -u tsuku-llm" in logs.stderr
        # It is told at once, not when a server that is slow to end has ended.
        os.kill(server["pid"], signal.SIGSTOP)
        child.send_signal(signal.SIGTERM)
        assert manager.heard_with("STOPPING")["STOPPING"] == "1"
        os.kill(server["pid"], signal.SIGCONT)
        assert child.wait() == 0
        # The server's own words are in the journal, and systemd shows a service that it ended.
        assert child.stderr
        assert "loading now" in child.stderr.read()
        assert manager.status() == []


def test_the_server_hears_nothing_of_systemd(manager: Manager) -> None:
    """It would feed the watchdog in our place, or say that it is ready."""
    with manager.service(("dump", "listen"), WATCHDOG_USEC="60000000") as child:
        manager.heard_with("READY")
        child.terminate()
        assert child.stdout
        dumped = child.stdout.read()
    assert "TSUKU_HOME" in dumped
    assert "NOTIFY_SOCKET" not in dumped
    assert "WATCHDOG" not in dumped


def test_a_server_that_answers_feeds_the_watchdog(manager: Manager) -> None:
    with manager.service(("listen",), WATCHDOG_USEC="600000") as child:
        manager.heard_with("READY")
        for _ in range(3):
            assert manager.heard_with("WATCHDOG")["WATCHDOG"] == "1"
        child.terminate()


def test_a_server_that_hangs_does_not_feed_the_watchdog(manager: Manager) -> None:
    """Stopped, it neither answers nor works."""
    with manager.service(("listen",), "--idle-timeout", "4s", WATCHDOG_USEC="600000") as child:
        manager.heard_with("WATCHDOG")
        (server,) = manager.status()
        os.kill(server["pid"], signal.SIGSTOP)
        try:
            assert stopped(server["pid"])
            manager.rest()
            # The service is ended as idle: until then the watchdog hears of no life, unless the
            # server had answered the question that was open at the stop.
            beats = 0
            while "STOPPING" not in (message := manager.heard()):
                beats += "WATCHDOG" in message
        finally:
            os.kill(server["pid"], signal.SIGCONT)
        assert beats <= 1
        assert child.wait() == 0


LOST = "terminate called after throwing an instance of 'vk::DeviceLostError'"


def test_systemd_hears_of_a_loss_and_a_stop_in_the_pause_leaves_no_record(
    manager: Manager,
) -> None:
    settings = {"TSUKU_LLM_ON_GPU_LOSS": "restart", "TSUKU_LLM_CANARY": "false"}
    with manager.service((f"die {LOST}", "listen"), backend="vulkan", **settings) as child:
        assert manager.judged("READY").startswith("not known (no sign")
        for pause in (1, 2):
            (server,) = manager.status()
            assert server["report"]["restarts"] == pause - 1
            request(server["port"])
            assert manager.heard_with("STATUS")["STATUS"].startswith("ended, since ")
            if pause == 1:
                assert manager.judged().startswith("not known (no sign")
        # Now it waits for two seconds.
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 143
        assert manager.status() == []


def test_a_server_that_is_started_again_is_not_idle_because_it_was_away(
    manager: Manager,
) -> None:
    """The pause of a second is longer than the idle time, and the next process has done less."""
    settings = {"TSUKU_LLM_ON_GPU_LOSS": "restart", "TSUKU_LLM_CANARY": "false"}
    serve = (f"die {LOST}", "loading 12", "listen")
    idle = ("--idle-timeout", "1")
    with manager.service(serve, *idle, backend="vulkan", **settings) as child:
        manager.heard_with("READY")
        (server,) = manager.status()
        request(server["port"])
        manager.heard_with("STATUS")
        # It serves again before it is ended.
        message = manager.heard_with("STATUS")
        while not message["STATUS"].startswith("not known (no sign"):
            assert "STOPPING" not in message
            message = manager.heard_with("STATUS")
        assert child.wait() == 0


def request(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/completion", "{}")
        connection.getresponse().read()
    connection.close()


def test_a_start_that_fails_is_explained_in_the_journal_and_the_status(manager: Manager) -> None:
    failed = "err gguf_init_from_file: failed to open GGUF file '/no.gguf' (No such file)"
    with manager.service((failed, "exit 1")) as child:
        assert child.wait() == 7
        assert child.stderr
        said = child.stderr.read()
    assert "/no.gguf does not exist" in said
    heard = manager.rest()
    assert not any("READY" in message for message in heard)
    assert "/no.gguf does not exist" in heard[-1]["STATUS"]


def test_a_start_that_hangs_is_given_up(manager: Manager) -> None:
    with manager.service(("err starts", "hang"), "--start-timeout", "1s") as child:
        assert "loading for" in manager.heard_with("STATUS")["STATUS"]
        assert child.wait() == 7
        assert child.stderr
        said = child.stderr.read()
    assert "made no progress for 1 seconds" in said
    assert "tsuku-llm logs" not in said
    assert any("made no progress" in message.get("STATUS", "") for message in manager.rest())


def test_a_server_that_dies_leaves_a_record_of_how(manager: Manager) -> None:
    with manager.service(("listen",)) as child:
        manager.heard_with("READY")
        (server,) = manager.status()
        os.kill(server["pid"], signal.SIGKILL)
        assert child.wait() == 137
        (ended,) = manager.status()
    assert (ended["state"], ended["exit_code"]) == ("ended", 137)
