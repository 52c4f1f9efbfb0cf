"""The settings that keep a user at a release: ``llm.release`` and ``llm.min_age``."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.folder_shop import NOW, FolderShop, Notes
from support.repository import release_document

from tsuku_llm.ground.errors import Revoked, SelectionError, UnknownRequest
from tsuku_llm.steps.choosing.passing_over import age
from tsuku_llm.steps.install.install import InstallReport, install
from tsuku_llm.steps.install.update import check_update, update
from tsuku_llm.steps.metadata.update_notice import Offer, may_be_told
from tsuku_llm.steps.report.explain import explain
from tsuku_llm.steps.session import Session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

CHOSEN = frozenset({"release"})


class Shop(FolderShop):
    """A shop whose releases came out some days ago."""

    def release(
        self, tag: str, days: int = 100, channel: str = "stable", *, revoked: bool = False
    ) -> None:
        """Publish a release that came out some days ago, with two builds for the processor."""
        variants = {name: self.variant(self.packed(f"{tag}-{name}")) for name in ("cpu", "other")}
        platform = {
            "default": "cpu",
            "preference": {"portable": ["cpu"], "native": ["cpu"]},
            "variants": variants,
        }
        published = f"{NOW - timedelta(days=days):%Y-%m-%d}"
        document = release_document(
            tag, platforms={"linux-amd64": platform}, published=published, revoked=revoked
        )
        self.simulator.publish(document, channels=(channel,))
        self.write()

    def own(self, home: Path, **changes: Any) -> Session:
        """The session of a user whose settings say this, and who always has newer metadata."""
        if "release" in changes:
            changes["chosen"] = CHOSEN
        return self.session(home, refresh="always", **changes)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop")
    shop.release("b1", 100)
    shop.release("b2", 50)
    return shop


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def notes(session: Session) -> Notes:
    note = session.user.note
    assert isinstance(note, Notes)
    return note


def active(session: Session) -> str:
    found = session.reader.active()
    assert found
    return found.receipt.release


# --- a release that is named -----------------------------------------------------------------


def test_the_named_release_is_installed_and_updates_stay_there(shop: Shop, home: Path) -> None:
    session = shop.own(home, release="b1")
    assert explain(session).release.release == "b1"
    report = install(session)
    assert (report.choice.release.release, report.choice.kept_by) == ("b1", "llm.release")
    told = "b2 is there, and llm.release keeps b1; to take the newest release: "
    assert f"{told}tsuku-llm config unset llm.release" in notes(session)
    assert check_update(session).newer is False
    update(session)
    assert active(session) == "b1"


def test_an_update_goes_forward_to_the_named_release_and_never_back(shop: Shop, home: Path) -> None:
    install(shop.own(home), release="b1")
    shop.release("b3", 1)
    update(shop.own(home, release="b2"))
    assert active(shop.own(home)) == "b2"
    update(shop.own(home, release="b1"))
    assert active(shop.own(home)) == "b2"
    install(shop.own(home, release="b1"))
    assert active(shop.own(home)) == "b1", "an install is asked for"


def test_the_flag_comes_before_the_setting(shop: Shop, home: Path) -> None:
    session = shop.own(home, release="b1")
    assert install(session, release="b2").choice.kept_by is None
    assert explain(session, release="b2").release.release == "b2"


@pytest.mark.parametrize("variable", [None, "TSUKU_LLM_RELEASE"])
def test_a_named_release_that_is_gone_is_refused_with_the_way_out(
    shop: Shop, home: Path, variable: str | None
) -> None:
    session = shop.own(home, release="b9")
    if variable:
        machine = session.machine._replace(environ={variable: "b9"})
        session = session._replace(machine=machine)
    with pytest.raises(UnknownRequest) as caught:
        install(session)
    way = f"unset {variable}" if variable else "tsuku-llm config unset llm.release"
    assert caught.value.hint == f"llm.release names it; to take the newest release: {way}"


def test_a_named_release_that_was_revoked_is_not_taken(shop: Shop, home: Path) -> None:
    install(shop.own(home), release="b1")
    shop.release("b2", 50, revoked=True)
    for take in (install, update):
        with pytest.raises(Revoked):
            take(shop.own(home, release="b2"))


# --- a hold ----------------------------------------------------------------------------------


def test_a_hold_keeps_install_and_update_at_the_installed_release(shop: Shop, home: Path) -> None:
    install(shop.own(home), release="b1")
    session = shop.own(home, hold=True)
    for _ in range(2):
        assert check_update(session).newer is False
        update(session)
        assert install(session).outcome == "unchanged"
    assert active(session) == "b1"
    told = "b2 is there, and llm.release keeps b1; to take the newest release: "
    assert f"{told}tsuku-llm config unset llm.release" in notes(session)


def test_under_a_hold_another_variant_of_the_same_release_is_installed(
    shop: Shop, home: Path
) -> None:
    install(shop.own(home), release="b1")
    report = install(shop.own(home, hold=True, backend="other"))
    assert report.installed
    assert (report.installed.receipt.release, report.candidate.variant.name) == ("b1", "other")


def test_a_hold_keeps_channel_and_repository_without_settings_for_them(
    shop: Shop, home: Path
) -> None:
    shop.release("b7", 3, channel="nightly")
    install(shop.own(home), release="b7")
    report = install(shop.own(home, hold=True, repository=None, channel="stable"))
    assert report.installed
    receipt = report.installed.receipt
    assert (receipt.release, receipt.channel, receipt.repository) == ("b7", "nightly", "test")


def test_a_flag_for_another_channel_is_told_that_the_hold_outranks_it(
    shop: Shop, home: Path
) -> None:
    shop.release("b7", 3, channel="nightly")
    install(shop.own(home), release="b1")
    flag = frozenset({"channel"})
    told = "--channel nightly changes nothing: llm.release keeps b1 of the channel stable; "
    for channel, flags, is_told in (
        ("nightly", flag, True),
        ("nightly", frozenset(), False),
        ("stable", flag, False),
    ):
        session = shop.own(home, hold=True, channel=channel, flags=flags)
        assert install(session).choice.release.release == "b1"
        assert any(note.startswith(told) for note in notes(session)) == is_told


def test_a_hold_without_anything_installed_holds_nothing(shop: Shop, home: Path) -> None:
    assert install(shop.own(home, hold=True)).choice.release.release == "b2"


def test_a_hold_does_not_stop_the_repair_of_a_damaged_pointer(shop: Shop, home: Path) -> None:
    install(shop.own(home), release="b1")
    (home / "llm" / "active.json").write_text("{")
    session = shop.own(home, hold=True, min_age=1)
    install(session)
    assert active(session) == "b2"
    assert any(note.startswith("llm.release holds nothing: ") for note in notes(session))


def test_a_flag_or_a_named_release_ends_a_hold(shop: Shop, home: Path) -> None:
    install(shop.own(home), release="b1")
    assert explain(shop.own(home, hold=True), release="b2").release.release == "b2"
    assert explain(shop.own(home, hold=True, release="b2")).release.release == "b2"


def test_a_hold_does_not_hide_that_the_release_was_revoked(shop: Shop, home: Path) -> None:
    install(shop.own(home), release="b1")
    shop.release("b1", 100, revoked=True)
    with pytest.raises(Revoked) as caught:
        update(shop.own(home, hold=True))
    assert caught.value.hint == (
        "take b2, the newest that is not revoked: tsuku-llm install --release b2 --repository test"
    )
    with pytest.raises(Revoked):
        install(shop.own(home, hold=True))
    install(shop.own(home, hold=True), release="b2")
    assert active(shop.own(home)) == "b2"


# --- an age ----------------------------------------------------------------------------------


def test_a_release_is_taken_when_it_has_been_out_long_enough(shop: Shop, home: Path) -> None:
    shop.release("b3", 6)
    session = shop.own(home, min_age=7)
    report = install(session)
    left = [(each.release, each.slug) for each in report.choice.passed_over]
    assert (report.choice.release.release, left) == ("b2", [("b3", "young")])
    assert any(
        note.startswith("b3 was published 2026-11-15, and llm.min_age is 7; it is skipped")
        for note in notes(session)
    )
    assert check_update(session).newer is False
    later = shop.own(home, min_age=7, now=NOW + timedelta(days=1))
    done = update(later)
    assert isinstance(done, InstallReport)
    assert active(later) == "b3"


def test_the_installed_release_is_never_too_young(shop: Shop, home: Path) -> None:
    shop.release("b3", 1)
    install(shop.own(home))
    report = install(shop.own(home, min_age=30))
    assert (report.outcome, report.choice.release.release) == ("unchanged", "b3")


def test_a_release_that_is_named_may_be_young(shop: Shop, home: Path) -> None:
    shop.release("b3", 0)
    assert explain(shop.own(home, min_age=30), release="b3").release.release == "b3"
    assert explain(shop.own(home, min_age=30, release="b3")).release.release == "b3"


def test_if_every_release_is_too_young_the_newest_is_named(shop: Shop, home: Path) -> None:
    shop.release("b3", 1)
    with pytest.raises(SelectionError) as caught:
        install(shop.own(home, min_age=101))
    assert caught.value.facts[0] == "b3: published 2026-11-20, and llm.min_age is 101"
    assert len(caught.value.facts) == 3
    way = "tsuku-llm install --release b3 --repository test"
    assert caught.value.hint == f"to take the newest: {way}"
    install(shop.own(home, min_age=101), release="b3")


def test_a_revoked_release_names_the_young_one_that_mends_it(shop: Shop, home: Path) -> None:
    install(shop.own(home), release="b2")
    shop.release("b3", 1)
    shop.release("b2", 50, revoked=True)
    with pytest.raises(Revoked) as caught:
        update(shop.own(home, min_age=7))
    assert "tsuku-llm install --release b3 " in str(caught.value.hint)


@pytest.mark.parametrize(
    ("published", "now", "days"),
    [
        ("2026-11-21", datetime(2026, 11, 21, 23, 59, tzinfo=timezone.utc), 0),
        ("2026-11-21", datetime(2026, 11, 22, tzinfo=timezone.utc), 1),
        ("2028-02-28", datetime(2028, 3, 1, 12, tzinfo=timezone.utc), 2),
        ("2027-01-01", NOW, -41),
        ("2026-02-30", NOW, -1),
    ],
)
def test_an_age_is_in_whole_days(published: str, now: datetime, days: int) -> None:
    assert age(published, now) == days


@given(st.dates(min_value=NOW.date().replace(year=2000)), st.integers(0, 99_999))
def test_a_day_later_every_release_is_a_day_older(published: Any, later: int) -> None:
    before = age(published.isoformat(), NOW)
    assert age(published.isoformat(), NOW + timedelta(days=later)) == before + later


# --- the note of the daily look --------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, True),
        ({"hold": True}, False),
        ({"release": "b1"}, False),
        ({"release": "b2"}, True),
        ({"release": "v0.2.0"}, True),
    ],
)
def test_a_start_offers_no_update_that_a_setting_keeps_away(
    shop: Shop, home: Path, settings: dict[str, Any], *, told: bool
) -> None:
    session = shop.own(home, **settings)
    assert may_be_told(session.settings, "b1-cpu-0123456789ab", Offer("b2", "0.2.0")) is told
