"""A GGUF model of half a megabyte that the real server loads and answers with.

Two llama layers with random weights (of a fixed seed) and a vocabulary of single bytes
and letters: what it says means nothing, but every step of serving is the real one.
It answers in letters only.
"""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

_WIDTH = 64
_LAYERS = 2
_HEADS = 4
_FEED_FORWARD = 128
_CONTEXT = 256

_SPECIAL = (b"<unk>", b"<s>", b"</s>")
_BYTES = tuple(b"<0x%02X>" % value for value in range(256))
_LETTERS = tuple(bytes([ord("a") + index]) for index in range(26))
_TOKENS = (*_SPECIAL, *_BYTES, *_LETTERS)


def write_tiny_model(path: Path) -> Path:
    """Write the model to ``path``; the same bytes each time."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer)
    _add_vocabulary(writer)
    _add_weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(_TOKENS))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    kind = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(_TOKENS)
    writer.add_token_scores([0.0] * 259 + [-float(index) for index in range(len(_LETTERS))])
    writer.add_token_types(
        [
            *(kind.UNKNOWN, kind.CONTROL, kind.CONTROL),
            *[kind.BYTE] * len(_BYTES),
            *[kind.NORMAL] * len(_LETTERS),
        ]
    )
    for add, token in (
        (writer.add_unk_token_id, b"<unk>"),
        (writer.add_bos_token_id, b"<s>"),
        (writer.add_eos_token_id, b"</s>"),
    ):
        add(_TOKENS.index(token))


def _add_weights(writer: gguf.GGUFWriter) -> None:
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    def add(name: str, weights: NDArray[np.float32]) -> None:
        writer.add_tensor(f"{name}.weight", weights)

    # One part of the state is large for every token, and only letters follow from it:
    # stray bytes are not UTF-8, and the server refuses to answer with them.
    embeddings, output = matrix(len(_TOKENS), _WIDTH), matrix(len(_TOKENS), _WIDTH)
    embeddings[:, 0] = 1.0
    output[:, 0] = -2.0
    output[-len(_LETTERS) :, 0] = 2.0
    add("token_embd", embeddings)
    add("output", output)
    add("output_norm", np.ones(_WIDTH, np.float32))
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{part}", matrix(_WIDTH, _WIDTH))
        add(f"{block}.ffn_gate", matrix(_FEED_FORWARD, _WIDTH))
        add(f"{block}.ffn_up", matrix(_FEED_FORWARD, _WIDTH))
        add(f"{block}.ffn_down", matrix(_WIDTH, _FEED_FORWARD))
        add(f"{block}.attn_norm", np.ones(_WIDTH, np.float32))
        add(f"{block}.ffn_norm", np.ones(_WIDTH, np.float32))
