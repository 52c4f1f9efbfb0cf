"""Revoked releases: the file that records them, and the check that none is lost.

``revoked.json`` is next to ``repository.toml`` and keeps an entry for each, for ever. Signing puts
the whole list into the targets metadata and marks the release files, so a rebuild keeps both.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from tsuku_llm import trust
from tsuku_llm.catalog import manifest
from tsuku_llm.catalog.revocations import LONGEST_REASON, Revocation, merged, parse, plain
from tsuku_llm.ground.files import replace_file
from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.errors import PublishError, content_of
from tsuku_publish.release_files.documents import ReleaseFile, json_bytes
from tsuku_publish.repository.checking import FIRST_ROOT, verify

NAME = "revoked.json"


def load_revoked(path: Path, content: bytes | None) -> tuple[Revocation, ...]:
    """Return every release that was ever revoked, from a file's content; none without it.

    Raises ``PublishError``.
    """
    if content is None:
        return ()
    try:
        return parse("", parse_json(content))
    except ValueError as error:
        raise PublishError(f"{path}: {error}") from error


def revoke(
    data: Path, tag: str, reason: str, day: date, document: Mapping[str, Any] | None
) -> None:
    """Record that a release must not be used any more, and the archives of its builds.

    ``document`` is its release file; with None, clients know the release by its name alone. Raises
    ``PublishError`` if it is revoked already, and for a reason that cannot be signed.
    """
    if not reason.isprintable() or not reason.strip() or len(reason) > LONGEST_REASON:
        raise PublishError(f"a reason is one line of 1 to {LONGEST_REASON} characters")
    known = {each.release: each for each in _recorded(data)}
    before = known.get(tag)
    if before and not before.withdrawn:
        raise PublishError(f"{tag} was revoked on {before.date} already")
    if before and day.isoformat() <= before.withdrawn:
        # A client tells the two apart by their days, in any order in which it sees them.
        raise PublishError(f"{tag}: withdrawn on {before.withdrawn}; a new one needs a later day")
    builds = () if document is None else builds_of(document)
    added = Revocation("", tag, reason, day.isoformat(), builds)
    _save(data, merged(known.values(), [added]))


def withdraw(data: Path, tag: str, day: date) -> None:
    """Record that a revocation was a mistake; its entry stays. Raises ``PublishError``."""
    known = {each.release: each for each in _recorded(data)}
    before = known.get(tag)
    if before is None or before.withdrawn:
        raise PublishError(f"{tag} is not revoked: {data / NAME} has no such entry in force")
    if day.isoformat() < before.date:
        raise PublishError(f"{tag} was revoked on {before.date}, which is later")
    _save(data, merged(known.values(), [before._replace(withdrawn=day.isoformat())]))


def marked(document: Mapping[str, Any], revoked: Sequence[Revocation]) -> dict[str, Any]:
    """Return the release file with the field ``revoked``, as older clients read only that.

    Raises ``PublishError`` if the file contradicts a withdrawal.
    """
    for each in revoked:
        if each.release != document["release"]:
            continue
        if each.withdrawn and document.get("revoked"):
            raise PublishError(f"{each.release}: withdrawn, and its release file says revoked")
        # A rebuilt release file would say "revoked": false again, so set the field from the list.
        return {**document, "revoked": not each.withdrawn}
    return dict(document)


def require_kept(
    revoked: Sequence[Revocation],
    releases: Sequence[ReleaseFile],
    published: trust.Copy,
    dropping: Collection[str],
) -> list[str]:
    """Refuse to sign a state that forgets a revocation of the published one.

    ``dropping`` names the releases that may be forgotten; returns those that are. Raises
    ``PublishError``.
    """
    root = published.read(FIRST_ROOT)
    if root is None:
        return []
    lost = dict(_lost(verify(published, root), published, revoked, releases))
    if unknown := [tag for tag in dropping if tag not in lost]:
        raise PublishError(
            f"--drop {', '.join(unknown)}: this signature forgets no revocation of that name",
            hint="leave it out; an entry of revoked.json that is in force stays",
        )
    for tag, what in lost.items():
        if tag not in dropping:
            raise PublishError(f"{tag} is revoked, and {what}; to drop it anyway: --drop {tag}")
    return sorted(lost)


def _lost(
    before: trust.TrustedRepository,
    published: trust.Copy,
    revoked: Sequence[Revocation],
    releases: Sequence[ReleaseFile],
) -> Iterator[tuple[str, str]]:
    """Yield the revoked releases that would be forgotten, and how."""
    now = {each.release: each for each in revoked}
    for each in parse("", before.revoked):
        kept = now.get(each.release)
        if kept is None or kept.day < each.day or not {*each.builds} <= {*kept.builds}:
            yield each.release, f"its entry of {each.day} is not in {NAME}"
    new = {release.path: parse_json(release.data) for release in releases}
    for path, target in before.targets.items():
        data = published.read(target.name)
        # A delegated channel may drop a release: its clients know the signed list.
        if data is None or not path.startswith("releases/") or target.role != "targets":
            continue
        release = manifest.parse_release(before.read(path, data))
        kept = now.get(release.release)
        if not release.revoked or (kept and kept.withdrawn):
            continue
        if path not in new:
            # Clients from before the list know a revocation by the release file alone.
            yield release.release, "no channel would have its release file"
        elif not new[path].get("revoked"):
            yield release.release, "its release file would not say so any more"


def builds_of(document: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the digests of the archives of each build in a release file, each build once."""
    found = {
        tuple(sorted(artifact["sha256"] for artifact in variant["artifacts"]))
        for platform in document["platforms"].values()
        for variant in platform["variants"].values()
    }
    return tuple(sorted(found))


def revoked_twins(
    document: Mapping[str, Any], revoked: Collection[Revocation]
) -> Iterator[Revocation]:
    """Yield each other release that has a build of this one and is revoked.

    Clients refuse the same archives under every name.
    """
    builds = {*builds_of(document)}
    for each in revoked:
        other = not each.withdrawn and each.release != document["release"]
        if other and not builds.isdisjoint(each.builds):
            yield each


def _recorded(data: Path) -> tuple[Revocation, ...]:
    return load_revoked(data / NAME, content_of(data / NAME))


def _save(data: Path, revoked: Sequence[Revocation]) -> None:
    entries = plain(revoked)
    try:
        parse("", entries)  # what clients refuse would also stop every later command of this tool
    except ValueError as error:
        raise PublishError(str(error)) from error
    replace_file(data / NAME, json_bytes(entries))
