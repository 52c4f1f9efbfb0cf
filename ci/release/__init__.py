"""From what upstream published to a signed repository: ``python -m ci.release COMMAND``.

``facts`` and ``packages`` read data, ``classify`` says which asset is which build, ``build``
writes release files, ``signing`` makes TUF metadata, ``folder`` writes and checks the result.
"""
