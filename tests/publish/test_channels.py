"""Channels with signers of their own: what a machine signs alone, and what it cannot."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.own_publisher import ROLE, write_plan
from support.release_data import copied_data, keys_of, release_tool, signers_file
from support.teams import MACHINE, PEOPLE, Client, Team, channels_of, release, stolen
from support.the_day import day

from tsuku_llm import trust
from tsuku_llm.catalog import refreshing
from tsuku_llm.ground.errors import StaleMetadata
from tsuku_publish.errors import PublishError
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.repository import checking, copies, folder


@pytest.fixture
def team(tmp_path: Path, at: Callable[[datetime], None]) -> Team:
    """A repository that people sign alone, as all were before; the nightly channel expires soon."""
    at(day("2026-11-25"))
    made = Team(tmp_path)
    made.data.mkdir()
    write_plan(made.data, {"stable": [], "nightly": []})
    made.edit(lambda document: document["keys"].update(keys_of("machine", "machine-2", "chris")))
    made.add("stable", "b1")
    made.add("nightly", "b2")
    made.run("sign")
    return made


@pytest.fixture
def delegated(team: Team) -> Team:
    """The same after people signed once that the machine signs nightly."""
    team.delegate()
    team.run("sign", "--raise", "--issued", "2026-11-21")
    return team


# --- the way there ------------------------------------------------------------------------


def test_a_channel_moves_to_its_own_role_and_nothing_else_changes(team: Team) -> None:
    before = channels_of(team)
    team.delegate()
    team.run("sign", "--raise")
    assert channels_of(team) == before == {"stable": ["b1"], "nightly": ["b2"]}
    files = team.files()
    targets = json.loads(files["metadata/2.targets.json"])["signed"]
    nightly = json.loads(files["metadata/2.nightly.json"])["signed"]
    assert [*targets["targets"]] == ["releases/b1.json"]
    assert [*nightly["targets"]] == ["releases/b2.json"]
    (role,) = targets["delegations"]["roles"]
    assert (role["name"], role["paths"], role["threshold"]) == ("nightly", ["releases/*"], 1)


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "refreshed"])
def test_a_user_from_before_the_delegation_goes_on_to_update(
    team: Team, tmp_path: Path, embedded: bool
) -> None:
    user = Client(tmp_path / "user", team, embedded=embedded)
    if not embedded:
        user.refresh(team.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b2"]}
    team.delegate()
    team.run("sign", "--raise")
    user.refresh(team.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b2"]}
    team.add("nightly", "b3")
    team.run("sign", "--channel", "nightly", signers=MACHINE)
    user.refresh(team.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b3", "b2"]}


def test_a_copy_of_the_projects_own_data_can_move(tmp_path: Path) -> None:
    data = copied_data(tmp_path / "data", "machine")
    environ = signers_file(tmp_path / "signers.json", *load_plan(data).keys)
    into = ("--data", data, "--into", tmp_path / "manifests")
    assert release_tool("sign", *into, **environ).returncode == 0
    first = copies.RepositoryFolder(tmp_path / "manifests")
    before = checking.verify(first, checking.first_root(first))
    path = data / "repository.toml"
    table = ROLE.format(name="nightly", days=30, signers=["machine"], threshold=1)
    path.write_text(path.read_text().replace("# `check` fails", f"{table}\n# `check` fails"))
    done = release_tool("sign", "--raise", *into, **environ)
    assert done.returncode == 0, done.stderr
    after = checking.verify(first, checking.first_root(first))
    assert {p: t.sha256 for p, t in after.targets.items()} == {
        p: t.sha256 for p, t in before.targets.items()
    }
    # What was not measured is for people to sign, also in a channel of a machine.
    assert {t.role for t in after.targets.values()} == {"targets"}
    assert not trust.setbacks(before.versions, after.versions)
    alone = signers_file(tmp_path / "alone.json", "machine", "online-1")
    done = release_tool("sign", "--channel", "nightly", *into, **alone)
    assert done.returncode == 0, done.stderr


# --- what the machine does alone -----------------------------------------------------------


def test_the_machine_signs_its_channel_and_no_other_role(delegated: Team) -> None:
    before, versions = delegated.files(), delegated.versions()
    delegated.add("nightly", "b3")
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    raised = {name: versions[name] + 1 for name in ("nightly", "snapshot", "timestamp")}
    assert delegated.versions() == {**versions, **raised}
    after = delegated.files()
    for name in ("1.root", "2.targets"):
        assert after[f"metadata/{name}.json"] == before[f"metadata/{name}.json"]
    assert channels_of(delegated) == {"stable": ["b1"], "nightly": ["b3", "b2"]}


def test_the_same_data_give_the_same_bytes(delegated: Team) -> None:
    delegated.add("nightly", "b3")
    now = ("--issued", "2026-11-22T06:00:00Z")
    delegated.run("sign", "--channel", "nightly", *now, signers=MACHINE)
    before = delegated.files()
    delegated.run("sign")
    assert delegated.files() == before
    shutil.rmtree(delegated.signed)
    delegated.run("sign")
    assert delegated.files() == before


def test_since_is_stated_once_for_each_digest(delegated: Team) -> None:
    def since(version: int) -> dict[str, str]:
        targets = json.loads(delegated.files()[f"metadata/{version}.nightly.json"])["signed"]
        return {
            each["custom"]["release"]: each["custom"]["since"]
            for each in targets["targets"].values()
        }

    assert since(2) == {"b2": "2026-11-21T00:00:00Z"}
    delegated.add("nightly", "b3")
    delegated.run("sign", "--channel", "nightly", "--issued", "2026-11-22T06:30:00Z")
    delegated.run("sign", "--channel", "nightly", "--issued", "2026-11-23T12:00:00Z")
    assert since(4) == {"b2": "2026-11-21T00:00:00Z", "b3": "2026-11-22T06:30:00Z"}
    path = delegated.data / "releases" / "b3.json"
    path.write_text(json.dumps(release("b3", publisher="another")))
    delegated.run("sign", "--channel", "nightly", "--issued", "2026-11-24T12:00:00Z")
    assert since(5) == {"b2": "2026-11-21T00:00:00Z", "b3": "2026-11-24T12:00:00Z"}


def test_the_weekly_job_carries_every_role(delegated: Team) -> None:
    versions = delegated.versions()
    # Nothing that is prepared and not signed counts, in any channel.
    delegated.edit(lambda document: document["channels"].update(nightly=["b9"], stable=["b8"]))
    delegated.run("resign", signers=("host",))
    raised = {name: versions[name] + 1 for name in ("snapshot", "timestamp")}
    assert delegated.versions() == {**versions, **raised}
    assert channels_of(delegated) == {"stable": ["b1"], "nightly": ["b2"]}


def test_people_sign_while_the_channel_stays_as_it_is(delegated: Team) -> None:
    delegated.add("nightly", "b3")
    delegated.add("stable", "b4")
    nightly = delegated.files()["metadata/2.nightly.json"]
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    assert delegated.files()["metadata/2.nightly.json"] == nightly
    assert channels_of(delegated) == {"stable": ["b4", "b1"], "nightly": ["b2"]}


def test_a_stranger_s_key_signs_no_channel(delegated: Team) -> None:
    before = delegated.files()
    for signers, told in (
        (("anna", "ben", "host"), "nightly: 0 of 1 signatures"),
        (("machine",), "the online signer is not at hand: host"),
    ):
        code, _, err = delegated.tried("sign", "--channel", "nightly", signers=signers)
        assert (code, told in err) == (1, True), err
    assert delegated.files() == before


def test_a_channel_that_people_have_not_delegated_is_not_signed(team: Team) -> None:
    code, _, err = team.tried("sign", "--channel", "nightly", signers=MACHINE)
    assert (code, "nightly has no signers of its own" in err) == (1, True), err
    team.delegate()
    code, _, err = team.tried("sign", "--channel", "nightly", signers=MACHINE)
    assert (code, "the signers of targets run sign first" in err) == (1, True), err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weekly": {}}, "[channels] has no weekly"),
        ({"nightly": {"paths": ["releases/x/*"]}}, "not below releases/"),
        ({"nightly": {"paths": ["*"]}}, "not below releases/"),
        ({"targets": {"paths": ["releases/*"]}}, "only a channel's role has"),
    ],
)
def test_a_plan_that_delegates_wrongly_is_refused(
    delegated: Team, change: dict[str, dict[str, object]], told: str
) -> None:
    def edit(document: Any) -> None:
        for name, fields in change.items():
            table = dict(document["roles"].get(name) or document["roles"]["nightly"])
            document["roles"][name] = {**table, **fields}

    delegated.edit(edit)
    code, _, err = delegated.tried("sign")
    assert (code, told in err) == (1, True), err


# --- what a thief of the machine's key cannot do -------------------------------------------


def test_a_thief_of_the_machine_s_key_reaches_no_user_of_stable(
    delegated: Team, tmp_path: Path
) -> None:
    delegated.edit(lambda document: document["channels"]["stable"].insert(0, "b5"))
    path = delegated.data / "releases" / "b5.json"
    path.write_text(json.dumps(release("b5", version="0.5.0")))
    delegated.run("sign", "--raise")
    user = Client(tmp_path / "user", delegated)
    honest = delegated.files()
    user.refresh(honest)
    files = stolen(
        delegated.files(),
        ("b1", ["nightly"], None),
        ("b7", ["stable"], None),
        ("b8", ["nightly", "stable"], None),
        ("b9", ["nightly"], "0.5.0"),
        ("b10", ["nightly"], None),
    )
    user.refresh(files)
    assert user.channels == {"stable": ["b5", "b1"], "nightly": ["b10", "b2"]}
    catalog = user.catalog
    for name in ("b1", "b5", "0.5.0"):
        assert catalog.read(catalog.entry(name)).publisher == "simulator"


# --- other signers for a channel -----------------------------------------------------------


def test_a_lost_machine_is_replaced_by_people_without_a_new_root(
    delegated: Team, tmp_path: Path
) -> None:
    user = Client(tmp_path / "user", delegated)
    user.refresh(delegated.files())
    delegated.run("rotate", "nightly=machine-2", signers=(*PEOPLE, "machine-2", "host"))
    assert delegated.versions()["root"] == 1
    user.refresh(delegated.files())
    delegated.add("nightly", "b3")
    code, _, err = delegated.tried("sign", "--channel", "nightly", signers=MACHINE)
    assert (code, "nightly: 0 of 1" in err) == (1, True)
    delegated.run("sign", "--channel", "nightly", signers=("machine-2", "host"))
    user.refresh(delegated.files())
    assert user.channels["nightly"] == ["b3", "b2"]


def test_a_channel_that_people_sign_again_stays_known_to_old_clients(
    delegated: Team, tmp_path: Path
) -> None:
    user = Client(tmp_path / "user", delegated)
    user.refresh(delegated.files())
    delegated.edit(lambda document: document["roles"].pop("nightly"))
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    user.refresh(delegated.files())
    assert user.channels == {"stable": ["b1"], "nightly": ["b2"]}


# --- published and checked ----------------------------------------------------------------


def test_the_old_state_is_not_published_over_a_newer_channel(delegated: Team) -> None:
    served = delegated.home / "served"
    old = delegated.home / "old"
    shutil.copytree(delegated.signed, old)
    delegated.run("publish", served)
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    delegated.run("publish", served)
    code, _, err = delegated.tried("publish", served, "--from", old)
    assert (code, "newer versions of" in err, "nightly" in err) == (1, True, True), err


def test_a_channel_begins_and_ends_where_it_is_served(team: Team) -> None:
    served = team.home / "served"
    team.run("publish", served)
    team.delegate()
    team.run("sign", "--raise")
    team.run("publish", served)
    team.edit(lambda document: document["roles"].pop("nightly"))
    team.run("sign", "--raise")
    team.run("publish", served)


def test_check_tells_of_a_channel_that_must_be_signed(delegated: Team) -> None:
    served = delegated.home / "served"
    delegated.run("publish", served)
    said = delegated.run("check", "--published", served, "--on", "2026-12-07")
    assert "nightly   version 2, 14 days left (2026-12-21)" in said
    assert "nightly   2 embedded, 2 published" in said
    code, _, err = delegated.tried("check", "--on", "2026-12-08")
    assert (code, "sign again: nightly (13 days left)" in err) == (1, True), err
    assert "run: tsuku-publish resign" in err
    delegated.run("resign", "--issued", "2026-12-08", signers=MACHINE)
    assert "nightly   version 3, 30 days left" in delegated.run("check", "--on", "2026-12-08")


@pytest.mark.parametrize(
    ("role", "days", "left"),
    [
        *(("root", 730, 60), ("targets", 365, 60), ("snapshot", 365, 60), ("timestamp", 30, 14)),
        *(("nightly", 30, 14), ("nightly", 365, 14), ("timestamp", 7, 3), ("snapshot", 30, 15)),
    ],
)
def test_each_role_is_late_in_time_and_never_on_its_first_day(
    delegated: Team, role: str, days: int, left: int
) -> None:
    delegated.edit(lambda document: document["roles"][role].update(days=days))
    assert load_plan(delegated.data).warn[role] == left


# --- every week ---------------------------------------------------------------------------


def signed_days(team: Team) -> dict[str, str]:
    """Until when each role is valid."""
    copy = copies.RepositoryFolder(team.signed)
    roles = checking.verify(copy, checking.first_root(copy)).roles
    return {role: f"{state.expires:%Y-%m-%d}" for role, state in roles.items()}


def test_P1_a_channel_without_a_build_is_signed_again_every_week(
    delegated: Team, tmp_path: Path, at: Callable[[datetime], None]
) -> None:
    """It had no build for 200 days: its users and those of the others go on to update."""
    nightly, stable = (Client(tmp_path / name, delegated) for name in ("nightly", "stable"))
    for week in range(1, 30):
        now = day("2026-11-25") + timedelta(weeks=week)
        at(now)
        delegated.run("resign", "--issued", f"{now:%Y-%m-%d}", signers=MACHINE)
        delegated.run("check", "--on", f"{now + timedelta(days=14):%Y-%m-%d}")
        if week % 7 == 0:
            nightly.refresh(delegated.files())
            stable.refresh(delegated.files())
            assert refreshing.require_channel(nightly.catalog, "nightly", now) == ()
            assert nightly.channels == {"stable": ["b1"], "nightly": ["b2"]}
    assert delegated.versions()["targets"] == 2


def test_P1_resign_renews_every_role_whose_signers_are_at_hand(delegated: Team) -> None:
    before, since = signed_days(delegated), channels_of(delegated)
    delegated.add("nightly", "b9")  # not signed, so it does not count
    said = delegated.run("resign", "--issued", "2026-11-28", signers=MACHINE)
    assert "signed again: nightly 3, snapshot 3, timestamp 3" in said
    assert f"targets was not signed again, and is valid until {before['targets']}: 0 of 2" in said
    assert "root was not signed again" in said
    assert signed_days(delegated)["nightly"] == "2026-12-28"
    said = delegated.run("resign", "--issued", "2026-11-29", signers=("host",))
    assert "nightly was not signed again, and is valid until 2026-12-28: 0 of 1" in said
    said = delegated.run("resign", "--issued", "2026-11-30")
    assert "signed again: targets 3, nightly 4, snapshot 5, timestamp 5" in said
    assert "was not signed again" not in said
    assert channels_of(delegated) == since
    assert delegated.run("sign", "--raise", "--issued", "2026-12-01", "--yes")


def test_a_root_is_signed_again_in_its_second_half_only(delegated: Team, tmp_path: Path) -> None:
    """Each root is one more step for every client."""
    user = Client(tmp_path / "user", delegated)
    for issued, version in (("2076-10-01", 1), ("2076-11-30", 2), ("2076-12-07", 2)):
        delegated.run("resign", "--issued", issued)
        assert delegated.versions()["root"] == version
    user.refresh(delegated.files())
    assert user.catalog.trusted.roles["root"].version == 2
    delegated.run("sign")


def test_N04_a_weekly_signature_prolongs_no_role(delegated: Team) -> None:
    """Another lifetime in the data is a change, which people read before they sign it."""
    lives = {"root": 36525, "targets": 36525, "nightly": 36525}
    delegated.edit(lambda document: [document["roles"][k].update(days=v) for k, v in lives.items()])
    delegated.run("resign", "--issued", "2026-11-28")
    after = signed_days(delegated)
    assert (after["targets"], after["nightly"]) == ("2126-11-04", "2026-12-28")


def test_a_key_that_does_not_open_ends_its_own_role_only(delegated: Team) -> None:
    """A weekly job that also names a person's key, and has no passphrase."""
    keys = delegated.home / "keys"
    keys.mkdir()
    made = release_tool(
        "new-signer", "nina", keys / "nina.pem", TSUKU_LLM_PASSPHRASE="open it, please"
    )
    assert made.returncode == 0, made.stderr
    (keys.parent / "nina.txt").write_text(made.stdout)
    words = ("nightly=nina", "--keys", keys.parent / "nina.txt", "--yes", "--data", delegated.data)
    environ = signers_file(keys / "others.json", *PEOPLE, "host")
    place = {name: str(keys) for name in environ}
    done = release_tool("rotate", *words, TSUKU_LLM_PASSPHRASE="open it, please", **place)
    assert done.returncode == 0, done.stderr
    done = release_tool("resign", "--data", delegated.data, **place)
    assert done.returncode == 0, done.stderr
    assert "nightly was not signed again" in done.stdout
    assert "passphrase" in done.stdout
    assert "signed again: targets" in done.stdout


