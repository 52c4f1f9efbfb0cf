"""An install for a recorded machine: the receipt says so, and the real machine is still asked."""

import json
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS
from support.release_server import ReleaseServer, User

from tsuku_llm.steps.session import FAKE_HARDWARE

NAME = "h200-working-vulkan.json"
SNAPSHOT = Path(__file__).parents[1] / "snapshots" / NAME


@pytest.fixture
def elsewhere(shop: ReleaseServer, tmp_path: Path) -> User:
    """A user who simulates another machine; the Vulkan build of release b1 starts on this one."""
    good = shop.stand_in("b1-vulkan", devices=VULKAN_STEPS)
    cpu = shop.stand_in("b1-cpu")
    shop.publish("b1", {"vulkan": shop.variant(good, backend="vulkan"), "cpu": shop.variant(cpu)})
    user = shop.user(tmp_path / "home")
    return User(user.home, {**user.env, FAKE_HARDWARE: str(SNAPSHOT)})


def test_the_receipt_says_that_the_machine_was_simulated(elsewhere: User) -> None:
    done = elsewhere.run("install")
    assert done.code == 0, done.stderr
    (version,) = elsewhere.versions()
    receipt = json.loads((elsewhere.data / "versions" / version / "receipt.json").read_bytes())
    assert receipt["line"].endswith(f"selected=vulkan hardware={NAME}")
    assert receipt["hardware"]["simulated"] == NAME
    rows = {
        row["variant"]: row
        for row in elsewhere.run("backends", "--json").document["data"]["variants"]
    }
    assert (rows["vulkan"]["state"], rows["cpu"]["state"]) == ("active", None)
    healthy = elsewhere.run("doctor", "--json")
    assert healthy.code == 0, healthy.document
    assert healthy.document["data"]["links"][-1]["state"] == "ok"


def test_a_build_that_cannot_run_on_this_machine_is_not_installed(
    shop: ReleaseServer, elsewhere: User
) -> None:
    bad = shop.stand_in("b2-vulkan", devices=NO_DEVICE_STEPS)
    shop.publish("b2", {"vulkan": shop.variant(bad, backend="vulkan")})
    assert elsewhere.run("repository", "refresh", "test").code == 0
    done = elsewhere.run("install", "--release", "b2", "--json")
    assert (done.code, done.document["simulated"]) == (3, NAME)
    assert elsewhere.versions() == []


def test_a_temporary_problem_does_not_move_an_update_to_the_processor(
    shop: ReleaseServer, elsewhere: User
) -> None:
    assert elsewhere.run("install").code == 0
    cuda = shop.variant(shop.stand_in("b2-cuda"), backend="cuda")
    shop.publish("b2", {"cuda": cuda, "cpu": shop.variant(shop.stand_in("b2-cpu"))})
    rebooting = str(SNAPSHOT.with_name("driver-updated-not-rebooted.json"))
    done = elsewhere.run("update", "--json", **{FAKE_HARDWARE: rebooting})
    assert (done.code, done.document["error"]["code"]) == (3, "no-variant")
    assert "restart" in done.document["error"]["hint"]
    assert len(elsewhere.versions()) == 1
