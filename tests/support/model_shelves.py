"""The caches of other programs, with small models in them, below a home of a test."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from support.model_headers import F16, Value, write_header

MODEL: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 1,
}
PROJECTOR: dict[str, Value] = {"general.architecture": "clip", "general.type": "mmproj"}
TENSORS = {"token_embd.weight": (64, 64), "blk.0.attn_k.weight": (64, 64)}


def small_model(path: Path, **keys: Value) -> Path:
    """Write a model of a few kilobytes; ``__`` in a key is a dot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {name.replace("__", "."): value for name, value in keys.items()}
    return write_header(path, {**MODEL, **own}, TENSORS, F16)


def small_projector(path: Path) -> Path:
    """Write a projector of a few kilobytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_header(path, PROJECTOR, {"v.patch_embd.weight": (64, 64)}, F16)


def split_model(folder: Path, stem: str, count: int) -> tuple[Path, ...]:
    """Write the parts of a model, as upstream's gguf-split names them."""
    return tuple(
        small_model(
            folder / f"{stem}-{number:05}-of-{count:05}.gguf",
            split__no=number - 1,
            split__count=count,
        )
        for number in range(1, count + 1)
    )


def hub_file(
    hub: Path, repository: str, file: str, *, revision: str = "0a1b", **keys: Value
) -> Path:
    """Put a model into Hugging Face's cache: a blob, and a link in a snapshot. Return the link."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    link = folder / "snapshots" / revision / file
    link.parent.mkdir(parents=True, exist_ok=True)
    blob = folder / "blobs" / hashlib.sha256(f"{file}{revision}".encode()).hexdigest()
    small_projector(blob) if "mmproj" in file else small_model(blob, **keys)
    up = "../" * (2 + file.count("/"))
    link.symlink_to(f"{up}blobs/{blob.name}")
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision)
    return link


def ollama_model(
    store: Path, name: str, *, projector: bool = False, host: str = "registry.ollama.ai"
) -> Path:
    """Put a model into Ollama's store: a manifest, and its blobs. Return the model's blob."""
    namespace, _, rest = name.rpartition("/")
    model, _, tag = rest.partition(":")
    kinds = ["model", "template", *(["projector"] if projector else [])]
    layers = []
    for kind in kinds:
        digest = hashlib.sha256(f"{name}{kind}".encode()).hexdigest()
        blob = store / "blobs" / f"sha256-{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        if kind == "template":
            blob.write_text("{{ .Prompt }}")
        else:
            (small_projector if kind == "projector" else small_model)(blob)
        media = f"application/vnd.ollama.image.{kind}"
        layers.append({"mediaType": media, "digest": f"sha256:{digest}", "size": 1})
    manifest = store / "manifests" / host / (namespace or "library") / model / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return store / "blobs" / f"sha256-{hashlib.sha256(f'{name}model'.encode()).hexdigest()}"