def test_people_revoke_a_release_of_a_channel(delegated: Team, tmp_path: Path) -> None:
    user = Client(tmp_path / "user", delegated)
    delegated.add("nightly", "b3")
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    user.refresh(delegated.files())
    delegated.run("revoke", "b3", "--reason", "it leaks", "--on", "2026-11-23")
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    user.refresh(delegated.files())
    found = user.catalog.revocation(user.catalog.entry("b3"))
    assert found is not None
    assert found.reason == "it leaks"
    # The machine says it in the release file, and may drop the release; the list stays.
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    delegated.edit(lambda document: document["channels"].update(nightly=["b2"]))
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    user.refresh(delegated.files())
    assert [each.release for each in user.catalog.revoked] == ["b3"]


# --- nobody signs at the same time ---------------------------------------------------------


def test_a_command_waits_for_another_one_on_the_same_data(delegated: Team) -> None:
    with (
        folder.locked(delegated.data),
        pytest.raises(PublishError, match="another tsuku-publish"),
        folder.locked(delegated.data, wait=0),
    ):
        pass
    delegated.run("resign", signers=("host",))


def test_what_a_dead_command_held_is_free(delegated: Team) -> None:
    (delegated.data / folder.LOCK).write_text(str(os.getpid()))
    delegated.run("resign", signers=("host",))


