"""Where a server computes: what its log, the kernel and its list say, and what that adds up to."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.devices import ListedDevice
from tsuku_llm.launch.gpu_use import _WEIGHTS, Observed, backend_in_use, collect_signs, verdict
from tsuku_llm.launch.log import LogFacts, LogReader, read_line
from tsuku_llm.launch.planning import refusal_in
from tsuku_llm.launch.proc import ProcessSample, drm_memory, mapped_files
from tsuku_llm.launch.report import Sign, Verdict

LOGS = Path(__file__).parents[1] / "server_logs"
GIB = 1 << 30
H200 = ListedDevice("Vulkan0", "NVIDIA H200", 140 * GIB, 139 * GIB)
ON_GPU, ON_CPU, UNKNOWN = Verdict.ON_GPU, Verdict.ON_CPU, Verdict.UNKNOWN


def read(name: str, size: int = 1 << 16) -> LogFacts:
    """A recorded log, read in pieces of ``size`` bytes as a pipe would give it."""
    reader, data = LogReader(), (LOGS / f"{name}.txt").read_bytes()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader.facts


def judge(seen: Observed) -> Verdict:
    return verdict(collect_signs(seen))


VERSIONS = ("b10068", "b10092", "b10434")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_the_log_of_a_server_on_a_device(version: str, size: int) -> None:
    facts = read(f"{version}-gpu", size)
    assert facts.device == "Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits)"
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
def test_layers_are_offloaded_where_there_is_no_gpu_at_all(version: str) -> None:
    """Upstream prints the number that it would offload, so it is no sign of a GPU."""
    facts = read(f"{version}-cpu")
    assert facts.layers == (3, 3)
    assert facts.device is None
    (sign,) = collect_signs(Observed(backend="vulkan", log=LogFacts(layers=facts.layers)))
    assert (sign.name, sign.says) == ("layers", UNKNOWN)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_of_the_usual_verbosity_says_nothing(version: str) -> None:
    facts = read(f"{version}-gpu-quiet")
    assert facts == LogFacts(listens=True, port=facts.port)
    assert judge(Observed(backend="vulkan", log=facts)) is UNKNOWN
    assert judge(Observed(backend="vulkan", log=facts, listed=(H200,))) is ON_GPU
    assert judge(Observed(backend="vulkan", log=facts, listed=())) is ON_CPU


OTHER_DIALECTS = {
    "load_backend: loaded CUDA backend from /opt/libggml-cuda.so": {"loaded": ("CUDA",)},
    "llm_load_tensors: offloaded 0/33 layers to GPU": {"layers": (0, 33)},
    "llm_load_tensors:        CUDA0 buffer size =  4095.05 MiB": {},
    "load_tensors:        CUDA0 model buffer size =  4096.00 MiB": {
        "buffers": (("CUDA0", 4 * GIB),)
    },
    "load_tensors: RPC[10.0.0.2:50052] model buffer size = 1.00 MiB": {
        "buffers": (("RPC[10.0.0.2:50052]", 1 << 20),)
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
    "an ordinary line": {},
}


@pytest.mark.parametrize(("line", "facts"), OTHER_DIALECTS.items())
def test_other_dialects(line: str, facts: dict[str, object]) -> None:
    assert read_line(LogFacts(), line) == LogFacts(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", ["1.2.3", ".", "9" * 400, "1e999", "", "-1"])
def test_S08_a_size_that_is_no_number_is_passed_over(size: str) -> None:
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
def test_S08_a_number_of_too_many_digits_is_none(line: str, facts: dict[str, object]) -> None:
    assert read_line(LogFacts(), line) == LogFacts(**facts)  # type: ignore[arg-type]


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_read_in_any_pieces(data: bytes, size: int) -> None:
    whole, pieces = LogReader(), LogReader()
    whole.feed(data)
    for at in range(0, len(data), size):
        pieces.feed(data[at : at + size])
    assert pieces.facts == whole.facts


def test_a_line_without_end_costs_no_memory() -> None:
    reader = LogReader()
    for _ in range(100):
        reader.feed(b"x" * 100_000)
    assert len(reader._rest) <= 4096


def test_where_everything_is_seen_of_a_healthy_server() -> None:
    seen = Observed(
        backend="vulkan",
        files=frozenset({"libggml-vulkan.so", "libggml-cpu.so", "llama-server"}),
        listed=(H200,),
        log=read("b10434-gpu"),
        process=ProcessSample(("/dev/nvidia0",), frozenset({"libggml-vulkan.so", "llama-server"})),
        process_memory=8 * GIB,
        model_size=6 * GIB,
    )
    found = collect_signs(seen)
    assert {sign.name for sign in found} == {
        "device-list",
        "plugin",
        "buffers",
        "layers",
        "device-nodes",
        "process-memory",
    }
    assert verdict(found) is ON_GPU
    assert backend_in_use(seen, ON_GPU) == "vulkan"


BARE = Observed(backend="cuda", files=frozenset({"libggml-cuda.so", "llama-server"}))
SEEN_WITHOUT_PLUGIN = ProcessSample(("/dev/nvidia0",), frozenset({"llama-server"}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, UNKNOWN),
        ({"listed": ()}, ON_CPU),
        ({"listed": (ListedDevice("Vulkan0", "NVIDIA H200"),)}, ON_CPU),
        ({"listed": (ListedDevice("CUDA0", "NVIDIA H200"),)}, ON_GPU),
        (
            {
                "listed": (ListedDevice("CUDA0", "NVIDIA H200", 8 * GIB, GIB),),
                "model_size": 6 * GIB,
            },
            UNKNOWN,
        ),
        ({"process": SEEN_WITHOUT_PLUGIN}, ON_CPU),
        ({"process": ProcessSample((), frozenset({"dash"}))}, UNKNOWN),
        ({"process": ProcessSample(())}, UNKNOWN),
        ({"process": ProcessSample(("/dev/nvidia0",))}, UNKNOWN),
        ({"log": LogFacts(loaded=("CPU",))}, UNKNOWN),
        ({"log": LogFacts(loaded=("CPU",)), "process": ProcessSample(())}, ON_CPU),
        ({"log": LogFacts(loaded=("CUDA", "CPU")), "process": ProcessSample(())}, UNKNOWN),
        ({"log": LogFacts(buffers=(("CUDA_Host", GIB), ("CPU_REPACK", GIB)))}, ON_CPU),
        ({"log": LogFacts(buffers=(("CUDA0", GIB), ("CPU", GIB)))}, ON_GPU),
        ({"log": LogFacts(buffers=(("CUDA0", 0), ("CPU", GIB)))}, ON_CPU),
        ({"log": LogFacts(buffers=(("RPC[10.0.0.2:50052]", GIB), ("CPU", GIB)))}, UNKNOWN),
        ({"process_memory": 550 << 20, "model_size": 1 << 20}, UNKNOWN),
        ({"process_memory": 7 * GIB, "model_size": 6 * GIB}, ON_GPU),
        ({"process_memory": 7 * GIB}, UNKNOWN),
        ({"risen": 7 * GIB, "model_size": 6 * GIB}, ON_GPU),
        ({"refusal": "-ngl 0", "listed": (ListedDevice("CUDA0", "NVIDIA H200"),)}, ON_CPU),
    ],
)
def test_what_the_signs_add_up_to(changes: dict[str, object], expected: Verdict) -> None:
    assert judge(BARE._replace(**changes)) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits)", "Vulkan0: SwiftShader Device"]
)
def test_a_software_device_is_no_gpu(name: str) -> None:
    listed = (ListedDevice(*name.split(": ")),)
    assert judge(Observed(backend="vulkan", listed=listed)) is ON_CPU


def test_the_backend_in_use_is_the_one_that_has_the_buffers() -> None:
    seen = Observed(backend="rocm", log=LogFacts(buffers=(("Vulkan0", GIB),)))
    assert backend_in_use(seen, judge(seen)) == "vulkan"
    assert backend_in_use(seen, ON_CPU) == "cpu"
    assert backend_in_use(seen, UNKNOWN) is None


TRUE_SIGNS = [key for key in _WEIGHTS if key[1] is ON_GPU]
SILENT = st.lists(
    st.sampled_from(sorted({name for name, _ in _WEIGHTS})).map(lambda name: (name, UNKNOWN))
)
FALSE_SIGNS = [key for key in _WEIGHTS if key[1] is ON_CPU and key[0] != "arguments"]


def told(keys: list[tuple[str, Verdict]]) -> list[Sign]:
    return [Sign(name, says, "") for name, says in keys]


@given(st.lists(st.sampled_from(TRUE_SIGNS), min_size=1, unique=True), SILENT, st.data())
def test_no_healthy_server_is_accused(
    true: list[tuple[str, Verdict]], silent: list[tuple[str, Verdict]], data: st.DataObject
) -> None:
    """As long as one sign works, another may lie, and any number may say nothing."""
    names = {name for name, _ in true}
    lies = [key for key in FALSE_SIGNS if key[0] not in names]
    lie = data.draw(st.lists(st.sampled_from(lies), max_size=1))
    found = data.draw(st.permutations(told([*true, *silent, *lie])))
    assert verdict(found) is not ON_CPU


@given(SILENT)
def test_signs_that_say_nothing_are_unknown(silent: list[tuple[str, Verdict]]) -> None:
    assert verdict(told(silent)) is UNKNOWN


@given(st.sampled_from(FALSE_SIGNS), SILENT)
def test_one_weak_sign_accuses_nobody(
    sign: tuple[str, Verdict], silent: list[tuple[str, Verdict]]
) -> None:
    assert (verdict(told([sign, *silent])) is ON_CPU) == (_WEIGHTS[sign] > 1)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("-ngl 0", "-ngl 0"),
        ("--n-gpu-layers 0", "--n-gpu-layers 0"),
        ("--gpu_layers 0", "--gpu-layers 0"),
        ("--device none", "--device none"),
        ("-dev none", "-dev none"),
        ("-ngl 99 -c 0", None),
        ("-dev Vulkan0", None),
        ("-ngl", None),
        ("", None),
    ],
)
def test_words_that_keep_a_server_from_the_gpu(words: str, refusal: str | None) -> None:
    assert refusal_in(words.split(), {}) == refusal


def test_a_variable_that_keeps_a_server_from_the_gpu() -> None:
    assert refusal_in((), {"LLAMA_ARG_DEVICE": "none"}) == "LLAMA_ARG_DEVICE none"


# fdinfo as the kernel's documentation (drm-usage-stats) and drivers print it.

AMDGPU = """\
pos:\t0
drm-driver:\tamdgpu
drm-client-id:\t34
drm-pdev:\t0000:03:00.0
drm-memory-vram:\t5242880 KiB
drm-memory-gtt: \t20480 KiB
drm-memory-cpu: \t0 KiB
"""
XE = """\
drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:00:02.0
drm-total-system:\t1024 MiB
drm-resident-system:\t512 MiB
drm-total-vram0:\t4096 MiB
drm-resident-vram0:\t2048 MiB
"""
I915 = "drm-driver:\ti915\ndrm-client-id:\t9\ndrm-total-system0:\t262144 KiB\n"


@pytest.mark.parametrize(
    ("texts", "memory"),
    [
        ([], None),
        (["pos:\t0\nflags:\t02\n"], None),
        ([AMDGPU], 5 * GIB),
        ([AMDGPU, AMDGPU], 5 * GIB),
        ([XE], 2 * GIB),
        ([I915], 256 << 20),
        ([AMDGPU.replace("34", "35"), XE], 7 * GIB),
        (["drm-client-id:\t1\n"], None),
        (["drm-client-id:\t1\ndrm-memory-vram:\t77\n"], 77),
    ],
)
def test_the_memory_that_the_kernels_drivers_count(texts: list[str], memory: int | None) -> None:
    assert drm_memory(texts) == memory


def test_the_names_of_mapped_files() -> None:
    maps = """\
55d0-55d1 r-xp 00000000 08:01 12 /opt/my build/llama-server
7f00-7f01 r--p 00000000 08:01 13 /opt/my build/libggml-vulkan.so (deleted)
7f02-7f03 rw-p 00000000 00:00 0
7f04-7f05 r-xp 00000000 00:00 0  [vdso]
"""
    assert mapped_files(maps) == {"llama-server", "libggml-vulkan.so", "[vdso]"}
