"""The folders in which Hugging Face, llama.cpp, LM Studio and Ollama keep models."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tsuku_llm.ground.foreign import parse_object, read_foreign
from tsuku_llm.ground.records import documented

HUGGING_FACE, LLAMA_CPP, LM_STUDIO = "huggingface", "llama.cpp", "lm-studio"
OLLAMA, FOLDER = "ollama", "folder"

LARGEST = 1 << 20
"""Bytes of a small text: a manifest, a setting, the name of a revision."""


@documented("source", "folder", "exists")
class ModelPlace(NamedTuple):
    """A folder to look into; ``source`` is the program that keeps it, or ``folder``.

    The user ``named`` it with a variable or a setting, so it is told if it does not exist.
    ``exists`` is known after the search.
    """

    source: str
    folder: str
    named: bool = False
    exists: bool = False


def places_of(environ: Mapping[str, str], folders: Sequence[str]) -> tuple[ModelPlace, ...]:
    """Return the folders to look into; ``folders`` are those of ``llm.model_path``."""
    home = os.path.expanduser("~")
    found = [ModelPlace(FOLDER, _expanded(folder, home), named=True) for folder in folders]
    found += _hugging_face(environ, home)
    found += _llama_cpp(environ, home)
    found += _lm_studio(home)
    found += _ollama(environ, home)
    # A folder of two programs is read as each of them keeps it.
    return tuple({(place.source, place.folder): place for place in reversed(found)}.values())[::-1]


def _hugging_face(environ: Mapping[str, str], home: str) -> Iterator[ModelPlace]:
    """Yield the cache of the hub (huggingface_hub, src/huggingface_hub/constants.py).

    llama.cpp uses the same folder since the spring of 2026 (common/hf-cache.cpp).
    """
    for name, below in (
        ("HF_HUB_CACHE", ()),
        ("HUGGINGFACE_HUB_CACHE", ()),
        ("HF_HOME", ("hub",)),
        ("XDG_CACHE_HOME", ("huggingface", "hub")),
    ):
        if environ.get(name):
            folder = os.path.join(_expanded(environ[name], home), *below)
            yield ModelPlace(HUGGING_FACE, folder, named=name.startswith("H"))
            return
    yield ModelPlace(HUGGING_FACE, os.path.join(home, ".cache", "huggingface", "hub"))


def _llama_cpp(environ: Mapping[str, str], home: str) -> Iterator[ModelPlace]:
    """Yield llama.cpp's own cache (``fs_get_cache_directory`` in common/common.cpp)."""
    if environ.get("LLAMA_CACHE"):
        yield ModelPlace(LLAMA_CPP, environ["LLAMA_CACHE"], named=True)
        return
    if sys.platform == "win32":
        base = environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")
    else:
        base = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    if base:
        yield ModelPlace(LLAMA_CPP, os.path.join(base, "llama.cpp"))


def _lm_studio(home: str) -> Iterator[ModelPlace]:
    """Yield LM Studio's folders (``findLMStudioHome`` in lmstudio.js, lms-common-server).

    A file in the user's home names LM Studio's home; ``downloadsFolder`` in its settings is where
    the user moved the models.
    """
    pointer = small_text(os.path.join(home, ".lmstudio-home-pointer")).strip()
    homes = (pointer, os.path.join(home, ".lmstudio"), os.path.join(home, ".cache", "lm-studio"))
    for each in dict.fromkeys(filter(os.path.isabs, homes)):
        moved: object = None
        with suppress(ValueError):
            settings = parse_object(small_text(os.path.join(each, "settings.json")))
            moved = settings.get("downloadsFolder")
        if moved and isinstance(moved, str):
            yield ModelPlace(LM_STUDIO, _expanded(moved, home), named=True)
        yield ModelPlace(LM_STUDIO, os.path.join(each, "models"))


def _ollama(environ: Mapping[str, str], home: str) -> Iterator[ModelPlace]:
    """Yield Ollama's folders (envconfig/config.go, scripts/install.sh).

    The service that its installer makes on Linux runs as an own user, with an own home.
    """
    if environ.get("OLLAMA_MODELS"):
        yield ModelPlace(OLLAMA, environ["OLLAMA_MODELS"].strip(" \"'"), named=True)
    yield ModelPlace(OLLAMA, os.path.join(home, ".ollama", "models"))
    if sys.platform == "linux":
        yield ModelPlace(OLLAMA, "/usr/share/ollama/.ollama/models")


def _expanded(path: str, home: str) -> str:
    """Replace a leading ``~``, as huggingface_hub does with its variables."""
    if path == "~" or path.startswith(("~/", "~\\")):
        return home + path[1:]
    return path


def small_text(path: str) -> str:
    """Return the text of a small file of another program; empty if it cannot be read."""
    with suppress(OSError):
        return read_foreign(path, LARGEST).decode("utf-8", "replace")
    return ""
