"""What an update would change and does change, and the notice of it during a start."""

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS, pack_tar, stand_in
from support.folder_shop import FolderShop
from support.release_server import NAME, User
from support.serving import serving

from tsuku_llm.ground import clock
from tsuku_llm.steps.session import FAKE_HARDWARE

H200 = Path(__file__).parents[1] / "snapshots" / "h200-working-vulkan.json"
AGED = {"TSUKU_LLM_MIN_AGE": "99999"}
ON = {"TSUKU_LLM_UPDATE_CHECK": "true"}


@pytest.fixture
def folder_shop(tmp_path: Path) -> FolderShop:
    shop = FolderShop(tmp_path / "shop")
    publish(shop, "b1")
    return shop


def publish(
    shop: FolderShop, tag: str, *, padding: int = 0, vulkan: dict[str, Any] | None = None
) -> None:
    """A release with a Vulkan and a CPU build; ``vulkan`` is what the first requires."""
    gpu = shop.stand_in(f"{tag}-vulkan", devices=VULKAN_STEPS, padding=padding)
    cpu = shop.stand_in(f"{tag}-cpu", padding=padding)
    shop.publish(
        tag,
        {
            "vulkan": shop.variant(gpu, backend="vulkan", requires=vulkan or {}),
            "cpu": shop.variant(cpu),
        },
    )


@pytest.fixture
def owner(folder_shop: FolderShop, tmp_path: Path) -> User:
    """A user with a simulated GPU and b1's Vulkan build."""
    user = folder_shop.user(tmp_path / "home")
    user = User(user.home, {**user.env, FAKE_HARDWARE: str(H200)})
    done = user.run("install", "--json")
    assert (done.code, done.document["data"]["variant"]) == (0, "vulkan"), done.stderr
    return user


def check(user: User, *words: str) -> Any:
    done = user.run("update", "--check", "--json", *words)
    assert done.code == 0, done.stderr
    return done.document["data"]


# --- what would change -----------------------------------------------------------------------


def test_a_check_without_a_newer_release(owner: User) -> None:
    data = check(owner)
    assert (data["newer"], data["choice"]["release"], data["download"]) == (False, "b1", 0)
    assert data["revocation"] is None
    assert (
        data["installed"].items()
        >= {
            "release": "b1",
            "version": None,
            "variant": "vulkan",
            "publisher": "simulator",
            "repository": NAME,
            "unattested": None,
        }.items()
    )
    said = "The Vulkan build b1 is up to date.\n"
    assert owner.run("update", "--check").stdout.startswith(said)


def test_a_check_counts_partial_downloads(folder_shop: FolderShop, owner: User) -> None:
    publish(folder_shop, "b2", padding=200_000)
    archive = folder_shop.root / "archives" / "b2-vulkan.tar.gz"
    size = archive.stat().st_size
    data = check(owner)
    candidate = data["candidate"]
    assert (data["newer"], candidate["variant"], candidate["download_size"]) == (
        True,
        "vulkan",
        size,
    )
    assert data["download"] == size
    target = json.loads((owner.data / "active.json").read_text())
    digest = digest_of(folder_shop, "b2", "vulkan")
    part = owner.data / "partials" / f"{digest}.part"
    part.parent.mkdir(exist_ok=True)
    part.write_bytes(archive.read_bytes()[:131_072])
    assert check(owner)["download"] == size - 131_072
    part.unlink()
    shutil.copy(archive, part.with_name(digest))
    assert check(owner)["download"] == 0
    assert json.loads((owner.data / "active.json").read_text()) == target, "it only looked"


def digest_of(shop: FolderShop, tag: str, variant: str) -> str:
    found = shop.simulator.targets.targets[f"releases/{tag}.json"]
    document = json.loads(shop.simulator.files[f"targets/{found.get_prefixed_paths()[0]}"])
    (artifact,) = document["platforms"]["linux-amd64"]["variants"][variant]["artifacts"]
    return str(artifact["sha256"])


def test_a_check_counts_no_download_for_installed_files(
    folder_shop: FolderShop, owner: User
) -> None:
    publish(folder_shop, "b2")
    assert owner.run("update").code == 0
    assert owner.run("use", "b1").code == 0
    data = check(owner)
    assert (data["newer"], data["download"]) == (True, 0)


def test_a_check_names_requirements_newly_missed_and_newly_met(
    folder_shop: FolderShop, owner: User
) -> None:
    publish(folder_shop, "b2", vulkan={"glibc": "99.0"})
    data = check(owner)
    assert data["candidate"]["variant"] == "cpu"
    assert "needs glibc 99.0" in data["replaced"]
    (lost,) = data["changes"]
    assert (lost["variant"], lost["fits"]) == ("vulkan", False)
    assert "needs glibc 99.0" in lost["reason"]
    shown = owner.run("update", "--check").stdout
    assert "instead of vulkan: needs glibc 99.0" in shown
    assert "vulkan does not fit any more: needs glibc 99.0" in shown
    assert owner.run("update").code == 0
    publish(folder_shop, "b3")
    (gained,) = check(owner)["changes"]
    assert (gained["variant"], gained["fits"]) == ("vulkan", True)
    assert "vulkan fits now; before: needs glibc 99.0" in owner.run("update", "--check").stdout


