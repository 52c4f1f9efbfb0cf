"""Two small models that each machine makes for itself: everywhere the same bytes.

What they say means nothing. They have the operations and the tensor types of the models that people
use, so that a server which computes their probabilities rightly has run the code for those on this
device. ``ci/compute`` computes the same probabilities from the same bytes in float64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import shake_128
from math import log2, prod
from typing import NamedTuple

VOCABULARY = 128
"""Tokens; the first three are control tokens, which no prompt has and no answer prefers."""

FIRST_TOKEN = 3

_WIDTH, _HEAD, _HEADS, _KEY_HEADS = 256, 64, 4, 2
CONTEXT = 2048
_EXPERTS, _EXPERT_WIDTH, _CODES = 4, 64, 4
_INNER, _STATE, _SSM_HEADS, _CONVOLVED = 512, 128, 8, 4
_FEED_FORWARD = 256
_ALIGNMENT = 32


class _Kind(NamedTuple):
    """A type of tensor: ggml's number of it, and the weights and bytes of a block (ggml-common.h).

    ``unit`` is the root mean square of a weight whose scale is 1.
    """

    number: int
    weights: int
    bytes: int
    unit: float = 1.0


_KINDS = {
    "F32": _Kind(0, 1, 4),
    "F16": _Kind(1, 1, 2, 1.16),
    "Q8_0": _Kind(8, 32, 34, 73.9),
    "Q4_K": _Kind(12, 256, 144, 340.0),
    "Q6_K": _Kind(14, 256, 210, 1366.0),
    "IQ4_XS": _Kind(23, 256, 136, 1294.0),
    "MXFP4": _Kind(39, 32, 17, 2.93),
}


class _Tensor(NamedTuple):
    """One tensor: ``shape`` as GGUF has it, the row's length first.

    ``spread`` is the root mean square of its weights; in F32 they lie around ``middle``. The first
    ``silent`` rows of each matrix are zero.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    spread: float
    middle: float = 0.0
    silent: int = 0


def mixture() -> bytes:
    """Return a model like gpt-oss: experts in MXFP4, sliding windows, sinks, and biases."""
    heads, keys = _HEADS * _HEAD, _KEY_HEADS * _HEAD
    up, down = (_WIDTH, _EXPERT_WIDTH, _EXPERTS), (_EXPERT_WIDTH, _WIDTH, _EXPERTS)
    tensors = [
        _Tensor("token_embd.weight", "F16", (_WIDTH, VOCABULARY), 1.0),
        _norm("output_norm"),
        _output("Q6_K"),
    ]
    for layer, (attention, experts) in enumerate((("F16", "MXFP4"), ("IQ4_XS", "Q4_K"))):
        block = f"blk.{layer}."
        tensors += [
            _norm(f"{block}attn_norm"),
            _norm(f"{block}post_attention_norm"),
            *_attention(block, attention),
            # The first values of each token say which experts it gets, by a margin that no rounding
            # reaches. So nothing is added to these values.
            _Tensor(f"{block}attn_q.bias", "F32", (heads,), 0.3),
            _Tensor(f"{block}attn_k.bias", "F32", (keys,), 0.3),
            _Tensor(f"{block}attn_v.bias", "F32", (keys,), 0.3),
            _Tensor(f"{block}attn_output.bias", "F32", (_WIDTH,), 0.5, silent=_CODES),
            _Tensor(f"{block}attn_sinks.weight", "F32", (_HEADS,), 0.5, 1.0),
            _Tensor(f"{block}ffn_gate_inp.weight", "F32", (_WIDTH, _EXPERTS), 0.0),
            _Tensor(f"{block}ffn_gate_inp.bias", "F32", (_EXPERTS,), 0.1),
            _Tensor(f"{block}ffn_gate_exps.weight", experts, up, 0.09),
            _Tensor(f"{block}ffn_up_exps.weight", experts, up, 0.09),
            _Tensor(f"{block}ffn_down_exps.weight", "MXFP4", down, 0.12, silent=_CODES),
            _Tensor(f"{block}ffn_gate_exps.bias", "F32", (_EXPERT_WIDTH, _EXPERTS), 0.3),
            _Tensor(f"{block}ffn_up_exps.bias", "F32", (_EXPERT_WIDTH, _EXPERTS), 0.3),
            _Tensor(f"{block}ffn_down_exps.bias", "F32", (_WIDTH, _EXPERTS), 0.5, silent=_CODES),
        ]
    return _gguf(
        "gpt-oss",
        {
            "attention.head_count": _HEADS,
            "attention.head_count_kv": _KEY_HEADS,
            "attention.key_length": _HEAD,
            "attention.value_length": _HEAD,
            "attention.sliding_window": 32,
            "expert_count": _EXPERTS,
            "expert_used_count": 2,
            "expert_feed_forward_length": _EXPERT_WIDTH,
            "feed_forward_length": _EXPERT_WIDTH,
        },
        tensors,
    )


