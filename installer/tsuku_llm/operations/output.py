"""Files that the user asked for by name."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import replace_file


def put(path: Path, text: str) -> None:
    """Write a text into a file in one step: a reader sees the old one or the new one."""
    with disk_errors(f"writing {path.name}", path.parent):
        replace_file(path, text.encode("utf-8"))
