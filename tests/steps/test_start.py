"""A start from its check to its verdict, with servers that behave as healthy and sick ones do."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS
from support.gguf_files import layered_model
from support.last_words import ROWS, Row, one_of_each
from support.program import environment, run_program
from support.servers import Starter, install_stand_in
from support.stored import FILES, install

from tsuku_llm.ground.errors import (
    BackendFailed,
    LaunchError,
    NoProgress,
    NotOnGpu,
    SilentCpu,
    TamperedInstall,
)
from tsuku_llm.launch.failed.diagnosis import ending
from tsuku_llm.launch.plan.report import Verdict
from tsuku_llm.steps.choosing.which import build_of
from tsuku_llm.steps.drivers.device_check import check_devices
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

LOGS = Path(__file__).parents[1] / "server_logs"
PLUGIN = {"libggml-vulkan.so": b"plugin", "libggml-cpu.so": b"plugin"}
MAPPED = ("map llama-server", "map libggml-vulkan.so")


def recorded(name: str) -> tuple[str, ...]:
    """The steps that print a recorded log up to where the server listens.

    It was recorded on a software renderer, which stands for a card.
    """
    text = (LOGS / f"{name}.txt").read_text(encoding="utf-8").replace("llvmpipe", "card")
    lines = text.splitlines()
    end = next(at for at, line in enumerate(lines) if "listening on" in line)
    return tuple(f"err {line}" for line in lines[:end])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "llm"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def starter(data: Path) -> Starter:
    return Starter(data, {"PATH": os.environ["PATH"]})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


HEALTHY: dict[str, tuple[str, ...]] = {
    **{f"{name}-gpu": recorded(f"{name}-gpu") for name in ("b10068", "b10092", "b10434")},
    **{f"{name}-quiet": recorded(f"{name}-gpu-quiet") for name in ("b10068", "b10092", "b10434")},
    "silence": (),
    "drifted": ("err vk: 33 of 33 blocks placed on VK[0]", "err weights: VK[0] 4096 MiB"),
    "still-loading": ("loading 3",),
    "loud": ("flood 20000",),
    "no-utf-8": ("err \x1b[31m\udcff caf\udce9", "out \udcff"),
}


@pytest.mark.parametrize("steps", HEALTHY.values(), ids=HEALTHY)
@pytest.mark.parametrize("last", ["listen", "serve"])
def test_a_healthy_server_gets_no_warning(
    steps: tuple[str, ...], last: str, data: Path, starter: Starter
) -> None:
    install_stand_in(data, serve=(*steps, last))
    port = free_port() if last == "serve" else 0
    # Only a log shows a GPU here, where none is.
    share = None if "buffer size" in str(steps) else 0
    assert starter.start("--port", str(port), require_gpu=True, min_gpu_share=share) == 0
    assert starter.report.ready
    assert starter.report.verdict is (Verdict.UNKNOWN if share == 0 else Verdict.ON_GPU)
    assert not [note for note in starter.notes if note.startswith("warning")]


@pytest.mark.parametrize("version", ["b10068", "b10092", "b10434"])
def test_a_verbose_server_on_a_device_is_recognised(
    version: str, data: Path, starter: Starter
) -> None:
    install_stand_in(data, serve=(*recorded(f"{version}-gpu"), "listen"))
    assert starter.start() == 0
    report = starter.report
    assert (report.verdict, report.backend) == (Verdict.ON_GPU, "vulkan")
    assert (report.layers_offloaded, report.layers_total) == (3, 3)
    assert report.device == "Vulkan0: card (LLVM 15.0.6, 256 bits)"
    assert report.memory_total == 143771 << 20
    assert report.port not in (None, 0)


SICK: dict[str, tuple[str, ...]] = {
    **{f"{name}-cpu": recorded(f"{name}-cpu") for name in ("b10068", "b10092", "b10434")},
    "plugin-dropped": ("map llama-server", "map libggml-cpu.so"),
    "plugin-and-no-node": MAPPED,
    "no-usable-gpu": (
        "map llama-server",
        "err warning: no usable GPU found, --gpu-layers option will be ignored",
    ),
    "dropped-and-said": (
        "err load_backend: loaded CPU backend from /x/libggml-cpu.so",
        "map llama-server",
    ),
}


@pytest.mark.parametrize("steps", SICK.values(), ids=SICK)
def test_a_server_that_silently_uses_the_processor_is_ended(
    steps: tuple[str, ...], data: Path, starter: Starter
) -> None:
    """The list of devices has the GPU, and the server does not use it all the same."""
    install_stand_in(data, files=PLUGIN, serve=(*steps, "listen"))
    with pytest.raises(SilentCpu) as caught:
        starter.start(require_gpu=True)
    assert caught.value.exit_code == 8
    assert caught.value.facts
    assert caught.value.hint.endswith("tsuku-llm config set llm.backend cpu")
    assert starter.notes[-1].startswith("requested=")
    assert (starter.report.verdict, starter.report.backend) == (Verdict.ON_CPU, "cpu")
    assert starter.report.layers_offloaded == 0


UNREADABLE = {"silence": (), "embeddings": ("refuse 501",), "no-answers": ("refuse 501 500",)}


@pytest.mark.parametrize("steps", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_shown_does_not_keep_the_promise(
    steps: tuple[str, ...], data: Path, starter: Starter
) -> None:
    install_stand_in(data, serve=(*steps, "listen"))
    with pytest.raises(NotOnGpu, match="nothing shows that the server uses the GPU") as caught:
        starter.start("-m", "/none.gguf", require_gpu=True)
    assert caught.value.exit_code == 8
    facts = "\n".join(caught.value.facts)
    assert "process-memory: no driver counts this process's GPU memory" in facts
    refused = "no canary request: answered with HTTP status 500"
    assert (refused if "500" in str(steps) else "no driver shows any work of") in facts
    assert "--require-gpu 0" in caught.value.hint
    assert not starter.report.ready
    # The way out that the hint names.
    assert starter.start("-m", "/none.gguf", require_gpu=True, min_gpu_share=0) == 0
    assert starter.report.verdict is Verdict.UNKNOWN


def test_N10_a_socket_that_a_killed_server_left_is_taken_over(
    data: Path, starter: Starter, tmp_path: Path
) -> None:
    install_stand_in(data, serve=("serve",))
    path = tmp_path / "s.sock"
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
        assert starter.start("--host", str(path), require_gpu=True, min_gpu_share=0) == 0
        assert starter.report.ready
        path.unlink(missing_ok=True)


LEFT = b'#!/bin/sh\nfor each in *.sock; do echo "left $each"; done\n'


@pytest.mark.parametrize(
    ("host", "variable"),
    [
        ("s.sock", False),
        ("./s.sock", False),
        ("FOLDER/s.sock", False),
        ("s.sock,t.sock", False),
        ("127.0.0.1,s.sock,t.sock", False),
        ("t.sock, s.sock", False),
        ("s.sock", True),
        ("s.sock,t.sock", True),
    ],
)
def test_N10_a_first_start_takes_over_dead_sockets(
    host: str, variable: bool, data: Path, tmp_path: Path
) -> None:
    install(Store(data), files={**FILES, "llama-server": LEFT})
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    for name in ("s.sock", "t.sock", "other.sock"):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(folder / name))
    host = host.replace("FOLDER", str(folder))
    env = environment(data.parent, **({"LLAMA_ARG_HOST": host} if variable else {}))
    words = () if variable else ("--host", host)
    done = run_program("serve", "--exec", "--", *words, env=env, cwd=folder)
    assert done.code == 0, done.stderr
    stays = {"other.sock", *(() if "t.sock" in host else ("t.sock",))}
    assert {line.removeprefix("left ") for line in done.stdout.split("\n") if line} == stays


def test_N10_a_socket_at_which_another_program_listens_is_named(
    data: Path, starter: Starter, tmp_path: Path
) -> None:
    install_stand_in(data, serve=("exit 1",))
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(LaunchError, match=r"nothing can listen on .*s\.sock: it is in use"):
            starter.start("--host", f"{tmp_path}/other.sock,{path}")
        assert path.exists()


def test_a_router_is_not_accused_before_it_has_a_model(data: Path, starter: Starter) -> None:
    """It refuses a request that names no model, and its children compute later."""
    install_stand_in(data, files=PLUGIN, serve=("map llama-server", "refuse 400 400", "listen"))
    assert starter.start("--models-dir", "/models", require_gpu=True) == 0
    assert starter.report.verdict is Verdict.UNKNOWN


def test_no_request_is_made_where_the_setting_is_off(data: Path, starter: Starter) -> None:
    install_stand_in(data, serve=("die", "listen"))
    starter.canary = False
    assert starter.start("-m", "/none.gguf") == 0
    signs = {sign.name: sign.evidence for sign in starter.report.signals}
    assert signs["engines"] == "no canary request: llm.canary is off"


NO_CODE = "CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("said", "error", "cause"),
    [
        (NO_CODE, BackendFailed, "the build has no code for this GPU's architecture"),
        ("CUDA error: out of memory", LaunchError, "memory"),
        ("", LaunchError, "the server crashed (SIGABRT)"),
    ],
    ids=["no-code", "out-of-memory", "silence"],
)
def test_a_server_that_ends_at_the_first_request_did_not_start(
    said: str,
    error: type[LaunchError],
    cause: str,
    data: Path,
    starter: Starter,
    tmp_path: Path,
) -> None:
    """Its log has said that it listens."""
    install_stand_in(data, serve=(f"die {said}", "listen"))
    model = layered_model(tmp_path / "model.gguf", layers=1, size=4096)
    with pytest.raises(LaunchError, match=re.escape(cause)) as caught:
        starter.start("-m", str(model))
    assert type(caught.value) is error
    assert "it was ended by SIGABRT" in caught.value.facts
    assert not any(report.ready for report in starter.reports)


PARTLY = (
    "err load_tensors: offloaded 10/33 layers to GPU",
    "err load_tensors:      Vulkan0 model buffer size =  3000.00 MiB",
    "err load_tensors:   CPU_Mapped model buffer size =  7000.00 MiB",
    "listen",
)


@pytest.mark.parametrize(
    ("words", "share", "kept"),
    [
        ((), None, False),
        (("-ngl", "10"), None, True),
        (("--cpu-moe",), None, True),
        ((), 0.25, True),
        (("-ngl", "10"), 0.5, False),
    ],
)
def test_a_part_of_a_model_is_told_and_must_be_what_was_asked_for(
    words: tuple[str, ...], share: float | None, kept: bool, data: Path, starter: Starter
) -> None:
    model = layered_model(data.parent / "model.gguf", layers=32, size=10_000 << 20)
    install_stand_in(data, serve=PARTLY)
    words = ("-m", str(model), *words)
    if kept:
        assert starter.start(*words, require_gpu=True, min_gpu_share=share) == 0
    else:
        with pytest.raises(NotOnGpu, match="less of the model is on the GPU") as caught:
            starter.start(*words, require_gpu=True, min_gpu_share=share)
        assert "layers: offloaded 10/33 layers to GPU" in caught.value.facts
        # The hint's own number allows this server.
        allowed = float(caught.value.hint.split()[-1])
        assert starter.start(*words, require_gpu=True, min_gpu_share=allowed) == 0
    assert starter.report.verdict is Verdict.PARTLY
    assert starter.report.told_share == "29 % of 10.5 GB on Vulkan0"
    assert starter.notes[-1].endswith("selected=vulkan gpu=[29 % of 10.5 GB on Vulkan0]")


def test_a_server_on_the_processor_is_one_warning_without_require_gpu(
    data: Path, starter: Starter
) -> None:
    install_stand_in(data, files=PLUGIN, serve=(*SICK["plugin-dropped"], "listen"))
    assert starter.start() == 0
    (warning,) = (note for note in starter.notes if note.startswith("warning"))
    assert "does not run on the GPU" in warning
    assert "not mapped: libggml-vulkan.so" in warning
    # The GPU may be gone: the next start asks the build again.
    assert json.loads((data / "state" / "drivers.json").read_text())["devices"] is None


def test_a_start_for_the_processor_is_not_warned(data: Path, starter: Starter) -> None:
    install_stand_in(data, files=PLUGIN, serve=(*SICK["plugin-dropped"], "listen"))
    assert starter.start("-ngl", "0") == 0
    assert starter.report.verdict is Verdict.ON_CPU
    assert not [note for note in starter.notes if note.startswith("warning")]
    # Not SilentCpu, which leads to the next variant: that would get the same arguments.
    with pytest.raises(NotOnGpu, match="arguments prevent its use") as caught:
        starter.start("-ngl", "0", require_gpu=True)
    assert caught.value.facts == ("-ngl 0",)


CONTRADICTIONS = {
    "none": NO_DEVICE_STEPS,
    "nothing-after-the-heading": ("out Available devices:",),
    "another-backend": ("out Available devices:", "out   CUDA0: NVIDIA H200"),
}


@pytest.mark.parametrize("devices", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_list_without_the_gpu_ends_a_start_that_requires_it(
    devices: tuple[str, ...], data: Path, starter: Starter
) -> None:
    install_stand_in(data, devices=devices, serve=("err it was started", "listen"))
    with pytest.raises(SilentCpu, match="would run on the CPU: it lists") as caught:
        starter.start(require_gpu=True)
    assert caught.value.facts, "what the drivers say"
    assert starter.reports == []


@pytest.mark.parametrize("devices", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_list_without_the_gpu_is_one_warning_and_the_server_runs(
    devices: tuple[str, ...], data: Path, starter: Starter, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would refuse to start with the device that it had when it was installed."""
    install_stand_in(data, device="Vulkan0", devices=devices, serve=("dump", "listen"))
    assert starter.start() == 0
    assert "arg --device" not in capfd.readouterr().out
    (warning,) = (note for note in starter.notes if note.startswith("warning"))
    assert "would run on the CPU: it lists" in warning


