"""Revocations from the release tool to the installed program, each with the real commands."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.own_publisher import OwnPublisher, own_user
from support.program import Result
from support.release_server import User

Company = tuple[OwnPublisher, User]
FACTS = [
    "revoked on 2026-11-22 by the publisher of repository company",
    "reason: it leaks memory",
]


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop(tmp_path / "shop")


@pytest.fixture
def company(tmp_path: Path, shop: FolderShop) -> Company:
    """A publisher of b1 and b2, and a user who has b2 installed, and b1 before it."""
    publisher = published(tmp_path, shop, "company")
    user = own_user(tmp_path / "home", shop, TSUKU_LLM_REPOSITORY="company")
    publisher.adopt(user)
    for tag in ("b1", "b2"):
        done = user.run("install", "--release", tag)
        assert done.code == 0, done.stderr
    return publisher, user


def published(home: Path, shop: FolderShop, name: str, *tags: str) -> OwnPublisher:
    """A publisher of these releases, b2 and b1 unless told; each name has the same archives."""
    publisher = OwnPublisher(home / name, shop, name)
    for tag in tags or ("b2", "b1"):
        publisher.release(tag, f"{tag}-cpu")
    publisher.channels(stable=tags or ("b2", "b1"))
    publisher.publish()
    return publisher


def refresh(user: User, name: str = "company") -> None:
    done = user.run("repository", "refresh", name)
    assert done.code == 0, done.stderr


def started(user: User, *words: str) -> Result:
    return user.run("serve", "--json", *words, "--", "--list-devices")


def refused(done: Result) -> list[str]:
    """The facts of a refusal with exit code 5."""
    assert (done.code, done.document["error"]["code"]) == (5, "revoked"), done.stdout
    facts: list[str] = done.document["error"]["facts"]
    return facts


# --- seen once, remembered for good --------------------------------------------------------


def test_T20_a_revocation_stays_after_the_publisher_drops_it(company: Company) -> None:
    publisher, user = company
    publisher.revoke("b2")
    publisher.publish()
    refresh(user)
    assert refused(started(user)) == FACTS
    publisher.unrevoked()
    publisher.channels(stable=["b1"])
    publisher.publish("--drop", "b2")
    newest = max(publisher.signed.glob("metadata/*.targets.json"))
    assert "revoked" not in json.loads(newest.read_text())["signed"]
    refresh(user)
    done = started(user)
    assert refused(done) == FACTS
    assert done.document["error"]["hint"] == (
        "take another release: tsuku-llm install --repository company; or add --allow-revoked"
    )


def test_T20_a_revocation_stays_after_the_release_left_the_channels(company: Company) -> None:
    """The signed list says it, to those as well who never saw the release file."""
    publisher, user = company
    publisher.revoke("b2")
    publisher.channels(stable=["b1"])
    publisher.publish()
    refresh(user)
    assert refused(started(user)) == FACTS
    named = user.run("install", "--release", "b2", "--json")
    assert refused(named) == FACTS
    assert "tsuku-llm install --release b1 --repository company" in named.document["error"]["hint"]


def test_T21_a_release_that_was_revoked_before_the_first_install_is_refused(
    company: Company, tmp_path: Path, shop: FolderShop
) -> None:
    publisher, _ = company
    user = publisher.adopt(own_user(tmp_path / "other", shop, TSUKU_LLM_REPOSITORY="company"))
    publisher.revoke("b2")
    publisher.publish()
    refresh(user)
    named = user.run("install", "--release", "b2", "--json")
    assert refused(named) == FACTS
    assert named.document["error"]["hint"].startswith("take b1, the newest that is not revoked")
    done = user.run("install", "--json")
    assert (done.code, done.document["data"]["release"]) == (0, "b1")
    assert "b2 was revoked by its publisher on 2026-11-22: it leaks memory" in done.stderr
    assert [
        (each["release"], each["slug"])
        for each in done.document["data"]["passed_over"]
        if each["variant"] is None
    ] == [("b2", "revoked")]
    assert user.run("install", "--release", "b2", "--allow-revoked").code == 0


def removed(publisher: OwnPublisher, user: User) -> None:
    assert user.run("repository", "remove", publisher.name).code == 0


def lose_metadata(publisher: OwnPublisher, user: User) -> None:
    publisher.forget_client(user, "standing.json", "current", "copies", "seen.json")


def add_again(publisher: OwnPublisher, user: User) -> None:
    removed(publisher, user)
    publisher.adopt(user)


@pytest.mark.parametrize("lose", [lose_metadata, removed, add_again])
def test_T23_a_revocation_stays_after_other_files_are_lost(
    company: Company, lose: Callable[[OwnPublisher, User], None]
) -> None:
    """The publisher has dropped it meanwhile, so nothing that is fetched says it again."""
    publisher, user = company
    publisher.revoke("b2")
    publisher.publish()
    refresh(user)
    publisher.unrevoked()
    publisher.channels(stable=["b1"])
    publisher.publish("--drop", "b2")
    lose(publisher, user)
    assert refused(started(user)) == FACTS


def test_T23_a_revocation_stays_after_an_older_copy_is_restored(company: Company) -> None:
    publisher, user = company
    folder = user.data / "metadata" / "company"
    before = publisher.home / "before"
    shutil.copytree(folder, before)
    publisher.revoke("b2")
    publisher.publish()
    refresh(user)
    publisher.forget_client(user, "standing.json", "current", "copies", "seen.json")
    shutil.copytree(before, folder, dirs_exist_ok=True)
    assert refused(started(user)) == FACTS
    assert refused(user.run("install", "--release", "b2", "--json")) == FACTS


def test_T23_a_damaged_revocation_file_is_reported_and_stops_nothing(company: Company) -> None:
    publisher, user = company
    publisher.revoke("b1")
    publisher.publish()
    refresh(user)
    file = user.data / "metadata" / "company" / "revoked.json"
    file.write_text("{")
    done = user.run("serve", "--", "--list-devices")
    assert done.code == 0, done.stderr
    assert "the revocations of repository company that were seen cannot be read" in done.stderr
    publisher.publish()
    refresh(user)
    assert json.loads(file.read_text())["revoked"][0]["release"] == "b1"


def test_T29_a_signed_withdrawal_ends_a_revocation_and_older_metadata_does_not(
    company: Company,
) -> None:
    publisher, user = company
    folder, withdrawn = user.data / "metadata" / "company", publisher.home / "withdrawn"
    publisher.revoke("b2")
    publisher.publish()
    refresh(user)
    assert refused(started(user)) == FACTS
    assert publisher.tool("withdraw", "b2", "--on", "2026-11-23").returncode == 0
    publisher.publish()
    refresh(user)
    assert user.run("serve", "--", "--list-devices").code == 0
    shutil.copytree(folder, withdrawn)
    publisher.revoke("b2", "it leaks again", "2026-11-24")
    publisher.publish()
    refresh(user)
    assert refused(started(user))[1] == "reason: it leaks again"
    publisher.forget_client(user, "standing.json", "current", "copies", "seen.json")
    (withdrawn / "revoked.json").unlink()
    shutil.copytree(withdrawn, folder, dirs_exist_ok=True)
    assert refused(started(user))[1] == "reason: it leaks again"


# --- two repositories with the same archives -----------------------------------------------


@pytest.fixture
def two(tmp_path: Path, shop: FolderShop) -> tuple[OwnPublisher, OwnPublisher, User]:
    """A user of b1, installed from ``ra`` and then from ``rb``, whose archives are the same."""
    ra, rb = (published(tmp_path, shop, name, "b1") for name in ("ra", "rb"))
    user = rb.adopt(ra.adopt(own_user(tmp_path / "home", shop)))
    assert user.run("install", "--repository", "ra").code == 0
    return ra, rb, user


def bound_to(user: User) -> str:
    (version,) = user.run("list", "--json").document["data"]["versions"]
    repository: str = version["repository"]
    return repository


def test_T22_a_later_install_binds_a_version_to_the_requested_repository(
    two: tuple[OwnPublisher, OwnPublisher, User],
) -> None:
    _, _, user = two
    assert bound_to(user) == "ra"
    done = user.run("install", "--repository", "rb", "--json")
    assert (done.code, done.document["data"]["outcome"]) == (0, "unchanged")
    assert done.document["data"]["bound_before"] == "ra"
    assert bound_to(user) == "rb"
    assert user.run("verify").code == 0
    again = user.run("install", "--repository", "rb")
    assert "of repository" not in again.stdout
    back = user.run("install", "--repository", "ra", "--force")
    assert "the same build was of repository rb; it is of ra now" in back.stdout


@pytest.mark.parametrize(("who", "asked"), [("ra", "rb"), ("rb", "ra")])
def test_T22_a_revocation_by_either_repository_counts(
    two: tuple[OwnPublisher, OwnPublisher, User], who: str, asked: str
) -> None:
    publishers = {each.name: each for each in two[:2]}
    user = two[2]
    assert user.run("install", "--repository", asked).code == 0
    publishers[who].revoke("b1")
    publishers[who].publish()
    refresh(user, who)
    facts = [f"revoked on 2026-11-22 by the publisher of repository {who}", FACTS[1]]
    assert refused(started(user)) == facts
    assert refused(user.run("install", "--repository", asked, "--json", "--release", "b1")) == facts
    done = user.run("run", "llama-server", "--", "--list-devices")
    assert done.code == 5, done.stderr


def test_T22_a_revoked_name_counts_in_its_own_repository_only(
    two: tuple[OwnPublisher, OwnPublisher, User],
) -> None:
    """Other archives under the same name are another build."""
    ra, rb, user = two
    rb.release("b1", "another-cpu")
    rb.publish()
    rb.revoke("b1")
    rb.publish()
    refresh(user, "rb")
    assert user.run("serve", "--", "--list-devices").code == 0
    ra.revoke("b1")
    ra.publish()
    refresh(user, "ra")
    assert refused(started(user))[0].endswith("repository ra")


def test_T22_a_repository_that_a_version_was_bound_to_before_counts_too(
    two: tuple[OwnPublisher, OwnPublisher, User],
) -> None:
    ra, _, user = two
    assert user.run("install", "--repository", "rb", "--force").code == 0
    assert user.run("install", "--repository", "rb", "--force").code == 0
    words = ("revoke", "b1", "--reason", "it leaks memory", "--on", "2026-11-22", "--by-name")
    assert ra.tool(*words).returncode == 0
    ra.publish()
    refresh(user, "ra")
    assert refused(started(user))[0].endswith("repository ra")


# --- every command that could use it -------------------------------------------------------


def test_T26_no_command_moves_to_a_revoked_version(company: Company, tmp_path: Path) -> None:
    publisher, user = company
    publisher.revoke("b1")
    publisher.publish()
    refresh(user)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF and so on")
    assert refused(user.run("use", "b1", "--json")) == FACTS
    assert refused(user.run("rollback", "--json")) == FACTS
    assert "b2" in user.run("which").stdout, "nothing moved"
    assert user.run("rollback", "--allow-revoked").code == 0
    assert refused(user.run("bench", "-m", str(model), "--json")) == FACTS
    assert user.run("run", "llama-server", "--", "--list-devices").code == 5
    assert user.run("serve", "--exec", "--", "--list-devices").code == 5
    assert user.run("use", "b2").code == 0
    assert user.run("use", "b1", "--allow-revoked").code == 0
    done = user.run("serve", "--allow-revoked", "--", "--list-devices")
    assert done.code == 0
    assert "b1 is used anyway: revoked by its publisher on 2026-11-22" in done.stderr


def test_T27_every_command_that_names_a_revoked_release_says_so(company: Company) -> None:
    publisher, user = company
    publisher.revoke("b2")
    publisher.publish()
    refresh(user)
    summary = "revoked by its publisher on 2026-11-22: it leaks memory"
    why = {
        "release": "b2",
        "repository": "company",
        "reason": "it leaks memory",
        "date": "2026-11-22",
    }
    for words in (("list",), ("doctor",), ("explain",), ("list", "--available")):
        assert summary in user.run(*words).stdout, words
    # A dry run ends as the start would.
    refused = user.run("serve", "--dry-run", "--", "--list-devices")
    assert (refused.code, "reason: it leaks memory" in refused.stderr) == (5, True)
    versions = user.run("list", "--json").document["data"]["versions"]
    assert [(each["release"], each["revocation"]) for each in versions] == [
        ("b1", None),
        ("b2", why),
    ]
    told = user.run("doctor", "--json").document["data"]["installed"]
    assert [each["revocation"] for each in told.values()] == [None, why]
    explained = user.run("explain", "--json").document["data"]
    left = [(each["release"], each["slug"]) for each in explained["passed_over"]]
    assert (explained["release"], left) == ("b1", [("b2", "revoked")])
    named = user.run("explain", "--release", "b2", "--json").document["data"]
    assert named["revocation"] == why
    available = user.run("list", "--available", "--json").document["data"]["releases"]
    assert [[why["slug"] for why in each["passed_over"]] for each in available] == [["revoked"], []]
    checked = user.run("update", "--check", "--json").document["data"]
    assert checked["revocation"] == why


def test_T28_a_release_that_left_all_channels_is_reported_and_not_refused(
    company: Company,
) -> None:
    publisher, user = company
    publisher.release("b3", "b3-cpu")
    publisher.channels(stable=["b3"])
    publisher.publish()
    refresh(user)
    gone = "no channel of repository company offers it any more"
    done = user.run("serve", "--", "--list-devices")
    assert done.code == 0
    assert f"b2: {gone}; to update: tsuku-llm update" in done.stderr
    assert gone in user.run("list").stdout
    assert gone in user.run("doctor").stdout
    versions = user.run("list", "--json").document["data"]["versions"]
    assert [(each["revocation"], each["gone"]) for each in versions] == [(None, gone)] * 2
    removed(publisher, user)
    assert "its repository company was removed" in user.run("list").stdout


# --- a repository that revokes what others offer -------------------------------------------


@pytest.fixture
def hostile(tmp_path: Path, shop: FolderShop) -> tuple[OwnPublisher, User]:
    """A user of ``ra``'s b1, who added ``rb``, which revoked the same archives as its own b7."""
    ra = published(tmp_path, shop, "ra", "b1")
    rb = published(tmp_path, shop, "rb", "b1")
    user = rb.adopt(ra.adopt(own_user(tmp_path / "home", shop)))
    assert user.run("install", "--repository", "ra").code == 0
    rb.revoke("b1")
    rb.publish()
    refresh(user, "rb")
    return rb, user


