"""Weeks of upstream's builds against the feed, with the clock of the test.

Every six hours the feed runs and a machine signs nightly. People look once a day: they read what
the feed asks, add drafted rules, and sign the next stable. What they had to do is counted.
"""

import json
import os
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.feed_publisher import MACHINE, FeedPublisher, delegate, feed_publisher
from support.upstream_builds import day
from support.upstream_host import STABLE, Upstream, time_of

from tsuku_publish.facts import Facts

STEP = timedelta(hours=6)
# Read when this module is imported: the tests remove our variables later.
WHOLE = os.environ.get("TSUKU_LLM_NINETY_DAYS") == "1"


class Days:
    """A span of simulated days, and what people did in it."""

    def __init__(self, at: FeedPublisher, away: tuple[datetime, datetime] | None = None) -> None:
        self.at = at
        self.away = away
        self.did: Counter[str] = Counter()
        self.oldest = timedelta()
        self.signed: set[str] = set()
        self.stable_behind = timedelta()

    def live(self, until: datetime) -> None:
        at = self.at
        while at.upstream.now < until:
            report = at.run()
            if report.changed:
                at.sign("--channel", "nightly", signers=MACHINE)
            self.check()
            here = not self.away or not self.away[0] <= at.upstream.now < self.away[1]
            if at.upstream.now.hour == 12 and here:
                self.decide(report)
            at.upstream.pass_time(seconds=STEP.total_seconds())

    def decide(self, report: Any) -> None:
        """What people do with the lines that the feed shows them."""
        drafts = [each.draft for each in report.left_out if each.draft]
        if drafts:
            self.did["drafted rules read and added"] += len(drafts)
            self.did["edits of rules.toml"] += 1
            self.at.adopt(drafts)
        if report.proposal:
            tag = report.proposal.release

            def promote(document: Any) -> None:
                document["channels"]["stable"] = [tag]

            self.at.edit("repository.toml", promote)
            self.at.sign("--raise")
            self.did["stable releases signed"] += 1

    def check(self) -> None:
        """What must hold after each run."""
        at = self.at
        newest = max(time_of(int(tag[1:])) for tag in at.nightly)
        self.oldest = max(self.oldest, at.upstream.now + STEP - newest)
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
    report = at.run()
    at.adopt(each.draft for each in report.left_out if each.draft)
    at.run()
    at.sign()
    return at


def test_two_days_around_a_new_rocm(tmp_path: Path) -> None:
    """ROCm 10.0 comes on 3 September: a sample of the ninety days below."""
    with Upstream(day(9, 2, 12), tmp_path / "upstream", every=4, limit=5000) as upstream:
        at = started(tmp_path, upstream)
        days = Days(at)
        tags = upstream.tags()
        upstream.pass_time(hours=6)
        (new, *_) = [tag for tag in upstream.tags() if tag not in tags]
        upstream.uploading[new] = upstream.now + timedelta(hours=5)
        days.live(day(9, 4, 0))
        assert days.oldest <= timedelta(hours=24)
        assert days.did["drafted rules read and added"] == 2
        assert days.did["edits of rules.toml"] == 1
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
        days.live(day(11, 7))
        figures = {**days.did, "hours": days.oldest / timedelta(hours=1), "files": len(days.signed)}
        (tmp_path / "figures.json").write_text(json.dumps(figures), "utf-8")
        assert days.oldest <= timedelta(hours=24)
        recorded = Facts(at.data / "facts")
        assert {*recorded.versions} == {*STABLE}
        assert not any(
            each.left_out for each in recorded.releases().values() if each.tag == at.nightly[0]
        )
        assert days.did["stable releases signed"] >= len(STABLE) - 1
        assert days.did["edits of rules.toml"] <= 8
