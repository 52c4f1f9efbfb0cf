"""Holders who sign one after another, each on another machine, while the jobs go on."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.own_publisher import write_plan
from support.program import PUBLISHER as PUBLISHER_COMMAND
from support.program import environment, run_program
from support.release_data import keys_of, release_tool, signers_file
from support.schemas import read
from support.screens import Screen, screen
from support.teams import MACHINE, PEOPLE, Client, Team, channels_of, release

from ci.schemas import PUBLISHER
from tsuku_publish.holders.signers import VARIABLE


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


def test_what_an_old_copy_has_gathered_is_refused(team: Team, tmp_path: Path) -> None:
    ben, stick = cloned(team, "ben"), tmp_path / "stick"
    for tag in ("b3", "b5"):
        team.add("stable", tag)
        team.run("sign", "--raise")
    ben.run("sign", "--raise", "--gather", stick, signers=("ben",))
    files = team.files()
    code, _, err = team.tried("sign", "--gather", stick)
    assert (code, "has signatures of targets 2: newer versions are published" in err) == (1, True)
    assert "sign --raise --gather" in err
    assert team.files() == files
    # The folder can be used again, for what comes next.
    team.add("stable", "b7")
    team.run("sign", "--raise", "--gather", stick)
    assert channels_of(team)["stable"] == ["b7", "b5", "b3", "b1"]


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
    wider |= {"unattested": "it is a test", "unmeasured": "nobody could read it"}
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
        "          it was not measured: nobody could read it",
        "          compared with: b1",
        "          gained: linux-amd64 vulkan",
        "          LOST: linux-amd64 cpu",
        "revoked   b1: it leaks",
        f"          joined: chris (ed25519 {keys_of('chris')['chris']})",
        f"          LEFT: ben (ed25519 {keys_of('ben')['ben']})",
        "nightly   stays as it is published",
    ):
        assert line in said, said
    assert team.files() == before


def test_a_review_of_nothing_new_names_no_release(team: Team) -> None:
    said = team.run("review")
    # As a word: the digest of what is signed may have these letters.
    assert " b1 " not in said
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
    assert " b3 " not in said


def test_a_review_for_programs_follows_its_schema(team: Team) -> None:
    team.add("stable", "b3")
    done = read(team.run("review", "--json"), PUBLISHER)["data"]["review"]
    (change,) = done["releases"]
    assert (change["release"], change["change"], change["after"]) == ("b3", "new", ["stable"])
    assert [each["role"] for each in done["roles"]] == ["targets", "snapshot", "timestamp"]
    assert done["kept"] == ["nightly"]


# --- a copy that is older than what is published ---------------------------------------------


@pytest.fixture
def stale(team: Team, tmp_path: Path) -> Team:
    """A holder whose copy is from before the last release, which users have in ``served``."""
    holder = cloned(team, "stale")
    team.add("stable", "b3")
    team.run("sign", "--raise")
    team.run("publish", tmp_path / "served")
    holder.add("stable", "b4")
    return holder


def unchanged(team: Team, *words: str | Path, signers: tuple[str, ...] = ()) -> str:
    """The error of a command that has signed nothing."""
    before = team.files()
    code, out, err = team.tried(*words, signers=signers)
    assert (code, out) == (1, ""), err
    assert team.files() == before
    assert not (team.home / "usb").exists()
    return err


@pytest.mark.parametrize(
    "words",
    [
        ("sign", "--raise"),
        ("sign", "--raise", "--gather", "usb"),
        ("rotate", "targets=ben,anna"),
        ("review",),
    ],
    ids=" ".join,
)
def test_a_holder_with_an_older_copy_is_stopped_before_signing(
    stale: Team, tmp_path: Path, words: tuple[str, ...]
) -> None:
    place = tmp_path / "served"
    words = tuple(str(stale.home / word) if word == "usb" else word for word in words)
    said = unchanged(stale, *words, "--published", place, signers=PEOPLE)
    assert f"{stale.signed} is not what is published at {place}" in said
    assert f"targets 2 is published, and {stale.signed} has 1" in said
    assert f"fetch what is published into {stale.signed}, then begin again" in said
    # The data may name the place, seen from them.
    stale.edit(lambda document: document.update(published="../../served"))
    assert "targets 2 is published" in unchanged(stale, *words, signers=PEOPLE)
    shutil.copytree(place, stale.signed, dirs_exist_ok=True)
    if words[0] != "rotate":
        stale.run(*words, signers=(*PEOPLE, "host"))


def test_other_content_of_the_published_version_is_no_beginning(
    stale: Team, tmp_path: Path
) -> None:
    stale.run("sign", "--raise")
    said = unchanged(stale, "sign", "--raise", "--published", tmp_path / "served")
    assert f"targets 2 is published with other content than {stale.signed} has" in said


def test_the_online_signer_needs_every_role_as_it_is_published(team: Team, tmp_path: Path) -> None:
    host, served = cloned(team, "host"), tmp_path / "served"
    team.run("sign", "--channel", "nightly", signers=MACHINE)
    team.run("publish", served)
    host.add("stable", "b3")
    # People sign targets, which are the same there; the next snapshot would go back for nightly.
    gather = ("--gather", tmp_path / "usb", "--published", served)
    host.run("sign", "--raise", *gather, signers=PEOPLE)
    code, _, err = host.tried("sign", *gather, signers=("host",))
    assert code == 1
    assert f"nightly 2 is published, and {host.signed} has 1" in err
    assert "timestamp 2 is published" in err
    shutil.copytree(served, host.signed, dirs_exist_ok=True)
    assert "signed and checked" in host.run("sign", *gather, signers=("host",))


def test_a_place_that_has_nothing_yet_or_does_not_answer(team: Team, tmp_path: Path) -> None:
    team.add("stable", "b3")
    team.edit(lambda document: document.update(published="https://127.0.0.1:1/"))
    said = unchanged(team, "sign", "--raise")
    assert "127.0.0.1" in said
    assert "go on without asking what is published: --offline" in said
    (tmp_path / "empty").mkdir()
    assert "b3" in team.run("review", "--published", tmp_path / "empty")
    assert "b3" in team.run("review", "--offline")
    team.run("sign", "--raise", "--offline")


def test_another_repository_at_the_place_is_an_error(team: Team, tmp_path: Path) -> None:
    other = Team(tmp_path / "other")
    other.data.mkdir(parents=True)
    write_plan(other.data, {"stable": []})
    other.add("stable", "b1")
    other.run("sign")
    team.add("stable", "b3")
    said = unchanged(team, "sign", "--raise", "--published", other.signed)
    assert "targets 1 is published with other content" in said


@pytest.mark.parametrize("words", [("review",), ("sign", "--raise")], ids=" ".join)
def test_what_a_holder_sees_counts_for_the_time_until_promotion(
    team: Team, tmp_path: Path, words: tuple[str, ...]
) -> None:
    served = tmp_path / "served"
    team.run("publish", served)
    promoter = cloned(team, "promoter")
    team.add("stable", "b3")
    # Not at a time that an option says: it would be any time.
    other = "--on" if words[0] == "review" else "--issued"
    team.run(*words, "--published", served, other, "2026-11-20")
    assert not (team.home / "state").exists()
    team.run(*words, "--published", served)
    (record,) = (team.home / "state" / "tsuku-publish" / "seen").glob("*.json")
    assert [*json.loads(record.read_text())["nightly"]] == ["b2"]
    # Without a place it is what the copy has.
    promoter.run("review")
    assert (promoter.home / "state" / "tsuku-publish" / "seen" / record.name).exists()


# --- asked, or not -------------------------------------------------------------------------


def unasked(team: Team, *words: str | Path, signers: tuple[str, ...]) -> tuple[int, str, str]:
    """What a job gets, with nobody at a terminal who could agree."""
    environ = signers_file(team.home / "job.json", *signers)
    env = environment(team.home / "home", **environ)
    done = run_program(
        *map(str, words), "--data", str(team.data), env=env, command=PUBLISHER_COMMAND
    )
    return done.code, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["sign", "rotate"])
def test_people_sign_without_a_terminal_on_purpose_only(team: Team, command: str) -> None:
    team.add("stable", "b3")
    words = ("sign", "--raise") if command == "sign" else ("rotate", "targets=anna,ben")
    before = team.files()
    code, out, err = unasked(team, *words, signers=(*PEOPLE, *MACHINE))
    assert code == 1
    assert "nothing was signed: anna, ben must agree, and there is no terminal to ask" in err
    assert "with --yes" in err
    assert "new       b3 (stable)" in out, "what is to be read is shown all the same"
    assert team.files() == before
    assert unasked(team, *words, "--yes", signers=(*PEOPLE, *MACHINE))[0] == 0
    assert team.files() != before


def test_a_machine_ends_a_ceremony_without_an_answer(team: Team) -> None:
    team.add("stable", "b3")
    gather = ("--gather", team.home / "gathered")
    team.run("sign", "--raise", *gather, signers=("anna",))
    assert unasked(team, "sign", *gather, signers=("ben",))[0] == 1
    team.run("sign", *gather, signers=("ben",))
    code, out, err = unasked(team, "sign", *gather, signers=("host",))
    assert code == 0, err
    assert "signed and checked" in out
    assert channels_of(team)["stable"] == ["b3", "b1"]


@pytest.mark.parametrize(
    ("names", "gather", "said"),
    [
        (("anna", "host"), False, "the signers at hand are too few: targets: 1 of 2 signatures"),
        (PEOPLE, False, "the online signer is not at hand: host"),
        (("machine",), True, "machine signs none of: root, targets, snapshot, timestamp"),
    ],
)
def test_who_cannot_sign_is_told_before_reading(
    team: Team, names: tuple[str, ...], gather: bool, said: str
) -> None:
    team.add("stable", "b3")
    words = ("--gather", team.home / "gathered") if gather else ()
    code, out, err = team.tried("sign", "--raise", *words, signers=names)
    assert (code, out) == (1, "")
    assert said in err
    assert not (team.home / "gathered").exists()


def test_a_key_of_the_right_name_that_is_not_the_right_one_is_named(team: Team) -> None:
    release_tool("new-signer", "ben", team.home / "ben.json", "--unencrypted")
    environ = signers_file(team.home / "all.json", "anna", *MACHINE)
    environ[VARIABLE] += f"{os.pathsep}{team.home / 'ben.json'}"
    done = release_tool("sign", "--raise", "--data", team.data, **environ)
    assert done.returncode == 1
    assert "ben: its key is not the one in [keys]" in done.stderr


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
