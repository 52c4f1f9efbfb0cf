"""Servers in the background, as a user starts, sees and stops them; the server is a stand-in."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.builds import NO_DEVICE_STEPS, stand_in
from support.model_shelves import small_model
from support.processes import gone, stopped
from support.program import COMMAND, Result, environment, run_program
from support.screens import screen
from support.servers import install_stand_in
from support.stored import install

from tsuku_llm.catalog import revocations
from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.cli.commands.servers import show_again
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import NoSpace
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.steps.servers import background
from tsuku_llm.steps.servers.background import start, stop
from tsuku_llm.steps.servers.server_trials import restart
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

SERVE = ("serve", "--detach")


class Home:
    """A user's home with a build in it, and what runs there."""

    def __init__(self, path: Path, build: Path) -> None:
        self.path = path
        self.state = path / "llm" / "state"
        self._build = build

    def install(self, serve: Sequence[str] = ("listen",), release: str = "b100") -> None:
        build = stand_in(self._build, backend="cpu", serve=serve)
        files = {path.name: path.read_bytes() for path in build.tree.iterdir()}
        install(Store(self.path / "llm"), release, files=files, links={})

    def run(self, *arguments: str, **extra: str) -> Result:
        return run_program(*arguments, env=environment(self.path, **extra), cwd=self._build)

    def data(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.code == 0, result.stderr
        return result.document["data"]

    def start(self, *options: str, port: str = "0") -> Any:
        result = self.run(*SERVE, *options, "--json", "--", "--port", port)
        assert result.code == 0, result.stderr
        return result.document["data"]

    def servers(self) -> dict[str, Any]:
        return {each["name"]: each for each in self.data("status")["servers"]}

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.state / "servers").iterdir())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    home = Home(folder, tmp_path / "build")
    home.install()
    yield home
    for record in Instances(home.state).all():
        for process in (record.server, record.supervisor):
            if process:
                process.send(signal.SIGKILL)


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A program that has nothing to do with us."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            yield child
        finally:
            child.kill()


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    return status == 200


def test_a_server_is_started_listed_logged_and_stopped_and_leaves_nothing(home: Home) -> None:
    started = home.start()
    assert (started["state"], started["report"]["ready"]) == ("running", True)
    assert answers(started["port"])
    assert home.servers() == {"default": started}
    assert "listening on" in home.run("logs").stdout
    assert f"listening on http://127.0.0.1:{started['port']}" in home.data("logs")["lines"][-1]
    assert home.data("stop") == {"stopped": [{"name": "default", "outcome": "stopped"}]}
    assert gone(started["pid"])
    assert gone(started["supervisor"])
    assert home.servers() == {}
    assert home.files() == ["claim.lock", "default.log"]
    assert home.run("stop").code == 7


def test_a_typo_in_the_config_file_keeps_no_server_from_being_stopped(home: Home) -> None:
    started = home.start()
    config = home.path / "config.toml"
    config.write_text("[llm]\nbackend = cpu\n")
    assert home.servers() == {"default": started}
    assert "listening on" in home.run("logs").stdout
    stopped = home.run("stop")
    assert (stopped.code, stopped.stdout) == (0, "default has ended\n")
    assert f"warning: the config file {config} is not valid TOML" in stopped.stderr
    assert "line 2" in stopped.stderr
    assert gone(started["pid"])


def test_a_server_is_named_as_an_argument_or_with_an_option(home: Home) -> None:
    home.start("--name", "big")
    home.start("--name", "small")
    for named in (["big"], ["--name", "big"], ["big", "--name", "big"]):
        assert [each["name"] for each in home.data("status", *named)["servers"]] == ["big"]
        assert home.data("logs", *named)["name"] == "big"
    assert home.run("status", "big").stdout.startswith("big: running at ")
    assert "small" not in home.run("status", "big", "--prometheus").stdout
    assert home.data("stop", "small") == {"stopped": [{"name": "small", "outcome": "stopped"}]}
    for command in ("status", "logs", "stop"):
        missing = home.run(command, "none")
        assert (missing.code, missing.stdout) == (7, "")
        assert missing.stderr.startswith("error[not-running]: there is no server called none\n")
        for wrong in (("a", "--name", "b"), ("",), ("--name", "../x")):
            assert home.run(command, *wrong).stderr.startswith("error[bad-usage]: "), wrong
    assert home.run("stop", "big", "--all").code == 2
    assert home.data("stop", "--name", "big")["stopped"][0]["outcome"] == "stopped"


