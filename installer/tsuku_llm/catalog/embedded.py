"""The copy of the signed repository that is in this package: the module itself is a ``Copy``."""

from __future__ import annotations

import os
from importlib import import_module

REPOSITORY = "official"
"""The name of the repository that the files belong to."""


def read(name: str) -> bytes | None:
    """Read the file at a path relative to the repository; None if it does not exist.

    The package's loader reads it, because the package may be a zipped wheel.
    ``importlib.resources`` is not used: importing it takes too long for ``serve``.
    """
    manifests = import_module("tsuku_llm.manifests")
    path = os.path.join(manifests.__path__[0], *name.split("/"))  # noqa: PTH118 - may be in a zip
    try:
        data: bytes = manifests.__loader__.get_data(path)  # type: ignore[union-attr]
    except OSError:
        return None
    return data
