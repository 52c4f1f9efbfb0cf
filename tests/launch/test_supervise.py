"""Supervising a server and becoming one: streams, exit codes, signals, and no leftovers."""

import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support import launcher
from support.builds import compile_stand_in, stand_in
from support.processes import gone, ignores, only_child, stopped
from support.tools import open_terminal

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.launch.ask.child import ChildEnd
from tsuku_llm.launch.plan.planning import Build, LaunchPlan
from tsuku_llm.launch.run import forwarding
from tsuku_llm.launch.run.forwarding import SignalForwarder
from tsuku_llm.launch.run.supervise import StopHandle, supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

READY = "err srv: listening on http://127.0.0.1:1"
BOTH = pytest.mark.parametrize("action", ["supervise", "replace"])


def command(build: Build, *arguments: str, action: str = "supervise") -> list[str]:
    line = [sys.executable, launcher.__file__, action, str(build.tree), build.server]
    return [*line, build.backend, *arguments]


def run(
    build: Build, *arguments: str, action: str = "supervise"
) -> subprocess.CompletedProcess[bytes]:
    line = command(build, *arguments, action=action)
    return subprocess.run(line, check=False, capture_output=True)


@contextmanager
def serving(
    build: Build, *arguments: str, action: str = "supervise", wrapper: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A launcher whose server listens, and the server's port."""
    line = [*wrapper, *command(build, *arguments, action=action)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        try:
            yield started, port_in(started)
        finally:
            with suppress(ProcessLookupError):
                started.kill()


def port_in(started: subprocess.Popen[bytes]) -> int:
    assert started.stderr
    for line in started.stderr:
        if b"listening on" in line:
            return int(line.rsplit(b":", 1)[1])
    raise AssertionError("it ended before it listened")


def rest(started: subprocess.Popen[bytes]) -> tuple[int, str]:
    assert started.stderr
    said = started.stderr.read().decode()
    return started.wait(), said


@BOTH
@pytest.mark.parametrize("code", [0, 1, 3, 42, 255])
def test_X17_the_exit_code_is_forwarded(action: str, code: int, tmp_path: Path) -> None:
    assert run(stand_in(tmp_path, serve=(READY, f"exit {code}")), action=action).returncode == code


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_X17_death_by_a_signal_is_forwarded(number: int, tmp_path: Path) -> None:
    build = stand_in(tmp_path, serve=(READY, f"kill {number:d}"))
    assert run(build).returncode == 128 + number
    assert run(build, action="replace").returncode == -number


@BOTH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_X17_a_signal_reaches_the_server_once(action: str, number: int, tmp_path: Path) -> None:
    with serving(stand_in(tmp_path), action=action) as (started, _):
        started.send_signal(number)
        assert rest(started) == (0, f"stand-in: signal {number:02d}\n")


def test_X17_a_signal_to_the_whole_group_reaches_the_server_once(tmp_path: Path) -> None:
    with serving(stand_in(tmp_path), wrapper=("setsid", "--wait")) as (started, _):
        os.killpg(only_child(started.pid), signal.SIGTERM)
        assert rest(started) == (0, "stand-in: signal 15\n")


def test_X17_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    nohup = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    with serving(stand_in(tmp_path), wrapper=nohup) as (started, _):
        assert ignores(only_child(started.pid), signal.SIGHUP)
        started.send_signal(signal.SIGHUP)
        started.send_signal(signal.SIGTERM)
        assert rest(started) == (0, "stand-in: signal 15\n")


@BOTH
def test_X16_the_server_gets_arguments_folder_and_environment(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGML_BACKEND_PATH", "/evil.so")
    monkeypatch.chdir(tmp_path)
    build = stand_in(tmp_path / "a b", serve=("dump",))
    words = ("--alias", "a b; $(reboot) 'x'", "", "*", "ü", "-m", "x.gguf")
    said = run(build, *words, action=action).stdout.decode().splitlines()
    given = [line.removeprefix("arg ") for line in said if line.startswith("arg ")]
    assert given == [str(build.executable), *words[:-1], str(tmp_path / "x.gguf")]
    assert f"cwd {tmp_path}" in said
    assert f"env PATH={os.environ['PATH']}" in said
    assert not [line for line in said if "evil" in line]


@BOTH
def test_output_passes_through_unchanged(action: str, tmp_path: Path) -> None:
    steps = (READY, "out to stdout", "err \x1b[31m\udcff caf\udce9", "flood 50000", "exit 3")
    build = stand_in(tmp_path, serve=steps)
    ended = run(build, action=action)
    direct = subprocess.run([build.executable], check=False, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, direct.stdout, direct.stderr)
    assert b"\xff caf\xe9" in ended.stderr


def on_terminal(line: Sequence[str]) -> tuple[int, bytes]:
    """Run it with a terminal as its stdout and its stderr; what stands there in the end."""
    ours, theirs = open_terminal()
    with subprocess.Popen(line, stdout=theirs, stderr=theirs) as started:
        os.close(theirs)
        said = b""
        with suppress(OSError):  # Linux says so when the other end is closed
            while piece := os.read(ours, 4096):
                said += piece
    os.close(ours)
    return started.returncode, said


@BOTH
def test_output_on_a_terminal_is_the_same_as_without_a_launcher(
    action: str, tmp_path: Path
) -> None:
    steps = (READY, "out to stdout", "err \x1b[31mred\x1b[0m caf\udce9", "out again", "exit 3")
    build = stand_in(tmp_path, serve=steps)
    code, said = on_terminal(command(build, action=action))
    assert (code, sorted(said.split(b"\r\n"))) == (
        3,
        sorted(on_terminal([str(build.executable)])[1].split(b"\r\n")),
    )


def test_X14_a_failed_start_ends_with_its_cause(tmp_path: Path) -> None:
    steps = ("err start: couldn't bind HTTP server socket, hostname: ::1, port: 80", "exit 1")
    ended = run(stand_in(tmp_path, serve=steps))
    said, _, explained = ended.stderr.decode().partition("\n")
    assert ended.returncode == 7
    assert said == steps[0].removeprefix("err ")
    assert explained.startswith("error[launch-failed]: the server did not start: nothing can")
    assert "hint: stop what uses it" in explained


def test_X14_a_port_in_use_is_named_even_if_the_server_is_silent(tmp_path: Path) -> None:
    """The real one's log is lost now and then when it leaves at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cors = "err W srv  main: CORS is set to allow all origins ('*') and no API key is set"
        ended = run(stand_in(tmp_path, serve=(cors, "exit 1")), "--port", port)
    assert ended.returncode == 7
    assert f"nothing can listen on 127.0.0.1 port {port}".encode() in ended.stderr


def test_X14_a_missing_model_is_named_even_if_the_server_is_silent(tmp_path: Path) -> None:
    build = stand_in(tmp_path, serve=("exit 1",))
    said = run(build, "-m", "absent.gguf").stderr.decode()
    assert f"the model {Path.cwd() / 'absent.gguf'} does not exist" in said
    # One that is there, or is to be downloaded, is not the reason.
    for arguments in (("-m", str(build.executable)), ("-m", "absent.gguf", "-mu", "http://x/y")):
        said = run(build, *arguments).stderr.decode()
        assert "it ended before it served, and this program does not know why" in said
        assert "hint: start it again with -lv 4 after the --" in said


def test_a_failure_after_the_start_is_not_explained(tmp_path: Path) -> None:
    steps = (READY, "err vk::Queue::submit: ErrorDeviceLost", "exit 9")
    ended = run(stand_in(tmp_path, serve=steps))
    assert ended.returncode == 9
    assert b"error[" not in ended.stderr


def test_a_stopped_start_is_not_a_failure(tmp_path: Path) -> None:
    build = stand_in(tmp_path, serve=("err failed to read magic", "out waiting", "hang"))
    with subprocess.Popen(
        command(build), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as started:
        assert started.stdout
        assert started.stdout.readline() == b"waiting\n"
        server = only_child(started.pid)
        os.kill(server, signal.SIGSTOP)  # so that it cannot end well of the next one
        started.send_signal(signal.SIGTERM)
        os.kill(server, signal.SIGKILL)
        assert rest(started) == (128 + signal.SIGKILL, "failed to read magic\n")


def test_the_server_answers_through_the_launcher(tmp_path: Path) -> None:
    with serving(stand_in(tmp_path), "--port", "0") as (started, port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        started.send_signal(signal.SIGTERM)
        assert rest(started)[0] == 0


def test_the_server_does_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    with serving(stand_in(tmp_path)) as (started, _):
        server = only_child(started.pid)
        started.kill()
        assert gone(server)


def test_the_servers_children_do_not_outlive_it(tmp_path: Path) -> None:
    ended = run(stand_in(tmp_path, serve=(READY, "spawn", "exit 0")))
    assert ended.returncode == 0
    assert gone(int(ended.stdout.split()[1]))


def test_ctrl_z_stops_both_and_fg_continues_both(tmp_path: Path) -> None:
    with serving(stand_in(tmp_path)) as (started, _):
        server = only_child(started.pid)
        started.send_signal(signal.SIGTSTP)
        os.waitpid(started.pid, os.WUNTRACED)
        assert stopped(server)
        started.send_signal(signal.SIGCONT)
        started.send_signal(signal.SIGTERM)
        assert rest(started) == (0, "stand-in: signal 15\n")


def test_replacing_the_process_keeps_pid_and_signals(tmp_path: Path) -> None:
    with serving(stand_in(tmp_path), action="replace") as (started, _):
        image = os.readlink(f"/proc/{started.pid}/exe")
        assert image == str(tmp_path / "llama-server")
        assert not ignores(started.pid, signal.SIGPIPE)


def test_a_supervised_server_has_the_usual_signals(tmp_path: Path) -> None:
    with serving(stand_in(tmp_path)) as (started, _):
        assert not ignores(only_child(started.pid), signal.SIGPIPE)


def test_colours_are_kept_if_stderr_is_a_terminal(tmp_path: Path) -> None:
    ours, theirs = open_terminal()
    try:
        build = stand_in(tmp_path, serve=("dump",))
        line = command(build)
        ended = subprocess.run(line, check=False, stdout=subprocess.PIPE, stderr=theirs)
    finally:
        os.close(theirs)
        os.close(ours)
    assert b"env LLAMA_ARG_LOG_COLORS=on\n" in ended.stdout
    assert b"LLAMA_ARG_LOG_COLORS" not in run(build).stdout


@BOTH
@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda server: server.unlink(), "does not exist"),
        (lambda server: server.chmod(0o644), "does not allow"),
        (lambda server: server.write_bytes(b"PK\x03\x04"), "processor architecture"),
        (
            lambda server: compile_stand_in(server, "-Wl,--dynamic-linker=/lib/ld-absent.so.1"),
            "another C library",
        ),
    ],
    ids=["missing", "not-executable", "damaged", "musl"],
)
def test_X14_a_server_that_cannot_be_started_is_explained(
    action: str, harm: object, named: str, tmp_path: Path
) -> None:
    build = stand_in(tmp_path)
    assert callable(harm)
    harm(build.executable)
    ended = run(build, action=action)
    assert ended.returncode == 7
    assert ended.stderr.startswith(b"error[launch-failed]: the server cannot be started: ")
    assert named in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr


def test_too_many_arguments_are_a_plain_error(tmp_path: Path) -> None:
    plan = LaunchPlan((sys.executable, "y" * (1 << 21)), tmp_path, {}, "cpu")
    with pytest.raises(LaunchError, match="refused to start it: Argument list too long"):
        supervise(plan)


def test_a_server_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tsuku_llm.launch.run.supervise.GRACE", 0.3)
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    stop_handle = StopHandle()
    stop_handle.end("no longer needed")
    plan = LaunchPlan(("/bin/sh", "-c", stubborn), tmp_path, {"PATH": os.environ["PATH"]}, "cpu")
    code, _ = supervise(plan, stop_handle=stop_handle)
    assert code in (128 + signal.SIGKILL, 128 + signal.SIGTERM)


def test_a_renewed_handle_ends_the_next_server_when_it_is_asked_again() -> None:
    stop_handle, ended = StopHandle(), list[str]()
    stop_handle.attach(lambda: ended.append("first"))
    stop_handle.end("another build")
    assert (stop_handle.renew(), stop_handle.renew()) == (True, False)
    stop_handle.attach(lambda: ended.append("second"))
    assert ended == ["first"]
    stop_handle.end("another build")
    assert ended == ["first", "second"]


def test_a_child_that_has_ended_is_not_asked_to_end(tmp_path: Path) -> None:
    threads = threading.active_count()
    child = subprocess.Popen(("/bin/sleep", "60"), cwd=tmp_path, start_new_session=True)
    child_end = ChildEnd(child)
    child_end.finish()
    child_end.ask(grace=60.0)  # by a thread that comes too late
    assert child.returncode == -signal.SIGKILL
    assert threading.active_count() == threads, "a timer would keep the next server from our tie"


class _Child:
    """Notes the signals that it is sent."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def send_signal(self, number: int) -> None:
        self.received.append(number)


def test_X17_one_event_sends_one_signal_and_two_send_two() -> None:
    times = iter([0.0, 0.1, 0.15, 5.0])
    forwarder, child = SignalForwarder(lambda: next(times)), _Child()
    with forwarder:
        signal.raise_signal(signal.SIGINT)  # before there is a child: it waits
        assert not child.received
        forwarder.attach(child)
        signal.raise_signal(signal.SIGINT)  # the same event: `timeout` signals twice
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert child.received == [signal.SIGINT, signal.SIGTERM, signal.SIGINT]


DEAF = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
for word in ("ready", "missed"):
    print(word, flush=True)
    signal.sigwait({signal.SIGTERM})
raise SystemExit(7)
"""
"""It ends at the second SIGTERM only: upstream's server misses the first just after its start."""


@pytest.mark.parametrize("missed", [True, False])
def test_a_signal_that_the_server_missed_is_sent_again_once(
    missed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "_LOOK_AGAIN_MS", 1)
    asked: list[float] = []
    times = itertools.count(0, 4)
    line = [sys.executable, "-c", DEAF]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"

        def was_missed(seconds: float) -> bool:
            asked.append(seconds)
            assert child.stdout
            assert child.stdout.readline() == b"missed\n"
            if not missed:
                child.kill()
            return missed

        with SignalForwarder(lambda: float(next(times))) as forwarder:
            forwarder.attach(child)
            signal.raise_signal(signal.SIGTERM)
            assert forwarder.wait(child, was_missed) == (7 if missed else -signal.SIGKILL)
    assert asked == [4.0]


HANGING = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
print("hangs", flush=True)
signal.sigwait({signal.SIGUSR1})
"""


def test_a_server_that_was_told_twice_to_end_and_hangs_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a driver, say: upstream's second interrupt is exit(), which may never return."""
    monkeypatch.setattr(forwarding, "_LOOK_AGAIN_MS", 1)
    clock = itertools.count()
    line = [sys.executable, "-c", HANGING]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout
        assert child.stdout.readline() == b"hangs\n"
        with SignalForwarder(lambda: float(next(clock))) as forwarder:
            forwarder.attach(child)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert forwarder.wait(child, patience=10.0) == -signal.SIGKILL
    assert next(clock) > 10


def test_the_signal_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with SignalForwarder():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before


class _Asked:
    """The lock of a Popen that another thread holds, at the first questions: so poll says None."""

    def __init__(self, times: int) -> None:
        self._times = times

    def acquire(self, _blocking: bool = True) -> bool:
        self._times -= 1
        return self._times < 0

    def release(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def test_an_end_is_seen_that_another_thread_asks_for_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "_LOOK_AGAIN_MS", 1)
    with SignalForwarder() as forwarder:
        child = subprocess.Popen(["sh", "-c", "exit 3"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # The first question, and the one after the child's SIGCHLD: there is no other signal.
        child._waitpid_lock = _Asked(2)  # type: ignore[attr-defined]
        assert forwarder.wait(child) == 3


# --- process 1 of a container ----------------------------------------------------------------

ORPHANS = """
import ctypes, os, subprocess
from tsuku_llm.launch.run.forwarding import collect_orphans

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
line = ("sh", "-c", "cat <&3 >/dev/null & echo $!")
reading, writing = os.pipe()
os.dup2(reading, 3)
starter = subprocess.run(line, stdout=subprocess.PIPE, pass_fds=(3,), start_new_session=True)
orphan = int(starter.stdout)
ours = subprocess.Popen(("sh", "-c", "exit 3"), start_new_session=True)
os.close(writing)
for pid in (orphan, ours.pid):  # both have ended, and are still there
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
collect_orphans()
print(os.path.exists(f"/proc/{orphan}"), ours.wait())
"""


def test_orphans_are_collected_and_our_own_children_are_left_to_their_owners() -> None:
    line = [sys.executable, "-c", ORPHANS]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False 3\n", "")


LEAVES_AN_ORPHAN = """#!/bin/sh
echo "I srv llama_server: listening on http://127.0.0.1:8080" >&2
orphan=$(true >/dev/null & echo $!)
left=3000000
while [ -e /proc/$orphan ] && [ $left -gt 0 ]; do left=$((left - 1)); done
[ $left -gt 0 ] && exit 42
exit 9
"""


def test_the_first_process_of_a_container_leaves_no_zombies(tmp_path: Path) -> None:
    container = ("unshare", "--pid", "--fork", "--mount-proc", "--map-root-user")
    if subprocess.run((*container, "true"), check=False, capture_output=True).returncode:
        pytest.skip("no namespaces of processes here")
    server = tmp_path / "llama-server"
    server.write_text(LEAVES_AN_ORPHAN, encoding="utf-8")
    server.chmod(0o755)
    line = [*container, *command(Build(tmp_path, "llama-server", "cpu"))]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    assert done.returncode == 42, done.stderr
