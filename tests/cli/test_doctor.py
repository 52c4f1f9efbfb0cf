"""``doctor`` on recorded machines, with builds in the store that start, fail or were changed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.program import SUDO, Result
from support.stored import FILES, LINKS, fill, make_receipt

from tsuku_llm import __version__
from tsuku_llm.config.paths import Paths
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.steps.program.copy_facts import own_updater
from tsuku_llm.steps.session import FAKE_HARDWARE
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the server is a shell script")

Program = Callable[..., Result]
AsJson = Callable[..., Any]

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
RADEON = "AMD Radeon RX 6800 (RADV NAVI21)"
LISTS = f"""
case "$*" in
    *--list-devices*) echo 'Available devices:'; echo '  Vulkan0: {RADEON} (16368 MiB)' ;;
    *) echo 'version: 1' ;;
esac"""


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replay one of the recorded machines."""
    return lambda name: monkeypatch.setenv(FAKE_HARDWARE, str(SNAPSHOTS / f"{name}.json"))


def put(home: Path, script: str = LISTS, variant: str = "vulkan") -> Installed:
    """Install a build whose server is a shell script, and make it active."""
    home.mkdir(mode=0o755, exist_ok=True)
    store = Store(Paths.from_environ({"TSUKU_HOME": str(home)}).data)
    files = {**FILES, "llama-server": f"#!/bin/sh\n{script}\n".encode()}
    backend = variant.partition("-")[0]
    with store.staging() as staging:
        with disk_errors("unpacking", staging.tree):
            fill(staging.tree, files, LINKS)
        receipt = make_receipt("b100", variant, files, LINKS, backend=backend)
        installed = store.commit(staging, receipt)
    store.activate(installed)
    return installed


def states(document: Any) -> dict[str, str]:
    return {each["stage"]: each["state"] for each in document["data"]["links"]}


