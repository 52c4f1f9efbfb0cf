"""A backend fails at the start: the next variant, from a real publisher, and back again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.builds import VULKAN_STEPS
from support.program import run_on_terminal
from support.release_server import ReleaseServer, User

from tsuku_llm.steps.session import FAKE_HARDWARE

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "h200-working-vulkan.json"
LOST = ("err terminate: vk::Queue::submit: ErrorDeviceLost", "kill 6")
CUDA_STEPS = ("out Available devices:", "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")
SERVES = "STAND_IN_SERVES"
"""Without it the CUDA stand-in ends at once; drivers do not listen to such variables."""
GPU = "GGML_STAND_IN_GPU"
"""While it is set, the Vulkan stand-in lists its device; drivers listen to such variables."""


def publish(
    shop: ReleaseServer,
    *,
    vulkan: tuple[str, ...],
    cuda: tuple[str, ...],
    cpu: tuple[str, ...] = ("err the cpu serves", "listen"),
) -> None:
    heading, device = VULKAN_STEPS
    builds = {
        "vulkan": shop.stand_in(
            "b1-vulkan", devices=(heading, f"need {GPU}", device), serve=vulkan
        ),
        "cuda": shop.stand_in("b1-cuda", devices=CUDA_STEPS, serve=cuda),
        "cpu": shop.stand_in("b1-cpu", serve=cpu),
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
    publish(shop, vulkan=LOST, cuda=(f"need {SERVES}", "listen"))
    user = installed_by(shop, tmp_path / "home")
    return User(user.home, {**user.env, SERVES: "1"})


def without(user: User, name: str) -> User:
    return User(user.home, {each: value for each, value in user.env.items() if each != name})


def served_by(user: User, *words: str, **extra: str) -> tuple[Mapping[str, object], str]:
    """The report of a server that was started in the background and stopped, and its log."""
    done = user.run("serve", "--detach", "--json", *words, "--", "--port", "0", **extra)
    assert done.code == 0, done.stderr
    # Not ``logs``: that begins with the log of the start before.
    said = (user.data / "state" / "servers" / "default.log").read_text("utf-8")
    assert user.run("stop").code == 0
    report = done.document["data"]["report"]
    assert isinstance(report, dict)
    return report, said


def noted(user: User, **extra: str) -> Any:
    return user.run("fallback", "--json", **extra).document["data"]


def active(user: User) -> str:
    return str(json.loads((user.data / "active.json").read_bytes())["active"])


def test_the_next_variant_is_installed_and_started(lost: User) -> None:
    start = served_by(lost, "--fallback")[0]
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
    report, _ = served_by(lost, "--fallback")
    assert report["selected"] == "cuda"
    report, said = served_by(lost, "--fallback")
    assert report["selected"] == "cuda"
    assert [each["variant"] for each in report["fallen_back_from"]] == ["vulkan"]  # type: ignore[attr-defined]
    assert "vulkan failed on these drivers" in said
    assert "ErrorDeviceLost" not in said, "it was not started a second time"
    report, said = served_by(lost, "--fallback", GGML_VK_OTHER="another driver")
    assert "ErrorDeviceLost" in said
    assert report["selected"] == "cuda"
    off = lost.run("serve", "--no-fallback")
    assert (off.code, "error[backend-failed]" in off.stderr) == (7, True)


def test_failures_are_listed_and_a_forgotten_one_is_tried_again(lost: User) -> None:
    assert noted(lost) == {"failures": [], "current": False, "forgotten": False}
    served_by(lost, "--fallback")
    (failure,) = noted(lost)["failures"]
    vulkan, cuda = sorted(lost.versions(), key=lambda name: "cuda" in name)
    assert (failure["id"], failure["instead"]) == (vulkan, cuda)
    shown = lost.run("fallback").stdout.splitlines()
    assert shown == [
        f"{vulkan} failed at {failure['noted_at']}: {failure['reason']}",
        f"  {cuda} served instead",
        "to try it again: tsuku-llm fallback --forget",
    ]
    other = lost.run("fallback", GGML_VK_OTHER="another driver").stdout
    assert other.splitlines()[-1] == "noted with other drivers or variables: serve tries it again"
    assert lost.run("fallback", "--forget").stdout == f"forgotten: the failure of {vulkan}\n"
    assert lost.run("fallback").stdout == "no failure is noted: serve starts the active version\n"
    assert "ErrorDeviceLost" in served_by(lost, "--fallback")[1]


def test_N04_a_dry_run_follows_a_fallback_to_what_is_installed(lost: User) -> None:
    lists_nothing = without(lost, GPU)
    planned = lists_nothing.run("serve", "--fallback", "--dry-run")
    assert planned.code == 0
    assert "cuda would be installed first: what follows is not known" in planned.stderr
    assert len(lost.versions()) == 1
    served_by(lost, "--fallback")
    cuda = next(each for each in lost.versions() if "cuda" in each)
    # The failure was noted, and a device that is not listed leads to the same build.
    for user in (lost, lists_nothing):
        planned = user.run("serve", "--fallback", "--dry-run", "--json")
        assert planned.code == 0, planned.stderr
        assert planned.document["data"]["id"] == cuda
    gone = lists_nothing.run("serve", "--no-fallback", "--require-gpu", "--dry-run")
    assert gone.code == 8


NOT_THE_BACKENDS = {
    "model": ("err gguf_init_from_file: invalid magic characters: 'PK', expected 'GGUF'", "exit 1"),
    "memory": (
        "err ggml_vulkan: Device memory allocation of size 9000000000 failed.",
        "err ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "exit 1",
    ),
    "typo": ("err error: invalid device: Vulkan00", "exit 1"),
}


@pytest.mark.parametrize("said", NOT_THE_BACKENDS.values(), ids=NOT_THE_BACKENDS)
def test_a_fault_of_something_else_installs_and_remembers_nothing(
    said: tuple[str, ...], shop: ReleaseServer, tmp_path: Path
) -> None:
    publish(shop, vulkan=said, cuda=("listen",))
    user = installed_by(shop, tmp_path / "home")
    done = user.run("serve", "--fallback")
    assert done.code == 7
    assert "error[launch-failed]" in done.stderr
    assert len(user.versions()) == 1
    assert noted(user)["failures"] == []


def test_what_did_not_serve_either_is_not_remembered(shop: ReleaseServer, tmp_path: Path) -> None:
    """A crash of every variant says nothing about one of them."""
    publish(shop, vulkan=LOST, cuda=("kill 11",), cpu=("err the cpu fails", "exit 5"))
    user = installed_by(shop, tmp_path / "home")
    done = user.run("serve", "--fallback")
    assert done.code in {5, 7}
    assert "the cpu fails" in done.stderr
    assert noted(user)["failures"] == []


def test_a_gpu_that_is_missing_now_is_looked_for_again(lost: User) -> None:
    hidden = without(lost, GPU)
    assert served_by(hidden, "--fallback")[0]["selected"] == "cuda"
    assert noted(hidden)["failures"] == []


def test_a_large_download_needs_a_yes_also_with_auto(shop: ReleaseServer, tmp_path: Path) -> None:
    steps = {"vulkan": VULKAN_STEPS, "cuda": CUDA_STEPS}
    builds = {
        name: shop.stand_in(f"b1-{name}", devices=listed, serve=LOST)
        for name, listed in steps.items()
    }
    builds["cpu"] = shop.stand_in("b1-cpu", serve=("listen",))
    variants = {name: shop.variant(each, backend=name) for name, each in builds.items()}
    variants["cuda"]["artifacts"][0]["size"] = 593_000_000
    variants["cuda"]["artifacts"][0].pop("pieces", None)
    shop.publish("b1", variants)
    user = installed_by(shop, tmp_path / "home")
    report, said = served_by(user, "--fallback")
    assert report["selected"] == "cpu"
    assert "cuda (a download of 593 MB) is left out: more than 100 MB" in said
    assert not [line for line in shop.downloads() if "cuda" in line.path]


def test_a_new_release_is_tried_again(shop: ReleaseServer, lost: User) -> None:
    served_by(lost, "--fallback")
    good = shop.stand_in("b2-vulkan", devices=VULKAN_STEPS, serve=("err vulkan serves", "listen"))
    shop.publish("b2", {"vulkan": shop.variant(good, backend="vulkan")})
    assert lost.run("update").code == 0
    start = served_by(lost, "--fallback")[0]
    assert (start["selected"], start["release"], start["fallen_back_from"]) == ("vulkan", "b2", [])


def test_the_whole_chain_to_the_processor(shop: ReleaseServer, tmp_path: Path) -> None:
    out = ("err CUDA error: the provided PTX was compiled with an unsupported toolchain.", "kill 6")
    publish(shop, vulkan=LOST, cuda=out)
    user = installed_by(shop, tmp_path / "home")
    start = served_by(user, "--fallback")[0]
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
    hidden = without(lost, GPU)
    report, said = served_by(hidden, "--fallback")
    assert report["selected"] == "cuda"
    assert "vulkan failed: the vulkan build would run on the CPU: it lists no device" in said


def test_without_another_variant_the_processor_is_used_with_a_warning(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    heading, device = VULKAN_STEPS
    devices = (heading, f"need {GPU}", device)
    only = shop.stand_in("b1-vulkan", devices=devices, serve=("err vulkan serves", "listen"))
    shop.publish("b1", {"vulkan": shop.variant(only, backend="vulkan")})
    user = installed_by(shop, tmp_path / "home")
    report, said = served_by(without(user, GPU), "--fallback")
    assert report["selected"] == "vulkan"
    assert "warning: the vulkan build would run on the CPU" in said


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
    ("typed", "versions"), [(b"y\n", 2), (b"n\n", 1), (b"\n", 1), (b"\x04", 1)]
)
def test_on_a_terminal_the_user_is_asked(typed: bytes, versions: int, lost: User) -> None:
    ended, said = run_on_terminal(typed, "serve", env=without(lost, SERVES).env)
    assert "Continue with cuda (a download of" in said
    assert len(lost.versions()) == versions
    assert versions == 2 or ended == 7


@pytest.mark.parametrize(("typed", "runs"), [(b"y\n", False), (b"n\nn\n", True)])
def test_on_a_terminal_the_user_is_asked_again_at_the_next_start(
    typed: bytes, runs: bool, lost: User
) -> None:
    served_by(lost, "--fallback")
    _, said = run_on_terminal(typed, "serve", env=without(lost, SERVES).env)
    assert "vulkan failed on these drivers: " in said
    assert "Start cuda instead? [y/N]" in said
    assert ("ErrorDeviceLost" in said) == runs


def test_without_a_network_the_first_failure_is_reported(shop: ReleaseServer, lost: User) -> None:
    for archive in (shop.nginx.root / "archives").glob("b1-cuda*"):
        archive.unlink()
    done = lost.run("serve", "--fallback")
    assert done.code == 7
    assert "no other variant can be installed" in done.stderr
    assert "device lost" in done.stderr
