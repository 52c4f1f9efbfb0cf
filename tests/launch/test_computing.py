"""The half of the gate in which a build computes: what is refused, and what cannot be judged."""

import os
import re
import time
from pathlib import Path

import pytest
from support.builds import stand_in

from tsuku_llm.ground.errors import GateFailed
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.launch.run.computing import Computation, compute

ALL = "1, 6, 40, 600"


def computed(
    tmp_path: Path, *steps: str, backend: str = "vulkan", limit: float | None = None
) -> Computation:
    build = stand_in(tmp_path / "build", backend=backend, compute=steps)
    device = None if backend == "cpu" else "Vulkan0"
    try:
        return compute(build, os.environ, device, tmp_path / "models", limit=limit)
    finally:
        assert [each.name for each in tmp_path.iterdir()] == ["build"]


@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
def test_a_right_build_passes_with_its_deviation(tmp_path: Path, backend: str) -> None:
    assert computed(tmp_path, backend=backend) == Computation(0.0)


def test_a_build_for_a_gpu_computes_on_the_device_that_a_start_would_use(tmp_path: Path) -> None:
    arguments = tmp_path / "build" / "arguments"
    build = stand_in(tmp_path / "build", compute=("dump", "listen"))
    script = build.tree / "server.sh"
    script.write_text(f'#!/bin/sh\necho "$@" >> {arguments}\nexec {build.executable} "$@"\n')
    script.chmod(0o755)
    compute(build._replace(server="server.sh"), os.environ, "Vulkan1,Vulkan0", tmp_path / "m")
    starts = arguments.read_text("utf-8").splitlines()
    assert len(starts) == 2
    assert all("-ngl 99 --device Vulkan1,Vulkan0" in each for each in starts)
    # As an argument: a shorter one of the user's config.ini would leave prompts unanswered.
    assert all(" -c 2048 " in each for each in starts)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("nan", f"its answers are wrong completely, after prompts of {ALL} tokens"),
        ("repeated", rf"its answers are wrong by \d+\.\d%, after prompts of {ALL} tokens"),
        ("other", f"its answers are wrong completely, after prompts of {ALL} tokens"),
    ],
)
def test_a_build_that_answers_wrongly_is_refused(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(GateFailed, match=said) as caught:
        computed(tmp_path, f"answers-on-gpu {kind}", "listen")
    assert "the vulkan build does not compute here" in caught.value.message
    assert "a right build differs by at most" in caught.value.facts[1]
    assert "config set llm.backend cpu" in caught.value.hint
    with pytest.raises(GateFailed, match="the cpu build does not compute here") as caught:
        computed(tmp_path, f"answers {kind}", "listen", backend="cpu")
    assert "llm.backend cpu" not in caught.value.hint


def test_a_gpu_that_answers_as_the_processor_does_is_right(tmp_path: Path) -> None:
    """Upstream may change what a model means; then both differ from what was computed."""
    assert computed(tmp_path, "answers other", "listen") == Computation(0.0)


def mixing(tmp_path: Path, mixed: str) -> Build:
    """A build that answers the prompts of one model wrongly, once several come at the same time."""
    right = stand_in(tmp_path / "right", backend="cpu")
    wrong = stand_in(
        tmp_path / "wrong", backend="cpu", compute=("answers other", "right 4", "listen")
    )
    script = right.tree / "server.sh"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *{mixed}.gguf*) exec {wrong.executable} "$@" ;; esac\n'
        f'exec {right.executable} "$@"\n'
    )
    script.chmod(0o755)
    return right._replace(server="server.sh")


def test_a_build_that_mixes_up_requests_is_refused_but_not_where_upstream_itself_does(
    tmp_path: Path,
) -> None:
    """b10434 did so on a Xeon with AMX: llama.cpp issue 29002, open on 2026-09-16.

    It is recurrent layers alone whose states are mixed up, in every build, and only if the
    requests happen to meet in one batch.
    """
    build = mixing(tmp_path / "a", "recurrent")
    assert compute(build, os.environ, None, tmp_path / "models").deviation == 0
    build = mixing(tmp_path / "b", "mixture")
    with pytest.raises(GateFailed, match="after prompts of 1, 6, 40 tokens"):
        compute(build, os.environ, None, tmp_path / "models")


