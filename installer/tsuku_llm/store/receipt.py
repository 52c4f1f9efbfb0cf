"""The receipt of a version: what was installed, why, for which hardware, and every file.

The store compares the tree with it and passes the rest on unread. The parser is written by
hand, because ``serve`` reads a receipt at every start and must not import a library for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from tsuku_llm.errors import CorruptStore

FORMAT = 1
RECEIPT = "receipt.json"
RECEIPT_LIMIT = 16 << 20
"""The largest receipt, in bytes."""

_T = TypeVar("_T")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_LARGEST = 1 << 53
_HINT = "tsuku-llm install --force reinstalls it"

NOT_RECORDED = "whether it is was not recorded when it was installed"
"""The reason for "unattested" if the receipt is older than that field."""


class ArtifactRecord(NamedTuple):
    """One archive from which the tree was extracted; ``size`` in bytes."""

    url: str
    sha256: str
    size: int


class FileRecord(NamedTuple):
    """One regular file of the tree: relative path with ``/``, size in bytes."""

    path: str
    size: int
    sha256: str
    executable: bool = False


class LinkRecord(NamedTuple):
    """One symbolic link of the tree; ``target`` is the link's text."""

    path: str
    target: str


class Receipt(NamedTuple):
    """The record of what is installed and why.

    ``sequence`` orders the releases of a repository. ``server`` is the server's path in the
    tree. ``arguments`` are the server's first arguments at every start. ``device`` is the value
    for ``--device``, or None if the option is not passed. ``requested`` is the backend asked
    for, ``detected`` what the machine offered, ``line`` the one line printed at every start.
    ``reasons`` says for each variant why it was not chosen. ``hardware`` is the probe's result,
    in the probe's words. ``installed_at`` is UTC, to the second. ``tsuku_llm`` is the version
    that wrote this receipt. ``unattested`` is the publisher's reason why the builder was not
    verified, None if the release file has no such reason. ``former`` are repositories that the
    build was bound to before: their revocations count too.
    """

    id: str
    release: str
    sequence: int
    version: str
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
    files: tuple[FileRecord, ...]
    links: tuple[LinkRecord, ...]
    installed_at: str
    tsuku_llm: str
    unattested: str | None = None
    former: tuple[str, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of each archive from which the tree was extracted."""
        return tuple(artifact.sha256 for artifact in self.artifacts)

    def to_json(self) -> bytes:
        """Encode the receipt as it is stored."""
        document = {"format": FORMAT} | {
            name: _plain(value) for name, value in self._asdict().items()
        }
        return json.dumps(document, indent=1).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Receipt:
        """Parse a stored receipt. Raises CorruptStore for anything else."""
        document = parse_object(data, "the receipt")
        if document.get("format") != FORMAT:
            raise _junk(f"format is {document.get('format')!r}, this version reads {FORMAT}")
        receipt = cls(**{name: read(document, name) for name, read in _READERS.items()})
        _require_consistent(receipt)
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
    if not text or len(text) > 1024 or "\\" in text or not text.isprintable():  # noqa: PLR2004
        return False
    return all(part not in ("", ".", "..") for part in text.split("/"))


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object; repeated keys, NaN and Infinity are refused. Raises CorruptStore."""
    try:
        document = json.loads(
            data.decode("utf-8"), object_pairs_hook=_no_repeats, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as exc:
        raise CorruptStore(f"{what} is not readable", facts=(str(exc),), hint=_HINT) from exc
    if not isinstance(document, dict):
        raise CorruptStore(f"{what} is not readable", facts=("not an object",), hint=_HINT)
    return document


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key appears twice")
    return document


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _junk(reason: str) -> CorruptStore:
    return CorruptStore("the receipt is not readable", facts=(reason,), hint=_HINT)


def _plain(value: Any) -> Any:
    if isinstance(value, (ArtifactRecord, FileRecord, LinkRecord)):
        return value._asdict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _require_consistent(receipt: Receipt) -> None:
    paths = [file.path for file in receipt.files] + [link.path for link in receipt.links]
    taken = set(paths)
    if len(taken) != len(paths):
        raise _junk("a path appears twice")
    if receipt.server not in taken:
        raise _junk(f"the server {receipt.server!r} is not among the files")
    for link in receipt.links:
        if not _stays_inside(link):
            raise _junk(f"{link.path!r} leads out of the tree")
    for path in paths:
        # A file or link cannot be the folder of another entry. A link there would lead the files
        # below it out of the tree.
        if any(path[:at] in taken for at, char in enumerate(path) if char == "/"):
            raise _junk(f"{path!r} lies below a file")


def _stays_inside(link: LinkRecord) -> bool:
    depth = link.path.count("/")
    for part in link.target.split("/"):
        # Count folders from the tree's root. The count must not go below zero even for a moment:
        # the target would leave the tree and might come back in.
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return False
    return True


def _checked(
    kind: type[_T], accept: Callable[[_T], bool]
) -> Callable[[Mapping[str, Any], str], _T]:
    """Make a reader of one key that demands exactly this type and an accepted value."""

    def read(document: Mapping[str, Any], name: str) -> _T:
        value = document.get(name)
        # Exactly this type: to ``isinstance``, True is an int.
        if type(value) is not kind or not accept(value):
            raise _junk(f"{name} is {str(value)[:80]!r}")
        return value

    return read


def _sequence(
    item: Callable[[Mapping[str, Any], str], _T],
) -> Callable[[Mapping[str, Any], str], tuple[_T, ...]]:
    def read(document: Mapping[str, Any], name: str) -> tuple[_T, ...]:
        return tuple(item({name: value}, name) for value in _list(document, name))

    return read


def _records(
    kind: Callable[..., _T], readers: Mapping[str, Callable[[Mapping[str, Any], str], Any]]
) -> Callable[[Mapping[str, Any], str], tuple[_T, ...]]:
    def read(document: Mapping[str, Any], name: str) -> tuple[_T, ...]:
        items = _list(document, name)
        if not all(type(item) is dict for item in items):
            raise _junk(f"{name} holds something other than objects")
        return tuple(
            kind(*[reader(item, key) for key, reader in readers.items()]) for item in items
        )

    return read


def _optional_text(document: Mapping[str, Any], name: str) -> str | None:
    return None if document.get(name) is None else _text(document, name)


def _unattested(document: Mapping[str, Any], name: str) -> str | None:
    return _optional_text(document, name) if name in document else NOT_RECORDED


def _optional_texts(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Read a list of texts; empty if missing, as in receipts of earlier versions."""
    return _sequence(_text)(document, name) if name in document else ()


def _texts(document: Mapping[str, Any], name: str) -> Mapping[str, str]:
    value = _mapping(document, name)
    if not all(type(text) is str for text in value.values()):
        raise _junk(f"{name} holds something other than texts")
    return value


def _is_link_target(text: str) -> bool:
    return bool(text) and not text.startswith("/") and "\\" not in text and text.isprintable()


_list = _checked(list, lambda _: True)
_mapping = _checked(dict, lambda _: True)
_text = _checked(str, lambda _: True)
_identifier = _checked(str, is_version_id)
_path = _checked(str, is_tree_path)
_digest = _checked(str, lambda text: _SHA256.fullmatch(text) is not None)
_count = _checked(int, lambda number: 0 <= number <= _LARGEST)
_flag = _checked(bool, lambda _: True)

_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Any]] = {
    "id": _identifier,
    **dict.fromkeys(("release", "version", "channel", "repository", "publisher"), _text),
    **dict.fromkeys(("variant", "backend"), _text),
    "sequence": _count,
    "server": _path,
    "arguments": _sequence(_text),
    "device": _optional_text,
    "requested": _text,
    "detected": _sequence(_text),
    "line": _text,
    "reasons": _texts,
    "hardware": _mapping,
    "artifacts": _records(ArtifactRecord, {"url": _text, "sha256": _digest, "size": _count}),
    "files": _records(
        FileRecord, {"path": _path, "size": _count, "sha256": _digest, "executable": _flag}
    ),
    "links": _records(LinkRecord, {"path": _path, "target": _checked(str, _is_link_target)}),
    "installed_at": _checked(str, lambda text: _TIME.fullmatch(text) is not None),
    "tsuku_llm": _text,
    "unattested": _unattested,
    "former": _optional_texts,
}
