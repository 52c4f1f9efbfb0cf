"""Newer metadata before an install: when it is asked for, and what each answer leads to."""

import re
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.folder_shop import NOW, FolderShop
from support.release_server import NAME
from support.repository import ISSUED, RepositorySimulator, release_document
from support.sessions import changed

from tsuku_llm.catalog import metadata_status
from tsuku_llm.catalog.metadata_status import Freshness
from tsuku_llm.ground.errors import (
    ClockBehind,
    DigestMismatch,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    MetadataError,
    Revoked,
    StaleMetadata,
    UsageError,
)
from tsuku_llm.steps.choosing.choice import choose
from tsuku_llm.steps.install.install import install, install_beside
from tsuku_llm.steps.metadata import repository as repositories
from tsuku_llm.steps.metadata.refresh import PATIENCE, RECENT, asked_catalog, is_due, refresh
from tsuku_llm.steps.session import Session

LATER = NOW + 2 * RECENT
"""When neither the signature nor the refresh of ``repository add`` is recent any more."""

SIGNED = datetime(2026, 11, 20, tzinfo=timezone.utc)
KNOWN = Freshness(NAME, SIGNED, SIGNED + timedelta(days=30))
SECOND = timedelta(seconds=1)

# --- when -------------------------------------------------------------------------------------


def test_a_copy_that_was_signed_within_a_day_is_not_asked_about() -> None:
    assert not is_due("auto", KNOWN, None, SIGNED)
    assert not is_due("auto", KNOWN, None, SIGNED + RECENT - SECOND)
    assert is_due("auto", KNOWN, None, SIGNED + RECENT)


def test_an_answer_within_a_day_is_enough() -> None:
    now = SIGNED + 10 * RECENT
    assert not is_due("auto", KNOWN, now - RECENT + SECOND, now)
    assert is_due("auto", KNOWN, now - RECENT, now)


def test_dates_in_the_future_do_not_stop_a_refresh() -> None:
    now = SIGNED + 10 * RECENT
    assert is_due("auto", KNOWN, now + SECOND, now)
    assert is_due("auto", KNOWN, None, SIGNED - SECOND)


def test_metadata_without_a_date_and_expired_metadata_are_asked_about() -> None:
    assert is_due("auto", KNOWN._replace(signed=None), None, SIGNED)
    assert is_due("auto", KNOWN._replace(expires=SIGNED), SIGNED, SIGNED)


@given(
    st.none() | st.datetimes(timezones=st.just(timezone.utc)),
    st.datetimes(timezones=st.just(timezone.utc)),
)
def test_always_and_never_ignore_dates(refreshed: datetime | None, now: datetime) -> None:
    assert is_due("always", KNOWN, refreshed, now)
    assert not is_due("never", KNOWN, refreshed, now)


# --- what is answered --------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1", "b2")


@pytest.fixture
def session(shop: FolderShop, tmp_path: Path) -> Session:
    """A user who added the repository two days ago."""
    return shop.session(tmp_path / "home", now=LATER, refresh="auto")


def revoke(shop: FolderShop, tag: str) -> None:
    """The publisher revokes a release and signs that."""
    target = shop.simulator.targets.targets[f"releases/{tag}.json"]
    platforms = {"linux-amd64": {"default": "cpu", "preference": {}, "variants": {}}}
    platforms["linux-amd64"]["variants"] = {
        "cpu": shop.variant(shop.stand_in(f"{tag}-cpu-again"))  # type: ignore[dict-item]
    }
    document = release_document(tag, platforms=platforms, revoked=True)
    shop.simulator.publish(document, channels=target.custom["channels"])
    shop.write()


def told(session: Session) -> str:
    return "\n".join(session.user.note)  # type: ignore[arg-type]  # Notes are a list


def test_T30_an_install_learns_of_a_revocation_since_the_last_refresh(
    shop: FolderShop, session: Session
) -> None:
    revoke(shop, "b2")
    report = install(session)
    assert report.choice.release.release == "b1"
    assert "b2 was revoked by its publisher; it is skipped" in told(session)
    with pytest.raises(Revoked, match="b2"):
        install(session, release="b2")


def test_T30_a_revoked_release_is_not_installed_as_a_further_version_either(
    shop: FolderShop, session: Session
) -> None:
    """As ``bench`` and ``serve --fallback`` install."""
    revoke(shop, "b2")
    choice = choose(session, release="b2", catalog=asked_catalog(session))
    with pytest.raises(Revoked, match="b2"):
        install_beside(session, choice, choice.selection.selected)
    assert not session.store.installed()


def test_a_dry_run_asks_no_host(shop: FolderShop, session: Session) -> None:
    revoke(shop, "b2")
    assert install(session, dry_run=True).choice.release.release == "b2"