# --- from nightly to stable ----------------------------------------------------------------


def tried_nightly(team: Team) -> None:
    """The machine put b3 into nightly on the 22nd, and a promoter saw it in that hour."""
    team.add("nightly", "b3")
    team.run("sign", "--channel", "nightly", "--issued", "2026-11-22T06:00:00Z", signers=MACHINE)


def seen(team: Team, *tags: str, on: str) -> str:
    """What a promotion on a day says, and that nothing was promoted."""
    before = (team.data / "repository.toml").read_text()
    code, _, err = team.tried("promote", *tags, "--to", "stable", "--on", on)
    assert code == 1, "promoted"
    assert (team.data / "repository.toml").read_text() == before
    return err


def test_a_release_that_nightly_had_for_72_hours_becomes_stable(
    delegated: Team, tmp_path: Path
) -> None:
    tried_nightly(delegated)
    user = Client(tmp_path / "user", delegated)
    user.refresh(delegated.files())
    said = seen(delegated, "b3", on="2026-11-22T07:00:00Z")
    assert "b3 is too young" in said
    assert "left: 72 hours" in said
    assert "left: 1 hour" in seen(delegated, "b3", on="2026-11-25T06:30:00Z")
    delegated.run("promote", "b3", "--to", "stable", "--on", "2026-11-25T07:00:00Z")
    # Facts that changed since change nothing: people sign what nightly had.
    (delegated.data / "releases" / "b3.json").unlink()
    delegated.edit(lambda document: document["channels"].update(nightly=["b2"]))
    delegated.run("review", "--write", tmp_path / "review")
    assert (tmp_path / "review" / "releases" / "b3.json").exists()
    delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    before = user.catalog.trusted.targets["releases/b3.json"]
    user.refresh(delegated.files())
    after = user.catalog.trusted.targets["releases/b3.json"]
    assert (after.sha256, after.length) == (before.sha256, before.length)
    assert (before.role, after.role) == ("nightly", "targets")
    assert user.channels == {"stable": ["b3", "b1"], "nightly": ["b3", "b2"]}
    # It stays in both, also when the machine drops it.
    delegated.run("sign", "--channel", "nightly", signers=MACHINE)
    user.refresh(delegated.files())
    assert user.channels == {"stable": ["b3", "b1"], "nightly": ["b3", "b2"]}


