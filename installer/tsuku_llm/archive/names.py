"""The rules for member names, the same on every system, and the signed list of them. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Literal

from tsuku_llm.archive.formats.member import Member, unsafe
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.errors import DigestMismatch

LONGEST_PATH = 255
LONGEST_PART = 200
DEEPEST = 32
LONGEST_LINK_CHAIN = 16
MOST_FOLDERS = 500
"""Limit on folders of one tree; builds have a handful, and each costs more than a file."""

_RESERVED = re.compile(
    r"^(con|prn|aux|nul|conin\$|conout\$|clock\$|com[0-9¹²³]|lpt[0-9¹²³])\s*(\..*)?$", re.IGNORECASE
)
"""Device names of Windows, with any extension (learn.microsoft.com, "Naming Files")."""

_FORBIDDEN = frozenset('\\:*?"<>|')

Parts = tuple[str, ...]
Kind = Literal["file", "folder", "link"]


def checked_parts(name: str, *, folder: bool = False) -> Parts:
    """Refuse a member's name that must not become a path; split any other into its parts.

    Names that Windows cannot store are refused everywhere: one manifest serves all systems,
    and such a name does not get into a build by accident. ``folder`` allows the final slash
    that marks a folder. A leading ``./`` is removed, because ``tar c .`` writes it.

    Raises ``UnsafeArchive``.
    """
    text = name.removesuffix("/") if folder else name
    text = text.removeprefix("./")
    if folder and text in ("", "."):  # "./", the archive's top folder
        if name.startswith("/"):
            raise unsafe("a member has an absolute path", name)
        return ()
    # surrogatepass: the name may hold anything, and only the rules below refuse it.
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST_PATH:
        raise unsafe("a member's name is too long", name)
    parts = tuple(text.split("/"))
    if len(parts) > DEEPEST:
        raise unsafe("a member is nested too deep", name)
    for part in parts:
        reason = _why_not(part)
        if reason:
            raise unsafe(reason, name)
    return parts


_RULES: tuple[tuple[Callable[[str], object], str], ...] = (
    (
        lambda part: part in ("", ".", ".."),
        "a member's path is absolute, empty or has a '..'",
    ),
    (
        lambda part: len(part.encode("utf-8", "surrogatepass")) > LONGEST_PART,
        "a member's name is too long",
    ),
    (
        # As in a receipt. This also refuses all spaces but the usual one.
        lambda part: not part.isprintable(),
        "a member's name has control or invisible characters",
    ),
    (
        _FORBIDDEN.intersection,
        "a member's name has a backslash, a colon or another special character",
    ),
    (
        lambda part: part[-1] in ". " or part[0] == " ",
        "a member's name begins or ends with a space, or ends with a dot",
    ),
    (_RESERVED.match, "a member has the name of a Windows device"),
)


def _why_not(part: str) -> str:
    """Explain why one part of a path is refused; "" if it is not."""
    return next((reason for applies, reason in _RULES if applies(part)), "")


def folded(part: str) -> str:
    """Fold a name: two names with the same form are the same file on some file system.

    Folding covers letter case (Windows, macOS), composition (macOS), and look-alikes that
    fold to one letter (the Kelvin sign and K).
    """
    # Twice: casefold can give letters that are not in normal form.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", part).casefold())


class Names:
    """The names that an unpacked tree has so far; it refuses names that collide.

    No path may go through a link: the meaning of a path never depends on a link that the
    archive itself has.
    """

    def __init__(self) -> None:
        # The keys are folded names: two names with one key are one file on some systems.
        self._known: dict[Parts, tuple[Parts, Kind]] = {}
        self._targets: dict[Parts, Parts] = {}
        self._folders = 0

    def add(self, parts: Parts, kind: Kind) -> None:
        """Register a member and its folders; raise ``UnsafeArchive`` for a collision."""
        key = tuple(folded(part) for part in parts)
        # The folders above too, as archives may leave them out. One that is a link is refused.
        for depth in range(1, len(parts)):
            self._claim(key[:depth], parts[:depth], "folder", parts)
        self._claim(key, parts, kind, parts)

    def _claim(self, key: Parts, parts: Parts, kind: Kind, member: Parts) -> None:
        name = "/".join(member)
        if kind == "folder" and key not in self._known:
            self._folders += 1
            if self._folders > MOST_FOLDERS:
                raise unsafe("it has more folders than allowed", name)
        spelled, known = self._known.setdefault(key, (parts, kind))
        if spelled != parts:
            raise unsafe("two names differ only in case or in Unicode form", name)
        if known != kind:
            raise unsafe("one name is a file and also a folder or link", name)
        if kind != "folder" and key in self._targets:
            raise unsafe("two members have the same name", name)
        if kind != "folder":
            self._targets[key] = ()

    def link(self, parts: Parts, target: str) -> None:
        """Register a link; ``check_links`` judges its target when all names are known."""
        self.add(parts, "link")
        self._targets[tuple(folded(part) for part in parts)] = _resolved(parts, target)

    def check_links(self) -> None:
        """Check that every link leads to a file, possibly through other links.

        Raises ``UnsafeArchive``.
        """
        for key, (parts, kind) in self._known.items():
            if kind == "link":
                self._follow(key, "/".join(parts))

    def _follow(self, key: Parts, name: str) -> None:
        for _ in range(LONGEST_LINK_CHAIN):
            target = self._targets[key]
            key = tuple(folded(part) for part in target)
            spelled, kind = self._known.get(key, (None, None))
            # The spelling too: on a case-sensitive system, another spelling names no file.
            if spelled != target or kind not in ("file", "link"):
                raise unsafe("a link does not point to a file of the archive", name)
            if kind == "file":
                return
        raise unsafe("links form a loop", name)


def _resolved(link: Parts, target: str) -> Parts:
    """Resolve a link's target by its text alone, which is right as no part of it can be a link."""
    name = "/".join(link)
    if len(target) > LONGEST_PATH:
        raise unsafe("a link's target is too long", name)
    if target.startswith("/"):
        raise unsafe("a link has an absolute target", name)
    path = list(link[:-1])
    for part in target.split("/"):
        # An empty path: ".." would leave the tree, and falls through to _why_not().
        if part == ".." and path:
            path.pop()
        elif part == ".":
            continue
        elif reason := _why_not(part):
            raise unsafe(f"a link points outside the archive or has a bad target ({reason})", name)
        else:
            path.append(part)
    return tuple(path)


class SignedList:
    """The files and links that an artifact may have; all, if the manifest lists none."""

    def __init__(self, artifact: Artifact) -> None:
        self._listed = artifact.files is not None
        self._chooses = self._listed and artifact.format == "wheel"
        self._files = {file.path: file for file in artifact.files or ()}
        self._links = {link.path: link.target for link in artifact.links}
        paths = [tuple(path.split("/")) for path in (*self._files, *self._links)]
        self._folders = {path[:depth] for path in paths for depth in range(1, len(path))}

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


def _different(path: str) -> DigestMismatch:
    return DigestMismatch(
        "a file in the archive is not the one that was signed",
        facts=(f"file: {path}",),
        hint="nothing was installed; report it to the archive's publisher",
    )
