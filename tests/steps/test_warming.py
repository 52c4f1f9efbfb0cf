"""The warm-up of a start: when it is made, what the user hears, and what a later start does."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.servers import Starter, install_stand_in

from tsuku_llm.ground.errors import BackendFailed, LaunchError
from tsuku_llm.instances.loading import LoadSample
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import Verdict
from tsuku_llm.launch.run.warm_up import WarmedUp
from tsuku_llm.steps.drivers.caches import BuildCaches
from tsuku_llm.steps.drivers.warming import Warming, WhatIsCompiled
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
    assert [report.ready for report in starter.reports if report.ready] == [True] * 3
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


# --- what it depends on ------------------------------------------------------------------


def subject(**changes: object) -> WhatIsCompiled:
    plan = LaunchPlan(("/b/llama-server", "-m", "/none.gguf"), Path("/b"), {"A": "1"}, "vulkan")
    whole = WhatIsCompiled(
        "b1-vulkan-1", ("boot", "driver 1"), (ListedDevice("Vulkan0", "x"),), plan
    )
    return whole._replace(**changes)  # type: ignore[arg-type]


def planned(*arguments: str, **env: str) -> LaunchPlan:
    words = ("/b/llama-server", "-m", "/none.gguf", *arguments)
    return LaunchPlan(words, Path("/b"), {"A": "1", **env}, "vulkan")


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
    assert subject(**changes).digest != subject().digest


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
    assert subject(**changes).digest == subject().digest


def warming(starter: Starter, root: Path | None) -> Warming:
    return Warming(starter.session().user.note, BuildCaches({}, root=root), subject())


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


def test_only_the_newest_starts_are_noted(root: Path, starter: Starter) -> None:
    (root / "mesa").mkdir(parents=True)
    (root / "mesa" / "shader").write_bytes(b"x")
    for number in range(70):
        each = subject(version=f"b{number}")
        Warming(starter.session().user.note, BuildCaches({}, root=root), each).on_warmed(
            WarmedUp(1.0)
        )
    assert len(noted(root)) == 64
    assert noted(root)[-1] == subject(version="b69").digest