def test_a_machine_that_states_an_early_time_gains_nothing(delegated: Team) -> None:
    """The thief of its key may state any time: what the promoter saw counts."""
    delegated.add("nightly", "b3")
    early = ("--issued", "2026-11-01T00:00:00Z")
    delegated.run("sign", "--channel", "nightly", *early, signers=MACHINE)
    said = seen(delegated, "b3", on="2026-11-22T06:00:00Z")
    assert "nightly states: since 2026-11-01 00:00 UTC" in said
    assert "seen by you: since 2026-11-22 06:00 UTC" in said
    assert "left: 72 hours" in said


def test_a_release_that_changed_in_nightly_waits_again(delegated: Team) -> None:
    tried_nightly(delegated)
    seen(delegated, "b3", on="2026-11-22T07:00:00Z")
    path = delegated.data / "releases" / "b3.json"
    path.write_text(json.dumps(release("b3", publisher="another")))
    at = ("--issued", "2026-11-24T06:00:00Z")
    delegated.run("sign", "--channel", "nightly", *at, signers=MACHINE)
    said = seen(delegated, "b3", on="2026-11-25T12:00:00Z")
    assert "left: 72 hours" in said


def test_check_records_what_a_promoter_saw(delegated: Team) -> None:
    tried_nightly(delegated)
    # With --on it is a question about another day, and records nothing.
    delegated.run("check", "--on", "2026-11-22")
    assert not (delegated.home / "state").exists()
    delegated.run("check")
    (record,) = (delegated.home / "state" / "tsuku-publish" / "seen").glob("*.json")
    assert json.loads(record.read_text())["nightly"].keys() == {"b2", "b3"}


