"""The models in all folders: each place read as its program keeps it, and files put together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tsuku_llm.ground.foreign import parse_object, read_foreign
from tsuku_llm.ground.records import documented
from tsuku_llm.model_caches.files import (
    ModelFile,
    Note,
    Seen,
    note_unfinished,
    read_model_file,
    walk,
)
from tsuku_llm.model_caches.naming import SPLIT, LocalModel, named, quantisation_of, stem_of
from tsuku_llm.model_caches.places import (
    LARGEST,
    LLAMA_CPP,
    LM_STUDIO,
    OLLAMA,
    ModelPlace,
    places_of,
    small_text,
)

_HUB_FOLDER = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
_OLLAMA_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_MODEL = "application/vnd.ollama.image.model"
_PROJECTOR = "application/vnd.ollama.image.projector"
_ADAPTER = "application/vnd.ollama.image.adapter"
_DEPTH = 4
"""A manifest is at host/namespace/model/tag (types/model/name.go)."""

_BITS = re.compile(r"\d+")

_MOST_NOTES = 20


@documented("places", "notes")
class FoundModels(NamedTuple):
    """The models of this machine, ``notes`` on what was left out, and the places."""

    models: tuple[LocalModel, ...]
    notes: tuple[str, ...]
    places: tuple[ModelPlace, ...]


def local_models(environ: Mapping[str, str], folders: Sequence[str]) -> FoundModels:
    """Find the models in the caches of other programs and in the folders of ``llm.model_path``."""
    return find_models(places_of(environ, folders))


def kept_models(environ: Mapping[str, str]) -> str:
    """Return llama.cpp's cache, where a model that was downloaded here is kept."""
    return next(place.folder for place in places_of(environ, ()) if place.source == LLAMA_CPP)


def find_models(places: Sequence[ModelPlace]) -> FoundModels:
    """Find the models in these places; nothing there is changed.

    A file counts once, and in Ollama's store once for each of its names.
    """
    models: list[LocalModel] = []
    notes: list[str] = []
    looked: list[ModelPlace] = []
    known: set[tuple[tuple[int, int], str]] = set()
    for place in places:
        try:
            found = list(_models_in(place, notes.append))
            looked.append(place._replace(exists=True))
        except (FileNotFoundError, NotADirectoryError):
            looked.append(place)
            if place.named:
                notes.append(f"{place.folder} is no folder (for models of {place.source})")
            continue
        except OSError as error:
            looked.append(place._replace(exists=True))
            notes.append(f"{place.folder} cannot be read: {error.strerror or error}")
            continue
        except ValueError:  # what names the folder has a letter that no path has
            looked.append(place)
            notes.append(f"a folder of {place.source} has a name that cannot be used")
            continue
        for model, key in found:
            # Ollama gives a file another name with each copy and each model made from it, and
            # the user knows all of them.
            which = (key, model.name if place.source == OLLAMA else "")
            if which not in known:
                known.add(which)
                models.append(model)
    told = tuple(dict.fromkeys(notes))
    if len(told) > _MOST_NOTES:
        told = (*told[:_MOST_NOTES], f"and {len(told) - _MOST_NOTES} more files were left out")
    return FoundModels(
        tuple(sorted(named(models), key=lambda model: model.name.casefold())), told, tuple(looked)
    )


def _models_in(place: ModelPlace, note: Note) -> Iterator[tuple[LocalModel, tuple[int, int]]]:
    if place.source == OLLAMA:
        for file, projector in _ollama_files(place.folder, note):
            for model, key in _grouped([file], note):
                yield model._replace(projector=projector.seen.path if projector else None), key
        return
    if place.source in ("huggingface", LLAMA_CPP):
        yield from _grouped(_cached(place, note), note)
        return
    yield from _grouped(_below(place, note), note)


def _below(place: ModelPlace, note: Note) -> Iterator[ModelFile]:
    """Read the files below a folder of the user's, or of LM Studio: publisher/repository/file."""
    for walked in _gguf_files(walk(place.folder, note), note):
        seen, repository = walked, None
        publisher, _, rest = seen.below.partition("/")
        name, inside, below = rest.partition("/")
        if place.source == LM_STUDIO and inside:
            repository, seen = f"{publisher}/{name}", seen._replace(below=below)
        if file := read_model_file(place.source, seen, note, repository=repository):
            yield file


