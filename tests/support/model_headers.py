"""Models of real shapes whose weights are a hole in the file: they take no space.

The shapes are those of published models, from their own ``config.json``. The real server loads
such a file, and says in its log what it takes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
_BITS = {F32: 32, F16: 16, Q4_0: 4.5, Q8_0: 8.5}
_ALIGNMENT = 32

Value = int | float | str | bool | Sequence[int | float | str | bool]


class Shape(NamedTuple):
    """A model: its keys without the architecture's name, and the shape of each tensor."""

    architecture: str
    keys: Mapping[str, Value]
    tensors: Mapping[str, tuple[int, ...]]


def write_shape(path: Path, shape: Shape, *, weights: int = F16, vocabulary: int = 0) -> Path:
    """Write the header of a model, and a hole as long as its weights.

    Matrices have the type ``weights``, all else is F32. ``vocabulary`` is the number of tokens that
    the header lists, 0: as many as the model embeds.
    """
    shown = vocabulary or shape.tensors["token_embd.weight"][1]
    keys: dict[str, Value] = {"general.architecture": shape.architecture}
    keys |= {f"{shape.architecture}.{name}": value for name, value in shape.keys.items()}
    keys |= {"tokenizer.ggml.model": "llama"}
    keys |= {"tokenizer.ggml.tokens": [f"<{number}>" for number in range(shown)]}
    keys |= {"tokenizer.ggml.scores": [0.0] * shown}
    keys |= {"tokenizer.ggml.token_type": [2, 3, 3] + [1] * (shown - 3)}
    return write_header(path, keys, shape.tensors, weights)


def write_header(
    path: Path, keys: Mapping[str, Value], tensors: Mapping[str, tuple[int, ...]], weights: int
) -> Path:
    """Write a file with these keys and tensors."""
    words, offset = [_text(name) + _value(value) for name, value in keys.items()], 0
    for name, dimensions in tensors.items():
        plain = any(word in name for word in ("norm", "ssm", "bias"))
        kind = weights if len(dimensions) > 1 and not plain else F32
        words.append(
            _text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        )
        words.append(struct.pack("<IQ", kind, offset))
        count = 1
        for each in dimensions:
            count *= each
        size = int(count * _BITS[kind]) // 8
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(words)
    head += bytes(-len(head) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Value) -> bytes:
    kind, data = _packed(value)
    return struct.pack("<I", kind) + data


def _packed(value: Value) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _text(value)
    items = [_packed(each) for each in value]
    # The scores and types of a vocabulary: signed numbers in real files, which is the same here.
    kind = 5 if items[0][0] == 4 else items[0][0]
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)


def _attention(
    width: int, heads: int, kv: int, head: int, head_v: int = 0
) -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm": (width,),
        "attn_q": (width, heads * head),
        "attn_k": (width, kv * head),
        "attn_v": (width, kv * (head_v or head)),
        "attn_output": (heads * (head_v or head), width),
    }


def _dense(width: int, inner: int) -> dict[str, tuple[int, ...]]:
    gate = {"ffn_norm": (width,), "ffn_gate": (width, inner), "ffn_up": (width, inner)}
    return {**gate, "ffn_down": (inner, width)}


def _experts(width: int, inner: int, count: int) -> dict[str, tuple[int, ...]]:
    return {
        "ffn_norm": (width,),
        "ffn_gate_inp": (width, count),
        "ffn_gate_exps": (width, inner, count),
        "ffn_down_exps": (inner, width, count),
        "ffn_up_exps": (width, inner, count),
    }


def _model(
    width: int,
    vocabulary: int,
    blocks: Sequence[Mapping[str, tuple[int, ...]]],
    *,
    tied: bool = False,
) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (width, vocabulary)}
    tensors["output_norm.weight"] = (width,)
    if not tied:
        tensors["output.weight"] = (width, vocabulary)
    for number, block in enumerate(blocks):
        for name, dimensions in block.items():
            plain = name in {"ssm_a", "ssm_d"} or "." in name
            tensors[f"blk.{number}.{name}" + ("" if plain else ".weight")] = dimensions
    return tensors


