"""The publisher's package: from files of a build to a signed repository, with ``tsuku-publish``.

``hosting`` and ``refresh`` fetch what upstream published; ``binaries`` and ``fatbin`` read it.
``contents``, ``attestations`` and ``facts`` record what was found. ``classify`` tells which asset
is which build, ``documents`` and ``packages`` make release files of it, and ``releases`` those of
the channels in ``plan``. ``packing`` packs builds of your own. ``signing`` makes TUF metadata,
``ceremony`` collects the signatures, ``folder`` writes and publishes the result, and ``checking``
and ``secrets`` check it. docs/releases.md is the handbook.

The client, ``tsuku_llm``, imports nothing of this package.
"""
