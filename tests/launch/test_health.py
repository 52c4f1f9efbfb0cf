"""Whether a server is ready, and whether it has a web page."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from support.certificates import Authority

from tsuku_llm.launch.ask import health
from tsuku_llm.launch.ask.health import Readiness, is_healthy, remove_dead_sockets
from tsuku_llm.launch.plan.addresses import Listeners, ServerAddress
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.wishes import Wishes


@contextmanager
def answering(listening: socket.socket, answer: bytes) -> Iterator[list[bytes]]:
    """A server that gives one answer to one request."""
    requests: list[bytes] = []

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            requests.append(client.recv(4096))
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield requests
    finally:
        thread.join()
        listening.close()


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"", False),
        (b"SSH-2.0-OpenSSH 200", False),
    ],
)
def test_only_status_200_is_ready(answer: bytes, healthy: bool) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with answering(listening, answer) as requests:
        address = ServerAddress("0.0.0.0", listening.getsockname()[1], "/v")  # noqa: S104
        assert is_healthy(address, Wishes()) is healthy
    assert requests[0].startswith(b"GET /v/health HTTP/1.0\r\n")


def test_a_server_with_a_certificate_is_asked_through_tls(tmp_path: Path) -> None:
    """Its certificate is for another name and from an unknown authority, as most local ones are."""
    certificate = Authority(tmp_path).issue("elsewhere.example")
    plain = socket.create_server(("127.0.0.1", 0))
    listening = certificate.server_context().wrap_socket(plain, server_side=True)
    with answering(listening, b"HTTP/1.1 200 OK\r\n\r\n") as requests:
        assert is_healthy(ServerAddress(port=listening.getsockname()[1], tls=True), Wishes())
    assert requests[0].startswith(b"GET /health HTTP/1.0\r\n")


def test_a_server_that_should_speak_tls_and_does_not_is_not_ready() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with answering(listening, b"HTTP/1.1 200 OK\r\n\r\n"):
        assert not is_healthy(ServerAddress(port=listening.getsockname()[1], tls=True), Wishes())


def test_a_silent_server_with_a_certificate_becomes_ready(tmp_path: Path) -> None:
    """With ``--log-disable`` nothing says that it listens: its answers have to do."""
    certificate = Authority(tmp_path).issue()
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = str(plain.getsockname()[1])
        words = ("/server", "--port", port, "--ssl-cert-file", "c.pem", "--ssl-key-file", "k.pem")
        readiness = Readiness(LaunchPlan(words, tmp_path, {}, "cpu"))
        over = threading.Event()

        def serve() -> None:
            context = certificate.server_context()
            while not over.is_set():
                client, _ = plain.accept()
                with client, context.wrap_socket(client, server_side=True) as secure:
                    secure.recv(4096)
                    secure.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert readiness.wait(threading.Event())
        over.set()
        # The last one that is answered, if the thread does not see the end before.
        is_healthy(readiness.address, Wishes())
        thread.join()


def test_a_wait_tells_that_the_server_still_loads_and_can_be_ended(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    readiness = Readiness(LaunchPlan(("/server", "--port", port), tmp_path, {}, "cpu"))
    looks: list[int] = []

    def give_up() -> None:
        looks.append(readiness.log.said)
        if len(looks) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        readiness.wait(threading.Event(), give_up)
    assert looks == [0, 0, 0]


def test_a_server_that_ends_during_the_question_does_not_load_any_more(tmp_path: Path) -> None:
    over, looks = threading.Event(), list[int]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        readiness = Readiness(LaunchPlan(("/server", "--port", port), tmp_path, {}, "cpu"))

        def end() -> None:
            client, _ = listening.accept()
            over.set()
            client.close()

        thread = threading.Thread(target=end)
        thread.start()
        assert not readiness.wait(over, lambda: looks.append(readiness.log.said))
        thread.join()
    assert looks == []


def test_the_line_that_the_server_listens_ends_a_long_pause(tmp_path: Path) -> None:
    """A client's connection may wait for this server: half a second more would be seen."""
    readiness = Readiness(LaunchPlan(("/server", "--port", "0"), tmp_path, {}, "cpu"))
    listening = socket.create_server(("127.0.0.1", 0))
    said = f"listening on http://127.0.0.1:{listening.getsockname()[1]}\n".encode()

    class Clock(threading.Event):
        """An end that never comes, and time that only this test lets pass."""

        now, told_at = 0.0, 0.0

        def wait(self, timeout: float | None = None) -> bool:
            self.now += timeout or 0.0
            if self.now > 20 and not self.told_at:
                self.told_at = self.now
                readiness.on_stderr(said)
            return False

    clock = Clock()
    with answering(listening, b"HTTP/1.1 200 OK\r\n\r\n"):
        assert readiness.wait(clock)
    assert clock.now - clock.told_at < 0.1


