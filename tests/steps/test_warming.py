"""The warm-up of a start: when it is made, what the user hears, and what a later start does."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.gguf_files import layered_model
from support.servers import Starter, install_stand_in

from tsuku_llm.ground.errors import BackendFailed, LaunchError
from tsuku_llm.instances.loading import LoadSample
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.driver_caches import kept_or_nothing, may_compile
from tsuku_llm.launch.plan.planning import Build, LaunchPlan
from tsuku_llm.launch.plan.report import Verdict
from tsuku_llm.launch.run.warm_up import WarmedUp
from tsuku_llm.steps.drivers.caches import BuildCaches
from tsuku_llm.steps.drivers.device_check import Check, has_machine_code
from tsuku_llm.steps.drivers.warming import Warming, compiled_code
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.servers.watching import Listener, watch_over

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "llm"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "drivers"


@pytest.fixture
def starter(data: Path, tmp_path: Path) -> Starter:
    return Starter(data, {"PATH": os.environ["PATH"]}, cache=tmp_path / "cache")


def noted(root: Path) -> list[str]:
    file = root / "warm.json"
    return list(json.loads(file.read_bytes())["warm"]) if file.exists() else []


def keeps(root: Path) -> str:
    """The step of a driver that keeps something at the first result."""
    return f"work {root / 'mesa' / 'shader'}"


def test_the_first_start_of_a_model_is_warmed_up_and_noted(
    data: Path, root: Path, starter: Starter, tmp_path: Path
) -> None:
    install_stand_in(data, serve=(keeps(root), "listen"))
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    assert starter.start("-m", str(model)) == 0
    first = noted(root)
    assert len(first) == 1
    assert (root / "warm.json").stat().st_mode & 0o777 == 0o600
    # Another port is the same server.
    assert starter.start("-m", str(model), "--host", "127.0.0.1") == 0
    assert noted(root) == first
    # Another cache type needs other code; so does another model in the same file.
    starter.start("-m", str(model), "-ctk", "q8_0")
    assert len(noted(root)) == 2
    model.write_bytes(b"GGUF of another quantisation")
    starter.start("-m", str(model))
    assert len(noted(root)) == 3
    assert not [note for note in starter.notes if "compile" in note]


def test_a_start_is_warmed_up_again_if_the_driver_kept_nothing(
    data: Path, root: Path, starter: Starter
) -> None:
    install_stand_in(data, serve=("listen",))
    starter.start("-m", "/none.gguf")
    assert root.is_dir()
    assert noted(root) == []


def test_no_request_for_a_warm_up_is_made_where_none_is_wanted(
    data: Path, root: Path, starter: Starter
) -> None:
    """A server that would end at any longer prompt serves."""
    install_stand_in(data, serve=(keeps(root), "choke 1 it was asked", "listen"))
    # A router, arguments that keep it from the GPU, and no requests at all.
    starter.start("--models-dir", "/models")
    starter.start("-m", "/none.gguf", "-ngl", "0")
    starter.canary = False
    starter.start("-m", "/none.gguf")
    assert [each.ready for each in starter.reports if each.ready and each.is_judged] == [True] * 3
    assert noted(root) == []


def test_a_server_that_answers_no_prompt_is_asked_for_one_token_only(
    data: Path, root: Path, starter: Starter
) -> None:
    """It serves something else, or wants a key that we do not have."""
    (root / "mesa").mkdir(parents=True)
    (root / "mesa" / "shader").write_bytes(b"of another start")
    for folder in (root.parent, root, root / "mesa"):
        folder.chmod(0o700)
    install_stand_in(data, serve=("refuse 401 401", "choke 1 it was asked", "listen"))
    assert starter.start("-m", "/none.gguf") == 0
    assert noted(root) == []


def test_a_build_for_the_processor_is_not_warmed_up(data: Path, starter: Starter) -> None:
    install_stand_in(data, backend="cpu", serve=("die it was asked", "listen"))
    assert starter.start("-m", "/none.gguf") == 0


def test_the_setting_turns_it_off(data: Path, root: Path, starter: Starter) -> None:
    install_stand_in(data, serve=(keeps(root), "choke 1 it was asked", "listen"))
    starter.warm_up = False
    assert starter.start("-m", "/none.gguf") == 0


def test_a_server_that_computes_on_the_processor_gets_no_longer_prompts(
    data: Path, root: Path, starter: Starter
) -> None:
    plugins = {"libggml-vulkan.so": b"plugin", "libggml-cpu.so": b"plugin"}
    steps = ("map llama-server", "map libggml-cpu.so", keeps(root), "choke 1 asked", "listen")
    install_stand_in(data, files=plugins, serve=steps)
    assert starter.start("-m", "/none.gguf") == 0
    assert starter.report.verdict is Verdict.ON_CPU
    assert noted(root) == []


@pytest.mark.parametrize("tokens", [0, 1, 40, 600])
@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("CUDA error: no kernel image is available", BackendFailed),
        ("ggml_vulkan: Device memory allocation of size 1 failed.", LaunchError),
    ],
    ids=["no-code", "out-of-memory"],
)
def test_a_server_that_ends_at_the_warm_up_did_not_start(
    tokens: int, said: str, error: type[LaunchError], data: Path, starter: Starter
) -> None:
    """Else it would end at the user's first prompt."""
    step = f"choke {tokens} {said}" if tokens else f"die {said}"
    install_stand_in(data, serve=(step, "listen"))
    with pytest.raises(LaunchError, match=r"no code for this GPU|memory") as caught:
        starter.start("-m", "/none.gguf")
    assert type(caught.value) is error
    assert not any(report.ready for report in starter.reports)


