"""What is installed while a GPU is withheld for a time, and what follows when that is over."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.builds import VULKAN_STEPS
from support.folder_shop import FolderShop
from support.program import Result, run_on_terminal
from support.release_server import User

from tsuku_llm.steps.session import FAKE_HARDWARE

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
WORKING = "h200-recorded-without-vulkan-loader.json"
"""A machine with CUDA only, whose card is an H200."""
CUDA_STEPS = ("out Available devices:", "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")
TEMPORARY = {
    "driver-updated-not-rebooted.json": "does not match the kernel module",
    "cuda-newer-than-the-kernel-module.json": "does not match the kernel module",
    "fabric-manager-not-running.json": "is not ready yet",
    "after-suspend-999.json": "lost its device, as happens after a suspend",
}
"""Snapshots of temporary states, and words of each state's text."""
REBOOT = "driver-updated-not-rebooted.json"


def seen(name: str) -> dict[str, str]:
    return {FAKE_HARDWARE: str(SNAPSHOTS / name)}


def publish(shop: FolderShop, tag: str, *, cuda_devices: tuple[str, ...] = CUDA_STEPS) -> None:
    """A release with a build for CUDA, which the publisher prefers, and one for the CPU."""
    cuda = shop.stand_in(f"{tag}-cuda", devices=cuda_devices)
    cpu = shop.variant(shop.stand_in(f"{tag}-cpu"))
    shop.publish(tag, {"cuda": shop.variant(cuda, backend="cuda"), "cpu": cpu})


@pytest.fixture
def folder_shop(tmp_path: Path) -> FolderShop:
    shop = FolderShop(tmp_path / "shop")
    publish(shop, "b1")
    return shop


@pytest.fixture
def waiting(folder_shop: FolderShop, tmp_path: Path) -> User:
    """A user who installed while the driver waited for a reboot."""
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, REBOOT)["variant"] == "cpu"
    return user


def installed(user: User, machine: str, *words: str, **extra: str) -> Any:
    done = user.run("install", "--json", *words, **seen(machine), **extra)
    assert done.code == 0, done.stderr
    return done.document["data"]


def active(user: User) -> str:
    return str(json.loads((user.data / "active.json").read_bytes())["active"])


def served(user: User, machine: str, *words: str, **extra: str) -> Result:
    """A start whose server only lists its devices and ends."""
    done = user.run("serve", *words, "--", "--list-devices", **seen(machine), **extra)
    assert done.code == 0, done.stderr
    return done


def updated(user: User, machine: str, *words: str, **extra: str) -> Result:
    done = user.run("update", *words, **seen(machine), **extra)
    assert done.code == 0, done.stderr
    return done


# --- a start ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", TEMPORARY)
def test_a_start_says_that_the_state_is_over_and_moves(
    folder_shop: FolderShop, tmp_path: Path, state: str
) -> None:
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, state)["variant"] == "cpu"
    said = served(user, WORKING, "--fallback").stderr
    assert TEMPORARY[state] in said
    assert "over: " in said
    assert "selected=cuda" in said
    assert "b1-cuda" in active(user)
    assert "over: " not in served(user, WORKING, "--fallback").stderr


LASTING = (
    "container-without-gpus.json",
    "user-not-in-render-group.json",
    "cuda-toolkit-stub.json",
    "vulkan-loader-without-driver.json",
    "leftover-nvidia-smi-on-amd.json",
    "wsl-without-gpu.json",
)
"""Machines without a usable GPU, for reasons that no time removes: somebody has to do something."""


@pytest.mark.parametrize("machine", LASTING)
def test_a_gpu_that_comes_later_is_found_at_the_next_start(
    folder_shop: FolderShop, tmp_path: Path, machine: str
) -> None:
    """As after a driver's installation, a group, or a container with its GPU (ollama#3201)."""
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, machine)["variant"] == "cpu"
    assert "changed" not in served(user, machine).stderr
    said = served(user, WORKING).stderr
    assert "drivers or devices have changed since cpu was chosen; cuda" in said
    assert "to move to it: tsuku-llm install" in said
    assert "b1-cpu" in active(user)
    assert "selected=cuda" in served(user, WORKING, "--fallback").stderr
    assert "b1-cuda" in active(user)
    assert "changed" not in served(user, WORKING).stderr


def test_an_update_takes_the_gpu_that_came_later(folder_shop: FolderShop, tmp_path: Path) -> None:
    user = folder_shop.user(tmp_path / "home")
    installed(user, LASTING[0])
    assert "cuda" not in updated(user, LASTING[0], "--check").stdout
    assert "drivers or devices have changed" in updated(user, WORKING).stderr
    assert "b1-cuda" in active(user)