def test_a_check_under_a_hold_says_what_keeps_the_user(
    folder_shop: FolderShop, owner: User
) -> None:
    publish(folder_shop, "b2")
    assert owner.run("config", "set", "llm.release", "installed").code == 0
    data = check(owner)
    assert (data["newer"], data["choice"]["release"], data["choice"]["kept_by"]) == (
        False,
        "b1",
        "llm.release",
    )
    shown = owner.run("update", "--check")
    assert "named by llm.release: b1, built by simulator" in shown.stdout
    assert shown.stdout.startswith("The Vulkan build b1 is up to date.\n")
    assert "b2 is there, and llm.release keeps b1" in shown.stderr
    assert owner.run("update").code == 0
    assert "b1-vulkan" in owner.run("which").stdout
    assert owner.run("config", "unset", "llm.release").code == 0
    young = check(User(owner.home, {**owner.env, **AGED}))
    left = [(each["release"], each["slug"]) for each in young["choice"]["passed_over"]]
    assert (young["newer"], left) == (False, [("b2", "young")])


# --- what changes ----------------------------------------------------------------------------


def test_an_update_uses_the_next_variant_with_the_reason_and_keeps_the_old_version(
    folder_shop: FolderShop, owner: User
) -> None:
    publish(folder_shop, "b2", vulkan={"glibc": "99.0"})
    done = owner.run("update", "--json")
    assert (done.code, done.document["data"]["variant"]) == (0, "cpu")
    assert "vulkan is replaced: needs glibc 99.0" in done.stderr
    assert owner.run("rollback").code == 0
    assert "b1-vulkan" in owner.run("which").stdout


@pytest.mark.parametrize("choice", ["flag", "variable"])
def test_an_update_never_replaces_the_choice_of_a_backend(
    folder_shop: FolderShop, owner: User, choice: str
) -> None:
    if choice == "flag":
        assert owner.run("install", "--backend", "cpu").code == 0
        asked: dict[str, str] = {}
    else:
        asked = {"TSUKU_LLM_BACKEND": "cpu"}
    publish(folder_shop, "b2")
    done = owner.run("update", "--json", **asked)
    assert (done.code, done.document["data"]["variant"]) == (0, "cpu")
    assert done.document["data"]["requested"] == "cpu"


def test_a_backend_named_for_the_update_is_used(folder_shop: FolderShop, owner: User) -> None:
    assert owner.run("install", "--backend", "cpu").code == 0
    publish(folder_shop, "b2")
    done = owner.run("update", "--json", TSUKU_LLM_BACKEND="auto")
    assert (done.code, done.document["data"]["variant"]) == (0, "vulkan")


def test_a_chosen_backend_that_no_longer_fits_is_an_error(
    folder_shop: FolderShop, owner: User
) -> None:
    """The newest release that has the choice counts, and that is the one in use."""
    assert owner.run("install", "--backend", "vulkan", "--force").code == 0
    publish(folder_shop, "b2", vulkan={"glibc": "99.0"})
    done = owner.run("update", "--json")
    assert (done.code, done.document["data"]["outcome"]) == (0, "unchanged")
    said = "b1 is the newest that fits this machine, not b2: vulkan: needs glibc 99.0"
    assert said in done.stderr
    assert "b1-vulkan" in owner.run("which").stdout


def test_an_older_release_that_lacks_only_a_driver_is_what_an_error_speaks_of(
    folder_shop: FolderShop, owner: User
) -> None:
    """The third party's newer builds need AVX-512; an older one needs only Vulkan's loader."""
    publish(folder_shop, "b2", vulkan={"glibc": "99.0"})
    seen = {FAKE_HARDWARE: str(H200.with_name("vulkan-driver-without-loader.json"))}
    for words in (("--backend", "vulkan"), ("--backend", "gpu")):
        done = owner.run("install", "--json", *words, "--force", **seen)
        error = done.document["error"]
        assert (done.code, error["code"]) == (3, "no-variant")
        assert "libvulkan1" in error["hint"]
        assert not any("99.0" in fact for fact in error["facts"])


def test_M10_an_update_follows_five_rotations_of_all_keys(
    folder_shop: FolderShop, owner: User
) -> None:
    """From the oldest root, on a mirror in a folder, and once more from the newest."""
    roles = ("root", "targets", "snapshot", "timestamp")
    for number in range(5):
        folder_shop.simulator.rotate(*roles, generation=f"generation {number}")
    publish(folder_shop, "b2")
    assert owner.run("update").code == 0
    assert "b2" in owner.run("which").stdout
    publish(folder_shop, "b3")
    assert check(owner)["choice"]["release"] == "b3"


