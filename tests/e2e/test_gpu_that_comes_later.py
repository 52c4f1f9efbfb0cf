"""The play "a GPU that comes later": what the next start sees of a machine that has changed.

Each form changes what the real event changes, and nothing else. The drivers are stubs that a real
child loads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS
from support.changing_machine import ChangingMachine
from support.folder_shop import NOW, FolderShop
from support.program import environment
from support.stub_drivers import StubDrivers
from support.sweeps import stride

from tsuku_llm.machine.local_host import LocalHost
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.serve.serve import serve
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.session import Machine

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="drivers of Linux")

CUDA_STEPS = (
    "out Available devices:",
    "need STUB_CARD",
    "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)",
)
CUDA = {"toolkit": "12.8", "sass": ["8.0", "9.0"], "ptx": []}
NEWER = {"toolkit": "13.0", "sass": ["9.0"], "ptx": []}
Event = Callable[[ChangingMachine], None]


class Form(NamedTuple):
    """One form: the machine at the install, what happens, and the builds of now and then."""

    before: Event
    happens: Event
    now: str
    then: str = "cpu"


def _offer(shop: FolderShop) -> None:
    builds = {
        "vulkan": ("vulkan", VULKAN_STEPS, {}),
        "cuda-13": ("cuda", CUDA_STEPS, {"cuda": NEWER}),
        "cuda": ("cuda", CUDA_STEPS, {"cuda": CUDA}),
        "cpu": ("cpu", NO_DEVICE_STEPS, {}),
    }
    variants = {
        name: shop.variant(
            shop.stand_in(f"b1-{name}", devices=devices), backend=backend, requires=requires
        )
        for name, (backend, devices, requires) in builds.items()
    }
    shop.publish("b1", variants)


@pytest.fixture
def machine(tmp_path: Path, stubs: StubDrivers) -> ChangingMachine:
    shop = FolderShop(tmp_path / "shop")
    _offer(shop)
    here = ChangingMachine(tmp_path, shop.user(tmp_path / "home"), stubs)
    here.env["STUB_CARD"] = "1"
    return here


# --- the forms: what is there at the install, and what happens then --------------------------


def _without_driver(here: ChangingMachine) -> None:
    here.card()


def _driver(here: ChangingMachine) -> None:
    here.library("cuda", "nvml")
    here.module()
    here.bound()
    here.nodes("nvidiactl", "nvidia0", "nvidia-uvm")


def _forbidden(here: ChangingMachine) -> None:
    here.whole()
    here.no_nodes("nvidiactl")
    here.closed("nvidiactl")
    here.settings["cuInit"] = 100


def _permission(here: ChangingMachine) -> None:
    here.no_nodes("nvidiactl")
    here.nodes("nvidiactl")
    here.settings.clear()


def _loader_alone(here: ChangingMachine) -> None:
    here.search("vulkan")
    here.settings["vulkan_count"] = 0


def _vulkan_driver(here: ChangingMachine) -> None:
    here.icd("radeon_icd.x86_64")
    here.settings.clear()


def _without_nodes(here: ChangingMachine) -> None:
    here.whole()
    here.no_nodes("nvidiactl", "nvidia0", "nvidia-uvm")
    here.settings["cuInit"] = 100


def _nodes(here: ChangingMachine) -> None:
    here.nodes("nvidiactl", "nvidia0", "nvidia-uvm")
    here.settings.clear()


def _without_uvm(here: ChangingMachine) -> None:
    here.whole()
    here.no_nodes("nvidia-uvm")
    here.settings["cuInit"] = 999


def _uvm(here: ChangingMachine) -> None:
    here.nodes("nvidia-uvm")
    here.settings.clear()


def _mps_is_down(here: ChangingMachine) -> None:
    here.whole()
    here.settings["cuInit"] = 805


def _asleep(here: ChangingMachine) -> None:
    here.whole()
    here.settings["cuInit"] = 999


def _awake(here: ChangingMachine) -> None:
    here.settings.clear()


def _unplugged(here: ChangingMachine) -> None:
    here.whole()
    here.no_card()
    here.no_nodes("nvidia0")
    here.settings["cuInit"] = 100


def _hot_plug(here: ChangingMachine) -> None:
    here.card()
    here.bound()
    here.nodes("nvidia0")
    here.settings.clear()


def _container_without_gpu(here: ChangingMachine) -> None:
    """A container sees the host's bus and kernel module, and has no library and no device."""
    here.module()
    here.card()
    here.bound()


def _container_with_gpu(here: ChangingMachine) -> None:
    """NVIDIA's toolkit mounts the libraries, runs ldconfig and makes the device files."""
    here.library("cuda", "nvml")
    here.nodes("nvidiactl", "nvidia0", "nvidia-uvm")


def _old_driver(here: ChangingMachine) -> None:
    here.whole()
    here.module("470.256.02")
    here.settings["cuda_version"] = 11040


def _update(here: ChangingMachine) -> None:
    here.upgrade()
    here.module()
    here.settings.clear()


