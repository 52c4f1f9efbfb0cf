"""Hash everything that is installed, and name what is not as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsuku_llm.errors import CorruptStore
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.versions import all_ids, found, resolve
from tsuku_llm.store import Receipt, Shelf


@dataclass(frozen=True, slots=True)
class Verdict:
    """One version: every difference in words, none where it is intact; and what mends it."""

    id: str
    differences: tuple[str, ...]
    repair: str = ""


def verify(session: Session, words: Sequence[str] = ()) -> tuple[Verdict, ...]:
    """Hash every file of the versions that are named as in ``use``, or of all.

    Raises ``NotInstalled`` and ``UsageError`` as ``use`` does.
    """
    shelf = session.shelf
    ids = resolve(shelf, words) if words else all_ids(shelf)
    return tuple(_verdict(shelf, version) for version in ids)


def _verdict(shelf: Shelf, version: str) -> Verdict:
    try:
        installed = found(shelf, version)
    except CorruptStore as error:
        return Verdict(version, (error.message, *error.facts), f"tsuku-llm uninstall {version}")
    differences = shelf.verify(installed)
    return Verdict(version, differences, _repair(installed.receipt) if differences else "")


def _repair(receipt: Receipt) -> str:
    """The command that installs exactly this again."""
    from tsuku_llm.catalog import OFFICIAL  # noqa: PLC0415 - what is intact needs no catalog

    words = ["tsuku-llm install --force", f"--release {receipt.release}"]
    words.append(f"--backend {receipt.variant}")
    if receipt.repository != OFFICIAL:
        words.append(f"--repository {receipt.repository}")
    return " ".join(words)
