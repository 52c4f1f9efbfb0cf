"""Where a server computes: what its log, the kernel and its list say, and what that adds up to."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.ask.log import LogFacts, LogReader, read_line
from tsuku_llm.launch.gpu.gpu_use import (
    Observed,
    ProcessSample,
    backend_in_use,
    bytes_on_gpu,
    collect_signs,
    gpu_names,
    shortfall,
)
from tsuku_llm.launch.gpu.verdict import decide
from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.report import CanaryResult, Verdict
from tsuku_llm.launch.plan.wishes import Wishes

LOGS = Path(__file__).parents[1] / "server_logs"
GIB = 1 << 30
H200 = ListedDevice("Vulkan0", "NVIDIA H200", 140 * GIB, 139 * GIB)
ON_GPU, PARTLY, ON_CPU, UNKNOWN = Verdict.ON_GPU, Verdict.PARTLY, Verdict.ON_CPU, Verdict.UNKNOWN

RANK = {verdict: rank for rank, verdict in enumerate((ON_CPU, UNKNOWN, PARTLY, ON_GPU))}
"""The verdicts from worst to best, for a user who wants the GPU."""


def read(name: str, size: int = 1 << 16) -> LogFacts:
    """A recorded log, read in pieces of ``size`` bytes as a pipe would give it.

    It was recorded on a software renderer, which stands for a card.
    """
    reader, data = LogReader(), (LOGS / f"{name}.txt").read_bytes().replace(b"llvmpipe", b"card")
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader.facts


def judge(seen: Observed) -> Verdict:
    return decide(collect_signs(seen))


VERSIONS = ("b10068", "b10092", "b10434")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_the_log_of_a_server_on_a_device(version: str, size: int) -> None:
    facts = read(f"{version}-gpu", size)
    assert facts.device == "Vulkan0: card (LLVM 15.0.6, 256 bits)"
    assert facts.layers == (3, 3)
    assert [name for name, _ in facts.buffers] == ["CPU_Mapped", "Vulkan0", "Vulkan0"]
    assert facts.listens
    assert facts.port
    assert judge(Observed(backend="vulkan", log=facts)) is ON_GPU


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["cpu", "ngl0"])
def test_the_log_of_a_server_on_the_processor(version: str, kind: str) -> None:
    facts = read(f"{version}-{kind}")
    assert {name for name, _ in facts.buffers} == {"CPU_Mapped", "CPU"}
    assert judge(Observed(backend="vulkan", log=facts)) is ON_CPU


@pytest.mark.parametrize("version", VERSIONS)
def test_offloaded_layers_without_a_gpu_prove_nothing(version: str) -> None:
    """Upstream prints the number that it would offload, so it does not prove a GPU."""
    facts = read(f"{version}-cpu")
    assert facts.layers == (3, 3)
    assert facts.device is None
    assert judge(Observed(backend="vulkan", log=LogFacts(layers=facts.layers))) is UNKNOWN


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_of_the_default_verbosity_proves_nothing(version: str) -> None:
    facts = read(f"{version}-gpu-quiet")
    assert facts == LogFacts(listens=True, port=facts.port)
    assert judge(Observed(backend="vulkan", log=facts)) is UNKNOWN
    assert judge(Observed(backend="vulkan", log=facts, listed=(H200,))) is UNKNOWN
    assert judge(Observed(backend="vulkan", log=facts, listed=())) is ON_CPU


OTHER_DIALECTS = {
    "load_backend: loaded CUDA backend from /opt/libggml-cuda.so": {"loaded": ("CUDA",)},
    "llm_load_tensors: offloaded 0/33 layers to GPU": {"layers": (0, 33)},
    "llm_load_tensors:        CUDA0 buffer size =  4095.05 MiB": {},
    "load_tensors:        CUDA0 model buffer size =  4096.00 MiB": {
        "buffers": (("CUDA0", 4 * GIB),),
        "weights": (("CUDA0", 4 * GIB),),
    },
    "load_tensors: RPC[10.0.0.2:50052] model buffer size = 1.00 MiB": {
        "buffers": (("RPC[10.0.0.2:50052]", 1 << 20),),
        "weights": (("RPC[10.0.0.2:50052]", 1 << 20),),
    },
    "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA A10G) - 22500 MiB free": {
        "device": "CUDA0: NVIDIA A10G"
    },
    "main: server is listening on http://0.0.0.0:8080 - starting the main loop": {
        "listens": True,
        "port": 8080,
    },
    "main: server is listening on unix:///run/llama.sock": {"listens": True},
    "srv: listening on https://[::1]:8443": {"listens": True, "port": 8443},
    "ggml_vulkan: No devices found.": {"complaint": "ggml_vulkan: No devices found."},
    "llama_kv_cache:    CUDA0 KV buffer size =   64.00 MiB": {"buffers": (("CUDA0", 1 << 26),)},
    "an ordinary line": {},
}


@pytest.mark.parametrize(("line", "facts"), OTHER_DIALECTS.items())
def test_other_log_formats(line: str, facts: dict[str, object]) -> None:
    assert read_line(LogFacts(), line) == LogFacts(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", ["1.2.3", ".", "9" * 400, "1e999", "", "-1"])
def test_S08_a_size_that_is_not_a_number_is_skipped(size: str) -> None:
    """A model's own texts are in the log; reading it must not end with them."""
    line = f"load_tensors: CPU model buffer size = {size} MiB"
    assert read_line(LogFacts(), line) == LogFacts()


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (f"offloaded 1/{'3' * 4000} layers", {}),
        (f"server is listening on http://localhost:{'9' * 4000}", {"listens": True}),
    ],
)
def test_S08_a_number_of_too_many_digits_is_skipped(line: str, facts: dict[str, object]) -> None:
    assert read_line(LogFacts(), line) == LogFacts(**facts)  # type: ignore[arg-type]


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_read_in_chunks_of_any_size(data: bytes, size: int) -> None:
    whole, pieces = LogReader(), LogReader()
    whole.feed(data)
    for at in range(0, len(data), size):
        pieces.feed(data[at : at + size])
    assert pieces.facts == whole.facts