def recurrent() -> bytes:
    """Return a model like Granite 4: a layer of Mamba 2, then one of attention as Llama has it."""
    channels = _INNER + 2 * _STATE
    tensors = [
        _Tensor("token_embd.weight", "Q8_0", (_WIDTH, VOCABULARY), 1.0),
        _norm("output_norm"),
        _output("F16"),
        _norm("blk.0.attn_norm"),
        _Tensor("blk.0.ssm_in.weight", "Q4_K", (_WIDTH, _INNER + channels + _SSM_HEADS), 0.0625),
        _Tensor("blk.0.ssm_conv1d.weight", "F32", (_CONVOLVED, channels), 0.5),
        _Tensor("blk.0.ssm_conv1d.bias", "F32", (channels,), 0.3),
        _Tensor("blk.0.ssm_dt.bias", "F32", (_SSM_HEADS,), 0.5, -2.0),
        _Tensor("blk.0.ssm_a", "F32", (1, _SSM_HEADS), 0.3, -1.0),
        _Tensor("blk.0.ssm_d", "F32", (1, _SSM_HEADS), 0.3, 1.0),
        _norm("blk.0.ssm_norm", _INNER),
        _Tensor("blk.0.ssm_out.weight", "Q8_0", (_INNER, _WIDTH), 0.0625),
        _norm("blk.1.attn_norm"),
        *_attention("blk.1.", "Q6_K"),
    ]
    for block, (gate, up, down) in (
        ("blk.0.", ("IQ4_XS", "Q6_K", "Q8_0")),
        ("blk.1.", ("Q4_K", "IQ4_XS", "F16")),
    ):
        tensors += [
            _norm(f"{block}ffn_norm"),
            _Tensor(f"{block}ffn_gate.weight", gate, (_WIDTH, _FEED_FORWARD), 0.09),
            _Tensor(f"{block}ffn_up.weight", up, (_WIDTH, _FEED_FORWARD), 0.09),
            _Tensor(f"{block}ffn_down.weight", down, (_FEED_FORWARD, _WIDTH), 0.09),
        ]
    return _gguf(
        "granitehybrid",
        {
            "attention.head_count": _HEADS,
            # No heads of keys: this layer is the recurrent one.
            "attention.head_count_kv": (0, _KEY_HEADS),
            "feed_forward_length": _FEED_FORWARD,
            "ssm.conv_kernel": _CONVOLVED,
            "ssm.inner_size": _INNER,
            "ssm.state_size": _STATE,
            "ssm.time_step_rank": _SSM_HEADS,
            "ssm.group_count": 1,
        },
        tensors,
    )


MODELS: Mapping[str, Callable[[], bytes]] = {"mixture": mixture, "recurrent": recurrent}
"""The models by name."""


def _norm(name: str, size: int = _WIDTH) -> _Tensor:
    return _Tensor(f"{name}.weight", "F32", (size,), 0.2, 1.0)


def _output(kind: str) -> _Tensor:
    return _Tensor("output.weight", kind, (_WIDTH, VOCABULARY), 0.125, silent=FIRST_TOKEN)


def _attention(block: str, kind: str) -> Iterable[_Tensor]:
    heads, keys = _HEADS * _HEAD, _KEY_HEADS * _HEAD
    yield _Tensor(f"{block}attn_q.weight", kind, (_WIDTH, heads), 0.08)
    yield _Tensor(f"{block}attn_k.weight", kind, (_WIDTH, keys), 0.08)
    yield _Tensor(f"{block}attn_v.weight", kind, (_WIDTH, keys), 0.08)
    yield _Tensor(f"{block}attn_output.weight", kind, (heads, _WIDTH), 0.08, silent=_CODES)


