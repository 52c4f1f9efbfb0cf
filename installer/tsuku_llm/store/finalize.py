"""The last step before a version is published: its final form on disk, still in staging."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.files import (
    FOLDER_MODE,
    SEALED_FOLDER_MODE,
    flush_folder,
    seal_file,
    write_new,
)
from tsuku_llm.store.in_use import IN_USE
from tsuku_llm.store.records.integrity import (
    FINGERPRINT,
    Stamp,
    differences,
    expected_kinds,
    list_tree,
    stamps_to_json,
    tampered,
)
from tsuku_llm.store.records.receipt import RECEIPT, Receipt
from tsuku_llm.store.reuse import Content, share
from tsuku_llm.store.staging import Staging

_MODES = {True: 0o555, False: 0o444}
"""The mode of a file, by its executable flag: no program changes a build by mistake."""

_FLUSHES = 8
"""The number of files that are flushed in parallel."""


def finalize(
    staging: Staging, receipt: Receipt, sources: Mapping[Content, Path]
) -> dict[Stamp, str]:
    """Write a staged tree and its receipt durably; return the digests of shared files.

    ``sources`` are files of other versions: they are linked, and the copies removed. Raises
    TamperedInstall if the tree does not hold exactly what the receipt lists.
    """
    tree = staging.tree
    with disk_errors("finishing the new version", staging.path):
        # The staging folder is locked, so no other process changes it. The order of steps is the
        # safety: all of it is flushed before the caller renames the folder to its final name.
        listing, expected = list_tree(tree), expected_kinds(receipt)
        # No receipt lists the empty folders of the archives: remove them, the inner ones first, as
        # they may be all that an outer one has.
        kinds = dict(listing.kinds)
        folders = (name for name, kind in listing.kinds.items() if kind == "folder")
        for name in sorted(folders, reverse=True):
            if name not in expected and not any((tree / name).iterdir()):
                (tree / name).rmdir()
                del kinds[name]
        if found := differences(listing._replace(kinds=kinds), receipt):
            raise tampered(f"the unpacked {receipt.id}", found, receipt.reinstall)
        # Link before flushing: the copies that links replace are removed unflushed.
        digests = share(staging, receipt.files, sources)
        # Set the modes and flush, 8 files in parallel: the disk serves waiting flushes together.
        # Each thread has its own files. Reading the results raises the first ``OSError`` here, and
        # leaving the block waits for the other threads.
        with ThreadPoolExecutor(_FLUSHES) as pool:
            for _ in pool.map(
                lambda each: seal_file(tree / each.path, _MODES[each.executable]), receipt.files
            ):
                pass
        # The file that servers lock must be there before the version has its name.
        write_new(staging.path / IN_USE, b"")
        write_new(staging.path / RECEIPT, receipt.to_json())
        # Take the stamps last: the new modes and links above have changed the change times.
        stamps = list_tree(tree).files
        write_new(staging.path / FINGERPRINT, stamps_to_json(stamps))
        # Folders after files: flushing a folder makes the names of its files durable. The version's
        # own folder stays open: its receipt and its fingerprint are replaced. It is also the one
        # that is renamed, which needs the right to write in it.
        sealed = (tree / name for name, kind in expected.items() if kind == "folder")
        modes = dict.fromkeys((*sealed, tree), SEALED_FOLDER_MODE)
        for folder, mode in (*modes.items(), (staging.path, FOLDER_MODE)):
            folder.chmod(mode)
            flush_folder(folder)
    return digests