def test_an_endless_line_costs_no_memory() -> None:
    reader = LogReader()
    for _ in range(100):
        reader.feed(b"x" * 100_000)
    assert len(reader._rest) <= 4096


def vulkan(**changes: object) -> Observed:
    """A 6 GB model, all of it wanted on a card, of which nothing else is known."""
    plain = Observed(
        backend="vulkan",
        files=frozenset({"libggml-vulkan.so", "libggml-cpu.so", "llama-server"}),
        wishes=Wishes(names_model=True),
        listed=(H200,),
        model_size=6 * GIB,
        whole=6 * GIB,
        wanted=6 * GIB,
    )
    return plain._replace(**changes)  # type: ignore[arg-type]


PLUGINS = frozenset({"libggml-vulkan.so", "libggml-cpu.so", "llama-server"})
NVIDIA = ("/dev/nvidia0",)
DRI = ("/dev/dri/renderD128",)
HEALTHY = ProcessSample(NVIDIA, PLUGINS)
ANSWERED = CanaryResult(answered=True)
WORKED = ANSWERED._replace(worked=True)


def test_a_mapped_file_says_nothing_where_the_gpu_holds_all_layers() -> None:
    """Mamba with Vulkan: one small tensor of each layer stays, and keeps all of the file mapped.

    The numbers are those of an H200.
    """
    seen = vulkan(
        process=HEALTHY._replace(model_mapped=10_578_477_056),
        nvidia_memory=10_798_030_848,
        model_size=10_672_000_000,
        whole=10_578_000_000,
        wanted=10_578_000_000,
    )
    assert judge(seen) is PARTLY
    known = seen._replace(needed=10_840_633_600)
    assert judge(known) is ON_GPU
    assert bytes_on_gpu(known, ON_GPU) == known.model_size
    # The context may fill what the layers do not.
    assert judge(known._replace(needed=13_000_000_000)) is PARTLY
    assert judge(known._replace(nvidia_memory=9 * GIB)) is PARTLY


