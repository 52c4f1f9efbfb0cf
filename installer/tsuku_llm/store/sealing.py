"""The last step before a version appears: on the disk, in its final form, still in staging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import FOLDER_MODE, flush_folder, seal_file, write_new
from tsuku_llm.store.holds import IN_USE
from tsuku_llm.store.integrity import (
    FINGERPRINT,
    Stamp,
    differences,
    expected_kinds,
    list_tree,
    stamps_to_json,
    tampered,
)
from tsuku_llm.store.receipt import RECEIPT, FileRecord, Receipt
from tsuku_llm.store.sharing import Content, share
from tsuku_llm.store.staging import Staging

_PROGRAM_MODE = 0o755
_FILE_MODE = 0o644

_FLUSHES = 8
"""Files that are flushed at once."""


def seal(staging: Staging, receipt: Receipt, donors: Mapping[Content, Path]) -> dict[Stamp, str]:
    """Bring a staged tree and its receipt to the disk; the digests of what is shared.

    ``donors`` are files of other versions to link instead of keeping a copy. Raises
    TamperedInstall when the tree does not hold exactly what the receipt lists.
    """
    tree = staging.tree
    with disk_errors("finishing the new version", staging.path):
        _drop_empty_folders(tree, receipt)
        found = differences(list_tree(tree), receipt)
        if found:
            raise tampered(f"the unpacked {receipt.id}", found)
        digests = share(staging, receipt.files, donors)
        _seal_files(tree, receipt.files)
        write_new(staging.path / IN_USE, b"")
        write_new(staging.path / RECEIPT, receipt.to_json())
        stamps = list_tree(tree).files
        write_new(staging.path / FINGERPRINT, stamps_to_json(stamps))
        _seal_folders(staging, receipt)
    return digests


def _seal_files(tree: Path, files: Sequence[FileRecord]) -> None:
    """Flush side by side: each flush waits for the disk, and those that wait share its work."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # a start does without

    with ThreadPoolExecutor(_FLUSHES) as pool:
        for _ in pool.map(lambda file: seal_file(tree / file.path, _mode(file)), files):
            pass


def _mode(file: FileRecord) -> int:
    return _PROGRAM_MODE if file.executable else _FILE_MODE


def _drop_empty_folders(tree: Path, receipt: Receipt) -> None:
    """Archives may have folders with nothing in them; the receipt lists none."""
    kept = expected_kinds(receipt)
    kinds = list_tree(tree).kinds
    for name in sorted((name for name, kind in kinds.items() if kind == "folder"), reverse=True):
        if name not in kept and not any((tree / name).iterdir()):
            (tree / name).rmdir()


def _seal_folders(staging: Staging, receipt: Receipt) -> None:
    kinds = expected_kinds(receipt)
    folders = [staging.tree / name for name, kind in kinds.items() if kind == "folder"]
    for folder in (*folders, staging.tree, staging.path):
        folder.chmod(FOLDER_MODE)
        flush_folder(folder)
