"""What the server's arguments and variables ask of the GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.plan.wishes import Wishes, visible_devices, wishes_in
from tsuku_llm.machine.backends import facts_of


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("-ngl 0", "-ngl 0"),
        ("--n-gpu-layers 0", "--n-gpu-layers 0"),
        ("--gpu_layers 0", "--gpu-layers 0"),
        ("--device none", "--device none"),
        ("-dev none", "-dev none"),
        ("-ngl 99 -c 0", None),
        ("-ngl 0 -ngl 99", None),
        ("-dev Vulkan0", None),
        ("-ngl", None),
        ("", None),
    ],
)
def test_arguments_that_disable_the_gpu(words: str, refusal: str | None) -> None:
    assert wishes_in(words.split(), {}).refusal == refusal


@pytest.mark.parametrize(
    ("words", "env", "changes"),
    [
        (
            "",
            {"LLAMA_ARG_DEVICE": "none"},
            {"refusal": "LLAMA_ARG_DEVICE none", "placed": "LLAMA_ARG_DEVICE none"},
        ),
        (
            "-dev CUDA1",
            {"LLAMA_ARG_DEVICE": "none"},
            {"devices": ("CUDA1",), "placed": "-dev CUDA1"},
        ),
        (
            "--device CUDA0,CUDA1",
            {},
            {"devices": ("CUDA0", "CUDA1"), "placed": "--device CUDA0,CUDA1"},
        ),
        ("-mg 1", {}, {"placed": "-mg 1"}),
        ("", {"LLAMA_ARG_MAIN_GPU": "0"}, {"placed": "LLAMA_ARG_MAIN_GPU 0"}),
        ("", {"LLAMA_ARG_TENSOR_SPLIT": "3,1"}, {"placed": "LLAMA_ARG_TENSOR_SPLIT 3,1"}),
        ("--split_mode row", {}, {"placed": "--split-mode row"}),
        ("-sm none", {}, {"placed": "-sm none", "only": 0}),
        ("-mg 2 -sm none", {}, {"placed": "-sm none", "only": 2}),
        ("-sm none -mg -1", {}, {"placed": "-mg -1"}),
        ("", {"LLAMA_ARG_SPLIT_MODE": ""}, {}),
        ("-md /x/draft.gguf", {}, {"draft": True}),
        ("-md /x/draft.gguf -devd CUDA1", {}, {}),
        ("", {"LLAMA_ARG_SPEC_DRAFT_MODEL": "/x"}, {"draft": True}),
        ("-ngl 10", {}, {"layers": 10}),
        ("-ngl auto", {}, {}),
        ("-ngl -1", {}, {}),
        ("", {"LLAMA_ARG_N_GPU_LAYERS": "7"}, {"layers": 7}),
        ("--cpu-moe", {}, {"split": "--cpu-moe"}),
        ("--n_cpu_moe 4", {}, {"split": "--n-cpu-moe"}),
        ("", {"LLAMA_ARG_CPU_MOE": "1"}, {"split": "LLAMA_ARG_CPU_MOE"}),
        ("", {"LLAMA_ARG_CPU_MOE": "0"}, {}),
        ("--rpc host:50052", {}, {"remote": "--rpc host:50052", "placed": "--rpc host:50052"}),
        ("-m /x/a.gguf", {}, {"names_model": True, "model": "/x/a.gguf"}),
        ("-hf org/model", {}, {"names_model": True, "hub": ("-hf", "org/model")}),
        (
            "-hff a.gguf",
            {"LLAMA_ARG_HF_REPO": "org/model"},
            {"names_model": True, "hub": ("-hf", "org/model", "--hf-file", "a.gguf")},
        ),
        ("-mu https://host/a.gguf -hff a.gguf", {}, {"names_model": True}),
        ("--models-dir /x", {}, {}),
        ("--api-key a,b", {}, {"key": Secret("a,b")}),
        *(
            ("", {name: value}, {"shared": name})
            for name in (
                "GGML_CUDA_ENABLE_UNIFIED_MEMORY",
                "GGML_VK_PREFER_HOST_MEMORY",
                "GGML_VK_ALLOW_SYSMEM_FALLBACK",
            )
            for value in ("1", "0", "")
        ),
    ],
)
def test_every_wish_is_read(words: str, env: dict[str, str], changes: dict[str, object]) -> None:
    assert wishes_in(words.split(), env) == Wishes(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "env", "told"),
    [
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES=1"),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "1"}, None),
        ("vulkan", {"GGML_VK_VISIBLE_DEVICES": "0,1"}, "GGML_VK_VISIBLE_DEVICES=0,1"),
        # These choose drivers, not devices.
        ("vulkan", {"VK_DRIVER_FILES": "/x.json", "GGML_DISABLE_VULKAN": "0"}, None),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "GPU-1"}, "ROCR_VISIBLE_DEVICES=GPU-1"),
        ("sycl", {"ONEAPI_DEVICE_SELECTOR": "level_zero:1"}, "ONEAPI_DEVICE_SELECTOR=level_zero:1"),
        ("metal", {"CUDA_VISIBLE_DEVICES": "1"}, None),
    ],
)
def test_variables_that_choose_devices(backend: str, env: dict[str, str], told: str | None) -> None:
    assert visible_devices(env, facts_of(backend).hiding_variables) == told


@given(st.lists(st.text()), st.dictionaries(st.text(), st.text()))
def test_any_arguments_are_read(argv: list[str], env: dict[str, str]) -> None:
    wishes_in(argv, env)


@pytest.mark.parametrize("option", ["-ncffn", "--n-cpu-ffn"])
def test_dense_tensors_in_main_memory_are_a_wish(option: str) -> None:
    """Upstream's common/arg.cpp, b11434 (llama.cpp#26622)."""
    assert wishes_in(["server", option, "40"], {}).split == option
    assert wishes_in(["server"], {"LLAMA_ARG_N_CPU_FFN": "40"}).split == "LLAMA_ARG_N_CPU_FFN"