def test_recent_metadata_is_used_without_a_refresh(shop: FolderShop, session: Session) -> None:
    asked_catalog(session)
    revoke(shop, "b2")
    assert [entry.release for entry in asked_catalog(session).entries] == ["b2", "b1"]
    assert not asked_catalog(session).metadata_status().revoked
    next_day = changed(session, now=LATER + RECENT)
    assert [each.release for each in asked_catalog(next_day).metadata_status().revoked] == ["b2"]
    assert not told(session)


def gone(shop: FolderShop) -> None:
    """The host answers nothing any more."""
    (shop.root / "repository").rename(shop.root / "elsewhere")


def test_T33_a_refresh_without_an_answer_does_not_make_metadata_recent(
    shop: FolderShop, session: Session
) -> None:
    gone(shop)
    for number in (1, 2):
        asked_catalog(session)
        assert told(session).count("newer metadata of test could not be fetched") == number


def test_T33_a_note_about_other_copies_does_not_make_metadata_recent(session: Session) -> None:
    asked_catalog(session)
    assert metadata_status.refreshed(session.paths.data, NAME) == LATER
    (metadata_status.folder_of(session.paths.data, NAME) / "current").write_text("0" * 16)
    assert metadata_status.refreshed(session.paths.data, NAME) is None


@pytest.mark.parametrize("damage", [b"", b"null", b"[]", b'{"format": 1}', b"\0" * 9, b"[" * 9999])
def test_C10_a_damaged_note_of_the_last_answer_is_ignored(session: Session, damage: bytes) -> None:
    asked_catalog(session)
    (metadata_status.folder_of(session.paths.data, NAME) / "refreshed.json").write_bytes(damage)
    assert metadata_status.refreshed(session.paths.data, NAME) is None


def test_without_an_answer_the_install_continues_and_tells_the_age(
    shop: FolderShop, session: Session
) -> None:
    gone(shop)
    assert install(session).installed
    assert "there is no file timestamp.json" in told(session)
    assert "using the metadata signed on 2026-11-20 (3 days ago)" in told(session)
    assert f"or, if it has moved: tsuku-llm repository remove {NAME}" in told(session)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a host that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/"


def moved(session: Session, url: str) -> Session:
    """The session, after its repository's address was changed."""
    file = metadata_status.folder_of(session.paths.data, NAME) / "repository.json"
    file.write_text(f'{{"format": 1, "url": "{url}"}}')
    return session


def test_T31_a_host_that_never_answers_does_not_delay_an_install(
    session: Session, silent: str
) -> None:
    found = asked_catalog(moved(session, silent), patience=0.2)
    assert found.entries
    assert "newer metadata of test could not be fetched: 127.0.0.1:" in told(session)
    assert "signed on 2026-11-20 (3 days ago)" in told(session)


def test_T31_an_install_waits_only_a_few_seconds() -> None:
    assert PATIENCE <= 5


def test_T31_a_refresh_by_another_process_does_not_delay_an_install(session: Session) -> None:
    with session.store.lock(f"metadata-{NAME}"):
        assert asked_catalog(session, patience=0.1).entries
    assert "newer metadata of test could not be fetched" in told(session)


def test_T31_require_fresh_refuses_without_an_answer(shop: FolderShop, session: Session) -> None:
    """Recent metadata does not count."""
    strict = changed(session, require_fresh=True)
    asked_catalog(strict)
    gone(shop)
    with pytest.raises(StaleMetadata, match="fresh metadata of test is required") as caught:
        install(strict)
    assert caught.value.exit_code == 5
    assert caught.value.facts[-1] == "the metadata here: signed on 2026-11-20 (3 days ago)"
    assert not strict.store.installed()


def attacked(shop: FolderShop, **expiry: datetime) -> None:
    """The host serves what the root did not sign, or what has expired."""
    if expiry:
        shop.simulator.expire("timestamp", expiry["expires"])
    else:
        other = RepositorySimulator(shop.simulator.url, name="stranger")
        other.publish(release_document("b9"))
        name = "metadata/timestamp.json"
        shop.simulator.files[name] = other.files[name]
    shop.write()


@pytest.mark.parametrize("expiry", [{}, {"expires": ISSUED}], ids=["unsigned", "expired"])
def test_T32_untrusted_metadata_is_reported_and_not_used(
    shop: FolderShop, session: Session, expiry: dict[str, datetime]
) -> None:
    attacked(shop, **expiry)
    report = install(session)
    assert report.choice.release.release == "b2"
    assert re.search(r"warning: the .* (that test serves|repository: test);? ", told(session))
    assert "it is not used; using the metadata signed on 2026-11-20" in told(session)
    with pytest.raises(MetadataError):
        install(changed(session, require_fresh=True), force=True)


