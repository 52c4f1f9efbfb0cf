"""What holds for every test: nothing of the developer's own settings or installs is seen."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import the_day
from support.stub_drivers import StubDrivers
from support.tools import REQUIRED, untested

if sys.platform != "win32":
    import fcntl
    import termios

# A busy machine makes an example slow, and says nothing about the program.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

LONG = ("e2e", "project", "catalog", "cli")
"""Folders whose files take longest, by far."""

KEPT = {
    *(REQUIRED, "TSUKU_LLM_BASES", "TSUKU_LLM_HALF_A_YEAR", "TSUKU_LLM_NINETY_DAYS"),
    *("TSUKU_LLM_SIGNERS", "TSUKU_LLM_TEST_WHEEL"),
}


def pytest_configure() -> None:
    """Forget the developer's settings, before the widest fixture runs."""
    for name in [name for name in os.environ if name.startswith("TSUKU_") and name not in KEPT]:
        del os.environ[name]
    # No test has a today: each has the day of the embedded metadata, unless it asks for another.
    # So a test that nobody thought of has it, too; one that fails without a fixture would still
    # have to be met on the day that breaks it. tests/project/test_the_day.py keeps the program to
    # its one clock.
    the_day.fix()
    # pytest imports readline, which sets both for child processes, behind the back of Python. A
    # worker of xdist is such a child.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
        os.unsetenv(name)
    # A shell starts what it runs in the background with SIGINT ignored, `nohup` ignores SIGHUP,
    # and children inherit both: tests that send these signals would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        leave_terminal()


def leave_terminal() -> None:
    """Detach this process and its children from the terminal, which no test may take.

    An interactive shell that a test starts would take the terminal, and the system would then stop
    all of the suite (SIGTTIN). What it prints still arrives, and so does Ctrl-C.
    """
    # A session's leader would end its session with this. Workers of xdist are none.
    if os.getsid(0) != os.getpid():
        with suppress(OSError):  # there is none
            terminal = os.open("/dev/tty", os.O_RDWR)
            try:
                fcntl.ioctl(terminal, termios.TIOCNOTTY)
            finally:
                os.close(terminal)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say last what was not tested, as this system lacks something."""
    yield
    lacking = untested(terminalreporter.stats.get("skipped", []))
    if lacking:
        terminalreporter.section("not tested")
        for what, tests in lacking.most_common():
            noun = "test needs" if tests == 1 else "tests need"
            terminalreporter.line(f"{tests} {noun} {what}")
        terminalreporter.line("On Debian and Ubuntu, ci/test without --no-install installs these.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders with the longest files first, so that no worker is left alone with one."""
    items.sort(key=lambda item: _order(item.path.parent.name))


def _order(folder: str) -> int:
    return LONG.index(folder) if folder in LONG else len(LONG)


@pytest.fixture(autouse=True, scope="module")
def variables_are_left_alone() -> Iterator[None]:
    """No module leaves a variable behind, which would change what the next one tests."""
    before = dict(os.environ)
    yield
    changed = {name for name, _ in before.items() ^ os.environ.items()}
    assert changed <= {"PYTEST_CURRENT_TEST"}, f"left changed in the environment: {changed}"


@pytest.fixture(autouse=True)
def tsuku_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of each test's own; it does not exist until the program makes it."""
    home = tmp_path / "tsuku-home"
    monkeypatch.setenv("TSUKU_HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "tsuku-state"))
    monkeypatch.setenv("TSUKU_LLM_REFRESH", "never")  # the built-in address is a real host's
    return home


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime | None], None]:
    """What gives the program another day, here and in children that are started afterwards.

    None is the system's day, which ``python -I`` has in any case.
    """

    def move(day: datetime | None) -> None:
        for name, value in the_day.on(day).items():
            monkeypatch.setenv(name, value)

    return move


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> StubDrivers:
    """Driver libraries, each built when a test first asks for it."""
    return StubDrivers(tmp_path_factory.mktemp("drivers"))
