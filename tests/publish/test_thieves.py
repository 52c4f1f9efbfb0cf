"""What a thief changes in a publisher's data, in a plan that is passed on, or during a review."""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.own_publisher import write_plan
from support.program import PUBLISHER as PUBLISHER_COMMAND
from support.program import environment
from support.release_data import is_one_error, keys_of, release_tool, signers_file
from support.schemas import read
from support.screens import Screen, screen
from support.teams import MACHINE, PEOPLE, Team, release
from support.tools import missing
from tuf.api.metadata import Metadata

from ci.schemas import PUBLISHER

PUBLIC = keys_of("anna", "ben", "chris", "dana", "machine", "thief")


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """Two people of whom both sign, a machine for nightly, and two published releases."""
    made = Team(tmp_path / "first")
    made.data.mkdir(parents=True)
    write_plan(made.data, {"stable": [], "nightly": []})
    made.edit(lambda document: document["keys"].update(keys_of("machine", "chris")))
    made.delegate()
    made.add("stable", "b1")
    made.add("nightly", "b2")
    made.run("sign", "--issued", "2026-11-20", "--yes")
    return made


def cloned(team: Team, name: str) -> Team:
    shutil.copytree(team.data, team.home.parent / name / "data")
    return Team(team.home.parent / name)


def rewrite(team: Team, tag: str, change: Callable[[Any], object]) -> None:
    """Change a release file of the data, as an editor or a pull does."""
    path = team.data / "releases" / f"{tag}.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def cpu(document: Any) -> Any:
    return document["platforms"]["linux-amd64"]["variants"]["cpu"]


def other_archive(document: Any) -> None:
    """The same name and size, and other bytes."""
    artifact = cpu(document)["artifacts"][0]
    artifact["url"] = artifact["url"].replace("releases.example", "releases.examp1e")
    artifact["sha256"] = "f" * 64


def refused(team: Team, *words: str | Path, code: int = 1) -> str:
    """The one error of a command that changes and signs nothing."""
    before = team.files()
    found, _, err = team.tried(*words)
    assert (found, team.files() == before) == (code, True), err
    return err


def warnings(team: Team, *words: str | Path) -> list[str]:
    said = team.run("review", *words)
    return [line for line in said.splitlines() if line.startswith("WARNING: ")]


# --- a plan that a thief passes on -----------------------------------------------------------


def begun(team: Team) -> tuple[Team, Path]:
    """A holder, and the folder with a plan that another one has begun."""
    ben, stick = cloned(team, "ben"), team.home / "stick"
    team.add("stable", "b3")
    team.run("sign", "--raise", "--yes", "--gather", stick, signers=("anna",))
    return ben, stick


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ben": PUBLIC["thief"]}, ("ben", "thief")),
        ({"chris": PUBLIC["thief"]}, ("chris", "thief")),
        ({"chris": PUBLIC["thief"], "chris-old": PUBLIC["chris"]}, ("chris", "chris")),
        ({"ben": PUBLIC["chris"], "chris": PUBLIC["ben"]}, ("ben", "chris")),
    ],
    ids=["ours", "another holder's", "renamed", "exchanged"],
)
@pytest.mark.parametrize("command", ["sign", "review"])
def test_N04_a_plan_with_another_key_for_a_known_name_is_refused(
    team: Team, changed: dict[str, str], told: tuple[str, str], command: str
) -> None:
    ben, stick = begun(team)
    plan = (stick / "repository.toml").read_text()
    for name, key in changed.items():
        line = f'{name} = "{PUBLIC.get(name, "")}"'
        new = f'{name} = "{key}"'
        plan = plan.replace(line, new) if line in plan else plan.replace("[keys]", f"[keys]\n{new}")
    (stick / "repository.toml").write_text(plan)
    words = ("--yes",) if command == "sign" else ()
    said = refused(ben, command, *words, "--gather", stick)
    assert is_one_error(said), said
    name, other = told
    assert f"[keys] has {name} already, with " in said
    assert f"{name} of [keys]: ed25519 {PUBLIC[name]}" in said
    assert PUBLIC[other] in said


def test_N04_where_a_holder_looks_is_not_taken_from_a_plan(team: Team) -> None:
    ben, stick = begun(team)
    rewritten = json.dumps(release("b3"))
    (ben.data / "releases" / "b3.json").write_text(rewritten)
    passed = stick / "repository.toml"
    passed.write_text(f'published = "https://thief.example/"\n{passed.read_text()}')
    ben.run("sign", "--yes", "--gather", stick, signers=("ben", "host"))
    plan = (ben.data / "repository.toml").read_text()
    assert '"b3"' in plan
    assert "thief.example" not in plan