def test_the_text_says_what_runs_and_how_to_stop_it(home: Home) -> None:
    told = home.run(*SERVE, "--", "--port", "0")
    (server,) = home.servers().values()
    assert told.stdout.splitlines()[:4] == [
        f"default: running at 127.0.0.1:{server['port']}",
        "requested=auto detected=[vulkan,cpu] selected=cpu",
        f"  web page    http://127.0.0.1:{server['port']}/",
        f"  OpenAI API  http://127.0.0.1:{server['port']}/v1",
    ]
    assert told.stdout.splitlines()[-1] == "stop it with: tsuku-llm stop --name default"
    # On a busy machine lines say that it still starts.
    assert "warning" not in told.stderr
    assert home.run("stop").stdout == "default has ended\n"
    assert home.run("status").stdout == "no server runs in the background\n"
    assert home.run("stop", "--all").stdout == "no server runs in the background\n"


def test_a_second_start_names_the_server_that_has_the_name_or_the_port(home: Home) -> None:
    first = home.start()
    again = home.run(*SERVE)
    assert again.code == 7
    *_, error, address, hint = again.stderr.splitlines()
    who = f"the server default (process {first['supervisor']})"
    assert error == f"error[already-running]: {who} is running already"
    assert address == f"  it listens at 127.0.0.1:{first['port']}"
    assert hint == "hint: tsuku-llm stop --name default, or give this one another --name"
    port = str(first["port"])
    same_port = home.run(*SERVE, "--name", "second", "--", "--port", port)
    assert same_port.code == 7
    assert (
        f"(process {first['supervisor']}) listens at 127.0.0.1:{port} already" in same_port.stderr
    )
    assert answers(first["port"])
    assert home.files() == ["claim.lock", "default.json", "default.log"]


def test_two_servers_have_two_names_and_are_stopped_together(home: Home) -> None:
    first, second = home.start(), home.start("--name", "second")
    assert first["port"] != second["port"]
    assert home.servers() == {"default": first, "second": second}
    assert str(second["port"]) in home.run("logs", "--name", "second").stdout
    assert len(home.data("stop", "--all")["stopped"]) == 2
    for server in (first, second):
        assert gone(server["pid"])


def test_a_server_can_be_started_again_and_one_old_log_is_kept(home: Home) -> None:
    ports = []
    for _ in range(3):
        ports.append(str(home.start()["port"]))
        home.run("stop")
    said = home.run("logs").stdout
    assert [port in said for port in ports] == [False, True, True]
    assert home.files() == ["claim.lock", "default.log", "default.log.1"]


def test_a_start_that_fails_is_explained_and_leaves_nothing_running(home: Home) -> None:
    failed = "err gguf_init_from_file: failed to open GGUF file '/no.gguf' (No such file)"
    home.install((failed, "exit 1"), "b101")
    result = home.run(*SERVE, "--json")
    assert (result.code, result.document["data"]) == (7, {})
    assert "/no.gguf does not exist" in result.document["error"]["message"]
    assert home.servers() == {}
    assert "failed to open GGUF file" in home.run("logs").stdout


def test_an_end_before_it_is_ready_is_our_error_with_its_words_and_the_logs_place(
    home: Home,
) -> None:
    home.install(("err the flux is open", "exit 42"), "b101")
    # Whatever has the default port on this machine would be a better reason than these words.
    result = home.run(*SERVE, "--json", "--", "--port", "0")
    error = result.document["error"]
    assert (result.code, error["code"]) == (7, "launch-failed")
    log = home.state / "servers" / "default.log"
    assert error["facts"][-3:] == [
        "the flux is open",
        "it ended with exit code 42",
        f"its log: {log}",
    ]
    assert "the flux is open" in log.read_text("utf-8")
    assert home.servers() == {}


