"""The feed: one run asks upstream, measures what is new, and keeps the nightly channel alive.

``choosing`` and ``drafts`` decide and are pure, ``state`` is what a run remembers, ``sandbox``
starts builds, and ``run`` has the steps.
"""
