"""Verified builds on disk: put together out of sight, renamed into place, never edited.

Locks, staging, commit, the active pointer, receipts, rollback and prune. No network, no
manifests, no GPUs: what a receipt says about those is opaque here. ``serve``, ``list`` and
``which`` read what is there (``shelf``), and so load nothing that writes it.
"""

from tsuku_llm import lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tsuku_llm.store.installed import Installed
    from tsuku_llm.store.legacy import LegacyAddon, find_legacy
    from tsuku_llm.store.locks import Holder, exclusive
    from tsuku_llm.store.receipt import (
        ArtifactRecord,
        FileRecord,
        LinkRecord,
        Receipt,
        version_id,
    )
    from tsuku_llm.store.shelf import Shelf
    from tsuku_llm.store.staging import Staging
    from tsuku_llm.store.versions import LOCK_TIMEOUT, Pruned, Store

__all__ = [
    "LOCK_TIMEOUT",
    "ArtifactRecord",
    "FileRecord",
    "Holder",
    "Installed",
    "LegacyAddon",
    "LinkRecord",
    "Pruned",
    "Receipt",
    "Shelf",
    "Staging",
    "Store",
    "exclusive",
    "find_legacy",
    "version_id",
]

__getattr__ = lazily.loader(
    __name__,
    {
        "installed": ("Installed",),
        "legacy": ("LegacyAddon", "find_legacy"),
        "locks": ("Holder", "exclusive"),
        "receipt": ("ArtifactRecord", "FileRecord", "LinkRecord", "Receipt", "version_id"),
        "shelf": ("Shelf",),
        "staging": ("Staging",),
        "versions": ("LOCK_TIMEOUT", "Pruned", "Store"),
    },
)