def test_a_reason_not_to_wait_is_said_and_signed(delegated: Team) -> None:
    tried_nightly(delegated)
    now = ("--on", "2026-11-22T07:00:00Z")
    why = "closes CVE-2026-1"
    delegated.run("promote", "b3", "--to", "stable", "--because", why, *now)
    said = delegated.run("sign", "--raise", signers=(*PEOPLE, "host"))
    assert "promoted  b3 (nightly -> nightly, stable)" in said
    assert f"it did not wait: {why}" in said
    targets = json.loads(delegated.files()["metadata/3.targets.json"])["signed"]["targets"]
    assert targets["releases/b3.json"]["custom"]["promoted"] == {
        "from": "nightly",
        "on": "2026-11-22",
        "because": why,
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("b9", "--to", "stable"), "b9 is in no channel with its own signers"),
        (("b1", "--to", "stable"), "b1 is in no channel with its own signers"),
        (("b3", "--to", "stable", "--from", "index"), "b3 is in no channel with its own signers"),
        (("b3", "--to", "nightly"), "nightly is no channel that the signers of targets sign"),
        (("b3", "--to", "weekly"), "weekly is no channel"),
        (("b3", "--to", "stable", "--because", "a\nb"), "a reason is one line"),
        (("b2", "--to", "stable", "--because", "now"), "b2 is revoked"),
        (("b3", "--to", "stable", "--on", "2027-11-25"), "has expired"),
    ],
)
def test_what_cannot_be_promoted(delegated: Team, words: tuple[str, ...], told: str) -> None:
    tried_nightly(delegated)
    delegated.run("revoke", "b2", "--reason", "it leaks")
    before = (delegated.data / "repository.toml").read_bytes()
    on = () if "--on" in words else ("--on", "2026-11-23")
    code, _, err = delegated.tried("promote", *words, *on)
    assert (code, told in err) == (1, True), err
    assert (delegated.data / "repository.toml").read_bytes() == before