def test_T32_an_untrusted_answer_does_not_make_metadata_recent(
    shop: FolderShop, session: Session
) -> None:
    attacked(shop)
    for number in (1, 2):
        asked_catalog(session)
        assert told(session).count("warning: ") == number


def test_a_clock_that_was_set_back_is_told(session: Session) -> None:
    back = changed(session, now=ISSUED - 3 * RECENT)
    assert asked_catalog(back).entries
    assert "the clock was set back" in told(session)
    with pytest.raises(ClockBehind):
        asked_catalog(changed(back, require_fresh=True))


# --- without a network --------------------------------------------------------------------------


def test_offline_asks_no_host_for_metadata(shop: FolderShop, session: Session) -> None:
    revoke(shop, "b2")
    alone = changed(session, offline=True, refresh="always")
    assert not asked_catalog(alone).metadata_status().revoked
    assert not told(session)


def test_offline_takes_archives_from_this_machine_only(session: Session, silent: str) -> None:
    alone = changed(session, offline=True)
    assert install(alone).installed, "the mirror is a folder"
    assert install(changed(alone, mirror=())).outcome == "unchanged"
    for mirrors in ((), (silent,)):
        with pytest.raises(DownloadError, match="--offline forbids a download") as caught:
            install(changed(alone, mirror=mirrors), release="b1")
        assert not isinstance(caught.value, HostUnreachable), "which would lead to the index"
        assert "llm.mirror file:///FOLDER" in caught.value.hint


def test_offline_and_required_fresh_metadata_exclude_each_other(session: Session) -> None:
    with pytest.raises(UsageError, match="--offline uses no network"):
        install(changed(session, offline=True, require_fresh=True))


def test_a_repository_without_metadata_is_asked_at_the_install(
    shop: FolderShop, tmp_path: Path
) -> None:
    """There is nothing to go on with: what the host says is the answer, good or bad."""
    gone(shop)
    session = shop.session(tmp_path / "home", refresh="auto")
    with pytest.raises(HttpStatusError):
        asked_catalog(session)
    with pytest.raises(MetadataError, match="no valid metadata"):
        asked_catalog(changed(session, offline=True))
    (shop.root / "elsewhere").rename(shop.root / "repository")
    assert asked_catalog(session).entries


# --- what to do ---------------------------------------------------------------------------------


def test_the_hint_about_a_missing_release_file_repairs_it(
    session: Session,
) -> None:
    """A refresh keeps a copy again whose release files are not all there."""
    (file,) = metadata_status.folder_of(session.paths.data, NAME).glob(
        "copies/*/targets/releases/*.b2.json"
    )
    for damage in (file.unlink, lambda: file.write_bytes(b"junk")):
        damage()
        with pytest.raises((MetadataError, DigestMismatch)) as caught:
            install(changed(session, refresh="never"), release="b2")
        assert caught.value.hint == f"run: tsuku-llm repository refresh {NAME}"
        refresh(session)
        assert install(changed(session, refresh="never"), release="b2").installed


def test_hints_about_metadata_never_name_an_archive_mirror(
    shop: FolderShop, session: Session, silent: str
) -> None:
    gone(shop)
    for failing in (session, moved(session, silent)):
        with pytest.raises(DownloadError) as caught:
            refresh(failing, patience=0.1)
        assert "llm.mirror" not in caught.value.hint
        assert caught.value.hint.endswith("tsuku-llm repository add test URL --root FILE")
    with pytest.raises(DownloadError) as caught:
        refresh(changed(session, repository=None, repository_url=(silent,)), patience=0.1)
    assert "tsuku-llm config unset llm.repository_url" in caught.value.hint, "it is set"


def test_the_hint_if_all_is_revoked_works_without_an_installed_version(
    shop: FolderShop, session: Session
) -> None:
    """There ``update`` would only say: install."""
    revoke(shop, "b1")
    revoke(shop, "b2")
    with pytest.raises(Revoked, match="every release of channel stable") as caught:
        install(session)
    assert f"tsuku-llm repository refresh {NAME}" in caught.value.hint


def test_a_refused_root_has_a_hint_that_helps(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home")
    shop.simulator.signers["root"] = shop.simulator.signers["root"][:1]
    shop.simulator.sign_root()
    root = tmp_path / "root.json"
    root.write_bytes(shop.simulator.pinned_root)
    with pytest.raises(MetadataError) as caught:
        repositories.add(session, "other", "https://127.0.0.1:1/", root)
    assert "tell the publisher" in caught.value.hint
