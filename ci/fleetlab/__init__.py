"""A company's fleet in namespaces of one machine: one play, rings by timers, bad releases.

See ``ci/fleet`` and docs/fleet.md.
"""
