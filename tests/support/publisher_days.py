"""Days of a publisher's life: the jobs every six hours, the people at noon, a thief, and the users.

The clock is the one of the host that plays upstream. Every command that a person runs is counted,
with the minutes that such a command takes by assumption (``MINUTES``).
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.feed_publisher import MACHINE, FeedPublisher, delegate, feed_publisher
from support.release_data import release_tool, signers_file
from support.teams import Client, stolen
from support.upstream_host import STABLE, Upstream, time_of

from tsuku_llm.ground.errors import TsukuError
from tsuku_publish.holders.signers import VARIABLE
from tsuku_publish.release_files.sightings import observe, parse_time
from tsuku_publish.repository import checking, copies

HOLDERS = {
    "anna": ("root-1", "targets-1"),
    "ben": ("root-2", "targets-2"),
    "chris": ("root-3", "targets-3"),
}
"""Three people, each with a key of root and a key of targets; two of them are enough."""
LIFETIMES = {"root": 730, "targets": 365, "snapshot": 365, "timestamp": 30, "nightly": 30}
"""Days. The users' clock is the real one, so what is signed here says a longer time."""
MINUTES = {
    "read": 5,  # a line of the feed's report that asks for no command
    "edit": 5,  # a drafted rule or a public key is read and written into a TOML file
    "promote": 5,  # with the proposal that is read before
    "sign": 5,  # with the review that is read before
    "rotate": 10,
    "new-signer": 5,
}
"""What a person needs for each; an assumption, which nobody has measured."""


@dataclass
class Work:
    """What people did for one purpose: how often it came up, and the commands of each kind."""

    times: int = 0
    commands: Counter[str] = field(default_factory=Counter)

    @property
    def minutes(self) -> int:
        return sum(MINUTES[kind] * count for kind, count in self.commands.items())