def _data(model: str, tensor: _Tensor) -> bytes:
    """Return a tensor's bytes: a hash of its name, with the scales that give it its spread."""
    kind = _KINDS[tensor.kind]
    count = prod(tensor.shape)
    if tensor.name.endswith("ffn_gate_inp.weight"):
        # Expert e reads value e of the token, and nothing else.
        values = [2.0 if place % _WIDTH == place // _WIDTH else 0.0 for place in range(count)]
        return struct.pack(f"<{count}f", *values)
    size = count // kind.weights * kind.bytes
    data = bytearray(shake_128(f"{model} {tensor.name}".encode()).digest(size))
    if tensor.kind == "F32":
        # sqrt(3): a uniform value between -1 and 1 has a root mean square of 1 / sqrt(3).
        step = tensor.spread * 1.732 / 128
        values = [tensor.middle + step * (byte - 127.5) for byte in data[:count]]
        data[:] = struct.pack(f"<{count}f", *values)
    else:
        _scale(tensor.kind, data, tensor.spread / kind.unit)
    if model == "gpt-oss" and tensor.name == "token_embd.weight":
        # Give each token two large values among its first ones: these are its experts.
        for token in range(VOCABULARY):
            first = token % _CODES
            second = (first + 1 + token // _CODES % (_CODES - 1)) % _CODES
            values = [0.0] * _CODES
            values[first], values[second] = 4.0, 3.5
            at = token * _WIDTH * 2
            data[at : at + _CODES * 2] = struct.pack(f"<{_CODES}e", *values)
    # The first rows of each matrix are zero; in F32 these are the first values of each row.
    row = 4 if tensor.kind == "F32" else tensor.shape[0] // kind.weights * kind.bytes
    each = tensor.shape[0] * 4 if tensor.kind == "F32" else row * tensor.shape[1]
    for start in range(0, len(data), each) if tensor.silent else ():
        data[start : start + tensor.silent * row] = bytes(tensor.silent * row)
    return bytes(data)


def _scale(kind: str, data: bytearray, scale: float) -> None:
    """Write the scale into each block; ggml-common.h has the layouts."""
    half = struct.pack("<e", scale)
    if kind == "F16":
        # The sign and two bits of the fraction as they are, and one of three exponents.
        top = 15 + round(log2(scale))
        table = bytes(byte & 0x83 | (top - max(0, (byte >> 2 & 3) - 1)) << 2 for byte in range(256))
        data[1::2] = data[1::2].translate(table)
    elif kind == "MXFP4":
        data[0::17] = bytes([127 + round(log2(scale))]) * (len(data) // 17)
    elif kind == "Q6_K":
        _fill(data, 210, 208, half)
    else:
        _fill(data, _KINDS[kind].bytes, 0, half)
        if kind == "Q4_K":
            # The minimum, so that the weights lie around zero.
            _fill(data, 144, 2, struct.pack("<e", scale * 7.5))


def _fill(data: bytearray, block: int, at: int, value: bytes) -> None:
    for place, byte in enumerate(value):
        data[at + place :: block] = bytes([byte]) * (len(data) // block)


def _gguf(
    architecture: str,
    facts: Mapping[str, int | tuple[int, ...]],
    tensors: Sequence[_Tensor],
) -> bytes:
    """Return a GGUF file of version 3 (docs/gguf.md of ggml), of a model with two layers."""
    texts = ["<unk>", "<s>", "</s>", *(f" t{number}" for number in range(FIRST_TOKEN, VOCABULARY))]
    kinds = [2, 3, 3] + [1] * (VOCABULARY - FIRST_TOKEN)
    common = {
        "context_length": CONTEXT,
        "embedding_length": _WIDTH,
        "block_count": 2,
        "vocab_size": VOCABULARY,
        "rope.dimension_count": _HEAD,
    }
    pairs = [
        ("general.architecture", _string(architecture, tag=True)),
        ("general.name", _string("tsuku-llm reference", tag=True)),
        *((f"{architecture}.{key}", _number(value)) for key, value in {**common, **facts}.items()),
        (f"{architecture}.attention.layer_norm_rms_epsilon", struct.pack("<If", 6, 1e-5)),
        (f"{architecture}.rope.freq_base", struct.pack("<If", 6, 10000.0)),
        ("tokenizer.ggml.model", _string("llama", tag=True)),
        ("tokenizer.ggml.tokens", _array(8, map(_string, texts))),
        ("tokenizer.ggml.scores", _array(6, (struct.pack("<f", 0) for _ in texts))),
        ("tokenizer.ggml.token_type", _array(5, (struct.pack("<i", kind) for kind in kinds))),
        ("tokenizer.ggml.unknown_token_id", _number(0)),
        ("tokenizer.ggml.bos_token_id", _number(1)),
        ("tokenizer.ggml.eos_token_id", _number(2)),
    ]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs))
    head += b"".join(_string(key) + value for key, value in pairs)
    body = bytearray()
    for tensor in tensors:
        head += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        head += struct.pack("<IQ", _KINDS[tensor.kind].number, len(body))
        body += _data(architecture, tensor)
        body += bytes(-len(body) % _ALIGNMENT)
    return head + bytes(-len(head) % _ALIGNMENT) + bytes(body)


def _string(text: str, *, tag: bool = False) -> bytes:
    data = text.encode()
    return (struct.pack("<I", 8) if tag else b"") + struct.pack("<Q", len(data)) + data


def _number(value: int | tuple[int, ...]) -> bytes:
    if isinstance(value, tuple):
        return _array(4, (struct.pack("<I", each) for each in value))
    return struct.pack("<II", 4, value)


def _array(kind: int, items: Iterable[bytes]) -> bytes:
    items = list(items)
    return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)
