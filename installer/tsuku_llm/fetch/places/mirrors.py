"""Which URLs to try for an artifact: those of mirrors, in folders and registries. Pure."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from tsuku_llm.config.keys import ORIGIN, REGISTRY
from tsuku_llm.fetch.http.urls import file_name, scheme_of, shown
from tsuku_llm.ground.errors import ConfigError

REGISTRY_SCHEME = "oci"


class RegistryPlace(NamedTuple):
    """A mirror in a registry: the manifest that has the ``tag`` in the repository ``name``."""

    host: str
    name: str
    tag: str = "latest"

    @property
    def api(self) -> str:
        """The URL below which all requests about this repository are."""
        return f"https://{self.host}/v2/{self.name}/"

    @property
    def manifest(self) -> str:
        """The URL of the manifest."""
        return f"{self.api}manifests/{self.tag}"

    def blob(self, sha256: str) -> str:
        """Return the URL of a file by its digest."""
        return f"{self.api}blobs/sha256:{sha256}"

    def __str__(self) -> str:
        return f"oci://{self.host}/{self.name}:{self.tag}"


def parse_place(url: str) -> RegistryPlace:
    """Read ``oci://HOST/NAME``, with ``:TAG`` or without. Raises ``ConfigError``."""
    found = REGISTRY.fullmatch(url)
    if found is None:
        raise ConfigError(
            "this is no address of a mirror in a registry",
            facts=(f"given: {shown(url)}",),
            hint="write it as oci://HOST/NAME or oci://HOST/NAME:TAG, with NAME in lower case",
        )
    return RegistryPlace(found["host"], found["name"], found["tag"] or "latest")


def registries(mirrors: tuple[str, ...]) -> tuple[RegistryPlace, ...]:
    """Return those of the mirrors that are registries. Raises ``ConfigError``."""
    return tuple(parse_place(each) for each in mirrors if scheme_of(each) == REGISTRY_SCHEME)


def sources(url: str, sha256: str, mirrors: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """List the sources to try for an artifact, in order, each with its URLs.

    A mirror has an artifact under its digest, or under its own name if a person filled the folder.
    The second URL counts only if the file is not at the first. ``ORIGIN`` among the mirrors is the
    artifact's own URL. With mirrors and without that word, no other host is asked.

    Raises ``ConfigError`` for a mirror with another scheme than ``https:``, ``http:``, ``file:`` or
    ``oci:``. Plain ``http:`` is allowed, because nothing that a mirror sends is trusted.
    """
    return tuple(_urls_at(mirror, url, sha256) for mirror in mirrors or (ORIGIN,))


def _urls_at(mirror: str, url: str, sha256: str) -> tuple[str, ...]:
    if mirror == ORIGIN:
        return (url,)
    if scheme_of(mirror) == REGISTRY_SCHEME:
        return (parse_place(mirror).blob(sha256),)
    names = (f"sha256/{sha256}", quote(file_name(url), safe=""))
    return tuple(_on_mirror(mirror, name) for name in names)


def _on_mirror(mirror: str, path: str) -> str:
    try:
        parts = urlsplit(mirror)
    except ValueError:
        parts = urlsplit("")  # it has no scheme, so the next check refuses the mirror
    if parts.scheme not in ("https", "http", "file") or (
        parts.scheme != "file" and not parts.hostname
    ):
        raise ConfigError(
            "a mirror is not a URL that can be used",
            facts=(f"llm.mirror: {shown(mirror)}",),
            hint="give an https:, http: or file: URL of a folder",
        )
    return below(mirror, path)


def below(folder: str, path: str) -> str:
    """Return the URL of a file below the URL of a folder; ``path`` is escaped already.

    The query stays: a mirror may need a token there.
    """
    parts = urlsplit(folder)
    whole = f"{parts.path.rstrip('/')}/{path}"
    return urlunsplit((parts.scheme, parts.netloc, whole, parts.query, ""))
