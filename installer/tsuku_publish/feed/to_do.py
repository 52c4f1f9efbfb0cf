"""What a run of the feed leaves to people, gathered as it goes. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from tsuku_publish.feed.choosing import UNKNOWN, number
from tsuku_publish.feed.drafts import no_build
from tsuku_publish.feed.report import LeftOut, Matter, StableProposal
from tsuku_publish.feed.state import STATE, FeedSettings, FeedState
from tsuku_publish.upstream.classify import WrongRule
from tsuku_publish.upstream.facts import NAME

SILENCE = timedelta(days=7)
"""How long upstream may publish nothing before people hear of it."""
_WITHOUT = "or, to do without: tsuku-publish feed --accept {}"


@dataclass(kw_only=True)
class ToDo:
    """What a run found, and what of it is for people.

    ``unnamed`` are stable versions that name no build, ``unfit`` why no build of a release fits the
    rules, ``moved`` releases whose files have another address, ``cut`` is where a list was cut off,
    ``forms`` are unknown forms of tags: all by what they are about. ``failed`` are releases that
    could not be fetched, ``waiting`` those that may be taken later. ``seen`` are the tags that this
    run has looked at again, and ``newest`` is the number of upstream's newest build.
    """

    data: Path
    now: datetime
    settings: FeedSettings
    state: FeedState
    wrong: Sequence[WrongRule]
    before: Sequence[str]
    stable: Sequence[str]
    unnamed: dict[str, str] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)
    forms: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    newest: int = -1
    _found: list[Matter] = field(default_factory=list)

    def known(self, key: str) -> dict[str, str]:
        """Return the facts of a matter of the last run, by what each is about."""
        found = (each for each in self.state.matters if each.key == key)
        pairs = (pair for each in found for pair in zip(each.about, each.facts, strict=True))
        return dict(pairs)

    def matters(
        self,
        channel: Sequence[str],
        left: Sequence[LeftOut],
        proposed: StableProposal | None,
        held: Mapping[str, Sequence[str]],
        measured: Sequence[str],
    ) -> tuple[Matter, ...]:
        """Return what people must do after this run, oldest first.

        ``left`` are the assets that are left out of the newest releases, ``held`` what each held
        release lacks, ``measured`` the releases that are measured, and signed as not measured.
        """
        self._add_signatures(proposed, measured)
        self._add_rules(left)
        self._add_releases(channel, held)
        self._add_versions()
        self._add_silence(channel)
        return tuple(sorted(self._found, key=lambda each: each.since))

    def _add(
        self,
        key: str,
        what: str,
        otherwise: str,
        command: str,
        facts: Mapping[str, str],
        drafts: Iterable[str] = (),
    ) -> None:
        """Add a matter; ``facts`` are its lines, by what each is about.

        Accepted ones are left out, and without any fact nothing is open. ``{count}`` in ``what``
        is their number. A matter that the last run had keeps its time.
        """
        left = {about: line for about, line in facts.items() if about not in self.state.accepted}
        if not left:
            return
        since = f"{self.now:%Y-%m-%dT%H:%M:%SZ}"
        matter = Matter(
            key=key,
            what=what.replace("{count}", str(len(left))),
            since=next((each.since for each in self.state.matters if each.key == key), since),
            otherwise=otherwise,
            command=command,
            facts=tuple(left.values()),
            about=tuple(left),
            drafts=tuple(dict.fromkeys(filter(None, drafts))),
        )
        self._found.append(matter)

    def _add_signatures(self, proposed: StableProposal | None, measured: Sequence[str]) -> None:
        """Add what only signers can do."""
        if proposed:
            self._add(
                "promote",
                f"{proposed.version} ({proposed.release}) is ready to become "
                f"{self.settings.stable}: {proposed.hours} hours in {self.settings.channel}",
                f"users of {self.settings.stable} stay with {proposed.replaces or 'nothing'}",
                f"tsuku-publish promote {proposed.release} --to {self.settings.stable}, then "
                "tsuku-publish sign --raise",
                {
                    proposed.version: f"it has {len(proposed.new)} new variants, and lacks "
                    f"{len(proposed.gone)}"
                },
            )
        self._add(
            "measured",
            "{count} releases are measured by now, and signed as not measured",
            "clients go on telling users that they are not measured",
            "tsuku-publish sign --raise",
            {f"measured {tag}": tag for tag in measured},
        )

    def _add_rules(self, left: Sequence[LeftOut]) -> None:
        """Add what is left out, and which rules are wrong."""
        self._add(
            "wrong-rules",
            "{count} rules cannot be used",
            "the builds that they are about are left out",
            f"$EDITOR {self.data / 'rules.toml'}",
            {str(each): str(each) for each in self.wrong} | self.unfit,
        )
        # The companion of a new build has no draft: it belongs to that of its build.
        unknown = {each.asset for each in left if each.reason.startswith(UNKNOWN.rstrip("; "))}
        drafted = {each.asset: each for each in left if each.draft or each.asset in unknown}
        self._add(
            "new-names",
            "{count} files of upstream need a line in rules.toml",
            "they are left out, and their users go on with what they have",
            f"read the drafts below, and add what is right to {self.data / 'rules.toml'}",
            {
                asset.replace(each.release, "{tag}"): f"{each.release}: {asset}: {each.reason}"
                for asset, each in drafted.items()
            },
            (each.draft for each in drafted.values()),
        )
        self._add(
            "left-out",
            "{count} builds do not fit their rules",
            "they are left out, and their users go on with what they have",
            f"tell upstream, or mend {self.data / 'rules.toml'}; {_WITHOUT.format('left-out')}",
            {
                each.asset.replace(each.release, "{tag}"): f"{each.release}: {each.asset}: "
                f"{each.reason}"
                for each in left
                if each.asset not in drafted
                and each.reason not in map(str, self.wrong)
                and not no_build(each.asset)
            },
        )

    def _add_releases(self, channel: Sequence[str], held: Mapping[str, Sequence[str]]) -> None:
        """Add releases that are held, changed or stopped."""
        state, name = self.state, self.settings.channel
        newest = max(state.held, key=number, default="")
        if newest and self.now - state.held[newest] >= self.settings.patience:
            self._add(
                "held",
                f"{newest} lacks what the last build in {name} has, and so do all since "
                f"{state.held[newest]:%Y-%m-%d %H:%M} UTC",
                f"{name} stays with b{max(map(number, channel), default=0)}",
                f"add the drafts that are right to {self.data / 'rules.toml'}; "
                + _WITHOUT.format("held"),
                {each: each for each in held[newest]},
            )
        self._add(
            "moved",
            "files of {count} releases have another address, and the same bytes",
            "if the old address ends, new users cannot download them",
            f"open the old address; if it ended, write the new one into "
            f"{self.data / 'facts' / NAME}, then sign; {_WITHOUT.format('moved')}",
            {tag: line for tag, line in self.known("moved").items() if tag not in self.seen}
            | self.moved,
        )
        self._add(
            self.settings.stable,
            f"{{count}} releases of {self.settings.stable} are not what was signed any more",
            "new users of them cannot download them; installed ones go on",
            "tsuku-publish promote another one, or tsuku-publish revoke TAG --reason TEXT; "
            + _WITHOUT.format(self.settings.stable),
            {tag: state.stopped[tag] for tag in self.stable if tag in state.stopped},
        )
        self._add(
            "stopped",
            "{count} releases are stopped",
            "they are not taken again, and leave the channel when a newer build takes their place",
            f"find out why; to try one again remove its line in {self.data / STATE}; "
            + _WITHOUT.format("stopped"),
            {
                tag: f"{tag} is stopped: {why}"
                for tag, why in state.stopped.items()
                if tag not in self.stable
            },
        )

    def _add_versions(
        self,
    ) -> None:
        """Add stable versions that cannot be read, or may have been missed."""
        self._add(
            "versions",
            "{count} stable versions of upstream name no build that can be taken",
            f"they never become {self.settings.stable}",
            f"read their texts; {_WITHOUT.format('versions')}",
            self.unnamed,
        )
        self._add(
            "tags",
            "{count} forms of upstream's tags are those of neither a build nor a version",
            "what they name is not taken",
            f"look at upstream's page of releases; {_WITHOUT.format('tags')}",
            self.known("tags") | self.forms,
        )
        self._add(
            "unread",
            "stable versions may be missed: upstream's list was longer than what a run reads",
            "a version that is older than the pages never becomes stable",
            "tsuku-publish refresh vVERSION, for each that is missing; "
            + _WITHOUT.format("unread"),
            # The next run reads fewer pages, so it cannot know: people say when they have looked.
            self.known("unread") | self.cut,
        )

    def _add_silence(self, channel: Sequence[str]) -> None:
        """Let people know of a channel that gets no new build, and of an upstream without one."""
        state, head = self.state, max(map(number, channel), default=-1)
        if channel and (state.news is None or head > max(map(number, self.before), default=-1)):
            state.news = self.now
        silent = self.newest <= head
        waited = self.now - (state.news or self.now)
        told = state.held and self.now - min(state.held.values()) >= self.settings.patience
        if told or waited < (SILENCE if silent else 2 * self.settings.patience):
            return
        since = f"{self.settings.channel} has had no new build for {waited.days} days"
        if silent:
            what, facts = f"{since}, as upstream has none", {}
        else:
            what = f"{since}, and upstream has b{self.newest}"
            facts = {line: line for line in (*self.failed, *self.waiting)[:30]}
        self._add(
            "frozen",
            what,
            f"its users stay with b{head}",
            "look at upstream's page of releases, and at the lines above",
            facts or {f"frozen b{head}": f"its newest is b{head}"},
        )
