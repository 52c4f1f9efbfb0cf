"""The receipt of a version: what was installed, why, for which hardware, and every file.

The store compares the tree with it and passes the rest on unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any, NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.errors import CorruptStore
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry

FORMAT = 1
RECEIPT = "receipt.json"
RECEIPT_LIMIT = 16 << 20
"""The largest receipt, in bytes."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_LONGEST_PATH = 1024

OWN = "own"
"""What a build of the user's own has in the place of a release, and before its backend's name."""

NOT_TRIED = "it was not tried when it was installed"
"""The reason for no deviation of a build that was not tried."""


def reinstall_command(release: str, backend: str, repository: str) -> str:
    """Return the command that installs a build again; ``backend`` may be a variant's name."""
    return (
        f"{TSUKU} install --force --release {release} --backend {backend} --repository {repository}"
    )


def reinstall_by_id(version: str) -> str:
    """Return the command that installs a version again of which only the id is known.

    The id does not say the repository: the command asks the one of the settings.
    """
    # A release has no dash: the rest, without the digest, is the variant.
    found = re.fullmatch(r"([^-]+)-(.+)-[0-9a-f]{12}", version)
    if found is None:
        return f"{TSUKU} install --force"
    if found[1] == OWN:
        again = f"{TSUKU} install --force --from PATH --backend {found[2]}"
        return f"{again}, with the path of that build,"
    return f"{TSUKU} install --force --release {found[1]} --backend {found[2]}"


