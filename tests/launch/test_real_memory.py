"""The estimated need for memory beside what the real server allocates, as its log says.

``test_need`` has the same numbers for whole models. Here the server says them now, for a few layers
of each: the files are holes, but the server reads them.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support import model_headers
from support.builds import REAL_SERVER, real_build
from support.model_headers import Q4_0, Shape, write_shape
from test_need import told_windows

from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.memory_options import memory_options
from tsuku_llm.launch.memory.need import estimate_need

pytestmark = [
    pytest.mark.index,
    pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's"),
]

MIB = 1 << 20
SHAPES: dict[str, Callable[[], Shape]] = {
    "llama": partial(model_headers.llama, layers=2),
    "qwen3moe": partial(model_headers.qwen3_moe, layers=2),
    "gemma3": partial(model_headers.gemma3, layers=6),
    "mamba": partial(model_headers.mamba, layers=2),
    "qwen35": partial(model_headers.qwen35, layers=4),
    "gpt-oss": partial(model_headers.gpt_oss, layers=2),
    "phi3": partial(model_headers.phi3, layers=2),
}
_BUFFER = re.compile(r"(model|KV|RS|compute|output)\s+buffer size\s*=\s*([\d.]+) MiB")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_build(tmp_path_factory.mktemp("real")) / REAL_SERVER


def buffers(server: Path, model: Path, *arguments: str) -> Iterator[tuple[str, float]]:
    """Start the server until it serves; yield the kind and the MiB of each buffer."""
    line = [str(server), "-m", str(model), "-lv", "4", "--no-warmup", "--fit", "off"]
    # Without repacking: that copies the weights.
    line += ["--no-repack", "--device", "none", "--port", "0", *arguments]
    with subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as child:
        assert child.stderr
        for text in child.stderr:
            if found := _BUFFER.search(text):
                yield found[1], float(found[2])
            if "listening on" in text:
                break
        child.kill()


SMALL_CACHES = "-c 8192 -np 2 -ctk q8_0 -ctv q8_0"


@pytest.mark.parametrize(
    ("name", "words"),
    [*((name, "-c 16384") for name in SHAPES), ("gemma3", SMALL_CACHES), ("mamba", SMALL_CACHES)],
)
def test_the_estimate_is_what_the_server_allocates(
    name: str, words: str, server: Path, tmp_path: Path
) -> None:
    path = write_shape(tmp_path / "m.gguf", SHAPES[name](), weights=Q4_0)
    said = list(buffers(server, path, *words.split()))
    assert said
    header = read_header(str(path))
    need = estimate_need(header, memory_options(words.split(), {}))
    cache = sum(size for kind, size in said if kind in ("KV", "RS"))
    if not told_windows(header):
        # Only upstream's code has which of its layers have a window: this is the most.
        assert sum(need.cache) / MIB >= cache
        return
    assert sum(need.cache) / MIB == pytest.approx(cache, rel=0.01)
    # The weights are mapped from the file, and would hide all else.
    computed = sum(size for kind, size in said if kind in ("KV", "RS", "compute", "output"))
    estimated = need.on_processor - need.weights
    assert estimated / MIB == pytest.approx(computed, rel=0.1)
    whole = sum(size for _, size in said)
    assert need.on_processor / MIB == pytest.approx(whole, rel=0.02)
