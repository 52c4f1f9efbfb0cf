"""Verified builds on disk: built in staging, renamed into place, never edited.

This package owns locks, staging, commit, the active pointer, receipts, rollback and prune. It
knows no network, manifests or GPUs: it stores what a receipt says about them unread. ``serve``,
``list`` and ``which`` only read (``shelf``), so they do not load the modules that write.
"""

from tsuku_llm import lazily

TYPE_CHECKING = False
# Tools see these imports; at run time ``lazily.loader`` imports each module on first use.
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
