"""Ninety days of upstream's builds against the feed, with the clock of the test; and a sample.

Every six hours the feed runs, and signs nightly with a machine's key. People look once a day: they
read what the feed asks, add drafted rules, and promote the next stable release. What they do is
counted. Keys are stolen and lost and replaced, and users of earlier days update.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.publisher_days import Days, started
from support.upstream_builds import day
from support.upstream_host import STABLE, Upstream, time_of

from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.upstream.facts import Facts

WHOLE = os.environ.get("TSUKU_LLM_NINETY_DAYS") == "1"


def test_four_days_around_a_new_rocm_with_a_stolen_key(tmp_path: Path) -> None:
    """ROCm 10.0 comes on 3 September, v0.3.0 becomes stable: a sample of the ninety days below."""
    with Upstream(day(9, 2, 12), tmp_path / "upstream", every=8, limit=5000) as upstream:
        at = started(tmp_path, upstream)
        upstream.every = 4
        days = Days(at, step=timedelta(hours=12))
        days.join("day 0")
        tags = upstream.tags()
        upstream.pass_time(hours=12)
        (new, *_) = [tag for tag in upstream.tags() if tag not in tags]
        upstream.uploading[new] = upstream.now + timedelta(hours=5)
        days.live(day(9, 4, 0))
        # ROCm 10.0 waits for a person's rule, and nightly with it: until noon, and the next run.
        # That is twelve hours later here, and six in the ninety days, where 24 hours are kept.
        assert days.nightly_age <= timedelta(hours=24 + 12)
        days.join("day 2")
        days.steal_the_machine_s_keys()
        days.live(day(9, 4, 12))
        days.replace_the_machine_s_keys()
        days.lose_a_holder("anna")
        # Only the noons, at which people are there.
        days.step = timedelta(hours=24)
        days.live(day(9, 6, 13))
        days.replace_the_holder("anna", "dana")
        days.update([*days.clients, *days.followers])
        assert days.work["rules for new names"].commands == {"edit": 2}
        assert days.work["promotions"].times == 1
        assert days.work["promotions"].commands["sign"] == 3
        assert days.work["a lost signer"].commands == {
            "new-signer": 2,
            "edit": 2,
            "rotate": 1,
            "sign": 3,
        }
        assert days.work["a stolen online key"].minutes == 40
        assert days.theft == timedelta(hours=12)
        assert load_plan(at.data).promoted[0].release == "b10621"
        variants = at.documents()[at.nightly[0]]["platforms"]["linux-amd64"]["variants"]
        assert variants["rocm-10.0"]["requires"]["rocm"]["gfx"][0] == "gfx908"
        assert len(days.signed) >= 6
        assert "| a lost signer | 1 | 2 new-signer, 2 edit, 1 rotate, 3 sign | 45 |" in days.table()


@pytest.mark.slow
@pytest.mark.skipif(not WHOLE, reason="many minutes: TSUKU_LLM_NINETY_DAYS=1 asks for it")
def test_ninety_days_with_the_nine_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 9 August to 7 November at upstream's pace, with faults and a week without people."""
    with Upstream(day(8, 9), tmp_path / "upstream", limit=5000) as upstream:
        at = started(tmp_path, upstream)
        days = Days(at, away=(day(9, 12), day(9, 19)))
        for number in range(10340, 12200):
            tag, when = f"b{number}", time_of(number)
            if number % 10 == 4:
                upstream.uploading[tag] = when + timedelta(hours=9)
            if number % 10 == 8:
                upstream.missing[tag] = ("win-", "vulkan", "macos")  # seven assets, for ever
            if number % 10 == 6:
                upstream.attested[tag] = "late"
            if number % 20 == 12 or day(10, 25) <= when < day(10, 26):
                upstream.attested[tag] = "no"
            if number % 30 == 17 or day(10, 27, 22) <= when < day(10, 28, 13):
                upstream.attested[tag] = "forged"
        days.join("day 0")
        days.live(day(8, 24))
        days.update(days.followers)
        days.live(day(9, 8))
        days.join("day 30")
        days.steal_the_machine_s_keys()
        days.live(day(9, 8, 12))
        days.replace_the_machine_s_keys()
        days.live(day(9, 23))
        days.update(days.followers)
        days.live(day(10, 8))
        days.join("day 60")
        days.live(day(10, 20))
        days.lose_a_holder("chris")
        days.live(day(10, 24, 12))
        days.replace_the_holder("chris", "dana")
        days.update(days.followers)
        days.live(day(10, 25))
        # On a day in October nothing is attested, and the machine signs nothing of it.
        assert days.apart(day(10, 27)) <= timedelta(hours=24 + 12)
        days.live(day(11, 7))
        days.update([*days.clients, *days.followers])
        with capsys.disabled():
            sys.stdout.write(f"\n{days.table()}\n")
        assert days.nightly_age <= timedelta(hours=24)
        # From the day on which upstream publishes a version to the day on which users get it:
        # 72 hours in nightly, and a noon with people.
        assert days.stable_lag_with_people <= timedelta(days=7)
        assert days.stable_lag <= timedelta(days=7 + 7)
        assert days.served == max(STABLE)
        recorded = Facts(at.data / "facts")
        assert {*recorded.versions} == {*STABLE}
        # Every name of the newest build is known by now.
        assert not recorded.releases()[at.nightly[0]].left_out
        assert days.work["promotions"].times == len(STABLE)
        # A change of names or shapes is one visit of a person, and nine came; the first rules were
        # written before the first day.
        assert days.work["rules for new names"].times <= 9
        # Half a day with wrong attestations came in October, too.
        assert days.work["stopped releases"].times
        assert days.theft == timedelta(hours=12)
        assert load_plan(at.data).roles["root"].signers == ("root-1", "root-2", "root-4")
