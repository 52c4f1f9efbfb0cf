"""The names that a repository offers, read without verifying them: to complete a word.

A shell waits for each completion, and verifying takes several times as long. What a user then runs
verifies the metadata before it uses a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tsuku_llm.catalog import embedded
from tsuku_llm.catalog.metadata_status import CURRENT, folder_of
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import read_small
from tsuku_llm.ground.foreign import parse_object

_LARGEST = 5_000_000
_TAG = re.compile(r"b(?P<number>[0-9]{1,15})\.json")

_DAMAGED = (StoreError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged or unreadable file raises: it may have any types."""

Read = Callable[[str], bytes | None]
"""Reads a file of a copy of a repository, by its published path; None if it does not exist."""


class OfferedNames(NamedTuple):
    """A release with its channels and the names of its variants, all unverified."""

    release: str
    version: str
    channels: tuple[str, ...]
    variants: tuple[str, ...]


def offered(data: Path, repository: str) -> tuple[OfferedNames, ...]:
    """List the releases in the copies of a repository, newest first; skip what is damaged."""
    copies: list[Read] = [embedded.read] if repository == embedded.REPOSITORY else []
    with suppress(StoreError):
        folder = folder_of(data, repository)
        # Whatever the file says, this must stay below ``copies``.
        name = Path((read_small(folder / CURRENT, 100) or b"").decode("ascii", "replace")).name
        if name:
            copies.append(lambda file: read_small(folder / "copies" / name / file, _LARGEST))
    found: dict[str, tuple[int, OfferedNames]] = {}
    for read in copies:
        with suppress(*_DAMAGED):
            for role, about in _roles(read):
                # One role, or one entry, that cannot be read must not hide the others.
                with suppress(*_DAMAGED):
                    signed = _signed(read, f"metadata/{about['version']}.{role}")
                    for path, target in signed.get("targets", {}).items():
                        with suppress(*_DAMAGED):
                            if release := _release(read, role, path, target):
                                found[release[1].release] = release
    return tuple(each for _, each in sorted(found.values(), reverse=True))


def _roles(read: Read) -> Iterable[tuple[str, Any]]:
    snapshot = _meta(read, "metadata/timestamp.json")["snapshot.json"]["version"]
    return _meta(read, f"metadata/{snapshot}.snapshot.json").items()


def _release(read: Read, role: str, path: str, target: Any) -> tuple[int, OfferedNames] | None:
    """Read one target of a role's file; None if it is no release."""
    folder, _, name = path.rpartition("/")
    file = f"targets/{folder}/{target['hashes']['sha256']}.{name}"
    entry = target.get("custom", {})
    if f"{folder}.json" == role and (tag := _TAG.fullmatch(name)):
        # In a role's own folder the release file says the rest.
        entry = {"release": f"b{tag['number']}", "sequence": tag["number"]}
        entry["version"] = parse_object(read(file) or b"{}").get("version") or ""
        entry["channels"] = [folder]
    elif folder != "releases" or f"{entry['release']}.json" != name:
        return None
    platforms = parse_object(read(file) or b"{}").get("platforms", {})
    variants = (name for each in platforms.values() for name in each.get("variants", {}))
    names = OfferedNames(
        str(entry["release"]),
        str(entry.get("version", "")),
        tuple(map(str, entry["channels"])),
        tuple(dict.fromkeys(map(str, variants))),
    )
    return int(entry["sequence"]), names


def _meta(read: Read, file: str) -> dict[str, Any]:
    meta: dict[str, Any] = _signed(read, file)["meta"]
    return meta


def _signed(read: Read, file: str) -> dict[str, Any]:
    signed: dict[str, Any] = parse_object(read(file) or b"{}").get("signed", {})
    return signed
