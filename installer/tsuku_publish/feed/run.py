"""One run of the feed: what upstream has, what of it is taken, and what people must decide."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from tsuku_llm.fetch import Network
from tsuku_llm.ground.errors import TsukuError
from tsuku_publish.archives.contents import load_contents
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.feed.choosing import (
    UNKNOWN,
    LeftOut,
    channel_after,
    is_build,
    left_out,
    number,
    proposal,
    why_empty,
)
from tsuku_publish.feed.report import FeedReport, TakenRelease, measured_since, unmeasured
from tsuku_publish.feed.state import load_settings, load_state, save_state
from tsuku_publish.feed.taking import ChangedRelease, FeedRun, RefusedRelease, ReleaseTaker
from tsuku_publish.release_files.plan import load_plan, save_channel
from tsuku_publish.repository.folder import locked
from tsuku_publish.upstream.attestations import store
from tsuku_publish.upstream.classify import SortedAssets, load_rules, sort_assets
from tsuku_publish.upstream.facts import Facts
from tsuku_publish.upstream.hosting import (
    PER_PAGE,
    HostingService,
    IncompleteRelease,
    NoSuchRelease,
    RateLimited,
    named_tag,
    parse_release,
)

APART = timedelta(hours=3)
"""Between two looks that prove that a release was changed or deleted."""
PAGES = 20
"""Pages of the list that a run reads at most: a month of upstream's builds."""


