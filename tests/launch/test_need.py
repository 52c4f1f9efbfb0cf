"""The estimated need for memory, beside what upstream's server b10434 said in its own log.

The numbers in ``MEASURED`` are MiB of "model", "KV" or "RS", and "compute buffer size" of
``llama-server -lv 4 -fit off --device none`` with the models of ``support.model_headers``.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import model_headers
from support.model_headers import F16, Q4_0, Q8_0, Shape, write_header, write_shape

from tsuku_llm.launch.memory.fit_tool import correction_of
from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.memory_options import MemoryOptions, memory_options
from tsuku_llm.launch.memory.model_header import ModelHeader
from tsuku_llm.launch.memory.need import MemoryNeed, cache_cells, estimate_need
from tsuku_llm.machine.backends import facts_of

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


class Log(NamedTuple):
    """A start, and what the server's log said of it, in MiB."""

    shape: Callable[..., Shape]
    layers: int
    argv: str
    cache: float
    compute: float
    weights: float | None = None


MEASURED = [
    Log(model_headers.llama, 32, "-c 8192", 1024, 124.01, 15317.02),
    Log(model_headers.llama, 2, "-c 2048", 16, 118.01),
    Log(model_headers.llama, 2, "-c 8192 -fa off", 64, 572.01),
    Log(model_headers.qwen3_moe, 48, "-c 8192", 768, 96.01, 58235.8),
    Log(model_headers.gemma3, 48, "-c 8192", 512 + 1440, 133.02, 22443.39),
    Log(model_headers.gemma3, 7, "-c 8192", 64 + 216, 133.02),
    Log(model_headers.mamba, 64, "-c 8192", 95, 66.72, 10314.89),
    Log(model_headers.qwen35, 32, "-c 8192", 256 + 201, 104.02, 17860.05),
    Log(model_headers.deepseek2, 2, "-c 8192", 18, 400.01),
    Log(model_headers.deepseek2, 2, "-c 8192 -fa off", 18, 2456.01),
    Log(model_headers.gpt_oss, 3, "-c 8192", 16 + 4, 101.39),
    Log(model_headers.gpt_oss, 3, "-c 8192 -np 2", 16 + 6, 97.14),
    Log(model_headers.phi3, 2, "-c 4096", 96, 70.01),
]


def header_of(folder: Path, shape: Shape, weights: int = F16) -> ModelHeader:
    return read_header(str(write_shape(folder / "m.gguf", shape, weights=weights, vocabulary=9)))


@pytest.mark.parametrize("log", MEASURED, ids=lambda log: f"{log.shape.__name__} {log.argv}")
def test_the_estimate_is_what_the_server_said(log: Log, tmp_path: Path) -> None:
    header = header_of(tmp_path, log.shape(layers=log.layers))
    need = estimate_need(header, memory_options(log.argv.split(), {}))
    if not told_windows(header):
        # The most that it can be, and near enough beside the rest if there is no doubt.
        assert sum(need.cache) / MIB >= log.cache
    else:
        # A GPU may take the scores of 128 heads twice; the processor takes them once.
        assert need.doubt == ("most" if need.scores else "")
        need = need._replace(compute=need.compute - need.scores)
        assert sum(need.cache) / MIB == pytest.approx(log.cache, rel=0.001)
    assert need.compute / MIB == pytest.approx(log.compute, rel=0.1)
    if log.weights:
        assert need.weights / MIB == pytest.approx(log.weights, rel=0.001)
        said = log.weights + log.cache + log.compute
        near = 0.01 if told_windows(header) else 0.1
        assert need.doubt or need.on_processor / MIB == pytest.approx(said, rel=near)


ARCHITECTURES = json.loads((ROOT / "tests/architectures.json").read_text(encoding="utf-8"))
"""Models of 30 more architectures, with few layers, and MiB of weights, cache and buffers.

The keys are those of published models. The tensors are what the loader of b10434 asked for, one
after the other ("tensor not found", "has wrong shape; expected"), until it loaded the model.
"""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_that_nobody_here_chose(name: str, tmp_path: Path) -> None:
    model = ARCHITECTURES[name]
    header = header_of(tmp_path, Shape(name, model["keys"], model["tensors"]))
    for argv, (weights, cache, compute) in model["said"].items():
        need = estimate_need(header, memory_options(argv.split(), {}))
        need = need._replace(compute=need.compute - need.scores)
        assert need.weights / MIB == pytest.approx(weights, rel=0.002)
        if told_windows(header):
            assert sum(need.cache) / MIB == pytest.approx(cache, abs=0.1)
        said = weights + cache + compute
        assert need.on_processor / MIB == pytest.approx(said, rel=0.1), argv


