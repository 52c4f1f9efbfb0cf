"""How old metadata is, what is noted of it for a start, and what a clock that is wrong does."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.folder_shop import NOW, FolderShop
from support.release_server import NAME
from support.repository import ISSUED, release_document

from tsuku_llm.catalog import embedded, metadata_status, repositories
from tsuku_llm.catalog.metadata_status import SKEW, Freshness, MetadataStatus
from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.ground.errors import ClockBehind, HttpStatusError, MetadataError, StaleMetadata
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.metadata.update_notice import Offer, keep_offer, kept_offer

DAY = timedelta(days=1)
SIGNED = datetime(2026, 11, 20, tzinfo=timezone.utc)
FRESH = Freshness("official", SIGNED, SIGNED + 30 * DAY)
PAST = datetime(2020, 1, 1, tzinfo=timezone.utc)

# --- dates ------------------------------------------------------------------------------


def test_fresh_metadata_gives_no_warning() -> None:
    for now in (SIGNED - SKEW, SIGNED, SIGNED + 29 * DAY):
        assert FRESH.warning(now) is None
        FRESH.require(now)


def test_M18_the_warning_tells_the_age_of_expired_metadata() -> None:
    warning = FRESH.warning(SIGNED + 45 * DAY)
    assert warning
    assert "signed on 2026-11-20 (45 days ago) and expired on 2026-12-20" in warning
    assert warning.endswith("tsuku-llm repository refresh official")
    with pytest.raises(StaleMetadata) as caught:
        FRESH.require(SIGNED + 45 * DAY)
    assert "45 days ago" in caught.value.facts[0]
    assert caught.value.exit_code == 5


def test_M20_a_clock_before_the_signatures_is_named() -> None:
    now = SIGNED - SKEW - timedelta(seconds=1)
    assert "clock says 2026-11-18" in str(FRESH.warning(now))
    with pytest.raises(ClockBehind, match="clock") as caught:
        FRESH.require(now)
    assert "set this machine's clock" in caught.value.hint


def test_metadata_without_a_date_says_when_it_expires() -> None:
    undated = Freshness("official", None, SIGNED)
    assert undated.clock_problem(PAST) is None
    assert "of unknown age, valid until 2026-11-20" in str(undated.warning(SIGNED))


@given(st.datetimes(timezones=st.just(timezone.utc)))
def test_at_any_time_metadata_is_fresh_or_has_one_fault(now: datetime) -> None:
    faulty = FRESH.warning(now) is not None
    assert faulty == (not SIGNED - SKEW <= now < FRESH.expires)
    if faulty:
        with pytest.raises(MetadataError):
            FRESH.require(now)


# --- what is noted for a start -------------------------------------------------------------

REVOKED = (Revocation(NAME, "b1", "it leaks", "2026-11-20"), Revocation(NAME, "b2"))
NOTED = MetadataStatus(Freshness(NAME, SIGNED, SIGNED + 30 * DAY), REVOKED, ("b3",))


def current(data: Path, name: str = "0" * 16) -> Path:
    folder = metadata_status.folder_of(data, NAME)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "current").write_text(name)
    return folder / "standing.json"


def test_a_written_note_is_read_back(tmp_path: Path) -> None:
    current(tmp_path)
    metadata_status.write(tmp_path, NOTED)
    assert metadata_status.read(tmp_path, NAME) == NOTED


def test_an_unchanged_note_is_not_written_again(tmp_path: Path) -> None:
    file = current(tmp_path)
    metadata_status.write(tmp_path, NOTED)
    before = file.stat().st_ino
    metadata_status.write(tmp_path, NOTED)
    assert file.stat().st_ino == before


def test_another_updated_copy_invalidates_the_note(tmp_path: Path) -> None:
    current(tmp_path)
    metadata_status.write(tmp_path, NOTED)
    current(tmp_path, "1" * 16)
    assert metadata_status.read(tmp_path, NAME) is None


def test_another_embedded_copy_invalidates_the_note(tmp_path: Path) -> None:
    """An upgraded package may know of a revocation that the note was made without."""
    official = MetadataStatus(FRESH, (), ())
    metadata_status.write(tmp_path, official)
    assert metadata_status.read(tmp_path, embedded.REPOSITORY) == official
    file = metadata_status.folder_of(tmp_path, embedded.REPOSITORY) / "standing.json"
    document = json.loads(file.read_text())
    document["of"]["embedded"] = document["of"]["embedded"].replace("2026", "2025")
    file.write_text(json.dumps(document))
    assert metadata_status.read(tmp_path, embedded.REPOSITORY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"\0" * 100,
        lambda _: b"null",
        lambda _: b"[]",
        lambda data: data.replace(b'"format": 2', b'"format": 1'),
        lambda data: data.replace(b"2026-12-20T", b"soon"),
        lambda data: data.replace(b'"revoked": [', b'"revoked": 5, "x": ['),
        lambda data: data[:-10],
        lambda _: b"[" * 100_000,
    ],
)
def test_C10_a_damaged_note_is_ignored(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = current(tmp_path)
    metadata_status.write(tmp_path, NOTED)
    changed = damage(file.read_bytes())
    assert changed != file.read_bytes()
    file.write_bytes(changed)
    assert metadata_status.read(tmp_path, NAME) is None


def test_a_catalog_lists_the_revoked_releases(tmp_path: Path) -> None:
    shop = FolderShop(tmp_path / "shop")
    shop.simulator.publish(release_document("b1", revoked=True), release_document("b2"))
    shop.write()
    found = load_catalog(shop.session(tmp_path / "home"))
    revoked = Revocation(NAME, "b1", builds=(("0" * 64,),))
    assert found.metadata_status() == MetadataStatus(found.freshness, (revoked,), ("b2", "b1"))
    assert metadata_status.read(tmp_path / "home" / "llm", NAME) == found.metadata_status()


# --- refreshing -----------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    shop = FolderShop(tmp_path / "shop")
    shop.simulator.publish(release_document("b1"))
    shop.write()
    return shop


def test_M20_a_refresh_names_a_clock_that_was_set_back(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home", now=ISSUED - 2 * DAY)
    with pytest.raises(ClockBehind, match="clock says 2026-11-18"):
        refresh(session)
    assert refresh(shop.session(tmp_path / "home", now=NOW)).entries


def test_M20_a_refusal_blames_a_clock_that_was_set_back(shop: FolderShop, tmp_path: Path) -> None:
    """Not the metadata is to blame, and not the publisher."""
    session = shop.session(tmp_path / "home", now=ISSUED - 2 * DAY)
    shop.simulator.expire("timestamp", PAST)
    shop.write()
    with pytest.raises(ClockBehind):
        refresh(session)


def test_M20_an_old_date_on_a_new_signature_does_not_blame_the_clock(
    shop: FolderShop, tmp_path: Path
) -> None:
    refresh(shop.session(tmp_path / "home"))
    shop.simulator.timestamp.unrecognized_fields["issued"] = "2200-01-01T00:00:00Z"
    shop.simulator.bump()
    shop.write()
    with pytest.raises(ClockBehind):
        refresh(shop.session(tmp_path / "home"))


def test_M20_a_future_date_by_a_stolen_signer_ends_with_a_rotation(
    shop: FolderShop, tmp_path: Path
) -> None:
    """The date is in what is kept, and must not keep the cure away."""
    session = shop.session(tmp_path / "home")
    simulator = shop.simulator
    issued = dict(simulator.timestamp.unrecognized_fields)
    simulator.timestamp.unrecognized_fields["issued"] = "2200-01-01T00:00:00Z"
    simulator.bump()
    shop.write()
    with pytest.raises(ClockBehind):
        refresh(session)
    simulator.timestamp.unrecognized_fields = issued
    simulator.rotate("timestamp", "snapshot")
    shop.write()
    assert refresh(session).freshness.signed == ISSUED


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_M18_a_refresh_tells_the_age_of_what_has_expired(
    shop: FolderShop, tmp_path: Path, role: str
) -> None:
    session = shop.session(tmp_path / "home")
    shop.simulator.expire(role, PAST)
    shop.write()
    with pytest.raises(StaleMetadata) as caught:
        refresh(session)
    (fact,) = [fact for fact in caught.value.facts if fact.startswith(f"{role} ")]
    assert "signed on 2026-11-20" in fact
    assert "expired on 2020-01-01" in fact
    assert "days ago" in fact
    assert load_catalog(session).releases("stable"), "what is trusted already stays"


def test_M18_a_frozen_timestamp_tells_its_age_at_every_refresh(
    shop: FolderShop, tmp_path: Path
) -> None:
    session = shop.session(tmp_path / "home")
    shop.simulator.expire("timestamp", PAST)
    shop.write()
    for _ in range(2):
        with pytest.raises(StaleMetadata) as caught:
            refresh(session)
        assert any(fact.startswith("timestamp 3: ") for fact in caught.value.facts)


def test_a_refresh_writes_the_note(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    shop.simulator.publish(release_document("b1", revoked=True))
    shop.write()
    refresh(session)
    noted = metadata_status.read(session.paths.data, NAME)
    assert noted
    assert [each.release for each in noted.revoked] == ["b1"]


def test_a_repository_in_a_folder_needs_no_network(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    added = repositories.repository(session.paths.data, NAME)
    assert added.url == shop.root.joinpath("repository").as_uri() + "/"
    (shop.root / "repository" / "metadata" / "timestamp.json").unlink()
    with pytest.raises(HttpStatusError, match="no file timestamp"):
        refresh(session)


# --- the notice -------------------------------------------------------------------------------


def test_a_found_update_is_remembered_for_one_version(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    assert kept_offer(session.paths.state, "b1-cpu-0") is None
    keep_offer(session.paths.state, "b1-cpu-0", Offer("b2", "0.2.0"))
    assert kept_offer(session.paths.state, "b1-cpu-0") == Offer("b2", "0.2.0")
    assert kept_offer(session.paths.state, "b1-cpu-1") is None
    keep_offer(session.paths.state, "b1-cpu-0", None)
    assert kept_offer(session.paths.state, "b1-cpu-0") is None


@pytest.mark.parametrize("damage", ["", "null", "[]", '{"format": 1}', "[" * 3000, "\0"])
def test_C10_a_damaged_record_of_a_found_update_is_ignored(
    shop: FolderShop, tmp_path: Path, damage: str
) -> None:
    session = shop.session(tmp_path / "home")
    keep_offer(session.paths.state, "b1-cpu-0", Offer("b2", None))
    (session.paths.state / "update.json").write_text(damage)
    assert kept_offer(session.paths.state, "b1-cpu-0") is None
