"""What a start remembers of a backend that failed, and when it asks; the servers are stand-ins."""

import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import NO_DEVICE_STEPS
from support.servers import NOW, Starter, install_stand_in
from support.sessions import make_session

from tsuku_llm.ground.errors import BackendFailed, LaunchError, SilentCpu
from tsuku_llm.launch.plan.fingerprint import driver_fingerprint
from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.launch.run.supervise import StopHandle
from tsuku_llm.machine.host import LocalHost
from tsuku_llm.steps.drivers.state_notes import FailureNote, StateNotes
from tsuku_llm.steps.serve.fallback import (
    LARGE,
    FailedStarts,
    forget_failures,
    must_ask,
    noted_failures,
)
from tsuku_llm.steps.serve.serve import serve
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.session import Machine
from tsuku_llm.store.records.installed import Installed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

AN_HOUR_AGO = f"{NOW - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
LOST = ("err terminate: vk::Queue::submit: ErrorDeviceLost", "kill 6")
SLIPPED = ("err offloaded 0/33 layers to GPU", "err CPU model buffer size = 9.00 MiB", "listen")
CUDA_STEPS = ("out Available devices:", "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "llm"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def starter(data: Path) -> Starter:
    return Starter(data, {"PATH": os.environ["PATH"]}, fallback="ask", answer=True)


def notes_of(starter: Starter, **more: str) -> StateNotes:
    return StateNotes(starter.data / "state", driver_fingerprint({**starter.environ, **more}))


def replaced(data: Path, starter: Starter, *serve: str) -> tuple[Installed, Installed]:
    """Vulkan and CUDA are installed, and it is noted that Vulkan was replaced by CUDA."""
    vulkan = install_stand_in(data, serve=serve or ("listen",))
    cuda = install_stand_in(data, backend="cuda", devices=CUDA_STEPS, activate=False)
    note = FailureNote(vulkan.id, "device lost", cuda.id, AN_HOUR_AGO)
    notes_of(starter).keep_failure(note)
    return vulkan, cuda


# --- a failure that is remembered ------------------------------------------------------------


def test_the_default_asks_again_at_each_start(data: Path, starter: Starter) -> None:
    _, cuda = replaced(data, starter)
    for _ in range(2):
        assert starter.start() == 0
        assert starter.report.id == cuda.id
    question = "vulkan failed on these drivers: device lost. Start cuda instead?"
    assert starter.questions == [question] * 2


def test_after_a_no_the_failed_version_is_tried_and_the_note_goes_if_it_serves(
    data: Path, starter: Starter
) -> None:
    vulkan, _ = replaced(data, starter)
    starter.answer = False
    assert starter.start() == 0
    assert (starter.report.id, starter.report.fallen_back_from) == (vulkan.id, ())
    assert notes_of(starter).failure(vulkan.id) is None
    starter.start()
    assert len(starter.questions) == 1


def test_after_a_no_the_note_stays_if_the_version_fails_again(data: Path, starter: Starter) -> None:
    vulkan, _ = replaced(data, starter, *LOST)
    starter.fallback = "off"
    with pytest.raises(BackendFailed):
        starter.start()
    assert notes_of(starter).failure(vulkan.id)


def test_auto_does_not_ask_and_names_what_forgets(data: Path, starter: Starter) -> None:
    _, cuda = replaced(data, starter)
    starter.fallback = "auto"
    assert starter.start() == 0
    assert starter.report.id == cuda.id
    assert starter.questions == []
    assert any("tsuku-llm fallback --forget" in note for note in starter.notes)


def test_a_backend_that_is_requested_by_name_is_not_replaced(data: Path, starter: Starter) -> None:
    vulkan, _ = replaced(data, starter)
    starter.backend = "vulkan"
    assert starter.start() == 0
    assert (starter.report.id, starter.questions) == (vulkan.id, [])


def test_a_server_on_the_processor_does_not_end_the_note(data: Path, starter: Starter) -> None:
    """It is up, but its backend is not what serves."""
    vulkan, _ = replaced(data, starter)
    again = install_stand_in(data, release="b101", devices=NO_DEVICE_STEPS, serve=SLIPPED)
    notes_of(starter).keep_failure(FailureNote(again.id, "lost", vulkan.id, AN_HOUR_AGO))
    starter.fallback = "off"
    assert starter.start() == 0
    assert starter.report.id == again.id
    assert notes_of(starter).failure(again.id)


# --- the list of them ------------------------------------------------------------------------


def test_failures_are_listed_and_forgotten(data: Path, starter: Starter) -> None:
    vulkan, cuda = replaced(data, starter)
    machine = Machine(LocalHost(None, starter.environ), NOW, starter.environ)
    session = make_session(data, machine)
    note = FailureNote(vulkan.id, "device lost", cuda.id, AN_HOUR_AGO)
    assert noted_failures(session.paths.state, session.machine.environ) == ((note,), True, False)
    other = session._replace(machine=machine._replace(environ={"CUDA_VISIBLE_DEVICES": "1"}))
    assert noted_failures(other.paths.state, other.machine.environ) == ((note,), False, False), (
        "of other drivers: it does not count"
    )
    assert forget_failures(other.paths.state, other.machine.environ) == ((note,), False, True)
    assert noted_failures(session.paths.state, session.machine.environ) == ((), False, False)
    assert forget_failures(session.paths.state, session.machine.environ) == ((), False, True)


def test_a_note_about_other_drivers_is_no_reason_to_ask(data: Path, starter: Starter) -> None:
    vulkan, _ = replaced(data, starter)
    starter.environ = {**starter.environ, "GGML_VK_OTHER": "1"}
    assert starter.start() == 0
    assert (starter.report.id, starter.questions) == (vulkan.id, [])


# --- what is worth a note, and what needs a yes ----------------------------------------------

ERRORS = {
    "backend": BackendFailed("the driver failed"),
    "gpu": SilentCpu("no device"),
    "other": LaunchError("no such model"),
}


@given(st.lists(st.sampled_from(sorted(ERRORS))))
def test_only_failures_of_backends_last(kinds: list[str]) -> None:
    failures = FailedStarts((), tuple(ERRORS[kind] for kind in kinds))
    assert failures.lasts == (set(kinds) == {"backend"})


@given(st.sampled_from(["ask", "auto"]), st.none() | st.integers(0, 10 * LARGE))
def test_a_large_or_unknown_download_always_needs_a_yes(setting: str, size: int | None) -> None:
    assert must_ask(setting, size) == (setting == "ask" or size is None or size > LARGE)


# --- a report that comes too late -------------------------------------------------------------


def test_nothing_is_reported_after_the_server_has_ended(data: Path) -> None:
    """The thread that follows the start is held up while it warns, as by a driver's question."""
    install_stand_in(data, files={"libggml-vulkan.so": b"plugin"}, serve=SLIPPED)
    reports: list[StartReport] = []
    stop_handle, over = StopHandle(), threading.Event()
    followers: list[threading.Thread] = []

    def note(text: str) -> None:
        if text.startswith("warning: the server does not run on the GPU"):
            followers.append(threading.current_thread())
            stop_handle.end("it was judged")
            over.wait()

    machine = Machine(LocalHost(None, {}), NOW, {"PATH": os.environ["PATH"]})
    session = make_session(data, machine, note=note)
    how = Serving(sink=reports.append, stop_handle=stop_handle)
    assert serve(session, ("--port", "0"), how) == 0
    over.set()
    (follower,) = followers
    follower.join()
    assert [report.ready for report in reports] == [False]
