"""The comparison of an archive with the manifest's list: exactly those files, no others.

Of a wheel the list chooses files. A maker's package of libraries has many that no build needs, such
as debuggers' scripts and compilers, and an archive without them would have another digest.
"""

from __future__ import annotations

from tsuku_llm.archive.formats.member import Member, unsafe
from tsuku_llm.archive.names import Parts
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.errors import DigestMismatch


class SignedList:
    """The files and links that an artifact may have; all, if the manifest lists none."""

    def __init__(self, artifact: Artifact) -> None:
        self._listed = artifact.files is not None
        self._chooses = self._listed and artifact.format == "wheel"
        self._files = {file.path: file for file in artifact.files or ()}
        self._links = {link.path: link.target for link in artifact.links}
        self._folders = {
            folder
            for path in (*self._files, *self._links)
            for folder in _ancestors(tuple(path.split("/")))
        }

    def leaves_out(self, parts: Parts) -> bool:
        """Tell whether a member is not to be installed, because the list chooses others."""
        if not self._chooses:
            return False
        return parts not in self._folders and "/".join(parts) not in self._files

    def expect(self, path: str, member: Member) -> bool:
        """Return whether the file at ``path`` must be executable; raise if it is not listed.

        Raises ``UnsafeArchive`` for that, ``DigestMismatch`` for another size.
        """
        if not self._listed:
            return member.executable
        entry = self._files.get(path)
        if entry is None:
            raise unsafe("a file is not in the signed list", path)
        # Before anything is written. The digest follows when the file is complete.
        if entry.size != member.size:
            raise _different(path)
        return entry.executable

    def check(self, path: str, sha256: str) -> None:
        """Compare a written file's digest with the listed one."""
        if self._listed and self._files[path].sha256 != sha256:
            raise _different(path)

    def check_folder(self, parts: Parts) -> None:
        """Refuse a folder that holds nothing listed."""
        if self._listed and parts not in self._folders:
            raise unsafe("a folder is not in the signed list", "/".join(parts))

    def check_links(self, links: list[tuple[Parts, str]]) -> None:
        """Compare the links with the listed ones."""
        if self._listed and {"/".join(parts): target for parts, target in links} != self._links:
            raise unsafe("the links are not those of the signed list")

    def check_complete(self, done_paths: set[str]) -> None:
        """Refuse an archive that lacks a listed file."""
        missing = sorted(self._files.keys() - done_paths)
        if missing:
            raise unsafe("a file of the signed list is missing", missing[0])


def _ancestors(parts: Parts) -> list[Parts]:
    return [parts[:depth] for depth in range(1, len(parts))]


def _different(path: str) -> DigestMismatch:
    return DigestMismatch(
        "a file in the archive is not the one that was signed",
        facts=(f"file: {path}",),
        hint="nothing was installed; report it to the archive's publisher",
    )
