"""The program as a package that embeds another signed repository than ours."""

from collections.abc import Mapping
from pathlib import Path

import tsuku_llm


def packaged(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Make such a package below ``folder``; the result belongs into PYTHONPATH.

    Its modules are links to the real ones. ``files`` are those of the embedded repository.
    """
    package = folder / "tsuku_llm"
    package.mkdir(parents=True)
    for path in Path(tsuku_llm.__file__).parent.iterdir():
        if path.name not in ("manifests", "__pycache__"):
            (package / path.name).symlink_to(path)
    manifests = package / "manifests"
    manifests.mkdir()
    (manifests / "__init__.py").touch()
    for name, data in files.items():
        path = manifests / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