def test_a_healthy_server_gives_every_sign() -> None:
    seen = vulkan(
        log=read("b10434-gpu")._replace(weights=(("Vulkan0", 6 * GIB),)),
        process=HEALTHY._replace(model_mapped=GIB // 4),
        nvidia_memory=8 * GIB,
        canary=WORKED,
    )
    found = collect_signs(seen)
    assert {sign.name for sign in found} == {
        "device-list",
        "plugin",
        "buffers",
        "layers",
        "device-nodes",
        "process-memory",
        "mapped-model",
        "engines",
    }
    assert decide(found) is ON_GPU
    assert backend_in_use(seen, ON_GPU) == "vulkan"
    assert bytes_on_gpu(seen, ON_GPU) == 6 * GIB
    assert gpu_names(seen) == ("Vulkan0",)


ON_THE_CPU: dict[str, Observed] = {
    "no-memory": vulkan(process=HEALTHY, nvidia_memory=0),
    "a-bare-context": vulkan(process=HEALTHY, nvidia_memory=300 << 20),
    "a-bare-context-of-an-amd-card": vulkan(
        process=ProcessSample(DRI, PLUGINS, 40 << 20, 30 << 20)
    ),
    "plugin-not-mapped": vulkan(process=ProcessSample(NVIDIA, PLUGINS - {"libggml-vulkan.so"})),
    "plugin-and-no-node": vulkan(process=ProcessSample((), PLUGINS)),
    "failed-to-initialize": vulkan(
        backend="cuda",
        process=ProcessSample(NVIDIA, PLUGINS),
        log=LogFacts(complaint="ggml_cuda_init: failed to initialize CUDA: unknown error"),
    ),
    "no-usable-gpu": vulkan(
        process=HEALTHY,
        log=LogFacts(complaint="warning: no usable GPU found, --gpu-layers option will be ignored"),
    ),
    "no-devices-found": vulkan(
        process=HEALTHY, log=LogFacts(complaint="ggml_vulkan: No devices found.")
    ),
    "no-layers": vulkan(process=HEALTHY, log=LogFacts(layers=(0, 33))),
    "cpu-buffers": vulkan(process=HEALTHY, log=LogFacts(buffers=(("CPU_Mapped", 6 * GIB),))),
    "host-buffers": vulkan(log=LogFacts(buffers=(("CUDA_Host", GIB), ("CPU_REPACK", GIB)))),
    "empty-buffer": vulkan(log=LogFacts(buffers=(("CUDA0", 0), ("CPU", GIB)))),
    "renderer-in-software": vulkan(
        log=LogFacts(
            buffers=(("Vulkan0", 6 * GIB),), device="Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits)"
        ),
    ),
    "no-device-listed": vulkan(listed=()),
    "another-backend-listed": vulkan(listed=(ListedDevice("CUDA0", "NVIDIA H200"),)),
    "software-listed": vulkan(listed=(ListedDevice("Vulkan0", "SwiftShader Device"),)),
    "idle-and-not-loaded": vulkan(
        process=ProcessSample(DRI, None),
        log=LogFacts(loaded=("CPU",)),
        canary=ANSWERED._replace(worked=False),
    ),
    "refused-by-the-user": vulkan(wishes=Wishes("-ngl 0", names_model=True), wanted=None),
}
"""Servers on the CPU, from reports: the program must name each of them."""


@pytest.mark.parametrize("seen", ON_THE_CPU.values(), ids=ON_THE_CPU)
def test_X20_X21_X22_X23_a_server_on_the_cpu_is_named(seen: Observed) -> None:
    decided = judge(seen)
    assert decided is ON_CPU
    assert shortfall(seen, decided, None)


@pytest.mark.parametrize("seen", ON_THE_CPU.values(), ids=ON_THE_CPU)
def test_one_wrong_sign_accuses_no_server_whose_engines_work(seen: Observed) -> None:
    assert judge(seen._replace(canary=WORKED)) is not ON_CPU


CPU_MOE = Wishes(split="--cpu-moe", names_model=True)
TEN = Wishes(layers=10, names_model=True)
REMOTE = Wishes(remote="--rpc host:50052", names_model=True)
HEALTHY_SERVERS: dict[str, tuple[Observed, Verdict]] = {
    "quiet": (vulkan(process=HEALTHY, nvidia_memory=7 * GIB), ON_GPU),
    "engines-alone": (vulkan(process=HEALTHY, canary=WORKED), ON_GPU),
    "verbose": (vulkan(log=LogFacts(buffers=(("Vulkan0", 6 * GIB), ("CPU", GIB)))), ON_GPU),
    "container": (vulkan(process=HEALTHY, risen=7 * GIB), ON_GPU),
    "integrated": (
        vulkan(process=ProcessSample(DRI, PLUGINS, 7 * GIB, 200 << 20), canary=WORKED),
        ON_GPU,
    ),
    "small-model": (
        vulkan(
            process=HEALTHY,
            nvidia_memory=700 << 20,
            model_size=1 << 20,
            whole=1 << 20,
            wanted=1 << 20,
            canary=WORKED,
        ),
        ON_GPU,
    ),
    "ten-layers": (
        vulkan(process=HEALTHY, nvidia_memory=3 * GIB, wishes=TEN, wanted=2 * GIB),
        PARTLY,
    ),
    "ten-layers-of-an-unknown-model": (
        vulkan(process=HEALTHY, nvidia_memory=3 * GIB, wishes=TEN, whole=None, wanted=None),
        PARTLY,
    ),
    "cpu-moe": (
        vulkan(process=HEALTHY, nvidia_memory=2 * GIB, wishes=CPU_MOE, wanted=None),
        PARTLY,
    ),
    "rpc": (
        vulkan(
            process=ProcessSample((), PLUGINS),
            wishes=REMOTE,
            log=LogFacts(buffers=(("RPC[10.0.0.2:50052]", GIB), ("CPU", GIB))),
        ),
        UNKNOWN,
    ),
    "router": (vulkan(process=ProcessSample((), frozenset()), wishes=Wishes()), UNKNOWN),
    "another-backend-complains": (
        vulkan(
            backend="cuda",
            process=HEALTHY,
            nvidia_memory=7 * GIB,
            log=LogFacts(complaint="ggml_vulkan: No devices found."),
        ),
        ON_GPU,
    ),
    "embeddings-stay-in-main-memory": (
        vulkan(
            process=HEALTHY._replace(model_mapped=3 * GIB),
            nvidia_memory=4 * GIB,
            whole=3 * GIB,
            wanted=3 * GIB,
        ),
        ON_GPU,
    ),
}


@pytest.mark.parametrize(("seen", "expected"), HEALTHY_SERVERS.values(), ids=HEALTHY_SERVERS)
def test_X24_a_healthy_server_is_not_accused(seen: Observed, expected: Verdict) -> None:
    decided = judge(seen)
    assert decided is expected
    assert shortfall(seen, decided, None) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, UNKNOWN),
        ({"process": ProcessSample((), frozenset({"dash"}))}, UNKNOWN),
        ({"process": ProcessSample(())}, UNKNOWN),
        ({"process": HEALTHY}, UNKNOWN),
        ({"log": LogFacts(loaded=("CPU",))}, UNKNOWN),
        ({"nvidia_memory": 550 << 20, "wanted": GIB, "whole": GIB}, UNKNOWN),
        ({"nvidia_memory": 7 * GIB, "process": ProcessSample(("/dev/mali0",))}, UNKNOWN),
        # A laptop: the kernel counts Intel's part, and nobody NVIDIA's.
        ({"process": ProcessSample((*DRI, *NVIDIA), None, 1 << 20, 1 << 20)}, UNKNOWN),
        ({"risen": 5 * GIB}, UNKNOWN),
        ({"canary": ANSWERED}, UNKNOWN),
        # An empty process, but of a server that may have no model yet.
        ({"nvidia_memory": 0, "wishes": Wishes()}, UNKNOWN),
        ({"nvidia_memory": 0, "wishes": Wishes(), "canary": ANSWERED}, ON_CPU),
    ],
)
def test_what_shows_nothing_is_unknown(changes: dict[str, object], expected: Verdict) -> None:
    assert judge(vulkan(**changes)) is expected


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        (
            {
                "log": LogFacts(
                    buffers=(("Vulkan0", GIB),), weights=(("Vulkan0", GIB), ("CPU", 5 * GIB))
                )
            },
            GIB,
        ),
        ({"process": HEALTHY, "nvidia_memory": 3 * GIB}, 3 * GIB),
        # The context takes the rest: the files that are still mapped tell the truth.
        ({"process": HEALTHY._replace(model_mapped=4 * GIB), "nvidia_memory": 7 * GIB}, 2 * GIB),
        ({"process": HEALTHY._replace(model_mapped=4 * GIB), "canary": WORKED}, 2 * GIB),
        ({"log": LogFacts(layers=(10, 33)), "canary": WORKED}, None),
    ],
)
def test_a_model_that_is_partly_on_the_gpu_has_a_share(
    changes: dict[str, object], held: int | None
) -> None:
    seen = vulkan(**changes)
    assert judge(seen) is PARTLY
    assert bytes_on_gpu(seen, PARTLY) == held
    assert shortfall(seen, PARTLY, None)
    assert shortfall(seen, PARTLY, 0.9)
    assert shortfall(seen, PARTLY, 0) is None
    assert (shortfall(seen, PARTLY, 0.1) is None) == (held is not None or bool(seen.log.layers))


