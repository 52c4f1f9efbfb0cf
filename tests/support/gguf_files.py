"""Model files with a true table of tensors and empty data, of any size on disk or none at all."""

import struct
from collections.abc import Mapping
from pathlib import Path

_ALIGNMENT = 32


def write_gguf(
    path: Path, tensors: Mapping[str, int], numbers: Mapping[str, int] | None = None
) -> Path:
    """Write a file with these tensors and their sizes in bytes, multiples of 32.

    ``numbers`` are more keys, without the name of the architecture. The data are a hole in the
    file: ten gigabytes take no space.
    """
    words = [_text("general.architecture"), struct.pack("<I", 8), _text("llama")]
    words += [_text("tokenizer.ggml.tokens"), struct.pack("<IIQ", 9, 8, 3)]
    words += [_text(token) for token in ("a", "bc", "")]
    words += [_text("general.alignment"), struct.pack("<II", 4, _ALIGNMENT)]
    for key, number in (numbers or {}).items():
        words += [_text(f"llama.{key}"), struct.pack("<II", 4, number)]
    keys, offset = 3 + len(numbers or {}), 0
    for name, size in tensors.items():
        words += [_text(name), struct.pack("<IQIQ", 1, size, 0, offset)]
        offset += size
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), keys) + b"".join(words)
    head += bytes(-len(head) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)
    return path


def layered_model(path: Path, *, layers: int, size: int, attends: bool = False) -> Path:
    """Write a model of this many equal layers, with small embeddings and output.

    One that ``attends`` also tells of a small cache; else what it keeps is not known.
    """
    each = size // layers // _ALIGNMENT * _ALIGNMENT
    name = "attn_k.weight" if attends else "weight"
    blocks = {f"blk.{number}.{name}": each for number in range(layers)}
    tensors = {"token_embd.weight": 3200, **blocks, "output.weight": 3200}
    return write_gguf(path, tensors, {"embedding_length": 32, "attention.head_count": 1})


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