def _cached(place: ModelPlace, note: Note) -> Iterator[ModelFile]:
    """Read a cache of Hugging Face's layout, or llama.cpp's own, which had flat names before."""
    for entry in sorted(os.listdir(place.folder)):
        if found := _HUB_FOLDER.fullmatch(entry):
            folder = os.path.join(place.folder, entry)
            repository = f"{found['owner']}/{found['name'].replace('--', '/')}"
            yield from _snapshots(place, folder, repository, note)
    if place.source == LLAMA_CPP:
        # Before the spring of 2026 it had each file under a name of its own.
        for seen in _gguf_files(walk(place.folder, note, deepest=0), note):
            if file := read_model_file(place.source, seen, note):
                yield file


def _snapshots(place: ModelPlace, folder: str, repository: str, note: Note) -> Iterator[ModelFile]:
    """Read the files of a repository, of its main revision first; others may have more files."""
    snapshots = os.path.join(folder, "snapshots")
    try:
        revisions = sorted(os.listdir(snapshots))
    except FileNotFoundError:
        revisions = []
    except OSError as error:
        note(f"{snapshots} cannot be read: {error.strerror or error}")
        return
    main = small_text(os.path.join(folder, "refs", "main")).strip()
    revisions.sort(key=lambda revision: revision != main)
    known: set[str] = set()
    for revision in revisions:
        try:
            seen = list(walk(os.path.join(snapshots, revision), note))
        except OSError:
            continue
        for each in _gguf_files(seen, note):
            if each.below not in known:
                known.add(each.below)
                file = read_model_file(place.source, each, note, repository=repository)
                if file:
                    yield file
    try:
        for each in walk(os.path.join(folder, "blobs"), note, deepest=0):
            note_unfinished(each, note)
    except OSError:
        return


def _gguf_files(files: Iterable[Seen], note: Note) -> Iterator[Seen]:
    """Yield the files with the ending of models, without those that are still downloaded."""
    files = list(files)
    lower = (each.path.lower() for each in files)
    unfinished = {path[: -len(".aria2")] for path in lower if path.endswith(".gguf.aria2")}
    for each in files:
        if not each.path.lower().endswith(".gguf"):
            note_unfinished(each, note)
        # aria2 gives a file its name and its length at once.
        elif each.path.lower() not in unfinished:
            yield each


# --- Ollama's store: manifests, which name the models, and blobs, which are the files -----------


def _ollama_files(folder: str, note: Note) -> Iterator[tuple[ModelFile, ModelFile | None]]:
    """Yield each model of a store with its projector.

    Its templates and parameters are Ollama's own, and are left out: the server has those of the
    GGUF file. Raises ``FileNotFoundError`` for a folder that is not a store.
    """
    manifests = os.path.join(folder, "manifests")
    for seen in walk(manifests, note, deepest=_DEPTH):
        parts = seen.below.split("/")
        if len(parts) == _DEPTH and not seen.broken and not parts[3].startswith("."):
            name = _ollama_name(*parts)
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


def _ollama_name(host: str, namespace: str, model: str, tag: str) -> str:
    """Return a model's name as Ollama shows it (``DisplayShortest``)."""
    if host.lower() != _OLLAMA_HOST:
        return f"{host}/{namespace}/{model}:{tag}"
    if namespace.lower() != _NAMESPACE:
        return f"{namespace}/{model}:{tag}"
    return f"{model}:{tag}"


def _layers(path: str, note: Note) -> dict[str, str] | None:
    """Return the digest of the first layer of each kind; None, with a note, for no manifest."""
    try:
        found = parse_object(read_foreign(path, LARGEST))
        named = [(str(each["mediaType"]), str(each["digest"])) for each in found["layers"] or ()]
    except OSError as error:
        note(f"{path} cannot be read: {error.strerror or error}")
        return None
    except (ValueError, KeyError, TypeError):
        note(f"{path} is not a manifest of a model")
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


