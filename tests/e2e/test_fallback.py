"""A backend fails at the start: the next variant, from a real publisher, and back again."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.builds import VULKAN_STEPS
from support.program import run_on_terminal
from support.release_server import ReleaseServer, User

from tsuku_llm.cli.session import FAKE_HARDWARE

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "h200-working-vulkan.json"
LOST = ("err terminate: vk::Queue::submit: ErrorDeviceLost", "kill 6")
CUDA_STEPS = ("out Available devices:", "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")
GPU = "GGML_STAND_IN_GPU"
"""While it is set, the Vulkan stand-in lists its device; drivers listen to such variables."""


def publish(shop: ReleaseServer, *, vulkan: tuple[str, ...], cuda: tuple[str, ...]) -> None:
    heading, device = VULKAN_STEPS
    builds = {
        "vulkan": shop.stand_in(
            "b1-vulkan", devices=(heading, f"need {GPU}", device), serve=vulkan
        ),
        "cuda": shop.stand_in("b1-cuda", devices=CUDA_STEPS, serve=cuda),
        "cpu": shop.stand_in("b1-cpu", serve=("err the cpu serves: listening on :1",)),
    }
    shop.publish("b1", {name: shop.variant(each, backend=name) for name, each in builds.items()})


def installed_by(shop: ReleaseServer, home: Path) -> User:
    user = shop.user(home)
    user = User(user.home, {**user.env, FAKE_HARDWARE: str(SNAPSHOT), GPU: "1"})
    done = user.run("install")
    assert done.code == 0, done.stderr
    return user


@pytest.fixture
def lost(shop: ReleaseServer, tmp_path: Path) -> User:
    """A user whose Vulkan build loses its device, and whose CUDA build serves."""
    publish(shop, vulkan=LOST, cuda=("err cuda serves: listening on :1",))
    return installed_by(shop, tmp_path / "home")


def start_of(user: User, *words: str) -> Mapping[str, object]:
    done = user.run("serve", "--json", *words)
    assert done.code == 0, done.stderr
    start = done.document["data"]["start"]
    assert isinstance(start, dict)
    return start


def active(user: User) -> str:
    return str(json.loads((user.data / "active.json").read_bytes())["active"])


def test_the_next_variant_is_installed_and_started(lost: User) -> None:
    start = start_of(lost, "--fallback")
    assert start["selected"] == "cuda"
    assert start["fallen_back_from"] == [
        {
            "variant": "vulkan",
            "reason": "the server did not start: the Vulkan driver failed during the "
            "work (device lost)",
        }
    ]
    assert "vulkan" in active(lost)
    assert len(lost.versions()) == 2


def test_a_failed_variant_is_tried_again_after_a_driver_change(lost: User) -> None:
    start_of(lost, "--fallback")
    again = lost.run("serve", "--fallback", "--json")
    start = again.document["data"]["start"]
    assert start["selected"] == "cuda"
    assert [each["variant"] for each in start["fallen_back_from"]] == ["vulkan"]
    assert "vulkan failed on these drivers" in again.stderr
    assert "ErrorDeviceLost" not in again.stderr, "it was not started a second time"
    other = lost.run("serve", "--fallback", "--json", GGML_VK_OTHER="another driver")
    assert "ErrorDeviceLost" in other.stderr
    assert other.document["data"]["start"]["selected"] == "cuda"
    off = lost.run("serve", "--no-fallback")
    assert (off.code, "error[backend-failed]" in off.stderr) == (7, True)


def test_a_new_release_is_tried_again(shop: ReleaseServer, lost: User) -> None:
    start_of(lost, "--fallback")
    good = shop.stand_in(
        "b2-vulkan", devices=VULKAN_STEPS, serve=("err vulkan serves: listening on :1",)
    )
    shop.publish("b2", {"vulkan": shop.variant(good, backend="vulkan")})
    assert lost.run("update").code == 0
    start = start_of(lost, "--fallback")
    assert (start["selected"], start["release"], start["fallen_back_from"]) == ("vulkan", "b2", [])


def test_the_whole_chain_to_the_processor(shop: ReleaseServer, tmp_path: Path) -> None:
    out = ("err CUDA error: the provided PTX was compiled with an unsupported toolchain.", "kill 6")
    publish(shop, vulkan=LOST, cuda=out)
    user = installed_by(shop, tmp_path / "home")
    start = start_of(user, "--fallback")
    assert start["selected"] == "cpu"
    assert [each["variant"] for each in start["fallen_back_from"]] == ["vulkan", "cuda"]  # type: ignore[attr-defined]
    for other in ({}, {"GGML_VK_OTHER": "another driver"}):
        required = user.run("serve", "--fallback", "--require-gpu", **other)
        assert required.code == 7, "the processor is no GPU"
        assert "the cpu serves" not in required.stderr


def test_a_variant_that_falls_back_to_the_processor_is_replaced(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    """It had to be ended; the next one lives."""
    slipped = ("err offloaded 0/33 layers to GPU", "err CPU model buffer size = 9.00 MiB", "listen")
    publish(shop, vulkan=slipped, cuda=("flood 20000", "err listening on :1", "exit 5"))
    user = installed_by(shop, tmp_path / "home")
    words = ("serve", "--fallback", "--require-gpu", "--json", "--", "--port", "0")
    done = user.run(*words)
    assert done.code == 5, "nobody ended the second one"
    assert done.document["data"]["start"]["fallen_back_from"][0]["variant"] == "vulkan"


def test_a_gpu_that_is_no_longer_listed_is_replaced(lost: User) -> None:
    hidden = User(lost.home, {name: value for name, value in lost.env.items() if name != GPU})
    done = hidden.run("serve", "--fallback", "--json")
    assert done.document["data"]["start"]["selected"] == "cuda"
    assert "vulkan failed: the vulkan build would run on the CPU: it lists no device" in done.stderr


def test_without_another_variant_the_processor_is_used_with_a_warning(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    heading, device = VULKAN_STEPS
    devices = (heading, f"need {GPU}", device)
    only = shop.stand_in(
        "b1-vulkan", devices=devices, serve=("err vulkan serves: listening on :1",)
    )
    shop.publish("b1", {"vulkan": shop.variant(only, backend="vulkan")})
    user = installed_by(shop, tmp_path / "home")
    env = {name: value for name, value in user.env.items() if name != GPU}
    done = User(user.home, env).run("serve", "--fallback")
    assert done.code == 0, done.stderr
    assert "vulkan serves" in done.stderr
    assert "warning: the vulkan build would run on the CPU" in done.stderr


@pytest.mark.parametrize("words", [(), ("--no-fallback",)])
def test_without_a_terminal_nothing_is_asked_or_done(words: tuple[str, ...], lost: User) -> None:
    done = lost.run("serve", *words)
    assert done.code == 7
    assert (
        "error[backend-failed]: the server did not start: the Vulkan driver failed" in done.stderr
    )
    assert len(lost.versions()) == 1


def test_a_requested_variant_is_not_replaced(lost: User) -> None:
    assert lost.run("config", "set", "llm.backend", "vulkan").code == 0
    done = lost.run("serve", "--fallback")
    assert done.code == 7
    assert len(lost.versions()) == 1


@pytest.mark.parametrize(
    ("typed", "code", "versions"), [(b"y\n", 0, 2), (b"n\n", 7, 1), (b"\n", 7, 1), (b"\x04", 7, 1)]
)
def test_on_a_terminal_the_user_is_asked(
    typed: bytes, code: int, versions: int, lost: User
) -> None:
    ended, said = run_on_terminal(typed, "serve", env=lost.env)
    assert "Continue with cuda (a download of" in said
    assert (ended, len(lost.versions())) == (code, versions)


def test_without_a_network_the_first_failure_is_reported(shop: ReleaseServer, lost: User) -> None:
    for archive in (shop.nginx.root / "archives").glob("b1-cuda*"):
        archive.unlink()
    done = lost.run("serve", "--fallback")
    assert done.code == 7
    assert "no other variant can be installed" in done.stderr
    assert "device lost" in done.stderr
