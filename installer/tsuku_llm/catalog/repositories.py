"""The repositories, official and added by the user, each with its own root of trust."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from tsuku_llm import trust
from tsuku_llm.catalog import embedded, revocations
from tsuku_llm.catalog.copies import OF_A_COPY, read_file
from tsuku_llm.catalog.metadata_status import folder_of
from tsuku_llm.catalog.revocations import ADDED
from tsuku_llm.config.keys import PACKAGE, REGISTRY
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import (
    CorruptStore,
    MetadataError,
    UnknownRequest,
    UsageError,
    did_you_mean,
)
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.folders import opened, temporaries
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.trust import Copy

OFFICIAL = embedded.REPOSITORY
OFFICIAL_URL = "https://releases.tsuku.dev/tsuku-llm/"
"""The package that carries the official repository to wherever pip works."""

FILES = (
    *(r"repository\.json", r"root\.json", "current", r"standing\.json"),
    *(r"refreshed\.json", r"revoked\.json", r"seen\.json"),
)
"""Patterns for the files of a repository's folder, without its copies."""

_OURS = re.compile(
    rf"(?!{re.escape(revocations.FILE)})(?:{'|'.join(FILES)})|{temporaries('|'.join(FILES)).pattern}"
    rf"|copies/(?:[0-9a-f]{{16}}/(?:{OF_A_COPY.pattern})?)?"
    rf"|roots/(?:[0-9]+\.root\.json)?"
)
"""The paths that are removed with a repository; the revocations seen are kept for ever."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_SPACE = re.compile(r"[\s\\]")
"""Characters that ``urlsplit`` drops, or that a terminal or another parser reads differently."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A signed repository: ``root`` is the pinned root, ``embedded`` the copy in the package.

    ``url`` is where it is published, and ``others`` are further places with the same files.
    ``sought`` is the pattern of targets to read and keep, as ``trust.load`` takes it.
    """

    name: str
    url: str
    root: bytes
    embedded: Copy | None = None
    sought: str = trust.RELEASES
    others: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """All places, in the order in which they are asked."""
        return (self.url, *self.others)

    def at(self, place: str) -> Repository:
        """Return this repository as it is published at one of its places."""
        return replace(self, url=place, others=())


def repository(data: Path, name: str = OFFICIAL, places: Sequence[str] = ()) -> Repository:
    """Find a repository by its name; ``places`` override its own.

    Raises ``UnknownRequest``, which lists the existing ones.
    """
    if name == OFFICIAL:
        return _official(places or (OFFICIAL_URL,))
    found = _added(data, name)
    if found is None:
        names = tuple(each.name for each in repositories(data))
        raise UnknownRequest(
            f"there is no repository {name!r}",
            facts=(f"repositories: {', '.join(names)}",),
            hint=did_you_mean(name, names, f"add it: {TSUKU} repository add NAME URL --root FILE"),
        )
    return _published(found, places) if places else found


def repositories(data: Path) -> tuple[Repository, ...]:
    """List the official repository and those that the user added. Raises ``CorruptStore``."""
    with disk_errors("listing the repositories", data):
        folders = sorted(data.glob(f"metadata/*/{ADDED}"))
    added = (_added(data, path.parent.name) for path in folders)
    return (_official((OFFICIAL_URL,)), *(each for each in added if each))


def add_repository(
    data: Path, name: str, url: str, root: bytes, others: Sequence[str] = ()
) -> Repository:
    """Store a repository with its own root of trust; nothing is downloaded yet.

    ``others`` are further places with the same files. Raises ``UsageError`` for a bad name or URL,
    ``MetadataError`` if the root does not verify against itself or has weak keys.
    """
    if name == OFFICIAL or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a repository",
            facts=("use at most 40 lower-case letters, digits, - and _; 'official' is reserved",),
        )
    if _added(data, name) is not None:
        raise UsageError(
            f"repository {name!r} exists already", hint=f"{TSUKU} repository remove {name}"
        )
    places = [check_url(each) for each in (url, *others)]
    trust.check_root(root)
    folder = folder_of(data, name)
    with disk_errors("adding a repository", folder):
        _clear(data, name)
        # Those of another publisher, who had this name before, must not count again.
        with suppress(CorruptStore):
            revocations.forget_builds(data, name)
        make_folder(folder)
        # The settings file comes last: without it, the repository does not exist. So a crash leaves
        # no repository without a root.
        replace_file(folder / "root.json", root)
        document = {"format": 1, "url": places[0]} | ({"others": places[1:]} if others else {})
        replace_file(folder / ADDED, json.dumps(document).encode())
    return _published(Repository(name, places[0], root), places)


def remove_repository(data: Path, name: str) -> None:
    """Remove an added repository and its metadata.

    Builds that were installed from it stay, and so do its revocations of them; those of other
    repositories' builds end. Raises ``UsageError`` for the official repository,
    ``UnknownRequest``.
    """
    if name == OFFICIAL:
        raise UsageError("the official repository cannot be removed")
    repository(data, name)
    folder = folder_of(data, name)
    with disk_errors("removing a repository", folder):
        # First the settings file: after a crash, the repository is gone and only leftovers remain.
        (folder / ADDED).unlink()
        _clear(data, name)


def _clear(data: Path, name: str) -> None:
    """Remove a repository's metadata; the revocations and foreign files stay."""
    with opened(data, "metadata") as metadata:
        if metadata is not None and metadata.is_folder(name):
            with metadata.inner(name) as folder:
                folder.remove_matching(_OURS)
            with suppress(OSError):  # the revocations or foreign files are in it
                metadata.rmdir(name)


