"""A plain forward pass of the two reference models in float64, from the bytes of their files.

The files are read, and their blocks decoded, by upstream's own package ``gguf``. The rest follows
upstream's graphs of b11434: ``src/models/openai-moe.cpp``, ``granite-hybrid.cpp`` and
``mamba-base.cpp``. Nothing here is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Rounding = Callable[[str, Values], Values]
"""What is done to the values that are multiplied with a tensor of this type."""


class Model:
    """The tensors and facts of one file; ``rounding`` stands for what kernels do to activations."""

    def __init__(self, path: Path, rounding: Rounding = lambda _, values: values) -> None:
        reader = gguf.GGUFReader(path)
        self.rounding = rounding
        self.kinds = {each.name: each.tensor_type.name for each in reader.tensors}
        self.tensors: dict[str, Values] = {
            each.name: gguf.quants.dequantize(each.data, each.tensor_type).astype(np.float64)
            for each in reader.tensors
        }
        self.architecture = str(reader.fields["general.architecture"].contents())
        self._fields = reader.fields

    def fact(self, name: str) -> Any:
        """Return a fact of the architecture."""
        return self._fields[f"{self.architecture}.{name}"].contents()

    def multiply(self, name: str, values: Values) -> Values:
        """Multiply rows of values with a weight."""
        rounded = self.rounding(self.kinds[f"{name}.weight"], values)
        product: Values = rounded @ self.tensors[f"{name}.weight"].T
        return product

    def norm(self, name: str, values: Values) -> Values:
        """Divide by the root mean square, and multiply with a weight."""
        epsilon = float(np.float32(self.fact("attention.layer_norm_rms_epsilon")))
        mean = np.mean(values**2, axis=-1, keepdims=True)
        normed: Values = values / np.sqrt(mean + epsilon) * self.tensors[f"{name}.weight"].ravel()
        return normed

    def bias(self, name: str) -> Values:
        """Return a bias; none is zero."""
        return self.tensors.get(f"{name}.bias", np.zeros(1))


def log_probabilities(model: Model, tokens: Sequence[int]) -> Values:
    """Return the logarithms of the probabilities of the token that follows each one."""
    values = model.tensors["token_embd.weight"][list(tokens)]
    layers = {"gpt-oss": _mixture, "granitehybrid": _recurrent}[model.architecture]
    for layer in range(model.fact("block_count")):
        values = layers(model, f"blk.{layer}", layer, values)
    logits = model.multiply("output", model.norm("output_norm", values))
    return logits - _log_sum(logits)


def _mixture(model: Model, block: str, layer: int, values: Values) -> Values:
    # Every other layer has a window, beginning with the first (load_swa_pattern).
    window = model.fact("attention.sliding_window") if layer % 2 == 0 else None
    normed = model.norm(f"{block}.attn_norm", values)
    sinks = model.tensors[f"{block}.attn_sinks.weight"]
    halves = attention(model, block, normed, 2, neox=True, window=window, sinks=sinks)
    values = values + halves
    normed = model.norm(f"{block}.post_attention_norm", values)
    return values + _experts(model, block, normed)


def _experts(model: Model, block: str, values: Values) -> Values:
    logits = model.multiply(f"{block}.ffn_gate_inp", values) + model.bias(f"{block}.ffn_gate_inp")
    used = model.fact("expert_used_count")
    chosen = np.argsort(-logits, axis=1)[:, :used]
    shares = softmax(np.take_along_axis(logits, chosen, axis=1))
    result = np.zeros_like(values)

    def through(part: str, expert: int, rows: Values) -> Values:
        name = f"{block}.ffn_{part}_exps"
        rounded = model.rounding(model.kinds[f"{name}.weight"], rows)
        weight, bias = model.tensors[f"{name}.weight"][expert], model.bias(name)[expert]
        product: Values = rounded @ weight.T + bias
        return product

    for expert in range(model.fact("expert_count")):
        rows, places = np.nonzero(chosen == expert)
        gate = np.minimum(through("gate", expert, values[rows]), 7.0)
        up = np.clip(through("up", expert, values[rows]), -7.0, 7.0)
        active = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
        result[rows] += through("down", expert, active) * shares[rows, places][:, None]
    return result


def _recurrent(model: Model, block: str, layer: int, values: Values) -> Values:
    normed = model.norm(f"{block}.attn_norm", values)
    if model.fact("attention.head_count_kv")[layer] == 0:
        values = values + _mamba(model, block, normed)
    else:
        keys = model.fact("attention.head_count_kv")[layer]
        values = values + attention(model, block, normed, keys, neox=False)
    normed = model.norm(f"{block}.ffn_norm", values)
    gate = model.multiply(f"{block}.ffn_gate", normed)
    up = model.multiply(f"{block}.ffn_up", normed)
    return values + model.multiply(f"{block}.ffn_down", silu(gate) * up)


def _mamba(model: Model, block: str, values: Values) -> Values:
    inner, state = model.fact("ssm.inner_size"), model.fact("ssm.state_size")
    heads, kernel = model.fact("ssm.time_step_rank"), model.fact("ssm.conv_kernel")
    width = inner // heads
    projected = model.multiply(f"{block}.ssm_in", values)
    gate, mixed, steps = np.split(projected, [inner, 2 * inner + 2 * state], axis=1)
    padded = np.concatenate([np.zeros((kernel - 1, mixed.shape[1])), mixed])
    weight = model.tensors[f"{block}.ssm_conv1d.weight"]
    convolved = sum(padded[at : at + len(mixed)] * weight[:, at] for at in range(kernel))
    mixed = silu(convolved + model.bias(f"{block}.ssm_conv1d"))
    inputs, writes, reads = np.split(mixed, [inner, inner + state], axis=1)
    inputs = inputs.reshape(-1, heads, width)
    steps = np.logaddexp(0, steps + model.bias(f"{block}.ssm_dt"))
    decay = np.exp(steps * model.tensors[f"{block}.ssm_a"].ravel())
    kept = np.zeros((heads, width, state))
    result = np.zeros_like(inputs)
    for at in range(len(values)):
        kept *= decay[at][:, None, None]
        kept += (inputs[at] * steps[at][:, None])[:, :, None] * writes[at]
        result[at] = kept @ reads[at]
    result += inputs * model.tensors[f"{block}.ssm_d"].ravel()[:, None]
    gated = silu(gate) * result.reshape(-1, inner)
    return model.multiply(f"{block}.ssm_out", model.norm(f"{block}.ssm_norm", gated))


def attention(
    model: Model,
    block: str,
    values: Values,
    key_heads: int,
    *,
    neox: bool,
    window: int | None = None,
    sinks: Values | None = None,
) -> Values:
    """Return what attention adds to each position."""
    heads, size = model.fact("attention.head_count"), model.fact("rope.dimension_count")
    if isinstance(heads, list):
        heads = heads[0]

    def projected(part: str, count: int) -> Values:
        name = f"{block}.attn_{part}"
        return (model.multiply(name, values) + model.bias(name)).reshape(-1, count, size)

    base = float(model.fact("rope.freq_base"))
    queries = rope(projected("q", heads), base, neox=neox)
    # The cache has numbers of 16 bits.
    keys = rope(projected("k", key_heads), base, neox=neox).astype(np.float16).astype(np.float64)
    contents = projected("v", key_heads).astype(np.float16).astype(np.float64)
    place = np.arange(len(values))
    seen = place[:, None] >= place[None, :]
    if window is not None:
        seen &= place[:, None] - place[None, :] < window
    result = np.zeros_like(queries)
    for head in range(heads):
        of = head * key_heads // heads
        scores = queries[:, head] @ keys[:, of].T / np.sqrt(size)
        scores[~seen] = -np.inf
        if sinks is not None:
            scores = np.column_stack([scores, np.full(len(values), sinks[head])])
        shares = softmax(scores)[:, : len(values)]
        result[:, head] = shares @ contents[:, of]
    name = f"{block}.attn_output"
    return model.multiply(name, result.reshape(len(values), -1)) + model.bias(name)


def rope(values: Values, base: float, *, neox: bool) -> Values:
    """Rotate pairs of values by the position: neighbours, or with ``neox`` the two halves."""
    size = values.shape[-1]
    angles = np.arange(len(values))[:, None] * base ** (-np.arange(0, size, 2) / size)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    result = np.empty_like(values)
    first, second = _pairs(size, neox=neox)
    result[..., first] = values[..., first] * cosine - values[..., second] * sine
    result[..., second] = values[..., first] * sine + values[..., second] * cosine
    return result


def _pairs(size: int, *, neox: bool) -> Iterator[slice]:
    if neox:
        yield from (slice(0, size // 2), slice(size // 2, size))
    else:
        yield from (slice(0, size, 2), slice(1, size, 2))


def softmax(values: Values) -> Values:
    """Return shares that add up to 1 in each row."""
    shares: Values = np.exp(values - _log_sum(values))
    return shares


def silu(values: Values) -> Values:
    """Multiply each value with its own sigmoid."""
    active: Values = values / (1 + np.exp(-values))
    return active


def _log_sum(values: Values) -> Values:
    most = values.max(axis=-1, keepdims=True)
    total: Values = most + np.log(np.exp(values - most).sum(axis=-1, keepdims=True))
    return total
