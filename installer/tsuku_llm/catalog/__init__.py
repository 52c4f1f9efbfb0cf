"""The releases and channels on offer, from the newest valid copy: embedded or updated.

On disk, below ``<data>/metadata/<repository>/``:

``copies/<digest of its files>/``
    a whole copy in the published layout, never changed after it got its name
``current``
    the name of the current copy, replaced as the last step of a refresh
``seen.json``
    the highest versions that a refresh saw, even if it then failed
``roots/``
    every root that was ever verified, even if the rest of its copy was refused
``root.json``, ``repository.json``
    the pinned root and the URL of a repository that the user added

Every load verifies its copy again.
"""
