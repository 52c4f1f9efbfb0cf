"""One run of the feed: what upstream has, what of it is taken, and what people must decide."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from platform import machine
from typing import Any

from tsuku_llm import archive
from tsuku_llm.errors import ManifestError, TsukuError
from tsuku_llm.fetch import Network
from tsuku_llm.manifest import Artifact, require_release
from tsuku_publish.attestations import (
    load_origin,
    load_root,
    published_bundles,
    store,
    verified,
)
from tsuku_publish.classify import SortedAssets, load_rules, sort_assets
from tsuku_publish.contents import Contents, load_contents, read_archive, save
from tsuku_publish.documents import layout, release_document
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.facts import Asset, Facts, UpstreamRelease
from tsuku_publish.feed.choosing import (
    UNKNOWN,
    LeftOut,
    StableProposal,
    channel_after,
    is_build,
    left_out,
    missing_builds,
    number,
    proposal,
)
from tsuku_publish.feed.sandbox import SandboxStart, start
from tsuku_publish.feed.state import load_settings, load_state, save_channel, save_state
from tsuku_publish.hosting import (
    HostingService,
    IncompleteRelease,
    RateLimited,
    named_tag,
    parse_release,
)
from tsuku_publish.plan import load_plan
from tsuku_publish.refresh import opened_archive, summary

_STARTED = {"x86_64": "linux-amd64", "aarch64": "linux-arm64"}
"""The platform whose builds are started, by this machine's processor."""


class RefusedRelease(PublishError):
    """A release that must not be taken, now or later: only a person may have it tried again."""


@dataclass(frozen=True, slots=True)
class TakenRelease:
    """A release that this run has measured and put into the channel."""

    release: str
    archives: int
    attested: bool
    started: tuple[SandboxStart, ...]


@dataclass(frozen=True, slots=True)
class FeedReport:
    """What a run did. ``people`` are the lines that a person has to read and decide about.

    ``offered`` are the releases of the channel, newest first. ``changed`` is whether this run
    changed what is to be signed.
    """

    taken: tuple[TakenRelease, ...]
    waiting: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    stopped: Mapping[str, str]
    offered: tuple[str, ...]
    forgotten: tuple[str, ...]
    proposal: StableProposal | None
    people: tuple[str, ...]
    changed: bool


