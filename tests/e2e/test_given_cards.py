"""A server of an installed build gets no card that a variable of another interface leaves out."""

import json
import os
from pathlib import Path

import pytest
from support import model_headers
from support.builds import VULKAN_STEPS
from support.folder_shop import FolderShop
from support.model_headers import write_shape
from support.release_server import User

from tsuku_llm.steps.session import FAKE_HARDWARE

TWO = json.loads((Path(__file__).parents[1] / "snapshots" / "two-h200.json").read_bytes())
"""Two cards, which CUDA and Vulkan list in the same order."""
CUDA_STEPS = ("out Available devices:", "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")


def seen(tmp_path: Path, variables: dict[str, str]) -> dict[str, str]:
    """The machine with these variables; CUDA lists what its variable leaves."""
    machine = json.loads(json.dumps(TWO))
    machine["environment"] |= variables
    kept = variables.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    lines = machine["answers"]["cuda"]["lines"]
    cards = [each for each in lines if each["call"] == "device"]
    named = [card for card in cards if {str(card["index"]), f"GPU-{card['uuid']}"} & {*kept}]
    others = [
        {**each, "count": len(named)} if each["call"] == "cuDeviceGetCount" else each
        for each in lines
        if each["call"] != "device"
    ]
    machine["answers"]["cuda"]["lines"] = [
        *others,
        *({**card, "index": at} for at, card in enumerate(named)),
    ]
    path = tmp_path / "two.json"
    path.write_text(json.dumps(machine), encoding="utf-8")
    return {FAKE_HARDWARE: str(path), **variables}


@pytest.fixture
def user(tmp_path: Path) -> User:
    shop = FolderShop(tmp_path / "shop")
    builds = {
        "vulkan": shop.stand_in("b1-vulkan", devices=VULKAN_STEPS),
        "cuda": shop.stand_in("b1-cuda", devices=CUDA_STEPS),
        "cpu": shop.stand_in("b1-cpu"),
    }
    variants = {name: shop.variant(each, backend=name) for name, each in builds.items()}
    shop.publish("b1", variants)
    return shop.user(tmp_path / "home")


@pytest.mark.parametrize(
    ("backend", "variables", "given"),
    [
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "1"}, {"GGML_VK_VISIBLE_DEVICES": "1"}),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "GPU-uuid-1"}, {"GGML_VK_VISIBLE_DEVICES": "0"}),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "MIG-1"}, {"GGML_VK_VISIBLE_DEVICES": ""}),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "0,1"}, {}),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "1", "GGML_VK_VISIBLE_DEVICES": "0"}, {}),
        ("cuda", {"GGML_VK_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("cuda", {"GGML_VK_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}),
        ("cuda", {"HIP_VISIBLE_DEVICES": "1"}, {}),
    ],
)
def test_the_server_gets_the_cards_that_were_given(
    user: User, tmp_path: Path, backend: str, variables: dict[str, str], given: dict[str, str]
) -> None:
    """Installed on the whole machine, and served in a job that has one card (ollama#16508)."""
    done = user.run("install", "--backend", backend, **seen(tmp_path, {}))
    assert done.code == 0, done.stderr
    env = seen(tmp_path, variables)
    plan = user.run("serve", "--dry-run", "--json", "--no-fallback", **env)
    assert plan.code == 0, plan.stderr
    shown = plan.document["data"]["environment"]
    assert {name: shown.get(name) for name in given} == given
    assert shown.get("GGML_VK_VISIBLE_DEVICES", "") == (
        {**given, **variables}.get("GGML_VK_VISIBLE_DEVICES", "")
    )
    assert (" for the server: a variable leaves" in plan.stderr) is bool(given)


def test_a_build_that_reads_the_variable_itself_comes_first(user: User, tmp_path: Path) -> None:
    """Vulkan, which this publisher prefers, is limited by a start, and so it fits as well."""
    env = seen(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})
    assert user.run("install", "--json", **env).document["data"]["variant"] == "cuda"
    done = user.run("install", "--json", "--backend", "vulkan", **env)
    assert done.document["data"]["variant"] == "vulkan"


def test_what_is_reported_is_what_a_server_would_get(tmp_path: Path) -> None:
    """``doctor`` and ``explain -m`` ask the build as ``serve`` does: here it needs the variable."""
    heading, device = VULKAN_STEPS
    steps = (heading, "need GGML_VK_VISIBLE_DEVICES", device)
    shop = FolderShop(tmp_path / "shop")
    gpu = shop.variant(shop.stand_in("b1-vulkan", devices=steps), backend="vulkan")
    shop.publish("b1", {"vulkan": gpu})
    user = shop.user(tmp_path / "home")
    model = write_shape(tmp_path / "llama.gguf", model_headers.llama(), vocabulary=9)
    done = user.run("install", **seen(tmp_path, {}), GGML_VK_VISIBLE_DEVICES="1")
    assert done.code == 0, done.stderr
    env = seen(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})
    chain = user.run("doctor", "--json", "--backend", "vulkan", **env).document["data"]
    assert [each for each in chain["links"] if each["fault"]] == []
    told = user.run("explain", "--json", "-m", str(model), "--backend", "vulkan", **env)
    cards = json.loads(told.stdout)["data"]["model"]["devices"]
    assert [card["free"] for card in cards] == [143000 << 20]


def test_doctor_names_the_variable_of_the_builds_own_that_leaves_no_card(
    user: User, tmp_path: Path
) -> None:
    """On an H200 doctor advised the build for the CPU, for a number that no card has."""
    env = seen(tmp_path, {"GGML_VK_VISIBLE_DEVICES": "5"})
    told = user.run("doctor", "--json", "--backend", "vulkan", **env).document["data"]
    faults = [link for link in told["links"] if link["fault"]]
    assert (faults[0]["stage"], faults[0]["fault"]["slug"]) == ("device", "vulkan-hidden")
    assert faults[0]["fault"]["fix"] == "correct or unset GGML_VK_VISIBLE_DEVICES"
    refused = user.run("install", "--json", "--backend", "vulkan", **env)
    assert refused.code == 3
    assert "correct or unset GGML_VK_VISIBLE_DEVICES" in refused.document["error"]["hint"]


def test_the_drivers_are_asked_once_for_the_cards(user: User, tmp_path: Path) -> None:
    user.run("install", "--backend", "vulkan", **seen(tmp_path, {}))
    env = seen(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})
    said = user.run("serve", "--", "--list-devices", **env).stderr
    assert "GGML_VK_VISIBLE_DEVICES=1 for the server" in said
    # The recording is gone: a question would say so.
    path, stamp = Path(env[FAKE_HARDWARE]), Path(env[FAKE_HARDWARE]).stat()
    broken = json.loads(path.read_bytes())
    broken["answers"] = {}
    path.write_text(json.dumps(broken), encoding="utf-8")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    again = user.run("serve", "--", "--list-devices", **env).stderr
    assert "GGML_VK_VISIBLE_DEVICES=1 for the server" in again
