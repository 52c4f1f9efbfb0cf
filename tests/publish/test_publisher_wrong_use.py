"""Wrong uses of the publisher's commands: one clear error each, and nothing is lost or left."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, stand_in
from support.release_data import is_one_error, release_tool

from tsuku_publish.cli.main import group
from tsuku_publish.holders.signers import VARIABLE

URL = "https://host.test/archives/"
PEOPLE = ("--publisher", "a company", "--root", "anna,ben,chris", "--unencrypted")
WORDS = {
    "add": ("b2", "--variant", "cpu=build", "--into", "archives", "--url", URL),
    "attest": ("b1",),
    "promote": ("b1", "--to", "stable"),
    "publish": ("www",),
    "refresh": ("b1",),
    "revoke": ("b1", "--reason", "it leaks"),
    "rotate": ("root=anna,ben,chris",),
    "sign": ("--raise",),
    "upstream": ("build",),
    "withdraw": ("b1",),
}
"""Arguments of the commands that need some; with them, each can do its work."""
OF_DATA = sorted(
    name for name, each in group.commands.items() if any(one.name == "data" for one in each.params)
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed repository of one release, its signers and a build."""
    folder = tmp_path_factory.mktemp("whole")
    stand_in(folder / "build", devices=NO_DEVICE_STEPS)
    for words in (
        ("init", folder / "company", *PEOPLE),
        ("add", "b1", "--variant", f"cpu={folder / 'build'}", "--data", folder / "company",
         "--into", folder / "archives", "--url", URL),
        ("sign", "--data", folder / "company"),
    ):  # fmt: skip
        done = release_tool(*words, **{VARIABLE: str(folder / "company-signers")})
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def place(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with such a company."""
    shutil.copytree(whole, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "here"


def files(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


def refused(
    place: Path, *words: str, signers: str = "company-signers", slug: str = "publish"
) -> str:
    """What a command said that must end with one error, and change no file."""
    before = files(place)
    done = release_tool(*words, **{VARIABLE: signers})
    assert done.returncode == {"bad-usage": 2, "publish": 1}[slug], done.stdout + done.stderr
    assert is_one_error(done.stderr, slug), done.stderr
    assert files(place) == before
    return done.stderr


# --- the folder of the data --------------------------------------------------------------------


@pytest.mark.parametrize("command", OF_DATA)
def test_a_folder_that_does_not_exist_is_named_and_not_made(place: Path, command: str) -> None:
    said = refused(place, command, *WORDS.get(command, ()), "--data", "nowhere")
    assert "nowhere/" in said
    assert not (place / "nowhere").exists()


@pytest.mark.parametrize("command", OF_DATA)
def test_a_folder_without_a_repository_stays_as_it_is(place: Path, command: str) -> None:
    said = refused(place, command, *WORDS.get(command, ()), "--data", "build")
    assert "build/" in said
    assert not (place / "build" / ".lock").exists()


@pytest.mark.parametrize("command", sorted({*OF_DATA} - {"attest", "feed", "refresh"}))
def test_a_damaged_plan_stops_every_command(place: Path, command: str) -> None:
    (place / "company" / "repository.toml").write_text("x = ")
    said = refused(place, command, *WORDS.get(command, ()), "--data", "company")
    assert "company/repository.toml cannot be understood" in said


@pytest.mark.parametrize("command", ["attest", "feed", "refresh"])
def test_what_is_for_builds_of_upstream_says_so(place: Path, command: str) -> None:
    said = refused(place, command, *WORDS.get(command, ()), "--data", "company")
    assert "no repository of upstream's builds" in said
    assert "with add" in said


def test_a_damaged_repository_is_named_with_what_helps(place: Path) -> None:
    (place / "company" / "signed" / "metadata" / "timestamp.json").write_text("{}")
    for command in ("sign", "resign", "review", "check", "publish", "promote"):
        said = refused(place, command, *WORDS.get(command, ()), "--data", "company")
        assert "timestamp" in said
        assert "fetch the published repository" in said


# --- who signs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signers", "said"),
    [
        ("anna.json", "targets: 1 of 2 signatures"),
        ("host.json", "targets: 0 of 2 signatures"),
        ("anna.json:ben.json", "the online signer is not at hand: host"),
    ],
)
def test_too_few_signers_learn_how_to_go_on(place: Path, signers: str, said: str) -> None:
    named = ":".join(f"company-signers/{name}" for name in signers.split(":"))
    told = refused(place, "sign", "--raise", "--data", "company", signers=named)
    assert said in told
    assert "signers at hand: " in told
    assert "--gather" in told


def test_a_change_under_a_published_version_names_the_way_on(place: Path) -> None:
    (place / "company" / "releases" / "b1.json").unlink()
    plan = place / "company" / "repository.toml"
    plan.write_text(plan.read_text().replace('["b1"]', "[]"))
    told = refused(place, "sign", "--data", "company")
    assert "same version: metadata/1.targets.json" in told
    assert "sign --raise" in told


def test_a_revocation_that_is_not_lost_cannot_be_dropped(place: Path) -> None:
    told = refused(place, "sign", "--raise", "--drop", "b77", "--data", "company")
    assert "b77" in told


@pytest.mark.parametrize("name", ["a/b", "a\nb", "../a", "", "a b", ".a"])
def test_a_signer_has_a_name_that_files_and_keys_can_have(place: Path, name: str) -> None:
    refused(place, "new-signer", name, "new.json", "--unencrypted", slug="bad-usage")


# --- other signers and channels ---------------------------------------------------------------


def key_of(place: Path, name: str) -> str:
    done = release_tool(
        "new-signer", name, place / "company-signers" / f"{name}.json", "--unencrypted"
    )
    (place / f"{name}.txt").write_text(done.stdout)
    return f"{name}.txt"


def test_a_rotation_takes_the_lines_of_new_signers(place: Path) -> None:
    keys = key_of(place, "dana")
    words = ("rotate", "root=anna,ben,dana", "targets=anna,ben,dana", "--data", "company")
    assert "[keys] has no public key of dana" in refused(place, *words)
    done = release_tool(*words, "--keys", keys, **{VARIABLE: "company-signers"})
    assert done.returncode == 0, done.stderr
    text = (place / "company" / "repository.toml").read_text()
    assert text.index("dana = ") < text.index("[roles]"), "the key is with the others"
    (place / "company-signers" / "chris.json").unlink()
    done = release_tool("sign", "--raise", "--data", "company", **{VARIABLE: "company-signers"})
    assert done.returncode == 0, done.stderr


def test_a_key_has_one_name_and_a_name_one_key(place: Path) -> None:
    line = key_of(place, "dana")
    words = ("rotate", "root=anna,ben,dana", "--data", "company", "--keys", line)
    (place / line).write_text((place / line).read_text().replace("dana", "anna"))
    assert "anna already, with another key" in refused(place, *words)
    own = (place / "company" / "repository.toml").read_text()
    (place / line).write_text(
        next(each for each in own.splitlines() if each.startswith("ben =")).replace("ben", "dana")
    )
    assert "ben already, with the key that dana is to have" in refused(place, *words)


def test_a_channel_begins_with_its_own_signer(place: Path) -> None:
    keys = ("--keys", key_of(place, "machine"))
    data = ("--data", "company")
    assert "nightly is no role" in refused(place, "rotate", "nightly=machine", *data, *keys)
    for name in ("Nightly", "a/b", ""):
        refused(place, "rotate", f"{name}=machine", *data, *keys, "--new-channel")
    at_hand = {VARIABLE: "company-signers"}
    for words in (
        ("rotate", "nightly=machine", *data, *keys, "--new-channel"),
        ("add", "b2", "--channel", "nightly", *WORDS["add"][1:], *data),
        ("sign", "--channel", "nightly", *data),
        ("check", *data),
    ):
        done = release_tool(*words, **at_hand)
        assert done.returncode == 0, done.stderr
    assert "nightly   version 2" in done.stdout


# --- builds ------------------------------------------------------------------------------------


def test_one_variant_has_one_build(place: Path) -> None:
    twice = (*WORDS["add"], "--variant", "linux-amd64/cpu=build", "--data", "company")
    said = refused(place, "add", *twice, slug="bad-usage")
    assert "two builds are given for cpu of linux-amd64" in said


@pytest.mark.parametrize("command", ["add", "pack"])
def test_archives_go_into_a_folder(place: Path, command: str) -> None:
    words = {
        "add": ("b2", "--variant", "cpu=build", "--data", "company"),
        "pack": ("build", "company/releases/b1.json", "--variant", "cpu"),
    }[command]
    into = ("--into", "build/llama-server", "--url", URL)
    assert "llama-server is a file" in refused(place, command, *words, *into, slug="bad-usage")


def test_a_release_that_nobody_added_is_not_revoked(place: Path) -> None:
    said = refused(place, "revoke", "b9", "--reason", "it leaks", "--data", "company")
    assert "b9 is no release of company" in said


def test_a_revocation_names_what_it_revokes_as_well(place: Path) -> None:
    for words in (("add", *WORDS["add"]), ("revoke", "b2", "--reason", "it leaks")):
        done = release_tool(*words, "--data", place / "company")
        assert done.returncode == 0, done.stderr
    assert "warning: b1 has builds of b2" in done.stderr


# --- where it is published ---------------------------------------------------------------------


def test_a_place_that_is_no_repository_is_named(place: Path) -> None:
    for words in (
        ("check", "nowhere"),
        ("check", "--published", "nowhere"),
        ("promote", "b1", "--to", "stable", "--published", "nowhere"),
        ("publish", "www", "--from", "nowhere"),
    ):
        assert "nowhere has no metadata/1.root.json" in refused(place, *words, "--data", "company")


def test_another_repository_is_not_taken_for_this_one(place: Path) -> None:
    at_hand = {VARIABLE: "other-signers"}
    for words in (
        ("init", "other", *PEOPLE),
        ("sign", "--data", "other"),
        ("publish", "--data", "other", "www"),
    ):
        assert release_tool(*words, **at_hand).returncode == 0
    assert "www has another repository" in refused(place, "publish", "www", "--data", "company")
    said = refused(place, "check", "--published", "www", "--data", "company")
    assert "www is another repository" in said


# --- secrets -----------------------------------------------------------------------------------


def test_a_search_of_nothing_is_an_error(place: Path) -> None:
    said = refused(place, "secrets", "--repository", "nowhere", slug="bad-usage")
    assert "nowhere is not a folder" in said
    said = refused(place, "secrets", "--repository", "company", "--build", slug="bad-usage")
    assert "company has no pyproject.toml" in said


# --- Ctrl-C, and streams that are closed ---------------------------------------------------------


INTERRUPTED = """
import importlib.abc, sys
class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "securesystemslib":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
from tsuku_publish.__main__ import main
main()
"""


def test_control_c_while_it_starts_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="the shell's redirections")
def test_closed_streams_do_not_end_up_in_a_file(place: Path) -> None:
    line = shlex.join([sys.executable, "-m", "tsuku_publish", "sign"])
    done = subprocess.run(
        ["sh", "-c", f"{line} --raise --yes --data company <&- >&- 2>&-"],
        cwd=place,
        env={**os.environ, VARIABLE: "company-signers"},
        check=False,
    )
    assert done.returncode == 0
    assert release_tool("check", "--data", "company").returncode == 0


# --- a disk that takes nothing -----------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="the shell's limit of a file's size")
@pytest.mark.parametrize(
    "words",
    [
        ("init", "new", *PEOPLE),
        ("new-signer", "dana", "dana.json", "--unencrypted"),
        ("revoke", "b1", "--reason", "it leaks", "--data", "company"),
        ("sign", "--raise", "--yes", "--data", "company"),
        ("resign", "--data", "company"),
        ("add", *WORDS["add"], "--data", "company"),
    ],
    ids=lambda words: words[0],
)
def test_a_disk_that_takes_nothing_leaves_no_half_file(place: Path, words: tuple[str, ...]) -> None:
    before = {name: data for name, data in files(place).items() if data is not None}
    line = shlex.join([sys.executable, "-m", "tsuku_publish", *words])
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 0; exec {line}"],
        env={**os.environ, VARIABLE: "company-signers"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 6), done.stderr
    assert is_one_error(done.stderr, "[a-z-]+"), done.stderr
    assert "TSUKU_HOME" not in done.stderr
    assert "a file cannot" not in done.stderr, "the file has a name"
    assert {name: data for name, data in files(place).items() if data is not None} == before
