"""One installed version: a folder with a receipt, a fingerprint and the tree."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import read_small
from tsuku_llm.errors import CorruptStore
from tsuku_llm.store.integrity import TREE
from tsuku_llm.store.receipt import RECEIPT, RECEIPT_LIMIT, Receipt


class Installed(NamedTuple):
    """One version in the store: its folder and its receipt."""

    id: str
    path: Path
    receipt: Receipt

    @property
    def tree(self) -> Path:
        """The folder of the build."""
        return self.path / TREE


def read_version(path: Path) -> Installed | None:
    """Read the version in a folder; None if the folder has no receipt.

    Raises CorruptStore if the receipt cannot be read or belongs to another version.
    """
    content = read_small(path / RECEIPT, RECEIPT_LIMIT)
    if content is None:
        return None
    receipt = Receipt.from_json(content)
    with disk_errors("reading an installed version", path):
        is_link = path.is_symlink()
    # A folder that was copied, renamed or linked here has a receipt that does not match its name.
    if receipt.id != path.name or is_link:
        raise CorruptStore(
            f"{path.name} is not the version that its name says",
            facts=(f"path: {path}", f"its receipt is of {receipt.id}"),
            hint="tsuku-llm install --force reinstalls it",
        )
    return Installed(path.name, path, receipt)
