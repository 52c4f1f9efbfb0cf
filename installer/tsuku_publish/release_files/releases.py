"""The release files of a data folder: for the channels, or for one release.

They come from three sources: ``releases/`` has files that a publisher wrote for its own builds,
``facts/`` and ``rules.toml`` describe builds of upstream, ``packages.toml`` those of a package
index. If a repository has only the first, it needs no rules.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tsuku_llm.catalog.manifest import require_release
from tsuku_llm.ground.errors import ManifestError
from tsuku_llm.ground.foreign import parse_json, parse_object, read_foreign
from tsuku_publish.archives.contents import load_contents
from tsuku_publish.errors import LARGEST_FILE, PublishError, in_one_line, reading
from tsuku_publish.release_files.documents import (
    ReleaseFile,
    check_listed,
    json_bytes,
    release_document,
    release_file,
)
from tsuku_publish.release_files.packages import load_packages
from tsuku_publish.release_files.plan import TARGETS, Plan
from tsuku_publish.release_files.promoted import Promotion
from tsuku_publish.release_files.revoked import builds_of, marked
from tsuku_publish.release_files.sightings import TIME
from tsuku_publish.repository.copies import RepositoryFolder
from tsuku_publish.upstream.attestations import check_origin
from tsuku_publish.upstream.classify import load_rules
from tsuku_publish.upstream.facts import Facts, release_of


def release_files(
    plan: Plan,
    data: Path,
    trusted_root: Path | None = None,
    roles: Collection[str] | None = None,
    places: Iterable[Path] = (),
) -> tuple[ReleaseFile, ...]:
    """Return the release file of every release that a channel names, for each role that signs it.

    ``trusted_root`` is Sigstore's, if it should not be the one of sigstore-python. ``roles`` are
    the ones to make files for; None for all. A promoted release keeps its digest: its file comes
    from the first of the repositories in ``places`` that has it. A release that was not measured is
    for people to sign, also if a delegated channel names it: a machine vouches for nothing that it
    has not read. Raises ``PublishError``, also for a release whose origin is not proven or whose
    archives were not read, unless the facts say why.
    """
    wanted = (TARGETS, *plan.delegated) if roles is None else roles
    copies = tuple(map(RepositoryFolder, places))
    unmeasured = _unmeasured(data)
    channels = {role: _channels(plan, role, unmeasured) for role in wanted}
    pinned = {each.release: each for each in plan.promoted} if TARGETS in wanted else {}
    kept = {
        tag: parse_json(file)
        for tag in channels.get(TARGETS, ())
        if tag in pinned and (file := _pinned(pinned[tag], copies)) is not None
    }
    own = _load_own(data / "releases")
    needed = {
        tag for role in wanted for tag in channels[role] if role != TARGETS or tag not in kept
    }
    documents = {tag: own[tag] for tag in needed if tag in own}
    documents |= _published(needed - own.keys(), data, trusted_root)
    files = []
    for role in wanted:
        for tag in sorted(channels[role]):
            document = kept[tag] if role == TARGETS and tag in kept else documents[tag]
            listed, more = {*channels[role][tag]}, dict[str, Any]()
            if role == TARGETS and tag in pinned:
                _require_pinned(pinned[tag], document)
                # It stays in the channel that it comes from, whatever that channel drops later.
                listed.add(pinned[tag].origin)
                more = {"promoted": pinned[tag].custom}
            # Only now: a revoked release has another digest than the one that was promoted.
            document = marked(document, plan.revoked)
            files.append(release_file(document, listed, role, **more))
    return dated(plan, files)


def dated(plan: Plan, files: Iterable[ReleaseFile]) -> tuple[ReleaseFile, ...]:
    """Return the files with the time since when their channel has had them.

    Only a delegated channel states it; without a record, it is the day of the signature.
    """
    found = []
    for file in files:
        if file.role == TARGETS:
            found.append(file)
            continue
        known = plan.since.get(file.role, {}).get(file.custom["release"])
        same = known is not None and known.sha256 == file.sha256
        since = known.time if known and same else plan.roles[file.role].start
        found.append(replace(file, custom={**file.custom, "since": since.strftime(TIME)}))
    return tuple(found)


def known_document(tag: str, data: Path) -> dict[str, Any]:
    """Return the release file of any recorded release, in a channel or not, from any publisher.

    Raises ``PublishError`` if it is not recorded.
    """
    own = _load_own(data / "releases")
    if tag in own:
        return own[tag]
    if not (data / "rules.toml").exists():
        raise PublishError(
            f"{tag} is no release of {data}: it has no releases/{tag}.json",
            hint="name one that add made; for another one that clients know: revoke --by-name",
        )
    contents, rules = load_contents(data / "facts" / "archives"), load_rules(data)
    packages = load_packages(data, rules.libraries, contents)
    if tag in packages:
        return packages[tag]
    release = release_of(Facts(data / "facts").releases(), tag)
    with reading(f"what {data} has of {tag}"):
        return release_document(release, rules, contents)


def with_same_builds(document: Mapping[str, Any], data: Path) -> list[str]:
    """List the other releases of own builds that have a build of this one."""
    builds = {*builds_of(document)}
    others = _load_own(data / "releases").items()
    return [
        tag
        for tag, other in others
        if tag != document["release"] and not builds.isdisjoint(builds_of(other))
    ]


def _published(
    tags: Collection[str], data: Path, trusted_root: Path | None
) -> dict[str, dict[str, Any]]:
    """Return the release files of builds that others published, from the facts and the rules."""
    if not tags:
        return {}
    if not (data / "facts").is_dir():
        missing = ", ".join(f"{tag}.json" for tag in sorted(tags))
        raise PublishError(f"{data / 'releases'} has no {missing}, which a channel names")
    contents = load_contents(data / "facts" / "archives")
    facts, rules = Facts(data / "facts").releases(), load_rules(data)
    packages = load_packages(data, rules.libraries, contents)
    documents = {}
    for tag in sorted(tags):
        # Their origin is not attested: packages.toml says why.
        if tag in packages:
            documents[tag], unmeasured = packages[tag], None
        else:
            release = release_of(facts, tag)
            with reading(f"what {data} has of {tag}"):
                check_origin(release, rules, data, trusted_root)
                documents[tag] = release_document(release, rules, contents)
            unmeasured = release.unmeasured
        if unmeasured is None:
            check_listed(documents[tag])
    return documents


def _unmeasured(data: Path) -> frozenset[str]:
    """Return the recorded releases whose archives were not read."""
    if not (data / "facts").is_dir():
        return frozenset()
    recorded = Facts(data / "facts").releases()
    return frozenset(tag for tag, release in recorded.items() if release.unmeasured is not None)


def _channels(plan: Plan, role: str, unmeasured: Collection[str]) -> dict[str, list[str]]:
    """Return the channels of every release that a role signs."""
    found: dict[str, list[str]] = {}
    for channel, releases in plan.channels.items():
        for release in releases:
            signs = TARGETS if release in unmeasured else plan.role_of(channel)
            if signs == role:
                found.setdefault(release, []).append(channel)
    return found


def _pinned(promotion: Promotion, copies: Iterable[RepositoryFolder]) -> bytes | None:
    """Return the release file of a promoted release, if a copy has exactly that one."""
    name = f"targets/releases/{promotion.sha256}.{promotion.release}.json"
    found = (data for copy in copies if (data := copy.read(name)) is not None)
    return next(
        (data for data in found if hashlib.sha256(data).hexdigest() == promotion.sha256), None
    )


def _require_pinned(promotion: Promotion, document: Mapping[str, Any]) -> None:
    found = hashlib.sha256(json_bytes(document)).hexdigest()
    if found != promotion.sha256:
        raise PublishError(
            f"{promotion.release} was promoted with the digest {promotion.sha256[:12]}, "
            f"and the data give {found[:12]}: name the published repository, which has its "
            "release file, with --into"
        )


def _load_own(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every release file of a folder by its release; none without that folder.

    Raises ``PublishError`` for a file that clients would not understand, or with another name.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        with reading(path):
            document = parse_object(read_foreign(path, LARGEST_FILE))
        try:
            require_release(document)
        except ManifestError as error:
            raise PublishError(f"{path}: {in_one_line(error)}") from error
        if document["release"] != path.stem:
            raise PublishError(f"{path} is about {document['release']}")
        found[path.stem] = document
    return found