class ArtifactRecord(NamedTuple):
    """One archive from which the tree was extracted; ``size`` in bytes.

    ``files`` and ``links`` are its content, with the paths in the archive, if the release file does
    not list it: another build may have the same archive, such as CUDA's runtime. They are empty if
    the release file has the list.
    """

    url: str
    sha256: str
    size: int
    files: tuple[FileEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()


@records.documented(by="variant")
class PartRecord(NamedTuple):
    """One of several signed builds that a version was made of; ``digests`` of its archives."""

    variant: str
    backend: str
    digests: tuple[str, ...]


@records.documented(
    "release",
    "version",
    "publisher",
    "channel",
    "repository",
    "unattested",
    "variant",
    "backend",
    "installed_at",
    "unsigned",
    "parts",
    "deviation",
    "not_computed",
)
class Receipt(NamedTuple):
    """The record of what is installed and why.

    ``version`` is the version number of the release, None if upstream gave it none.
    ``sequence`` orders the releases of a repository. ``server`` is the server's path in the
    tree. ``arguments`` are the server's first arguments at every start. ``device`` are the
    listed devices that the build was chosen for, or None. ``requested`` is the backend asked
    for, ``detected`` what the machine offered, ``line`` the one line printed at every start.
    ``reasons`` says for each variant why it was not chosen. ``hardware`` is the probe's result,
    in the probe's words. ``installed_at`` is UTC, to the second. ``tsuku_llm`` is the version
    that wrote this receipt. ``unattested`` is the publisher's reason why the builder was not
    verified, None if the release file has no such reason. ``former`` are repositories that the
    build was bound to before: their revocations count too. ``hidden_by`` are the variables, as
    "NAME=value", that could hide a GPU when this version was chosen, and ``drivers`` the digest of
    what else the choice rested on, empty if it is not known. ``parts`` are the builds of a
    version made of several, the maker's own first; empty for any other version. ``unsigned`` is the
    path from which a build of the user's own was installed, None for a signed build; the first has
    no repository and no channel. ``source`` is what this machine compiled it from, None if it did
    not. ``deviation`` is how far its answers were from the right ones when it was last tried, as a
    part of 1; None if it did not compute. ``not_computed`` is why it did not, or not all.
    ``computed_on`` is the digest of the drivers, devices and kernel of that trial, empty if they
    are not known.
    """

    id: str
    release: str
    sequence: int
    version: str | None
    channel: str
    repository: str
    publisher: str
    variant: str
    backend: str
    server: str
    arguments: tuple[str, ...]
    device: str | None
    requested: str
    detected: tuple[str, ...]
    line: str
    reasons: Mapping[str, str]
    hardware: Mapping[str, Any]
    artifacts: tuple[ArtifactRecord, ...]
    files: tuple[FileEntry, ...]
    links: tuple[LinkEntry, ...]
    installed_at: str
    tsuku_llm: str
    unattested: str | None = None
    former: tuple[str, ...] = ()
    hidden_by: tuple[str, ...] = ()
    drivers: str = ""
    parts: tuple[PartRecord, ...] = ()
    unsigned: str | None = None
    source: str | None = None
    takes: tuple[str, ...] = ()
    reads_config: bool = False
    deviation: float | None = None
    not_computed: str = NOT_TRIED
    computed_on: str = ""

    @property
    def builds(self) -> tuple[tuple[str, ...], ...]:
        """The sorted digests of each signed build in the tree: revocations name these."""
        each = (part.digests for part in self.parts) if self.parts else (self.digests,)
        return tuple(tuple(sorted(digests)) for digests in each)

    @property
    def examined(self) -> tuple[str, str]:
        """The backend and variant to examine: of several builds the maker's own has more links."""
        return next(
            ((part.backend, part.variant) for part in self.parts), (self.backend, self.variant)
        )

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of each archive from which the tree was extracted."""
        return tuple(artifact.sha256 for artifact in self.artifacts)

    @property
    def reinstall(self) -> str:
        """The command that installs exactly this build again, whatever the settings say."""
        if self.unsigned is not None:
            if self.source is not None:
                words = f"--from-source {quote(self.source)}"
            else:
                words = f"--from {quote(self.unsigned)}"
            # Without it, the same files may be installed as a build of another backend.
            return f"{TSUKU} install --force {words} --backend {self.backend}"
        return reinstall_command(self.release, self.variant, self.repository)

    def to_json(self) -> bytes:
        """Encode the receipt as it is stored."""
        return records.encode({"format": FORMAT, **self._asdict()})

    @classmethod
    def from_json(cls, data: bytes) -> Receipt:
        """Parse a stored receipt. Raises CorruptStore for anything else."""
        try:
            receipt = records.parse(data, _READ)
            _require_consistent(receipt)
        except ValueError as error:
            raise CorruptStore("the receipt is not readable", facts=(str(error),)) from error
        return receipt


def version_id(release: str, variant: str, artifact_digests: Iterable[str]) -> str:
    """Make the folder name of a version; it changes if any artifact changes.

    The order of the artifacts does not matter: all are extracted into the same tree.
    """
    from hashlib import sha256  # noqa: PLC0415  # serve hashes nothing

    digest = sha256("\n".join(sorted(artifact_digests)).encode("ascii")).hexdigest()
    return f"{release}-{variant}-{digest[:12]}"


def is_version_id(text: str) -> bool:
    """Tell whether a text can be the name of a version's folder; a path never can."""
    return _NAME.fullmatch(text) is not None


def is_tree_path(text: str) -> bool:
    """Tell whether a text is a relative path with ``/`` that stays in the tree."""
    if not text or len(text) > _LONGEST_PATH or "\\" in text or not text.isprintable():
        return False
    return all(part not in ("", ".", "..") for part in text.split("/"))


def _require_consistent(receipt: Receipt) -> None:
    paths = [file.path for file in receipt.files] + [link.path for link in receipt.links]
    taken = set(paths)
    if len(taken) != len(paths):
        raise ValueError("a path appears twice")
    if receipt.server not in taken:
        raise ValueError(f"the server {receipt.server!r} is not among the files")
    for link in receipt.links:
        if not _stays_inside(link):
            raise ValueError(f"{link.path!r} leads out of the tree")
    for path in paths:
        # A file or link cannot be the folder of another entry. A link there would lead the files
        # below it out of the tree.
        if any(path[:at] in taken for at, char in enumerate(path) if char == "/"):
            raise ValueError(f"{path!r} lies below a file")


def _stays_inside(link: LinkEntry) -> bool:
    depth = link.path.count("/")
    for part in link.target.split("/"):
        # Count folders from the tree's root. The count must not go below zero even for a moment:
        # the target would leave the tree and might come back in.
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return False
    return True


_path = records.checked(str, is_tree_path)

_FILES = records.many(records.record(FileEntry, {"path": _path, "sha256": records.digest}))
_target = records.checked(
    str, lambda text: text != "" and text[0] != "/" and "\\" not in text and text.isprintable()
)
_LINKS = records.many(records.record(LinkEntry, {"path": _path, "target": _target}))
_ARTIFACT = records.record(
    ArtifactRecord, {"sha256": records.digest, "files": _FILES, "links": _LINKS}
)
_PART = records.record(PartRecord, {"digests": records.many(records.digest)})

_READ = records.record(
    Receipt,
    {
        "id": records.checked(str, is_version_id),
        "server": _path,
        "artifacts": records.many(_ARTIFACT),
        "files": _FILES,
        "links": _LINKS,
        "installed_at": records.moment,
        "parts": records.many(_PART),
    },
    format=FORMAT,
    since={"takes": [], "reads_config": False, "computed_on": ""},
)