def test_a_server_that_dies_of_a_request_is_explained_in_status_and_log(home: Home) -> None:
    words = "terminate called after throwing an instance of 'vk::DeviceLostError'"
    home.install((f"die {words}", "listen"), "b101")
    started = home.start()
    assert started["report"]["trouble"] is None
    connection = http.client.HTTPConnection("127.0.0.1", started["port"])
    connection.request("POST", "/completion", "{}")
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()
    connection.close()
    assert gone(started["supervisor"])
    ended = home.servers()["default"]
    assert (ended["state"], ended["exit_code"]) == ("ended", 134)
    assert "lost" in ended["reason"]
    assert ended["report"]["trouble"]["kind"] == "ended"
    assert "the server ended after it had served" in home.run("logs").stdout
    status = home.run("status").stdout
    assert "trouble" in status
    assert status.count(words) == 1


@pytest.mark.parametrize(
    ("options", "code"), [(("--name", "A B"), 2), (("--idle-timeout", "soon"), 2), (("--exec",), 2)]
)
def test_bad_arguments_are_one_error(options: tuple[str, ...], code: int, home: Home) -> None:
    result = home.run(*SERVE, *options)
    assert result.code == code
    assert result.stderr.count("error[") == 1
    assert not (home.state / "servers").exists()


def test_an_interrupted_start_leaves_nothing(home: Home) -> None:
    home.install(("hang",), "b101")
    line = [*COMMAND, *SERVE]
    with subprocess.Popen(line, env=environment(home.path), stderr=subprocess.PIPE) as child:
        record = waited_for(home, lambda record: record.server is not None)
        child.send_signal(signal.SIGINT)
        assert child.wait() == 130
    assert record.server
    assert gone(record.server.pid)
    assert gone(record.supervisor.pid)
    assert home.servers() == {}


def waited_for(home: Home, is_so: Callable[[Record], bool], name: str = "default") -> Record:
    """The record, once it is as it should be."""
    while True:
        record = Instances(home.state).find(name)
        if record and is_so(record):
            return record
        os.sched_yield()


def test_a_start_that_hangs_is_given_up_and_leaves_nothing(home: Home) -> None:
    home.install(("err load_tensors: loading", "hang"), "b101")
    result = home.run(*SERVE, "--name", "big", "--start-timeout", "1s", "--json")
    assert (result.code, result.document["error"]["code"]) == (7, "no-progress")
    assert "made no progress for 1 seconds" in result.document["error"]["message"]
    assert "tsuku-llm logs --name big" in result.document["error"]["hint"]
    assert home.servers() == {}
    assert "load_tensors: loading" in home.run("logs", "--name", "big").stdout


KILLED = {
    "code": "launch-failed",
    "message": "the supervisor ended with exit code 9 before the server was ready",
    "facts": (),
    "hint": "see: tsuku-llm logs --name big",
}


@pytest.mark.parametrize(
    ("lines", "said", "code"),
    [
        (('{"loading": "a"}', '{"loading": "b"}', '{"ready": "x"}'), {"ready": "x"}, None),
        (('{"loading": "a"}', '{"gave_up": {"error": 1}}', '{"error": 2}'), 1, 9),
        (('{"loading": "a"}', '{"error": 2}'), 2, 9),
        (('{"loading": "a"}',), KILLED, 9),
        (("not JSON",), KILLED, 9),
    ],
)
def test_the_process_that_waits_hears_how_the_load_goes(
    lines: tuple[str, ...], said: object, code: int | None
) -> None:
    script = "import sys; print(*sys.argv[1:], sep='\\n', flush=True); sys.exit(9)"
    heard: list[str] = []
    line = [sys.executable, "-c", script, *lines]
    assert start("big", line, heard.append, {}) == (said, code)
    assert heard == [letter for letter in "ab" if f'{{"loading": "{letter}"}}' in lines]