# --- models from files: the parts of a split one together, each projector with its model --------


def _grouped(
    files: Iterable[ModelFile], note: Note
) -> Iterator[tuple[LocalModel, tuple[int, int]]]:
    """Yield each model, and the key of its first file."""
    projectors: dict[str, list[ModelFile]] = {}
    families: dict[str, set[str]] = {}
    models: dict[tuple[str, str], list[ModelFile]] = {}
    for file in files:
        if file.is_companion:
            continue
        if file.is_projector:
            projectors.setdefault(_shelf(file), []).append(file)
            continue
        families.setdefault(_shelf(file), set()).add(_family(file))
        split = SPLIT.fullmatch(file.seen.path)
        # Two models may differ in the number of their parts only.
        group = (split["stem"], split["count"]) if split else (file.seen.path, "")
        models.setdefault(group, []).append(file)
    for (_, count), parts in models.items():
        parts.sort(key=lambda part: part.seen.path)
        first = parts[0]
        if len(parts) != int(count or 1):
            note(f"{first.seen.path} is not complete: {len(parts)} of {int(count)} parts are there")
        elif not count and first.values.get("split.count", 0) not in (0, 1):
            note(f"{first.seen.path} is one part of a model, and its name does not tell which")
        else:
            shelf = _shelf(first)
            mixed = not first.repository and len(families[shelf]) > 1
            projector = _projector_of(first, projectors.get(shelf, ()), mixed=mixed)
            yield _model(parts, projector), first.seen.key


def _shelf(file: ModelFile) -> str:
    """Return what a model and its projector have in common: a repository, or else a folder."""
    return file.repository or os.path.dirname(file.seen.path)


def _model(parts: Sequence[ModelFile], projector: ModelFile | None) -> LocalModel:
    first = parts[0]
    architecture = first.values.get("general.architecture")
    context = first.values.get(f"{architecture}.context_length")
    return LocalModel(
        name=first.name,
        source=first.source,
        path=first.seen.path,
        files=tuple(part.seen.path for part in parts),
        size=sum(part.seen.size for part in parts),
        model_repository=first.repository,
        below=first.seen.below,
        quantisation=quantisation_of(first.seen.below, first.values.get("general.file_type")),
        context=context if isinstance(context, int) and 0 < context < 1 << 32 else None,
        architecture=str(architecture) if architecture else None,
        projector=projector.seen.path if projector else None,
    )


def _projector_of(
    model: ModelFile, projectors: Sequence[ModelFile], *, mixed: bool
) -> ModelFile | None:
    """Return the projector that llama.cpp would take, None if none is a model's own.

    That is one of the same repository, whose bits are closest (``find_best_sibling`` in upstream's
    common/download.cpp). In a folder with ``mixed`` models its name has to be like the model's.
    """
    own = [
        each
        for each in projectors
        # In a repository also one in a folder above the model's.
        if f"{_folder(model)}/".startswith(f"{_folder(each)}/".lstrip("/"))
        and (not mixed or _belongs(each, model))
    ]
    wanted = _bits(model)
    return min(own, key=lambda each: (abs(_bits(each) - wanted), each.seen.below), default=None)


def _folder(file: ModelFile) -> str:
    return file.seen.below.rpartition("/")[0]


def _bits(file: ModelFile) -> int:
    found = _BITS.search(
        quantisation_of(file.seen.below, file.values.get("general.file_type")) or ""
    )
    return int(found[0]) if found else 0


def _family(file: ModelFile) -> str:
    """Return a file's name without its quantisation: what the files of one model share."""
    stem = stem_of(file.base)
    tag = quantisation_of(file.base, None)
    plain = (stem[: -len(tag)] if tag else stem).lower().replace("model", "")
    return re.sub(r"[^a-z0-9]", "", plain)


def _belongs(projector: ModelFile, model: ModelFile) -> bool:
    rest = _family(projector).replace("mmproj", "")
    return bool(rest) and (rest in _family(model) or _family(model) in rest)