@pytest.mark.parametrize(
    ("decided", "minimum", "kept"),
    [
        (UNKNOWN, None, False),
        (UNKNOWN, 0.5, False),
        (UNKNOWN, 0.0, True),
        (ON_CPU, 0.0, False),
        (ON_GPU, 1.0, True),
    ],
)
def test_require_gpu_is_a_promise(decided: Verdict, minimum: float | None, kept: bool) -> None:
    assert (shortfall(vulkan(), decided, minimum) is None) == kept


def test_the_layers_of_the_log_decide_whether_all_that_were_asked_for_are_there() -> None:
    partly = vulkan(log=LogFacts(layers=(10, 33)), canary=WORKED)
    assert shortfall(partly, PARTLY, None)
    assert shortfall(partly._replace(wishes=TEN), PARTLY, None) is None
    assert shortfall(partly._replace(wishes=TEN._replace(layers=20)), PARTLY, None)


SIZES = st.none() | st.integers(0, 12 * GIB)
OBSERVED = st.builds(
    vulkan,
    process=st.builds(
        ProcessSample,
        st.none() | st.sampled_from([(), NVIDIA, DRI]),
        st.none() | st.sampled_from([PLUGINS, PLUGINS - {"libggml-vulkan.so"}, frozenset()]),
        st.none(),
        st.none(),
        SIZES,
    ),
    model_size=SIZES,
    nvidia_memory=SIZES,
    risen=SIZES,
    wishes=st.sampled_from([Wishes(names_model=True), TEN, CPU_MOE, REMOTE, Wishes()]),
    whole=SIZES,
    wanted=SIZES,
    needed=SIZES,
    canary=st.builds(CanaryResult, st.booleans(), worked=st.sampled_from([None, True, False])),
    log=st.builds(
        LogFacts,
        buffers=st.sampled_from([(), (("Vulkan0", GIB),), (("CPU", GIB),)]),
        layers=st.sampled_from([None, (0, 33), (10, 33), (33, 33)]),
        complaint=st.sampled_from([None, "no usable GPU found"]),
    ),
)


