"""The names of models: what is shown, and which model a user's words mean. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tsuku_llm.ground.records import documented

SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
"""A part of a model, as upstream's ``gguf-split`` names it."""

_QUANTISATION = re.compile(
    r"(?:^|[-._])(?P<tag>(?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|FP?16|FP?32"
    r"|MXFP4(?:_MOE)?|NVFP4))$",
    re.IGNORECASE,
)

OLLAMA = "ollama://"
"""What other programs write before the name of one of Ollama's models."""

_HUB_MODEL = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/|(?:hf|huggingface)://)?"
    r"(?P<repository>\w[\w.-]*/\w[\w.-]*(?::[\w.-]+)?)"
    r"(?:/(?:tree|blob|resolve)/[^/]+)?(?:/(?P<file>.+\.gguf))?/?",
    re.IGNORECASE,
)

# ``enum llama_ftype`` in upstream's include/llama.h.
_FILE_TYPES = dict(
    enumerate(("F32", "F16", "Q4_0", "Q4_1", None, None, None, "Q8_0", "Q5_0", "Q5_1", "Q2_K"))
)
_FILE_TYPES |= dict(
    enumerate(("Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"), 11)
)
_FILE_TYPES |= dict(
    enumerate(("IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S"), 19)
)
_FILE_TYPES |= dict(enumerate(("IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16"), 27))
_FILE_TYPES |= {36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0"}
_GUESSED = 1024
"""Added to a file's type that a reader only guessed."""


@documented(
    *("name", "source", "path", "files", "projector", "model_repository", "size", "quantisation"),
    *("architecture", "context"),
)
class LocalModel(NamedTuple):
    """A model of this machine; all parts of a split one together.

    ``name`` is unique among those that were found with it. ``path`` is that of the first of its
    ``files``. ``size`` is in bytes, of all files. ``projector`` is the file with which the model
    sees or hears, None if there is none. ``model_repository`` is the one on Hugging Face that it is
    from, None if that is not known, and ``below`` the first file's path in it, or in the folder.
    ``context`` is in tokens.
    """

    name: str
    source: str
    path: str
    files: tuple[str, ...]
    size: int
    model_repository: str | None
    below: str
    quantisation: str | None = None
    context: int | None = None
    architecture: str | None = None
    projector: str | None = None

    @property
    def stem(self) -> str:
        """The first file's path in its repository or folder, without what all files end with."""
        return stem_of(self.below)


def stem_of(path: str) -> str:
    """Return a file's path without its ending and its number among the parts of a model."""
    if found := SPLIT.fullmatch(path):
        return found["stem"]
    return path[:-5] if path.lower().endswith(".gguf") else path


def quantisation_of(path: str, file_type: object) -> str | None:
    """Return the quantisation by a file's name, as people know it, else by its header."""
    if found := _QUANTISATION.search(stem_of(path)):
        return found["tag"].upper()
    if isinstance(file_type, int):
        return _FILE_TYPES.get(file_type % _GUESSED)
    return None


def named(models: Iterable[LocalModel]) -> tuple[LocalModel, ...]:
    """Give each model a name of its own: the shortest one that no other model has."""
    models = tuple(models)
    names = [_names(model)[0] for model in models]
    for longer in range(1, 4):
        counts = Counter(name.casefold() for name in names)
        names = [
            _names(model)[longer] if counts[name.casefold()] > 1 else name
            for model, name in zip(models, names, strict=True)
        ]
    return tuple(model._replace(name=name) for model, name in zip(models, names, strict=True))


def _names(model: LocalModel) -> tuple[str, str, str, str]:
    """Return the names of a model, each longer and less likely another one's than the last."""
    if model.name:
        short = full = model.name
    elif model.model_repository:
        # As for llama-server's -hf.
        tag = f":{model.quantisation}" if model.quantisation else ""
        short, full = model.model_repository + tag, f"{model.model_repository}/{model.stem}"
    else:
        short, full = model.stem.rpartition("/")[2], model.stem
    return short, full, f"{model.source}/{short}", model.path


def matching(text: str, models: Sequence[LocalModel]) -> tuple[LocalModel, ...]:
    """Return the models that a user's words may mean: one, or none, or several.

    A model's own name comes first, then other ways to name the whole of it, then the beginning of
    one of these, then a part.
    """
    if exact := tuple(model for model in models if model.name == text):
        return exact
    wanted = _plain(text)
    if not wanted:
        return ()
    known = [(model, tuple(dict.fromkeys(map(_plain, _aliases(model))))) for model in models]
    for means in (str.__eq__, str.startswith, str.__contains__):
        if found := tuple(
            model for model, names in known if any(means(name, wanted) for name in names)
        ):
            return found
    return ()


def _aliases(model: LocalModel) -> Iterable[str]:
    """Yield what people call a model, in llama.cpp, LM Studio, Ollama and on a disk."""
    yield from (model.name, f"{model.source}/{model.name}")
    if model.model_repository:
        yield f"{model.model_repository}/{model.stem}"
        tag = f":{model.quantisation}" if model.quantisation else ""
        own = model.model_repository.rpartition("/")[2]
        for name in (model.model_repository, own):
            shorter = re.sub(r"-gguf$", "", name, flags=re.IGNORECASE)
            yield from (name, name + tag, shorter, shorter + tag)
    if model.source == "ollama":
        # Ollama's own defaults: types/model/name.go.
        yield model.name.removesuffix(":latest")
        yield model.name.removeprefix("hf.co/")
        yield f"library/{model.name}"
    else:
        yield model.stem
        yield model.stem.rpartition("/")[2]


def _plain(text: str) -> str:
    """Return a name without what does not tell models apart: case, ``@`` for ``:``, the ending."""
    return stem_of(text.strip()).casefold().replace("@", ":")


def hub_arguments(text: str) -> tuple[str, ...] | None:
    """Return the server's arguments for a model of Hugging Face; None if the text names none.

    The text is OWNER/REPOSITORY[:QUANT], as the hub, ramalama and browsers write it, or one of its
    files.
    """
    found = _HUB_MODEL.fullmatch(text)
    # A relative path of two words looks like a repository, whose name has no such end.
    if found is None or found["repository"].lower().endswith(".gguf"):
        return None
    file = found["file"]
    return ("-hf", found["repository"], *(("-hff", file) if file else ()))