class Hearing(Listener):
    """A listener that ends the compiling when it has heard of it, and then the server."""

    def __init__(self, compiled: Path) -> None:
        self.compiled = compiled
        self.heard: list[str] = []

    def on_loading(self, seconds: float, sample: LoadSample) -> None:
        self.heard.append(f"loading for {seconds}: {sample}")

    def on_compiling(self, seconds: float) -> None:
        assert seconds > 0
        self.heard.append("compiling")
        self.compiled.write_bytes(b"")

    def on_ready(self, record: Record) -> None:
        self.heard.append("ready")
        assert record.server is not None
        os.kill(record.server.pid, signal.SIGTERM)


def test_a_server_with_a_name_tells_that_it_compiles_before_it_is_ready(
    data: Path, starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the supervisor of a server leaves the user's folder
    compiled = tmp_path / "compiled"
    install_stand_in(data, serve=(f"until {compiled}", "listen"))
    listener = Hearing(compiled)
    words = ("--port", "0", "-m", "/none.gguf")
    assert watch_over(starter.session(), words, Serving(), listener, own_log=False) == 0
    assert listener.heard == ["compiling", "ready"]


# --- where it is made at all --------------------------------------------------------------


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("backend", ["cpu", "cuda", "vulkan", "rocm", "sycl", "metal"])
@pytest.mark.parametrize("machine_code", [False, True])
@pytest.mark.parametrize("noted", [False, True])
def test_a_start_is_warmed_up_only_where_a_driver_may_compile(
    verdict: Verdict, backend: str, *, machine_code: bool, noted: bool
) -> None:
    """On H100s it cost 2 to 43 s where nothing was compiled, most with a part on the processor."""
    wanted = (
        backend != "cpu"
        and verdict in (Verdict.ON_GPU, Verdict.UNKNOWN)
        and not machine_code
        and not noted
    )
    assert may_compile(backend, verdict, machine_code=machine_code, noted=noted) is wanted


@pytest.mark.parametrize(
    ("backend", "kept", "done"),
    [
        ("vulkan", True, True),
        ("vulkan", False, False),
        ("cuda", True, True),
        ("cuda", False, True),
    ],
)
def test_what_an_earlier_start_left_tells_whether_code_is_compiled(
    backend: str, *, kept: bool, done: bool
) -> None:
    """CUDA's compiler keeps what it makes of PTX: 39 MB on an H200, nothing for machine code."""
    assert kept_or_nothing(backend, kept=kept) is done


def facts(*gpus: dict[str, object]) -> dict[str, object]:
    return {"apis": [{"name": "cuda", "gpus": list(gpus)}]}


H100: dict[str, object] = {"name": "NVIDIA H100", "kind": "discrete", "compute_capability": "9.0"}


@pytest.mark.parametrize(
    ("hardware", "listed", "known"),
    [
        (facts({**H100, "machine_code": True}), ("NVIDIA H100",), True),
        (facts({**H100, "machine_code": True}), ("NVIDIA H100", "NVIDIA H100"), True),
        (facts({**H100, "machine_code": True}), ("NVIDIA H100", "NVIDIA B200"), False),
        (
            facts({**H100, "machine_code": True}, {**H100, "name": "P40", "unusable": True}),
            ("NVIDIA H100", "P40"),
            True,
        ),
        (facts(H100), ("NVIDIA H100",), False),
        (facts({**H100, "machine_code": True}), (), False),
        ({}, ("NVIDIA H100",), False),
    ],
    ids=["one", "two", "a-new-card", "an-unusable-card", "ptx", "none-listed", "an-old-receipt"],
)
def test_the_receipt_knows_for_which_cards_a_build_has_machine_code(
    hardware: dict[str, object], listed: tuple[str, ...], *, known: bool
) -> None:
    devices = tuple(ListedDevice(f"CUDA{at}", name) for at, name in enumerate(listed))
    build = Build(Path("/b"), "llama-server", "cuda")
    assert has_machine_code(Check(build, devices, hardware=hardware)) is known


def test_a_build_with_machine_code_for_the_card_gets_no_longer_prompts(
    data: Path, root: Path, starter: Starter
) -> None:
    """Nor does it need a note of that: the receipt says it."""
    marked = {"name": "NVIDIA H200", "kind": "discrete", "machine_code": True}
    hardware = {"apis": [{"name": "vulkan", "gpus": [marked]}]}
    steps = ("choke 1 it was asked", "listen")
    install_stand_in(data, serve=steps, hardware=hardware)
    assert starter.start("-m", "/none.gguf") == 0
    assert noted(root) == []


def test_a_server_that_computes_partly_on_the_processor_gets_no_longer_prompts(
    data: Path, root: Path, starter: Starter
) -> None:
    said = (
        "err load_tensors: offloaded 10/33 layers to GPU",
        "err load_tensors:      Vulkan0 model buffer size =  3000.00 MiB",
        "err load_tensors:   CPU_Mapped model buffer size =  7000.00 MiB",
    )
    model = layered_model(data.parent / "model.gguf", layers=32, size=10_000 << 20)
    install_stand_in(data, serve=(*said, keeps(root), "choke 2 it was asked", "listen"))
    assert starter.start("-m", str(model)) == 0
    assert starter.report.verdict is Verdict.PARTLY
    # On two H100s each start of such a model was ready 1.9 seconds after the server alone.
    assert len(noted(root)) == 1
    # A second warm-up would be noted again.
    assert starter.start("-m", str(model)) == 0
    assert len(noted(root)) == 1


# --- what it depends on ------------------------------------------------------------------


def planned(*arguments: str, **env: str) -> LaunchPlan:
    words = ("/b/llama-server", "-m", "/none.gguf", *arguments)
    return LaunchPlan(words, Path("/b"), {"A": "1", **env}, "vulkan")


def code(**changes: Any) -> str:
    devices = (ListedDevice("Vulkan0", "x"),)
    given = {"version": "b1-vulkan-1", "drivers": ("boot", "driver 1"), "devices": devices}
    return compiled_code(**{**given, "plan": planned(), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "b2-vulkan-2"},
        {"drivers": ("boot", "driver 2")},
        {"devices": (ListedDevice("Vulkan0", "another card"),)},
        {"devices": (ListedDevice("Vulkan0", "x"), ListedDevice("Vulkan1", "x"))},
        {"plan": planned("-fa", "on")},
        {"plan": planned(LLAMA_ARG_CACHE_TYPE_K="q8_0")},
        {"plan": planned(GGML_VK_DISABLE_COOPMAT="1")},
    ],
    ids=str,
)
def test_what_needs_other_code_is_warmed_up_again(changes: dict[str, object]) -> None:
    assert code(**changes) != code()