def test_a_whole_chain_ends_with_0(
    program: Program, as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("amd-card-without-rocm")
    put(tsuku_home)
    told = as_json("doctor")
    assert (told["status"], told["exit_code"], told["error"]) == ("ok", 0, None)
    data = told["data"]
    assert (data["backend"], data["variant"], data["broken"]) == ("vulkan", "vulkan", None)
    assert {"broken"}.isdisjoint(states(told).values())
    assert states(told)["server-list"] == "ok"
    shown = program("doctor")
    assert shown.code == 0
    assert f"Vulkan0: {RADEON}" in shown.stdout
    assert shown.stdout.splitlines()[0] == (
        "On the simulated machine amd-card-without-rocm.json, "
        "every step from the GPU to the server works."
    )
    assert "no link is broken" in shown.stdout
    assert told["data"]["program"] == {"version": __version__, "way": own_updater().way}
    assert f"this is tsuku-llm {__version__}, {own_updater().summary}\n" in shown.stdout


@pytest.mark.parametrize(
    ("machine", "backend", "link", "code", "fix"),
    [
        (
            "vulkan-driver-without-loader",
            "vulkan",
            "user-library",
            3,
            f"{SUDO}apt install libvulkan1",
        ),
        ("driver-updated-not-rebooted", "auto", "api-init", 3, "restart the machine"),
        ("cuda-visible-devices-empty", "cuda", "device", 3, "unset CUDA_VISIBLE_DEVICES"),
        ("gtx-1060-driver-580", "cuda-13.4", "requirement", 3, "--backend cuda-12.8"),
        # A package is less than a driver.
        ("a100-driver-550-without-vulkan", "auto", "user-library", 3, "libvulkan1"),
        ("a100-driver-550-without-vulkan", "cuda", "requirement", 3, "update NVIDIA's driver"),
        ("rocm-6-without-vulkan", "auto", "user-library", 3, "vulkan-radeon"),
        ("rocm-6-without-vulkan", "rocm", "requirement", 3, "install the ROCm runtime"),
        ("wsl-without-gpu", "gpu", "kernel-module", 3, "wsl --update"),
        (
            "amd-card-without-rocm",
            "auto",
            "installed-tree",
            7,
            "tsuku-llm install --backend vulkan",
        ),
    ],
)
def test_the_first_broken_link_and_one_fix_are_named(  # noqa: PLR0913, PLR0917
    machine: str,
    backend: str,
    link: str,
    code: int,
    fix: str,
    program: Program,
    as_json: AsJson,
    on: Callable[[str], None],
) -> None:
    on(machine)
    told = as_json("doctor", "--backend", backend)
    assert (told["status"], told["exit_code"]) == ("error", code)
    broken = told["data"]["broken"]
    assert broken["stage"] == link
    assert told["data"]["simulated"] == told["simulated"] == f"{machine}.json"
    assert fix in broken["fault"]["fix"]
    assert told["error"]["hint"] == broken["fault"]["fix"]
    assert states(told)[link] == "broken"
    shown = program("doctor", "--backend", backend)
    assert shown.code == code
    lines = shown.stdout.splitlines()
    name = link.replace("-", " ")
    assert lines[0] == (
        f"On the simulated machine {machine}.json, "
        f"the first broken link from the GPU to the server is: {name}."
    )
    assert [line for line in lines if line.startswith(f"first broken: {name}")]
    assert [line for line in lines if line.startswith("fix: ")] == [f"fix: {told['error']['hint']}"]
    assert "error[" not in shown.stderr, "people have read it"
    reason = broken["fault"]["text"]
    assert not [line for line in lines if line.startswith("also ") and reason in line]


def test_the_variant_that_lacks_the_least_is_examined(
    as_json: AsJson, on: Callable[[str], None]
) -> None:
    on("a100-driver-550-without-vulkan")
    told = as_json("doctor", "--backend", "cuda")
    assert told["data"]["variant"] == "cuda-12.8"
    assert "needs a driver for CUDA 12.8" in told["error"]["message"]


def test_a_temporary_problem_is_marked_as_temporary(
    program: Program, as_json: AsJson, on: Callable[[str], None]
) -> None:
    on("after-suspend-999")
    told = as_json("doctor", "--backend", "cuda")
    assert told["data"]["broken"]["fault"]["transient"] is True
    assert "(temporary)" in told["error"]["message"]
    assert "first broken: api init (temporary): " in program("doctor", "--backend", "cuda").stdout
    assert "also cuda-after-suspend (temporary): " in program("doctor").stdout


def test_a_changed_tree_is_exit_code_5_and_is_not_started(
    as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("amd-card-without-rocm")
    mark = tsuku_home.parent / "started"
    installed = put(tsuku_home, f"touch {mark}")
    (installed.tree / "libggml-evil.so").write_bytes(b"x")
    told = as_json("doctor")
    assert (told["exit_code"], told["error"]["code"]) == (5, "tampered-install")
    assert "libggml-evil.so" in str(told["error"]["facts"])
    assert states(told)["server-list"] == "unknown"
    assert not mark.exists()


def test_a_pointer_that_cannot_be_read_is_exit_code_6(
    as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("amd-card-without-rocm")
    installed = put(tsuku_home)
    (installed.path.parents[1] / "active.json").write_text("{")
    told = as_json("doctor")
    assert (told["exit_code"], told["data"]["broken"]["stage"]) == (6, "installed-tree")


@pytest.mark.parametrize(
    "script", ["exit 3", "echo 'Available devices:'; echo '  (none)'"], ids=["fails", "no-device"]
)
def test_a_server_without_its_gpu_is_exit_code_7(
    script: str, as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("amd-card-without-rocm")
    put(tsuku_home, script)
    told = as_json("doctor")
    assert (told["exit_code"], told["error"]["code"]) == (7, "gate-failed")
    assert told["data"]["broken"]["stage"] == "server-list"
    assert told["data"]["broken"]["fault"]["fix"]


def test_the_active_build_is_examined_and_not_the_one_that_would_be_chosen(
    as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("hybrid-intel-and-nvidia")
    steps = "echo 'Available devices:'; echo '  CUDA0: NVIDIA GeForce RTX 4060 Laptop GPU'"
    put(tsuku_home, steps, "cuda-12.8")
    told = as_json("doctor")
    assert (told["exit_code"], told["data"]["variant"]) == (0, "cuda-12.8")
    assert told["data"]["selected"] == "vulkan"


def test_the_requested_build_is_examined(
    as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("hybrid-intel-and-nvidia")
    steps = "echo 'Available devices:'; echo '  CUDA0: NVIDIA GeForce RTX 4060 Laptop GPU'"
    cuda = put(tsuku_home, steps, "cuda-12.8")
    put(tsuku_home)
    found = as_json("doctor", "--backend", "cuda")["data"]["links"]
    links = {each["stage"]: each for each in found}
    assert links["installed-tree"]["evidence"] == [cuda.id]
    assert links["server-list"]["state"] == "ok"


# --- the CPU's build in use ----------------------------------------------------------------


STARTS = "echo 'version: 1'; echo 'Available devices:'"


@pytest.mark.parametrize(
    "machine", ["debian-12-vm-no-gpu", "only-llvmpipe", "vulkan-loader-without-driver"]
)
def test_a_machine_without_a_gpu_is_whole_with_the_builds_of_its_processor(
    machine: str, program: Program, as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on(machine)
    put(tsuku_home, STARTS, "cpu")
    told = as_json("doctor")
    assert (told["exit_code"], told["data"]["backend"], told["data"]["broken"]) == (0, "cpu", None)
    shown = program("doctor").stdout
    assert "no link is broken; no GPU is visible" in shown
    # The first was recorded in a container, which has to be given a GPU.
    way = "--gpus all" if machine == "debian-12-vm-no-gpu" else "tsuku-llm doctor --backend gpu"
    assert way in shown
    # Its way leads to the links of the driver.
    assert as_json("doctor", "--backend", "gpu")["exit_code"] == 3
    assert "no GPU is visible" not in program("doctor", "--backend", "cpu").stdout


@pytest.mark.parametrize(
    ("machine", "link"),
    [
        ("vulkan-driver-without-loader", "user-library"),
        ("container-without-gpus", "user-library"),
        ("driver-updated-not-rebooted", "api-init"),
        ("rocm-6-without-vulkan", "user-library"),
        ("user-not-in-render-group", "device"),
    ],
)
def test_a_gpu_that_the_processors_build_does_not_use_is_examined(
    machine: str, link: str, as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on(machine)
    put(tsuku_home, STARTS, "cpu")
    told = as_json("doctor")
    assert (told["exit_code"], told["data"]["broken"]["stage"]) == (3, link)
    assert told["data"]["backend"] != "cpu"


@pytest.mark.parametrize("machine", ["debian-12-vm-no-gpu", "driver-updated-not-rebooted"])
def test_what_keeps_the_build_in_use_from_starting_comes_first(
    machine: str, as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on(machine)
    installed = put(tsuku_home, STARTS, "cpu")
    server = installed.tree / "llama-server"
    content = server.read_bytes()
    server.write_bytes(content.replace(b"version", b"Version"))
    told = as_json("doctor")
    assert (told["exit_code"], told["error"]["code"]) == (5, "tampered-install")
    assert told["data"]["backend"] == "cpu"


def test_a_build_in_use_that_does_not_start_comes_first(
    as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("driver-updated-not-rebooted")
    put(tsuku_home, "exit 3", "cpu")
    told = as_json("doctor")
    assert (told["exit_code"], told["error"]["code"]) == (7, "gate-failed")
    assert told["data"]["broken"]["stage"] == "server-list"


def test_an_unknown_backend_is_refused(program: Program) -> None:
    result = program("doctor", "--backend", "quantum")
    assert (result.code, result.stdout) == (3, "")
    assert result.stderr.startswith("error[unknown-request]: ")


# --- the drivers' caches -----------------------------------------------------------------


def cache_states(document: Any) -> dict[str, tuple[str, str]]:
    return {each["name"]: (each["state"], each["text"]) for each in document["data"]["caches"]}


def test_the_caches_of_the_drivers_are_told_and_none_is_made(
    program: Program, as_json: AsJson, tsuku_home: Path, on: Callable[[str], None]
) -> None:
    on("amd-card-without-rocm")
    put(tsuku_home)
    root = tsuku_home / "llm" / "cache" / "drivers"
    empty = ("empty", str(root))
    assert cache_states(as_json("doctor")) == {"nvidia-gl": empty, "mesa": empty}
    assert f"{root}, nothing compiled yet" in program("doctor").stdout
    assert not root.exists()
    # What a driver has kept is shown, and the other vendor's driver is not.
    (root / "mesa" / "mesa_shader_cache").mkdir(parents=True)
    (root / "mesa" / "mesa_shader_cache" / "index").write_bytes(bytes(1_500_000))
    assert cache_states(as_json("doctor"))["mesa"][0] == "kept"
    shown = program("doctor").stdout
    assert f"ok       driver caches   Mesa: {root}, 1.5 MB" in shown
    assert "NVIDIA's Vulkan driver" not in shown


def test_a_cache_that_keeps_nothing_is_named_and_breaks_no_link(
    program: Program,
    as_json: AsJson,
    tsuku_home: Path,
    on: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on("amd-card-without-rocm")
    put(tsuku_home)
    monkeypatch.setenv("MESA_SHADER_CACHE_DISABLE", "true")
    monkeypatch.setenv("__GL_SHADER_DISK_CACHE_PATH", str(tsuku_home / "missing"))
    told = as_json("doctor")
    assert (told["exit_code"], told["data"]["broken"]) == (0, None)
    states = cache_states(told)
    assert states["mesa"] == ("off", "turned off by MESA_SHADER_CACHE_DISABLE=true")
    assert states["nvidia-gl"][0] == "unusable"
    assert "there is no such folder" in states["nvidia-gl"][1]
    shown = program("doctor").stdout
    assert "off" in shown
    assert "each start compiles again" in shown
