"""In the background, a server that is not on the GPU is a failure or goes on with the next."""

import os
import signal
from pathlib import Path

import pytest
from support.builds import VULKAN_STEPS
from support.processes import gone
from support.release_server import ReleaseServer, User

from tsuku_llm.steps.session import FAKE_HARDWARE

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "h200-working-vulkan.json"
CUDA_STEPS = ("out Available devices:", "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")
ON_CUDA = ("err load_tensors:        CUDA0 model buffer size =  4096.00 MiB", "listen")
SILENT = (
    "err load_tensors: offloaded 0/33 layers to GPU",
    "err load_tensors:          CPU model buffer size = 1000.00 MiB",
    "listen",
)


@pytest.fixture
def user(shop: ReleaseServer, tmp_path: Path) -> User:
    """A user whose Vulkan build lists its device and then computes on the processor."""
    builds = {
        "vulkan": shop.stand_in("b1-vulkan", devices=VULKAN_STEPS, serve=SILENT),
        "cuda": shop.stand_in("b1-cuda", devices=CUDA_STEPS, serve=ON_CUDA),
    }
    shop.publish("b1", {name: shop.variant(each, backend=name) for name, each in builds.items()})
    user = shop.user(tmp_path / "home")
    user = User(user.home, {**user.env, FAKE_HARDWARE: str(SNAPSHOT)})
    done = user.run("install")
    assert done.code == 0, done.stderr
    return user


def detached(user: User, *words: str) -> tuple[int, dict[str, object]]:
    done = user.run("serve", "--detach", "--json", *words, "--", "--port", "0")
    return done.code, done.document["error"] or done.document["data"]


def test_a_server_that_is_not_on_the_gpu_is_exit_code_8(user: User) -> None:
    code, error = detached(user, "--require-gpu")
    assert (code, error["code"]) == (8, "silent-cpu")
    assert user.run("status", "--json").document["data"]["servers"] == []


def test_the_next_variant_is_started_and_named(user: User) -> None:
    code, server = detached(user, "--require-gpu", "--fallback")
    assert code == 0, server
    try:
        report = server["report"]
        assert isinstance(report, dict)
        assert (server["state"], report["selected"]) == ("running", "cuda")
        assert [each["variant"] for each in report["fallen_back_from"]] == ["vulkan"]
        assert "not vulkan" in user.run("status").stdout
        os.kill(int(str(server["supervisor"])), signal.SIGKILL)
        assert gone(int(str(server["pid"]))), "the second server is tied to its supervisor as well"
    finally:
        user.run("stop")