def test_lines_about_our_own_questions_do_not_count_as_said(tmp_path: Path) -> None:
    """b10434 writes a line in several pieces: time, level, text."""
    readiness = Readiness(LaunchPlan(("/server",), tmp_path, {}, "cpu"))
    readiness.on_stderr(b"load_tensors: loading\n")
    said = readiness.log.said
    assert said > 0
    for piece in (
        b"0.07.119.210 I ",
        b"srv  log_server_r: ",
        b"request: GET /health 127.0.0.1 503\n",
    ):
        readiness.on_stderr(piece)
        assert readiness.log.said == said
    readiness.on_stderr(b"load_tensors: done\n")
    assert readiness.log.said > said


def test_dots_without_a_line_end_count_as_said(tmp_path: Path) -> None:
    """The loader prints up to 100 of them in one line."""
    readiness = Readiness(LaunchPlan(("/server",), tmp_path, {}, "cpu"))
    seen = set()
    for _ in range(100):
        readiness.on_stderr(b".")
        seen.add(readiness.log.said)
    assert len(seen) > 30


def test_a_unix_socket_is_asked_too(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "a.sock"))
    listening.listen()
    with answering(listening, b"HTTP/1.1 200 OK\r\n\r\n"):
        assert is_healthy(ServerAddress(str(tmp_path / "a.sock")), Wishes())


