"""The models in all folders: each place read as its program keeps it, and files put together."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.ground.records import documented
from tsuku_llm.model_caches.files import (
    ModelFile,
    Note,
    is_model_name,
    note_unfinished,
    read_model_file,
)
from tsuku_llm.model_caches.grouping import grouped
from tsuku_llm.model_caches.naming import LocalModel, named
from tsuku_llm.model_caches.ollama import ollama_files
from tsuku_llm.model_caches.places import LLAMA_CPP, LM_STUDIO, OLLAMA, ModelPlace, places_of
from tsuku_llm.model_caches.walking import Seen, walk

_HUB_FOLDER = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
_LARGEST = 1 << 20

_MOST_NOTES = 20


@documented("places", "notes")
class FoundModels(NamedTuple):
    """The models of this machine, ``notes`` on what was left out, and the places."""

    models: tuple[LocalModel, ...]
    notes: tuple[str, ...]
    places: tuple[ModelPlace, ...]


def local_models(environ: Mapping[str, str], folders: Sequence[str]) -> FoundModels:
    """Find the models in the caches of other programs and in the folders of ``llm.model_path``."""
    home = os.path.expanduser("~")
    return find_models(places_of(environ, home, sys.platform, folders, _read))


def kept_models(environ: Mapping[str, str]) -> str:
    """Return llama.cpp's cache, where a model that was downloaded here is kept."""
    places = places_of(environ, os.path.expanduser("~"), sys.platform, (), _read)
    return next(place.folder for place in places if place.source == LLAMA_CPP)


def _read(path: str) -> str | None:
    try:
        return read_foreign(path, _LARGEST).decode("utf-8", "replace")
    except OSError:
        return None


def find_models(places: Sequence[ModelPlace]) -> FoundModels:
    """Find the models in these places; nothing there is changed. A file counts once."""
    models: list[LocalModel] = []
    notes: list[str] = []
    looked: list[ModelPlace] = []
    known: set[tuple[int, int]] = set()
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
            if key not in known:
                known.add(key)
                models.append(model)
    told = tuple(dict.fromkeys(notes))
    if len(told) > _MOST_NOTES:
        told = (*told[:_MOST_NOTES], f"and {len(told) - _MOST_NOTES} more files were left out")
    return FoundModels(
        tuple(sorted(named(models), key=lambda model: model.name.casefold())), told, tuple(looked)
    )


def _models_in(place: ModelPlace, note: Note) -> Iterator[tuple[LocalModel, tuple[int, int]]]:
    if place.source == OLLAMA:
        for file, projector in ollama_files(place.folder, note):
            for model, key in grouped([file], note):
                yield model._replace(projector=projector.seen.path if projector else None), key
        return
    if place.source in ("huggingface", LLAMA_CPP):
        yield from grouped(_cached(place, note), note)
        return
    yield from grouped(_below(place, note), note)


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
    main = (_read(os.path.join(folder, "refs", "main")) or "").strip()
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
        if not is_model_name(each.path):
            note_unfinished(each, note)
        # aria2 gives a file its name and its length at once.
        elif each.path.lower() not in unfinished:
            yield each
