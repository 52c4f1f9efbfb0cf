"""Models from files: the parts of a split one together, each projector with its model. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from tsuku_llm.model_caches.files import ModelFile, Note
from tsuku_llm.model_caches.naming import SPLIT, LocalModel, quantisation_of, stem_of

_BITS = re.compile(r"\d+")


def grouped(files: Iterable[ModelFile], note: Note) -> Iterator[tuple[LocalModel, tuple[int, int]]]:
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
