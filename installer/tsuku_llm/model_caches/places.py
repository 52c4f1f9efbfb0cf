"""The folders in which Hugging Face, llama.cpp, LM Studio and Ollama keep models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tsuku_llm.ground.foreign import parse_object
from tsuku_llm.ground.records import documented

HUGGING_FACE, LLAMA_CPP, LM_STUDIO = "huggingface", "llama.cpp", "lm-studio"
OLLAMA, FOLDER = "ollama", "folder"


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


def places_of(
    environ: Mapping[str, str],
    home: str,
    system: str,
    folders: Sequence[str],
    read: Callable[[str], str | None],
) -> tuple[ModelPlace, ...]:
    """Return the folders to look into; ``folders`` are those of ``llm.model_path``.

    ``system`` is ``sys.platform``. ``read`` returns the text of a small file, None if there is
    none.
    """
    found = [ModelPlace(FOLDER, _expanded(folder, home), named=True) for folder in folders]
    found += _hugging_face(environ, home)
    found += _llama_cpp(environ, home, system)
    found += _lm_studio(home, read)
    found += _ollama(environ, home, system)
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


def _llama_cpp(environ: Mapping[str, str], home: str, system: str) -> Iterator[ModelPlace]:
    """Yield llama.cpp's own cache (``fs_get_cache_directory`` in common/common.cpp)."""
    if environ.get("LLAMA_CACHE"):
        yield ModelPlace(LLAMA_CPP, environ["LLAMA_CACHE"], named=True)
        return
    if system == "win32":
        base = environ.get("LOCALAPPDATA", "")
    elif system == "darwin":
        base = os.path.join(home, "Library", "Caches")
    else:
        base = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    if base:
        yield ModelPlace(LLAMA_CPP, os.path.join(base, "llama.cpp"))


def _lm_studio(home: str, read: Callable[[str], str | None]) -> Iterator[ModelPlace]:
    """Yield LM Studio's folders (``findLMStudioHome`` in lmstudio.js, lms-common-server).

    A file in the user's home names LM Studio's home; ``downloadsFolder`` in its settings is where
    the user moved the models.
    """
    pointer = (read(os.path.join(home, ".lmstudio-home-pointer")) or "").strip()
    homes = (pointer, os.path.join(home, ".lmstudio"), os.path.join(home, ".cache", "lm-studio"))
    for each in dict.fromkeys(filter(os.path.isabs, homes)):
        moved = _downloads_folder(read(os.path.join(each, "settings.json")) or "")
        if moved:
            yield ModelPlace(LM_STUDIO, _expanded(moved, home), named=True)
        yield ModelPlace(LM_STUDIO, os.path.join(each, "models"))


def _downloads_folder(settings: str) -> str | None:
    try:
        folder = parse_object(settings).get("downloadsFolder")
    except ValueError:
        return None
    return folder if isinstance(folder, str) and folder else None


def _ollama(environ: Mapping[str, str], home: str, system: str) -> Iterator[ModelPlace]:
    """Yield Ollama's folders (envconfig/config.go, scripts/install.sh).

    The service that its installer makes on Linux runs as an own user, with an own home.
    """
    if environ.get("OLLAMA_MODELS"):
        yield ModelPlace(OLLAMA, environ["OLLAMA_MODELS"].strip(" \"'"), named=True)
    yield ModelPlace(OLLAMA, os.path.join(home, ".ollama", "models"))
    if system == "linux":
        yield ModelPlace(OLLAMA, "/usr/share/ollama/.ollama/models")


def _expanded(path: str, home: str) -> str:
    """Replace a leading ``~``, as huggingface_hub does with its variables."""
    if path == "~" or path.startswith(("~/", "~\\")):
        return home + path[1:]
    return path
