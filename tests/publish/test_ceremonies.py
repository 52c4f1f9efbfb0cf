"""Holders who sign one after another, each on another machine, while the jobs go on."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.own_publisher import write_plan
from support.program import PUBLISHER as PUBLISHER_COMMAND
from support.program import environment
from support.release_data import keys_of, signers_file
from support.schemas import read
from support.screens import Screen, screen
from support.teams import MACHINE, PEOPLE, Client, Team, channels_of, release

from ci.schemas import PUBLISHER


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """A repository whose channel nightly is signed by a machine."""
    made = Team(tmp_path / "first")
    made.data.mkdir(parents=True)
    write_plan(made.data, {"stable": [], "nightly": []})
    made.edit(lambda document: document["keys"].update(keys_of("machine", "chris", "dana")))
    made.delegate()
    made.add("stable", "b1")
    made.add("nightly", "b2")
    made.run("sign", "--issued", "2026-11-20")
    return made


def cloned(team: Team, name: str) -> Team:
    """The machine of another holder, with the data and the repository as they are now."""
    shutil.copytree(team.data, team.home.parent / name / "data")
    return Team(team.home.parent / name)


def test_a_ceremony_survives_the_jobs_in_the_middle(team: Team, tmp_path: Path) -> None:
    anna, ben, host = (cloned(team, name) for name in ("anna", "ben", "host"))
    gather = ("--gather", tmp_path / "usb")
    user = Client(tmp_path / "user", host)
    # Only the first holder has the new release in the plan: the folder carries it.
    for each in (anna, ben, host):
        each.add("nightly", "b4")
        (each.data / "releases" / "b3.json").write_text(json.dumps(release("b3")))
    anna.edit(lambda document: document["channels"].update(stable=["b3", "b1"]))
    anna.run("sign", "--raise", *gather, signers=("anna",))
    host.run("resign", signers=("host",))
    host.run("sign", "--channel", "nightly", signers=MACHINE)
    user.refresh(host.files())
    said = ben.run("sign", *gather, signers=("ben",))
    assert "it is the online signer's turn" in said
    host.run("resign", signers=("host",))
    before = host.versions()
    host.run("sign", *gather, signers=("host",))
    raised = {name: before[name] + 1 for name in ("targets", "snapshot", "timestamp")}
    assert host.versions() == {**before, **raised}
    user.refresh(host.files())
    assert user.channels == {"stable": ["b3", "b1"], "nightly": ["b4", "b2"]}
    # The data of the last one give what was signed: nothing is left to write by hand.
    files = host.files()
    host.run("sign", *gather, signers=("host",))
    shutil.rmtree(host.signed)
    host.run("sign")
    assert host.files() == files


def test_a_holder_without_the_raised_version_signs_nothing_else(team: Team, tmp_path: Path) -> None:
    ben = cloned(team, "ben")
    gather = ("--gather", tmp_path / "usb")
    ben.add("stable", "b3")
    code, _, err = ben.tried("sign", *gather, signers=("ben",))
    assert (code, "other content exists under the same version" in err) == (1, True), err
    assert not (tmp_path / "usb").exists()
    # Another one has raised: the same version, and other content.
    team.add("stable", "b5")
    (ben.data / "releases" / "b5.json").write_text(json.dumps(release("b5", publisher="another")))
    team.run("sign", "--raise", *gather, signers=("anna",))
    begun = {path: path.read_bytes() for path in (tmp_path / "usb").rglob("*.json")}
    code, _, err = ben.tried("sign", *gather, signers=("ben",))
    assert (code, "other content is gathered under the same version" in err) == (1, True), err
    code, _, err = ben.tried("sign", "--raise", *gather, signers=("ben",))
    assert (code, "leave out --raise" in err) == (1, True), err
    assert {path: path.read_bytes() for path in (tmp_path / "usb").rglob("*.json")} == begun


def test_an_old_copy_of_the_channel_gets_no_second_content(team: Team) -> None:
    """A machine whose data went back would sign a version that users already have."""
    old = cloned(team, "old")
    team.add("nightly", "b3")
    team.run("sign", "--channel", "nightly", signers=MACHINE)
    served = team.home / "served"
    team.run("publish", served)
    old.add("nightly", "b4")
    old.run("sign", "--channel", "nightly", signers=MACHINE)
    code, _, err = old.tried("publish", served)
    assert (code, "other content exists under the same version" in err) == (1, True), err


def test_a_promotion_is_signed_by_holders_without_the_facts(team: Team, tmp_path: Path) -> None:
    anna, ben, host = (cloned(team, name) for name in ("anna", "ben", "host"))
    gather = ("--gather", tmp_path / "usb")
    host.add("nightly", "b3")
    host.run("sign", "--channel", "nightly", signers=MACHINE)
    # Ben's copy is older than b3: the folder brings its release file.
    shutil.rmtree(anna.signed)
    shutil.copytree(host.signed, anna.signed)
    because = ("--because", "a fix", "--on", "2026-11-23")
    anna.run("promote", "b3", "--to", "stable", *because)
    anna.run("sign", "--raise", *gather, signers=("anna",))
    said = ben.run("sign", *gather, signers=("ben",))
    assert "it did not wait: a fix" in said
    host.run("sign", *gather, signers=("host",))
    assert channels_of(host) == {"stable": ["b3", "b1"], "nightly": ["b3", "b2"]}
    assert json.loads((host.data / "promoted.json").read_text())[0]["release"] == "b3"


def test_a_channel_may_have_several_holders(team: Team, tmp_path: Path) -> None:
    both = {"signers": ["chris", "dana"], "threshold": 2}
    team.edit(lambda plan: plan["roles"]["nightly"].update(both))
    team.run("sign", "--raise", signers=(*PEOPLE, "chris", "dana", "host"))
    team.add("nightly", "b3")
    code, _, err = team.tried("sign", "--channel", "nightly", signers=("chris", "host"))
    assert (code, "nightly: 1 of 2 signatures" in err) == (1, True), err
    gather = ("--channel", "nightly", "--gather", tmp_path / "usb")
    assert "nightly: 1 of 2" in team.run("sign", *gather, signers=("chris",))
    team.run("resign", signers=("host",))
    team.run("sign", *gather, signers=("dana",))
    team.run("sign", *gather, signers=("host",))
    assert channels_of(team) == {"stable": ["b1"], "nightly": ["b3", "b2"]}


# --- what holders read ---------------------------------------------------------------------


def test_a_review_says_in_words_what_would_change(team: Team) -> None:
    wider = release("b3")
    cpu = wider["platforms"]["linux-amd64"]["variants"].pop("cpu")
    wider["platforms"]["linux-amd64"]["variants"]["vulkan"] = {**cpu, "backend": "vulkan"}
    wider["unattested"] = "it is a test"
    path = team.data / "releases" / "b1.json"
    same = release("b1")
    same["platforms"]["linux-amd64"]["variants"]["cpu"]["requires"] = {"glibc": "2.38"}
    path.write_text(json.dumps(same))
    team.add("stable", "b3")
    document = json.dumps({**wider, "platforms": wider["platforms"]})
    document = document.replace('"default": "cpu"', '"default": "vulkan"')
    document = document.replace('["cpu"]', '["vulkan"]')
    (team.data / "releases" / "b3.json").write_text(document)
    team.run("revoke", "b1", "--reason", "it leaks", "--on", "2026-11-22")
    team.edit(lambda plan: plan["roles"]["targets"].update(signers=["anna", "chris"]))
    before = team.files()
    said = team.run("review").splitlines()
    for line in (
        "changed   b1 (stable), built by simulator, 0 MB",
        "          needs: linux-amd64 cpu: glibc none -> 2.38",
        "new       b3 (stable), built by simulator, 0 MB",
        "          its builder is not proven: it is a test",
        "          compared with: b1",
        "          gained: linux-amd64 vulkan",
        "          LOST: linux-amd64 cpu",
        "revoked   b1: it leaks",
        "          joined: chris",
        "          LEFT: ben",
        "nightly   stays as it is published",
    ):
        assert line in said, said
    assert team.files() == before


def test_a_review_of_nothing_new_names_no_release(team: Team) -> None:
    said = team.run("review")
    assert "b1" not in said
    assert "targets   1 -> 2, until " in said


def test_a_review_shows_what_moves_and_what_goes(team: Team) -> None:
    team.add("stable", "b3")
    team.run("sign", "--raise")
    team.edit(lambda plan: plan["channels"].update(stable=["b3"], lts=["b3"]))
    said = team.run("review")
    assert "gone      b1 (stable)" in said
    assert "moved     b3 (stable -> lts, stable)" in said
    team.add("nightly", "b4")
    said = team.run("review", "--channel", "nightly")
    assert "new       b4 (nightly)" in said
    assert "nightly   1 -> 2" in said
    assert "b3" not in said


def test_a_review_for_programs_follows_its_schema(team: Team) -> None:
    team.add("stable", "b3")
    done = read(team.run("review", "--json"), PUBLISHER)["data"]
    (change,) = done["releases"]
    assert (change["release"], change["change"], change["after"]) == ("b3", "new", ["stable"])
    assert [each["role"] for each in done["roles"]] == ["targets", "snapshot", "timestamp"]
    assert done["kept"] == ["nightly"]


# --- asked on a terminal -------------------------------------------------------------------


@contextmanager
def asked(team: Team, *words: str) -> Iterator[Screen]:
    """A holder at a terminal, who is asked whether to sign."""
    signers = signers_file(team.home / "all.json", *PEOPLE, *MACHINE)
    env = environment(team.home / "home", **signers)
    command = (*PUBLISHER_COMMAND, "sign", "--raise", "--data", str(team.data), *words)
    with screen(team.home / "tmux", command, env, columns=90) as shown:
        shown.wait_for(lambda text: "Sign this? [y/N]" in text)
        yield shown


def test_a_holder_reads_the_change_before_the_question(team: Team) -> None:
    team.add("stable", "b3")
    before = team.files()
    with asked(team) as shown:
        assert "new       b3 (stable), built by simulator" in shown.text
        shown.keys("n", "Enter")
        assert shown.exit_code() == 1
        assert "nothing was signed" in shown.text
    assert team.files() == before


def test_a_reader_keeps_no_job_waiting(team: Team) -> None:
    team.add("stable", "b3")
    with asked(team) as shown:
        team.run("resign", signers=("host",))
        team.run("sign", "--channel", "nightly", signers=MACHINE)
        shown.keys("y", "Enter")
        assert shown.exit_code() == 0, shown.text
    assert channels_of(team) == {"stable": ["b3", "b1"], "nightly": ["b2"]}


def test_what_changed_while_a_holder_read_is_not_signed(team: Team) -> None:
    team.add("stable", "b3")
    before = team.files()
    with asked(team) as shown:
        team.add("stable", "b4")
        shown.keys("y", "Enter")
        assert shown.exit_code() == 1
        assert "other content is to be signed by now" in shown.text
    assert team.files() == before