# --- data that a thief has changed -----------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("sign", "--raise", "--yes"), ("review",), ("resign",), ("publish", "site")],
    ids=" ".join,
)
def test_N04_a_published_key_that_the_data_replace_is_refused(
    team: Team, words: tuple[str, ...]
) -> None:
    words = tuple(str(team.home / word) if word == "site" else word for word in words)
    team.edit(lambda plan: plan["keys"].update(ben=PUBLIC["thief"]))
    environ = signers_file(team.home / "signers.json", "anna", *MACHINE)
    environ["XDG_STATE_HOME"] = str(team.home / "state")
    before = team.files()
    done = release_tool(*words, "--data", team.data, **environ)
    assert (done.returncode, team.files() == before) == (1, True), done.stderr
    assert "[keys] lacks the key of a published signer of root" in done.stderr
    assert f"published: ed25519 {PUBLIC['ben']}" in done.stderr
    assert not (team.home / "site").exists()


def test_N04_a_holder_whose_own_key_is_replaced_is_told_both(team: Team) -> None:
    team.edit(lambda plan: plan["keys"].update({"ben": PUBLIC["thief"], "b": PUBLIC["ben"]}))
    said = refused(team, "sign", "--raise", "--yes")
    assert "ben: its key is not the one in [keys]" in said
    assert f"ben of [keys]: ed25519 {PUBLIC['thief']}" in said
    assert f"ben at hand: ed25519 {PUBLIC['ben']}" in said


def test_N04_a_name_that_looks_like_another_is_refused(team: Team) -> None:
    team.edit(lambda plan: plan["keys"].update({"\u0430nna": PUBLIC["thief"]}))
    said = refused(team, "review", code=2)
    assert r"'\u0430nna' is no name of a signer" in said


def test_N04_another_archive_of_a_published_release_is_shown_in_full(team: Team) -> None:
    old = json.loads((team.data / "releases" / "b1.json").read_text())
    rewrite(team, "b1", other_archive)
    said = warnings(team)
    place = "b1: ARCHIVE CHANGED: platforms linux-amd64 variants cpu artifacts 1"
    before = cpu(old)["artifacts"][0]
    assert f"WARNING: {place} sha256: {before['sha256']} -> {'f' * 64}" in said
    after = before["url"].replace("example", "examp1e")
    assert f"WARNING: {place} url: {before['url']} -> {after}" in said
    # Where there are colours, the whole line is red.
    shown = team.run("review", "--color", "always")
    assert f"\x1b[1;31mWARNING: {place} url" in shown


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda it: cpu(it).update(arguments=["--tools", "all"]),
            'cpu arguments: none -> ["--tools',
        ),
        (lambda it: cpu(it).update(server="other"), "cpu server: llama-server -> other"),
        (
            lambda it: it.update(publisher="simul\u0430tor"),
            r'publisher: simulator -> "simul\u0430tor"',
        ),
        (lambda it: it.update(published="2027-01-01"), "published: "),
        (lambda it: it.update(version="9.9.9"), ": version: none -> 9.9.9"),
        (lambda it: cpu(it)["artifacts"][0].update(root="else"), "artifacts 1 root: "),
        (lambda it: cpu(it)["artifacts"][0].update(size=7), "artifacts 1 size: "),
    ],
    ids=["arguments", "server", "look-alike", "day", "version", "folder", "size"],
)
def test_N04_every_field_of_a_published_release_that_changes_is_shown(
    team: Team, change: Callable[[Any], object], told: str
) -> None:
    rewrite(team, "b1", change)
    assert any(told in line for line in warnings(team)), warnings(team)


def test_N04_a_new_release_from_another_host_is_shown(team: Team) -> None:
    team.add("stable", "b3")
    assert warnings(team) == []
    rewrite(team, "b3", other_archive)
    (line,) = warnings(team)
    assert line == ("WARNING: b3: NEW HOST: archives on releases.examp1e; before: releases.example")


