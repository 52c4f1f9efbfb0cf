"""Verified builds on disk: built in staging, renamed into place, never edited.

This package owns locks, staging, commit, the active pointer, receipts, rollback and prune. It
knows no network, manifests or GPUs: it stores what a receipt says about them unread. ``serve``,
``list`` and ``which`` only read (``reader``), so they do not load the modules that write.
"""