def told_windows(header: ModelHeader) -> bool:
    """Tell whether the header says which layers see a window, if it has one."""
    names = {name.partition(".")[2] for name in (*header.values, *header.arrays)}
    window = "attention.sliding_window"
    return window not in names or f"{window}_pattern" in names


def test_layers_whose_window_is_not_told_are_in_doubt(tmp_path: Path) -> None:
    """Upstream has in its code that every second layer of gpt-oss has one, and most of Gemma 3."""
    header = header_of(tmp_path, model_headers.gpt_oss(layers=24), Q4_0)
    short = estimate_need(header, memory_options(["-c", "8192"], {}))
    assert not short.doubt
    long = estimate_need(header, memory_options(["-c", "131072"], {}))
    assert long.doubt == "most"
    assert sum(long.cache) == 24 * 131072 * 2 * 8 * 64 * 2
    # 128 for each of four sequences and 512 of one step.
    assert sum(long.cache) - sum(long.spare) == 24 * 1024 * 2 * 8 * 64 * 2
    every = estimate_need(header, memory_options(["-c", "131072", "--swa-full"], {}))
    assert not every.doubt
    assert every.cache == long.cache


def test_the_distance_of_layers_without_a_window_may_be_one_number(tmp_path: Path) -> None:
    shape = model_headers.gpt_oss(layers=4)
    told = {**shape.keys, "attention.sliding_window_pattern": 2}
    header = header_of(tmp_path, shape._replace(keys=told))
    need = estimate_need(header, MemoryOptions(context=131072))
    assert not need.doubt
    assert [size < max(need.cache) for size in need.cache] == [True, False, True, False]


def test_layers_of_an_unknown_kind_are_in_doubt(tmp_path: Path) -> None:
    shape = model_headers.llama(layers=2)
    strange = {name.replace("attn_k", "memory"): size for name, size in shape.tensors.items()}
    header = header_of(tmp_path, shape._replace(architecture="next", tensors=strange))
    assert estimate_need(header, MemoryOptions()).doubt == "least"


@pytest.mark.parametrize(
    ("argv", "doubt"),
    [
        # "compute buffer size" on an H200 with Vulkan b10434: 284, 538 and 2112 MiB. The scores
        # alone have 256, 512 and 1024.
        ("-c 4096 -fa off", ""),
        ("-c 16384 -fa off -ub 256", ""),
        ("-c 16384 -fa off", "most"),
        ("-c 16384", ""),
    ],
)
def test_scores_as_large_as_a_chunk_may_be_there_twice(
    tmp_path: Path, argv: str, doubt: str
) -> None:
    header = header_of(tmp_path, model_headers.llama(layers=12))
    need = estimate_need(header, memory_options(argv.split(), {}))
    assert need.doubt == doubt
    if doubt:
        assert need.compute / MIB == pytest.approx(2112, rel=0.05)
    # Upstream's tool tells the cache, and nothing of this.
    corrected = correction_of(need, need.cache_size)
    assert corrected is not None
    assert corrected.applied(need).doubt == doubt


def test_a_cache_in_another_type_is_smaller(tmp_path: Path) -> None:
    """Q8_0 has 34 bytes for 32 numbers; the server said 17 MiB for one layer, and 32 for F16."""
    header = header_of(tmp_path, model_headers.llama(layers=1))
    eight = memory_options(["-c", "8192", "-ctk", "q8_0", "-ctv", "q8_0"], {})
    assert sum(estimate_need(header, eight).cache) == 17 * MIB


@pytest.mark.parametrize(
    ("argv", "tokens"),
    [
        ("", 131072),
        ("-c 5000", 5120),
        ("-c 8192 -np 4", 8192),
        ("-c 1000 -np 4", 1024),
        ("-c 8192 -np 3", 8448),
        ("-c 8192 -np 3 --kv-unified", 8192),
    ],
)
def test_sequences_with_caches_of_their_own_are_rounded_up(
    argv: str, tokens: int, tmp_path: Path
) -> None:
    header = header_of(tmp_path, model_headers.llama(layers=1))
    assert cache_cells(header, memory_options(argv.split(), {})).full == tokens