@pytest.mark.parametrize(
    ("role", "fields", "told"),
    [
        ("root", {"threshold": 1}, "FEWER SIGNATURES: 1 instead of 2 for root"),
        ("targets", {"threshold": 1}, "FEWER SIGNATURES: 1 instead of 2 for targets"),
        ("targets", {"signers": ["anna", "chris"]}, "KEY CHANGED: other keys would sign targets"),
        ("timestamp", {"days": 36525}, "LONGER LIFE: a signature of timestamp holds for 36525"),
        ("snapshot", {"signers": ["chris"]}, "KEY CHANGED: other keys would sign snapshot"),
        # Its own metadata stay valid, so nobody signs them again; targets say who may from now on.
        (
            "nightly",
            {"signers": ["machine", "chris"]},
            "KEY CHANGED: other keys would sign nightly",
        ),
        (
            "nightly",
            {"paths": ["releases/b[0-9].json"]},
            'PATHS CHANGED: nightly may sign ["releases/b[0-9].json"] instead of ["releases/*"]',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.islower() else "",
)
def test_N04_more_power_for_somebody_is_shown(
    team: Team, role: str, fields: dict[str, Any], told: str
) -> None:
    team.edit(lambda plan: plan["roles"][role].update(fields))
    said = team.run("review")
    assert any(line.startswith(f"WARNING: {told}") for line in said.splitlines()), said
    if "chris" in fields.get("signers", ()):
        assert f"joined: chris (ed25519 {PUBLIC['chris']})" in said


def test_N04_a_channel_that_loses_its_signers_is_shown(team: Team) -> None:
    def undelegated(plan: Any) -> None:
        del plan["roles"]["nightly"]

    team.edit(undelegated)
    assert "WARNING: GONE: nightly has no signers of its own any more" in warnings(team)


def test_N04_builds_of_a_revoked_release_under_a_new_name_are_shown(team: Team) -> None:
    team.run("revoke", "b1", "--reason", "it leaks", "--on", "2026-11-21")
    team.add("stable", "b3")
    twin = json.loads((team.data / "releases" / "b1.json").read_text()) | {"release": "b3"}
    (team.data / "releases" / "b3.json").write_text(json.dumps(twin))
    (line,) = warnings(team)
    told = "b3: REVOKED BUILDS: it has builds of b1, which is revoked (it leaks): "
    assert line == f"WARNING: {told}clients refuse them under every name"


def test_N04_a_revocation_that_gets_the_builds_of_others_is_shown_again(team: Team) -> None:
    team.run("revoke", "b1", "--reason", "it leaks", "--on", "2026-11-21")
    team.run("sign", "--raise", "--yes")
    assert "revoked   b1" not in team.run("review")
    path = team.data / "revoked.json"
    entries = json.loads(path.read_text())
    entries[0]["builds"].append([f"{2:064x}"])
    path.write_text(json.dumps(entries))
    said = team.run("review")
    assert "revoked   b1: it leaks; clients then refuse the builds of b2, too" in said


def test_N04_words_of_a_release_hide_no_line(team: Team) -> None:
    team.add("stable", "b3")
    rewrite(
        team,
        "b3",
        lambda it: it.update(unattested="fine\x1b[2K\x1b[9A\r\u202e", publisher="a\u0430"),
    )
    code, out, err = team.tried("review")
    # The client's own rules may refuse it before.
    assert (out + err).replace("\n", "").isprintable(), ascii(out + err)
    assert code in (0, 1)


def test_N04_the_digests_of_a_review_are_those_of_what_is_signed(team: Team) -> None:
    team.add("stable", "b3")
    digests = read(team.run("review", "--json"), PUBLISHER)["data"]["review"]["digests"]
    shown = team.run("review")
    assert f"content: sha256 {digests['targets']}" in shown
    team.run("sign", "--raise", "--yes")
    files = team.files()
    targets: Metadata[Any] = Metadata.from_bytes(files["metadata/2.targets.json"])
    assert hashlib.sha256(targets.signed_bytes).hexdigest() == digests["targets"]
    name = f"targets/releases/{digests['releases/b3.json']}.b3.json"
    assert hashlib.sha256(files[name]).hexdigest() == digests["releases/b3.json"]


# --- between the review and the yes ----------------------------------------------------------


@contextmanager
def asked(team: Team) -> Iterator[Screen]:
    """A holder at a terminal, who has read the review and is asked."""
    signers = signers_file(team.home / "all.json", *PEOPLE, *MACHINE)
    env = environment(team.home / "home", **signers)
    command = (*PUBLISHER_COMMAND, "sign", "--raise", "--data", str(team.data))
    with screen(team.home / "tmux", command, env, columns=90) as shown:
        shown.wait_for(lambda text: "[y/N]" in text)
        yield shown


def linked(team: Team) -> None:
    """A release file that becomes a link to another one of the same size."""
    path = team.data / "releases" / "b3.json"
    text = path.read_text()
    other = team.home / "other.json"
    other.write_text(text.replace("releases.example", "releases.examp1e"))
    path.unlink()
    path.symlink_to(other)


def dropped(team: Team) -> None:
    (team.data / "revoked.json").write_text("[]")


@pytest.mark.parametrize(
    "swap",
    [
        lambda team: rewrite(team, "b3", other_archive),
        linked,
        dropped,
        lambda team: team.edit(lambda plan: plan["roles"]["targets"].update(threshold=1)),
        lambda team: team.edit(lambda plan: plan["roles"]["targets"].update(days=36525)),
        lambda team: team.edit(lambda plan: plan["roles"]["nightly"].update(signers=["chris"])),
        lambda team: rewrite(team, "b3", lambda it: cpu(it).update(arguments=["--tools", "all"])),
    ],
    ids=["archive", "link", "revocation", "threshold", "life", "channel", "arguments"],
)
def test_N04_what_is_swapped_before_the_yes_is_not_signed(
    team: Team, swap: Callable[[Team], object]
) -> None:
    team.run("revoke", "b1", "--reason", "it leaks", "--on", "2026-11-21")
    team.add("stable", "b3")
    before = team.files()
    with asked(team) as shown:
        swap(team)
        shown.keys("y", "Enter")
        assert shown.exit_code() == 1
        assert "other content is to be signed by now" in shown.text
    assert team.files() == before


def test_N04_the_weekly_roles_live_as_long_as_was_shown(team: Team) -> None:
    """Their versions may be newer by then, and are not compared: nothing else of them counts."""
    team.add("stable", "b3")
    with asked(team) as shown:
        team.edit(lambda plan: plan["roles"]["timestamp"].update(days=36525))
        shown.keys("y", "Enter")
        assert shown.exit_code() == 0, shown.text
    timestamp: Any = Metadata.from_bytes(team.files()["metadata/timestamp.json"]).signed
    made = timestamp.unrecognized_fields["issued"][:10]
    days = f"{timestamp.expires:%Y-%m-%d}", made
    assert int(days[0][:4]) - int(made[:4]) in (99, 100)
    assert (timestamp.expires.date() - timestamp.expires.date().fromisoformat(made)).days == 36500


def test_N04_the_question_says_how_many_warnings_there_are(team: Team) -> None:
    rewrite(team, "b1", other_archive)
    with asked(team) as shown:
        # The archive's digest and address, and the address of its host.
        assert "Sign this with 3 warnings? [y/N]" in " ".join(shown.text.split())
        shown.keys("n", "Enter")
        assert shown.exit_code() == 1


# --- who else can write ----------------------------------------------------------------------


def open_folder(team: Team) -> None:
    (team.data / "releases").chmod(0o777)


def open_file(team: Team) -> None:
    (team.data / "releases" / "b1.json").chmod(0o666)


def open_parent(team: Team) -> None:
    team.home.chmod(0o777)


def foreign_file(team: Team) -> None:
    if os.geteuid() != 0:
        missing("root's right to give a file away")
    os.chown(team.data / "repository.toml", 1234, 1234)


def foreign_repository(team: Team) -> None:
    if os.geteuid() != 0:
        missing("root's right to give a file away")
    os.chown(team.signed / "metadata", 1234, 1234)


@pytest.mark.parametrize(
    "words",
    [
        ("sign", "--raise", "--yes"),
        ("sign", "--channel", "nightly"),
        ("resign",),
        ("rotate", "targets=anna,chris", "--yes"),
        ("review",),
        ("publish", "site"),
        ("revoke", "b1", "--reason", "it leaks"),
    ],
    ids=lambda words: words[0] + (words[1] if len(words) == 3 else ""),
)
@pytest.mark.parametrize(
    "opened", [open_folder, open_file, open_parent, foreign_file, foreign_repository]
)
def test_N04_data_that_others_can_write_are_refused(
    team: Team, words: tuple[str, ...], opened: Callable[[Team], None]
) -> None:
    opened(team)
    words = tuple(str(team.home / word) if word == "site" else word for word in words)
    found, _, err = team.tried(*words)
    assert found != 0
    assert is_one_error(err, "unsafe-location"), err
    assert not (team.home / "site").exists()


def test_N04_a_new_repository_is_closed_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        done = release_tool(
            "init", tmp_path / "new" / "data", "--publisher", "us", "--root", "anna",
            "--signers", tmp_path / "keys" / "all", "--unencrypted",
        )  # fmt: skip
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert not [path for path, mode in modes.items() if mode & 0o022]
    assert modes[tmp_path / "new" / "data"] == modes[tmp_path / "new" / "data/releases"] == 0o755
    assert modes[tmp_path / "keys" / "all"] == 0o700


# --- files that are none ---------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def kernel(path: Path) -> None:
    path.symlink_to("/proc/kmsg")


def giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def nested(path: Path) -> None:
    path.write_text('{"release": "b1", "x": ' + "[" * 100_000 + "]" * 100_000 + "}")


def long_number(path: Path) -> None:
    path.write_text('{"release": "b1", "size": ' + "9" * 5_000_000 + "}")


@pytest.mark.parametrize(
    "name", ["releases/b1.json", "repository.toml", "revoked.json", "promoted.json", "since.json"]
)
@pytest.mark.parametrize("made", [fifo, kernel, giant, nested, long_number])
def test_N04_a_review_of_what_is_no_file_ends_with_one_error(
    team: Team, name: str, made: Callable[[Path], None]
) -> None:
    path = team.data / name
    path.unlink(missing_ok=True)
    made(path)
    assert is_one_error(refused(team, "review"))