@pytest.mark.parametrize(
    "changes",
    [
        {"drivers": ("/proc/sys/kernel/random/boot_id: another", "asleep: 9", "boot", "driver 1")},
        {"drivers": ("boot", "/dev/dri: renderD128", "/dev/nvidiactl", "driver 1")},
        {"devices": (ListedDevice("Vulkan0", "x", 1000, 10),)},
        {"plan": planned("--port", "99", "--host", "::", "--api-key", "secret")},
        {"plan": planned(PATH="/elsewhere", TSUKU_LLM_CANARY="true")},
    ],
    ids=str,
)
def test_a_restart_or_another_address_needs_no_other_code(changes: dict[str, object]) -> None:
    assert code(**changes) == code()


def warming(starter: Starter, root: Path | None) -> Warming:
    return Warming(starter.session().user.note, BuildCaches({}, root=root), "vulkan", code())


def test_the_user_hears_of_a_warm_up_that_lasts(root: Path, starter: Starter) -> None:
    one = warming(starter, root)
    for seconds in (1.0, 2.0, 2.9):
        one.on_waiting(seconds)
    assert starter.notes == []
    for second in range(3, 48):
        one.on_waiting(float(second))
    one.on_warmed(WarmedUp(47.6, "prompts from 512 tokens on take too long here"))
    first, *progress, last = starter.notes
    assert first.startswith("the GPU's driver compiles code for this model")
    assert progress == [f"compiling for {seconds} s" for seconds in (10, 20, 40)]
    assert last == "compiled in 48 seconds (prompts from 512 tokens on take too long here)"


