"""The release files of a data folder: for the channels, or for one release.

They come from three sources: ``releases/`` has files that a publisher wrote for its own builds,
``facts/`` and ``rules.toml`` describe builds of upstream, ``packages.toml`` those of a package
index. If a repository has only the first, it needs no rules.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tsuku_llm.errors import ManifestError
from tsuku_llm.manifest import require_release
from tsuku_publish.attestations import check_origin
from tsuku_publish.classify import load_rules
from tsuku_publish.contents import load_contents
from tsuku_publish.documents import ReleaseFile, check_listed, release_document, release_file
from tsuku_publish.errors import PublishError, in_one_line, reading
from tsuku_publish.facts import Facts, release_of
from tsuku_publish.packages import load_packages
from tsuku_publish.plan import Plan
from tsuku_publish.revoked import marked


def release_files(
    plan: Plan, data: Path, trusted_root: Path | None = None
) -> tuple[ReleaseFile, ...]:
    """Return the release file of every release that a channel names.

    ``trusted_root`` is Sigstore's, if it should not be the one of sigstore-python. Raises
    ``PublishError``, also for a release whose origin is not proven or whose archives were not read,
    unless the facts say why.
    """
    channels, own = _channels(plan), _load_own(data / "releases")
    documents = {tag: own[tag] for tag in channels if tag in own}
    documents |= _published(channels.keys() - own.keys(), data, trusted_root)
    return tuple(
        release_file(marked(documents[tag], plan.revoked), channels[tag])
        for tag in sorted(channels)
    )


def known_document(tag: str, data: Path) -> dict[str, Any]:
    """Return the release file of any recorded release, in a channel or not, from any publisher.

    Raises ``PublishError`` if it is not recorded.
    """
    own = _load_own(data / "releases")
    if tag in own:
        return own[tag]
    if not (data / "rules.toml").exists():
        raise PublishError(f"{tag}: there is no releases/{tag}.json")
    contents, rules = load_contents(data / "facts" / "archives"), load_rules(data)
    packages = load_packages(data, rules.libraries, contents)
    if tag in packages:
        return packages[tag]
    release = release_of(Facts(data / "facts").releases(), tag)
    with reading(f"what {data} has of {tag}"):
        return release_document(release, rules, contents)


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
            documents[tag], unlisted = packages[tag], None
        else:
            release = release_of(facts, tag)
            with reading(f"what {data} has of {tag}"):
                check_origin(release, rules, data, trusted_root)
                documents[tag] = release_document(release, rules, contents)
            unlisted = release.unlisted
        if unlisted is None:
            check_listed(documents[tag])
    return documents


def _channels(plan: Plan) -> dict[str, list[str]]:
    """Return the channels of every release."""
    found: dict[str, list[str]] = {}
    for channel, releases in plan.channels.items():
        for release in releases:
            found.setdefault(release, []).append(channel)
    return found


def _load_own(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every release file of a folder by its release; none without that folder.

    Raises ``PublishError`` for a file that clients would not understand, or with another name.
    """
    return {path.stem: _own(path) for path in sorted(folder.glob("*.json"))}


def _own(path: Path) -> dict[str, Any]:
    with reading(path):
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    try:
        require_release(document)
    except ManifestError as error:
        raise PublishError(f"{path}: {in_one_line(error)}") from error
    if document["release"] != path.stem:
        raise PublishError(f"{path} is about {document['release']}")
    return document