class Days:
    """A span of simulated days. The constructor's publisher has signed its first state.

    ``away`` is a time without people; their timers go on. ``step`` is the time between two runs.
    """

    def __init__(
        self,
        at: FeedPublisher,
        away: tuple[datetime, datetime] | None = None,
        step: timedelta = timedelta(hours=6),
    ) -> None:
        self.at = at
        self.away = away or (at.upstream.now, at.upstream.now)
        self.step = step
        self.began = at.upstream.now
        self.work: dict[str, Work] = {}
        self.present = ["anna", "ben", "chris"]
        self.signed: set[str] = set()
        self.read: set[str] = set()
        self.clients: list[Client] = []
        self.followers: list[Client] = []
        self.served = ""
        self.nightly_age = timedelta()
        self.stable_lag = timedelta()
        self.stable_lag_with_people = timedelta()
        self.theft = timedelta()
        self.runs = 0
        self.ceremonies = 0
        for person, names in HOLDERS.items():
            signers_file(self._keys(person), *names)
        signers_file(self._keys("host"), *MACHINE)

    # --- who does what --------------------------------------------------------------------

    def _keys(self, person: str) -> Path:
        folder = self.at.data.parent / "keys" / person
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "keys.json"

    def by(self, person: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command with the keys of one person, or of the host, alone."""
        upstream = self.at.upstream
        environ = {VARIABLE: str(self._keys(person).parent), **upstream.environ}
        environ["XDG_STATE_HOME"] = str(self.at.data.parent / "state")
        return release_tool(*words, **environ)

    def person(self, why: str, person: str, *words: str | Path) -> None:
        """Let a person run a command, and count it."""
        done = self.by(person, *words)
        assert done.returncode == 0, (words, done.stderr)
        self._count(why, str(words[0]))

    def _count(self, why: str, command: str, times: int = 1) -> None:
        self.work.setdefault(why, Work()).commands[command] += times

    def _ceremony(self, why: str, first: Iterable[str], second: str, third: str = "") -> None:
        """Let two holders sign at home, and then the host; ``first`` is a person and a command."""
        at = self.at
        self.ceremonies += 1
        self.work.setdefault(why, Work()).times += 1
        common = ("--data", at.data, "--trusted-root", at.upstream.trusted_root)
        more = (*common, "--issued", at.stamp, "--gather", at.data.parent / f"{self.ceremonies}")
        one, *words = first
        self.person(why, one, *words, *more)
        for person in filter(None, (second, third)):
            self.person(why, person, "sign", *more)
        self.person(why, "host", "sign", *more)
        self._check_signed()

    # --- the days -------------------------------------------------------------------------

    def live(self, until: datetime) -> None:
        """Run the jobs until then; people look at noon, unless they are away."""
        upstream = self.at.upstream
        while upstream.now < until:
            answer = self._job()
            here = not self.away[0] <= upstream.now < self.away[1]
            if upstream.now.hour == 12:
                self.timers()
                if here:
                    self._decide(answer)
            self._check()
            upstream.pass_time(seconds=self.step.total_seconds())

    def apart(self, until: datetime) -> timedelta:
        """Live until then; return how old nightly was, which no figure of other days contains."""
        before, self.nightly_age = self.nightly_age, timedelta()
        self.live(until)
        found, self.nightly_age = self.nightly_age, before
        return found

    def _job(self) -> dict[str, Any]:
        """Run the feed, and each midnight the job that signs the online roles again."""
        at = self.at
        if at.upstream.now.hour == 0:
            done = self.by("host", "resign", "--data", at.data, "--issued", at.stamp)
            assert done.returncode == 0, done.stderr
        answer = at.feed()
        self.sign_nightly()
        self.runs += 1
        return answer

    def sign_nightly(self) -> None:
        """Sign what the feed took, with the keys of the host alone."""
        at = self.at
        words = ("--channel", "nightly", "--issued", at.stamp)
        root = ("--trusted-root", at.upstream.trusted_root)
        done = self.by("host", "sign", *words, *root, "--data", at.data)
        assert done.returncode == 0, done.stderr

    def timers(self) -> None:
        """Record what the promoters see, as their daily ``check`` does, by the test's clock."""
        with mock.patch.dict(os.environ, XDG_STATE_HOME=str(self.at.data.parent / "state")):
            copy = copies.RepositoryFolder(self.at.signed)
            root = checking.first_root(copy)
            observe(checking.verify(copy, root), root, self.at.upstream.now)

    def _decide(self, answer: Mapping[str, Any]) -> None:
        """Let people read the feed's report, and do what it asks for."""
        at = self.at
        drafts = {filled(each["draft"]) for each in answer["left_out"] if each["draft"]}
        if drafts:
            why = "rules for new names"
            self.work.setdefault(why, Work()).times += 1
            self._count(why, "edit", len(drafts))
            at.adopt(sorted(drafts))
        if {*answer["stopped"]} - self.read:
            # They are one matter of the list.
            self.read |= {*answer["stopped"]}
            self.work.setdefault("stopped releases", Work()).times += 1
            self._count("stopped releases", "read")
        if answer["proposal"]:
            self.promote(answer["proposal"]["release"])

    def promote(self, tag: str) -> None:
        """Let a holder promote a release, and two sign it: three commands of people."""
        at = self.at
        words = ("promote", tag, "--to", "stable", "--data", at.data, "--on", at.stamp)
        first, second = self.present[:2]
        done = self.by(first, *words)
        if done.returncode:
            # The signer's time is enough; what this person has seen is still too young.
            assert "is too young" in done.stderr, done.stderr
            self._count("promotions", "promote")
            return
        self._count("promotions", "promote")
        self._ceremony("promotions", (first, "sign", "--raise"), second)
        self.present.append(self.present.pop(0))
        self._see_stable()
        version = {f"b{number}": version for version, (number, _) in STABLE.items()}[tag]
        assert self.served == version

    def _see_stable(self) -> None:
        targets = checking_targets(self.at)
        versions = [each["version"] for each in targets if "stable" in each["channels"]]
        self.served = f"v{max(versions)}" if versions else ""

    # --- losses ---------------------------------------------------------------------------

    def lose_a_holder(self, lost: str) -> None:
        """Let one of three holders lose the keys; the two others go on."""
        self._keys(lost).unlink()
        self.present.remove(lost)

    def replace_the_holder(self, lost: str, new: str) -> None:
        """Let the two others replace the lost keys by those of a new holder."""
        why, changes = "a lost signer", []
        for at, role in enumerate(("root", "targets")):
            name = f"{role}-4"
            self._new_signer(why, new, name)
            names = (each[at] for each in HOLDERS.values())
            old = HOLDERS[lost][at]
            changes.append(f"{role}={','.join(name if each == old else each for each in names)}")
        self._ceremony(why, (self.present[0], "rotate", *changes), self.present[1], new)
        self.present.insert(0, new)

    def steal_the_machine_s_keys(self) -> None:
        """Let a thief sign with both keys of the job.

        The thief serves an own release to a user who updates now, with versions that are far ahead
        of the publisher's. It is in nightly then; that is all the thief can do.
        """
        honest = self.at.files()
        wanted = [("b19999", ["nightly"], None), ("b19998", ["nightly", "stable"], None)]
        self.stolen = stolen(honest, *wanted, keys=MACHINE, jump=10**6)
        self.victim = self._client("victim")
        stable = self.victim.channels.get("stable")
        self.victim.refresh(self.stolen)
        assert self.victim.channels["nightly"][0] == "b19999"
        assert self.victim.channels.get("stable") == stable
        for tag in stable or ():
            assert self.victim.catalog.entry(tag).publisher == "ggml-org"
        with pytest.raises(TsukuError):
            self.victim.refresh(honest)  # it has lower versions now
        self.stolen_at = self.at.upstream.now

    def replace_the_machine_s_keys(self) -> None:
        """Let people replace both keys; then the thief reaches nobody, and the victim is well."""
        at, why = self.at, "a stolen online key"
        for name in ("online-2", "machine-2"):
            self._new_signer(why, "host", name)
        self._keys("host").unlink()
        first, second = self.present[:2]
        changes = ("online=online-2", "nightly=machine-2")
        self._ceremony(why, (first, "rotate", *changes), second)
        self.theft = at.upstream.now - self.stolen_at
        # What the thief had signed, and what the thief makes of the state of today.
        later = stolen(at.files(), ("b19997", ["nightly"], None), keys=MACHINE, jump=10**6)
        for client in (self.victim, self._client("careful")):
            client.refresh(at.files())
            assert client.channels["nightly"][0] == at.nightly[0]
            for state in (self.stolen, later):
                with pytest.raises(TsukuError):
                    client.refresh(state)
            assert not any(tag.startswith("b1999") for tag in client.channels["nightly"])
            self.clients.append(client)

    def _new_signer(self, why: str, holder: str, name: str) -> None:
        """Make a key, and write its public half into ``repository.toml``."""
        path = self._keys(holder).with_name(f"{name}.json")
        self.person(why, holder, "new-signer", name, path, "--unencrypted")
        public = json.loads(path.read_text("utf-8"))[name]["public"]
        self.at.edit("repository.toml", lambda document: document["keys"].update({name: public}))
        self._count(why, "edit")

    # --- users ----------------------------------------------------------------------------

    def _client(self, name: str) -> Client:
        return Client(self.at.data.parent / name, self.at, embedded=True)

    def join(self, name: str) -> None:
        """Let two users come with the package of today: one updates at the end, one in between."""
        self.clients.append(self._client(name))
        self.followers.append(self._client(f"{name}, who updates"))

    def update(self, clients: Collection[Client]) -> None:
        """Let users of earlier days update, who then have what a new one has."""
        new = Client(self.at.data.parent / f"new {self.at.stamp}", self.at)
        new.refresh(self.at.files())
        assert new.channels["nightly"][0] == self.at.nightly[0]
        for client in clients:
            assert client.channels != new.channels
            client.refresh(self.at.files())
            assert client.channels == new.channels

    # --- what must hold -------------------------------------------------------------------

    def _check(self) -> None:
        at, now = self.at, self.at.upstream.now
        self._check_signed()
        newest = max(int(tag[1:]) for tag in signed_nightly(at))
        # The next run may find a newer one; until then this is what users have.
        self.nightly_age = max(self.nightly_age, now + self.step - time_of(newest))
        waiting = [
            when for version, (_, when) in STABLE.items() if version > self.served and when <= now
        ]
        if waiting:
            since = min(waiting)
            lag = now + self.step - since
            gone = min(now + self.step, self.away[1]) - max(since, self.away[0])
            self.stable_lag = max(self.stable_lag, lag)
            with_people = lag - max(gone, timedelta())
            self.stable_lag_with_people = max(self.stable_lag_with_people, with_people)
        for role, days in LIFETIMES.items():
            age = now - parse_time(newest_metadata(at.signed, role)["issued"])
            assert age < timedelta(days=days), role

    def _check_signed(self) -> None:
        """Require that each signed release file was measured and attested."""
        at = self.at
        for path in (at.signed / "targets" / "releases").glob("*.json"):
            if path.name in self.signed:
                continue  # its name has its digest
            self.signed.add(path.name)
            document = json.loads(path.read_text("utf-8"))
            for platform in document["platforms"].values():
                for variant in platform["variants"].values():
                    for artifact in variant["artifacts"]:
                        assert artifact["files"], path
                        assert artifact["pieces"], path
            proofs = at.upstream.attested.get(document["release"])
            assert proofs not in ("forged", "no"), path
            assert "unattested" not in document, path

    # --- figures --------------------------------------------------------------------------

    def table(self) -> str:
        """Return the figures of these days as two tables in Markdown."""
        days = (self.at.upstream.now - self.began) / timedelta(days=1)
        measured = {
            "runs of the feed": f"{self.runs}",
            "release files signed": f"{len(self.signed)}",
            "oldest nightly": f"{self.nightly_age / timedelta(hours=1):.1f} hours",
            "stable behind upstream, most": f"{self.stable_lag / timedelta(days=1):.2f} days",
            "the same, without the days without people": (
                f"{self.stable_lag_with_people / timedelta(days=1):.2f} days"
            ),
            "a thief of the job's keys reached users of nightly for": (
                f"{self.theft / timedelta(hours=1):.0f} hours"
            ),
        }
        lines = [f"| {days:.0f} days | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in measured.items()]
        lines += ["", "| what people did | times | commands | minutes |", "|---|---|---|---|"]
        commands, minutes = 0, 0
        for why, work in self.work.items():
            told = ", ".join(f"{count} {kind}" for kind, count in work.commands.items())
            lines.append(f"| {why} | {work.times} | {told} | {work.minutes} |")
            commands += work.commands.total()
            minutes += work.minutes
        lines.append(f"| together | | {commands} | {minutes} |")
        lines.append(f"| in a week | | {commands / days * 7:.1f} | {minutes / days * 7:.0f} |")
        return "\n".join(lines)


def filled(draft: str) -> str:
    """Return a draft as a person adds it: one without a version gets that of upstream's notes."""
    if "VERSION" not in draft:
        return draft
    lines = (line.removeprefix("# ") for line in draft.splitlines()[2:])
    return "\n".join(lines).replace("VERSION", "7.2")


def newest_metadata(signed: Path, role: str) -> dict[str, Any]:
    """Return what the newest metadata of a role says, unverified."""
    paths = signed.glob(f"metadata/*{role}.json")
    newest = max(paths, key=lambda path: int("0" + path.name.partition(".")[0].strip(role)))
    found: dict[str, Any] = json.loads(newest.read_text("utf-8"))["signed"]
    return found


def signed_nightly(at: FeedPublisher) -> set[str]:
    """Return the releases that the channel's signer lists."""
    targets = newest_metadata(at.signed, "nightly")["targets"].values()
    return {each["custom"]["release"] for each in targets}


def checking_targets(at: FeedPublisher) -> list[dict[str, Any]]:
    """Return what is signed of each release, verified as a client would."""
    copy = copies.RepositoryFolder(at.signed)
    targets = checking.verify(copy, checking.first_root(copy)).targets.values()
    return [dict(each.custom) for each in targets]


def started(folder: Path, upstream: Upstream) -> FeedPublisher:
    """A publisher with a first build, whose nightly is signed by a machine from then on."""
    at = feed_publisher(folder, upstream)
    delegate(at)

    def last(document: Any) -> None:
        """Begin on the first day, and end late: the users' clock is the real one."""
        for role in document["roles"].values():
            role["days"] = 36500
            role["issued"] = at.upstream.now.date()

    at.edit("repository.toml", last)
    report = at.run()
    at.adopt(filled(each.draft) for each in report.left_out if each.draft)
    at.run()
    at.sign()
    return at
