"""Which releases and channels count: the embedded or an updated copy, the newest valid one.

On disk, below ``<data>/metadata/<repository>/``:

``copies/<digest of its timestamp>/``
    a whole copy in the published layout, never changed after it got its name
``current``
    the name of the copy that counts, replaced as the last step of a refresh
``client/``
    the state of python-tuf's updater, which remembers what it saw also when a refresh failed
``roots/``
    every root that was verified once, also where the rest was refused
``root.json``, ``repository.json``
    the pinned root and the URL of a repository that the user added

Every load verifies its copy anew.
"""

from __future__ import annotations

from tsuku_llm.catalog.loading import Catalog, load
from tsuku_llm.catalog.refreshing import Download, refresh
from tsuku_llm.catalog.repositories import (
    OFFICIAL,
    OFFICIAL_URL,
    Repository,
    add_repository,
    remove_repository,
    repositories,
    repository,
)

__all__ = [
    "OFFICIAL",
    "OFFICIAL_URL",
    "Catalog",
    "Download",
    "Repository",
    "add_repository",
    "load",
    "refresh",
    "remove_repository",
    "repositories",
    "repository",
]
