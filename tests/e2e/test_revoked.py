"""A revoked release, and metadata that is old: what each command makes of them."""

import json
import os
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.program import Result
from support.release_server import NAME, User

from tsuku_llm.catalog import metadata_status

STRICT = {"TSUKU_LLM_REFRESH": "required"}


@pytest.fixture
def folder_shop(tmp_path: Path) -> FolderShop:
    return FolderShop.offering(tmp_path / "shop", "b1", "b2")


@pytest.fixture
def owner(folder_shop: FolderShop, tmp_path: Path) -> User:
    """A user who installed b1 and then b2."""
    user = folder_shop.user(tmp_path / "home")
    for tag in ("b1", "b2"):
        done = user.run("install", "--release", tag)
        assert done.code == 0, done.stderr
    return user


def revoke(shop: FolderShop, tag: str) -> None:
    """The publisher says that a release must not be used any more."""
    target = shop.simulator.targets.targets[f"releases/{tag}.json"]
    name = f"targets/{target.get_prefixed_paths()[0]}"
    document = json.loads(shop.simulator.files[name])
    channels = target.custom["channels"]
    shop.simulator.publish({**document, "revoked": True}, channels=channels)
    shop.write()


def started(user: User, *arguments: str, **extra: str) -> Result:
    return user.run("serve", *arguments, "--", "--list-devices", **extra)


def test_M29_a_revoked_release_is_not_started_unless_it_is_allowed(
    folder_shop: FolderShop, owner: User
) -> None:
    revoke(folder_shop, "b2")
    assert started(owner).code == 0, "nobody knows of it yet"
    assert owner.run("repository", "refresh", NAME).code == 0
    refused = owner.run("serve", "--json", "--", "--list-devices")
    assert (refused.code, refused.document["error"]["code"]) == (5, "revoked")
    assert "b2 was revoked by its publisher" in refused.document["error"]["message"]
    assert started(owner, "--exec").code == 5
    assert started(owner, "--allow-revoked").code == 0
    assert owner.run("use", "b1").code == 0
    assert started(owner).code == 0, "the one before was not revoked"


def test_T20_a_revocation_in_a_release_file_stays_after_the_file_is_gone(
    folder_shop: FolderShop, owner: User
) -> None:
    """A publisher without a list, as before there was one, who then drops the release."""
    revoke(folder_shop, "b2")
    assert owner.run("repository", "refresh", NAME).code == 0
    assert started(owner).code == 5
    del folder_shop.simulator.targets.targets["releases/b2.json"]
    folder_shop.simulator.bump()
    folder_shop.write()
    assert owner.run("repository", "refresh", NAME).code == 0
    assert started(owner).code == 5


def test_M29_a_revoked_release_is_known_without_the_note(
    folder_shop: FolderShop, owner: User
) -> None:
    """Or when an upgraded package brings newer metadata: then the metadata itself is asked."""
    revoke(folder_shop, "b2")
    assert owner.run("repository", "refresh", NAME).code == 0
    note = metadata_status.folder_of(owner.data, NAME) / "standing.json"
    note.unlink()
    assert started(owner).code == 5
    assert note.exists(), "so that the next start is a quick one"


@pytest.mark.usefixtures("owner")
def test_M29_an_install_skips_revoked_releases(folder_shop: FolderShop, tmp_path: Path) -> None:
    revoke(folder_shop, "b2")
    user = folder_shop.user(tmp_path / "other")
    done = user.run("install", "--json")
    assert (done.code, done.document["data"]["release"]) == (0, "b1")
    assert "b2 was revoked by its publisher" in done.stderr
    named = user.run("install", "--release", "b2", "--json")
    assert (named.code, named.document["error"]["code"]) == (5, "revoked")
    assert user.run("install", "--release", "b2", "--allow-revoked").code == 0
    assert "revoked by its publisher" in user.run("explain", "--release", "b2").stdout
    listed = user.run("list", "--available", "--json").document["data"]["releases"]
    reasons = [(each["release"], [why["slug"] for why in each["passed_over"]]) for each in listed]
    assert reasons == [("b2", ["revoked"]), ("b1", [])]


