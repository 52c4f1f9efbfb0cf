"""The links of an archive whose files are already installed."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.archive.names import Names, checked_parts
from tsuku_llm.archive.tree import opened_tree
from tsuku_llm.archive.unpack import UnpackedLink
from tsuku_llm.disk import disk_errors
from tsuku_llm.manifest import Artifact


def make_links(artifact: Artifact, into: Path) -> tuple[UnpackedLink, ...]:
    """Make the links that the manifest lists for an artifact, as unpacking it would.

    Its listed files must be in ``into``. Raises ``UnsafeArchive`` for links that its archive
    must not have, before it makes the first one, and the errors of the disk.
    """
    if not artifact.links:
        return ()
    # The same checks as for an archive's members, with the listed files as its members.
    names = Names()
    for file in artifact.files or ():
        names.add(checked_parts(file.path), "file")
    for link in artifact.links:
        names.link(checked_parts(link.path), link.target)
    names.check_links()
    with disk_errors("linking", into), opened_tree(into) as tree:
        for link in artifact.links:
            tree.link(checked_parts(link.path), link.target)
    return tuple(UnpackedLink(link.path, link.target) for link in artifact.links)
