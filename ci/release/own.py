"""Release files that a publisher wrote for its builds, as ``repository pack`` fills them."""

import json
from pathlib import Path
from typing import Any

from ci.release.errors import ReleaseError
from ci.release.reading import reading
from tsuku_llm.errors import ManifestError
from tsuku_llm.manifest import require_release


def load_own(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every release file of a folder by its release; none without that folder.

    Raises ``ReleaseError`` for a file that clients would not understand, or with another name.
    """
    return {path.stem: _loaded(path) for path in sorted(folder.glob("*.json"))}


def _loaded(path: Path) -> dict[str, Any]:
    with reading(path):
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    try:
        require_release(document)
    except ManifestError as error:
        raise ReleaseError("; ".join((f"{path}: {error}", *error.facts))) from error
    if document["release"] != path.stem:
        raise ReleaseError(f"{path} is about {document['release']}")
    return document
