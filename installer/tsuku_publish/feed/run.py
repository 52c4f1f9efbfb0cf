"""One run of the feed: what upstream has, what of it is taken, and what people must decide."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tsuku_llm.fetch import Network
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.archives.contents import load_contents
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.feed.choosing import (
    UNKNOWN,
    channel_after,
    is_build,
    is_version,
    left_out,
    lost,
    number,
    proposal,
    unknown_form,
)
from tsuku_publish.feed.report import FeedReport, LeftOut, TakenRelease
from tsuku_publish.feed.state import load_settings, load_state, save_state
from tsuku_publish.feed.taking import ChangedRelease, RefusedRelease, ReleaseTaker
from tsuku_publish.feed.to_do import ToDo
from tsuku_publish.release_files.plan import TARGETS, Plan, load_plan, save_channel
from tsuku_publish.repository.checking import FIRST_ROOT, verify
from tsuku_publish.repository.copies import RepositoryFolder
from tsuku_publish.repository.folder import locked
from tsuku_publish.upstream.attestations import store
from tsuku_publish.upstream.classify import load_rules, sort_assets
from tsuku_publish.upstream.facts import Facts, MovedAsset, UpstreamRelease
from tsuku_publish.upstream.hosting import (
    PER_PAGE,
    HostingService,
    IncompleteRelease,
    NoSuchRelease,
    RateLimited,
    named_tag,
    parse_again,
)

APART = timedelta(hours=3)
"""Between two looks that prove that a release was changed or deleted."""
LOOK = timedelta(hours=17)
"""After which a release on offer is looked at again: with a run every six hours within a day."""
WATCHED = 10
"""Releases that a run asks for to look at them again."""
EVER = datetime.min.replace(tzinfo=timezone.utc)
PAGES = 20
"""Pages of the list that a run reads at most: a month of upstream's builds."""


