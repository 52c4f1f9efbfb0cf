"""``--require-gpu`` with real processes on a machine with a card: who keeps it, and who does not.

The stand-ins behave as servers in reports do; the card's library is a stub that counts what a test
tells it. What a log could show is in ``test_start``: these servers say nothing of the GPU.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.builds import VULKAN_STEPS
from support.gguf_files import layered_model
from support.gpu_machine import OPENED, GpuMachine
from support.servers import Starter, install_stand_in

from tsuku_llm.ground.errors import NotOnGpu, SilentCpu

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

GIB = 1 << 30
TEN = 10 * GIB
PLUGIN = {"libggml-cuda.so": b"plugin", "libggml-cpu.so": b"plugin"}
CUDA_STEPS = (VULKAN_STEPS[0], "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")
LOADED = ("map llama-server", "map libggml-cpu.so", "map libggml-cuda.so")
NO_MODEL = "no model"
FETCHED = ("-hf", "somebody/model")
ON_A_CARD = (*LOADED, OPENED)

# The steps of a server, what the driver counts, and the server's arguments.
Case = tuple[tuple[str, ...], dict[str, object], tuple[str, ...]]

ON_THE_CPU: dict[str, Case] = {
    "X21-no-memory": (ON_A_CARD, {"nvml_used": 0}, ()),
    "X21-a-bare-context": (ON_A_CARD, {"nvml_used": 300 << 20}, ()),
    "X21-no-memory-in-a-child": (("child", *ON_A_CARD), {"nvml_used": 0}, ()),
    "X20-plugin-not-mapped": ((*LOADED[:2], OPENED), {"nvmlInit_v2": 9}, ()),
    "X20-plugin-not-mapped-in-a-child": (
        ("child", *LOADED[:2], OPENED),
        {"nvmlInit_v2": 9},
        (),
    ),
    # A router has the backend, and the child that computes has not.
    "X20-plugin-not-mapped-in-a-router's-child": (
        ("map libggml-cuda.so", "refuse 400 400", "child", "unmap libggml-cuda.so", *LOADED[:2]),
        {"nvmlInit_v2": 9},
        (NO_MODEL, "--models-dir", "/models"),
    ),
    "plugin-and-no-node": (LOADED, {"nvmlInit_v2": 9}, ()),
    "X22-no-layers": (("err offloaded 0/33 layers to GPU",), {"nvmlInit_v2": 9}, ()),
    "X23-failed-to-initialize": (
        (*ON_A_CARD, "err ggml_cuda_init: failed to initialize CUDA: unknown error"),
        {"nvmlInit_v2": 9},
        (),
    ),
    "ten-layers-and-no-memory": (ON_A_CARD, {"nvml_used": 0}, ("-ngl", "10")),
}

HEALTHY: dict[str, tuple[Case, str, str]] = {
    "quiet": ((ON_A_CARD, {"nvml_used": 11 * GIB}, ()), "on_gpu", "100 % of 10.7 GB on CUDA0"),
    "json-log": (
        (('err {"tid": "1", "level": "INFO"}', *ON_A_CARD), {"nvml_used": 11 * GIB}, ()),
        "on_gpu",
        "100 % of 10.7 GB on CUDA0",
    ),
    # The driver sees the work of one token no better than its memory for two layers.
    "seen-at-a-later-try": (
        (
            ("work WORKED", "work-from 4", *ON_A_CARD),
            {"nvml_used": 636 << 20, "nvml_sm": 30},
            ("-ngl", "2"),
        ),
        "partly",
        "6 % of 10.7 GB on CUDA0",
    ),
    "engines-alone": (
        (("work WORKED", *ON_A_CARD), {"nvml_process": (1 << 64) - 1, "nvml_sm": 30}, ()),
        "on_gpu",
        "100 % of 10.7 GB on CUDA0",
    ),
    "ten-layers": (
        (("mapped MODEL 7000000000", *ON_A_CARD), {"nvml_used": 4 * GIB}, ("-ngl", "10")),
        "partly",
        "34 % of 10.7 GB on CUDA0",
    ),
    "fetched": (
        (("mapped MODEL 90000000", *ON_A_CARD), {"nvml_used": 11 * GIB}, (NO_MODEL, *FETCHED)),
        "on_gpu",
        "100 % of 10.7 GB on CUDA0",
    ),
    "cpu-moe": ((ON_A_CARD, {"nvml_used": 3 * GIB}, ("--cpu-moe",)), "partly", "29 % of"),
    "one-device": (
        (ON_A_CARD, {"nvml_count": 2, "nvml_used": 6 * GIB}, ("--device", "CUDA0")),
        "on_gpu",
        "100 % of 10.7 GB",
    ),
    "embeddings": (
        (("refuse 501", *ON_A_CARD), {"nvml_used": 11 * GIB}, ("--embedding",)),
        "on_gpu",
        "100 % of 10.7 GB",
    ),
    "rpc": ((LOADED, {"nvml_used": 0}, ("--rpc", "10.0.0.2:50052")), "unknown", ""),
    "router": (
        (
            ("map libggml-cuda.so", "refuse 400 400", "child", *ON_A_CARD),
            {"nvml_used": 11 * GIB},
            (NO_MODEL, "--models-dir", "/models"),
        ),
        "on_gpu",
        "",
    ),
    "router-without-a-model": (
        (
            ("refuse 400 400", *LOADED[:1]),
            {"nvml_used": 0},
            (NO_MODEL, "--models-dir", "/models"),
        ),
        "unknown",
        "",
    ),
    "wrapper": ((("child", *ON_A_CARD), {"nvml_used": 11 * GIB}, ()), "on_gpu", "100 %"),
}


DRIVER = """
import json, os, sys
from pathlib import Path
from support.servers import Starter
from tsuku_llm.ground.errors import TsukuError
data, share, *words = sys.argv[1:]
starter, error = Starter(Path(data), dict(os.environ)), None
try:
    starter.start(*words, require_gpu=True, min_gpu_share=json.loads(share))
