"""Ollama's store: manifests, which name the models, and blobs, which are the files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from tsuku_llm.ground.foreign import parse_object, read_foreign
from tsuku_llm.model_caches.files import ModelFile, Note, note_unfinished, read_model_file
from tsuku_llm.model_caches.places import OLLAMA
from tsuku_llm.model_caches.walking import Seen, walk

_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_MODEL = "application/vnd.ollama.image.model"
_PROJECTOR = "application/vnd.ollama.image.projector"
_ADAPTER = "application/vnd.ollama.image.adapter"
_LARGEST = 1 << 20
"""Bytes of a manifest; real ones have about a thousand."""

_DEPTH = 4
"""A manifest is at host/namespace/model/tag (types/model/name.go)."""


def ollama_files(folder: str, note: Note) -> Iterator[tuple[ModelFile, ModelFile | None]]:
    """Yield each model of a store with its projector.

    Its templates and parameters are Ollama's own, and are left out: the server has those of the
    GGUF file. Raises ``FileNotFoundError`` for a folder that is no store.
    """
    manifests = os.path.join(folder, "manifests")
    for seen in walk(manifests, note, deepest=_DEPTH):
        parts = seen.below.split("/")
        if len(parts) == _DEPTH and not seen.broken and not parts[3].startswith("."):
            name = _name(*parts)
            layers = _layers(seen.path, note)
            if layers is not None and _MODEL not in layers:
                note(f"{name} of Ollama has no GGUF file")
            elif layers and (model := _blob(folder, layers[_MODEL], name, note)):
                if _ADAPTER in layers:
                    note(f"{name} of Ollama has an adapter, which is not used: add it with --lora")
                digest = layers.get(_PROJECTOR)
                yield model, _blob(folder, digest, name, note) if digest else None
    with suppress(OSError):
        for seen in walk(os.path.join(folder, "blobs"), note, deepest=0):
            note_unfinished(seen, note)


def _name(host: str, namespace: str, model: str, tag: str) -> str:
    """Return a model's name as Ollama shows it (``DisplayShortest``)."""
    if host.lower() != _HOST:
        return f"{host}/{namespace}/{model}:{tag}"
    if namespace.lower() != _NAMESPACE:
        return f"{namespace}/{model}:{tag}"
    return f"{model}:{tag}"


def _layers(path: str, note: Note) -> dict[str, str] | None:
    """Return the digest of the first layer of each kind; None, with a note, for no manifest."""
    try:
        found = parse_object(read_foreign(path, _LARGEST))
        named = [(str(each["mediaType"]), str(each["digest"])) for each in found["layers"] or ()]
    except OSError as error:
        note(f"{path} cannot be read: {error.strerror or error}")
        return None
    except (ValueError, KeyError, TypeError):
        note(f"{path} is no manifest of a model")
        return None
    return dict(reversed(named))


def _blob(folder: str, digest: str, name: str, note: Note) -> ModelFile | None:
    found = _DIGEST.fullmatch(digest)
    if found is None:
        note(f"{name} of Ollama: its manifest names no file")
        return None
    file = f"sha256-{found[1].lower()}"
    path = os.path.join(folder, "blobs", file)
    try:
        status = os.stat(path)
    except OSError:
        note(f"{name} of Ollama is not complete: get it again with: ollama pull {name}")
        return None
    seen = Seen(path, file, status.st_size, (status.st_dev, status.st_ino))
    return read_model_file(OLLAMA, seen, note, name=name)