def test_a_window_is_shared_by_all_sequences(tmp_path: Path) -> None:
    header = header_of(tmp_path, model_headers.gemma3(layers=6))
    # 1024 for each of four sequences and 512 of one step, rounded up to 256.
    assert cache_cells(header, MemoryOptions(context=8192)).window == 4608
    assert cache_cells(header, MemoryOptions(context=2048)).window == 2048
    assert cache_cells(header, MemoryOptions(context=8192, full_windows=True)).window == 8192


def test_the_layers_with_a_window_may_be_listed(tmp_path: Path) -> None:
    shape = model_headers.gemma3(layers=4)
    listed = {**shape.keys, "attention.sliding_window_pattern": [True, False, False, True]}
    header = header_of(tmp_path, shape._replace(architecture="gemma4", keys=listed))
    cache = estimate_need(header, MemoryOptions(context=32768)).cache
    assert [size < max(cache) for size in cache] == [True, False, False, True]


def test_the_output_of_a_model_without_one_is_copied_to_the_gpu(tmp_path: Path) -> None:
    tied = estimate_need(header_of(tmp_path, model_headers.gemma3(layers=1)), MemoryOptions())
    embeddings = 3840 * 262208 * 2
    assert tied.shared == embeddings
    assert tied.output == embeddings + 3840 * 4
    assert tied.on_processor == tied.total - embeddings - tied.host_compute


def test_the_experts_of_the_first_layers_may_stay_in_main_memory(tmp_path: Path) -> None:
    header = header_of(tmp_path, model_headers.qwen3_moe(layers=4))
    experts = 3 * 2048 * 768 * 128 * 2
    usual = estimate_need(header, memory_options([], {}))
    some = estimate_need(header, memory_options(["-ncmoe", "3"], {}))
    every = estimate_need(header, memory_options([], {"LLAMA_ARG_CPU_MOE": "1"}))
    assert some.other - usual.other == 3 * experts
    assert every.other - usual.other == 4 * experts
    assert usual.weights == some.weights == every.weights


def test_the_dense_weights_of_the_first_layers_may_stay_in_main_memory(tmp_path: Path) -> None:
    # llama.cpp#26622. Of a model of experts it moves nothing but the dense layers' weights.
    header = header_of(tmp_path, model_headers.llama(layers=4))
    usual = estimate_need(header, memory_options([], {}))
    named = estimate_need(header, memory_options(["-ot", r"\.ffn_(up|down|gate)\.=CPU"], {}))
    moved = named.other - usual.other
    assert moved > 0
    for count in (0, 1, 3, 4, 99):
        given = estimate_need(header, memory_options(["--n-cpu-ffn", str(count)], {}))
        assert given == estimate_need(
            header, memory_options([], {"LLAMA_ARG_N_CPU_FFN": str(count)})
        )
        assert given.other - usual.other == min(count, 4) * moved // 4
        assert given.weights == usual.weights
    experts = header_of(tmp_path, model_headers.qwen3_moe(layers=4))
    options = memory_options(["-ncffn", "4"], {})
    assert estimate_need(experts, options) == estimate_need(experts, memory_options([], {}))


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        (("-ot", "exps=CPU"), 4),
        (("-ot", r"blk\.[01]\.ffn_.*_exps\.=CPU"), 2),
        (("-ot", r"blk\.0\.=CUDA0,exps=CPU"), 3),
        (("-ot", "blk.0.ffn_.*_exps=CPU", "--override-tensor", "blk.1.ffn_.*_exps=CPU"), 2),
        (("-ot", "exps=CUDA1"), 0),
        (("-ot", "(=CPU"), 0),
    ],
)
def test_tensors_that_the_user_moves_are_in_main_memory(
    words: tuple[str, ...], layers: int, tmp_path: Path
) -> None:
    header = header_of(tmp_path, model_headers.qwen3_moe(layers=4))
    experts = 3 * 2048 * 768 * 128 * 2
    usual = estimate_need(header, memory_options([], {}))
    moved = estimate_need(header, memory_options(words, {}))
    assert moved.other - usual.other == layers * experts


