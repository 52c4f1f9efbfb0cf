"""A random llama model of any size, made with the standard library alone.

Its weights are noise in blocks of eight bits (Q8_0), and its output is letters. Every step of
loading and computing is the real one. The format is GGUF 3 (ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

_F32, _Q8_0 = 0, 8
_U32, _I32, _FLOAT, _TEXT, _ARRAY = 4, 5, 6, 8, 9
_BLOCK, _BLOCK_BYTES = 32, 34
_SCALE = struct.pack("<e", 0.0003)
_ALIGNMENT = 32
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6

_BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
_TOKENS = ("<unk>", "<s>", "</s>", *_BYTES, *_LETTERS)
_KINDS = (_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * len(_BYTES), *[_NORMAL] * len(_LETTERS))
_HEAD = 64
_CONTEXT = 8192


def write_model(path: Path, *, layers: int, width: int, inner: int) -> Path:
    """Write a model, with the same bytes each time.

    A layer of 2048 by 5632 has 51 million weights.
    """
    tensors = list(_tensors(layers, width, inner))
    described, offset = b"", 0
    for name, shape, kind in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        described += _text(name) + dimensions + struct.pack("<IQ", kind, offset)
        offset += _padded(_size(shape, kind))
    values = _values(layers, width, inner)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    with path.open("wb") as file:
        file.write(head + described)
        # Tensors begin at multiples of the alignment, so fill up the rest.
        file.write(bytes(-file.tell() % _ALIGNMENT))
        source = random.Random(0)  # noqa: S311 - the same model each time
        # A megabyte of noise, repeated: random bytes for all weights would take too long.
        noise = b"".join(_SCALE + source.randbytes(_BLOCK) for _ in range(1 << 15))
        for name, shape, kind in tensors:
            size = _size(shape, kind)
            for piece in _content(name, size, noise, source):
                file.write(piece)
            file.write(bytes(-size % _ALIGNMENT))
    return path


def _values(layers: int, width: int, inner: int) -> list[bytes]:
    numbers = {
        "context_length": _CONTEXT,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": inner,
        "attention.head_count": width // _HEAD,
        "attention.head_count_kv": width // _HEAD,
        "rope.dimension_count": _HEAD,
        "vocab_size": len(_TOKENS),
    }
    special = {"unknown": 0, "bos": 1, "eos": 2}
    return [
        _value("general.architecture", _TEXT, _text("llama")),
        _value("general.name", _TEXT, _text("noise")),
        *(_value(f"llama.{key}", _U32, struct.pack("<I", n)) for key, n in numbers.items()),
        _value("llama.attention.layer_norm_rms_epsilon", _FLOAT, struct.pack("<f", 1e-5)),
        _value("tokenizer.ggml.model", _TEXT, _text("llama")),
        _value("tokenizer.ggml.tokens", _ARRAY, _array(_TEXT, [_text(each) for each in _TOKENS])),
        _value("tokenizer.ggml.scores", _ARRAY, _array(_FLOAT, [bytes(4)] * len(_TOKENS))),
        _value(
            "tokenizer.ggml.token_type",
            _ARRAY,
            _array(_I32, [struct.pack("<i", kind) for kind in _KINDS]),
        ),
        *(
            _value(f"tokenizer.ggml.{name}_token_id", _U32, struct.pack("<I", number))
            for name, number in special.items()
        ),
    ]


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, kind: int, data: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + data


def _array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _tensors(layers: int, width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    yield "token_embd.weight", (width, len(_TOKENS)), _F32
    yield "output_norm.weight", (width,), _F32
    yield "output.weight", (width, len(_TOKENS)), _F32
    for layer in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{part}.weight", (width, width), _Q8_0
        yield f"blk.{layer}.ffn_gate.weight", (width, inner), _Q8_0
        yield f"blk.{layer}.ffn_up.weight", (width, inner), _Q8_0
        yield f"blk.{layer}.ffn_down.weight", (inner, width), _Q8_0
        for part in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{part}.weight", (width,), _F32


def _size(shape: tuple[int, ...], kind: int) -> int:
    count = 1
    for each in shape:
        count *= each
    return count * 4 if kind == _F32 else count // _BLOCK * _BLOCK_BYTES


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _content(name: str, size: int, noise: bytes, source: random.Random) -> Iterator[bytes]:
    """Yield a tensor's bytes.

    In ``output`` only letters have weights, as other tokens could give text that is not UTF-8.
    """
    if "norm" in name:
        yield struct.pack("<f", 1.0) * (size // 4)
    elif name == "output.weight":
        letters = size // len(_TOKENS) * len(_LETTERS)
        # The letters are the last tokens; the weights of all others are 0.
        yield bytes(size - letters)
        yield _floats(source, letters // 4, 1.0)
    elif name == "token_embd.weight":
        yield _floats(source, size // 4, 0.05)
    else:
        for start in range(0, size, len(noise)):
            yield noise[: size - start]


def _floats(source: random.Random, count: int, largest: float) -> bytes:
    return array("f", (source.uniform(-largest, largest) for _ in range(count))).tobytes()