def test_a_server_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver call can keep it in the kernel, and its supervisor waits for it."""
    script = """\
import os, signal
print('{"loading": "%d"}' % os.getpid())
print('{"gave_up": {"error": 1}}', flush=True)
signal.pause()
"""
    heard: list[str] = []
    line = [sys.executable, "-c", script]
    monkeypatch.setattr(background, "_GIVING_UP", 0.01)
    assert start("big", line, heard.append, {}) == (1, 7)
    os.kill(int(heard[0]), signal.SIGKILL)


def test_a_dead_server_is_shown_with_its_exit(home: Home) -> None:
    started = home.start()
    os.kill(started["pid"], signal.SIGKILL)
    assert gone(started["supervisor"])
    server = home.servers()["default"]
    assert (server["state"], server["exit_code"]) == ("ended", 137)
    assert "ended at 127.0.0.1" in home.run("status").stdout
    assert home.data("stop")["stopped"] == [{"name": "default", "outcome": "gone"}]
    assert home.servers() == {}


def test_a_killed_supervisor_ends_its_server_and_frees_the_name(home: Home) -> None:
    started = home.start()
    os.kill(started["supervisor"], signal.SIGKILL)
    assert gone(started["supervisor"])
    assert gone(started["pid"])
    assert home.servers()["default"]["state"] == "lost"
    again = home.start(port=str(started["port"]))
    assert answers(again["port"])
    home.run("stop")


def test_a_server_without_its_supervisor_is_found_and_stopped(home: Home) -> None:
    started = home.start()
    instances = Instances(home.state)
    record = instances.find("default")
    assert record
    assert record.server
    with sleeping() as orphan:
        server = Process.of(orphan.pid)
        dead = Process(record.supervisor.pid, "another-boot:1")
        instances.write(Record(name="orphan", supervisor=dead, host="h", port=1, server=server))
        assert home.servers()["orphan"]["state"] == "unwatched"
        assert home.data("stop", "--name", "orphan")["stopped"][0]["outcome"] == "stopped"
        assert orphan.wait() == -signal.SIGTERM
    assert answers(started["port"])


def test_a_reused_pid_is_recognised_and_that_process_is_not_killed(home: Home) -> None:
    home.start()
    with sleeping() as stranger:
        stale = Process(stranger.pid, "another-boot:1")
        Instances(home.state).write(
            Record(name="stale", supervisor=stale, host="h", port=1, server=stale)
        )
        assert home.servers()["stale"]["state"] == "lost"
        assert home.data("stop", "--name", "stale")["stopped"][0]["outcome"] == "gone"
        assert stranger.poll() is None


def test_a_server_that_does_not_end_in_time_is_killed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = home.start()
    os.kill(started["pid"], signal.SIGSTOP)
    assert stopped(started["pid"])
    monkeypatch.setenv("TSUKU_HOME", str(home.path))
    monkeypatch.setattr(background, "GRACE", 0.05)
    with open_session(Console()) as session:
        assert stop(session.paths.state, "default").outcome == "killed"
    assert gone(started["pid"])
    assert gone(started["supervisor"])
    assert home.servers() == {}


def test_an_idle_server_ends_and_says_why(home: Home) -> None:
    started = home.start("--idle-timeout", "1s")
    assert started["idle_timeout"] == 1
    followed = home.run("logs", "--follow")
    assert "listening on" in followed.stdout
    assert "stand-in: signal 15" in followed.stdout
    assert gone(started["supervisor"])
    server = home.servers()["default"]
    assert (server["state"], server["exit_code"]) == ("ended", 0)
    assert server["reason"] == "no request for 1 seconds"


def test_only_the_supervisor_has_the_log_open(home: Home) -> None:
    """So it can be turned under it, and both of the server's streams come into it in order."""
    home.install(("err first", "out second", "err third", "listen"), "b101")
    started = home.start()
    log = home.state / "servers" / "default.log"
    held = dict.fromkeys((started["supervisor"], started["pid"]), 0)
    for process in held:
        for link in Path(f"/proc/{process}/fd").iterdir():
            # The supervisor looks at its server meanwhile: what it opened for that is closed again.
            with suppress(FileNotFoundError):
                held[process] += link.resolve() == log
    assert held == {started["supervisor"]: 2, started["pid"]: 0}
    lines = [line for line in log.read_text().splitlines() if " " not in line]
    assert lines[-3:] == ["first", "second", "third"]
    home.run("stop")