def test_a_cache_in_main_memory_is_not_on_the_device(tmp_path: Path) -> None:
    header = header_of(tmp_path, model_headers.llama(layers=2))
    usual = estimate_need(header, memory_options(["-c", "8192"], {}))
    moved = estimate_need(header, memory_options(["-c", "8192", "-nkvo"], {}))
    assert moved.cache == (0, 0)
    assert moved.other - usual.other == sum(usual.cache)
    # Upstream's older variable; an argument comes before it.
    variable = {"LLAMA_ARG_NO_KV_OFFLOAD": ""}
    assert estimate_need(header, memory_options(["-c", "8192"], variable)) == moved
    assert estimate_need(header, memory_options(["-c", "8192", "-kvo"], variable)) == usual


def test_the_layers_that_guess_tokens_are_loaded_only_if_asked_for(tmp_path: Path) -> None:
    shape = model_headers.llama(layers=3)
    header = header_of(tmp_path, shape._replace(keys={**shape.keys, "nextn_predict_layers": 1}))
    assert len(estimate_need(header, memory_options([], {})).layers) == 2
    assert len(estimate_need(header, memory_options(["--spec-type", "draft-mtp"], {})).layers) == 3


def test_a_draft_model_has_its_own_cache(tmp_path: Path) -> None:
    header = header_of(tmp_path, model_headers.llama(layers=2))
    options = memory_options(["-c", "8192", "-ctk", "q8_0", "-ctv", "q8_0", "-md", "d.gguf"], {})
    draft = header_of(tmp_path, model_headers.llama(layers=1, width=1024, inner=2048, heads=16))
    alone = estimate_need(draft, MemoryOptions(context=8192)).on_one_device
    assert estimate_need(header, options, draft=draft).companions == alone


def test_the_weights_of_a_projector_are_added(tmp_path: Path) -> None:
    header = header_of(tmp_path, model_headers.llama(layers=1))
    path = tmp_path / "mmproj.gguf"
    keys = {"general.architecture": "clip"}
    projector = read_header(str(write_header(path, keys, {"v.blk.0.w": (1024, 4096)}, F16)))
    options = memory_options(["-mm", "mmproj.gguf"], {})
    added = estimate_need(header, options, projector=projector).companions
    assert added >= 1024 * 4096 * 2
    for words, env in (
        (["--no-mmproj-offload"], {}),
        (["-mmdev", "none"], {}),
        ([], {"MTMD_BACKEND_DEVICE": "none"}),
        (["-mmdev", "Vulkan1", "--no-mmproj-offload"], {}),
    ):
        kept = estimate_need(
            header, memory_options(["-mm", "m.gguf", *words], env), projector=projector
        )
        assert (kept.companions, kept.beside()) == (0, added)
    other = estimate_need(header, memory_options(["-mmdev", "vulkan1"], {}), projector=projector)
    assert (other.companions, other.beside(), other.beside("Vulkan1")) == (0, 0, added)
    assert other.total == estimate_need(header, options, projector=projector).total


# Upstream b11434: common/arg.cpp, "--spec-draft-ngl", "--spec-draft-device".
@pytest.mark.parametrize("words", ["-ngld 0", "--spec-draft-ngl 0", "-devd none"])
def test_a_draft_model_may_stay_in_main_memory(words: str, tmp_path: Path) -> None:
    header = header_of(tmp_path, model_headers.llama(layers=1))
    options = memory_options(["-c", "8192", "-md", "d.gguf", *words.split()], {})
    need = estimate_need(header, options, draft=header)
    alone = estimate_need(header, MemoryOptions(context=8192))
    assert (need.companions, need.beside()) == (0, alone.on_processor)


# Upstream b11434: common/arg.cpp, "--spec-draft-cpu-moe" and its neighbours.
@pytest.mark.parametrize(
    "words",
    ["-cmoed", "--n-cpu-moe-draft 9", "--spec-draft-override-tensor exps=CPU", "-otd exps=CPU"],
)
def test_the_experts_of_a_draft_model_may_stay_in_main_memory(words: str, tmp_path: Path) -> None:
    header = header_of(tmp_path, model_headers.qwen3_moe(layers=2))
    options = memory_options(["-md", "d.gguf", *words.split()], {})
    need = estimate_need(header, options, draft=header)
    both = estimate_need(header, MemoryOptions(), draft=header)
    moved = both.companions - need.companions
    assert need.layers == both.layers
    assert moved > both.companions // 2
    assert need.beside() - both.beside() == moved


