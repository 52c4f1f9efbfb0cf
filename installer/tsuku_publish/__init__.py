"""The publisher's package: from files of a build to a signed repository, with ``tsuku-publish``.

``upstream`` fetches and records what others published, and ``archives`` reads it. ``release_files``
makes release files of it, and of builds that ``building`` compiled and ``packing`` packed.
``signing`` makes TUF metadata with the keys of its ``holders``, and ``repository`` writes, reads
and checks the result. ``feed`` does the first half without people. docs/releases.md is the
handbook.

The client, ``tsuku_llm``, imports nothing of this package.
"""