def test_a_damaged_note_is_no_note(root: Path, starter: Starter) -> None:
    (root / "mesa").mkdir(parents=True)
    (root / "mesa" / "shader").write_bytes(b"x")
    for content in (b"", b"{", b"[1]", b'{"warm": 7}', b'{"warm": ["x", 7]}'):
        (root / "warm.json").write_bytes(content)
        assert warming(starter, root).is_needed
    warming(starter, root).on_warmed(WarmedUp(1.0))
    assert not warming(starter, root).is_needed
    # No folder, no note: every start is warmed up.
    assert warming(starter, None).is_needed
    warming(starter, None).on_warmed(WarmedUp(1.0))


def test_a_warm_up_without_an_answer_is_not_noted(root: Path, starter: Starter) -> None:
    (root / "mesa").mkdir(parents=True)
    (root / "mesa" / "shader").write_bytes(b"x")
    warming(starter, root).on_warmed(WarmedUp(1.0, "it broke", unanswered=True))
    assert noted(root) == []


def test_a_cuda_build_that_left_nothing_in_the_cache_is_noted(root: Path, starter: Starter) -> None:
    """It is not known what code a build of one's own has; on H100s each start was warmed up."""
    root.mkdir(parents=True)
    plan = planned()._replace(backend="cuda")
    caches = BuildCaches({}, root)
    for needed in (True, False):
        one = Warming(starter.session().user.note, caches, plan.backend, code(plan=plan))
        assert one.is_needed is needed
        one.on_warmed(WarmedUp(1.0))


def test_only_the_newest_starts_are_noted(root: Path, starter: Starter) -> None:
    (root / "mesa").mkdir(parents=True)
    (root / "mesa" / "shader").write_bytes(b"x")
    for number in range(70):
        caches, each = BuildCaches({}, root=root), code(version=f"b{number}")
        Warming(starter.session().user.note, caches, "vulkan", each).on_warmed(WarmedUp(1.0))
    assert len(noted(root)) == 64
    assert noted(root)[-1] == code(version="b69")