@dataclass(kw_only=True)
class Feed(FeedRun):
    """The whole of a run; ``api`` replaces the address of the hosting service."""

    environ: Mapping[str, str]
    api: str | None = None
    _changed: set[str] = field(default_factory=set)
    _waiting: list[str] = field(default_factory=list)
    _people: list[str] = field(default_factory=list)
    _taken: list[TakenRelease] = field(default_factory=list)
    _recorded: list[TakenRelease] = field(default_factory=list)

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
            self._service = HostingService(self.api or self._rules.api, self.environ, network)
            self._taker = ReleaseTaker(
                **{each.name: getattr(self, each.name) for each in fields(FeedRun)},
                rules=self._rules,
                settings=self._settings,
                service=self._service,
                network=network,
            )
            listing = self._service.listing(self._state.etag)
            if listing.releases is None:
                self.say("upstream has published nothing since the last run")
            else:
                self._follow(listing.releases)
            # A list with something to wait for is asked for again: time passes, though it stays.
            self._state.etag = "" if self._waiting else listing.etag
        left = self._reconsidered()
        return self._finished(left)

    def _follow(self, newest: Sequence[Mapping[str, Any]]) -> None:
        try:
            listed = self._listed(newest)
            self._watch(listed)
            self._name_versions(listed)
            self._take_new(listed)
            self._measure_recorded()
        except RateLimited as error:
            # What was taken so far stays; the next run goes on.
            self._wait(error.message)

    def _listed(self, newest: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        """Return the releases since the last run by their tags, newest first.

        The first page of the list may not go back so far, after a pause of some days. Then stable
        versions would be missed for ever, so older pages are read. A first run goes back to the
        newest stable version.
        """
        last = max((number(tag) for tag in self._before), default=None)
        pages = [newest]
        while True:
            # A release that came meanwhile moves the others: some are on two pages.
            listed = {str(each.get("tag_name")): each for page in pages for each in page}
            oldest = min((number(tag) for tag in listed if is_build(tag)), default=0)
            enough = any(tag[:1] == "v" for tag in listed) if last is None else oldest <= last
            if enough or len(pages[-1]) < PER_PAGE:
                return listed
            if len(pages) == PAGES:
                self._people.append(
                    f"the newest {PAGES * PER_PAGE} releases of upstream were read, back to "
                    f"b{oldest}: an older stable version is only known after: refresh vVERSION"
                )
                return listed
            pages.append(self._service.page(len(pages) + 1))

    # --- what is recorded already -----------------------------------------------------------------

    def _watch(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """Stop releases that upstream has changed or withdrawn since they were recorded.

        One answer proves nothing: services have answered with an older state, without assets, and
        404 for what was there. An answer that cannot be read is none.
        """
        oldest = min((number(tag) for tag in listed if is_build(tag)), default=0)
        recorded = Facts(self.data / "facts").releases()
        for tag in self._before:
            if tag not in recorded or tag in self._state.stopped or number(tag) < oldest:
                continue
            try:
                # A release that is not in the list is asked for: a list can be cut off.
                here = json.dumps(listed[tag]).encode() if tag in listed else None
                release = parse_release(here or self._service.release(tag), tag)
            except RateLimited:
                raise
            except NoSuchRelease as error:
                self._suspect(tag, error.message)
            except PublishError as error:
                self._wait(f"{error.message}; {tag} stays, and is looked at again")
            else:
                try:
                    Facts(self.data / "facts").record(release)
                    self._state.suspected.pop(tag, None)
                except PublishError as error:
                    self._suspect(tag, error.message)

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
        # If the newest one was stopped just now, an older one takes its place.
        healthy = (number(tag) for tag in self._before if tag not in self._state.stopped)
        newest = max(healthy, default=-1)
        new = [tag for tag in listed if is_build(tag) and number(tag) > newest]
        left = self._settings.take
        # After a long pause the list is long. Faults that all builds share (the network, the disk)
        # must not cost a download of each of them.
        for tag in sorted(new, key=number, reverse=True)[:PER_PAGE]:
            if not left:
                break
            left -= self._accept(self._try(tag, listed[tag]))
        named = max(facts.versions.values(), key=number, default=None)
        head = max((number(tag) for tag in self._stable), default=-1)
        if named and number(named) > head and named not in self._state.taken:
            self._accept(self._try(named, listed.get(named)))

    def _accept(self, release: TakenRelease | None) -> bool:
        """Put a release into the channel, if there is one; return whether."""
        if release is not None:
            self._state.taken.add(release.release)
            self._taken.append(release)
        return release is not None

    def _measure_recorded(self) -> None:
        """Measure what was recorded without its archives, as all of the first repository was."""
        recorded = Facts(self.data / "facts").releases()
        for tag in unmeasured((*self._before, *self._stable), recorded):
            if (release := self._try(tag, None)) is None:
                continue
            self._recorded.append(release)
            if tag in self._before:
                self._state.taken.add(tag)
                self._changed.add(tag)

    def _try(self, tag: str, raw: Mapping[str, Any] | None) -> TakenRelease | None:
        """Take a release if it is whole; None if it was not taken."""
        if tag in self._state.stopped or tag in self._state.taken:
            return None
        try:
            data = json.dumps(raw).encode() if raw else self._service.release(tag)
            return self._taker.take(tag, data, self._last())
        except RateLimited:
            raise
        except IncompleteRelease as error:
            self._wait(error.message)
        except ChangedRelease as error:
            self._suspect(tag, error.message)
        except RefusedRelease as error:
            self._stop(tag, in_one_line(error))
        except TsukuError as error:
            # Perhaps the network or the disk: the next run tries again, and people hear of it.
            self._people.append(f"{tag} was not taken: {in_one_line(error)}")
            self._wait(f"{tag} is tried again in the next run")
        return None

    def _last(self) -> SortedAssets | None:
        """Return the assets of the newest release that was taken."""
        recorded = Facts(self.data / "facts").releases()
        taken = self._state.taken & recorded.keys()
        newest = max(taken, key=number, default=None)
        return sort_assets(recorded[newest], self._rules) if newest else None

    # --- the end of a run -------------------------------------------------------------------------

    def _reconsidered(self) -> tuple[LeftOut, ...]:
        """Apply the rules of today to the releases of the channel, and return what stays out."""
        facts = Facts(self.data / "facts")
        contents = load_contents(self.data / "facts" / "archives")
        found: list[LeftOut] = []
        for tag, release in facts.releases().items():
            # Others have nothing left out, but for what a run measured in the stable channel.
            if tag not in self._state.taken and not release.left_out:
                continue
            unread = {
                asset.name: release.left_out[asset.name].removeprefix(UNKNOWN)
                for asset in release.assets
                if asset.name in release.left_out and asset.sha256 not in contents
            }
            left = left_out(release, self._rules, contents, unread)
            if why := why_empty(release, self._rules, left):
                # Its users keep what they have until a person has mended the rules.
                self._people.append(why)
                continue
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
            # Only here: signers that work meanwhile must not wait for hours of downloads.
            with locked(self.data):
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
        if known := measured_since(load_plan(self.data), recorded):
            self._people.append(
                f"{', '.join(known)} {'is' if len(known) == 1 else 'are'} measured by now, and "
                "signed as not measured: sign --raise tells users"
            )
        self._people += map(str, self._rules.wrong)
        newest_left = [each for each in left if channel and each.release == channel[0]]
        self._people += [f"{each.release}: {each.asset}: {each.reason}" for each in newest_left]
        self._people += [f"{tag} is stopped: {why}" for tag, why in self._state.stopped.items()]
        save_state(self.data, self._state)
        return FeedReport(
            taken=tuple(self._taken),
            measured=tuple(self._recorded),
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

    def _suspect(self, tag: str, reason: str) -> None:
        """Stop a release that was seen so before, long enough ago; else look at it again later."""
        since = self._state.suspected.setdefault(tag, self.now)
        if self.now - since >= APART:
            del self._state.suspected[tag]
            self._stop(tag, reason)
        else:
            self._wait(f"{reason}: it is stopped if that is so {APART.seconds // 3600} hours later")

    def _stop(self, tag: str, reason: str) -> None:
        self._state.stopped[tag] = reason
        self.say(f"stopped: {reason}")