@dataclass
class Feed:
    """A run over the data of a repository, at the time ``now``.

    ``api`` replaces the address of the hosting service, ``model`` is a small GGUF file with which
    new builds are started, ``say`` reports each step.
    """

    data: Path
    environ: Mapping[str, str]
    now: datetime
    say: Callable[[str], None]
    api: str | None = None
    model: Path | None = None
    trusted_root: Path | None = None
    _changed: set[str] = field(default_factory=set)
    _waiting: list[str] = field(default_factory=list)
    _people: list[str] = field(default_factory=list)
    _taken: list[TakenRelease] = field(default_factory=list)

    def run(self) -> FeedReport:
        """Take what is new, and write facts, the channel and ``feed.json``.

        A fault of one release stops only that release. Raises ``PublishError`` if the data cannot
        be used, or if the service does not answer.
        """
        self._settings = load_settings(self.data)
        self._state = load_state(self.data)
        self._rules = load_rules(self.data)
        plan = load_plan(self.data)
        self._before = plan.channels.get(self._settings.channel, ())
        self._stable = plan.channels.get(self._settings.stable, ())
        with Network(self.environ) as network:
            self._network = network
            self._service = HostingService(self.api or self._rules.api, self.environ, network)
            listing = self._service.listing(self._state.etag)
            if listing.releases is None:
                self.say("upstream has published nothing since the last run")
            else:
                self._follow({str(each.get("tag_name")): each for each in listing.releases})
            # A list with something to wait for is asked for again: time passes, though it stays.
            self._state.etag = "" if self._waiting else listing.etag
        left = self._reconsidered()
        return self._finished(left)

    def _follow(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            self._watch(listed)
            self._name_versions(listed)
            self._take_new(listed)
        except RateLimited as error:
            # What was taken so far stays; the next run goes on.
            self._wait(error.message)

    # --- what is recorded already -----------------------------------------------------------------

    def _watch(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """Stop releases that upstream has changed or withdrawn since they were recorded."""
        oldest = min((number(tag) for tag in listed if is_build(tag)), default=0)
        recorded = Facts(self.data / "facts").releases()
        for tag in self._before:
            if tag not in recorded or tag in self._state.stopped or number(tag) < oldest:
                continue
            try:
                raw = json.dumps(listed[tag]).encode() if tag in listed else None
                # A release that is not in the list is asked for: a list can be cut off.
                Facts(self.data / "facts").record(
                    parse_release(raw or self._service.release(tag), tag)
                )
            except RateLimited:
                raise
            except PublishError as error:
                self._stop(tag, error.message)

    def _name_versions(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """Record which builds new stable versions name."""
        for version in listed:
            if version[:1] != "v":
                continue
            facts = Facts(self.data / "facts")
            try:
                named = named_tag(json.dumps(listed[version]).encode(), version)
                known = facts.versions.get(version)
                facts.name(version, named)
            except PublishError as error:
                self._people.append(error.message)
                continue
            if known is None:
                facts.save()
                # A release file has its version.
                self._changed |= {named} & {*self._before}
                self.say(f"{version} is {named}")

    # --- what is new ------------------------------------------------------------------------------

    def _take_new(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the newest builds, and the one that the newest stable version names."""
        facts = Facts(self.data / "facts")
        newest = max((number(tag) for tag in self._before), default=-1)
        new = [tag for tag in listed if is_build(tag) and number(tag) > newest]
        left = self._settings.take
        for tag in sorted(new, key=number, reverse=True):
            if not left:
                break
            left -= self._try(tag, listed[tag])
        named = max(facts.versions.values(), key=number, default=None)
        head = max((number(tag) for tag in self._stable), default=-1)
        if named and number(named) > head and named not in self._state.taken:
            self._try(named, listed.get(named))

    def _try(self, tag: str, raw: Mapping[str, Any] | None) -> bool:
        """Take a release if it is whole; return whether it was taken."""
        if tag in self._state.stopped or tag in self._state.taken:
            return False
        try:
            data = json.dumps(raw).encode() if raw else self._service.release(tag)
            self._taken.append(self._take(tag, data))
        except RateLimited:
            raise
        except IncompleteRelease as error:
            self._wait(error.message)
            return False
        except RefusedRelease as error:
            self._stop(tag, in_one_line(error))
            return False
        except TsukuError as error:
            # Perhaps the network or the disk: the next run tries again, and people hear of it.
            self._people.append(f"{tag} was not taken: {in_one_line(error)}")
            self._wait(f"{tag} is tried again in the next run")
            return False
        self._state.taken.add(tag)
        return True

    def _take(self, tag: str, data: bytes) -> TakenRelease:
        release = parse_release(data, tag)
        waited = self.now - _published(data) >= self._settings.patience
        found = sort_assets(release, self._rules)
        missing = missing_builds(found, self._last())
        if missing and not waited:
            raise IncompleteRelease(
                f"{tag} lacks {', '.join(missing)}: perhaps it is not whole yet"
            )
        facts = Facts(self.data / "facts")
        facts.record(release)
        wanted = [
            *(asset for build in found.builds for asset in build.artifacts),
            *(asset for asset in release.assets if asset.name in found.lonely),
            *found.unknown,
        ]
        bundles, attested = self._proven(tag, wanted, waited=waited)
        contents: dict[str, Contents] = {}
        unread: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="feed-") as folder:
            for asset in wanted:
                kept = self._started_as(asset, found, Path(folder))
                measured = self._measured(asset, tag, kept)
                if isinstance(measured, str):
                    unread[asset.name] = measured
                    continue
                contents[asset.sha256] = measured
                self.say(f"{asset.name}: {summary(measured)}")
            left = left_out(release, self._rules, contents, unread)
            facts.leave_out(tag, {each.asset: each.reason for each in left})
            if not attested:
                day = f"{self.now:%Y-%m-%d}"
                facts.excuse(tag, "unattested", f"Upstream had no attestation of it on {day}.")
            self._understood(facts.releases()[tag], contents)
            started = self._starts(tag, found, {each.asset for each in left}, Path(folder))
        # Only now: the release is whole, measured, attested and works.
        for sha256, record in contents.items():
            save(self.data / "facts" / "archives", sha256, record)
        store(self.data, tag, bundles)
        facts.save()
        self.say(f"{tag}: {len(contents)} archives are measured")
        return TakenRelease(tag, len(contents), attested, started)

    def _last(self) -> SortedAssets | None:
        """Return the assets of the newest release that was taken."""
        recorded = Facts(self.data / "facts").releases()
        taken = self._state.taken & recorded.keys()
        newest = max(taken, key=number, default=None)
        return sort_assets(recorded[newest], self._rules) if newest else None

    def _proven(
        self, tag: str, assets: list[Asset], *, waited: bool
    ) -> tuple[list[Mapping[str, Any]], bool]:
        """Return the bundles that prove who built these files, and whether they are attested."""
        digests = {asset.name: asset.sha256 for asset in assets}
        bundles = published_bundles(self._service, dict.fromkeys(digests.values()))
        try:
            origin, root = load_origin(self.data), load_root(self.trusted_root)
            return verified(tag, digests, bundles, origin, root), True
        except PublishError as error:
            if not waited:
                # Attestations come some minutes after the archives.
                raise IncompleteRelease(f"{error.message}; perhaps it comes later") from error
            if bundles or not self._settings.unattested:
                raise RefusedRelease(error.message) from error
            return [], False

    def _measured(self, asset: Asset, tag: str, kept: Path | None) -> Contents | str:
        """Download an archive and read it; return why it cannot be read, if so.

        ``kept`` is where to unpack it as well. Raises ``PublishError`` for a failed download.
        """
        kind, root = layout(asset.name, tag)
        artifact = Artifact(
            url=asset.url, sha256=asset.sha256, size=asset.size, format=kind, root=root
        )
        with opened_archive(artifact, None, self._network) as path:
            try:
                contents = read_archive(path, artifact)
            except PublishError as error:
                return in_one_line(error)
            if kept is not None:
                kept.mkdir()
                archive.unpack(path, artifact, kept)
            return contents

    def _understood(self, release: UpstreamRelease, contents: Mapping[str, Contents]) -> None:
        """Refuse a release whose release file clients would not understand."""
        try:
            require_release(release_document(release, self._rules, contents))
        except ManifestError as error:
            raise RefusedRelease(f"{release.tag}: {in_one_line(error)}") from error

    # --- starts -----------------------------------------------------------------------------------

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

    # --- the end of a run -------------------------------------------------------------------------

    def _reconsidered(self) -> tuple[LeftOut, ...]:
        """Apply the rules of today to the releases of the channel, and return what stays out."""
        facts = Facts(self.data / "facts")
        contents = load_contents(self.data / "facts" / "archives")
        found: list[LeftOut] = []
        for tag, release in facts.releases().items():
            if tag not in self._state.taken:
                continue
            unread = {
                asset.name: release.left_out[asset.name].removeprefix(UNKNOWN)
                for asset in release.assets
                if asset.name in release.left_out and asset.sha256 not in contents
            }
            left = left_out(release, self._rules, contents, unread)
            reasons = {each.asset: each.reason for each in left}
            if reasons.keys() != release.left_out.keys():
                facts.leave_out(tag, reasons)
                self._changed.add(tag)
                self.say(f"{tag}: {len(reasons)} assets are left out now")
            found += left
        if self._changed:
            facts.save()
        return tuple(found)

    def _finished(self, left: tuple[LeftOut, ...]) -> FeedReport:
        facts = Facts(self.data / "facts")
        recorded = facts.releases()
        newest = max(facts.versions.values(), key=number, default=None)
        head = max((number(tag) for tag in self._stable), default=-1)
        needed = {newest} if newest in self._state.taken and number(newest) > head else set()
        channel = channel_after(self._before, self._state, self._settings, needed)
        if channel != self._before:
            save_channel(self.data, self._settings.channel, channel)
        # The facts of a stopped release show what upstream changed.
        revoked = (each.release for each in load_plan(self.data).revoked)
        kept = {*channel, *self._stable, *revoked, *self._state.stopped}
        forgotten = tuple(sorted(self._state.taken - kept, key=number))
        self._forget(facts, forgotten)
        variants = {
            tag: [
                f"{build.rule.platform}/{variant.name}"
                for build in sort_assets(release, self._rules).builds
                if build.artifacts[0].name not in release.left_out
                for variant in build.rule.variants
            ]
            for tag, release in recorded.items()
        }
        # Nobody has tried a release file that this run has changed.
        untried = {*self._changed, *self._state.stopped}
        stated = load_plan(self.data).since.get(self._settings.channel, {})
        since = {tag: each.time for tag, each in stated.items() if tag not in untried}
        proposed = proposal(facts.versions, self._stable, variants, since, self._settings, self.now)
        if proposed:
            self._people.append(
                f"{proposed.version} ({proposed.release}) is ready to become "
                f"{self._settings.stable}: {proposed.hours} hours in {self._settings.channel}"
            )
        newest_left = [each for each in left if channel and each.release == channel[0]]
        self._people += [f"{each.release}: {each.asset}: {each.reason}" for each in newest_left]
        self._people += [f"{tag} is stopped: {why}" for tag, why in self._state.stopped.items()]
        save_state(self.data, self._state)
        return FeedReport(
            taken=tuple(self._taken),
            waiting=tuple(self._waiting),
            left_out=tuple(newest_left),
            stopped=dict(self._state.stopped),
            offered=channel,
            forgotten=forgotten,
            proposal=proposed,
            people=tuple(self._people),
            changed=channel != self._before or bool(self._changed),
        )

    def _forget(self, facts: Facts, forgotten: tuple[str, ...]) -> None:
        """Remove the facts of releases that the feed took and that no channel has any more."""
        if not forgotten:
            return
        recorded = facts.releases()
        gone = {asset.sha256 for tag in forgotten for asset in recorded[tag].assets}
        for tag in forgotten:
            facts.forget(tag)
            store(self.data, tag, ())
            self._state.taken.remove(tag)
        facts.save()
        # A companion without a tag in its name may belong to other releases, too.
        used = {asset.sha256 for each in facts.releases().values() for asset in each.assets}
        for sha256 in gone - used:
            (self.data / "facts" / "archives" / f"{sha256}.json").unlink(missing_ok=True)

    def _wait(self, text: str) -> None:
        self._waiting.append(text)
        self.say(f"waiting: {text}")

    def _stop(self, tag: str, reason: str) -> None:
        self._state.stopped[tag] = reason
        self.say(f"stopped: {reason}")


def _published(data: bytes) -> datetime:
    """Return when a release was published; ``parse_release`` has checked the form."""
    stamp = str(json.loads(data)["published_at"])
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
