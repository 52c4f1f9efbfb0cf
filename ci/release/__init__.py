"""The release tool, from upstream's files to a signed repository: ``python -m ci.release COMMAND``.

``hosting`` and ``downloads`` fetch files, and ``elf``, ``pe`` and ``fatbin`` read them.
``contents``, ``provenance`` and ``facts`` record what was found. ``classify`` tells which asset is
which build, ``measured`` what it needs, and ``build`` writes release files. ``signing`` makes TUF
metadata, ``ceremony`` collects the signatures, ``folder`` writes and publishes the result, and
``checking`` and ``secrets`` check it. docs/releases.md is the handbook.
"""