# --- right digests of the wrong software ------------------------------------------------------


def test_M28_the_build_of_another_platform_is_refused(folder_shop: FolderShop, owner: User) -> None:
    """Signed and of the right digest, for another processor: it is not what was asked for."""
    build = stand_in(folder_shop.root.parent / "arm", devices=NO_DEVICE_STEPS)
    program = build.tree / "llama-server"
    content = bytearray(program.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # e_machine: AArch64
    program.write_bytes(content)
    packed = pack_tar(build.tree, folder_shop.root / "archives" / "arm.tar.gz", root="arm")
    folder_shop.publish("b2", {"cpu": folder_shop.variant(packed)})
    done = owner.run("update", "--json")
    assert (done.code, done.document["error"]["code"]) == (3, "no-variant")
    assert len(owner.versions()) == 1
    assert owner.run("serve", "--", "--list-devices").code == 0


def test_M28_a_build_of_another_variant_is_refused(folder_shop: FolderShop, owner: User) -> None:
    cpu = folder_shop.stand_in("b2-without-vulkan")
    folder_shop.publish("b2", {"vulkan": folder_shop.variant(cpu, backend="vulkan")})
    done = owner.run("update", "--json")
    assert (done.code, done.document["error"]["code"]) == (3, "no-variant")
    assert len(owner.versions()) == 1


# --- the notice ------------------------------------------------------------------------------


def found(user: User) -> Any:
    """Wait for the result of the check that runs during a start."""
    file = user.data / "state" / "update.json"
    for _ in range(6000):
        # A note may be read while it is written; the program then takes it for none.
        if file.exists() and (text := file.read_text()):
            return json.loads(text)
        time.sleep(0.02)
    raise AssertionError("nobody looked for an update")


def start(user: User, *words: str, **extra: str) -> str:
    """What a start says; the server is asked for its devices, and ends."""
    done = user.run("serve", *words, "--", "--list-devices", **{**ON, **extra})
    assert done.code == 0, done.stderr
    return done.stderr


def a_day_passes(user: User) -> None:
    mark = user.data / "state" / "update-look"
    before = clock.now() - timedelta(hours=25)
    os.utime(mark, (before.timestamp(),) * 2)


@pytest.fixture
def on_the_systems_day(at: Callable[[datetime | None], None]) -> None:
    """The day of the process that looks for an update: it is isolated, so no variable moves it."""
    at(None)


@pytest.mark.usefixtures("on_the_systems_day")
def test_a_start_checks_for_an_update_and_the_next_day_tells(
    folder_shop: FolderShop, owner: User
) -> None:
    publish(folder_shop, "b2")
    quick = User(owner.home, {**owner.env, **ON})
    with serving(quick):
        assert found(owner)["release"] == "b2", "beside the server, which nobody kept waiting"
    assert "b2" not in start(owner), "once a day"
    a_day_passes(owner)
    assert "b2 is there; to install it: tsuku-llm update" in start(owner)
    assert "b2 is there" not in start(owner)
    assert owner.run("update").code == 0
    a_day_passes(owner)
    assert "is there; to" not in start(owner), "what was found was for the version before"


def test_a_clock_from_the_future_does_not_silence_the_notice(
    folder_shop: FolderShop, owner: User
) -> None:
    publish(folder_shop, "b2")
    check(owner)
    start(owner)
    ahead = clock.now() + timedelta(days=900)
    os.utime(owner.data / "state" / "update-look", (ahead.timestamp(),) * 2)
    assert "b2 is there" in start(owner)


def test_the_notice_can_be_turned_off(folder_shop: FolderShop, owner: User) -> None:
    publish(folder_shop, "b2")
    check(owner)
    assert "b2" not in start(owner, TSUKU_LLM_UPDATE_CHECK="false")
    assert not (owner.data / "state" / "update-look").exists()


def test_a_start_with_exec_does_not_check_for_updates(folder_shop: FolderShop, owner: User) -> None:
    publish(folder_shop, "b2")
    check(owner)
    assert "b2" not in start(owner, "--exec")
    assert not (owner.data / "state" / "update-look").exists()


def test_a_check_without_a_network_is_silent(folder_shop: FolderShop, owner: User) -> None:
    shutil.rmtree(folder_shop.root / "repository")
    said = start(owner)
    assert "error" not in said
    assert (owner.data / "state" / "update-look").exists()


def test_an_unwritable_state_folder_does_not_prevent_a_start(owner: User) -> None:
    (owner.data / "state").write_text("in the way")
    start(owner)


def test_the_repository_of_the_installed_version_is_asked(
    folder_shop: FolderShop, owner: User
) -> None:
    publish(folder_shop, "b2")
    env = {name: text for name, text in owner.env.items() if name != "TSUKU_LLM_REPOSITORY"}
    assert check(User(owner.home, env))["choice"]["release"] == "b2"
    assert NAME in owner.run("repository", "list").stdout