except TsukuError as raised:
    error = [raised.exit_code, raised.slug, raised.message, raised.facts, raised.hint]
report = starter.report if starter.reports else None
told = report and [report.ready, report.verdict, report.told_share, report.memory_used]
print(json.dumps({"error": error, "told": told, "notes": starter.notes}))
"""


def served(folder: Path, case: Case, *, min_gpu_share: float | None = None) -> dict[str, Any]:
    """Serve a 10 GB model on the machine until it was judged; return what is known then."""
    steps, counts, words = case
    machine = GpuMachine(folder)
    model = layered_model(folder / "model.gguf", layers=32, size=TEN)
    worked = folder / "worked"
    names = {"MODEL": str(model), "WORKED": str(worked)}
    serve = [" ".join(names.get(word, word) for word in step.split(" ")) for step in steps]
    data = folder / "llm"
    data.mkdir(mode=0o755)
    install_stand_in(
        data, backend="cuda", files=PLUGIN, devices=CUDA_STEPS, serve=(*serve, "listen")
    )
    given = words[1:] if words[:1] == (NO_MODEL,) else ("-m", str(model), *words)
    line = [sys.executable, "-c", DRIVER, str(data), json.dumps(min_gpu_share), *given]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = machine.run(line, env=env, **{"nvml_worked": worked, **counts})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("case", ON_THE_CPU.values(), ids=ON_THE_CPU)
def test_a_server_on_the_cpu_ends_with_8(case: Case, tmp_path: Path) -> None:
    found = served(tmp_path, case)
    assert found["error"], found
    code, slug, message, facts, _ = found["error"]
    assert (code, slug) == (8, "silent-cpu"), found
    assert "does not run on the GPU" in message
    assert facts


@pytest.mark.parametrize(("case", "verdict", "share"), HEALTHY.values(), ids=HEALTHY)
def test_X24_a_healthy_server_keeps_the_promise(
    case: Case, verdict: str, share: str, tmp_path: Path
) -> None:
    found = served(tmp_path, case)
    assert found["error"] is None, found
    ready, decided, told, _ = found["told"]
    assert (ready, decided) == (True, verdict), found
    assert told.startswith(share)
    assert not [note for note in found["notes"] if note.startswith("warning")]


PARTLY: dict[str, Case] = {
    "memory": (ON_A_CARD, {"nvml_used": 5 * GIB}, ()),
    # The context fills the card: only the model's files that stay mapped tell the truth.
    "mapped": (("mapped MODEL 6000000000", *ON_A_CARD), {"nvml_used": 11 * GIB}, ()),
    "fewer-than-asked": (ON_A_CARD, {"nvml_used": 2 * GIB}, ("-ngl", "30")),
    # The server has fetched the model itself: its file is known from what is mapped.
    "fetched": (
        ("mapped MODEL 6000000000", *ON_A_CARD),
        {"nvml_used": 5 * GIB},
        (NO_MODEL, *FETCHED),
    ),
}


@pytest.mark.parametrize("case", PARTLY.values(), ids=PARTLY)
def test_a_part_that_was_not_asked_for_breaks_the_promise(case: Case, tmp_path: Path) -> None:
    found = served(tmp_path, case)
    assert found["error"], found
    code, slug, message, _, hint = found["error"]
    assert (code, slug) == (8, "not-on-gpu"), found
    assert "less of the model is on the GPU than was asked for" in message
    assert "--require-gpu 0." in hint


@pytest.mark.parametrize("words", [("-ngl", "10"), ("--cpu-moe",)])
def test_the_argument_that_keeps_a_part_in_main_memory_is_named(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    case: Case = (ON_A_CARD, {"nvml_used": 4 * GIB}, words)
    found = served(tmp_path, case, min_gpu_share=0.9)
    assert found["error"], found
    code, slug, _, _, hint = found["error"]
    assert (code, slug) == (8, "not-on-gpu"), found
    assert hint.startswith(f"leave out {' '.join(words)}; ")


def test_what_a_promise_waits_for_is_told_once_and_only_if_it_takes_long(tmp_path: Path) -> None:
    data, answers = tmp_path / "llm", tmp_path / "answers"
    data.mkdir(mode=0o755)
    install_stand_in(data, devices=VULKAN_STEPS, serve=(f"until-canary {answers}", "listen"))
    starter = Starter(data, dict(os.environ), warm_up=False)

    def on_note() -> None:
        # The server answers once its user knows what is waited for.
        if any("with --require-gpu the server is ready when" in each for each in starter.notes):
            answers.touch()

    starter.on_note = on_note
    for times in (1, 0):
        starter.notes.clear()
        with pytest.raises((NotOnGpu, SilentCpu)):
            starter.start("-m", str(tmp_path / "model.gguf"), require_gpu=True)
        assert sum("within 40 seconds" in each for each in starter.notes) == times


def test_X24_work_too_short_for_the_driver_is_no_proof_of_the_cpu(tmp_path: Path) -> None:
    """NVIDIA's driver sees less than 3 ms of work as none, and here it tells no memory either."""
    found = served(tmp_path, (ON_A_CARD, {"nvml_process": (1 << 64) - 1, "nvml_sm": 0}, ()))
    assert found["error"], found
    code, slug, _, facts, hint = found["error"]
    assert (code, slug) == (8, "not-on-gpu"), found
    assert "engines: no driver shows any work of the GPU's engines for this process" in facts
    assert "device-memory: 0 bytes more of the GPU's memory are used since the start" in facts
    assert "--require-gpu 0" in hint