def check_url(url: str) -> str:
    """Check a repository's URL; return it with a final slash. Raises ``UsageError``."""
    if not url.isprintable() or _SPACE.search(url):
        raise _bad_url()
    if PACKAGE.fullmatch(url.removesuffix("/")) or REGISTRY.fullmatch(url):
        return _folder_url(url)
    try:
        parts = urlsplit(url)
        remote = parts.scheme == "https" and parts.hostname and parts.port != 0
    except ValueError as error:
        raise _bad_url() from error
    local = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    if not (remote or local) or "@" in parts.netloc or parts.query or parts.fragment:
        raise _bad_url()
    return _folder_url(url)


def _bad_url() -> UsageError:
    return UsageError(
        "the URL of a repository must be https://HOST/FOLDER/, file:///FOLDER/, oci://HOST/NAME or "
        "pkg:pypi/NAME",
        facts=("without a user, a query, a fragment, blanks, backslashes or control characters",),
        hint="such as https://host.example/llm/repository/",
    )


def _published(repository: Repository, places: Sequence[str]) -> Repository:
    """Return a repository with these places, each once."""
    url, *others = dict.fromkeys(map(_folder_url, places))
    return replace(repository, url=url, others=tuple(others))


def _official(places: Sequence[str]) -> Repository:
    root = embedded.read("metadata/1.root.json")
    if root is None:
        raise MetadataError("this package has no embedded root", hint="reinstall tsuku-llm")
    return _published(Repository(OFFICIAL, OFFICIAL_URL, root, embedded), places)


def _added(data: Path, name: str) -> Repository | None:
    if not _NAME.fullmatch(name):
        return None
    folder = folder_of(data, name)
    about = read_file(folder / ADDED)
    root = read_file(folder / "root.json")
    if about is None or root is None:
        return None
    try:
        document = trust.decode_json(about)
        # Programs from before there were several places read the first one only.
        places = [str(each) for each in (document["url"], *document.get("others", ()))]
        return _published(Repository(name, "", root), [check_url(each) for each in places])
    except (
        *(ValueError, KeyError, TypeError, AttributeError),
        *(RecursionError, UsageError),
    ) as error:
        raise CorruptStore(
            f"the settings of repository {name!r} cannot be understood",
            facts=(f"file: {folder / 'repository.json'}",),
            hint=f"delete {folder} and add the repository again",
        ) from error


def _folder_url(url: str) -> str:
    # A mirror may need a token in its query, which stays as it is.
    return url if url.endswith("/") or "?" in url else f"{url}/"
