"""The estimated need for memory beside what a server takes of the GPU, for several architectures.

The models have the shapes of published ones, and holes for weights: the server reads zeros, and
its buffers are as large as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from support import model_headers
from support.model_headers import Q4_0, Shape, write_shape

from ci.gpulab.machine import Machine
from ci.gpulab.steps import running

_SHAPES: Mapping[str, Callable[[], Shape]] = {
    "Llama 3.1 8B (llama)": model_headers.llama,
    "Qwen3 30B-A3B (qwen3moe)": model_headers.qwen3_moe,
    "Gemma 3 12B (gemma3)": model_headers.gemma3,
    "Mamba 2.8B (mamba)": model_headers.mamba,
    "gpt-oss 20B (gpt-oss)": model_headers.gpt_oss,
    "Phi 3.5 mini (phi3)": model_headers.phi3,
}
_CONTEXT = "16384"
_REACH = 0.1
"""Part by which the estimate may be off."""


def fit(machine: Machine) -> Mapping[str, object]:
    """Compare ``explain -m`` with the memory that NVIDIA's library says of the server."""
    # The memory is taken before the first request, and zeros give no answer worth having.
    env = {"TSUKU_LLM_CANARY": "false"}
    found: dict[str, Mapping[str, object]] = {}
    near: list[bool] = []
    for name, shape in _SHAPES.items():
        model = write_shape(machine.folder / "shape.gguf", shape(), weights=Q4_0)
        words = ("explain", "-m", str(model), "--json", "--", "-c", _CONTEXT)
        told = machine.program(*words).data.get("model") or {}
        with running(machine, model, "-c", _CONTEXT, env=env, options=("--require-gpu",)) as server:
            server.wait()
        needed, taken = told.get("device_size"), server.start.get("memory_used")
        ratio = round(needed / taken, 3) if needed and taken else None
        found[name] = {
            "needs": told.get("size"),
            "needs on the GPU": needed,
            "taken of the GPU": taken,
            "ratio": ratio,
            "doubt": told.get("doubt"),
            "error": server.stderr[-1000:] if ratio is None else "",
        }
        # Without the header's word on a window, and without upstream's tool, it is a bound.
        bound = told.get("doubt") == "most" and ratio is not None and ratio > 1
        near.append(bound or (ratio is not None and abs(ratio - 1) <= _REACH))
        model.unlink()
    return {"shown": all(near), "models": found}