def test_less_memory_than_the_model_needs_is_not_all_of_it_on_the_gpu() -> None:
    """The log shows the GPU, and the driver counts next to nothing."""
    log = LogFacts(buffers=(("Vulkan0", GIB),))
    for memory in (1, GIB, 2 * GIB):
        seen = vulkan(log=log, process=ProcessSample(NVIDIA), nvidia_memory=memory, wanted=None)
        assert judge(seen) is PARTLY


@given(OBSERVED, st.data())
def test_more_evidence_for_the_cpu_never_makes_the_verdict_better(
    seen: Observed, data: st.DataObject
) -> None:
    """Less memory, no plugin, no engines, a complaint: each alone, whatever else was seen."""
    process = seen.process
    worse = [
        seen._replace(listed=()),
        seen._replace(log=seen.log._replace(layers=(0, 33))),
        seen._replace(log=seen.log._replace(complaint="no usable GPU found")),
    ]
    if seen.nvidia_memory is not None:
        less = data.draw(st.integers(0, seen.nvidia_memory))
        worse.append(seen._replace(nvidia_memory=less))
    if seen.risen is not None:
        worse.append(seen._replace(risen=data.draw(st.integers(0, seen.risen))))
    if process.libraries is not None:
        without = process._replace(libraries=PLUGINS - {"libggml-vulkan.so"})
        worse.append(seen._replace(process=without))
    if process.model_mapped is not None:
        more = process._replace(model_mapped=process.model_mapped + data.draw(st.integers(0, GIB)))
        worse.append(seen._replace(process=more))
    if seen.canary.worked:
        worse.append(seen._replace(canary=seen.canary._replace(worked=False)))
    for each in worse:
        assert RANK[judge(each)] <= RANK[judge(seen)]