def test_the_log_of_a_running_server_is_followed_until_its_end(home: Home) -> None:
    home.start()
    line = [*COMMAND, "logs", "-f"]
    with subprocess.Popen(line, env=environment(home.path), stdout=subprocess.PIPE) as reader:
        assert reader.stdout
        while b"listening on" not in reader.stdout.readline():
            pass
        home.run("stop")
        assert b"stand-in: signal 15" in reader.stdout.read()
        assert reader.wait() == 0


@pytest.mark.parametrize("words", [("logs",), ("stop",), ("logs", "-f")], ids=" ".join)
def test_an_unknown_name_is_an_error_that_lists_the_servers(
    words: tuple[str, ...], home: Home
) -> None:
    home.start()
    result = home.run(*words, "--name", "nobody")
    assert result.code == 7
    assert result.stderr.splitlines() == [
        "error[not-running]: there is no server called nobody",
        "  server: default",
        "hint: see: tsuku-llm status",
    ]
    home.run("stop")


def test_T27_a_server_whose_release_was_revoked_later_is_shown(home: Home) -> None:
    home.start()
    why = Revocation("official", "b100", "it leaks memory", "2026-11-22")
    revocations.remember(home.path / "llm", "official", [why])
    shown = home.run("status").stdout
    assert "default: revoked by its publisher on 2026-11-22: it leaks memory" in shown
    told = home.data("status")["releases"]["default"]
    assert told["revocation"]["reason"] == "it leaks memory"
    again = home.run(*SERVE, "--name", "other", "--json", "--", "--port", "0")
    assert (again.code, again.document["error"]["code"]) == (5, "revoked")


def test_a_server_in_the_background_holds_its_version(home: Home) -> None:
    home.start()
    home.install(release="b101")
    refused = home.run("uninstall", "b100", "--json")
    assert (refused.code, refused.document["error"]["code"]) == (6, "in-use")
    home.run("stop")
    assert home.run("uninstall", "b100").code == 0