def _keys(width: int, layers: int, context: int, inner: int, **more: Value) -> dict[str, Value]:
    keys: dict[str, Value] = {"context_length": context, "embedding_length": width}
    keys |= {"block_count": layers, "feed_forward_length": inner}
    keys |= {"attention.layer_norm_rms_epsilon": 1e-6}
    return keys | {name.replace("__", "."): value for name, value in more.items()}


def llama(*, layers: int = 32, width: int = 4096, inner: int = 14336, heads: int = 32) -> Shape:
    """Return Llama 3.1 8B, or another size of it."""
    head, shared = width // heads, min(heads, 8)
    block = _attention(width, heads, shared, head) | _dense(width, inner)
    keys = _keys(
        *(width, layers, 131072, inner),
        attention__head_count=heads,
        attention__head_count_kv=shared,
        rope__dimension_count=head,
    )
    return Shape("llama", keys, _model(width, 128256, [block] * layers))


def qwen3_moe(*, layers: int = 48) -> Shape:
    """Return Qwen3 30B A3B."""
    width, head = 2048, 128
    block = _attention(width, 32, 4, head) | _experts(width, 768, 128)
    block |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
    keys = _keys(
        width,
        layers,
        40960,
        6144,
        attention__head_count=32,
        attention__head_count_kv=4,
        attention__key_length=head,
        attention__value_length=head,
        expert_count=128,
        expert_used_count=8,
        expert_feed_forward_length=768,
    )
    return Shape("qwen3moe", keys, _model(width, 151936, [block] * layers))


def gemma3(*, layers: int = 48) -> Shape:
    """Return Gemma 3 12B: five of six layers see a window of 1024, and the output is shared."""
    width, head = 3840, 256
    block = _attention(width, 16, 8, head) | _dense(width, 15360)
    block |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
    block |= {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
    keys = _keys(
        width,
        layers,
        131072,
        15360,
        attention__head_count=16,
        attention__head_count_kv=8,
        attention__key_length=head,
        attention__value_length=head,
        attention__sliding_window=1024,
    )
    return Shape("gemma3", keys, _model(width, 262208, [block] * layers, tied=True))


def mamba(*, layers: int = 64) -> Shape:
    """Return Mamba 2.8B: no attention, a state of fixed size."""
    width, inner, state, rank, kernel = 2560, 5120, 16, 160, 4
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "ssm_in": (width, 2 * inner),
        "ssm_conv1d": (kernel, inner),
        "ssm_conv1d.bias": (inner,),
        "ssm_x": (inner, rank + 2 * state),
        "ssm_dt": (rank, inner),
        "ssm_dt.bias": (inner,),
        "ssm_a": (state, inner),
        "ssm_d": (inner,),
        "ssm_out": (inner, width),
    }
    keys = _keys(
        width,
        layers,
        1048576,
        0,
        ssm__conv_kernel=kernel,
        ssm__inner_size=inner,
        ssm__state_size=state,
        ssm__time_step_rank=rank,
        attention__head_count=0,
    )
    return Shape("mamba", keys, _model(width, 50280, [block] * layers, tied=True))


def qwen35(*, layers: int = 32) -> Shape:
    """Return a dense Qwen3.5 of 9B: three of four layers keep a state, the fourth attends."""
    width, head, inner, state, groups, rank, kernel = 4096, 256, 12288, 128, 16, 32, 4
    keyed, valued = state * groups, state * rank
    both: dict[str, tuple[int, ...]] = {"attn_norm": (width,), "post_attention_norm": (width,)}
    both |= {name: size for name, size in _dense(width, inner).items() if name != "ffn_norm"}
    attending = _attention(width, 16, 4, head) | both
    attending |= {"attn_q": (width, 16 * head * 2), "attn_q_norm": (head,), "attn_k_norm": (head,)}
    keeping = both | {
        "attn_qkv": (width, 2 * keyed + valued),
        "attn_gate": (width, valued),
        "ssm_conv1d": (kernel, 2 * keyed + valued),
        "ssm_dt.bias": (rank,),
        "ssm_a": (rank,),
        "ssm_beta": (width, rank),
        "ssm_alpha": (width, rank),
        "ssm_norm": (state,),
        "ssm_out": (valued, width),
    }
    keys = _keys(
        width,
        layers,
        262144,
        inner,
        attention__head_count=16,
        attention__head_count_kv=4,
        attention__key_length=head,
        attention__value_length=head,
        ssm__conv_kernel=kernel,
        ssm__inner_size=valued,
        ssm__state_size=state,
        ssm__time_step_rank=rank,
        ssm__group_count=groups,
        rope__dimension_count=64,
        rope__dimension_sections=[11, 11, 10, 0],
    )
    blocks = [attending if number % 4 == 3 else keeping for number in range(layers)]
    return Shape("qwen35", keys, _model(width, 248320, blocks))