@dataclass(kw_only=True)
class Feed:
    """A run over the ``data`` of a repository, at the time ``now``.

    ``model`` is a small GGUF file with which new builds are started, ``say`` reports each step.
    ``api`` replaces the address of the hosting service.
    """

    data: Path
    now: datetime
    say: Callable[[str], None]
    environ: Mapping[str, str]
    model: Path | None = None
    trusted_root: Path | None = None
    api: str | None = None
    _listed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _absent: set[str] = field(default_factory=set)
    _dropped: set[str] = field(default_factory=set)
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
        self._todo = ToDo(
            data=self.data,
            now=self.now,
            settings=self._settings,
            state=self._state,
            wrong=self._rules.wrong,
            before=self._before,
            stable=self._stable,
        )
        # First of all: what is new is compared with what the channel has by the rules of today.
        self._reconsidered()
        with Network(self.environ) as network:
            self._service = HostingService(self.api or self._rules.api, self.environ, network)
            self._taker = ReleaseTaker(
                data=self.data,
                now=self.now,
                say=self.say,
                model=self.model,
                trusted_root=self.trusted_root,
                rules=self._rules,
                settings=self._settings,
                service=self._service,
                network=network,
            )
            listing = self._service.listing(self._state.etag)
            if listing.releases is None:
                self.say("upstream has published nothing since the last run")
            self._follow(listing.releases or ())
            # A list with something to wait for is asked for again: time passes, though it stays.
            self._state.etag = "" if self._todo.waiting else listing.etag
        left = self._reconsidered()
        self._release_held()
        return self._finished(left)

    def _follow(self, newest: Sequence[Mapping[str, Any]]) -> None:
        tags = [str(each.get("tag_name")) for each in newest]
        self._todo.forms |= {form: f"{form}: {tag}" for tag in tags if (form := unknown_form(tag))}
        self._todo.newest = max((number(tag) for tag in tags if is_build(tag)), default=-1)
        # Each step asks little, so that without a token, which is 60 requests an hour, none of them
        # takes all from the next: the watch some of what is on offer, then the build of the newest
        # stable version, and the newest builds last.
        try:
            if newest:
                self._list(newest)
            self._watch()
            self._name_versions()
            self._take_named()
            self._take_new()
            self._measure_recorded()
        except RateLimited as error:
            # What was taken so far stays; the next run goes on.
            self._wait(error.message)

    def _list(self, newest: Sequence[Mapping[str, Any]]) -> None:
        """List the releases since the last run by their tags, newest first.

        The first page of the list may not go back so far, after a pause of some days. Then stable
        versions would be missed for ever, so older pages are read. A first run goes back to the
        newest stable version.
        """
        last = max((number(tag) for tag in self._before), default=None)
        pages = [newest]
        while True:
            # A release that came meanwhile moves the others: some are on two pages.
            self._listed |= {str(each.get("tag_name")): each for each in pages[-1]}
            oldest = min((number(tag) for tag in self._listed if is_build(tag)), default=0)
            enough = any(map(is_version, self._listed)) if last is None else oldest <= last
            if enough or len(pages[-1]) < PER_PAGE:
                return
            if len(pages) == PAGES:
                self._todo.cut[f"b{oldest}"] = (
                    f"the newest {PAGES * PER_PAGE} releases of upstream were read, back to "
                    f"b{oldest}, and b{last or 0} was not among them"
                )
                return
            pages.append(self._service.page(len(pages) + 1))

    def _answer(self, tag: str) -> bytes:
        """Return the service's document of a release: of the list, or asked for."""
        listed = self._listed.get(tag)
        return json.dumps(listed).encode() if listed else self._service.release(tag)

    # --- what is recorded already -----------------------------------------------------------------

    def _watch(self) -> None:
        """Stop releases that upstream has changed or withdrawn since they were recorded.

        One answer proves nothing: services have answered with an older state, without assets, and
        404 for what was there. An answer that cannot be read is none. Releases that are not in the
        list are asked for one by one, ``WATCHED`` in a run: each of them within a day.
        """
        oldest = min((number(tag) for tag in self._listed if is_build(tag)), default=None)
        recorded = Facts(self.data / "facts").releases()
        offered = dict.fromkeys((*self._before, *self._stable))
        for gone in self._state.looked.keys() - offered.keys():
            del self._state.looked[gone]
        due: list[tuple[datetime, str]] = []
        for tag in offered:
            if tag not in recorded or tag in self._state.stopped:
                continue
            if tag in self._listed:
                self._look(tag)
                continue
            # A list can be cut off, and what it should have had is asked for at once.
            at_once = tag in self._state.suspected or (oldest is not None and number(tag) >= oldest)
            since = EVER if at_once else self._state.looked.get(tag, EVER)
            if self.now - since >= LOOK:
                due.append((since, tag))
        for _, tag in sorted(due)[:WATCHED]:
            self._look(tag)

    def _look(self, tag: str) -> None:
        """Compare a release with what is recorded."""
        facts = Facts(self.data / "facts")
        recorded = facts.releases()[tag].assets
        try:
            release, unread = parse_again(self._answer(tag), tag, recorded)
        except RateLimited:
            raise
        except NoSuchRelease as error:
            self._suspect(tag, error.message)
            return
        except PublishError as error:
            self._wait(f"{error.message}; {tag} stays, and is looked at again")
            return
        finally:
            self._todo.seen.add(tag)
            # Also a look that decided nothing: the next one is the turn of others.
            self._state.looked[tag] = self.now
        try:
            facts.record(release)
        except MovedAsset as error:
            self._todo.moved[tag] = error.message
        except PublishError as error:
            self._suspect(tag, error.message)
            return
        if unread:
            self._wait(f"{unread}; {tag} stays, and is looked at again")
            return
        self._state.suspected.pop(tag, None)

    def _name_versions(self) -> None:
        """Record which builds new stable versions name."""
        # Those that could not be read are asked for again, until a newer one can be read.
        again = [*self._todo.known("versions")][:WATCHED]
        for version in (*filter(is_version, self._listed), *again):
            facts = Facts(self.data / "facts")
            others = facts.versions.keys() - {version}
            if any(_order(each) >= _order(version) for each in others if version in again):
                continue
            try:
                named = named_tag(self._answer(version), version)
                known = facts.versions.get(version)
                facts.name(version, named)
            except RateLimited:
                raise
            except NoSuchRelease:
                continue  # it was taken back
            except PublishError as error:
                self._todo.unnamed[version] = error.message
                continue
            if known != named:
                facts.save()
                # A release file has its version.
                self._changed |= {named} & {*self._before}
                self.say(f"{version} is {named}")

    # --- what is new ------------------------------------------------------------------------------

    def _take_named(self) -> None:
        """Take the build that the newest stable version names, if upstream has such a build.

        A mistyped name must not keep the other versions away for ever.
        """
        versions = Facts(self.data / "facts").versions.items()
        head = max((number(tag) for tag in self._stable), default=-1)
        for version, named in sorted(versions, key=lambda each: -number(each[1])):
            if number(named) <= head:
                return
            self._accept(self._try(named))
            if named not in self._absent:
                return
            self._todo.unnamed[version] = f"{version} names {named}, and upstream has no such build"

    def _take_new(self) -> None:
        """Take the newest builds; never one that is older than the head of the channel."""
        # What is older than a held one lacks the same, most likely, and is measured for nothing.
        newest = max(map(number, (*self._before, *self._state.held)), default=-1)
        done = {*self._state.stopped, *self._state.taken, *self._state.held}
        new = {tag for tag in self._listed if is_build(tag) and number(tag) > newest} - done
        far = {tag for tag in new if 0 < 2 * newest < number(tag)}
        for tag in far:
            self._stop(tag, f"its number is far from that of the newest build, b{newest}")
        # One without files costs no other its turn: a thief could make many with high numbers.
        whole = [tag for tag in new - far if self._listed[tag].get("assets")]
        left, begun = self._settings.take, self._taker.downloaded
        # After a long pause the list is long. Faults that all builds share (the network, the disk)
        # must not cost a download of each of them.
        for tag in sorted(whole, key=number, reverse=True)[:PER_PAGE]:
            if not left or self._taker.downloaded - begun > self._settings.take:
                break
            left -= self._accept(self._try(tag))

    def _accept(self, release: TakenRelease | None) -> bool:
        """Put a release into the channel if it is whole, else hold it; return whether it is in."""
        if release is None:
            return False
        if self._is_whole(release.release):
            self._taken.append(release)
            return True
        # Each later build may have the same loss, so the time of the first one counts.
        since = min((*self._state.held.values(), self._taker.published[release.release]))
        self._state.held[release.release] = since
        return False

    def _is_whole(self, tag: str) -> bool:
        """Take a recorded release if it lacks nothing, or what people have accepted."""
        found = {*self._lost(tag)}
        if found - self._state.accepted:
            return False
        # Only this loss was accepted, not the next one of the same kind.
        self._state.accepted -= found
        self._state.taken.add(tag)
        return True

    def _lost(self, tag: str) -> tuple[str, ...]:
        """Return what a recorded release lacks that the last one taken has."""
        recorded = Facts(self.data / "facts").releases()
        last = self._last(tag)
        if last is None:
            return ()
        contents = load_contents(self.data / "facts" / "archives")
        return lost(recorded[tag], recorded[last], self._rules, contents)

    def _release_held(self) -> None:
        """Take held releases that are whole by the rules of today, or as people accepted them."""
        held = sorted(self._state.held, key=number, reverse=True)
        for tag in held:
            if self._is_whole(tag):
                release = Facts(self.data / "facts").releases()[tag]
                attested, archives = release.unattested is None, len(release.assets)
                self._taken.append(TakenRelease(tag, archives, attested, ()))
                break
        newest = max(self._state.taken, key=number, default="b0")
        versions = {*Facts(self.data / "facts").versions.values()}
        named = max(versions & {*held, *self._state.taken}, key=number, default=None)
        for tag in held:
            # The newest one may come; the build of the newest stable version is always needed.
            if tag in self._state.taken or (
                tag != named and (tag != held[0] or number(tag) < number(newest))
            ):
                del self._state.held[tag]
                self._dropped |= {tag} - self._state.taken

    def _measure_recorded(self) -> None:
        """Measure what was recorded without its archives, as all of the first repository was."""
        recorded = Facts(self.data / "facts").releases()
        offered = {*self._before, *self._stable} & recorded.keys()
        for tag in sorted(offered, key=number, reverse=True):
            if recorded[tag].unmeasured is None or (release := self._try(tag)) is None:
                continue
            self._recorded.append(release)
            if tag in self._before:
                self._state.taken.add(tag)
                self._changed.add(tag)

    def _try(self, tag: str) -> TakenRelease | None:
        """Take a release if it is whole; None if it was not taken."""
        if tag in {*self._state.stopped, *self._state.taken, *self._state.held}:
            return None
        try:
            last = self._last(tag)
            recorded = Facts(self.data / "facts").releases()
            assets = sort_assets(recorded[last], self._rules) if last else None
            return self._taker.take(tag, self._answer(tag), assets)
        except RateLimited:
            raise
        except IncompleteRelease as error:
            self._wait(error.message)
        except NoSuchRelease as error:
            self._absent.add(tag)
            self._wait(error.message)
        except ChangedRelease as error:
            self._suspect(tag, error.message)
        except RefusedRelease as error:
            self._stop(tag, in_one_line(error))
        except TsukuError as error:
            # Perhaps the network or the disk: people hear of it if the channel stays behind.
            self._todo.failed.append(f"{tag} was not taken: {in_one_line(error)}")
            self._wait(f"{self._todo.failed[-1]}; it is tried again in the next run")
        return None

    def _last(self, tag: str) -> str | None:
        """Return the newest release before this one that was taken, by the feed or by people."""
        recorded = Facts(self.data / "facts").releases()
        known = {*self._state.taken, *self._before, *self._stable} & recorded.keys()
        older = (each for each in known if number(each) < number(tag))
        return max(older, key=number, default=None)

    # --- the end of a run -------------------------------------------------------------------------

    def _reconsidered(self) -> tuple[LeftOut, ...]:
        """Apply the rules of today to the releases of the channel, and return what stays out."""
        facts = Facts(self.data / "facts")
        contents = load_contents(self.data / "facts" / "archives")
        found: list[LeftOut] = []
        for tag, release in facts.releases().items():
            # Others have nothing left out, but for what a run measured in the stable channel.
            if tag not in {*self._state.taken, *self._state.held} and not release.left_out:
                continue
            unread = {
                asset.name: release.left_out[asset.name].removeprefix(UNKNOWN)
                for asset in release.assets
                if asset.name in release.left_out and asset.sha256 not in contents
            }
            try:
                left = left_out(release, self._rules, contents, unread)
            except PublishError as error:
                # Its users keep what they have until a person has mended the rules.
                self._todo.unfit.setdefault("rules", error.message)
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
        # Nobody has tried a release file that this run has changed.
        untried = {*self._changed, *self._state.stopped}
        stated = load_plan(self.data).since.get(self._settings.channel, {})
        since = {tag: each.time for tag, each in stated.items() if tag not in untried}
        ready = [tag for tag, time in since.items() if self.now - time >= self._settings.soak]
        named = {*facts.versions.values()} & self._state.taken
        # Those that still wait, and the newest that need not: a version a day must not push each
        # other out of the channel before one of them was in it for long enough.
        soaked = max((number(tag) for tag in named.intersection(ready)), default=-1)
        ahead = [tag for tag in named if number(tag) > head and number(tag) >= soaked]
        needed = sorted(ahead, key=number)[-self._settings.keep :]
        channel = channel_after(self._before, self._state, self._settings, needed)
        if channel != self._before:
            # Only here: signers that work meanwhile must not wait for hours of downloads.
            with locked(self.data):
                save_channel(self.data, self._settings.channel, channel)
        # The facts of a stopped release show what upstream changed.
        revoked = (each.release for each in load_plan(self.data).revoked)
        kept = {*channel, *self._stable, *revoked, *self._state.stopped}
        # Without the release that it is compared with, a held one would lack nothing.
        kept |= {last for tag in self._state.held if (last := self._last(tag))}
        forgotten = tuple(sorted((self._state.taken | self._dropped) - kept, key=number))
        self._forget(facts, forgotten)
        # What was never signed, and is older than all of the channel, is nobody's business.
        for tag in [*self._state.stopped]:
            passed = channel and number(tag) < number(channel[-1])
            if passed and tag not in recorded and tag != newest:
                del self._state.stopped[tag]
        variants = {
            tag: [
                f"{build.rule.platform}/{variant.name}"
                for build in sort_assets(release, self._rules).builds
                if build.artifacts[0].name not in release.left_out
                for variant in build.rule.variants
            ]
            for tag, release in recorded.items()
        }
        proposed = proposal(facts.versions, self._stable, variants, since, self._settings, self.now)
        told = {*channel[:1], *self._state.held}
        newest_left = [each for each in left if each.release in told]
        held = {tag: self._lost(tag) for tag in self._state.held}
        measured = _measured_since(load_plan(self.data), recorded)
        self._state.matters = self._todo.matters(channel, newest_left, proposed, held, measured)
        save_state(self.data, self._state)
        return FeedReport(
            taken=tuple(sorted(self._taken, key=lambda each: -number(each.release))),
            measured=tuple(self._recorded),
            waiting=tuple(self._todo.waiting),
            left_out=tuple(newest_left),
            stopped=dict(self._state.stopped),
            held=held,
            offered=channel,
            forgotten=forgotten,
            proposal=proposed,
            people=self._state.matters,
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
            self._state.taken.discard(tag)
        facts.save()
        # A companion without a tag in its name may belong to other releases, too.
        used = {asset.sha256 for each in facts.releases().values() for asset in each.assets}
        for sha256 in gone - used:
            (self.data / "facts" / "archives" / f"{sha256}.json").unlink(missing_ok=True)

    def _wait(self, text: str) -> None:
        self._todo.waiting.append(text)
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


def _order(version: str) -> tuple[int, ...]:
    """Return by what stable versions are ordered."""
    return tuple(map(int, re.findall("[0-9]+", version)))


def _measured_since(plan: Plan, recorded: Mapping[str, UpstreamRelease]) -> tuple[str, ...]:
    """Return what people signed as not measured, and what is measured by now, newest first.

    Raises ``PublishError`` for a published repository that clients would refuse.
    """
    copy = RepositoryFolder(plan.signed)
    root = copy.read(FIRST_ROOT)
    if root is None:
        return ()
    found = set()
    for target in verify(copy, root).targets.values():
        tag = str(target.custom["release"])
        measured = tag in recorded and recorded[tag].unmeasured is None
        if target.role == TARGETS and measured:
            document = parse_json(copy.read(target.name) or b"{}")
            found |= {tag} if "unmeasured" in document else set()
    return tuple(sorted(found, key=number, reverse=True))