ODD_LISTS = {
    "silence": (),
    "another-program": ("out usage: llama-server [options]",),
    "an-error": ("err boom", "exit 3"),
    "a-crash": ("kill 11",),
}


@pytest.mark.parametrize("devices", ODD_LISTS.values(), ids=ODD_LISTS)
def test_an_unreadable_list_gives_no_warning(
    devices: tuple[str, ...], data: Path, starter: Starter
) -> None:
    install_stand_in(data, devices=devices, serve=(*recorded("b10434-gpu"), "listen"))
    assert starter.start(require_gpu=True) == 0
    assert starter.report.verdict is Verdict.ON_GPU
    (warning,) = (note for note in starter.notes if note.startswith("warning"))
    assert "devices" in warning


def test_a_hanging_list_gives_no_warning(
    data: Path, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tsuku_llm.launch.run.gate.GATE_LIMIT", 0.5)
    installed = install_stand_in(data, devices=("hang",))
    memory = StateNotes(data / "state", ("now",))
    check = check_devices(build_of(installed), installed.id, memory, starter.environ)
    assert (check.devices, check.problem) == (None, None)
    assert "a driver may hang" in check.complaint


def test_a_build_for_the_processor_is_not_asked_for_devices(data: Path, starter: Starter) -> None:
    install_stand_in(data, backend="cpu", devices=("kill 11",))
    assert starter.start() == 0
    assert (starter.report.verdict, starter.report.backend) == (Verdict.ON_CPU, "cpu")
    assert starter.notes[1:] == ["requested=auto detected=[vulkan,cpu] selected=cpu"]


# --- the device that is handed over, and what is remembered of the list ----------------------


@pytest.mark.parametrize("device", ["Vulkan0", "Vulkan7", None])
def test_only_a_listed_device_is_passed(
    device: str | None, data: Path, starter: Starter, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server refuses a device that it does not know, whatever the receipt has."""
    install_stand_in(data, device=device, serve=("dump", "listen"))
    assert starter.start() == 0
    given = [line[4:] for line in capfd.readouterr().out.splitlines() if line.startswith("arg ")]
    assert given[1:] == ["--device", "Vulkan0", "--port", "0"]


def test_a_list_is_remembered_until_the_drivers_change(data: Path, starter: Starter) -> None:
    installed = install_stand_in(data, devices=VULKAN_STEPS)
    build = build_of(installed)
    first, other = (
        StateNotes(data / "state", ("driver 1",)),
        StateNotes(data / "state", ("driver 2",)),
    )
    asked = check_devices(build, installed.id, first, starter.environ)
    assert asked.devices
    (installed.tree / "llama-server").unlink()  # asking now gives no answer
    recalled = check_devices(build, installed.id, first, starter.environ)
    assert recalled == asked._replace(recalled=True)
    assert check_devices(build, installed.id, other, starter.environ).devices is None
    assert check_devices(build, "another", first, starter.environ).devices is None
    unknown = StateNotes(data / "state", None)
    assert check_devices(build, installed.id, unknown, starter.environ).devices is None


def test_X19_a_remembered_list_keeps_no_promise(data: Path, starter: Starter) -> None:
    """The driver is lost without a trace: same boot, same files, same environment."""
    install_stand_in(data, devices=(VULKAN_STEPS[0], "need GPU", *VULKAN_STEPS[1:]))
    starter.environ = {**starter.environ, "GPU": "1"}
    assert starter.start() == 0
    starter.environ = {name: value for name, value in starter.environ.items() if name != "GPU"}
    assert starter.start() == 0
    with pytest.raises(SilentCpu, match="would run on the CPU"):
        starter.start(require_gpu=True)
    with pytest.raises(SilentCpu, match="would run on the CPU"):
        starter.start(require_gpu=True, become=True)


def test_a_list_without_devices_is_never_remembered(data: Path, starter: Starter) -> None:
    installed = install_stand_in(data, devices=NO_DEVICE_STEPS)
    memory = StateNotes(data / "state", ("driver 1",))
    assert check_devices(build_of(installed), installed.id, memory, starter.environ).problem
    assert memory.listed(installed.id) is None


# Variables of drivers would change the fingerprint.
LISTED = ("out Available devices:", "need STAND_IN_GPU", "out   Vulkan0: NVIDIA H200")


def test_a_gpu_that_is_lost_without_a_sign_is_found_by_the_failed_start(
    data: Path, starter: Starter, capfd: pytest.CaptureFixture[str]
) -> None:
    """The remembered list still has it; the server does not, and refuses its ``--device``."""
    steps = ("device STAND_IN_GPU", "dump", "listen")
    install_stand_in(data, device="Vulkan0", devices=LISTED, serve=steps)
    without = starter.environ
    starter.environ = {**without, "STAND_IN_GPU": "1"}
    assert starter.start() == 0
    assert "arg --device" in capfd.readouterr().out
    starter.environ = without
    assert starter.start() == 0
    told = capfd.readouterr()
    assert "arg --device" not in told.out
    assert told.err.count("invalid device") == 1
    (warning,) = (note for note in starter.notes if note.startswith("warning"))
    assert "would run on the CPU: it lists no device" in warning


def test_a_gpu_that_is_lost_without_a_sign_ends_a_start_that_requires_it(
    data: Path, starter: Starter
) -> None:
    install_stand_in(
        data, device="Vulkan0", devices=LISTED, serve=("device STAND_IN_GPU", "listen")
    )
    without = starter.environ
    starter.environ = {**without, "STAND_IN_GPU": "1"}
    # 0: the stand-in shows no GPU.
    assert starter.start(require_gpu=True, min_gpu_share=0) == 0
    starter.environ = without
    with pytest.raises(SilentCpu, match="would run on the CPU: it lists no device"):
        starter.start(require_gpu=True)


def test_a_start_that_fails_with_its_gpu_in_place_is_not_repeated(
    data: Path, starter: Starter, capfd: pytest.CaptureFixture[str]
) -> None:
    lost = ("err vk::Queue::submit: ErrorDeviceLost", "exit 1")
    install_stand_in(data, device="Vulkan0", serve=lost)
    for _ in range(2):  # with a new list, and with a remembered one
        with pytest.raises(BackendFailed):
            starter.start()
        assert capfd.readouterr().err.count("ErrorDeviceLost") == 1


def test_a_start_that_was_given_up_is_not_made_again(data: Path, starter: Starter) -> None:
    """The starting command has told the user, and waits no longer."""
    given_up: list[int] = []

    def give_up(pid: int, _log: int) -> None:
        given_up.append(pid)
        raise NoProgress("it hangs")

    starter.on_loading = give_up
    install_stand_in(data, device="Vulkan0", devices=LISTED, serve=("hang",))
    without = starter.environ
    # The second one has a remembered list, which is wrong by now.
    for environ in ({**without, "STAND_IN_GPU": "1"}, without):
        starter.environ = environ
        with pytest.raises(NoProgress):
            starter.start()
    assert len(given_up) == 2


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"[]",
        b"{",
        *(
            json.dumps(
                {
                    "format": 1,
                    "drivers": ["d"],
                    "devices": {"version": "v", "devices": [junk], "given": {}},
                    "failures": [],
                }
            ).encode()
            for junk in (1, {"x": 1})
        ),
    ],
)
def test_a_damaged_note_is_ignored(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "drivers.json").write_bytes(junk)
    memory = StateNotes(tmp_path, ("d",))
    assert memory.listed("v") is None
    assert memory.failure("v") is None


# --- what the tree is, from the check to the moment when all is loaded ------------------------


def test_X05_a_change_between_check_and_start_ends_the_server(data: Path, starter: Starter) -> None:
    installed = install_stand_in(data, backend="cpu", files=PLUGIN)
    starter.on_note = lambda: spoil(installed.tree)
    with pytest.raises(TamperedInstall):
        starter.start()
    assert not starter.report.ready


def spoil(tree: Path) -> None:
    with (tree / "libggml-cpu.so").open("r+b") as file:
        file.write(b"!")


BECOME = """
import sys
from pathlib import Path
from support.servers import Starter
from steps.test_start import spoil
tree, data = map(Path, sys.argv[1:])
Starter(data, on_note=lambda: spoil(tree)).start(become=True)
"""


def test_X05_a_change_between_check_and_exec_is_not_run(data: Path) -> None:
    installed = install_stand_in(data, backend="cpu", files=PLUGIN, serve=("err it ran",))
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    line = [sys.executable, "-c", BECOME, installed.tree, data]
    ended = subprocess.run(line, env={**os.environ, **paths}, check=False, capture_output=True)
    assert b"TamperedInstall" in ended.stderr
    assert b"it ran" not in ended.stderr


def test_X05_a_change_while_the_server_loads_ends_it(data: Path, starter: Starter) -> None:
    install_stand_in(data, backend="cpu", files=PLUGIN, serve=("write libggml-cpu.so", "listen"))
    with pytest.raises(TamperedInstall) as caught:
        starter.start()
    assert caught.value.facts == ("content changed: libggml-cpu.so",)


# --- starts that fail -----------------------------------------------------------------------


def failing(row: Row) -> tuple[str, ...]:
    """Return the steps of a server that ends with this message."""
    lines = tuple(f"err {line}" for line in row.tail.splitlines())
    return (*lines, f"kill {-row.code}" if row.code < 0 else f"exit {row.code}")


PLAYED = one_of_each(row for row in ROWS if row.code <= 255)


@pytest.mark.parametrize("row", PLAYED, ids=lambda row: row.slug)
def test_X14_a_server_that_fails_as_real_ones_do_is_explained(
    row: Row, data: Path, starter: Starter
) -> None:
    """With any list of devices before: one cause, the facts, one fix, the override."""
    installed = install_stand_in(data, serve=failing(row))
    with pytest.raises(LaunchError) as caught:
        starter.start()
    error = caught.value
    # Another build may be chosen now, so a bare "install --force" need not mend this one.
    assert "install --force" not in error.hint.replace(installed.receipt.reinstall, "")
    assert row.named in error.message
    assert error.exit_code == 7
    assert error.facts[-1] == f"it {ending(row.code)}"
    assert error.hint
    # Another variant is started only for the backend's own fault.
    assert isinstance(error, BackendFailed) == (row.fault == "backend")


def test_a_failure_of_the_backend_is_one_that_another_variant_may_not_have(
    data: Path, starter: Starter
) -> None:
    install_stand_in(data, serve=("err vk::Queue::submit: ErrorDeviceLost", "exit 1"))
    with pytest.raises(BackendFailed, match="device lost"):
        starter.start()


def test_a_failure_of_anything_else_is_not_blamed_on_the_backend(
    data: Path, starter: Starter
) -> None:
    said = "err gguf_init_from_file: failed to open GGUF file 'x.gguf' (No such file or directory)"
    install_stand_in(data, serve=(said, "exit 1"))
    with pytest.raises(LaunchError, match=r"x\.gguf does not exist") as caught:
        starter.start()
    assert type(caught.value) is LaunchError


def test_an_unknown_failure_ends_with_our_code_and_the_servers_own_among_the_facts(
    data: Path, starter: Starter
) -> None:
    install_stand_in(data, serve=("err starting", "err the flux is open", "exit 42"))
    with pytest.raises(LaunchError, match="does not know why") as caught:
        starter.start()
    assert type(caught.value) is LaunchError
    assert caught.value.exit_code == 7
    assert caught.value.facts == ("starting", "the flux is open", "it ended with exit code 42")


def test_an_end_with_code_0_before_it_served_is_a_failure(data: Path, starter: Starter) -> None:
    install_stand_in(data, serve=("err bye", "exit 0"))
    with pytest.raises(LaunchError) as caught:
        starter.start()
    assert caught.value.facts == ("bye", "it ended with exit code 0")


@pytest.mark.parametrize("asked", ["--help", "--version", "--list-devices"])
def test_an_answer_that_was_asked_for_is_no_failure(
    asked: str, data: Path, starter: Starter
) -> None:
    install_stand_in(data, backend="cpu", serve=("out usage", "exit 0"))
    assert starter.start(asked) == 0


def test_a_refused_certificate_is_not_taken_for_a_taken_port(data: Path, starter: Starter) -> None:
    """The server's words are the same for both: nothing can be bound."""
    port = str(free_port())
    said = f"err start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}"
    install_stand_in(data, backend="cpu", serve=(said, "exit 1"))
    with pytest.raises(LaunchError, match="certificate"):
        starter.start("--ssl-cert-file", "no.pem", "--ssl-key-file", "no.key", "--port", port)
    with pytest.raises(LaunchError, match="it is in use or not allowed"):
        starter.start("--port", port)


@pytest.mark.parametrize("said", ["", "couldn't bind HTTP server socket, hostname: h, port: 1"])
@pytest.mark.parametrize(
    ("host", "reason", "hint"),
    [
        ("127.0.0.1", "it is in use", "stop what uses it, or choose another with --port"),
        ("192.0.2.9", "the address is not this machine's", "--host, such as 127.0.0.1"),
        ("no-such-host.invalid", "the name does not resolve here", "--host, such as 127.0.0.1"),
    ],
)
def test_the_system_says_why_nothing_can_listen(
    host: str, reason: str, hint: str, said: str, data: Path, starter: Starter
) -> None:
    """The reason is the one of bind(2), whatever was left of the server's log.

    The real b10068 has one sentence for a port of nginx, an address of another machine and a
    name that does not resolve, and now and then only "0.00.127.286 E " is left of it. A network
    that answers for foreign addresses made "1.2.3.4" a port in use.
    """
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = str(foreign.getsockname()[1])
        serve = (f"err 0.00.127.286 E {said}", "exit 1")
        install_stand_in(data, backend="cpu", serve=serve)
        with pytest.raises(LaunchError) as caught:
            starter.start("--host", host, "--port", port)
    told = f"the server did not start: nothing can listen on {host} port {port}: {reason}"
    assert str(caught.value) == told
    assert caught.value.hint.endswith(hint)
    holder = f"(process {os.getpid()}) listens there"
    assert any(fact.endswith(holder) for fact in caught.value.facts) is (host == "127.0.0.1")


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() == 0, reason="a privileged port is a user's on Linux"
)
def test_a_port_that_only_root_may_have_is_told(data: Path, starter: Starter) -> None:
    install_stand_in(data, backend="cpu", serve=("exit 1",))
    with pytest.raises(LaunchError, match="the system does not allow it to this user") as caught:
        starter.start("--port", "81")
    assert caught.value.hint == "choose another with --port; one below 1024 may be root's alone"


def test_a_foreign_program_is_no_cause_beside_a_complaint(data: Path, starter: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = str(foreign.getsockname()[1])
        install_stand_in(data, backend="cpu", serve=("err an unknown error", "exit 1"))
        with pytest.raises(LaunchError, match="does not know"):
            starter.start("--port", port)
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = str(foreign.getsockname()[1])
        install_stand_in(data, release="b101", backend="cpu", serve=("exit 1",))
        with pytest.raises(LaunchError, match="it is in use"):
            starter.start("--port", port)
    with socket.socket(socket.AF_UNIX) as unix:
        at = str(data.parent / "a.sock")
        unix.bind(at)
        unix.listen()
        with pytest.raises(LaunchError, match=f"listen on {at}: it is in use") as caught:
            starter.start("--host", at)
    assert caught.value.hint.endswith("choose another with --host")