def test_M29_a_channel_with_only_revoked_releases_is_an_error(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    for tag in ("b1", "b2"):
        revoke(folder_shop, tag)
    user = folder_shop.user(tmp_path / "other")
    done = user.run("install", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "revoked")
    facts = [f"{tag}: revoked by its publisher" for tag in ("b2", "b1")]
    assert done.document["error"]["facts"] == facts


def test_M29_an_update_leaves_a_revoked_release(folder_shop: FolderShop, owner: User) -> None:
    revoke(folder_shop, "b2")
    folder_shop.publish("b3", {"cpu": folder_shop.variant(folder_shop.stand_in("b3-cpu"))})
    checked = owner.run("update", "--check", "--json")
    assert checked.code == 0
    assert checked.document["data"]["revocation"]["release"] == "b2"
    assert checked.document["data"]["choice"]["release"] == "b3"
    assert owner.run("update").code == 0
    assert started(owner).code == 0
    assert "b3" in owner.run("which").stdout


def test_M29_an_update_never_goes_back_but_names_the_command(
    folder_shop: FolderShop, owner: User
) -> None:
    revoke(folder_shop, "b2")
    checked = owner.run("update", "--check")
    assert checked.code == 0
    assert "b2 was revoked by its publisher" in checked.stdout
    assert "tsuku-llm install --release b1" in checked.stdout
    done = owner.run("update", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "revoked")
    assert done.document["error"]["hint"] == (
        "go back: tsuku-llm install --release b1 --repository test"
    )
    assert "b2" in owner.run("which").stdout


def active(user: User) -> str:
    versions = user.run("list", "--json").document["data"]["versions"]
    (release,) = (each["release"] for each in versions if each["active"])
    return str(release)


@pytest.mark.parametrize(
    ("asked", "channel", "newer"),
    [
        *(("list", "stable", False), ("doctor", "stable", True), ("serve", "stable", False)),
        *(("serve", "nightly", True), ("list", "nightly", False)),
    ],
)
def test_P2_the_advice_for_a_revoked_build_is_one_command_that_works(
    folder_shop: FolderShop, owner: User, asked: str, channel: str, newer: bool
) -> None:
    """What each command says is typed as it is, with an older or a newer release to take."""
    if channel == "nightly":
        for tag in ("b3", "b4"):
            variants = {"cpu": folder_shop.variant(folder_shop.stand_in(f"{tag}-cpu"))}
            folder_shop.publish(tag, variants, channels=[channel])
        assert owner.run("repository", "refresh", NAME).code == 0
        done = owner.run("install", "--channel", channel, "--backend", "cpu")
        assert done.code == 0, done.stderr
    before = active(owner)
    revoke(folder_shop, before)
    if newer:
        variants = {"cpu": folder_shop.variant(folder_shop.stand_in("b9-cpu"))}
        folder_shop.publish("b9", variants, channels=[channel])
    assert owner.run("repository", "refresh", NAME).code == 0
    said = started(owner) if asked == "serve" else owner.run(asked)
    advice = re.compile(r"(?:to replace it|another release): tsuku-llm (install[^;\n]*)")
    (command,) = {*advice.findall(said.stdout + said.stderr)}
    assert ("--channel nightly --backend cpu" in command) == (channel == "nightly")
    assert "tsuku-llm update" not in said.stdout + said.stderr
    assert owner.run(*command.split()).code == 0
    assert active(owner) == ("b9" if newer else f"b{int(before[1:]) - 1}")
    assert started(owner).code == 0


# --- old metadata ---------------------------------------------------------------------------


def expire(shop: FolderShop, user: User) -> None:
    """Let months pass without a refresh: the user's metadata has expired."""
    old = datetime(2026, 11, 20, 1, tzinfo=timezone.utc)
    shop.simulator.expire("timestamp", old)
    shop.write()
    folder = metadata_status.folder_of(user.data, NAME)
    name = (folder / "current").read_text()
    copy = folder / "copies" / name / "metadata"
    for path in (shop.root / "repository" / "metadata").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (folder / "standing.json").unlink(missing_ok=True)


def test_M18_expired_metadata_still_starts_and_says_its_age(
    folder_shop: FolderShop, owner: User
) -> None:
    expire(folder_shop, owner)
    for _ in range(2):
        done = started(owner)
        assert done.code == 0, done.stderr
        assert "was signed on 2026-11-20 (" in done.stderr
        assert "and expired on 2026-11-20" in done.stderr
    done = owner.run("install", "--release", "b1")
    assert done.code == 0, done.stderr
    assert "expired on 2026-11-20" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("install",), ("install", "--dry-run"), ("serve", "--", "--list-devices")],
    ids=" ".join,
)
def test_M18_require_fresh_makes_old_metadata_an_error(
    folder_shop: FolderShop, owner: User, words: tuple[str, ...]
) -> None:
    line = (words[0], "--json", *words[1:])
    assert owner.run(*line, **STRICT).code == 0
    expire(folder_shop, owner)
    done = owner.run(*line, **STRICT)
    assert (done.code, done.document["error"]["code"]) == (5, "stale-metadata")
    error = done.document["error"]
    assert "expired on 2026-11-20" in " ".join((error["message"], *error["facts"]))
    if words != ("install",):  # which has asked by itself
        assert error["hint"].endswith(f"repository refresh {NAME}")


def test_M18_an_update_refuses_expired_metadata(folder_shop: FolderShop, owner: User) -> None:
    expire(folder_shop, owner)
    for words in (("update",), ("update", "--check")):
        done = owner.run(*words, "--json")
        assert (done.code, done.document["error"]["code"]) == (5, "stale-metadata")
        assert any(" ago" in fact for fact in done.document["error"]["facts"])
    assert started(owner).code == 0


def test_a_removed_repository_does_not_prevent_a_start(owner: User) -> None:
    assert owner.run("repository", "remove", NAME).code == 0
    done = started(owner)
    assert done.code == 0
    assert "the revocations are unknown: there is no repository" in done.stderr
    assert owner.run("serve", "--", "--list-devices", **STRICT).code != 0


def test_damaged_metadata_does_not_prevent_a_start(owner: User) -> None:
    folder = metadata_status.folder_of(owner.data, NAME)
    (folder / "current").write_text("junk")
    done = started(owner)
    assert done.code == 0
    assert "the revocations are unknown" in done.stderr
    assert owner.run("serve", "--", "--list-devices", **STRICT).code == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_start_works_without_permission_to_write_a_note(owner: User) -> None:
    folder = metadata_status.folder_of(owner.data, NAME)
    (folder / "standing.json").unlink()
    folder.chmod(0o555)
    assert started(owner).code == 0
    folder.chmod(0o755)


def test_a_start_with_a_note_loads_no_verifier(owner: User) -> None:
    code = (
        "import sys\nfrom tsuku_llm.cli.entry import run\n"
        "code = run(['serve', '--', '--list-devices'])\n"
        "heavy = {'tuf', 'msgspec', 'httpx', 'tsuku_llm.catalog.loading'} & {*sys.modules}\n"
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=dict(owner.env), capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "0 []"
