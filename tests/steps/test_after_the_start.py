"""What becomes of a server that has served: its last words, a hang, and what follows from them."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import VULKAN_STEPS
from support.gpu_machine import OPENED, GpuMachine
from support.lives import Run
from support.servers import install_stand_in

from tsuku_llm.ground.errors import GpuLost, LaunchError
from tsuku_llm.launch.ask import canary
from tsuku_llm.launch.gpu import life
from tsuku_llm.launch.run import supervise

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


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 64 MB of memory; skips where none can be made."""
    group = Path("/sys/fs/cgroup/memory") / f"test-{uuid.uuid4().hex}"
    limit = "memory.limit_in_bytes"
    if not group.parent.is_dir():  # version 2 has all controllers in one tree
        group, limit = Path("/sys/fs/cgroup") / group.name, "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        (group / limit).write_text(str(64 << 20))
        yield group
    except OSError as error:
        pytest.skip(f"no control group for memory: {error}")
    finally:
        group.rmdir()


def test_a_server_that_the_kernel_kills_for_want_of_memory_is_explained(
    data: Path, small_group: Path
) -> None:
    install_stand_in(data, serve=(f"hog {256 << 20}", "listen"))

    def fill(run: Run) -> None:
        (small_group / "cgroup.procs").write_text(str(run.reports[-1].pid))
        run.request()

    run = Run(data, fill)
    assert run.make() == 137
    (told,) = [note for note in run.notes if "after it had served" in note]
    assert "the kernel killed the server, as memory ran out" in told


def test_a_server_that_was_told_to_end_is_not_explained(data: Path) -> None:
    install_stand_in(data, serve=("listen",))
    run = Run(data, lambda run: run.stop_handle.end(STOPPED))
    assert run.make() == 0
    assert not [note for note in run.notes if note.startswith("warning")]
    assert run.reports[-1].trouble is None


