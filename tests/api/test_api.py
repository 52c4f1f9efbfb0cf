"""The library as an application uses it: real threads, a real publisher, real processes."""

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from support.release_server import SLOW, ReleaseServer, User, release_server

from tsuku_llm import api
from tsuku_llm.ground import errors
from tsuku_llm.instances.folder import Instances

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's"),
    pytest.mark.usefixtures("user"),
]

T = TypeVar("T")
THREADS = 4


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ReleaseServer]:
    with release_server(tmp_path / "shop", SLOW) as server:
        build = server.stand_in("b1-cpu", serve=("listen",))
        server.publish("b1", {"cpu": server.variant(build)})
        yield server


@pytest.fixture
def user(shop: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    user = shop.user(tmp_path / "home")
    for name, value in user.env.items():
        monkeypatch.setenv(name, value)
    yield user
    for record in Instances(user.data / "state").all():
        for process in (record.server, record.supervisor):
            if process:
                process.send(signal.SIGKILL)


class Heard(api.Events):
    """What an application was told."""

    def __init__(self) -> None:
        self.downloads: list[tuple[str, int, int | None]] = []
        self.notes: list[str] = []
        self.inside = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def download(self, name: str, done: int, total: int | None) -> None:
        self.inside += 1
        assert self.inside == 1, "two at once"
        self.downloads.append((name, done, total))
        self.inside -= 1


def at_once(work: Callable[[], T]) -> list[T]:
    """Do the same in several threads, which begin at the same moment."""
    together = threading.Barrier(THREADS)

    def one() -> T:
        together.wait()
        return work()

    with ThreadPoolExecutor(THREADS) as pool:
        return [each.result() for each in [pool.submit(one) for _ in range(THREADS)]]


def test_threads_that_install_at_once_download_once(shop: ReleaseServer, user: User) -> None:
    builds = at_once(api.install)
    assert len({build.id for build in builds}) == 1
    assert len(shop.downloads()) == 1
    assert user.versions() == [builds[0].id]
    assert api.active() == builds[0]
    assert api.list_versions() == (builds[0],)


def test_threads_that_need_a_server_get_the_same_one(shop: ReleaseServer) -> None:
    servers = at_once(lambda: api.ensure_server(arguments=["--alias", "x"]))
    assert len({server.record.pid for server in servers}) == 1
    assert [server.started for server in servers].count(True) == 1
    assert len(shop.downloads()) == 1
    (server,) = api.status()
    assert server.state == "running"
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health") as answer:
        assert answer.status == 200
    assert servers[0].base_url == f"http://127.0.0.1:{server.port}/v1"
    assert "listening on" in servers[0].logs()
    assert api.stop_all() == (server.name,)
    assert api.status() == ()


def test_a_server_is_found_by_what_it_serves_or_by_its_name(user: User) -> None:
    first = api.ensure_server(arguments=["--alias", "x"])
    assert first.started
    assert api.ensure_server(arguments=["--alias", "x"]).record.pid == first.record.pid
    other = api.ensure_server(arguments=["--alias", "y"])
    assert other.record.pid != first.record.pid
    named = api.ensure_server(name="mine", arguments=["--alias", "x"])
    assert named.name == "mine"
    # The command line sees the same servers.
    told = user.run("status", "--json").document["data"]["servers"]
    assert {each["name"] for each in told} == {first.name, other.name, "mine"}
    assert user.run("stop", "--name", "mine").code == 0
    assert {server.name for server in api.status()} == {first.name, other.name}


@pytest.mark.parametrize("words", [("--port", "70000"), ("--port=80",), ("--host", "[::1]")])
def test_a_wrong_address_is_refused_before_anything_is_installed(
    shop: ReleaseServer, user: User, words: tuple[str, ...]
) -> None:
    with pytest.raises(errors.UsageError, match="--"):
        api.ensure_server(arguments=words)
    assert not shop.downloads()
    assert user.versions() == []


def test_the_block_stops_the_server_that_it_started_and_no_other() -> None:
    with api.ensure_server(name="mine") as server:
        assert [each.name for each in api.status()] == ["mine"]
        with api.ensure_server(name="mine") as same:
            assert (same.record.pid, same.started) == (server.record.pid, False)
        assert [each.name for each in api.status()] == ["mine"]
    assert api.status() == ()
    server.stop()  # a second time is no error
    with pytest.raises(errors.NotRunning):
        api.stop("mine")


def test_progress_is_told_in_bytes_up_to_the_whole(shop: ReleaseServer) -> None:
    heard = Heard()
    api.install(events=heard)
    (asked,) = {name for name, _, _ in heard.downloads}
    _, done, total = heard.downloads[-1]
    assert shop.downloads()[0].path.endswith(asked)
    assert done == total
    assert [each for _, each, _ in heard.downloads] == sorted(
        each for _, each, _ in heard.downloads
    )


class Stop(Exception):
    """What an application raises to end a call."""


def test_what_the_application_raises_ends_the_call_and_leaves_nothing(user: User) -> None:
    class Stopping(api.Events):
        def download(self, *_: object) -> None:
            raise Stop

    with pytest.raises(Stop):
        api.install(events=Stopping())
    assert (user.versions(), user.leftovers()) == ([], [])
    assert api.install().receipt.variant == "cpu"


def test_a_build_is_chosen_installed_and_left_as_the_commands_do(shop: ReleaseServer) -> None:
    assert api.active() is None
    decision = api.explain()
    assert (decision.choice.selected, decision.choice.release.release) == ("cpu", "b1")
    assert [(each.variant, each.rank, each.reason) for each in decision.variants] == [
        ("cpu", 1, None)
    ]
    assert api.probe().platform == decision.choice.platform
    first = api.install()
    build = shop.stand_in("b2-cpu")
    shop.publish("b2", {"cpu": shop.variant(build)})
    found = api.check_update()
    assert (found.installed, found.choice.release.release) == (first, "b2")
    assert found.candidate
    assert found.candidate.variant.name == "cpu"
    assert found.download
    second = api.update()
    assert second.receipt.release == "b2"
    assert api.update() == second
    assert api.rollback() == first
    assert api.use(second.id) == second


def test_an_error_is_of_one_tree_and_says_what_to_do() -> None:
    with pytest.raises(api.Error) as caught:
        api.install("b99")
    assert (caught.value.slug, caught.value.exit_code) == ("unknown-request", 3)
    with pytest.raises(api.Error, match="there is no setting"):
        api.probe(options=api.Options(settings={"colour": "red"}))
    for name in ("lock_timeout", "llm.lock_timeout"):
        # The error of an unknown name lists those of "config list", which begin with "llm.".
        with pytest.raises(errors.ConfigError):
            api.install(options=api.Options(settings={name: "soon"}))
    with pytest.raises(errors.UsageError):
        api.ensure_server(name="No Name")


def test_a_server_that_does_not_start_is_the_error_of_the_command(
    shop: ReleaseServer, user: User
) -> None:
    build = shop.stand_in("b2-cpu", serve=("say error: no such thing", "exit 3"))
    shop.publish("b2", {"cpu": shop.variant(build)})
    assert user.run("repository", "refresh", "test").code == 0
    with pytest.raises(errors.LaunchError) as caught:
        api.ensure_server(name="mine")
    command = user.run("serve", "--detach", "--name", "mine", "--json", "--", "--port", "0")
    told = command.document["error"]
    assert (caught.value.slug, caught.value.message) == (told["code"], told["message"])
    assert caught.value.exit_code == command.code


def test_settings_and_home_of_a_call_come_before_those_of_the_user(tmp_path: Path) -> None:
    api.install()
    assert api.list_versions(options=api.Options(home=tmp_path / "other")) == ()
    with pytest.raises(errors.SelectionError):
        api.install(options=api.Options(settings={"backend": "vulkan"}))


UNCHANGED = """
import os, signal, sys, threading
def now():
    handlers = [signal.getsignal(each) for each in signal.valid_signals()]
    return dict(os.environ), os.getcwd(), handlers, threading.active_count(), sys.excepthook
from tsuku_llm import api
before = now()
def work():
    api.explain()
    with api.ensure_server(name="mine"):
        api.status()
# In a thread, and in the main one.
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
assert now() == before, (now(), before)
"""


def test_the_process_stays_as_it_was_and_nothing_is_printed(tmp_path: Path) -> None:
    # A folder with modules of the same names as ours and as our libraries'.
    for name in ("tsuku_llm", "click", "json"):
        (tmp_path / "cwd" / name).mkdir(parents=True)
        (tmp_path / "cwd" / name / "__init__.py").write_text("raise SystemExit(99)")
    done = subprocess.run(
        [sys.executable, "-I", "-c", UNCHANGED],
        env=dict(os.environ),
        cwd=tmp_path / "cwd",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_processes_that_need_a_server_get_the_same_one(shop: ReleaseServer) -> None:
    code = "from tsuku_llm import api; print(api.ensure_server(name='mine').record.pid)"
    line = [sys.executable, "-c", code]
    children = [
        subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(3)
    ]
    assert len({child.communicate()[0] for child in children}) == 1
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(shop.downloads()) == 1


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, tsuku_llm; print(*(m for m in sys.modules if m.startswith('tsuku_llm')))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; tsuku_llm.api.install; tsuku_llm.api.Options()"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {*done.stdout.split()} == {"tsuku_llm", "tsuku_llm._version"}
