"""The taking of one build of upstream: whole, attested, measured and started, then recorded."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
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
from tsuku_publish.feed.choosing import UNPROVEN, left_out, missing_builds
from tsuku_publish.feed.drafts import no_build
from tsuku_publish.feed.report import TakenRelease
from tsuku_publish.feed.sandbox import SandboxStart, start
from tsuku_publish.feed.state import FeedSettings
from tsuku_publish.release_files.documents import layout, release_document
from tsuku_publish.release_files.refresh import opened_archive, summary
from tsuku_publish.upstream.attestations import (
    load_root,
    published_bundles,
    store,
    verified,
)
from tsuku_publish.upstream.classify import Rules, SortedAssets, sort_assets
from tsuku_publish.upstream.facts import Asset, Facts
from tsuku_publish.upstream.hosting import HostingService, IncompleteRelease, parse_release

_STARTED = {"x86_64": "linux-amd64", "aarch64": "linux-arm64"}
"""The platform whose builds are started, by this machine's processor."""


class RefusedRelease(PublishError):
    """A release that must not be taken, now or later: only a person may have it tried again."""


class ChangedRelease(PublishError):
    """A release that is another one than people have recorded, if the answer is right."""


@dataclass(kw_only=True)
class ReleaseTaker:
    """What the taking of each release needs; ``downloaded`` counts those that were fetched.

    ``published`` is when upstream published them. The others are as in ``Feed``.
    """

    data: Path
    now: datetime
    say: Callable[[str], None]
    model: Path | None
    trusted_root: Path | None
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
        # The form of the time is checked: the release has its day.
        stamp = f"{parse_json(data)['published_at'][:-1]}+0000"
        self.published[tag] = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S%z")
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
        # The CPU and Vulkan builds for this machine are started: variants by their archive.
        started = {
            build.artifacts[0].name: build.rule.variants[0].name
            for build in found.builds
            if build.rule.platform == _STARTED.get(machine())
            and build.rule.variants[0].backend in ("cpu", "vulkan")
        }
        with tempfile.TemporaryDirectory(prefix="feed-") as folder:
            for asset in wanted:
                variant = started.get(asset.name) if self.model else None
                kept = Path(folder, variant) if variant else None
                measured = self._measured(asset, tag, kept)
                if isinstance(measured, str):
                    unread[asset.name] = measured
                    continue
                contents[asset.sha256] = measured
                self.say(f"{asset.name}: {summary(measured)}")
            # Of makers' packages what people recorded: they have no tag, and do not change.
            known = {**load_contents(self.data / "facts" / "archives"), **contents}
            left = left_out(release, self.rules, known, unread)
            facts.leave_out(tag, {each.asset: each.reason for each in left})
            facts.excuse(tag, "unmeasured", None)
            bare = f"Upstream had no attestation of it on {self.now:%Y-%m-%d}."
            facts.excuse(tag, "unattested", None if attested else bare)
            try:
                require_release(release_document(facts.releases()[tag], self.rules, known))
            except ManifestError as error:
                # Clients would not understand it. The rules have the fault, so it is tried again.
                raise PublishError(f"rules.toml is wrong: {in_one_line(error)}") from error
            for each in left:
                started.pop(each.asset, None)
            starts = self._starts(tag, started.values(), Path(folder))
        # Only now: the release is whole, measured, attested and works.
        for sha256, record in contents.items():
            save(self.data / "facts" / "archives", sha256, record)
        store(self.data, tag, bundles)
        facts.save()
        self.say(f"{tag}: {len(contents)} archives are measured")
        return TakenRelease(tag, len(contents), attested, starts)

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
            root = load_root(self.trusted_root)
            used = verified(tag, digests, bundles, self.rules, root)
        except PublishError as error:
            if not waited:
                # Attestations come some minutes after the archives.
                raise IncompleteRelease(f"{error.message}; perhaps it comes later") from error
            if bundles or not allowed:
                raise RefusedRelease(error.message) from error
            return [], set()
        for name, sha256 in more.items():
            try:
                used = verified(tag, {**digests, name: sha256}, bundles, self.rules, root)
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

    def _starts(self, tag: str, variants: Iterable[str], folder: Path) -> tuple[SandboxStart, ...]:
        """Start unpacked builds. Raises ``RefusedRelease`` for one that fails."""
        starts = []
        for variant in variants:
            done = start(variant, folder / variant, self.model)
            self.say(f"{tag}: {done.variant}: {done.text}")
            if done.works is False:
                raise RefusedRelease(f"{tag}: the build {done.variant} does not work: {done.text}")
            starts.append(done)
        return tuple(starts)
