"""The files of the signed repository that the package carries."""

from __future__ import annotations

import os
from importlib import import_module

REPOSITORY = "official"
"""Whose files they are."""


def read(name: str) -> bytes | None:
    """The file of that path relative to the repository, None if it is not there.

    Through the package's own loader, as the package may be a zipped wheel, and without
    ``importlib.resources``, which takes longer to import than ``serve`` may.
    """
    manifests = import_module("tsuku_llm.manifests")
    path = os.path.join(manifests.__path__[0], *name.split("/"))  # noqa: PTH118 - may be in a zip
    try:
        data: bytes = manifests.__loader__.get_data(path)  # type: ignore[union-attr]
    except OSError:
        return None
    return data