def test_a_start_whose_answer_cannot_be_written_leaves_no_server(home: Home) -> None:
    line = [*COMMAND, *SERVE, "--", "--port", "0"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            line, env=environment(home.path), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 6
    assert done.stderr.decode().splitlines() == [
        "error[store]: the output cannot be written",
        "  [Errno 28] No space left on device",
        "  default has ended",
    ]
    assert home.servers() == {}
    assert "stand-in: signal 15" in home.run("logs").stdout


def test_a_torn_record_is_named_with_what_removes_it(home: Home) -> None:
    home.start()
    home.run("stop")
    torn = home.state / "servers" / "torn.json"
    torn.write_bytes(b'{"format": 1, "name": "to')
    hint = "remove its record: tsuku-llm stop --name torn"
    assert home.data("status")["damaged"]["torn"]["hint"] == hint
    assert hint in home.run("status").stdout
    logs = home.run("logs", "--follow", "--name", "torn")
    assert logs.code != 0, "it has no log"
    assert home.run("prune").code == 0
    assert torn.exists(), "its server may run"
    removed = home.data("stop", "--name", "torn")["stopped"]
    assert removed == [{"name": "torn", "outcome": "unreadable"}]
    assert home.data("status")["damaged"] == {}
    assert home.run("stop", "--name", "torn").code == 7


def test_prune_removes_the_logs_of_servers_that_were_stopped(home: Home) -> None:
    for name in ("stopped", "stopped", "ended", "up"):
        server = home.start("--name", name)
        if name == "stopped":
            home.run("stop", "--name", name)
        if name == "ended":
            os.kill(server["pid"], signal.SIGKILL)
            assert gone(server["supervisor"])
    foreign = home.state / "servers" / "Notes.log"
    foreign.write_bytes(b"not of a server")
    assert {"stopped.log", "stopped.log.1"} <= set(home.files())
    assert home.data("prune")["logs"] == ["stopped"]
    assert home.files() == ["Notes.log", "claim.lock"] + [
        f"{name}.{end}" for name in ("ended", "up") for end in ("json", "log")
    ]
    home.run("stop", "--all")
    assert home.run("prune").stdout.splitlines()[:3] == [
        "Removed 2 items:",
        "  the log of the server ended",
        "  the log of the server up",
    ]


def test_a_request_at_a_unix_socket_keeps_a_server_up(home: Home, tmp_path: Path) -> None:
    """Its idle time begins before that of the other server, which ends by it."""
    at = str(tmp_path / "s.sock")
    busy = home.run(*SERVE, "--name", "busy", "--idle-timeout", "1s", "--json", "--", "--host", at)
    assert busy.code == 0, busy.stderr
    server = busy.document["data"]
    assert (server["host"], server["port"]) == (at, None)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(at)
        idle = home.start("--name", "idle", "--idle-timeout", "1s")
        assert gone(idle["supervisor"])
        assert home.servers()["busy"]["state"] == "running"
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
    assert gone(server["supervisor"])
    assert home.servers()["busy"]["reason"] == "no request for 1 seconds"


def test_a_lost_gpu_is_a_warning_to_who_starts_the_server(home: Home) -> None:
    """It runs on the processor, and is not told to use a device that is gone."""
    install_stand_in(
        home.path / "llm",
        release="b101",
        device="Vulkan0",
        devices=NO_DEVICE_STEPS,
        serve=("dump", "listen"),
    )
    started = home.run(*SERVE, "--json", "--", "--port", "0")
    assert started.code == 0, started.stderr
    (warning,) = (line for line in started.stderr.splitlines() if line.startswith("warning: "))
    assert warning.startswith("warning: the vulkan build would run on the CPU: it lists no device")
    said = home.data("logs")["lines"]
    assert warning in said
    assert "arg --device" not in said
    home.run("stop")


def test_a_log_that_cannot_be_opened_is_one_error_and_leaves_no_record(home: Home) -> None:
    servers = home.state / "servers"
    for name in ("default.log", "default.log.1"):
        (servers / name / "in-its-place").mkdir(parents=True)
    result = home.run(*SERVE, "--json", "--", "--port", "0")
    assert result.code == 6
    assert str(servers / "default.log") in str(result.document["error"]["facts"])
    assert home.servers() == {}


def test_a_state_folder_that_cannot_be_made_is_one_error(home: Home) -> None:
    home.state.write_bytes(b"a file in its place")
    assert home.servers() == {}
    for words, code in ((SERVE, 6), (("stop",), 7), (("logs",), 7)):
        result = home.run(*words)
        assert (result.code, result.stdout) == (code, "")
        assert result.stderr.count("error[") == 1


def test_a_server_is_started_again_with_its_arguments_and_the_active_version(home: Home) -> None:
    first = home.start("--name", "big")
    home.install(release="b200")
    again = home.data("restart", "big")
    assert (again["name"], again["state"]) == ("big", "running")
    assert again["pid"] != first["pid"]
    assert again["supervisor"] == first["supervisor"]
    assert again["arguments"] == first["arguments"]
    assert (first["report"]["release"], again["report"]["release"]) == ("b100", "b200")
    assert answers(again["port"])
    assert home.run("restart", "--name", "big").stdout.startswith("big: running at ")


def test_a_server_that_cannot_be_started_again_is_named_with_a_way_out(home: Home) -> None:
    none = home.run("restart")
    assert (none.code, none.stdout) == (7, "")
    assert "error[not-running]: there is no server called default\n" in none.stderr
    started = home.start()
    again = "tsuku-llm serve --detach --name {} -- --port 0"
    record = Instances(home.state).find("default")
    assert record
    with sleeping() as orphan:
        dead = Process(record.supervisor.pid, "another-boot:1")
        left = replace(record, name="orphan", supervisor=dead, server=Process.of(orphan.pid))
        Instances(home.state).write(left)
        alone = home.run("restart", "orphan")
        assert alone.code == 7
        assert alone.stderr.endswith(
            f"""error[launch-failed]: the server orphan cannot be asked: its supervisor was killed
hint: stop it: tsuku-llm stop orphan; then: {again.format("orphan")}
"""
        )
    os.kill(started["supervisor"], signal.SIGKILL)
    assert gone(started["supervisor"])
    assert gone(started["pid"])
    assert home.run("restart").stderr.endswith(
        "error[not-running]: the server default does not run any more\n"
        f"hint: start it: {again.format('default')}\n"
    )


def test_a_server_that_does_not_come_back_is_an_error_with_its_reason(home: Home) -> None:
    home.start()
    home.install(("err no", "exit 1"), release="b200")
    done = home.run("restart")
    assert (done.code, done.stdout) == (7, "")
    # On a busy machine lines before it say that it starts again.
    what = "error[launch-failed]: the server default was not started again"
    assert f"{what}: the server did not start: " in done.stderr
    assert "hint: see: tsuku-llm logs --name default; or stop it: tsuku-llm stop" in done.stderr
    assert home.servers()["default"]["state"] == "ended"


@pytest.mark.parametrize(
    ("now", "what", "fix"),
    [
        (None, "not there any more", "put the file back"),
        # A download that broke off over the old file, and one that stored the page about it.
        (b"GGU", "incomplete", "download it again: this one is not complete"),
        (b"<!DOCTYPE html><html>", "a web page", "download the file itself: "),
    ],
)
def test_a_healthy_server_is_not_ended_for_a_model_that_cannot_be_loaded(
    home: Home, now: bytes | None, what: str, fix: str
) -> None:
    model = home.path / "moved.gguf"
    small_model(model)
    started = home.start("-m", str(model))
    model.unlink()
    if now is not None:
        model.write_bytes(now)
    done = home.run("restart")
    assert (done.code, done.stdout) == (7, "")
    assert done.stderr.startswith(
        f"error[bad-model]: the server default is not started again: its model is {what}"
        f"\n  {model}\n"
        f"hint: {fix}"
    )
    assert done.stderr.endswith("; until then the server goes on with what it has loaded\n")
    assert home.servers()["default"]["pid"] == started["pid"]
    assert answers(started["port"])


def test_a_healthy_server_is_not_ended_on_a_full_disk(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real one the new process served, and the record still named the old one."""
    started = home.start()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(NoSpace):
        restart(home.state, "default")
    assert home.servers()["default"]["pid"] == started["pid"]


def test_the_status_is_shown_again_until_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    looks = [("one",), ("two", "lines")]

    def wait(_: float) -> None:
        if not looks:
            raise KeyboardInterrupt

    show_again(Console(), lambda: looks.pop(0), wait)
    assert capsys.readouterr().out == "one\n\ntwo\nlines\n\n"


def test_the_status_on_a_terminal_is_drawn_over_the_one_before(home: Home, tmp_path: Path) -> None:
    home.start()
    env = environment(home.path, TERM="xterm")
    words = (*COMMAND, "status", "--watch")
    with screen(tmp_path / "t", words, env, columns=100) as seen:
        seen.wait_for(lambda text: "default: running at" in text)
        home.run("stop")
        assert seen.wait_for(lambda text: "no server runs" in text) == [
            "no server runs in the background"
        ]
        seen.keys("C-c")
        assert seen.exit_code() == 0


@pytest.mark.parametrize("other", ["--json", "--prometheus"])
def test_a_document_is_not_shown_again(home: Home, other: str) -> None:
    assert home.run("status", "--watch", other).code == 2