@pytest.mark.parametrize("when", ["long before", "now"])
def test_another_programs_lack_of_memory_weeks_ago_explains_no_kill(
    when: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's count is the machine's, and so are the kills in other containers."""
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("oom_kill 3\n")
    monkeypatch.setattr(supervise, "_VMSTAT", str(vmstat))
    # A kill comes between two looks, or many looks after the count rose.
    monkeypatch.setattr(life, "LOOK", 60.0 if when == "now" else 0.01)
    install_stand_in(data, serve=("listen",))

    def kill() -> None:
        if when == "now":
            vmstat.write_text("oom_kill 9\n")
        os.kill(run.reports[-1].pid, signal.SIGKILL)

    def on_ready(_: Run) -> None:
        if when != "now":
            vmstat.write_text("oom_kill 9\n")
        threading.Timer(0.5, kill).start()

    run = Run(data, on_ready)
    assert run.make() == 137
    (told,) = [note for note in run.notes if "after it had served" in note]
    assert ("oom_kill in /proc/vmstat" in told) is (when == "now")


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


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "FIRST_PAUSE", 0.001)


def ended_at_its_second_service(run: Run) -> None:
    if run.served == 2:
        run.stop_handle.end(STOPPED)
    else:
        run.request()


@pytest.mark.usefixtures("at_once")
def test_the_cause_of_a_restart_is_said_once_with_its_facts(data: Path) -> None:
    install_stand_in(data, serve=(f"die {DEVICE_LOST}", "listen"))
    run = Run(data, ended_at_its_second_service)
    assert run.make(on_gpu_loss="restart") == 0
    (told,) = [note for note in run.notes if "after it had served" in note]
    assert DEVICE_LOST in told
    assert "SIGABRT" in told


@pytest.mark.usefixtures("at_once")
def test_the_socket_that_a_killed_server_left_prevents_no_restart(
    data: Path, tmp_path: Path
) -> None:
    install_stand_in(data, serve=(f"die {DEVICE_LOST}", "listen"))
    run = Run(data, ended_at_its_second_service)
    assert run.make("--host", str(tmp_path / "llm.sock"), on_gpu_loss="restart") == 0
    assert (run.served, run.reports[-1].restarts) == (2, 1)


@pytest.mark.usefixtures("at_once")
def test_a_restart_that_fails_is_tried_again(data: Path) -> None:
    """Another program took the port while the server was away, and then gave it back."""
    install_stand_in(data, serve=(f"die {DEVICE_LOST}", "listen"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    taken: list[socket.socket] = []
    run = Run(data, ended_at_its_second_service)

    def note(text: str) -> None:
        if "lost" in text:
            taken.append(socket.create_server(("127.0.0.1", port)))
        elif "did not start" in text:
            taken[0].close()

    run.on_note = note
    assert run.make("--port", str(port), on_gpu_loss="restart") == 0
    assert (run.served, run.reports[-1].restarts) == (2, 2)
    assert [note for note in run.notes if "did not start" in note and "started again in" in note]


def test_a_start_that_fails_at_first_is_not_tried_again(data: Path) -> None:
    install_stand_in(data, serve=("err unknown argument: --oops", "exit 1"))
    with pytest.raises(LaunchError):
        Run(data, lambda _: None).make(on_gpu_loss="restart")


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
    assert json.loads((data / "state" / "drivers.json").read_text())["failures"] == []


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
    assert "answered /health but took no task" in raised.value.facts[0]
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


def test_a_server_that_is_to_end_does_not_wait_for_our_own_request(
    data: Path, tmp_path: Path
) -> None:
    """Upstream's server ends when the clients of its requests have hung up."""
    asked = tmp_path / "asked"
    install_stand_in(data, serve=(f"patient {asked}", "listen"))

    run = Run(data, lambda _: None)

    def end_once_asked() -> None:
        while not asked.exists():
            os.sched_yield()
        run.stop_handle.end(STOPPED)

    threading.Thread(target=end_once_asked, daemon=True).start()
    # Killed after the grace, it would be 137.
    assert run.make(canary=True, warm_up=False) == 0


# --- a server that begins to answer wrongly ---------------------------------------------------

ANSWERS = json.loads((Path(__file__).parents[1] / "launch/canary_answers.json").read_bytes())


def turning(folder: Path, right: int, fault: str = "product-rows") -> tuple[str, str]:
    """The steps of a server that answers rightly ``right`` times to the canary."""
    paths = [folder / name for name in ("right.json", "wrong.json")]
    for path, answer in zip(
        paths, (ANSWERS["right"]["plain"], ANSWERS["wrong"][fault]), strict=True
    ):
        path.write_text(json.dumps(answer), "utf-8")
    return f"says {paths[0]} {right} {paths[1]}", "listen"


def client_for_ever(run: Run) -> None:
    """A client that asks again and again, until the server ends."""

    def ask() -> None:
        with contextlib.suppress(OSError):
            while True:
                run.request()

    threading.Thread(target=ask, daemon=True).start()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
def test_a_server_that_begins_to_answer_wrongly_is_ended_where_that_is_wanted(
    data: Path, tmp_path: Path, backend: str
) -> None:
    install_stand_in(data, backend=backend, serve=turning(tmp_path, 4))
    run = Run(data, client_for_ever)
    with pytest.raises(GpuLost) as raised:
        run.make(on_gpu_loss="stop", canary=True)
    assert raised.value.message == "the server answers wrongly"
    assert "nats from before" in raised.value.facts[0]
    assert "install --force" in raised.value.hint
    trouble = run.reports[-1].trouble
    assert trouble
    assert trouble.kind == "gpu-fault"


def ended_by_its_warning(data: Path, *arguments: str) -> Run:
    """A server that turns wrong, until its user is told."""
    run = Run(data, client_for_ever)

    def note(text: str) -> None:
        if text.startswith("warning: the server answers wrongly"):
            run.stop_handle.end(STOPPED)

    run.on_note = note
    assert run.make(*arguments, canary=True) == 0
    return run


@pytest.mark.usefixtures("hasty")
def test_a_server_that_answers_wrongly_is_one_warning_by_default(
    data: Path, tmp_path: Path
) -> None:
    install_stand_in(data, serve=turning(tmp_path, 4))
    run = ended_by_its_warning(data)
    assert len([text for text in run.notes if "answers wrongly" in text]) == 1


@pytest.mark.usefixtures("hasty")
def test_a_build_is_compared_with_what_it_answered_at_an_earlier_start(
    data: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    install_stand_in(data, serve=turning(tmp_path, 4))
    ended_by_its_warning(data, "-m", str(model))
    # From its first answer on, and for the same model.
    (tmp_path / "right.json").write_bytes((tmp_path / "wrong.json").read_bytes())
    run = Run(data, lambda _: None)
    with pytest.raises(GpuLost, match="answers wrongly"):
        run.make("-m", str(model), canary=True, on_gpu_loss="stop")


# --- a machine with a card --------------------------------------------------------------------

IN_THE_MACHINE = """
import json, os, shutil, subprocess, sys, threading
from pathlib import Path
from support.lives import Run
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.launch.gpu import life
data, loss, policy = sys.argv[1:]
life.LOOK = life.AGAIN = 0.05
# A client that watches a fault needs no more than its warning.
def on_note(text):
    if text.startswith(("warning: the GPU or its driver", "the server computes on the GPU again")):
        run.stop_handle.end("seen")
    if text.startswith("warning: the server has lost") and "moment" in loss:
        os.mkdir(os.environ["WORK"])
def refuse():
    # A device on such a mount cannot be opened, as one that a control group forbids.
    subprocess.run(["mount", "--bind", "/dev/full", "/dev/nvidia0"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,nodev", "/dev/nvidia0"], check=True)
def on_ready(run):
    if "work" in loss:
        shutil.rmtree(os.environ["WORK"])
    if "node" in loss:
        os.unlink("/dev/nvidia0")
    if "refused" in loss:
        # Later: a node that could not be opened from the start is another user's.
        threading.Timer(1, refuse).start()
    if "none" in loss:
        threading.Timer(3, run.stop_handle.end, ["seen"]).start()
names = tuple(name for name in os.environ if name.startswith(("STUB_", "LD_LIBRARY")))
run = Run(Path(data), on_ready, on_note=on_note, inherited=names)
try:
    error = run.make(canary=True, on_gpu_loss=policy)
except TsukuError as raised:
    error = [raised.exit_code, raised.slug, raised.facts]
report = run.reports[-1]
verdicts = [each.verdict for each in run.reports if each.ready]
print(json.dumps([error, verdicts[0], report.trouble and report.trouble.kind, run.notes, verdicts]))
"""


def lived(folder: Path, loss: str, policy: str, **counts: object) -> list[Any]:
    """Serve on a machine with a card, take from it what ``loss`` names, and return what is said.

    The engines' work is the only proof of the GPU: the driver tells no memory of a process.
    """
    machine, work, data = GpuMachine(folder), folder / "work", folder / "llm"
    work.mkdir()
    data.mkdir(mode=0o755)
    plugins = {"libggml-cuda.so": b"plugin", "libggml-cpu.so": b"plugin"}
    maps = tuple(f"map {name}" for name in ("llama-server", *plugins))
    install_stand_in(
        data,
        backend="cuda",
        files=plugins,
        devices=(VULKAN_STEPS[0], "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)"),
        serve=(f"work {work}/done", *maps, OPENED, "listen"),
    )
    line = [sys.executable, "-c", IN_THE_MACHINE, str(data), loss, policy]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "WORK": str(work)}
    told = {"nvml_process": (1 << 64) - 1, "nvml_sm": 30, "nvml_worked": f"{work}/done"}
    done = machine.run(line, env=env, **told, **counts)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


def test_a_gpu_that_is_back_is_told_and_shown(tmp_path: Path) -> None:
    error, _, trouble, notes, verdicts = lived(tmp_path, "work moment", "warn", nvml_xid=79)
    assert (error, trouble) == (0, None)
    assert len([note for note in notes if note.startswith("warning: the server has lost")]) == 1
    assert list(dict.fromkeys(verdicts)) == ["on_gpu", "unknown"]
    assert verdicts[-1] == "on_gpu"


def test_a_fault_of_another_gpu_is_no_matter_of_this_server(tmp_path: Path) -> None:
    counts = {"nvml_count": 2, "nvml_on": 0, "nvml_xid": 79, "nvml_xid_on": 1}
    error, verdict, trouble, notes, _ = lived(tmp_path, "none", "stop", **counts)
    assert (error, verdict, trouble) == (0, "on_gpu", None)
    assert not [note for note in notes if note.startswith("warning")]


def test_a_device_node_that_is_gone_and_no_work_of_the_engines_are_a_loss(tmp_path: Path) -> None:
    error, verdict, trouble, *_ = lived(tmp_path, "node work", "stop")
    assert error[:2] == [8, "gpu-lost"]
    assert error[2] == ["/dev/nvidia0 does not exist any more"]
    assert (verdict, trouble) == ("on_gpu", "gpu-lost")


def test_a_device_that_a_control_group_forbids_is_no_loss_while_the_server_computes(
    tmp_path: Path,
) -> None:
    """A reload of systemd forbids the device to a container; what is open stays open."""
    error, verdict, trouble, notes, _ = lived(tmp_path, "refused none", "stop")
    assert (error, verdict, trouble) == (0, "on_gpu", None)
    assert not [note for note in notes if note.startswith("warning")]


def test_an_xid_error_and_no_work_of_the_engines_are_a_loss(tmp_path: Path) -> None:
    error, _, trouble, *_ = lived(tmp_path, "work", "stop", nvml_xid=79)
    assert error[:2] == [8, "gpu-lost"]
    assert error[2] == ["GPU 0: the driver reports Xid 79 (the GPU has fallen off the bus)"]
    assert trouble == "gpu-lost"


@pytest.mark.parametrize(("loss", "counts"), [("node", {}), ("", {"nvml_xid": 48})])
def test_a_fault_under_which_the_server_computes_is_one_warning(
    loss: str, counts: dict[str, object], tmp_path: Path
) -> None:
    error, verdict, trouble, notes, _ = lived(tmp_path, loss, "stop", **counts)
    assert (error, verdict, trouble) == (0, "on_gpu", "gpu-fault")
    assert len([note for note in notes if note.startswith("warning: the GPU")]) == 1
