"""From what upstream published to a signed repository: ``python -m ci.release COMMAND``.

``hosting`` and ``downloads`` get things, ``elf`` and ``fatbin`` read them, ``contents``,
``provenance`` and ``facts`` record what was found. ``classify`` says which asset is which
build, ``measured`` what it needs, ``build`` writes release files. ``signing`` makes TUF
metadata, ``ceremony`` asks whoever signs, ``folder`` writes and publishes the result,
``checking`` and ``secrets`` look after it. docs/releases.md is the handbook.
"""