def _downgrade(here: ChangingMachine) -> None:
    here.upgrade()
    here.module("570.211.01")
    here.settings["cuda_version"] = 12080


def _an_old_card(here: ChangingMachine) -> None:
    here.whole()
    here.settings["cuda_major"] = 3


def _a_second_card(here: ChangingMachine) -> None:
    here.card("0000:02:00.0")
    here.bound("0000:02:00.0")
    here.nodes("nvidia1")
    here.settings |= {"cuda_count": 2, "cuda_major_1": 9}


def _a_second_card_is_given(here: ChangingMachine) -> None:
    """The bus of a container is the host's: only the device file is new."""
    here.nodes("nvidia1")
    here.settings |= {"cuda_count": 2, "cuda_major_1": 9}


def _mig_without_instance(here: ChangingMachine) -> None:
    here.whole()
    here.capability("gpu0/mig/config")
    here.settings |= {"cuda_count": 0, "nvml_mig": 1}


def _mig_instance(here: ChangingMachine) -> None:
    here.capability("gpu0/mig/gi1/access")
    here.settings.clear()


FORMS = {
    "driver": Form(_without_driver, _driver, "cuda-13"),
    "permission": Form(_forbidden, _permission, "cuda-13"),
    "vulkan-driver": Form(_loader_alone, _vulkan_driver, "vulkan"),
    "device-file": Form(_without_nodes, _nodes, "cuda-13"),
    "nvidia-uvm": Form(_without_uvm, _uvm, "cuda-13"),
    "mps": Form(_mps_is_down, _awake, "cuda-13"),
    "suspend": Form(_asleep, _awake, "cuda-13"),
    "hot-plug": Form(_unplugged, _hot_plug, "cuda-13"),
    "container": Form(_container_without_gpu, _container_with_gpu, "cuda-13"),
    "driver-update": Form(_old_driver, _update, "cuda-13"),
    "driver-downgrade": Form(ChangingMachine.whole, _downgrade, "cuda", "cuda-13"),
    "second-card": Form(_an_old_card, _a_second_card, "cuda-13"),
    "second-card-in-a-container": Form(_an_old_card, _a_second_card_is_given, "cuda-13"),
    "mig-instance": Form(_mig_without_instance, _mig_instance, "cuda-13"),
}


def installed(here: ChangingMachine) -> str:
    return str(here.run("install", "--json").document["data"]["variant"])


def served(here: ChangingMachine, *words: str) -> str:
    """A start whose server only lists its devices and ends."""
    return here.run("serve", *words, "--", "--list-devices").stderr


@pytest.mark.parametrize("form", FORMS)
def test_the_next_start_sees_what_has_changed(machine: ChangingMachine, form: str) -> None:
    before, happens, now, then = FORMS[form]
    before(machine)
    assert installed(machine) == then
    said = served(machine)
    assert f"selected={then}" in said
    assert "fits now" not in said
    happens(machine)
    said = served(machine, "--fallback")
    (line,) = (each for each in said.splitlines() if "fits now" in each)
    assert f"{now} (a download of" in line
    assert f"selected={now}" in said


@pytest.mark.parametrize("others", [True, False])
def test_a_card_that_is_removed_leads_to_another_build(
    machine: ChangingMachine, *, others: bool
) -> None:
    """Another card is left, or none; the build that was chosen lists no device any more."""
    machine.whole()
    assert installed(machine) == "cuda-13"
    assert "selected=cuda-13" in served(machine)
    machine.no_card()
    machine.no_nodes("nvidia0")
    machine.settings["cuInit"] = 100
    del machine.env["STUB_CARD"]
    if others:
        machine.search("vulkan")
    said = served(machine, "--fallback")
    assert f"selected={'vulkan' if others else 'cpu'}" in said


@pytest.mark.parametrize("major", [9, 3])
def test_a_start_without_a_change_asks_no_driver(
    tmp_path: Path, stubs: StubDrivers, major: int
) -> None:
    """A card that works, and one that no build serves. The stubs write a line for each question.

    With FUZZ_EXAMPLES=1000 it makes a thousand starts of each.
    """
    shop, calls = FolderShop(tmp_path / "shop"), tmp_path / "calls"
    _offer(shop)
    home = tmp_path / "home"
    settings = {"STUB_calls": str(calls), "STUB_cuda_major": str(major), "STUB_CARD": "1"}
    environ = {**environment(home), **settings, **stubs.searched("cuda", "nvml")}
    machine = Machine(LocalHost(environ=environ), NOW, environ)
    session = shop.session(home, agreed=True)._replace(machine=machine)
    install(session)
    assert "cuInit" in calls.read_text("utf-8")
    plain = Serving()
    assert serve(session, ["--list-devices"], plain) == 0
    calls.unlink()
    for _ in range(0, 1000, stride(50)):
        assert serve(session, ["--list-devices"], plain) == 0
    assert not calls.exists()