WORKS = [
    ("serve", "--", "--list-devices"),
    ("run", "llama-server", "--", "--list-devices"),
    ("install", "--repository", "ra", "--release", "b1"),
    ("install", "--repository", "ra", "--force"),
]


@pytest.mark.parametrize("words", WORKS, ids=" ".join)
def test_N05_removing_a_repository_ends_what_it_revoked_of_others(
    words: tuple[str, ...], hostile: tuple[OwnPublisher, User]
) -> None:
    rb, user = hostile
    before = user.run(*words)
    assert before.code == 5, before.stderr
    assert "revoked by its publisher" not in before.stderr
    assert "repository rb, which is another one" in before.stderr
    assert "if you do not trust that repository: tsuku-llm repository remove rb" in before.stderr
    removed(rb, user)
    after = user.run(*words)
    assert after.code == 0, after.stderr


def test_N05_a_list_says_whose_word_it_is_and_the_way_out(
    hostile: tuple[OwnPublisher, User],
) -> None:
    """A replacement from the same repository may be revoked by the other one as well."""
    rb, user = hostile
    for command in ("list", "doctor"):
        said = user.run(command).stdout
        assert "revoked by repository rb, which is another one" in said
        assert "if you do not trust that repository: tsuku-llm repository remove rb" in said
    removed(rb, user)
    assert "revoked" not in user.run("list").stdout


def test_N05_a_repository_of_the_same_name_revokes_nothing_again(
    tmp_path: Path, shop: FolderShop, hostile: tuple[OwnPublisher, User]
) -> None:
    rb, user = hostile
    removed(rb, user)
    (tmp_path / "honest").mkdir()
    honest = published(tmp_path / "honest", shop, "rb", "b1")
    honest.adopt(user)
    refresh(user, "rb")
    assert user.run("serve", "--", "--list-devices").code == 0
