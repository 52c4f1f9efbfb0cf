"""Packing of builds: the reverse of the client's ``archive``.

A build becomes a few archives. Each of them can be installed, or linked from an older version,
without the others. So an update downloads only what changed between two builds.
"""
