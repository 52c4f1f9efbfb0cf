"""``status --prometheus``: read back with Prometheus' own parser, and named by its rules."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed
from support.program import environment, run_program

from tsuku_llm.cli.render.services.metrics import text
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.report import FallenBack, GpuHolder, StartReport, Trouble, Verdict

US = Process.of(os.getpid())
assert US
REPORT = StartReport(
    name="gpu",
    release="b11429",
    id="b11429-vulkan-0123456789ab",
    requested="auto",
    detected=("vulkan", "cpu"),
    selected="vulkan",
    supervisor=US.pid,
    pid=US.pid,
    host="127.0.0.1",
    port=8080,
    started_at="2026-11-21T12:00:00Z",
    ready=True,
    backend="vulkan",
    verdict=Verdict.ON_GPU,
    device='Vulkan0: NVIDIA "H200"\\\n',
    driver="NVIDIA 580.159.04",
    memory_total=150_000_000_000,
    memory_used=2_000_000_000,
    layers_offloaded=33,
    layers_total=33,
    model_bytes=8_000_000_000,
    gpu_bytes=8_000_000_000,
    gpu_names=("Vulkan0",),
    fallen_back_from=(FallenBack("cuda-13.4", "no CUDA driver"),),
)
GPU = Record(name="gpu", supervisor=US, host="127.0.0.1", port=8080, server=US, report=REPORT)
UNKNOWN = replace(
    GPU,
    name="unknown",
    report=REPORT._replace(
        verdict=Verdict.UNKNOWN, memory_used=None, gpu_bytes=None, layers_offloaded=None
    ),
)
PARTLY = replace(
    GPU,
    name="partly",
    report=REPORT._replace(
        verdict=Verdict.PARTLY,
        gpu_bytes=4_000_000_000,
        trouble=Trouble("hangs", "the server hangs", "2026-11-21T13:00:00Z"),
        restarts=3,
        holders=(GpuHolder(7, "game", 3_000_000_000), GpuHolder(8, "", 2_000_000_000)),
    ),
)
CPU = replace(
    GPU, name="cpu", report=REPORT._replace(verdict=Verdict.ON_CPU, layers_offloaded=0, gpu_bytes=0)
)
STARTING = Record(name="starting", supervisor=US, host="127.0.0.1", port=1)
ENDED = replace(GPU, name="ended", exit_code=1, idle_timeout=300)
ALL = (GPU, UNKNOWN, PARTLY, CPU, STARTING, ENDED)
STARTED = ("gpu", "unknown", "partly", "cpu", "ended")


def samples(metric: str) -> dict[str, float]:
    """The values of one metric by the server's name."""
    return {
        sample.labels["name"]: sample.value
        for family in parsed(text(ALL))
        for sample in family.samples
        if sample.name == f"tsuku_llm_server_{metric}"
    }


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("up", {**dict.fromkeys(STARTED, 1), "starting": 0, "ended": 0}),
        ("on_gpu", {"gpu": 1, "partly": 1, "cpu": 0, "ended": 1}),
        ("gpu_share_ratio", {"gpu": 1, "partly": 0.5, "cpu": 0, "ended": 1}),
        ("model_bytes", dict.fromkeys(STARTED, 8e9)),
        ("start_time_seconds", dict.fromkeys(STARTED, 1795262400)),
        ("device_memory_bytes", dict.fromkeys(STARTED, 1.5e11)),
        ("device_memory_used_bytes", dict.fromkeys(("gpu", "partly", "cpu", "ended"), 2e9)),
        ("layers", dict.fromkeys(STARTED, 33)),
        ("layers_offloaded", {"gpu": 33, "partly": 33, "cpu": 0, "ended": 33}),
        ("trouble", {**dict.fromkeys(STARTED, 0), "partly": 1}),
        ("restarts", {**dict.fromkeys(STARTED, 0), "partly": 3}),
        ("other_memory_used_bytes", {**dict.fromkeys(STARTED, 0), "partly": 5e9}),
        ("idle_timeout_seconds", {**dict.fromkeys(STARTED, 0), "starting": 0, "ended": 300}),
    ],
)
def test_every_value_is_read_back(metric: str, values: dict[str, float]) -> None:
    assert samples(metric) == values


def test_any_text_can_be_a_label() -> None:
    (info,) = (family for family in parsed(text([GPU])) if family.name == "tsuku_llm_server_info")
    assert info.samples[0].labels == {
        "name": "gpu",
        "state": "running",
        "release": "b11429",
        "id": "b11429-vulkan-0123456789ab",
        "requested": "auto",
        "selected": "vulkan",
        "backend": "vulkan",
        "verdict": "on_gpu",
        "device": 'Vulkan0: NVIDIA "H200"\\\\n',
        "driver": "NVIDIA 580.159.04",
        "fallen_back_from": "cuda-13.4",
        "trouble": "",
    }


def test_the_names_follow_the_rules() -> None:
    """https://prometheus.io/docs/practices/naming/: base units at the end, no type in a name."""
    families = list(parsed(text(ALL)))
    assert len({family.name for family in families}) == len(families) == 14
    for family in families:
        assert re.fullmatch("tsuku_llm_server(_[a-z]+)+", family.name)
        assert family.type == "gauge"
        assert family.documentation.endswith(".")
        unit = re.search("seconds|bytes|ratio", family.name)
        assert unit is None or family.name.endswith(unit[0])
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_gauge"))


def test_the_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    Instances(tmp_path / "llm" / "state").claim(STARTING)
    file = tmp_path / "out" / "tsuku-llm.prom"
    file.parent.mkdir()
    file.write_text("old")
    inode = file.stat().st_ino
    words = ("status", "--prometheus", "--output", str(file))
    done = run_program(*words, env=environment(tmp_path))
    assert (done.code, done.stdout, done.stderr) == (0, "", "")
    assert file.read_text() == text([STARTING])
    assert file.stat().st_ino != inode
    assert list(file.parent.iterdir()) == [file]
    shown = run_program("status", "--prometheus", env=environment(tmp_path))
    assert shown.stdout == text([STARTING])
    told = run_program("status", "--prometheus", "--json", env=environment(tmp_path))
    assert told.document["data"] == {"metrics": text([STARTING])}


def test_a_file_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    words = ("status", "--prometheus", "--output", str(tmp_path / "none" / "x.prom"))
    assert run_program(*words, env=environment(tmp_path)).code == 6
    assert run_program("status", "--output", "x.prom", env=environment(tmp_path)).code == 2
