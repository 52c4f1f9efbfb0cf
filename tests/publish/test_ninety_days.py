"""Weeks of upstream's builds against the feed, with the clock of the test.

Every six hours the feed runs, and signs nightly with a machine's key. People look once a day: they
read what the feed asks, add drafted rules, and promote the next stable after 72 hours. What they
had to do is counted. The online key is stolen and replaced, and users of earlier days update at the
end.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.feed_publisher import MACHINE, FeedPublisher, delegate, feed_publisher
from support.release_data import keys_of
from support.repository import signer
from support.teams import Client
from support.upstream_builds import day
from support.upstream_host import STABLE, Upstream, time_of
from tuf.api.metadata import Metadata, Timestamp

from tsuku_llm.errors import TsukuError
from tsuku_publish import checking, copies
from tsuku_publish.facts import Facts
from tsuku_publish.plan import load_plan
from tsuku_publish.sightings import observe

# Read when this module is imported: the tests remove our variables later.
WHOLE = os.environ.get("TSUKU_LLM_NINETY_DAYS") == "1"


class Days:
    """A span of simulated days, and what people did in it."""

    def __init__(
        self,
        at: FeedPublisher,
        away: tuple[datetime, datetime] | None = None,
        step: timedelta = timedelta(hours=6),
    ) -> None:
        self.at = at
        self.away = away
        self.step = step
        self.online = MACHINE[1]
        self.did: Counter[str] = Counter()
        self.oldest = timedelta()
        self.signed: set[str] = set()
        self.clients: list[Client] = []
        self.behind = timedelta()

    def live(self, until: datetime) -> None:
        at = self.at
        while at.upstream.now < until:
            answer = at.feed(signers=(MACHINE[0], self.online))
            assert answer["unsigned"] is None
            self.check()
            here = not self.away or not self.away[0] <= at.upstream.now < self.away[1]
            if at.upstream.now.hour == 12 and here:
                self.decide(answer)
            at.upstream.pass_time(seconds=self.step.total_seconds())

    def decide(self, answer: Mapping[str, Any]) -> None:
        """What people do with the lines that the feed shows them."""
        at, now = self.at, self.at.upstream.now
        with mock.patch.dict(os.environ, XDG_STATE_HOME=str(at.data.parent / "state")):
            # As ``check`` does each day, with the clock of the test.
            copy = copies.RepositoryFolder(at.signed)
            root = checking.first_root(copy)
            observe(checking.verify(copy, root), root, now)
        drafts = [each["draft"] for each in answer["left_out"] if each["draft"]]
        if drafts:
            self.did["drafted rules read and added"] += len(drafts)
            self.did["edits of rules.toml"] += 1
            at.adopt(drafts)
        if answer["proposal"]:
            tag = answer["proposal"]["release"]
            done = at.tool("promote", tag, "--to", "stable", "--on", at.stamp)
            if done.returncode:
                # The signer's time is enough; what people saw is still too young.
                assert "is too young" in done.stderr, done.stderr
                self.did["promotions that had to wait"] += 1
                return
            at.sign("--raise")
            self.did["stable releases signed"] += 1
            version = "v" + answer["proposal"]["version"].removeprefix("v")
            self.behind = max(self.behind, now - STABLE[version][1])

    def join(self, home: Path) -> None:
        """A user comes, who does not update before the end."""
        client = Client(home, self.at)
        client.refresh(self.at.files())
        self.clients.append(client)

    def lose_the_online_key(self) -> None:
        """A thief signs a state with a huge version; people replace the key."""
        at, old = self.at, self.online
        files = at.files()
        timestamp = Metadata[Timestamp].from_bytes(files["metadata/timestamp.json"])
        timestamp.signed.version = 10**6
        timestamp.sign(signer(old))
        stolen = {**files, "metadata/timestamp.json": timestamp.to_bytes()}
        # Users who update now see it: nothing can tell it from the publisher's own.
        for client in self.clients:
            client.refresh(stolen)
        self.online = "online-2"
        keys = keys_of(self.online)
        at.edit("repository.toml", lambda document: document["keys"].update(keys))
        at.sign(f"online={self.online}", command="rotate")
        self.did["keys replaced"] += 1
        # From now on the thief's state is refused by those who know the next root.
        user = Client(at.data.parent / "careful", at)
        user.refresh(at.files())
        with pytest.raises(TsukuError):
            user.refresh({**at.files(), "metadata/timestamp.json": timestamp.to_bytes()})

    def update(self) -> None:
        """Every user of an earlier day updates, and has what a new one has."""
        newest = Client(self.at.data.parent / "new", self.at)
        newest.refresh(self.at.files())
        assert newest.channels["nightly"][0] == self.at.nightly[0]
        for client in self.clients:
            assert client.channels != newest.channels
            client.refresh(self.at.files())
            assert client.channels == newest.channels

    def check(self) -> None:
        """What must hold after each run."""
        at = self.at
        newest = max(time_of(int(tag[1:])) for tag in at.nightly)
        self.oldest = max(self.oldest, at.upstream.now + self.step - newest)
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
            bare = at.upstream.attested.get(document["release"]) == "no"
            assert ("unattested" in document) == bare, path


def started(tmp_path: Path, upstream: Upstream) -> FeedPublisher:
    """A publisher with a first build, whose nightly is signed by a machine from then on."""
    at = feed_publisher(tmp_path, upstream)
    delegate(at)

    def last(document: Any) -> None:
        """Begin on the first day, and end late: the users' clock is the real one."""
        for role in document["roles"].values():
            role["days"] = 36500
            role["issued"] = at.upstream.now.date()

    at.edit("repository.toml", last)
    report = at.run()
    at.adopt(each.draft for each in report.left_out if each.draft)
    at.run()
    at.sign()
    return at


