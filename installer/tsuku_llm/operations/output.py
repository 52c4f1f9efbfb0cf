"""Output files that the user named."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import replace_file


def put(path: Path, text: str) -> None:
    """Replace a file by a text in one step: a reader sees the old text or the new one."""
    with disk_errors(f"writing {path.name}", path.parent):
        replace_file(path, text.encode("utf-8"))
