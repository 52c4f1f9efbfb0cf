"""One version on disk: a folder with a receipt, a fingerprint and the tree itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import read_small
from tsuku_llm.errors import CorruptStore, TsukuError
from tsuku_llm.store.integrity import TREE, Stamp, check_version, read_stamps
from tsuku_llm.store.receipt import RECEIPT, FileRecord, Receipt
from tsuku_llm.store.sharing import Content

_RECEIPT_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True)
class Installed:
    """One version in the store: its folder and its receipt."""

    id: str
    path: Path
    receipt: Receipt

    @property
    def tree(self) -> Path:
        """The folder with the build itself."""
        return self.path / TREE


def read_version(path: Path) -> Installed | None:
    """The version in a folder; None where there is none.

    Raises CorruptStore where the receipt is not readable or another version's.
    """
    content = read_small(path / RECEIPT, _RECEIPT_LIMIT)
    if content is None:
        return None
    receipt = Receipt.from_json(content)
    with disk_errors("looking at an installed version", path):
        is_link = path.is_symlink()
    if receipt.id != path.name or is_link:
        raise CorruptStore(
            f"{path.name} is not the version that it seems to be",
            facts=(f"path: {path}", f"its receipt is of {receipt.id}"),
            hint="tsuku-llm install --force writes it anew",
        )
    return Installed(path.name, path, receipt)


def donors(files: Iterable[FileRecord], others: Iterable[Installed]) -> dict[Content, Path]:
    """Where other versions have the same files."""
    wanted = {(file.sha256, file.executable) for file in files if file.size}
    return {
        (file.sha256, file.executable): other.tree / file.path
        for other in others
        for file in other.receipt.files
        if (file.sha256, file.executable) in wanted
    }


def inodes_of(version: Path) -> frozenset[int]:
    """The inodes of a version's files, as they were when it was verified."""
    return frozenset(stamp[-1] for stamp in read_stamps(version).values())


def refresh_sharers(
    others: Iterable[Installed], inodes: Collection[int], digests: Mapping[Stamp, str]
) -> None:
    """Fresh fingerprints for the versions that share these inodes.

    Making or removing a hard link changes the change time of every other name. A version
    that is found damaged here is reported when it is used. ``digests`` are known already.
    """
    for other in others:
        if not inodes_of(other.path).isdisjoint(inodes):
            with suppress(TsukuError):
                check_version(other.path, other.receipt, known=digests)
