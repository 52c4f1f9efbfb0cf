"""The taking of one build of upstream: whole, attested, measured and started, then recorded."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from platform import machine
from typing import Any

from tsuku_llm.archive.unpack import unpack
from tsuku_llm.catalog.manifest import Artifact, require_release
from tsuku_llm.fetch import Network
from tsuku_llm.ground.errors import ManifestError
from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.archives.contents import Contents, load_contents, read_archive, save
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.feed.choosing import UNPROVEN, left_out, missing_builds, why_empty
from tsuku_publish.feed.drafts import no_build
from tsuku_publish.feed.report import TakenRelease
from tsuku_publish.feed.sandbox import SandboxStart, start
from tsuku_publish.feed.state import FeedSettings
from tsuku_publish.release_files.documents import layout, release_document
from tsuku_publish.release_files.refresh import opened_archive, summary
from tsuku_publish.upstream.attestations import (
    load_origin,
    load_root,
    published_bundles,
    store,
    verified,
)
from tsuku_publish.upstream.classify import Rules, SortedAssets, sort_assets
from tsuku_publish.upstream.facts import Asset, Facts, UpstreamRelease
from tsuku_publish.upstream.hosting import HostingService, IncompleteRelease, parse_release

_STARTED = {"x86_64": "linux-amd64", "aarch64": "linux-arm64"}
"""The platform whose builds are started, by this machine's processor."""


class RefusedRelease(PublishError):
    """A release that must not be taken, now or later: only a person may have it tried again."""


class ChangedRelease(PublishError):
    """A release that is another one than people have recorded, if the answer is right."""


@dataclass(kw_only=True)
class FeedRun:
    """A run over the ``data`` of a repository, at the time ``now``.

    ``model`` is a small GGUF file with which new builds are started, ``say`` reports each step.
    """

    data: Path
    now: datetime
    say: Callable[[str], None]
    model: Path | None = None
    trusted_root: Path | None = None