@pytest.mark.parametrize(
    ("steps", "said", "fact"),
    [
        (
            # ggml-vulkan, as in issue 10434 of llama.cpp
            ("choke 7 ggml_vulkan: Device lost", "listen"),
            "it was ended by SIGABRT at a prompt of 40 tokens",
            "ggml_vulkan: Device lost",
        ),
        (
            ("choke 7 CUDA error: no kernel image is available for execution", "listen"),
            "it was ended by SIGABRT at a prompt of 40 tokens",
            "no kernel image",
        ),
        (("refuse 500 500", "listen"), "a prompt of 1 token was answered with an error", ""),
    ],
)
def test_a_build_that_ends_when_it_computes_is_refused(
    tmp_path: Path, steps: tuple[str, ...], said: str, fact: str
) -> None:
    with pytest.raises(GateFailed, match=said) as caught:
        computed(tmp_path, *steps)
    assert fact in "\n".join(caught.value.facts)


def test_a_build_whose_instructions_the_processor_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GateFailed, match="an instruction that this processor does not have"):
        computed(tmp_path, "kill 4", backend="cpu")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (("hang",), "it did not load within 1 seconds"),
        (("stuck", "listen"), "a prompt of 1 token was not answered within 1 seconds"),
    ],
)
def test_a_build_that_hangs_is_refused_after_the_limit(
    tmp_path: Path, steps: tuple[str, ...], said: str
) -> None:
    begun = time.monotonic()
    with pytest.raises(GateFailed, match=said):
        computed(tmp_path, *steps, limit=1.0)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        # Words of src/llama-model-loader.cpp and of common/arg.cpp.
        (
            (
                "err llama_model_load: error loading model: unknown model architecture: 'x'",
                "exit 1",
            ),
            "does not know the model's architecture",
        ),
        (("err error: invalid argument: --no-warmup", "exit 1"), "does not know the argument"),
        (("kill 9",), "it was ended by SIGKILL when it loaded"),
        (("answers untold", "listen"), "it does not tell the probabilities"),
        (("refuse 501 501", "listen"), "HTTP status 501"),
        # Another process may have the memory: the build is right.
        (
            ("err ggml_backend_cuda: cudaMalloc failed: out of memory", "exit 1"),
            "it ended with exit code 1 when it loaded",
        ),
    ],
)
def test_a_build_that_cannot_be_judged_is_not_refused(
    tmp_path: Path, steps: tuple[str, ...], reason: str
) -> None:
    found = computed(tmp_path, *steps)
    assert found.deviation is None
    assert re.fullmatch(rf"mixture: .*{reason}.*; recurrent: .*{reason}.*", found.not_computed)


def test_a_model_that_neither_gpu_nor_processor_loads_says_nothing(tmp_path: Path) -> None:
    found = computed(tmp_path, "err GGML_ASSERT(2 * n_embd == d_inner) failed", "kill 6")
    assert found.deviation is None
    assert "it was ended by SIGABRT when it loaded" in found.not_computed


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    found = compute(stand_in(tmp_path / "build"), os.environ, "Vulkan0", tmp_path)
    assert found.deviation is None
    assert "exists" in found.not_computed
    assert (tmp_path / "kept").exists()


def test_what_is_waited_for_is_told_once_and_only_if_it_takes_long(tmp_path: Path) -> None:
    told: list[str] = []
    build = stand_in(tmp_path / "build", backend="cpu", compute=("stuck", "listen"))
    with pytest.raises(GateFailed):
        compute(build, {}, None, tmp_path / "m", on_slow=lambda: told.append(""), limit=4.0)
    assert told == [""]
    compute(
        stand_in(tmp_path / "b"), {}, "Vulkan0", tmp_path / "m", on_slow=lambda: told.append("")
    )
    assert told == [""]