def test_a_changed_machine_without_a_better_build_is_asked_about_once(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    user = folder_shop.user(tmp_path / "home")
    installed(user, WORKING)
    other = "h200-recorded-with-vulkan-loader.json"
    for _ in range(2):
        said = served(user, other).stderr
        assert "changed" not in said
        assert "selected=cuda" in said
    receipt = json.loads((user.data / "versions" / active(user) / "receipt.json").read_bytes())
    assert receipt["drivers"]


@pytest.mark.parametrize("words", [("--backend", "cpu"), ("--backend", "cuda")])
def test_what_the_user_chose_by_name_stays(
    folder_shop: FolderShop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    user = folder_shop.user(tmp_path / "home")
    chosen = installed(user, WORKING, *words)["variant"]
    said = served(user, "h200-recorded-with-vulkan-loader.json", "--fallback").stderr
    assert "changed" not in said
    assert f"selected={chosen}" in said


def test_a_start_warns_while_the_state_lasts(waiting: User) -> None:
    for _ in range(2):
        said = served(waiting, REBOOT, "--fallback").stderr
        assert "warning: cpu was chosen because: NVIDIA's user library does not match" in said
        assert "restart the machine" in said
        assert "selected=cpu" in said


def test_a_list_marks_what_was_chosen_meanwhile(waiting: User) -> None:
    assert "chosen while a GPU could not be used: NVIDIA's" in waiting.run("list").stdout
    (version,) = waiting.run("list", "--json").document["data"]["versions"]
    assert "does not match the kernel module" in version["withheld"][0]
    installed(waiting, WORKING)
    found = waiting.run("list", "--json").document["data"]["versions"]
    assert [each["withheld"] for each in found if each["active"]] == [[]]


@pytest.mark.parametrize("words", [(), ("--no-fallback",)])
def test_without_consent_a_start_only_offers_the_move(
    waiting: User, words: tuple[str, ...]
) -> None:
    said = served(waiting, WORKING, *words).stderr
    assert "over: NVIDIA's user library does not match" in said
    assert "to move to it: tsuku-llm install" in said
    assert "selected=cpu" in said
    assert "b1-cpu" in active(waiting)


@pytest.mark.parametrize(("typed", "build"), [(b"y\n", "b1-cuda"), (b"n\n", "b1-cpu")])
def test_on_a_terminal_a_start_asks(waiting: User, typed: bytes, build: str) -> None:
    env = {**waiting.env, **seen(WORKING)}
    code, said = run_on_terminal(typed, "serve", "--", "--list-devices", env=env)
    assert code == 0
    assert "cuda (a download of" in said
    assert "Replace cpu? [y/N]" in said
    assert build in active(waiting)


def test_a_large_download_needs_a_yes(folder_shop: FolderShop, tmp_path: Path) -> None:
    cuda = folder_shop.variant(folder_shop.stand_in("b2-cuda", devices=CUDA_STEPS), backend="cuda")
    cuda["artifacts"][0]["size"] = 593_000_000
    cuda["artifacts"][0].pop("pieces", None)
    cpu = folder_shop.variant(folder_shop.stand_in("b2-cpu"))
    folder_shop.publish("b2", {"cuda": cuda, "cpu": cpu})
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, REBOOT)["variant"] == "cpu"
    said = served(user, WORKING, "--fallback").stderr
    assert "cuda (a download of 593 MB) fits now; to move to it: tsuku-llm install" in said
    assert "b2-cpu" in active(user)


def test_a_backend_that_the_user_named_is_no_temporary_state(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    user = folder_shop.user(tmp_path / "home")
    installed(user, REBOOT, "--backend", "cpu")
    assert "over: " not in served(user, WORKING, "--fallback").stderr
    installed(user, REBOOT)
    said = served(user, WORKING, "--fallback", TSUKU_LLM_BACKEND="cpu").stderr
    assert "over: " not in said
    assert "b1-cpu" in active(user)


def test_a_better_build_that_does_not_start_is_tried_once(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    publish(folder_shop, "b2", cuda_devices=("err a driver complains", "exit 1"))
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, REBOOT)["variant"] == "cpu"
    said = served(user, WORKING, "--fallback").stderr
    assert "cuda (a download of" in said
    assert "selected=cpu" in said
    assert "over: " not in served(user, WORKING, "--fallback").stderr
    found = updated(user, WORKING, "--json").document["data"]
    assert (found["installed"]["variant"], found["better"]) == ("cpu", None)


def test_a_driver_that_was_too_slow_is_asked_again_with_more_time(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    """Its question costs its whole limit, so it is not put again at each start."""
    machine = json.loads((SNAPSHOTS / WORKING).read_bytes())
    working = json.dumps(machine)
    machine["answers"]["cuda"] |= {"end": "timed-out", "during": "cuInit", "limit": 20.0}
    slow = str(tmp_path / "slow.json")
    Path(slow).write_text(json.dumps(machine), encoding="utf-8")
    stamp = Path(slow).stat()
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, slow)["variant"] == "cpu"
    for _ in range(2):
        said = served(user, slow, "--fallback").stderr
        assert "warning: cpu was chosen because: NVIDIA's CUDA driver was too slow" in said
    # The start does not ask, as a question with the same limit may take as long in vain.
    Path(slow).write_text(working, encoding="utf-8")
    os.utime(slow, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the drivers' files are the same
    assert "over: " not in served(user, slow, "--fallback").stderr
    said = served(user, slow, "--fallback", TSUKU_LLM_PROBE_TIMEOUT="60s").stderr
    assert "over: NVIDIA's CUDA driver was too slow" in said
    assert "b1-cuda" in active(user)


def test_a_gpus_build_that_works_is_started_without_a_warning(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    """CUDA lost its device in a sleep; Vulkan, which comes first in any case, still works."""
    builds = {
        "vulkan": folder_shop.stand_in("b2-vulkan", devices=VULKAN_STEPS),
        "cuda": folder_shop.stand_in("b2-cuda", devices=CUDA_STEPS),
        "cpu": folder_shop.stand_in("b2-cpu"),
    }
    variants = {name: folder_shop.variant(each, backend=name) for name, each in builds.items()}
    folder_shop.publish("b2", variants)
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, "after-suspend-999.json")["variant"] == "vulkan"
    for machine in ("after-suspend-999.json", "h200-working-vulkan.json"):
        said = served(user, machine, "--fallback").stderr
        assert "selected=vulkan" in said
        assert "was chosen because" not in said
        assert "over: " not in said


def test_a_machine_that_needs_nothing_better_is_not_asked_again(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    """The state is over and there is no GPU (any more): the receipt then says that."""
    user = folder_shop.user(tmp_path / "home")
    installed(user, REBOOT)
    served(user, "debian-12-vm-no-gpu.json", "--fallback")
    (version,) = user.versions()
    receipt = json.loads((user.data / "versions" / version / "receipt.json").read_bytes())
    assert receipt["hardware"]["simulated"] == "debian-12-vm-no-gpu.json"
    assert "over: " not in served(user, WORKING, "--fallback").stderr


def test_a_failed_download_does_not_prevent_a_start(folder_shop: FolderShop, waiting: User) -> None:
    shutil.rmtree(folder_shop.root / "archives")
    said = served(waiting, WORKING, "--fallback").stderr
    assert "a better build cannot be installed: " in said
    assert "selected=cpu" in said


# --- install and update ----------------------------------------------------------------------


def test_an_install_says_that_the_state_is_over(waiting: User) -> None:
    done = waiting.run("install", "--json", **seen(WORKING))
    assert done.document["data"]["variant"] == "cuda"
    assert "over: NVIDIA's user library does not match" in done.stderr
    assert "cpu was installed meanwhile" in done.stderr


def test_an_update_moves_when_the_state_is_over(waiting: User) -> None:
    checked = updated(waiting, WORKING, "--check", "--json").document["data"]
    assert (checked["newer"], checked["candidate"]["variant"]) == (False, "cuda")
    assert checked["better"]["device"] == "NVIDIA H200"
    assert "cpu was installed meanwhile" in checked["replaced"]
    assert "run: tsuku-llm update" in updated(waiting, WORKING, "--check").stdout
    done = updated(waiting, WORKING, "--json")
    assert (done.document["data"]["outcome"], done.document["data"]["variant"]) == (
        "installed",
        "cuda",
    )
    assert "cpu is replaced: over: NVIDIA's user library does not match" in done.stderr
    assert "b1-cuda" in active(waiting)


def test_an_update_keeps_what_is_active_while_the_state_lasts(waiting: User) -> None:
    done = updated(waiting, REBOOT, "--json")
    data = done.document["data"]
    assert (data["outcome"], data["installed"]["variant"]) == ("unchanged", "cpu")
    assert "temporary: NVIDIA's user library does not match" in done.stderr


def test_the_daily_look_finds_that_the_state_is_over(waiting: User) -> None:
    updated(waiting, WORKING, "--check", "--json")
    said = served(waiting, WORKING, "--no-fallback", TSUKU_LLM_UPDATE_CHECK="true").stderr
    assert "cuda fits now; to install it: tsuku-llm update" in said


def test_an_update_reports_the_active_variant_and_not_the_best(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    """What the choice rested on is not known, as on Windows: so the update only offers it."""
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, "debian-12-vm-no-gpu.json")["variant"] == "cpu"
    path = user.data / "versions" / active(user) / "receipt.json"
    receipt = json.loads(path.read_bytes())
    path.write_text(json.dumps({**receipt, "drivers": ""}), encoding="utf-8")
    done = updated(user, WORKING, "--json")
    data = done.document["data"]
    (version,) = user.versions()
    assert (data["outcome"], data["candidate"]) == ("unchanged", None)
    assert (data["installed"]["variant"], data["installed"]["id"]) == ("cpu", version)
    assert data["better"]["variant"] == "cuda"
    shown = updated(user, WORKING).stdout
    assert shown.startswith("The CPU build b1 is installed already.\n")
    assert "cuda would be chosen now (NVIDIA H200); to move to it: tsuku-llm install" in shown
    assert "to move to it: tsuku-llm install" in updated(user, WORKING, "--check").stdout
    assert installed(user, WORKING)["variant"] == "cuda"


def test_an_update_does_not_offer_what_did_not_start(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    publish(folder_shop, "b2", cuda_devices=("err a driver complains", "exit 1"))
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, WORKING)["variant"] == "cpu"
    data = updated(user, WORKING, "--json").document["data"]
    assert (data["installed"]["variant"], data["better"]) == ("cpu", None)
    reasons = {each["variant"]: each["slug"] for each in data["passed_over"]}
    assert reasons["cuda"] == "failed-start"
    assert "cuda of b2" not in updated(user, WORKING).stdout


def test_an_update_names_an_active_variant_that_fits_no_more(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, WORKING)["variant"] == "cuda"
    data = updated(user, "debian-12-vm-no-gpu.json", "--json").document["data"]
    assert (data["installed"]["variant"], data["better"]) == ("cuda", None)
    assert "is not installed" in data["obstacle"]
    assert "it does not fit this machine now" in updated(user, "debian-12-vm-no-gpu.json").stdout


# --- hidden by a variable --------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_gpu_that_a_variable_hid_is_found_again(
    folder_shop: FolderShop, tmp_path: Path, value: str
) -> None:
    user = folder_shop.user(tmp_path / "home")
    hidden = "cuda-visible-devices-empty.json"
    assert installed(user, hidden, CUDA_VISIBLE_DEVICES=value)["variant"] == "cpu"
    said = served(user, hidden, "--fallback", CUDA_VISIBLE_DEVICES=value).stderr
    assert "CUDA_VISIBLE_DEVICES" not in said, "still set: the user's own decision"
    said = served(user, WORKING, "--fallback").stderr
    assert f"over: CUDA_VISIBLE_DEVICES={value!r} was set" in said
    assert "b1-cuda" in active(user)


def test_an_update_does_not_leave_a_gpu_that_a_variable_hides(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, WORKING)["variant"] == "cuda"
    publish(folder_shop, "b2")
    hidden = seen("cuda-visible-devices-empty.json")
    done = user.run("update", "--json", **hidden, CUDA_VISIBLE_DEVICES="")
    assert (done.code, done.document["error"]["code"]) == (3, "no-variant")
    assert done.document["error"]["hint"].startswith("unset CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_an_install_does_not_leave_a_gpu_for_a_temporary_state(
    folder_shop: FolderShop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, WORKING)["variant"] == "cuda"
    done = user.run("install", "--json", *words, **seen(REBOOT))
    assert (done.code, done.document["error"]["code"]) == (3, "no-variant")
    assert done.document["error"]["hint"] == (
        "restart the machine to load the new driver; if it was restarted since, "
        "bring all packages of the driver to one version; "
        "or take the CPU: tsuku-llm install --backend cpu"
    )
    assert "b1-cuda" in active(user)
    assert installed(user, REBOOT, *words, "--backend", "cpu")["variant"] == "cpu"


def test_a_failed_start_does_not_count_with_another_selection_of_devices(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    """The drivers see the GPU; the build does not, because of a variable that only it reads."""
    heading, device = VULKAN_STEPS
    steps = (heading, "need GGML_VK_VISIBLE_DEVICES", device)
    gpu = folder_shop.variant(folder_shop.stand_in("b2-vulkan", devices=steps), backend="vulkan")
    cpu = folder_shop.variant(folder_shop.stand_in("b2-cpu"))
    folder_shop.publish("b2", {"vulkan": gpu, "cpu": cpu})
    user = folder_shop.user(tmp_path / "home")
    assert installed(user, "h200-working-vulkan.json")["variant"] == "cpu"
    assert installed(user, "h200-working-vulkan.json")["outcome"] == "unchanged"
    variable = {"GGML_VK_VISIBLE_DEVICES": "0"}
    assert installed(user, "h200-working-vulkan.json", **variable)["variant"] == "vulkan"