def test_four_days_around_a_new_rocm_with_a_stolen_key(tmp_path: Path) -> None:
    """ROCm 10.0 comes on 3 September, v0.3.0 becomes stable: a sample of the ninety days below."""
    with Upstream(day(9, 2, 12), tmp_path / "upstream", every=8, limit=5000) as upstream:
        # Of fewer builds the first list goes back to v0.3.0, on 25 August.
        at = started(tmp_path, upstream)
        upstream.every = 4
        days = Days(at, step=timedelta(hours=12))
        days.join(tmp_path / "day 0")
        tags = upstream.tags()
        upstream.pass_time(hours=12)
        (new, *_) = [tag for tag in upstream.tags() if tag not in tags]
        upstream.uploading[new] = upstream.now + timedelta(hours=5)
        days.live(day(9, 4, 0))
        assert days.oldest <= timedelta(hours=24)
        days.join(tmp_path / "day 1")
        days.lose_the_online_key()
        upstream.pass_time(hours=12)
        days.join(tmp_path / "day 2")
        # Only the noons, at which people are there.
        days.step = timedelta(hours=24)
        days.live(day(9, 6, 13))
        days.update()
        assert days.did["drafted rules read and added"] == 2
        assert days.did["edits of rules.toml"] == 1
        assert days.did["stable releases signed"] == 1
        assert load_plan(at.data).promoted[0].release == "b10621"
        variants = at.documents()[at.nightly[0]]["platforms"]["linux-amd64"]["variants"]
        assert variants["rocm-10.0"]["requires"]["rocm"]["gfx"][0] == "gfx908"
        assert len(days.signed) >= 6


@pytest.mark.slow
@pytest.mark.skipif(not WHOLE, reason="a quarter of an hour: TSUKU_LLM_NINETY_DAYS=1 asks for it")
def test_ninety_days_with_the_nine_changes(tmp_path: Path) -> None:
    """From 9 August to 7 November, with faults and a week without people.

    Five builds a day, not eighteen: each asset of each listed build is packed for its digest.
    """
    with Upstream(day(8, 9), tmp_path / "upstream", every=4, limit=5000) as upstream:
        at = started(tmp_path, upstream)
        days = Days(at, away=(day(9, 12), day(9, 19)))
        for number in range(10340, 12100, 4):
            tag = f"b{number}"
            if number % 100 == 40:
                upstream.uploading[tag] = time_of(number) + timedelta(hours=9)
            if number % 100 == 80:
                upstream.missing[tag] = ("win-", "vulkan", "macos")  # seven assets, for ever
            if number % 200 == 120:
                upstream.attested[tag] = "no"
            if number % 300 == 160:
                upstream.attested[tag] = "forged"
            if number % 100 == 60:
                upstream.attested[tag] = "late"
        days.join(tmp_path / "day 0")
        days.live(day(9, 8))
        days.join(tmp_path / "day 30")
        days.lose_the_online_key()
        days.live(day(10, 8))
        days.join(tmp_path / "day 60")
        days.live(day(11, 7))
        days.update()
        figures = {**days.did, "behind": days.behind / timedelta(days=1)}
        figures |= {"hours": days.oldest / timedelta(hours=1), "files": len(days.signed)}
        (tmp_path / "figures.json").write_text(json.dumps(figures), "utf-8")
        assert days.oldest <= timedelta(hours=24)
        recorded = Facts(at.data / "facts")
        assert {*recorded.versions} == {*STABLE}
        assert not any(
            each.left_out for each in recorded.releases().values() if each.tag == at.nightly[0]
        )
        assert days.did["stable releases signed"] >= len(STABLE) - 1
        assert days.did["edits of rules.toml"] <= 8
        # v0.4.0 comes in the days without people; the others wait 72 hours and a person's noon.
        assert days.behind <= timedelta(days=14)
