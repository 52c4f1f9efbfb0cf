"""The document of ``models``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tsuku_llm.cli.documents.keys import Bytes, File


class ModelDocument(TypedDict):
    """A model of this machine, and whether it fits into memory.

    ``path`` is that of the first of its ``files``. ``model_repository`` is the one on Hugging Face
    that it is from. ``context`` is the model's own, in tokens. ``fits`` and what follows are null
    if that is not known; ``problem`` says why.
    """

    name: str
    source: str
    path: File
    files: Sequence[File]
    projector: File | None
    model_repository: str | None
    size: Bytes
    quantisation: str | None
    architecture: str | None
    context: int | None
    fits: bool | None
    shortened_context: int | None
    needs: Bytes | None
    layers: int | None
    layers_on_devices: int | None
    problem: str | None


class PlaceDocument(TypedDict):
    """A folder that was looked into, and the program that keeps its models there."""

    source: str
    folder: File
    exists: bool


class ModelsAnswer(TypedDict):
    """The answer of ``models``; ``notes`` are sentences about what was left out."""

    models: list[ModelDocument]
    places: list[PlaceDocument]
    notes: list[str]
