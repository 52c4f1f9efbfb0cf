"""Model files with a true table of tensors and empty data, of any size on disk or none at all."""

import struct
from collections.abc import Mapping
from pathlib import Path

_ALIGNMENT = 32


def write_gguf(path: Path, tensors: Mapping[str, int]) -> Path:
    """Write a file with these tensors and their sizes in bytes, multiples of 32.

    The data are a hole in the file: ten gigabytes take no space.
    """
    words = [_text("general.architecture"), struct.pack("<I", 8), _text("llama")]
    words += [_text("tokenizer.ggml.tokens"), struct.pack("<IIQ", 9, 8, 3)]
    words += [_text(token) for token in ("a", "bc", "")]
    words += [_text("general.alignment"), struct.pack("<II", 4, _ALIGNMENT)]
    keys, offset = 3, 0
    for name, size in tensors.items():
        words += [_text(name), struct.pack("<IQIQ", 1, size, 0, offset)]
        offset += size
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), keys) + b"".join(words)
    head += bytes(-len(head) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)
    return path


def layered_model(path: Path, *, layers: int, size: int) -> Path:
    """Write a model of this many equal layers, with small embeddings and output."""
    each = size // layers // _ALIGNMENT * _ALIGNMENT
    blocks = {f"blk.{number}.weight": each for number in range(layers)}
    return write_gguf(path, {"token_embd.weight": 3200, **blocks, "output.weight": 3200})


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