def test_a_promoted_release_file_that_is_lost_is_an_error(delegated: Team) -> None:
    tried_nightly(delegated)
    now = ("--on", "2026-11-22T07:00:00Z")
    delegated.run("promote", "b3", "--to", "stable", "--because", "now", *now)
    path = delegated.data / "releases" / "b3.json"
    path.write_text(json.dumps(release("b3", publisher="another")))
    shutil.rmtree(delegated.signed)
    code, _, err = delegated.tried("sign")
    assert (code, "b3 was promoted with the digest" in err) == (1, True), err


# --- clients of every age -------------------------------------------------------------------

LIFETIMES = {"root": 730, "targets": 365, "snapshot": 365, "timestamp": 30, "nightly": 30}
"""Days, as docs/releases.md says them."""


def test_clients_of_day_0_30_90_and_of_two_years_with_four_rotations_update(
    team: Team, tmp_path: Path, at: Callable[[datetime], None]
) -> None:
    """Packages of each age, and one user who never updated; at last nightly is not signed."""
    team.delegate()
    team.edit(lambda document: [document["roles"][k].update(days=v) for k, v in LIFETIMES.items()])
    shutil.rmtree(team.signed)
    began = day("2026-11-25")
    people, machine = PEOPLE, MACHINE
    team.run("sign", "--raise", "--issued", "2026-11-25", "--yes")
    users = [Client(tmp_path / "added", team)]
    users[0].refresh(team.files())
    for number in range(1, 27):
        now = began + timedelta(days=28 * number)
        at(now)
        issued = ("--issued", f"{now:%Y-%m-%d}")
        if number % 6 == 5:
            newer = tuple(f"{name.partition('-')[0]}-{number}" for name in (*people, *machine))
            lines = (f'{name} = "{key}"\n' for name, key in keys_of(*newer).items())
            (tmp_path / "new.txt").write_text("".join(lines))
            changes = [f"{role}={newer[0]},{newer[1]}" for role in ("root", "targets")]
            changes += [f"nightly={newer[2]}", f"online={newer[3]}", "--keys", tmp_path / "new.txt"]
            everybody = (*people, *machine, *newer)
            team.run("rotate", *changes, "--yes", "--offline", *issued, signers=everybody)
            people, machine = newer[:2], newer[2:]
        else:
            team.run("resign", *issued, signers=machine)
        if number in (1, 3, 26):
            users.append(Client(tmp_path / f"package-{number}", team, embedded=True))
    assert team.versions()["root"] == 5
    team.add("stable", "b8")
    team.run("sign", "--raise", "--yes", "--offline", *issued, signers=(*people, *machine))
    team.add("nightly", "b9")
    team.run("sign", "--channel", "nightly", *issued, signers=machine)
    for user in users:
        user.refresh(team.files())
        assert user.channels == {"stable": ["b8", "b1"], "nightly": ["b9", "b2"]}
        assert user.catalog.trusted.roles["root"].version == 5
        assert refreshing.require_channel(user.catalog, "nightly", now) == ()
    late = now + timedelta(days=31)
    at(late)
    said = team.run("resign", "--issued", f"{late:%Y-%m-%d}", signers=machine[1:])
    assert "nightly was not signed again" in said
    for user in users:
        user.refresh(team.files())
        assert user.channels["stable"] == ["b8", "b1"]
        (told,) = refreshing.require_channel(user.catalog, "stable", late)
        assert "the channel 'nightly' expired" in told
        with pytest.raises(StaleMetadata, match="has expired"):
            refreshing.require_channel(user.catalog, "nightly", late)
