"""What becomes of a server that has served: its last words, a hang, and what follows from them."""

import http.client
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.servers import NOW, install_stand_in
from support.sessions import make_session

from tsuku_llm.errors import GpuLost
from tsuku_llm.host import LocalHost
from tsuku_llm.launch import canary, life
from tsuku_llm.launch.report import StartReport
from tsuku_llm.launch.supervise import StopHandle
from tsuku_llm.operations.serve import Serving, serve
from tsuku_llm.operations.session import Machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

OUT_OF_MEMORY = (
    "ggml_cuda.cu:88: CUDA error: out of memory current device: 0, in function alloc at "
    "ggml-cuda.cu:363 cuMemCreate(&handle, reserve_size, &prop, 0)"
)
DEVICE_LOST = "terminate called after throwing an instance of 'vk::DeviceLostError'"
STOPPED = "the test has seen enough"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "llm"
    folder.mkdir(mode=0o755)
    return folder


@dataclass
class Run:
    """One ``serve`` of what is installed; ``on_ready`` is called each time that it serves."""

    data: Path
    on_ready: Callable[["Run"], None]
    notes: list[str] = field(default_factory=list)
    reports: list[StartReport] = field(default_factory=list)
    served: int = 0
    on_note: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.stop_handle = StopHandle()

    def make(self, *arguments: str, **settings: object) -> int:
        environ = {"PATH": os.environ["PATH"]}
        machine = Machine(LocalHost(None, environ), NOW, environ)
        wanted = {"fallback": "off", "canary": False, **settings}
        session = make_session(self.data, machine, note=self._note, **wanted)
        how = Serving(sink=self._on_report, stop_handle=self.stop_handle)
        return serve(session, ("--port", "0", "-m", "/none.gguf", *arguments), how)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note(text)

    def _on_report(self, report: StartReport) -> None:
        again = report.ready and not (self.reports and self.reports[-1].ready)
        self.reports.append(report)
        if again:
            self.served += 1
            self.on_ready(self)

    def request(self) -> None:
        """Ask for a result, as a client of the server does; it may end meanwhile."""
        assert self.reports[-1].port
        connection = http.client.HTTPConnection("127.0.0.1", self.reports[-1].port)
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/completion", "{}")
            connection.getresponse().read()
        connection.close()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (OUT_OF_MEMORY, "not enough free memory"),
        (DEVICE_LOST, "lost"),
        ("the flux is open", "SIGABRT"),
    ],
)
@pytest.mark.parametrize("policy", ["warn", "stop"])
def test_a_server_that_ends_at_a_request_is_explained_and_keeps_its_code(
    words: str, cause: str, policy: str, data: Path
) -> None:
    install_stand_in(data, serve=(f"die {words}", "listen"))
    run = Run(data, Run.request)
    assert run.make(on_gpu_loss=policy) == 134
    (told,) = [note for note in run.notes if "after it had served" in note]
    assert told.startswith("warning: the server ended after it had served: ")
    assert cause in told
    assert words[:40] in told
    trouble = run.reports[-1].trouble
    assert trouble
    assert (trouble.kind, cause in trouble.text) == ("ended", True)


def test_a_server_that_was_told_to_end_is_not_explained(data: Path) -> None:
    install_stand_in(data, serve=("listen",))
    run = Run(data, lambda run: run.stop_handle.end(STOPPED))
    assert run.make() == 0
    assert not [note for note in run.notes if note.startswith("warning")]
    assert run.reports[-1].trouble is None


def test_a_server_that_chooses_to_end_is_not_explained(data: Path) -> None:
    install_stand_in(data, serve=("err listening on http://127.0.0.1:1", "exit 0"))
    run = Run(data, lambda _: None)
    assert run.make() == 0
    assert not [note for note in run.notes if note.startswith("warning")]


def test_a_server_whose_backend_fails_is_started_again_with_growing_pauses(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(life, "FIRST_PAUSE", 0.001)
    monkeypatch.chdir(tmp_path)
    install_stand_in(data, serve=(f"die {DEVICE_LOST}", "listen"))

    def on_ready(run: Run) -> None:
        if run.served == 4:
            run.stop_handle.end(STOPPED)
        else:
            run.request()

    run = Run(data, on_ready)
    assert run.make(on_gpu_loss="restart") == 0
    assert run.served == 4
    assert run.reports[-1].restarts == 3
    assert len([note for note in run.notes if "started again in" in note]) == 3


def test_a_model_that_does_not_fit_is_not_started_again(data: Path) -> None:
    install_stand_in(data, serve=(f"die {OUT_OF_MEMORY}", "listen"))
    assert Run(data, Run.request).make(on_gpu_loss="restart") == 134


def test_the_next_variant_serves_after_a_loss_and_nothing_is_noted(data: Path) -> None:
    install_stand_in(data, backend="cpu", activate=False, serve=("listen",))
    install_stand_in(data, serve=(f"die {DEVICE_LOST}", "listen"))

    def on_ready(run: Run) -> None:
        if run.served == 2:
            run.stop_handle.end(STOPPED)
        run.request()

    run = Run(data, on_ready)
    assert run.make(on_gpu_loss="fallback") == 0
    assert run.served == 2
    assert run.reports[-1].selected == "cpu"
    assert run.reports[-1].fallen_back_from
    # At the next start the GPU may be back.
    assert not (data / "state" / "failures.json").exists()


def test_without_a_next_variant_the_loss_is_the_answer(data: Path) -> None:
    install_stand_in(data, serve=(f"die {DEVICE_LOST}", "listen"))
    with pytest.raises(GpuLost) as raised:
        Run(data, Run.request).make(on_gpu_loss="fallback", offline=True)
    assert (raised.value.exit_code, raised.value.slug) == (8, "gpu-lost")


# --- a server that hangs ----------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes become hundredths of a second."""
    monkeypatch.setattr(life, "LOOK", 0.01)
    monkeypatch.setattr(life, "HANGS", 0.02)
    monkeypatch.setattr(canary, "_QUEUE_LIMIT", 0.05)


def with_a_client(run: Run) -> None:
    """A client that waits for its answer until the server ends."""
    threading.Thread(target=run.request, daemon=True).start()


@pytest.mark.usefixtures("hasty")
def test_a_server_that_hangs_while_health_says_200_is_ended_where_that_is_wanted(
    data: Path,
) -> None:
    install_stand_in(data, serve=("stuck", "listen"))
    run = Run(data, with_a_client)
    with pytest.raises(GpuLost) as raised:
        run.make(on_gpu_loss="stop")
    assert raised.value.message == "the server hangs"
    assert "answers /health but takes no task" in raised.value.facts[0]
    trouble = run.reports[-1].trouble
    assert trouble
    assert trouble.kind == "hangs"


@pytest.mark.usefixtures("hasty")
def test_a_server_that_hangs_is_one_warning_and_stays_by_default(data: Path) -> None:
    install_stand_in(data, serve=("stuck", "listen"))
    run = Run(data, with_a_client)

    def note(text: str) -> None:
        if text.startswith("warning: the server hangs"):
            run.stop_handle.end(STOPPED)

    run.on_note = note
    assert run.make() == 0
    assert len([text for text in run.notes if "the server hangs" in text]) == 1
    assert [each.trouble.kind for each in run.reports if each.trouble][:1] == ["hangs"]