def deepseek2(*, layers: int = 60) -> Shape:
    """Return DeepSeek V2: keys and values share one small row for each token."""
    width, heads, lora, nope, rope, value, queries = 5120, 128, 512, 128, 64, 128, 1536
    attention: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q_a": (width, queries),
        "attn_q_a_norm": (queries,),
        "attn_q_b": (queries, heads * (nope + rope)),
        "attn_kv_a_norm": (lora,),
        "attn_kv_a_mqa": (width, lora + rope),
        "attn_k_b": (nope, lora, heads),
        "attn_v_b": (lora, value, heads),
        "attn_output": (heads * value, width),
    }
    first = attention | _dense(width, 12288)
    shared = {"ffn_gate_shexp": (width, 3072), "ffn_up_shexp": (width, 3072)}
    other = attention | _experts(width, 1536, 160) | shared | {"ffn_down_shexp": (3072, width)}
    keys = _keys(
        width,
        layers,
        163840,
        12288,
        attention__head_count=heads,
        attention__head_count_kv=1,
        attention__key_length=lora + rope,
        attention__value_length=lora,
        attention__key_length_mla=nope + rope,
        attention__value_length_mla=value,
        attention__kv_lora_rank=lora,
        attention__q_lora_rank=queries,
        rope__dimension_count=rope,
        leading_dense_block_count=1,
        expert_count=160,
        expert_used_count=6,
        expert_shared_count=2,
        expert_feed_forward_length=1536,
        vocab_size=102400,
    )
    return Shape("deepseek2", keys, _model(width, 102400, [first] + [other] * (layers - 1)))


def gpt_oss(*, layers: int = 24) -> Shape:
    """Return gpt-oss 20B: every second layer sees a window of 128."""
    width, head, heads, kv, inner, count = 2880, 64, 64, 8, 2880, 32
    block = _attention(width, heads, kv, head) | _experts(width, inner, count)
    del block["ffn_norm"]
    block |= {"post_attention_norm": (width,), "attn_sinks": (heads,)}
    block |= {"attn_output.bias": (width,), "ffn_gate_inp.bias": (count,)}
    block |= {"ffn_gate_exps.bias": (inner, count), "ffn_up_exps.bias": (inner, count)}
    block |= {"ffn_down_exps.bias": (width, count)}
    keys = _keys(
        width,
        layers,
        131072,
        inner,
        attention__head_count=heads,
        attention__head_count_kv=kv,
        attention__key_length=head,
        attention__value_length=head,
        attention__sliding_window=128,
        expert_count=count,
        expert_used_count=4,
        expert_feed_forward_length=inner,
        rope__dimension_count=head,
    )
    return Shape("gpt-oss", keys, _model(width, 201088, [block] * layers))


def phi3(*, layers: int = 32) -> Shape:
    """Return Phi 3 mini: one matrix for queries, keys and values, and no grouped heads."""
    width, heads, inner = 3072, 32, 8192
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_qkv": (width, 3 * width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_up": (width, 2 * inner),
        "ffn_down": (inner, width),
    }
    keys = _keys(
        width,
        layers,
        4096,
        inner,
        attention__head_count=heads,
        attention__head_count_kv=heads,
        rope__dimension_count=96,
    )
    return Shape("phi3", keys, _model(width, 32064, [block] * layers))


SHAPES = (llama, qwen3_moe, gemma3, mamba, qwen35, deepseek2, gpt_oss, phi3)