@pytest.mark.parametrize("host", ["127.0.0.1", "a..b", "x" * 70, "\udcff", "/absent.sock"])
def test_a_refused_connection_is_not_ready(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not is_healthy(ServerAddress(host, port), Wishes())
    assert not is_healthy(ServerAddress(host, 80000), Wishes())


@pytest.mark.parametrize("mark", [b"main: model loaded", b"srv: listening on"])
def test_a_log_shows_that_a_server_serves_before_its_line_is_complete(
    mark: bytes, tmp_path: Path
) -> None:
    readiness = Readiness(LaunchPlan(("/server",), tmp_path, {}, "cpu"))
    readiness.on_stderr(b"load: a model is loaded now\n" + mark[:-3])
    assert not readiness.served
    readiness.on_stderr(mark[-3:])
    assert readiness.served


def test_a_signal_is_missed_only_before_or_just_after_the_first_good_answer(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/health").respond_with_json({"status": "ok"})
    plan = LaunchPlan(("/server", "--port", str(httpserver.port)), tmp_path, {}, "cpu")
    readiness = Readiness(plan)
    assert readiness.missed(3.0)  # it was not seen ready yet
    readiness.on_stderr(b"listening on http://127.0.0.1:%d\n" % httpserver.port)
    assert readiness.wait(threading.Event())
    assert readiness.missed(3.0)
    later = -60.0  # a signal that came a minute after that answer
    assert not readiness.missed(later)


def test_another_programs_answer_does_not_show_that_a_signal_was_missed(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/health").respond_with_json({"status": "ok"})
    port = httpserver.port
    readiness = Readiness(LaunchPlan(("/server", "--port", str(port)), tmp_path, {}, "cpu"))
    over = threading.Event()
    foreign = Listeners((), frozenset({port}))
    assert not readiness.wait(over, over.set, lambda: foreign)
    assert not readiness.missed(3.0)


def test_a_server_that_does_not_answer_any_more_has_not_missed_the_signal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = str(gone.getsockname()[1])
    readiness = Readiness(LaunchPlan(("/server", "--port", port), tmp_path, {}, "cpu"))
    assert not readiness.missed(3.0)


def test_a_server_that_was_confirmed_has_served_and_its_log_is_not_read_on(tmp_path: Path) -> None:
    readiness = Readiness(LaunchPlan(("/server", "--port", "0"), tmp_path, {}, "cpu"))
    readiness.on_stderr(b"listening on http://127.0.0.1:81\n")
    readiness.confirm()
    readiness.on_stderr(b"listening on http://127.0.0.1:82\n")
    assert readiness.served
    assert readiness.address.port == 81


def test_a_server_that_ended_at_its_first_request_has_not_served(tmp_path: Path) -> None:
    readiness = Readiness(LaunchPlan(("/server", "--port", "0"), tmp_path, {}, "cuda"))
    readiness.on_stderr(b"model loaded\nlistening on http://127.0.0.1:81\n")
    assert readiness.served
    readiness.deny()
    assert not readiness.served


def bound(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    return made


def dead(path: Path) -> None:
    bound(path).close()


def living(path: Path) -> socket.socket:
    made = bound(path)
    made.listen()
    return made


def busy(path: Path) -> list[socket.socket]:
    """A server that is so busy that nobody can connect."""
    made = bound(path)
    made.listen(0)
    clients = [made]
    while True:
        client = socket.socket(socket.AF_UNIX)
        clients.append(client)
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:
            return clients


def of_another_user(path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a socket away")
    dead(path)
    os.chown(path, 65534, 65534)


def linked(path: Path) -> None:
    dead(path.with_name("real"))
    path.symlink_to("real")


STAYING: dict[str, Callable[[Path], object]] = {
    "a-living-server": living,
    "a-busy-server": busy,
    "datagrams": lambda path: bound(path, socket.SOCK_DGRAM),
    "a-file": lambda path: path.write_bytes(b"mine"),
    "an-empty-file": Path.touch,
    "a-folder": Path.mkdir,
    "a-fifo": os.mkfifo,
    "a-link-to-a-dead-socket": linked,
    "another-users": of_another_user,
}


@pytest.mark.parametrize("make", STAYING.values(), ids=STAYING)
def test_N10_only_a_dead_socket_is_removed(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LIMIT", 0.2)
    path = tmp_path / "s.sock"
    kept = make(path)
    before = path.lstat()
    remove_dead_sockets(ServerAddress(str(path)))
    assert os.path.samestat(before, path.lstat())
    for each in kept if isinstance(kept, list) else [kept]:
        if isinstance(each, socket.socket):
            each.close()


def test_N10_each_dead_socket_of_a_server_is_removed(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.sock", "b.sock", "c.sock"))
    dead(first)
    dead(third)
    with living(second):
        hosts = (str(second), str(third), str(tmp_path / "missing.sock"), "::1")
        remove_dead_sockets(ServerAddress(str(first), others=hosts))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["b.sock"]


def test_N10_a_path_that_is_too_long_is_left_alone(tmp_path: Path) -> None:
    remove_dead_sockets(ServerAddress(str(tmp_path / ("x" * 120 + ".sock"))))


def test_another_program_at_the_told_port_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """Its default port is another one than ours (llama.cpp#26508), and its log is quiet."""
    foreign = socket.create_server(("127.0.0.1", 0))
    port = foreign.getsockname()[1]
    readiness = Readiness(LaunchPlan(("/server", "--port", str(port)), tmp_path, {}, "cpu"))
    own = socket.create_server(("127.0.0.1", 0))
    sockets = ((("127.0.0.1", own.getsockname()[1])),)
    loading = [Listeners((), frozenset({port}))] * 5
    answers = iter([*loading, Listeners(sockets, frozenset({port, sockets[0][1]}))])
    foreign.settimeout(0)
    with answering(own, b"HTTP/1.1 200 OK\r\n\r\n"):
        assert readiness.wait(threading.Event(), find_listeners=lambda: next(answers))
    assert readiness.address == ServerAddress(port=sockets[0][1])
    # Nobody has asked the other program.
    with foreign, pytest.raises(BlockingIOError):
        foreign.accept()