def test_a_model_that_reads_the_text_at_once_may_have_no_cache(tmp_path: Path) -> None:
    shape = model_headers.llama(layers=2)
    header = header_of(tmp_path, shape._replace(keys={**shape.keys, "attention.causal": False}))
    need = estimate_need(header, MemoryOptions())
    assert need.doubt == "most"
    assert need.spare == need.cache


def test_a_header_that_says_nothing_has_only_weights(tmp_path: Path) -> None:
    path = write_header(tmp_path / "x.gguf", {}, {"blk.0.a": (32, 4), "b": (32,)}, F16)
    need = estimate_need(read_header(str(path)), MemoryOptions())
    assert need.layers == (256,)
    assert need.other == 128
    assert need.cache == (0,)
    assert need.doubt == "least"


SHAPES: Sequence[Callable[..., Shape]] = model_headers.SHAPES


@given(
    number=st.integers(0, len(SHAPES) - 1),
    contexts=st.lists(st.integers(1, 1 << 20), min_size=2, max_size=2),
    slots=st.integers(0, 9),
    weights=st.sampled_from([F16, Q8_0, Q4_0]),
)
def test_a_longer_context_never_needs_less(
    number: int,
    contexts: list[int],
    slots: int,
    weights: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    header = header_of(folder, SHAPES[number](layers=3), weights)

    def need(context: int) -> MemoryNeed:
        return estimate_need(header, memory_options(["-c", str(context), "-np", str(slots)], {}))

    short, long = need(min(contexts)), need(max(contexts))
    assert short.total <= long.total
    assert short.weights == long.weights == sum(each.size for each in header.tensors)
    assert short.on_device(1, 2) + short.on_device(0, 1) <= short.on_device() + short.compute


@given(junk=st.binary(max_size=200), at=st.integers(0, 3000))
def test_any_header_that_is_read_is_estimated(
    junk: bytes, at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.gguf"
    with write_shape(path, model_headers.gpt_oss(layers=1), vocabulary=9).open("rb") as file:
        good = file.read(8192)
    path.write_bytes(good[:at] + junk + good[at + len(junk) :])
    try:
        header = read_header(str(path))
    except ValueError:
        return
    need = estimate_need(header, MemoryOptions())
    assert need.total >= 0
    assert len(need.layers) == len(need.cache)


@pytest.mark.parametrize(
    ("step", "backend"), [("on the GPU", "vulkan"), ("on the GPU, CUDA", "cuda")]
)
def test_the_estimate_is_what_an_h200_counted(step: str, backend: str, tmp_path: Path) -> None:
    """What NVIDIA's library counted for the server's process, in the report of ``ci/gpu``."""
    report = json.loads((ROOT / "ci" / "gpulab" / "h200-2026-11-21.json").read_bytes())
    counted = report[step]["start"]["memory_used"]
    # The model of ``ci.gpulab``: as many heads for keys as for queries, and 288 tokens.
    width, vocabulary = 2048, 288
    shape = model_headers.llama(layers=22, width=width, inner=5632)
    keys = {**shape.keys, "attention.head_count_kv": 32, "context_length": 8192}
    square = {
        name: (width, width)
        for name in shape.tensors
        if name.endswith(("attn_k.weight", "attn_v.weight"))
    }
    ends = dict.fromkeys(("token_embd.weight", "output.weight"), (width, vocabulary))
    shape = shape._replace(keys=keys, tensors={**shape.tensors, **square, **ends})
    header = header_of(tmp_path, shape, Q8_0)
    driver = facts_of(backend).driver_memory
    need = estimate_need(header, MemoryOptions())._replace(driver=driver)
    assert need.on_one_device == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    ("words", "env", "shortest"),
    [
        ("", {}, 4096),
        ("-c 0", {}, None),
        ("--ctx_size 0", {}, None),
        ("", {"LLAMA_ARG_CTX_SIZE": "0"}, None),
        ("-c 8192", {"LLAMA_ARG_CTX_SIZE": "0"}, 4096),
        ("-fitc 262144", {}, 262144),
        ("", {"LLAMA_ARG_FIT_CTX": "9000"}, 9000),
    ],
)
def test_a_context_that_is_asked_for_is_not_shortened(
    words: str, env: dict[str, str], shortest: int | None
) -> None:
    """Upstream's common/arg.cpp, b11434: ``-c 0`` sets fit_params_min_ctx to the most."""
    assert memory_options(words.split(), env).shortest == shortest