@given(OBSERVED)
def test_a_list_of_devices_never_makes_the_verdict_better(seen: Observed) -> None:
    assert RANK[judge(seen)] <= RANK[judge(seen._replace(listed=None))]


def test_the_backend_in_use_is_the_one_that_has_the_buffers() -> None:
    seen = Observed(backend="rocm", log=LogFacts(buffers=(("Vulkan0", GIB),)))
    assert backend_in_use(seen, judge(seen)) == "vulkan"
    assert backend_in_use(seen, ON_CPU) == "cpu"
    assert backend_in_use(seen, UNKNOWN) is None


def of_memory(memory: int, *, worked: bool | None, shared: str | None) -> Observed:
    """A server with a model of 8 GiB, of which NVIDIA's driver counts so much memory."""
    return Observed(
        backend="cuda",
        wishes=Wishes(names_model=True, shared=shared),
        process=ProcessSample(nodes=("/dev/nvidia0",)),
        nvidia_memory=memory,
        model_size=8 * GIB,
        whole=8 * GIB,
        wanted=8 * GIB,
        canary=CanaryResult(answered=True, worked=worked),
    )


# 518 MiB: a process with 8 GiB of managed memory, on an H200 with driver 580.159.04.
@pytest.mark.parametrize("memory", [0, 518 << 20, 3 * GIB])
def test_memory_that_the_gpu_shares_with_the_processor_is_not_missed(memory: int) -> None:
    shared = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"
    assert judge(of_memory(memory, worked=True, shared=shared)) is ON_GPU
    assert judge(of_memory(memory, worked=None, shared=shared)) is UNKNOWN
    # Without it the same server holds too little.
    assert judge(of_memory(memory, worked=None, shared=None)) is not UNKNOWN
    assert judge(of_memory(8 * GIB, worked=None, shared=shared)) is ON_GPU