@dataclass(kw_only=True)
class ReleaseTaker(FeedRun):
    """What the taking of each release needs; ``downloaded`` counts those that were fetched.

    ``published`` is when upstream published them.
    """

    rules: Rules
    settings: FeedSettings
    service: HostingService
    network: Network
    downloaded: int = 0
    published: dict[str, datetime] = field(default_factory=dict)

    def take(self, tag: str, data: bytes, last: SortedAssets | None) -> TakenRelease:
        """Check a release, measure and start its builds, and record it.

        ``data`` is the service's document; ``last`` are the assets of the release before, whose
        builds it must have, too. Raises ``IncompleteRelease`` for one that may be whole later,
        ``ChangedRelease``, ``RefusedRelease`` for one that must not be taken, and ``TsukuError``
        for all that the next run may find mended.
        """
        release = parse_release(data, tag)
        self.published[tag] = _published(data)
        waited = self.now - self.published[tag] >= self.settings.patience
        found = sort_assets(release, self.rules)
        missing = missing_builds(found, last)
        if missing and not waited:
            raise IncompleteRelease(
                f"{tag} lacks {', '.join(missing)}: perhaps it is not whole yet"
            )
        facts = Facts(self.data / "facts")
        # People have recorded some without an attestation, and signed them.
        excused = [each.tag for each in facts.releases().values() if each.unattested]
        allowed = self.settings.unattested or tag in excused
        try:
            facts.record(release)
        except PublishError as error:
            raise ChangedRelease(error.message) from error
        ruled = [
            *(asset for build in found.builds for asset in build.artifacts),
            *(asset for asset in release.assets if asset.name in found.lonely),
        ]
        unknown = [asset for asset in found.unknown if not no_build(asset.name)]
        bundles, proven = self._proven(tag, ruled, unknown, waited=waited, allowed=allowed)
        attested = bool(bundles) or not ruled
        unread = {each.name: UNPROVEN for each in unknown if attested and each.name not in proven}
        wanted = [*ruled, *(asset for asset in unknown if asset.name not in unread)]
        self.downloaded += bool(wanted)
        contents: dict[str, Contents] = {}
        with tempfile.TemporaryDirectory(prefix="feed-") as folder:
            for asset in wanted:
                kept = self._started_as(asset, found, Path(folder))
                measured = self._measured(asset, tag, kept)
                if isinstance(measured, str):
                    unread[asset.name] = measured
                    continue
                contents[asset.sha256] = measured
                self.say(f"{asset.name}: {summary(measured)}")
            # Of makers' packages what people recorded: they have no tag, and do not change.
            known = {**load_contents(self.data / "facts" / "archives"), **contents}
            left = left_out(release, self.rules, known, unread)
            if why := why_empty(release, self.rules, left):
                raise PublishError(why)
            facts.leave_out(tag, {each.asset: each.reason for each in left})
            facts.excuse(tag, "unmeasured", None)
            day = f"{self.now:%Y-%m-%d}"
            bare = None if attested else f"Upstream had no attestation of it on {day}."
            facts.excuse(tag, "unattested", bare)
            self._understood(facts.releases()[tag], known)
            started = self._starts(tag, found, {each.asset for each in left}, Path(folder))
        # Only now: the release is whole, measured, attested and works.
        for sha256, record in contents.items():
            save(self.data / "facts" / "archives", sha256, record)
        store(self.data, tag, bundles)
        facts.save()
        self.say(f"{tag}: {len(contents)} archives are measured")
        return TakenRelease(tag, len(contents), attested, started)

    def _proven(
        self, tag: str, known: list[Asset], unknown: list[Asset], *, waited: bool, allowed: bool
    ) -> tuple[list[Mapping[str, Any]], set[str]]:
        """Return the bundles that prove who built these files, and the names that they prove.

        Each ``known`` file must be proven, and of ``unknown`` ones as many as are. ``allowed`` is
        whether there may be no bundle at all.
        """
        digests = {asset.name: asset.sha256 for asset in known}
        more = {asset.name: asset.sha256 for asset in unknown}
        bundles = published_bundles(self.service, tag, digests | more)
        try:
            origin, root = load_origin(self.data, self.rules.sources), load_root(self.trusted_root)
            used = verified(tag, digests, bundles, origin, root)
        except PublishError as error:
            if not waited:
                # Attestations come some minutes after the archives.
                raise IncompleteRelease(f"{error.message}; perhaps it comes later") from error
            if bundles or not allowed:
                raise RefusedRelease(error.message) from error
            return [], set()
        for name, sha256 in more.items():
            try:
                used = verified(tag, {**digests, name: sha256}, bundles, origin, root)
            except PublishError as error:
                if not waited:
                    raise IncompleteRelease(f"{error.message}; perhaps it comes later") from error
            else:
                digests[name] = sha256
        return used, {*digests}

    def _measured(self, asset: Asset, tag: str, kept: Path | None) -> Contents | str:
        """Download an archive and read it; return why it cannot be read, if so.

        ``kept`` is where to unpack it as well. Raises ``PublishError`` for a failed download.
        """
        kind, root = layout(asset.name, tag)
        artifact = Artifact(
            url=asset.url, sha256=asset.sha256, size=asset.size, format=kind, root=root
        )
        with opened_archive(artifact, None, self.network) as path:
            try:
                contents = read_archive(path, artifact)
            except PublishError as error:
                return in_one_line(error)
            if kept is not None:
                kept.mkdir()
                unpack(path, artifact, kept)
            return contents

    def _understood(self, release: UpstreamRelease, contents: Mapping[str, Contents]) -> None:
        """Refuse a release whose release file clients would not understand.

        The rules have the fault, so the release is tried again. Raises ``PublishError``.
        """
        try:
            require_release(release_document(release, self.rules, contents))
        except ManifestError as error:
            raise PublishError(f"rules.toml is wrong: {in_one_line(error)}") from error

    def _started_as(self, asset: Asset, found: SortedAssets, folder: Path) -> Path | None:
        """Return where to unpack a build that is started: CPU and Vulkan for this machine."""
        for build in found.builds:
            names = [each.name for each in build.rule.variants if each.backend in ("cpu", "vulkan")]
            if build.rule.platform == _STARTED.get(machine()) and build.artifacts == (asset,):
                return folder / names[0] if names and self.model else None
        return None

    def _starts(
        self, tag: str, found: SortedAssets, left: set[str], folder: Path
    ) -> tuple[SandboxStart, ...]:
        """Start the builds for this machine. Raises ``RefusedRelease`` for one that fails."""
        starts = []
        for build in found.builds:
            variant = build.rule.variants[0]
            here = build.rule.platform == _STARTED.get(machine())
            if not here or variant.backend not in ("cpu", "vulkan"):
                continue
            if build.artifacts[0].name in left:
                continue
            done = start(variant.name, folder / variant.name, "llama-server", self.model)
            self.say(f"{tag}: {done.variant}: {done.text}")
            if done.works is False:
                raise RefusedRelease(f"{tag}: the build {done.variant} does not work: {done.text}")
            starts.append(done)
        return tuple(starts)


def _published(data: bytes) -> datetime:
    """Return when a release was published; ``parse_release`` has checked the form."""
    stamp = str(parse_json(data)["published_at"])
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
